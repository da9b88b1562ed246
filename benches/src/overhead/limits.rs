//! The limits of `overhead`, as they are checked in: instructions of a message, and bytes of the
//! hot functions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{self, Failure};
use crate::measure::record::{Path, Record, Side, round};
use crate::overhead::callgrind;
use crate::overhead::count::Counted;

/// The limits, as they were checked in.
const LIMITS: &str = include_str!("../../overhead.json");

/// The compiler of this program.
pub(crate) const RUSTC: &str = env!("DOORBELL_BENCH_RUSTC");

/// A worker or the device alone may take this many instructions more than its limit.
const RISE: f64 = 1.0;

/// What the worker adds may be above its limit by this part of it, but by [`RISE`] in any case.
const RISE_ADDED: f64 = 0.05;

/// The hot functions together may be larger than their limit by this part of it. The compiler moves
/// code between them, so one of them alone says little.
const RISE_BYTES: f64 = 0.1;

/// The aim for what the worker adds to a reply in place, in instructions.
pub(crate) const AIM: f64 = 60.0;

/// The limits, and what they were counted with.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Limits {
    rustc: String,
    valgrind: String,
    arch: String,
    /// By path, side, size and messages in flight.
    instructions: BTreeMap<String, Side>,
    /// Bytes of each hot function, by its name.
    bytes: BTreeMap<String, u64>,
}

impl Limits {
    /// The figures as limits.
    fn of(counted: &Counted) -> Result<Limits, Failure> {
        Ok(Limits {
            rustc: RUSTC.to_owned(),
            valgrind: callgrind::version()?,
            arch: std::env::consts::ARCH.to_owned(),
            instructions: instructions(&counted.records),
            bytes: counted.bytes.clone(),
        })
    }

    fn tools(&self) -> String {
        format!("{}, {}, {}", self.rustc, self.valgrind, self.arch)
    }
}

fn instructions(records: &[Record]) -> BTreeMap<String, Side> {
    let mut sides = BTreeMap::new();
    for record in records {
        if let (Some(both), Some(path)) = (record.figures.instructions, record.figures.path) {
            let name = |side| name(path, side, record.size, record.batch.unwrap_or(1));
            sides.insert(name("here"), both.here);
            sides.insert(name("there"), both.there);
        }
    }
    sides
}

/// The name of a figure: rounds of more than one echo say how many messages are in flight.
fn name(path: Path, side: &str, size: u32, round: u32) -> String {
    let in_flight = match (path, round) {
        (Path::Echo, 2..) => format!(", {round} in flight"),
        _ => String::new(),
    };
    format!("{} {side}, {size} bytes{in_flight}", path.name())
}

/// The figures as the text of a new file of limits.
pub(crate) fn text(counted: &Counted) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(&Limits::of(counted)?);
    let text = text.map_err(|error| Failure::new(format!("write the limits: {error}")))?;
    Ok(text + "\n")
}

/// Holds the figures against the limits that are checked in. Prints a note if they were counted
/// with other tools.
///
/// # Errors
/// A figure is above its limit, or has none, or this is a debug build. If the limits were counted
/// with other tools it is undecided.
pub(crate) fn check(counted: &Counted) -> Result<(), Failure> {
    if cfg!(debug_assertions) {
        return Err(Failure::new("the limits are for release builds; build with --release"));
    }
    let known: Limits = serde_json::from_str(LIMITS)
        .map_err(|error| Failure::new(format!("read benches/overhead.json: {error}")))?;
    judge(&Limits::of(counted)?, &known)
}

fn judge(found: &Limits, known: &Limits) -> Result<(), Failure> {
    let same_tools = found.tools() == known.tools();
    let over = risen(found, known);
    let tools = format!(
        "the limits in benches/overhead.json were counted with {}, this run with {}",
        known.tools(),
        found.tools()
    );
    if over.is_empty() {
        if !same_tools {
            error::complain(&format_args!("note: {tools}"));
        }
        return Ok(());
    }
    let over = over.join("; ");
    if !same_tools {
        return Err(Failure::undecided(format!(
            "{tools}, so these figures may be above their limits for that reason alone: {over}; \
             count the commit before with the same tools, or renew the limits with --save \
             benches/overhead.json"
        )));
    }
    Err(Failure::new(format!(
        "above the limits in benches/overhead.json: {over}; make it less again, or say why and \
         renew the limits with --save benches/overhead.json"
    )))
}

/// The figures that are above their limit.
fn risen(found: &Limits, known: &Limits) -> Vec<String> {
    let mut over = Vec::new();
    for (name, found) in &found.instructions {
        let Some(known) = known.instructions.get(name) else {
            over.push(format!("{name}: there is no limit"));
            continue;
        };
        let added_rise = (known.added * RISE_ADDED).max(RISE);
        for (what, found, limit, rise) in [
            ("worker", found.worker, known.worker, RISE),
            ("bare", found.bare, known.bare, RISE),
            ("added", found.added, known.added, added_rise),
        ] {
            // To the tenth that both are rounded to.
            if round(found - limit - rise, 1) > 0.0 {
                over.push(format!("{name}, {what}: {found:.1} instructions, limit {limit:.1}"));
            }
        }
    }
    let bytes = |limits: &Limits| limits.bytes.values().sum::<u64>();
    let (found, limit) = (bytes(found), bytes(known));
    if found as f64 > limit as f64 * (1.0 + RISE_BYTES) {
        over.push(format!("hot functions: {found} bytes, limit {limit}"));
    }
    over
}

