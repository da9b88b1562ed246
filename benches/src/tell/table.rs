//! The figures as text: one table for each test, and a line on the machine.

use std::fmt::Write;

use crate::ask::request::Test;
use crate::measure::record::{Document, HalfRtt, Part, Path, Record, Sides};
use crate::measure::tries::{self, Rate};
use crate::measure::verdict::Verdict;
use crate::overhead::limits;
use crate::tell::draw::STALL_NS;
use crate::tell::grid::Grid;
use crate::tell::ranks;

/// What is said of the figures of such a build.
pub(crate) const DEBUG_BUILD: &str =
    "a debug build: these figures mean nothing; build with --release";

/// In the order of the tables.
const TESTS: [Test; 7] = [
    Test::Latency,
    Test::Rate,
    Test::Load,
    Test::Sweep,
    Test::Crowd,
    Test::Bandwidth,
    Test::Overhead,
];

/// The whole text.
pub(crate) fn text(document: &Document) -> String {
    let mut text = String::new();
    for test in TESTS {
        let records: Vec<&Record> =
            document.results.iter().filter(|record| record.test == test).collect();
        if let Some(first) = records.first() {
            let (title, head, row): (_, _, fn(&Record) -> Vec<String>) = match test {
                Test::Latency => ("half round trip, ns", LATENCY, latency),
                Test::Rate => ("one way", RATE, rate),
                Test::Load => ("round trip from when each was due, ns", LOAD, load),
                Test::Sweep => ("round trips", SWEEP, sweep),
                Test::Crowd => ("round trips of the busy connections, ns", CROWD, crowd),
                Test::Overhead => ("instructions per message", OVERHEAD, overhead),
                Test::Bandwidth => ("bytes one way", BANDWIDTH, bandwidth),
                // It has a table of its own.
                Test::Traffic => continue,
            };
            let rows: Vec<Vec<String>> = records.iter().map(|record| row(record)).collect();
            // Writing to a string cannot fail, here and below.
            let bare = alone(first);
            let (test, sides) = (name(test), sides(first));
            let _ = writeln!(text, "{test} on {}: {bare}{title}; {sides}", first.device);
            text.push_str(&table(head, &rows));
            text.extend(records.iter().filter_map(|record| idle(record)));
            text.extend(records.iter().map(|record| ranks::table(record)));
            text.extend(records.last().and_then(|record| resident(record)));
            text.extend(records.iter().filter_map(|record| stalls(record)));
            text.push_str(&objectives(&records));
            let verdicts = Verdict::all(records.into_iter());
            text.extend(verdicts.iter().map(Verdict::line));
            text.push('\n');
        }
    }
    text.push_str(&footer(document));
    text
}

const LATENCY: &[&str] = &[
    "bytes",
    "p50",
    "p90",
    "p99",
    "p99.9",
    "p99.99",
    "max",
    "mean",
    "floor",
    "p50/floor",
    "mode",
    "lost",
];

const RATE: &[&str] = &[
    "bytes",
    "batch",
    "M msg/s",
    "MB/s",
    "doorbells/msg",
    "completions/poll",
    "allocations/msg",
    "floor",
    "mode",
    "lost",
];

fn latency(record: &Record) -> Vec<String> {
    let Some(half) = record.figures.half_rtt_ns else { return vec![record.size.to_string()] };
    let floor = record.placement.floor_ns;
    let mut row = vec![record.size.to_string()];
    row.extend([half.p50, half.p90, half.p99].map(|ns| format!("{ns:.0}")));
    row.extend([half.p99_9, half.p99_99, half.max].map(|ns| format!("{ns:.0}")));
    row.push(format!("{:.1}", half.mean));
    row.push(floor.map_or("-".into(), |ns| format!("{ns:.0}")));
    row.push(floor.map_or("-".into(), |ns| format!("{:.2}", half.p50 / ns)));
    row.push(record.placement.mode.unwrap_or("-").to_owned());
    row.push(record.lost.to_string());
    row
}

