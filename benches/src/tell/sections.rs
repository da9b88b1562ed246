//! The sections of the page of results: one for each command, from the JSON that it wrote.

use serde_json::Value;

use crate::measure::verdict::{BATCHING_MOST, LEAST};
use crate::overhead::limits::AIM;
use crate::tell::aims::{self, Aim, Aims};
use crate::tell::grid::Grid;

/// A number in a record.
pub(crate) fn number(record: &Value, path: &str) -> Option<f64> {
    record.pointer(path).and_then(Value::as_f64)
}

/// Text in a record; empty if there is none.
pub(crate) fn text<'a>(record: &'a Value, path: &str) -> &'a str {
    record.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// The records of a document.
pub(crate) fn records(document: &Value) -> &[Value] {
    document["results"].as_array().map_or(&[], Vec::as_slice)
}

/// A figure with that many digits, or a dash.
pub(crate) fn cell(figure: Option<f64>, digits: usize) -> String {
    figure.map_or("-".to_owned(), |figure| format!("{figure:.digits$}"))
}

fn whole(record: &Value, path: &str) -> String {
    cell(number(record, path), 0)
}

fn size(record: &Value) -> u64 {
    record["size"].as_u64().unwrap_or_default()
}

/// Floor and mode, the last cells of a row.
fn floor(record: &Value) -> [String; 2] {
    let mode = text(record, "/placement/mode");
    [whole(record, "/placement/floor_ns"), if mode.is_empty() { "-" } else { mode }.to_owned()]
}

/// `latency`, with workers or with the device alone.
pub(crate) fn latency(document: &Value, aims: &mut Aims) -> Grid {
    let mut grid = Grid::new(&[
        "bytes",
        "p50 ns",
        "p90",
        "p99",
        "p99.9",
        "mean ns",
        "mean / floor",
        "aim",
        "",
        "floor ns",
        "cores",
    ]);
    for record in records(document) {
        let (size, mode) = (size(record), text(record, "/placement/mode"));
        let mean = number(record, "/half_rtt_ns/mean");
        let floors = mean.zip(number(record, "/placement/floor_ns")).map(|(mean, ns)| mean / ns);
        let bare = record["bare"].as_bool().unwrap_or_default();
        let (aim, name) = match bare {
            true => (aims::bare_latency(size, mode), "device alone, half round trip of"),
            false => (aims::latency(size, mode), "half round trip of"),
        };
        let mut row = vec![size.to_string()];
        for name in ["p50", "p90", "p99", "p99_9"] {
            row.push(whole(record, &format!("/half_rtt_ns/{name}")));
        }
        row.extend([cell(mean, 1), cell(floors, 2)]);
        row.extend(aims.judge(&format!("{name} {size} bytes, in floors"), (floors, 2), aim));
        row.extend(floor(record));
        grid.push(row);
    }
    grid
}

/// `traffic`.
pub(crate) fn traffic(document: &Value, aims: &mut Aims) -> Grid {
    let mut grid = Grid::new(&[
        "row",
        "round trip",
        "p50 ns",
        "p90",
        "p99",
        "naive p50 ns",
        "p90",
        "p99",
        "p50 / naive",
        "aim",
        "",
        "p99 / naive",
        "aim",
        "",
        "floor ns",
        "cores",
    ]);
    for record in records(document) {
        let (what, name) = match record.get("latency_ns") {
            Some(_) => ("full", "latency_ns"),
            None => ("half", "half_rtt_ns"),
        };
        let mut row = vec![text(record, "/row").to_owned(), what.to_owned()];
        for name in [name, &format!("naive_{name}")] {
            row.extend(["p50", "p90", "p99"].map(|of| whole(record, &format!("/{name}/{of}"))));
        }
        for (part, path, aim) in [
            ("p50", "/times_naive", aims::traffic_p50(size(record))),
            ("p99", "/times_naive_p99", aims::traffic_p99(size(record))),
        ] {
            let times = number(record, path);
            row.push(cell(times, 2));
            let what = format!("traffic {}, {part}, times the naive ring's", text(record, "/row"));
            row.extend(aims.judge(&what, (times, 3), aim));
        }
        row.extend(floor(record));
        grid.push(row);
    }
    grid
}

