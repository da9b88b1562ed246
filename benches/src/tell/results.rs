//! `results`: runs the other commands, and writes one page of Markdown with all of their figures.

use std::fmt::Write;
use std::fs;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::ask::cli::ResultsArgs;
use crate::error::{self, Failure};
use crate::machine::Machine;
use crate::overhead::{callgrind, symbols};
use crate::tell::aims::Aims;
use crate::tell::grid::Grid;
use crate::tell::peers;
use crate::tell::perftest;
use crate::tell::sections::{self, number, records, text};

/// How to build this program the way a dependency is built that knows nothing of our profile.
pub(crate) const WITHOUT_LTO: &str = "CARGO_PROFILE_RELEASE_LTO=off \
    CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 cargo build --release -p doorbell-bench --target-dir \
    target/no-lto";

/// Runs everything. Returns the page.
///
/// # Errors
/// A command fails. If valgrind or nm is missing, that shows at once, before anything is timed.
pub(crate) fn page(args: &ResultsArgs, machine: &Machine) -> Result<String, Failure> {
    callgrind::version()?;
    symbols::sizes(iter::empty())?;
    let [compare, perftest] = beside(args)?;
    let own = std::env::current_exe()
        .map_err(|error| Failure::system("find this program", &error, "start it by its path"))?;
    let mut page = Page::new(args, own);
    page.timed()?;
    page.counted(args.without_lto.as_deref())?;
    page.text.extend(compare);
    if let Some(perftest) = &perftest {
        page.perftest(perftest);
    }
    Ok(page.finish(machine))
}

/// The sections on other libraries and on an RDMA device: new ones, or else those of the page that
/// is there.
fn beside(args: &ResultsArgs) -> Result<[Option<String>; 2], Failure> {
    // The first page has nothing to keep.
    let before = fs::read_to_string(&args.out).unwrap_or_default();
    let kept = |title| peers::find(&before, title).map(str::to_owned);
    let compare = match &args.compare {
        Some(file) => Some(peers_section(file)?),
        None => kept(peers::TITLE),
    };
    let perftest = match &args.perftest {
        Some(file) => Some(perftest::section(&read(file)?)),
        None => kept(perftest::TITLE),
    };
    Ok([compare, perftest])
}

/// The page that is there, with new sections on other libraries and on an RDMA device. Nothing is
/// measured.
///
/// # Errors
/// No section is named, or a file cannot be read.
pub(crate) fn with_sections(args: &ResultsArgs) -> Result<String, Failure> {
    let mut page = read(&args.out)?;
    if args.compare.is_none() && args.perftest.is_none() {
        return Err(Failure::new(
            "--only-compare: name the new section with --compare FILE or --perftest FILE",
        ));
    }
    if let Some(file) = &args.compare {
        page = peers::replace(&page, peers::TITLE, &peers_section(file)?);
    }
    if let Some(file) = &args.perftest {
        page = peers::replace(&page, perftest::TITLE, &perftest::section(&read(file)?));
    }
    Ok(page)
}

/// The section on other libraries.
fn peers_section(path: &Path) -> Result<String, Failure> {
    peers::section(&read_json(path)?).ok_or_else(|| {
        let path = path.display();
        Failure::new(format!("{path} has no section for the page; cargo xtask compare writes it"))
    })
}

/// What another command wrote.
fn read(path: &Path) -> Result<String, Failure> {
    let asked = format!("read {}", path.display());
    fs::read_to_string(path)
        .map_err(|error| Failure::system(&asked, &error, "cargo xtask compare writes it"))
}

/// The same as JSON.
fn read_json(path: &Path) -> Result<Value, Failure> {
    serde_json::from_str(&read(path)?)
        .map_err(|error| Failure::new(format!("read {}: {error}", path.display())))
}

/// Programs that wanted to run on this machine in the last minute, on average (`man 5 proc`).
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// A page in the making.
struct Page {
    own: PathBuf,
    /// Options of every command that measures time.
    options: String,
    aims: Aims,
    /// The lowest and the highest floor, and the modes of the cores, over all records.
    floors: Vec<f64>,
    modes: Vec<String>,
    commit: String,
    pages: String,
    /// The load of the machine before the first figure.
    load: String,
    text: String,
}

