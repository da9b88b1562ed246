//! `overhead`: instructions that worker and handler add to a message, on each side, above what the
//! bare device takes. Counted, not timed: by callgrind, which this program starts on itself. So the
//! figures are the same on a busy machine, and a limit can be held against them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Command, Stdio};

use doorbell::soft::SOFT_DEVICE;
use serde::Serialize;

use crate::cli::OverheadArgs;
use crate::counted::{BATCH, Case, Path};
use crate::error::Failure;
use crate::record::{Figures, Placement, Record, SCHEMA, Sheet, round};
use crate::wire::{Request, Test};

/// Messages of each case.
const MESSAGES: u64 = 8192;
const MESSAGES_QUICK: u64 = 1024;

/// The limits, as they were checked in.
const LIMITS: &str = include_str!("../overhead.json");

/// How far above its limit a figure may be: this part of it, or so many instructions.
const RISE: f64 = 0.05;
const RISE_MIN: f64 = 1.0;

/// The aim for a reply in place, in instructions.
pub(crate) const AIM: f64 = 60.0;

/// Instructions of a message on one side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Side {
    pub(crate) worker: f64,
    pub(crate) bare: f64,
    pub(crate) added: f64,
}

/// On both: `here` sends and takes what comes back, `there` answers, or receives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Sides {
    pub(crate) here: Side,
    pub(crate) there: Side,
}

/// Limits, by path, side and size.
type Limits = BTreeMap<String, f64>;

/// Counts; one record for each size and path.
pub(crate) fn count(args: &OverheadArgs) -> Result<Vec<Record>, Failure> {
    if args.device.as_deref().is_some_and(|name| name != SOFT_DEVICE) {
        return Err(Failure::new(format!(
            "overhead counts on {SOFT_DEVICE} alone: what a driver does is no part of the engine"
        )));
    }
    let sizes = &args.size;
    let most = doorbell::worker::Config::DEFAULT.inline_bytes;
    if let Some(size) = sizes.iter().find(|size| !(1..=most).contains(size)) {
        return Err(Failure::new(format!(
            "--size {size}: overhead counts messages of 1 to {most} bytes, which go inline"
        )));
    }
    let messages = if args.quick { MESSAGES_QUICK } else { MESSAGES };
    let here = run("counted_here", sizes, messages)?;
    let there = run("counted_there", sizes, messages)?;
    let side = |counts: &[f64]| match counts {
        [bare, worker] => Some(Side { worker: *worker, bare: *bare, added: worker - bare }),
        _ => None,
    };
    let mut records = Vec::new();
    for ((cases, here), there) in
        Case::all(sizes).chunks(2).zip(here.chunks(2)).zip(there.chunks(2))
    {
        if let ([case, _], Some(here), Some(there)) = (cases, side(here), side(there)) {
            records.push(record(case, Sides { here, there }, messages));
        }
    }
    Ok(records)
}