/// `rate`.
pub(crate) fn rate(document: &Value, aims: &mut Aims) -> Grid {
    let mut grid = Grid::new(&[
        "bytes",
        "batch",
        "million messages/s",
        "MB/s",
        "doorbells a message",
        "allocations a message",
        "aim",
        "",
        "floor ns",
        "cores",
    ]);
    for record in records(document) {
        let (size, batch) = (size(record), whole(record, "/batch"));
        let millions = |path| cell(number(record, path).map(|figure| figure / 1e6), 1);
        let allocations = number(record, "/allocations_per_message");
        let what = format!("allocations a message, {size} bytes, batch {batch}");
        let mut row = vec![size.to_string(), batch];
        row.extend([millions("/messages_per_second"), millions("/bytes_per_second")]);
        row.push(cell(number(record, "/doorbells_per_message"), 3));
        row.push(cell(allocations, 0));
        row.extend(aims.judge(&what, (allocations, 4), Some(aims::NONE)));
        row.extend(floor(record));
        grid.push(row);
    }
    grid
}

/// `latency` and `rate` with idle connections.
pub(crate) fn idle(documents: &[&Value], aims: &mut Aims) -> Grid {
    let mut grid = Grid::new(&[
        "test",
        "bytes",
        "idle connections",
        "times without them",
        "aim",
        "",
        "bytes of memory for each",
        "floor ns",
        "cores",
    ]);
    let all = documents.iter().flat_map(|document| records(document));
    for record in all.filter(|record| record.get("times_without_idle").is_some()) {
        let (test, times) = (text(record, "/test"), number(record, "/times_without_idle"));
        let mut row = vec![test.to_owned(), size(record).to_string(), whole(record, "/idle_qps")];
        row.push(cell(times, 3));
        let what = format!("{test} beside idle connections, times without them");
        row.extend(aims.judge(&what, (times, 3), Some(aims::IDLE)));
        row.push(whole(record, "/bytes_per_idle_connection"));
        row.extend(floor(record));
        grid.push(row);
    }
    grid
}

/// `sweep`: the depths.
pub(crate) fn sweep(document: &Value, aims: &mut Aims) -> Grid {
    let mut grid = Grid::new(&[
        "in flight",
        "million round trips/s",
        "times the best with fewer",
        "aim",
        "",
        "doorbells a message",
        "floor ns",
        "cores",
    ]);
    for record in records(document).iter().filter(|record| record.get("batching").is_none()) {
        let depth = whole(record, "/depth");
        let times = number(record, "/times_best_below");
        let aim = times.is_some().then_some(Aim::AtLeast(LEAST));
        let rate = number(record, "/messages_per_second").map(|rate| rate / 1e6);
        let mut row = vec![depth.clone(), cell(rate, 2), cell(times, 3)];
        let what = format!("rate with {depth} in flight, times the best with fewer");
        row.extend(aims.judge(&what, (times, 3), aim));
        row.push(cell(number(record, "/doorbells_per_message"), 3));
        row.extend(floor(record));
        grid.push(row);
    }
    grid
}

/// `sweep`: a lone message without and with batching.
pub(crate) fn lone(document: &Value, aims: &mut Aims) -> Grid {
    let mut grid = Grid::new(&[
        "a lone message",
        "half round trip, mean ns",
        "times without batching",
        "aim",
        "",
    ]);
    for record in records(document).iter().filter(|record| record.get("batching").is_some()) {
        let batching = record["batching"].as_bool().unwrap_or_default();
        let times = number(record, "/times_without_batching");
        let aim = batching.then_some(Aim::AtMost(BATCHING_MOST));
        let mean = cell(number(record, "/half_rtt_ns/mean"), 1);
        let name = if batching { "with batching" } else { "without batching" };
        let mut row = vec![name.to_owned(), mean, cell(times, 3)];
        row.extend(aims.judge("a lone message with batching, times without", (times, 3), aim));
        grid.push(row);
    }
    grid
}