impl Page {
    fn new(args: &ResultsArgs, own: PathBuf) -> Page {
        let mut options = String::new();
        if !args.cores.is_empty() {
            let cores: Vec<String> = args.cores.iter().map(usize::to_string).collect();
            options.push_str(&format!(" --cores {}", cores.join(",")));
        }
        if args.quick {
            options.push_str(" --quick");
        }
        Page {
            own,
            options,
            aims: Aims::default(),
            floors: Vec::new(),
            modes: Vec::new(),
            commit: String::new(),
            pages: String::new(),
            load: load(),
            text: String::new(),
        }
    }

    /// Runs a command of this program that measures time. Returns its JSON and the command.
    fn measure(&mut self, words: &str) -> Result<(Value, String), Failure> {
        let words = format!("{words}{}", self.options);
        let document = run(&self.own, &words)?;
        for record in records(&document) {
            self.floors.extend(number(record, "/placement/floor_ns"));
            self.modes.push(text(record, "/placement/mode").to_owned());
        }
        self.commit = text(&document, "/commit").to_owned();
        if !text(&document, "/machine/pages").is_empty() {
            self.pages = text(&document, "/machine/pages").to_owned();
        }
        Ok((document, format!("doorbell-bench {words}")))
    }

    /// A section: what it shows, the commands that measured it, the tables.
    fn section(&mut self, title: &str, what: &str, commands: &[&str], tables: &[Grid]) {
        // Writing to a string cannot fail.
        let _ = write!(self.text, "\n## {title}\n{what}\n");
        let _ = write!(self.text, "\n```sh\n{}\n```\n", commands.join("\n"));
        for table in tables {
            let _ = write!(self.text, "\n{}", table.markdown());
        }
    }

    /// All that is timed.
    fn timed(&mut self) -> Result<(), Failure> {
        let (document, command) = self.measure("latency --size 8,32,64,200,1024,4096")?;
        let table = sections::latency(&document, &mut self.aims);
        self.section(
            "Latency",
            "Half a round trip of one message that the other side's worker sends back in place. \
             One message is in flight. The percentiles are in steps of half the clock's step; the \
             mean is exact.",
            &[&command],
            &[table],
        );
        let (document, command) = self.measure("latency --bare --size 8,32,64,200")?;
        let table = sections::latency(&document, &mut self.aims);
        self.section(
            "Latency of the device alone",
            "The same without worker and handler: poll, answer, post again.",
            &[&command],
            &[table],
        );
        let (document, command) = self.measure("rate --size 8,32,64,200 --batch 1,16")?;
        let table = sections::rate(&document, &mut self.aims);
        self.section(
            "Messages a second",
            "One way, over one connection, until the last message has arrived and was checked. A \
             batch is one call of `Outbox::send_list` and rings one doorbell. The aim is for \
             allocations.",
            &[&command],
            &[table],
        );
        self.busy()?;
        let (document, command) = self.measure("traffic")?;
        let table = sections::traffic(&document, &mut self.aims);
        self.section(
            "Traffic beside a naive ring",
            "Each row in turn with the simplest ring in shared memory: a flag alone on its cache \
             line, and a copy. Every byte of a payload changes from message to message, and both \
             sides read all of it. *half* is half a round trip; *full* counts from when a message \
             was due until it was back, so waiting counts. Each of several peers has a worker and \
             a link of its own, or a lane of its own. Times are medians over rounds, and the \
             ratios are taken within a round. Rows whose messages have up to 200 bytes have aims.",
            &[&command],
            &[table],
        );
        let sizes = "bandwidth --op write,read --size 65536,1048576";
        let (document, command) = self.measure(sizes)?;
        let table = sections::bandwidth(&document, &mut self.aims);
        self.section(
            "Bandwidth",
            "RDMA WRITE and READ with 16 requests outstanding, in turn with memcpy between two \
             buffers of the same kind and size.",
            &[&command],
            &[table],
        );
        let (document, command) = self.measure("connect")?;
        let table = sections::connect(&document);
        self.section(
            "Connections a second",
            "Each connection is made from nothing and ended: id, address, route, queue pair, \
             connect, accept, disconnect.",
            &[&command],
            &[table],
        );
        Ok(())
    }