/// The hot functions beside the checked-in limits, as rows: name, bytes, limit.
pub(crate) fn bytes_beside_limits(counted: &Counted) -> Vec<[String; 3]> {
    let known = serde_json::from_str::<Limits>(LIMITS).map(|limits| limits.bytes);
    let known = known.unwrap_or_default();
    let cell = |bytes: Option<&u64>| bytes.map_or("-".to_owned(), u64::to_string);
    let mut names: Vec<&String> = counted.bytes.keys().chain(known.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let row = |name: &String| [name.clone(), cell(counted.bytes.get(name)), cell(known.get(name))];
    let mut rows: Vec<[String; 3]> = names.into_iter().map(row).collect();
    let total = |bytes: &BTreeMap<String, u64>| bytes.values().sum::<u64>().to_string();
    rows.push(["all together".to_owned(), total(&counted.bytes), total(&known)]);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::cli::OVERHEAD_SIZES;
    use crate::overhead::cases::Case;

    fn limits(worker: f64, bare: f64, added: f64, bytes: u64) -> Limits {
        let side = Side { worker, bare, added };
        Limits {
            rustc: "rustc 1".to_owned(),
            valgrind: "valgrind 2".to_owned(),
            arch: "cray".to_owned(),
            instructions: [("echo here, 8 bytes".to_owned(), side)].into(),
            bytes: [("turn".to_owned(), bytes - 10), ("post".to_owned(), 10)].into(),
        }
    }

    #[test]
    fn each_figure_may_rise_by_one_instruction_and_no_more() {
        let known = limits(400.0, 300.0, 100.0, 1000);
        assert_eq!(risen(&limits(401.0, 301.0, 105.0, 1100), &known), [""; 0]);
        assert_eq!(risen(&limits(1.0, 1.0, -1.0, 20), &known), [""; 0], "less is always fine");
        for (worse, part) in [
            (limits(401.1, 300.0, 100.0, 1000), "worker: 401.1 instructions, limit 400.0"),
            (limits(400.0, 301.1, 100.0, 1000), "bare: 301.1 instructions, limit 300.0"),
            (limits(400.0, 300.0, 105.1, 1000), "added: 105.1 instructions, limit 100.0"),
            (limits(400.0, 300.0, 100.0, 1101), "hot functions: 1101 bytes, limit 1000"),
        ] {
            let over = risen(&worse, &known);
            assert!(over.len() == 1 && over[0].contains(part), "{over:?}");
        }
        // Of a figure below zero the twentieth is below zero too; it may still rise by one.
        let known = limits(400.0, 405.0, -5.0, 1000);
        assert_eq!(risen(&limits(401.0, 405.0, -4.0, 1000), &known), [""; 0]);
        assert_eq!(risen(&limits(401.0, 404.9, -3.9, 1000), &known).len(), 1);
    }

    #[test]
    fn a_figure_without_a_limit_is_an_error() {
        let mut known = limits(400.0, 300.0, 100.0, 1000);
        known.instructions.clear();
        let over = risen(&limits(1.0, 1.0, 0.0, 20), &known);
        assert_eq!(over, ["echo here, 8 bytes: there is no limit"]);
    }

    #[test]
    fn another_compiler_leaves_a_rise_undecided_and_is_named() {
        let (found, mut known) =
            (limits(402.0, 300.0, 100.0, 1000), limits(400.0, 300.0, 100.0, 1000));
        let failure = judge(&found, &known).unwrap_err();
        assert_eq!(failure.code, 1);
        known.rustc = "rustc 0".to_owned();
        let failure = judge(&found, &known).unwrap_err();
        assert_eq!(failure.code, 3);
        let text = failure.to_string();
        assert!(text.contains("rustc 0") && text.contains("rustc 1"), "{text}");
        assert!(judge(&limits(400.0, 300.0, 100.0, 1000), &known).is_ok());
    }

    #[test]
    fn every_usual_case_has_limits_and_hot_functions_are_known() {
        let known: Limits = serde_json::from_str(LIMITS).unwrap();
        assert!(known.rustc.starts_with("rustc ") && known.valgrind.starts_with("valgrind"));
        let cases = Case::all(&OVERHEAD_SIZES);
        for case in &cases {
            for side in ["here", "there"] {
                let name = name(case.path, side, case.size, case.round);
                let side = known.instructions.get(&name).expect(&name);
                assert!(side.worker > 0.0 && side.bare > 0.0, "{name}");
                assert!((side.worker - side.bare - side.added).abs() < 0.15, "{name}");
            }
        }
        // Two sides; a figure has both kinds of one case.
        assert_eq!(known.instructions.len(), cases.len());
        assert!(known.instructions.contains_key("echo there, 64 bytes, 2 in flight"));
        assert!(known.bytes.values().all(|bytes| *bytes > 0) && known.bytes.len() > 5);
    }
}
