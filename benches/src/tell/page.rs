//! `report`: the figures as one page of HTML that needs no other file.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::ask::request::Test;
use crate::error::Failure;
use crate::measure::record::{Document, Record};
use crate::tell::chart::{self, Series, escape};
use crate::tell::sheet::Sheet;
use crate::tell::table;

/// The two files, known to be writable before anything is measured.
pub(crate) struct Sheets {
    html: (PathBuf, Sheet),
    json: (PathBuf, Sheet),
}

impl Sheets {
    /// Makes the folder and opens both.
    pub(crate) fn open(folder: &Path) -> Result<Sheets, Failure> {
        fs::create_dir_all(folder).map_err(|error| {
            let asked = format!("make the folder {}", folder.display());
            Failure::system(asked, &error, "name another with --out")
        })?;
        let sheet = |name: &str| {
            let path = folder.join(name);
            Sheet::open(&path).map(|sheet| (path, sheet))
        };
        Ok(Sheets { html: sheet("report.html")?, json: sheet("report.json")? })
    }

    /// Writes both. Returns two lines that name them.
    pub(crate) fn write(self, json: &str, html: &str) -> Result<String, Failure> {
        let names = format!("{}\n{}\n", self.html.0.display(), self.json.0.display());
        self.html.1.write(html)?;
        self.json.1.write(json)?;
        Ok(names)
    }
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;\
    padding:0 1rem;color:#222}h1,h2{font-weight:600}pre{overflow-x:auto;font-size:12px;\
    background:#f5f5f5;padding:.8rem}svg{width:100%;height:auto}dt{float:left;width:7rem;\
    color:#666}dd{margin-left:7rem}";

/// The page. `commands` measure its figures again.
pub(crate) fn html(document: &Document, commands: &[String]) -> String {
    let device = document.results.first().map_or("", |record| &record.device);
    let title = escape(&format!("Doorbell on {device}"));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    page.push_str(&facts(document));
    // Writing to a string cannot fail, here and below.
    let _ = write!(
        page,
        "<h2>Half round trip</h2>\n<p>One message in flight, sent back in place by the other \
         side's worker.</p>\n{}<h2>Rate</h2>\n<p>One way, until the last message has arrived and \
         was checked.</p>\n{}",
        latency(document),
        rate(document)
    );
    let _ = write!(
        page,
        "<h2>Figures</h2>\n<pre>{}</pre>\n<h2>Commands</h2>\n<pre>{}\n{}</pre>\n</body>\n</html>\n",
        escape(&table::text(document)),
        escape(&document.command),
        escape(&commands.join("\n"))
    );
    page
}

/// Where the figures come from.
fn facts(document: &Document) -> String {
    let machine = &document.machine;
    let commit = document.commit.as_deref().unwrap_or("unknown");
    let step = machine.clock_step_ns;
    let facts = [
        ("Machine", format!("{} ({}), cores {}", machine.cpu, machine.arch, machine.cores)),
        ("System", format!("{}, kernel {}", machine.system, machine.kernel)),
        ("Commit", format!("{commit}, {} build", machine.build)),
        ("Sides", document.results.first().map(table::sides).unwrap_or_default()),
        ("Placement", placement(document)),
        ("Memory", format!("{} pages", machine.pages)),
        ("Clock", format!("{} in steps of {step} ns", machine.clock)),
    ];
    let items = facts.iter().map(|(name, fact)| format!("<dt>{name}<dd>{}\n", escape(fact)));
    format!("<dl>\n{}</dl>\n", items.collect::<String>())
}

fn placement(document: &Document) -> String {
    let records = document.results.iter();
    let mut modes: Vec<&str> = records.filter_map(|record| record.placement.mode).collect();
    modes.sort_unstable();
    modes.dedup();
    match modes[..] {
        [] => "not known: two hosts".to_owned(),
        [mode] => format!("{mode} throughout"),
        _ => format!("{}: compare only figures of one mode", modes.join(", ")),
    }
}

fn of(document: &Document, test: Test) -> impl Iterator<Item = &Record> {
    document.results.iter().filter(move |record| record.test == test)
}

fn latency(document: &Document) -> String {
    let line = |record: &Record| {
        let half = record.figures.half_rtt_ns?;
        let values = vec![half.p50, half.p90, half.p99, half.p99_9, half.p99_99, half.max];
        Some(Series { name: format!("{} B", record.size), values })
    };
    let series: Vec<Series> = of(document, Test::Latency).filter_map(line).collect();
    chart::lines(&["p50", "p90", "p99", "p99.9", "p99.99", "max"], "ns", &series)
}

fn rate(document: &Document) -> String {
    let bar = |record: &Record| {
        let rate = record.figures.messages_per_second? / 1e6;
        let name = format!("{} B, batch {}", record.size, record.batch.unwrap_or(1));
        Some((name, rate, format!("{rate:.1} M msg/s")))
    };
    let bars: Vec<(String, f64, String)> = of(document, Test::Rate).filter_map(bar).collect();
    chart::bars(&bars)
}