    /// Many messages in flight, many connections.
    fn busy(&mut self) -> Result<(), Failure> {
        let (document, command) = self.measure("sweep --size 64")?;
        let tables =
            [sections::sweep(&document, &mut self.aims), sections::lone(&document, &mut self.aims)];
        self.section(
            "Rising load",
            "Round trips a second of 64 bytes with more and more messages in flight. The rate must \
             not fall as load rises, and batching must not delay a lone message. Ratios are taken \
             within a round; the median over the rounds counts.",
            &[&command],
            &tables,
        );
        let (latency, one) = self.measure("latency --size 32 --idle-qps 9999")?;
        let (rate, two) = self.measure("rate --size 32 --idle-qps 9999")?;
        let table = sections::idle(&[&latency, &rate], &mut self.aims);
        self.section(
            "Idle connections",
            "A message beside 9 999 idle connections, in turn with one connection alone.",
            &[&one, &two],
            &[table],
        );
        let (document, command) = self.measure("crowd")?;
        let table = sections::crowd(&document, &mut self.aims);
        self.section(
            "A crowd on one receive queue",
            "Eight busy connections among thousands of idle ones share one receive queue, in turn \
             with the eight alone. Each should get its share. The aim is for errors.",
            &[&command],
            &[table],
        );
        Ok(())
    }

    /// All that is counted, for this build and one without link-time optimization.
    fn counted(&mut self, without_lto: Option<&Path>) -> Result<(), Failure> {
        const OVERHEAD: &str = "overhead";
        let document = run(&self.own, OVERHEAD)?;
        let tables = [sections::instructions(&document, Some(&mut self.aims))];
        self.section(
            "Instructions a message",
            "Counted by callgrind, so a busy machine changes nothing. An echo is a message sent \
             back in place. A batch of echoes is in flight at once, and each has a doorbell of \
             its own; polls in vain before it do not count. A stream goes in batches of 16. The \
             benchmark's own handler is part of the count. `overhead --check` holds these \
             figures against [overhead.json](overhead.json): one instruction more fails.",
            &["doorbell-bench overhead"],
            &tables,
        );
        let table = sections::sizes(&document);
        self.section(
            "Sizes of the hot functions",
            "Functions that execute at least one instruction a message, and their bytes of code. \
             Inlined functions are part of those that call them.",
            &["doorbell-bench overhead"],
            &[table],
        );
        let Some(other) = without_lto else { return Ok(()) };
        let document = run(other, OVERHEAD)?;
        let table = sections::instructions(&document, None);
        self.section(
            "Instructions a message without link-time optimization",
            "The same for a build without fat LTO and with 16 codegen units: what a program gets \
             that depends on these crates and sets nothing in its profile.",
            &[WITHOUT_LTO, "target/no-lto/release/doorbell-bench overhead"],
            &[table],
        );
        Ok(())
    }