/// A folder for callgrind's files, for as long as this lives.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Best effort: what stays is small, and where such things are swept away.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the cases below callgrind, and counts what happens in a function; instructions of a
/// message, of each case.
fn run(function: &str, sizes: &[u32], messages: u64) -> Result<Vec<f64>, Failure> {
    let name = format!("doorbell-overhead-{}-{function}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    let failed = |asked: &str| {
        let asked = asked.to_owned();
        move |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::system(&asked, &error, "install it: apt-get install valgrind")
            }
            _ => Failure::system(&asked, &error, "is the disk full?"),
        }
    };
    fs::create_dir_all(&folder.0).map_err(failed("make a folder for counts"))?;
    let own = std::env::current_exe().map_err(failed("find this program"))?;
    let list: Vec<String> = sizes.iter().map(u32::to_string).collect();
    let out = folder.0.join("out");
    // One thread at a time runs below valgrind. In turn, or the one that waits for the connection
    // keeps the one that accepts it from running at all.
    let output = Command::new("valgrind")
        .args(["-q", "--tool=callgrind", "--fair-sched=yes", "--dump-after=*counted_case_end*"])
        .arg(format!("--toggle-collect=*{function}*"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(own)
        .args(["count", "--size", &list.join(","), "--messages", &messages.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(failed("start valgrind"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or_default();
        return Err(Failure::new(format!(
            "below valgrind it ended with {}: {last}",
            output.status
        )));
    }
    let cases = Case::all(sizes).len();
    let each = (1..=cases).map(|n| total(&out.with_extension(n.to_string())));
    let each = each.map(|total| total.map(|count| count as f64 / messages as f64));
    each.collect()
}

/// The instructions in a file of callgrind's.
fn total(file: &FilePath) -> Result<u64, Failure> {
    let wrong = |what: String| {
        Failure::new(format!("callgrind left no count in {}: {what}", file.display()))
    };
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    match total_in(&text) {
        Some(count) if count > 0 => Ok(count),
        _ => Err(wrong("is this program built without symbols?".to_owned())),
    }
}

fn total_in(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("totals:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn record(case: &Case, sides: Sides, messages: u64) -> Record {
    let test = if case.path == Path::Echo { Test::Latency } else { Test::Rate };
    let request = Request::new(test, case.size);
    let tenths = |side: Side| Side {
        worker: round(side.worker, 1),
        bare: round(side.bare, 1),
        added: round(side.added, 1),
    };
    let sides = Sides { here: tenths(sides.here), there: tenths(sides.there) };
    Record {
        schema: SCHEMA,
        test: Test::Overhead,
        provider: "soft",
        device: SOFT_DEVICE.to_owned(),
        size: case.size,
        op: None,
        batch: Some(if case.path == Path::Echo { 1 } else { BATCH }),
        bare: false,
        qps: request.qps,
        workers: request.workers,
        idle_qps: 0,
        signal_every: request.signal_every,
        placement: Placement { cores: Vec::new(), sides: "one thread", floor_ns: None, mode: None },
        figures: Figures {
            path: Some(case.path),
            instructions_per_message: Some(sides.there.added),
            instructions: Some(sides),
            ..Figures::default()
        },
        messages,
        lost: 0,
    }
}

/// What is held against a limit: a name for each figure.
fn limits(records: &[Record]) -> Limits {
    let mut limits = Limits::new();
    for record in records {
        let (Some(sides), Some(path)) = (record.figures.instructions, record.figures.path) else {
            continue;
        };
        let path = format!("{path:?}").to_lowercase();
        limits.insert(format!("{path} here, {} bytes", record.size), sides.here.added);
        limits.insert(format!("{path} there, {} bytes", record.size), sides.there.added);
    }
    limits
}

/// Writes the figures as the new limits.
pub(crate) fn save(records: &[Record], sheet: Sheet) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(&limits(records));
    let text = text.map_err(|error| Failure::new(format!("write the limits: {error}")))?;
    sheet.write(&(text + "\n"))
}

/// Holds the figures against the limits that are checked in.
///
/// # Errors
/// One of them has risen, or has no limit, or the build is not the one that was limited.
pub(crate) fn check(records: &[Record]) -> Result<(), Failure> {
    if cfg!(debug_assertions) {
        return Err(Failure::new("limits are of release builds; build with --release"));
    }
    let known: Limits = serde_json::from_str(LIMITS)
        .map_err(|error| Failure::new(format!("read benches/overhead.json: {error}")))?;
    let over = risen(&limits(records), &known);
    if over.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "more instructions than benches/overhead.json allows: {}; make it less again, or say why \
         and renew the limits with --save benches/overhead.json",
        over.join("; ")
    )))
}

/// Those that are more than a little over their limit.
fn risen(found: &Limits, known: &Limits) -> Vec<String> {
    let over = |(name, found): (&String, &f64)| match known.get(name) {
        None => Some(format!("{name}: {found:.1}, and there is no limit")),
        Some(limit) if *found > limit + (limit * RISE).max(RISE_MIN) => {
            Some(format!("{name}: {found:.1} where {limit:.1} is known"))
        }
        Some(_) => None,
    };
    found.iter().filter_map(over).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits_of(figures: &[(&str, f64)]) -> Limits {
        figures.iter().map(|(name, figure)| ((*name).to_owned(), *figure)).collect()
    }

    #[test]
    fn a_rise_of_more_than_a_twentieth_is_found() {
        let known = limits_of(&[("a", 100.0), ("b", 4.0), ("c", -3.0)]);
        assert!(risen(&limits_of(&[("a", 105.0), ("b", 5.0), ("c", -2.0)]), &known).is_empty());
        assert!(risen(&limits_of(&[("a", 20.0)]), &known).is_empty());
        let over = risen(&limits_of(&[("a", 105.1), ("b", 5.1), ("c", -1.9), ("d", 0.0)]), &known);
        assert_eq!(over.len(), 4, "{over:?}");
        assert!(over[0].contains("105.1") && over[3].contains("no limit"), "{over:?}");
    }

    #[test]
    fn the_limits_are_of_the_usual_cases() {
        let known: Limits = serde_json::from_str(LIMITS).unwrap();
        for path in ["echo", "stream"] {
            for side in ["here", "there"] {
                for size in crate::cli::OVERHEAD_SIZES {
                    let name = format!("{path} {side}, {size} bytes");
                    assert!(known.contains_key(&name), "{name}");
                }
            }
        }
    }

    #[test]
    fn the_count_of_a_file_is_read() {
        assert_eq!(total_in("events: Ir\nfn=(1) main\n0 12\n\ntotals: 4711\n"), Some(4711));
        assert_eq!(total_in("events: Ir\n"), None);
    }
}