fn rate(record: &Record) -> Vec<String> {
    let millions = |figure: Option<f64>| figure.unwrap_or_default() / 1e6;
    let mut row = vec![
        record.size.to_string(),
        record.batch.map_or("-".into(), |batch| batch.to_string()),
        figure(millions(record.figures.messages_per_second)),
        figure(millions(record.figures.bytes_per_second)),
        number(record.figures.doorbells_per_message, 4),
        number(record.figures.completions_per_poll, 2),
        record.figures.allocations_per_message.map_or("-".into(), |count| count.to_string()),
    ];
    row.extend(ending(record));
    row
}

const LOAD: &[&str] = &[
    "bytes", "arrivals", "due/s", "sent/s", "x due", "p50", "p90", "p99", "p99.9", "p99.99", "max",
    "mean", "unsent", "floor", "mode", "lost",
];

fn load(record: &Record) -> Vec<String> {
    let figures = &record.figures;
    let mut row = vec![record.size.to_string()];
    row.push(figures.arrivals.clone().unwrap_or_else(|| "-".to_owned()));
    row.push(number(figures.offered_per_second, 0));
    row.push(number(figures.messages_per_second, 0));
    row.push(number(figures.times_offered, 4));
    let times = figures.rtt_ns;
    let of = |pick: fn(&HalfRtt) -> f64| number(times.as_ref().map(pick), 0);
    row.extend([of(|of| of.p50), of(|of| of.p90), of(|of| of.p99)]);
    row.extend([of(|of| of.p99_9), of(|of| of.p99_99), of(|of| of.max)]);
    row.push(number(times.map(|of| of.mean), 1));
    row.push(figures.unsent.map_or("-".into(), |count| count.to_string()));
    row.extend(ending(record));
    row
}

const SWEEP: &[&str] = &[
    "bytes",
    "in flight",
    "batching",
    "M/s",
    "x best below",
    "p50 ns",
    "mean ns",
    "x unbatched",
    "doorbells/msg",
    "floor",
    "mode",
    "lost",
];

fn sweep(record: &Record) -> Vec<String> {
    let figures = &record.figures;
    let half = figures.half_rtt_ns;
    let batching = |on: bool| if on { "on" } else { "off" };
    let mut row = vec![
        record.size.to_string(),
        figures.depth.map_or("-".into(), |depth| depth.to_string()),
        batching(figures.batching.unwrap_or(true)).to_owned(),
        figures.messages_per_second.map_or("-".into(), |rate| figure(rate / 1e6)),
        number(figures.times_best_below, 3),
        number(half.map(|half| half.p50), 0),
        number(half.map(|half| half.mean), 1),
        number(figures.times_without_batching, 3),
        number(figures.doorbells_per_message, 4),
    ];
    row.extend(ending(record));
    row
}

/// The last cells of most rows: floor, mode, lost.
fn ending(record: &Record) -> [String; 3] {
    let placement = &record.placement;
    let floor = placement.floor_ns.map_or("-".into(), |ns| format!("{ns:.0}"));
    [floor, placement.mode.unwrap_or("-").to_owned(), record.lost.to_string()]
}

const CROWD: &[&str] = &[
    "bytes",
    "busy",
    "idle",
    "in flight",
    "M/s",
    "least",
    "most",
    "p50",
    "p99",
    "p99.9",
    "max",
    "receives",
    "out",
    "stalls",
    "errors",
    "floor",
    "mode",
    "lost",
];

fn crowd(record: &Record) -> Vec<String> {
    let figures = &record.figures;
    let count = |count: Option<u64>| count.map_or("-".into(), |count| count.to_string());
    let half = figures.half_rtt_ns;
    let of = |pick: fn(&HalfRtt) -> f64| number(half.as_ref().map(|half| 2.0 * pick(half)), 0);
    let mut row = vec![record.size.to_string(), record.qps.to_string()];
    row.extend([record.idle_qps.to_string(), count(figures.depth.map(u64::from))]);
    row.push(figures.messages_per_second.map_or("-".into(), |rate| figure(rate / 1e6)));
    row.extend([figures.least_messages, figures.most_messages].map(count));
    row.extend([of(|half| half.p50), of(|half| half.p99), of(|half| half.p99_9)]);
    row.extend([of(|half| half.max), count(figures.receives.map(u64::from))]);
    row.extend([figures.receives_out_most, figures.credit_stalls, figures.errors].map(count));
    row.extend(ending(record));
    row
}