    /// The section on an RDMA device. The lines of its table say which aims were missed.
    fn perftest(&mut self, section: &str) {
        self.text.push_str(section);
        for line in section.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.contains(&"missed") {
                self.aims.missed.push(format!("RDMA device: {}", words.join(" ")));
            } else if words.contains(&"met") {
                self.aims.met += 1;
            }
        }
    }

    /// The whole page: what the figures hold for, the aims, the sections.
    fn finish(mut self, machine: &Machine) -> String {
        let floor = |pick: fn(f64, f64) -> f64| self.floors.iter().copied().reduce(pick);
        let range = match floor(f64::min).zip(floor(f64::max)) {
            Some((low, high)) => format!("{low:.0} to {high:.0} ns"),
            None => "not known".to_owned(),
        };
        self.modes.retain(|mode| !mode.is_empty());
        self.modes.sort_unstable();
        self.modes.dedup();
        let mut facts = Grid::new(&["", "this run"]);
        for (name, fact) in [
            ("commit", format!("`{}`", self.commit)),
            ("machine", format!("{}, cores {}", machine.cpu, machine.cores)),
            ("system", format!("{}, kernel {}", machine.system, machine.kernel)),
            ("build", format!("{}, {}", machine.build, crate::overhead::limits::RUSTC)),
            ("memory", format!("{} pages", self.pages)),
            ("clock", format!("{} in steps of {} ns", machine.clock, machine.clock_step_ns)),
            ("floor", format!("{range}; cores {}", self.modes.join(" and "))),
            ("load before it", format!("{}; times are sound below 0.5", self.load)),
        ] {
            facts.push(vec![name.to_owned(), fact]);
        }
        let mut page = format!("# Results\n{HEAD}\n\n{}", facts.markdown());
        let missed = self.aims.missed.len();
        let _ = write!(
            page,
            "\n## Aims\n{} met, {missed} missed. Aims beside other libraries are in their \
             section.\n\n",
            self.aims.met
        );
        for line in &self.aims.missed {
            let _ = writeln!(page, "- **missed**: {line}");
        }
        page.trim_end().to_owned() + "\n" + &self.text
    }
}

/// The first lines of the page.
const HEAD: &str = "\
`cargo xtask bench --results` wrote this page, `cargo xtask compare --results` its section on other
libraries, and `cargo xtask compare --device rxe0 --results` that on an RDMA device; do not edit it.
Pages of earlier runs are in the history of this file.

Two processes on two cores, one worker each, on the device in software (`soft0`). *Half a round
trip* is half the time from sending a message to having it back. The *floor* is the same for two
flags that the two cores set in turn, each in a cache line of its own; it is measured before and
after each figure. A message may beat it, because an answer travels in the line that the question
came in. Cores are NEAR if the floor is below 100 ns, FAR if not, and MIX if they moved during a
figure; compare only figures of one kind.";

