//! What a run ends with: the table or the JSON, the report, the lost messages, Ctrl-C, limits, and
//! the verdict beside an earlier run.

use std::path::Path;

use serde_json::Value;

use crate::ask::cli::{self, Common, ReportArgs};
use crate::ask::plan::Plan;
use crate::error::{self, Failure};
use crate::machine::{Machine, interrupt};
use crate::measure::record::{self, Document};
use crate::measure::verdict;
use crate::tell::page::{self, Beside, Sheets};
use crate::tell::sheet::{Out, Sheet};
use crate::tell::{csv, table};
use crate::versus;
use crate::versus::verdict::Verdict;

/// Where the figures go, known to be writable before anything is measured.
pub(crate) struct Ending<'a> {
    common: &'a Common,
    out: Out,
    report: Option<Sheets>,
    beside: Beside,
    baseline: Option<Value>,
    /// Commands that measure the same figures again.
    commands: Vec<String>,
    /// Fail if a figure breaks its limit.
    check: bool,
}

impl<'a> Ending<'a> {
    /// Opens and reads all files that the command line names.
    ///
    /// # Errors
    /// One of them cannot be opened or read.
    pub(crate) fn open(
        common: &'a Common,
        plan: &Plan,
        report: Option<&ReportArgs>,
    ) -> Result<Ending<'a>, Failure> {
        let out = Out::open(common.json.as_deref())?;
        let beside = match report {
            Some(ReportArgs { compare, past, .. }) => Beside {
                peers: compare.as_deref().map(versus::read).transpose()?,
                past: past.as_deref().map(versus::read_all).transpose()?.unwrap_or_default(),
            },
            None => Beside::default(),
        };
        let report = report.map(|args| Sheets::open(&args.out)).transpose()?;
        let (baseline, commands) = (baseline(common)?, plan.commands.clone());
        Ok(Ending { common, out, report, beside, baseline, commands, check: plan.check })
    }

    /// Prints and writes the figures, and judges them.
    ///
    /// # Errors
    /// Something is wrong with the figures, or they cannot be written.
    pub(crate) fn tell(self, document: &Document) -> Result<(), Failure> {
        let (json, is_standard) = (record::to_json(document)?, self.out.is_standard());
        self.out.tell(&json, &table::text(document))?;
        notes(self.common, &document.machine);
        if let Some(sheets) = self.report {
            let html = page::html(document, &json, &self.commands, &self.beside)?;
            let paths = sheets.write(&json, &html)?;
            if !is_standard {
                error::say(&paths)?;
            }
        }
        lost(document.results.iter().map(|record| record.lost).sum())?;
        interrupt::check(document.results.len(), "figures")?;
        if self.check {
            verdict::check(&document.results)?;
        }
        beside_baseline(self.common, self.baseline.as_ref(), &json)
    }
}

/// Holds a run against an earlier one, if one is named. The verdict goes to standard output unless
/// that took the JSON.
pub(crate) fn beside_baseline(
    common: &Common,
    baseline: Option<&Value>,
    json: &str,
) -> Result<(), Failure> {
    let parsed = |json: &str| {
        let value: Result<Value, _> = serde_json::from_str(json);
        value.map_err(|error| Failure::new(format!("read the record: {error}")))
    };
    if let Some(file) = &common.csv {
        csv::records(file, &parsed(json)?)?;
    }
    let Some(baseline) = baseline else { return Ok(()) };
    let verdict = Verdict::of(baseline, &parsed(json)?, cli::LEAST / 100.0);
    match common.json.as_deref() == Some(Path::new("-")) {
        true => error::complain(&verdict.text().trim_end()),
        false => error::say(&format!("\n{}", verdict.text()))?,
    }
    verdict.exit()
}

/// The run of `--baseline`, read before anything is measured. The file of `--csv` can be written
/// then, too.
pub(crate) fn baseline(common: &Common) -> Result<Option<Value>, Failure> {
    // A file that was made for the look is removed again.
    common.csv.as_deref().map(Sheet::open).transpose()?;
    common.baseline.as_deref().map(versus::read).transpose()
}

/// With `--verbose`, prints what the memory lacks.
pub(crate) fn notes(common: &Common, machine: &Machine) {
    if common.verbose {
        machine.notes.iter().for_each(|note| error::complain(&format_args!("note: {note}")));
    }
}

/// # Errors
/// Messages were lost.
pub(crate) fn lost(count: u64) -> Result<(), Failure> {
    match count {
        0 => Ok(()),
        lost => Err(Failure::new(format!("{lost} messages were lost or wrong: a bug"))),
    }
}
