//! What is written down: one record per size, and what a figure needs to be one (command,
//! commit, machine, device). The JSON format is fixed; scripts depend on it.

use std::fs::{File, OpenOptions};
use std::io::{Seek, Write};
use std::path::PathBuf;

use serde::Serialize;

use crate::counted::Path;
use crate::error::Failure;
use crate::machine::Machine;
use crate::overhead::Sides;
use crate::wire::{Op, Test};

/// Version of the records.
pub(crate) const SCHEMA: u32 = 1;

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    pub(crate) results: Vec<Record>,
    pub(crate) machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<String>,
    /// The command line.
    pub(crate) command: String,
}

/// The figures of one test at one size. What does not apply is left out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Record {
    pub(crate) schema: u32,
    pub(crate) test: Test,
    /// `soft` or `verbs`.
    pub(crate) provider: &'static str,
    pub(crate) device: String,
    pub(crate) size: u32,
    /// Of `bandwidth`: `write`, `read` or `send`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) op: Option<Op>,
    /// Messages to a doorbell; of `bandwidth` the requests outstanding at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<u32>,
    /// True for the device alone, without worker and handler.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) bare: bool,
    pub(crate) qps: u32,
    pub(crate) workers: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) idle_qps: u32,
    pub(crate) signal_every: u32,
    pub(crate) placement: Placement,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    pub(crate) messages: u64,
    pub(crate) lost: u64,
}

/// What was measured. What does not apply is left out.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) half_rtt_ns: Option<HalfRtt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_second: Option<f64>,
    /// Messages that were due each second; those that found no room to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) offered_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unsent: Option<u64>,
    /// Of `crowd`: messages of the connection that had fewest and of the one that had most, of
    /// those that talk; receives of the shared queue, and those that were out at a time on the
    /// serving side; messages that found no credit and completions with an error, on both sides;
    /// memory of the processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) least_messages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) most_messages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receives: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receives_out_most: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credit_stalls: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) errors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resident_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resident_bytes_serving: Option<u64>,
    /// Messages in flight; the rate, times the best one with fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) depth: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) times_best_below: Option<f64>,
    /// Rounds of a sweep that count, all in one mode, and those that do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rounds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rounds_left_out: Option<u32>,
    /// Whether a lone message went out as a batch does; its time, times that if it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batching: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) times_without_batching: Option<f64>,
    /// Of the processor's own copy, in turn with the device; the device's times that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memcpy_bytes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) times_memcpy: Option<f64>,
    /// Time of a message, times that without idle connections in the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) times_without_idle: Option<f64>,
    /// Memory of an idle connection: of the connecting process, or of the one both sides are in,
    /// and of the serving one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_idle_connection: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_idle_connection_serving: Option<f64>,
    /// Of `overhead`: `echo` or `stream`; instructions that the worker adds on the side that
    /// answers or receives; all of them, on both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instructions_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instructions: Option<Sides>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) doorbells_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completions_per_poll: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allocations_per_message: Option<f64>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(yes: &bool) -> bool {
    !yes
}

/// Where the two sides were.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Placement {
    /// Of the connecting side first; without the other side's if that is another host.
    pub(crate) cores: Vec<usize>,
    /// `threads`, `processes` or `hosts`.
    pub(crate) sides: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) floor_ns: Option<f64>,
    /// NEAR, FAR or MIX.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<&'static str>,
}

/// Half round trips, in nanoseconds. The percentiles are of single round trips, no finer than half
/// the clock's step; the mean is of round trips that were not timed one by one.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct HalfRtt {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
    pub(crate) p99_99: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
}

impl HalfRtt {
    /// Each rounded to a tenth.
    pub(crate) fn rounded(self) -> HalfRtt {
        let tenth = |ns: f64| round(ns, 1);
        HalfRtt {
            p50: tenth(self.p50),
            p90: tenth(self.p90),
            p99: tenth(self.p99),
            p99_9: tenth(self.p99_9),
            p99_99: tenth(self.p99_99),
            max: tenth(self.max),
            mean: tenth(self.mean),
        }
    }
}

/// A figure without the digits that mean nothing.
pub(crate) fn round(figure: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (figure * scale).round() / scale
}

/// A file that was found writable before anything was measured.
pub(crate) struct Sheet {
    file: File,
    path: PathBuf,
    /// It was not there before, and is taken away again if nothing comes.
    fresh: bool,
}

impl Sheet {
    /// Opens the file, and makes it if need be; what it holds stays until [`Sheet::write`].
    pub(crate) fn open(path: &std::path::Path) -> Result<Sheet, Failure> {
        let fresh = !path.exists();
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = opened.map_err(|error| {
            let asked = format!("write {}", path.display());
            Failure::system(asked, &error, "name a file in a folder that exists and is yours")
        })?;
        Ok(Sheet { file, path: path.to_owned(), fresh })
    }

    /// Writes the whole file.
    pub(crate) fn write(mut self, text: &str) -> Result<(), Failure> {
        self.fresh = false;
        // A pipe or a terminal can be neither cut nor rewound, and need not be.
        let _ = self.file.set_len(0).and_then(|()| self.file.rewind());
        self.file.write_all(text.as_bytes()).map_err(|error| {
            let asked = format!("write {}", self.path.display());
            Failure::system(asked, &error, "is the disk full?")
        })
    }
}

impl Drop for Sheet {
    fn drop(&mut self) {
        if self.fresh {
            // Best effort: an empty file does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The document as text.
pub(crate) fn to_json(document: &Document) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(document);
    let text = text.map_err(|error| Failure::new(format!("write the record: {error}")))?;
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_that_is_not_written_leaves_nothing_behind() {
        let path = std::env::temp_dir().join(format!("doorbell-sheet-{}", std::process::id()));
        drop(Sheet::open(&path).unwrap());
        assert!(!path.exists());
        Sheet::open(&path).unwrap().write("a longer text").unwrap();
        drop(Sheet::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a longer text");
        Sheet::open(&path).unwrap().write("short").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "short");
        std::fs::remove_file(&path).unwrap();
        let missing = Sheet::open(&path.join("in").join("nowhere")).err().unwrap();
        assert!(missing.to_string().contains("folder that exists"), "{missing}");
    }

    #[test]
    fn figures_are_rounded() {
        assert_eq!(round(62.04999, 1), 62.0);
        assert_eq!(round(1.000_04, 3), 1.0);
    }
}