/// Runs a command of a benchmark program. Returns its JSON.
fn run(program: &Path, words: &str) -> Result<Value, Failure> {
    error::complain(&format_args!("results: {words}"));
    let failed = |error: io::Error| {
        Failure::system(format!("start {}", program.display()), &error, WITHOUT_LTO)
    };
    let output = Command::new(program)
        .args(words.split_whitespace())
        .args(["--device", "soft0", "--json", "-"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(failed)?;
    if !output.status.success() {
        return Err(Failure::new(format!("{words} ended with {}", output.status)));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::new(format!("{words} wrote no JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;
    use crate::machine::clock::Clock;

    /// What a benchmark would write: one record with every figure.
    fn document() -> Value {
        let record = json!({
            "test": "latency", "size": 8, "op": "write", "batch": 1, "qps": 8, "idle_qps": 9,
            "placement": {"floor_ns": 60.0, "mode": "NEAR"},
            "half_rtt_ns": {"p50": 45.0, "p90": 50.0, "p99": 60.0, "p99_9": 70.0, "mean": 48.0},
            "messages_per_second": 8e7, "bytes_per_second": 6.4e8, "allocations_per_message": 0.0,
            "memcpy_bytes_per_second": 6.5e8, "times_memcpy": 0.94, "times_without_idle": 1.0,
            "row": "ping-8", "times_naive": 1.25, "times_naive_p99": 1.6,
            "errors": 0, "path": "echo", "instructions": {
                "here": {"bare": 443.0, "worker": 437.8, "added": -5.2},
                "there": {"bare": 444.5, "worker": 505.5, "added": 61.0},
            },
        });
        json!({
            "results": [record], "commit": "abc123", "machine": {"pages": "2 MiB"},
            "hot_function_bytes": {"turn": 100, "post": 20}, "connections_per_second": 43500.0,
        })
    }

    /// A program in place of this one, which writes that document whatever is asked.
    fn stand_in(folder: &Path) -> PathBuf {
        fs::create_dir_all(folder).unwrap();
        let (program, file) = (folder.join("bench"), folder.join("document.json"));
        fs::write(&file, document().to_string()).unwrap();
        let script = format!("#!/bin/sh\necho \"$@\" >> {0}.asked\ncat {0}\n", file.display());
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    /// What is not measured anew stays as it is on the page, and a named file replaces it.
    #[test]
    fn sections_that_are_not_measured_stay() {
        let folder = std::env::temp_dir().join(format!("doorbell-kept-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (out, printed) = (folder.join("page.md"), folder.join("printed.txt"));
        let libraries = format!("\n## {}\nfast\n", peers::TITLE);
        let device = perftest::section("old");
        fs::write(&out, format!("# Results\n\n## Latency\nfast\n{libraries}{device}")).unwrap();
        fs::write(&printed, "new").unwrap();
        let mut args = ResultsArgs {
            out,
            quick: true,
            cores: Vec::new(),
            compare: None,
            only_compare: false,
            perftest: None,
            without_lto: None,
        };
        assert_eq!(beside(&args).unwrap(), [Some(libraries.clone()), Some(device)]);
        args.perftest = Some(printed);
        assert_eq!(beside(&args).unwrap(), [Some(libraries), Some(perftest::section("new"))]);
        args.out = folder.join("no page yet");
        args.perftest = None;
        assert_eq!(beside(&args).unwrap(), [None, None]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_page_has_every_section_and_names_missed_aims() {
        let name = format!("doorbell-results-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let own = stand_in(&folder);
        let args = ResultsArgs {
            out: PathBuf::new(),
            quick: true,
            cores: vec![1, 0],
            compare: None,
            only_compare: false,
            perftest: None,
            without_lto: Some(own.clone()),
        };
        let mut page = Page::new(&args, own);
        page.timed().unwrap();
        page.counted(args.without_lto.as_deref()).unwrap();
        page.text.extend(peers::section(&json!({"section": "doorbell `def456`"})));
        let printed = "latency 12.4 12.5 1.00 ≤ 1.05 met\nrate 50 51 0.98 ≥ 1 missed 0.98\n";
        page.perftest(&perftest::section(printed));
        let text = page.finish(&Machine::look(&Clock::new()));

        for title in [
            "Aims",
            "Latency",
            "Latency of the device alone",
            "Messages a second",
            "Rising load",
            "Idle connections",
            "A crowd on one receive queue",
            "Traffic beside a naive ring",
            "Bandwidth",
            "Connections a second",
            "Instructions a message",
            "Sizes of the hot functions",
            "Instructions a message without link-time optimization",
            "Other libraries",
            "An RDMA device",
        ] {
            assert!(text.contains(&format!("\n## {title}\n")), "{title} is not in {text}");
        }
        assert!(text.contains("`abc123`") && text.contains("`def456`"), "{text}");
        assert!(text.contains("60 to 60 ns; cores NEAR"), "{text}");
        // The three that the document misses and the one that was printed, and nothing else.
        let missed: Vec<&str> = text.lines().filter(|line| line.starts_with("- **mis")).collect();
        let expected = [
            "- **missed**: traffic ping-8, p99, times the naive ring's: 1.600, the aim is ≤ 1.5",
            "- **missed**: WRITE of 8 bytes, times memcpy: 0.940, the aim is ≥ 0.95",
            "- **missed**: instructions that a worker adds to a reply of 8 bytes: 61.0, the aim is \
             ≤ 60",
            "- **missed**: RDMA device: rate 50 51 0.98 ≥ 1 missed 0.98",
        ];
        assert_eq!(missed, expected);
        assert_eq!(text.matches("**missed** |").count(), 3);

        // Each row has as many cells as its head.
        for table in text.split("\n\n").filter(|part| part.starts_with("| ")) {
            let cells: Vec<usize> = table.lines().map(|line| line.matches('|').count()).collect();
            assert!(cells.iter().all(|count| *count == cells[0]), "{table}");
        }
        let asked = fs::read_to_string(folder.join("document.json.asked")).unwrap();
        assert!(asked.contains("latency --bare --size 8,32,64,200 --cores 1,0 --quick"), "{asked}");
        assert_eq!(asked.matches("overhead --device soft0").count(), 2, "{asked}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
