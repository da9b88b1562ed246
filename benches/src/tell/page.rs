//! `report`: the figures as one page of HTML that needs no other file and no network.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::ask::request::Test;
use crate::error::Failure;
use crate::measure::record::Document;
use crate::tell::chart::escape;
use crate::tell::draw;
use crate::tell::ranks;
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

/// Light and dark, desktop and phone. The colours of series can be told apart by colour-blind
/// people, and by their contrast with both grounds.
const STYLE: &str = ":root{color-scheme:light dark;--paper:#fff;--ink:#1d1d1f;--dim:#555;\
    --grid:#d8d8dc;--mark:#b00020;--block:#f4f4f6;--c0:#0067a5;--c1:#b84a00;--c2:#00755a;\
    --c3:#9b3d7a;--c4:#7a5c00;--c5:#5a5a5a;--c6:#c1121f}\
    @media(prefers-color-scheme:dark){:root{--paper:#16161a;--ink:#eaeaee;--dim:#b4b4bc;\
    --grid:#3a3a42;--mark:#ff8a80;--block:#222228;--c0:#5cb8f0;--c1:#ff9a55;--c2:#4fd1a8;\
    --c3:#f09ad0;--c4:#e6c34a;--c5:#c0c0c8;--c6:#ff7b7b}}\
    *{box-sizing:border-box}body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;\
    margin:0 auto;padding:1rem;color:var(--ink);background:var(--paper)}\
    h1,h2{font-weight:600;line-height:1.25}h2{font-size:1.25rem;margin:2rem 0 .5rem}\
    figure{margin:0}figcaption,.dim{color:var(--dim);font-size:.9rem}\
    svg{width:100%;height:auto;display:block}svg.narrow{display:none}\
    pre{overflow-x:auto;font-size:12px;line-height:1.4;background:var(--block);padding:.8rem}\
    dl{display:grid;grid-template-columns:7rem 1fr;gap:.2rem .8rem}dt{color:var(--dim)}\
    dd{margin:0;overflow-wrap:anywhere}\
    .legend{list-style:none;padding:0;margin:.3rem 0;display:flex;flex-wrap:wrap;gap:.1rem 1rem}\
    .legend span{display:inline-block;width:1.4rem;margin-right:.4rem;vertical-align:middle;\
    border-top:3px solid}.legend .dashed{border-top-style:dashed}\
    .legend .dots{width:.6rem;height:.6rem;border:0;border-radius:50%;background:currentColor}\
    .k0{color:var(--c0)}.k1{color:var(--c1)}.k2{color:var(--c2)}.k3{color:var(--c3)}\
    .k4{color:var(--c4)}.k5{color:var(--c5)}.k6{color:var(--c6)}\
    @media(max-width:40rem){svg.wide{display:none}svg.narrow{display:block}\
    dl{grid-template-columns:1fr}dt{margin-top:.4rem}}";

/// The words that the charts use.
const WORDS: &str = "<h2>How to read it</h2>\n<dl>\n\
    <dt>Half a round trip</dt><dd>half the time from sending a message to having it back, with one \
    message in flight</dd>\n\
    <dt>Floor</dt><dd>the same for two flags that the two cores set in turn: no message can be \
    faster while the cores stay where they are. It is measured before and after each figure</dd>\n\
    <dt>NEAR</dt><dd>the floor is below 100 ns: the two cores share a cache, or their caches are \
    close</dd>\n\
    <dt>FAR</dt><dd>the floor is above: they are on different sockets or core complexes</dd>\n\
    <dt>MIX</dt><dd>the floor changed while the figure was measured, because a hypervisor moved \
    the cores: do not use that figure</dd>\n\
    <dt>Stall</dt><dd>a part of the time in which a message took longer than a millisecond: mostly \
    another program, or the hypervisor, had the core</dd>\n</dl>\n";

/// What a page shows beside the run.
#[derive(Default)]
pub(crate) struct Beside {
    /// The JSON of `cargo xtask compare`.
    pub(crate) peers: Option<Value>,
    /// The JSON of past runs, in order.
    pub(crate) past: Vec<Value>,
}

/// The page of a run, whose JSON is `json`. `commands` measure its figures again.
///
/// # Errors
/// A chart cannot be drawn.
pub(crate) fn html(
    document: &Document,
    json: &str,
    commands: &[String],
    beside: &Beside,
) -> Result<String, Failure> {
    let device = document.results.first().map_or("", |record| &record.device);
    let title = escape(&format!("Doorbell on {device}"));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n"
    );
    if document.interrupted {
        page.push_str("<p><strong>Interrupted</strong>: some figures are missing.</p>\n");
    }
    if document.machine.build == "debug" {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(page, "<p><strong>{}</strong></p>", table::DEBUG_BUILD);
    }
    page.push_str(&facts(document));
    let records = &document.results;
    for chart in [
        draw::percentiles(records),
        draw::load(records),
        draw::rates(records, beside.peers.as_ref()),
        draw::timeline(records),
        ranks::chart(records, Test::Latency),
        ranks::chart(records, Test::Rate),
    ] {
        page.push_str(&chart.html()?);
    }
    if !beside.past.is_empty() {
        let own = serde_json::from_str(json);
        let own = own.map_err(|error| Failure::new(format!("read the record: {error}")))?;
        let runs: Vec<Value> = beside.past.iter().cloned().chain([own]).collect();
        page.push_str(&draw::over_commits(&runs).html()?);
    }
    page.push_str(WORDS);
    let _ = write!(
        page,
        "<h2>Figures</h2>\n{}<h2>Commands</h2>\n{}</main>\n</body>\n</html>\n",
        block("Figures", &table::text(document)),
        block("Commands", &format!("{}\n{}", document.command, commands.join("\n")))
    );
    Ok(page)
}

/// Text in columns, which can be scrolled with the keyboard.
fn block(name: &str, text: &str) -> String {
    let text = escape(text);
    format!("<pre tabindex=\"0\" role=\"region\" aria-label=\"{name}\">{text}</pre>\n")
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
    let item =
        |(name, fact): &(&str, String)| format!("<dt>{name}</dt><dd>{}</dd>\n", escape(fact));
    format!("<dl>\n{}</dl>\n", facts.iter().map(item).collect::<String>())
}

fn placement(document: &Document) -> String {
    let records = document.results.iter();
    let mut modes: Vec<&str> = records.filter_map(|record| record.placement.mode).collect();
    modes.sort_unstable();
    modes.dedup();
    match modes[..] {
        [] => "not known: two hosts, or many ranks".to_owned(),
        [mode] => format!("{mode} throughout"),
        _ => format!("{}: compare only figures of one mode", modes.join(", ")),
    }
}
