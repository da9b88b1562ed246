//! `overhead`: instructions of a message on each side, with a worker and with the device alone, and
//! the sizes of the functions that execute them. Counted, not timed, by callgrind, which this
//! program starts on itself. So the figures are the same on a busy machine, and limits can hold
//! them.

use std::collections::BTreeMap;

use doorbell::soft::SOFT_DEVICE;
use doorbell::worker::Config;

use crate::ask::cli::OverheadArgs;
use crate::ask::request::{Request, Test};
use crate::error::Failure;
use crate::measure::record::{Figures, Path, Placement, Record, SCHEMA, Side, Sides, round};
use crate::overhead::callgrind;
use crate::overhead::cases::Case;
use crate::overhead::symbols;

/// Messages of each case.
const MESSAGES: u64 = 8192;
const MESSAGES_QUICK: u64 = 1024;

/// The instructions, and the sizes of the hot functions.
pub(crate) struct Counted {
    /// One record for each size, path and round.
    pub(crate) records: Vec<Record>,
    /// Bytes of each hot function, by its name.
    pub(crate) bytes: BTreeMap<String, u64>,
}

/// Counts.
pub(crate) fn count(args: &OverheadArgs) -> Result<Counted, Failure> {
    if args.device.as_deref().is_some_and(|name| name != SOFT_DEVICE) {
        return Err(Failure::new(format!(
            "overhead counts on {SOFT_DEVICE} alone: other devices run code of their drivers"
        )));
    }
    let sizes = &args.size;
    let most = Config::DEFAULT.inline_bytes;
    if let Some(size) = sizes.iter().find(|size| !(1..=most).contains(size)) {
        return Err(Failure::new(format!(
            "--size {size}: overhead counts messages of 1 to {most} bytes, which go inline"
        )));
    }
    let messages = if args.quick { MESSAGES_QUICK } else { MESSAGES };
    let here = callgrind::run("counted_here", sizes, messages)?;
    let there = callgrind::run("counted_there", sizes, messages)?;
    let hot = here.functions.iter().chain(&there.functions);
    // Hot: on average at least one instruction for each message of a case.
    let hot = hot.filter(|(_, count)| **count >= messages).map(|(name, _)| name.as_str());
    let mut names: Vec<&str> = hot.collect();
    names.sort_unstable();
    names.dedup();
    let bytes = symbols::sizes(names.into_iter())?;
    Ok(Counted { records: records(sizes, messages, &here.cases, &there.cases), bytes })
}

/// One record for each size, path and round: the cases come in pairs, the device alone first.
fn records(sizes: &[u32], messages: u64, here: &[f64], there: &[f64]) -> Vec<Record> {
    let side = |counts: &[f64]| match counts {
        [bare, worker] => Some(Side {
            worker: round(*worker, 1),
            bare: round(*bare, 1),
            added: round(worker - bare, 1),
        }),
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
    records
}

fn record(case: &Case, sides: Sides, messages: u64) -> Record {
    let test = if case.path == Path::Echo { Test::Latency } else { Test::Rate };
    let request = Request::new(test, case.size);
    Record {
        schema: SCHEMA,
        test: Test::Overhead,
        provider: "soft",
        device: SOFT_DEVICE.to_owned(),
        size: case.size,
        op: None,
        batch: Some(case.round),
        bare: false,
        transport: None,
        no_srq: false,
        qps: request.qps,
        workers: request.workers,
        idle_qps: 0,
        signal_every: request.signal_every,
        placement: Placement { sides: "one thread", ..Placement::default() },
        figures: Figures {
            path: Some(case.path),
            instructions_per_message: Some(sides.there.added),
            instructions: Some(sides),
            ..Figures::default()
        },
        group: None,
        messages,
        part_seconds: None,
        parts: Vec::new(),
        lost: 0,
    }
}
