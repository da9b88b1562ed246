//! A view of a running Doorbell program: workers, peers, credit, refusals.

mod table;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use doorbell::{exporting_processes, read_metrics};
use table::{Sample, table};

/// How often a terminal is redrawn.
const PERIOD: Duration = Duration::from_secs(1);

/// Moves to the top left of a terminal and clears it.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Shows the workers, listeners and dialers of a running Doorbell program.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The process: its number, or NUMBER-2 if containers that share the network have several of
    /// that number. Default: the only one that exports metrics.
    process: Option<String>,
    /// Print totals once, and end. So does an output that is no terminal.
    #[arg(long)]
    once: bool,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("doorbell-top: {text}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), String> {
    let process = &cli.process.clone().map_or_else(only_process, Ok)?;
    let look = || {
        let text = read_metrics(process).map_err(|error| failed(process, &error))?;
        Ok::<_, String>((Instant::now(), Sample::parse(&text)))
    };
    let mut last = look()?;
    let mut out = io::stdout();
    if cli.once || !out.is_terminal() {
        let text = format!("process {process}, totals\n{}", table(&last.1, None));
        return print(&mut out, &text);
    }
    loop {
        thread::sleep(PERIOD);
        let next = look()?;
        let seconds = (next.0 - last.0).as_secs_f64();
        let rates = table(&next.1, Some((&last.1, seconds)));
        print(&mut out, &format!("{CLEAR}process {process}, counters per second\n{rates}"))?;
        last = next;
    }
}

fn print(out: &mut io::Stdout, text: &str) -> Result<(), String> {
    let done = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    done.map_err(|error| format!("cannot print: {error}"))
}

/// The one process that exports metrics.
fn only_process() -> Result<String, String> {
    let found = exporting_processes();
    let found = found.map_err(|error| format!("cannot list the processes: {error}"))?;
    let foreign = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    only(found, |process| !read_metrics(process).is_err_and(foreign))
}

/// The one of these processes whose metrics this user may read.
fn only(mut found: Vec<String>, may_read: impl Fn(&str) -> bool) -> Result<String, String> {
    found.retain(|process| may_read(process));
    match &found[..] {
        [process] => Ok(process.clone()),
        [] => Err("no program here exports its metrics; it has to call Runtime::export".into()),
        _ => {
            let names = found.join(", ");
            Err(format!("several programs export their metrics; name one of {names}"))
        }
    }
}

fn failed(process: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            format!("process {process} exports no metrics; it has to call Runtime::export")
        }
        io::ErrorKind::PermissionDenied => format!("process {process} is another user's"),
        io::ErrorKind::WouldBlock => {
            format!("process {process} does not answer: does its control plane run?")
        }
        _ => format!("cannot read the metrics of process {process}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::only;

    #[test]
    fn programs_of_others_do_not_count() {
        let mine = |process: &str| process != "7";
        let those = |found: &[&str]| only(found.iter().map(|&name| name.into()).collect(), mine);
        assert_eq!(those(&["7", "8"]), Ok("8".into()));
        assert!(those(&["7"]).unwrap_err().contains("no program here"));
        assert!(those(&["7", "8", "8-2"]).unwrap_err().contains("name one of 8, 8-2"));
    }
}