/// `crowd`.
pub(crate) fn crowd(document: &Value, aims: &mut Aims) -> Grid {
    let mut grid = Grid::new(&[
        "busy",
        "idle",
        "in flight of each",
        "round trip p50 µs",
        "p99",
        "p99.9",
        "fewest messages of a connection",
        "most",
        "times without idle",
        "errors",
        "aim",
        "",
        "floor ns",
        "cores",
    ]);
    for record in records(document) {
        let idle = record["idle_qps"].as_u64().unwrap_or_default();
        let mut row = vec![whole(record, "/qps"), idle.to_string(), whole(record, "/depth")];
        for name in ["p50", "p99", "p99_9"] {
            // The record has half round trips, in nanoseconds.
            let half = number(record, &format!("/half_rtt_ns/{name}"));
            row.push(cell(half.map(|ns| 2.0 * ns / 1000.0), 1));
        }
        row.extend([whole(record, "/least_messages"), whole(record, "/most_messages")]);
        row.push(cell(number(record, "/times_without_idle"), 3));
        let errors = number(record, "/errors");
        row.push(cell(errors, 0));
        let what = format!("errors in a crowd of {idle} idle connections");
        row.extend(aims.judge(&what, (errors, 0), Some(aims::NONE)));
        row.extend(floor(record));
        grid.push(row);
    }
    grid
}

/// `bandwidth`.
pub(crate) fn bandwidth(document: &Value, aims: &mut Aims) -> Grid {
    let mut grid = Grid::new(&[
        "bytes",
        "operation",
        "GB/s",
        "memcpy GB/s",
        "times memcpy",
        "aim",
        "",
        "floor ns",
        "cores",
    ]);
    for record in records(document) {
        let giga = |path| cell(number(record, path).map(|figure| figure / 1e9), 1);
        let (size, op) = (size(record), text(record, "/op").to_uppercase());
        let times = number(record, "/times_memcpy");
        let what = format!("{op} of {size} bytes, times memcpy");
        let mut row = vec![size.to_string(), op];
        row.extend([giga("/bytes_per_second"), giga("/memcpy_bytes_per_second"), cell(times, 3)]);
        row.extend(aims.judge(&what, (times, 3), Some(aims::MEMCPY)));
        row.extend(floor(record));
        grid.push(row);
    }
    grid
}

/// `connect`.
pub(crate) fn connect(document: &Value) -> Grid {
    let mut grid = Grid::new(&["under way at once", "connections/s", "connections"]);
    let cells = ["/at_once", "/connections_per_second", "/connections"];
    grid.push(cells.iter().map(|path| whole(document, path)).collect());
    grid
}

/// `overhead`: instructions of a message. Without `aims` there is no column for them.
pub(crate) fn instructions(document: &Value, mut aims: Option<&mut Aims>) -> Grid {
    let mut head = vec!["bytes", "path", "batch", "side", "device alone", "with worker", "added"];
    if aims.is_some() {
        head.extend(["aim", ""]);
    }
    let mut grid = Grid::new(&head);
    for record in records(document) {
        let (size, path) = (size(record), text(record, "/path"));
        for (side, echo, stream) in [("here", "asks", "sends"), ("there", "answers", "receives")] {
            let name = if path == "echo" { echo } else { stream };
            let of = |what: &str| number(record, &format!("/instructions/{side}/{what}"));
            let round = whole(record, "/batch");
            let mut row = vec![size.to_string(), path.to_owned(), round, name.to_owned()];
            row.extend([of("bare"), of("worker"), of("added")].map(|figure| cell(figure, 1)));
            if let Some(aims) = &mut aims {
                let is_alone = number(record, "/batch") == Some(1.0);
                let aim = (name == "answers" && is_alone).then_some(Aim::AtMost(AIM));
                let what = format!("instructions that a worker adds to a reply of {size} bytes");
                row.extend(aims.judge(&what, (of("added"), 1), aim));
            }
            grid.push(row);
        }
    }
    grid
}

/// `overhead`: sizes of the hot functions, the largest first.
pub(crate) fn sizes(document: &Value) -> Grid {
    let mut grid = Grid::new(&["function", "bytes"]);
    let functions = document["hot_function_bytes"].as_object();
    let bytes = |(name, bytes): (&String, &Value)| (bytes.as_u64().unwrap_or(0), name.clone());
    let mut functions: Vec<(u64, String)> = functions.into_iter().flatten().map(bytes).collect();
    functions.sort_unstable_by(|one, two| two.cmp(one));
    let total: u64 = functions.iter().map(|(bytes, _)| bytes).sum();
    for (bytes, name) in functions {
        grid.push(vec![format!("`{name}`"), bytes.to_string()]);
    }
    grid.push(vec!["all together".to_owned(), total.to_string()]);
    grid
}