/// The memory of both processes, as a line.
fn resident(record: &Record) -> Option<String> {
    let mega = |bytes: u64| bytes as f64 / 1e6;
    let here = mega(record.figures.resident_bytes?);
    let there = mega(record.figures.resident_bytes_serving?);
    Some(format!("  resident memory: {here:.0} MB here, {there:.0} MB on the serving side\n"))
}

const BANDWIDTH: &[&str] = &[
    "bytes",
    "op",
    "outstanding",
    "GB/s",
    "memcpy GB/s",
    "x memcpy",
    "messages",
    "floor",
    "mode",
    "lost",
];

fn bandwidth(record: &Record) -> Vec<String> {
    let giga = |bytes: Option<f64>| bytes.map(|bytes| bytes / 1e9);
    let mut row = vec![
        record.size.to_string(),
        record.op.map_or("-".into(), |op| format!("{op:?}").to_lowercase()),
        record.batch.map_or("-".into(), |batch| batch.to_string()),
        number(giga(record.figures.bytes_per_second), 2),
        number(giga(record.figures.memcpy_bytes_per_second), 2),
        number(record.figures.times_memcpy, 3),
        record.messages.to_string(),
    ];
    row.extend(ending(record));
    row
}

const OVERHEAD: &[&str] = &[
    "bytes",
    "path",
    "batch",
    "here: bare",
    "worker",
    "added",
    "there: bare",
    "worker",
    "added",
    "aim",
];

fn overhead(record: &Record) -> Vec<String> {
    let figures = &record.figures;
    let mut row = vec![
        record.size.to_string(),
        figures.path.map_or("-".into(), |path| format!("{path:?}").to_lowercase()),
        record.batch.map_or("-".into(), |batch| batch.to_string()),
    ];
    if let Some(Sides { here, there }) = figures.instructions {
        for side in [here, there] {
            row.extend([side.bare, side.worker, side.added].map(|count| format!("{count:.1}")));
        }
    }
    let is_reply = figures.path == Some(Path::Echo);
    row.push(if is_reply { format!("<= {:.0}", limits::AIM) } else { "-".into() });
    row
}

/// The sizes of hot functions, beside those that are checked in.
pub(crate) fn hot_functions(rows: &[[String; 3]]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.to_vec()).collect();
    let head = ["hot function", "bytes", "checked in"];
    format!("\nhot functions of this build\n{}", table(&head, &rows))
}

/// The parts of the time of a load that had a stall, as a line.
fn stalls(record: &Record) -> Option<String> {
    let seconds = record.part_seconds.filter(|_| record.test == Test::Load)?;
    let slowest = |(n, part): (usize, &Part)| Some((n, part.max_ns?));
    let parts = record.parts.iter().enumerate().filter_map(slowest);
    let stalled: Vec<(usize, f64)> = parts.filter(|(_, ns)| *ns > STALL_NS).collect();
    let (part, ns) = stalled.iter().copied().max_by(|one, two| one.1.total_cmp(&two.1))?;
    Some(format!(
        "  {} bytes, {} due/s: stalls in {} of {} parts; the longest took {:.1} ms, in the part \
         that began at {:.2} s\n",
        record.size,
        number(record.figures.offered_per_second, 0),
        stalled.len(),
        record.parts.len(),
        ns / 1e6,
        part as f64 * seconds
    ))
}

/// What the search of `--slo` found, a line for each size.
fn objectives(records: &[&Record]) -> String {
    let searched: Vec<&&Record> =
        records.iter().filter(|record| record.figures.slo.is_some()).collect();
    let mut text = String::new();
    for tries in searched.chunk_by(|one, two| one.size == two.size) {
        let Some(slo) = tries.first().and_then(|record| record.figures.slo.as_ref()) else {
            continue;
        };
        let best =
            tries.iter().find(|record| record.figures.slo.as_ref().is_some_and(|of| of.best));
        let best = best.and_then(|record| record.figures.offered_per_second);
        let (size, percentile, limit) = (tries[0].size, slo.percentile, slo.limit_ns);
        let rates = tries::count(tries.iter().copied().copied());
        let tried = |rate: &Rate| format!("{} of {} tries", rate.kept, rate.of);
        let mut found = match rates.iter().find(|rate| Some(rate.per_second) == best) {
            Some(rate) => format!(
                "up to {} messages a second ({})",
                number(Some(rate.per_second), 0),
                tried(rate)
            ),
            None => "at no rate".to_owned(),
        };
        let next = rates.iter().find(|rate| Some(rate.per_second) > best);
        if let Some(rate) = next {
            let above = number(Some(rate.per_second), 0);
            found.push_str(&format!("; at {above} in {}", tried(rate)));
        }
        let _ = writeln!(text, "  {size} bytes: {percentile} stays within {limit} ns {found}");
    }
    text
}

/// The cost of idle connections, as a line.
fn idle(record: &Record) -> Option<String> {
    let figures = &record.figures;
    let (size, idle) = (record.size, record.idle_qps);
    let mut line = format!(
        "  {size} bytes beside {idle} idle connections: {} times the time without them; {} bytes \
         each",
        number(Some(figures.times_without_idle?), 3),
        number(figures.bytes_per_idle_connection, 0),
    );
    if let Some(bytes) = figures.bytes_per_idle_connection_serving {
        let _ = write!(line, ", {bytes:.0} on the serving side");
    }
    Some(line + "\n")
}

/// A figure, or a dash if it is missing.
fn number(figure: Option<f64>, digits: usize) -> String {
    figure.map_or("-".into(), |figure| format!("{figure:.digits$}"))
}

/// A figure with at least three digits.
fn figure(figure: f64) -> String {
    let digits = match figure {
        100.0.. => 0,
        10.0.. => 1,
        0.1.. => 2,
        _ => 4,
    };
    format!("{figure:.digits$}")
}

fn name(test: Test) -> &'static str {
    match test {
        Test::Latency => "latency",
        Test::Rate => "rate",
        Test::Load => "load",
        Test::Sweep => "sweep",
        Test::Crowd => "crowd",
        Test::Bandwidth => "bandwidth",
        Test::Overhead => "overhead",
        Test::Traffic => "traffic",
    }
}

/// What the device alone had, if it was alone.
fn alone(record: &Record) -> String {
    if !record.bare {
        return String::new();
    }
    let transport = match record.transport {
        Some(of) => format!("{of:?}").to_uppercase() + ", ",
        None => String::new(),
    };
    let srq = if record.no_srq { "no shared receive queue, " } else { "" };
    format!("device alone, {transport}{srq}")
}

/// Where the two sides ran.
pub(crate) fn sides(record: &Record) -> String {
    let cores: Vec<String> = record.placement.cores.iter().map(usize::to_string).collect();
    if cores.is_empty() {
        return record.placement.sides.to_owned();
    }
    let workers = match record.workers {
        1 => String::new(),
        workers => format!(", {workers} workers"),
    };
    format!("{} on cores {}{workers}", record.placement.sides, cores.join(","))
}

/// A table as text.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut grid = Grid::new(head);
    rows.iter().for_each(|row| grid.push(row.clone()));
    grid.text()
}

/// The machine and the commit.
pub(crate) fn footer<R>(document: &Document<R>) -> String {
    let machine = &document.machine;
    let commit = document.commit.as_deref().unwrap_or("unknown");
    let mut text = format!(
        "{}, {}, kernel {}, cores {}\ncommit {commit}, {} build, {}clock {} in steps of \
         {} ns\n",
        machine.cpu,
        machine.system,
        machine.kernel,
        machine.cores,
        machine.build,
        match &machine.pages[..] {
            "" => String::new(),
            pages => format!("{pages} pages, "),
        },
        machine.clock,
        machine.clock_step_ns
    );
    if machine.build == "debug" {
        text.push_str(&format!("{DEBUG_BUILD}\n"));
    }
    text
}
