//! `cargo xtask vm run`, `cargo xtask vm pair` and `cargo xtask vm ranks`.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::args::{Args, quoted, shell_line};
use crate::exec::{self, Limit, Sink};
use crate::machine::{Job, Machine, Port, Shared};
use crate::packages::{self, Need};
use crate::place::{cargo, target};
use crate::setup;

/// Both machines of `vm ranks` are ended after this time. An emulated one takes some minutes.
const RANKS_LIMIT: Duration = Duration::from_secs(2400);

/// Reads the rest of the command line and runs it.
pub(crate) fn run(words: &[String]) -> Outcome<u8> {
    match words.split_first() {
        Some((first, rest)) if first == "run" => run_one(rest),
        Some((first, rest)) if first == "pair" => run_pair(rest),
        Some((first, rest)) if first == "ranks" => run_ranks(rest),
        _ => Err("say `vm run -- CMD`, `vm pair -- SERVER ::: CLIENT` or `vm ranks`".to_owned()),
    }
}

/// The options.
#[derive(Debug, PartialEq)]
struct Options {
    cpus: Option<u32>,
    memory_mib: u32,
    numa: bool,
    hugepages: u32,
    limit_s: u64,
    append: String,
    loss: String,
}

impl Options {
    fn read(words: &[String], loss_too: bool) -> Outcome<(Self, &[String])> {
        let mut options = Self {
            cpus: None,
            memory_mib: 4096,
            numa: false,
            hugepages: 0,
            limit_s: 1200,
            append: String::new(),
            loss: String::new(),
        };
        let mut args = Args::new(words);
        while let Some(option) = args.option()? {
            match option {
                "--cpus" => options.cpus = Some(args.value(option)?),
                "--memory" => options.memory_mib = mib(&args.value::<String>(option)?)?,
                "--numa" => options.numa = true,
                "--hugepages" => options.hugepages = args.value(option)?,
                "--limit" => options.limit_s = args.value(option)?,
                "--append" => options.append = args.value(option)?,
                "--loss" if loss_too => options.loss = percent(args.value(option)?)?,
                other => return Err(format!("there is no option `{other}` here")),
            }
        }
        let rest = args.rest();
        if rest.is_empty() {
            return Err("what shall run comes after `--`".to_owned());
        }
        if options.cpus == Some(0) || (options.numa && options.cpus.is_some_and(|n| n < 2)) {
            return Err("--cpus is 1 at least, and 2 with --numa".to_owned());
        }
        Ok((options, rest))
    }

    fn machine(&self, port: Port) -> Machine {
        Machine {
            cpus: self.cpus.unwrap_or(if self.numa { 4 } else { 2 }),
            memory_mib: self.memory_mib,
            numa: self.numa,
            hugepages: self.hugepages,
            limit: Limit::Total(Duration::from_secs(self.limit_s)),
            append: self.append.clone(),
            port,
        }
    }
}

/// `4G` or `512M` in MiB.
fn mib(text: &str) -> Outcome<u32> {
    let wrong = || format!("--memory is a number of M or G, such as 4G, not `{text}`");
    let unit = match text.chars().last() {
        Some('M') => 1,
        Some('G') => 1024,
        _ => return Err(wrong()),
    };
    let number: u32 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number.checked_mul(unit).filter(|mib| *mib >= 256).ok_or_else(wrong)
}

/// `1%` or `1` in `tc`'s format.
fn percent(text: String) -> Outcome<String> {
    let number = text.strip_suffix('%').unwrap_or(&text);
    match number.parse::<f64>() {
        Ok(share) if (0.0..100.0).contains(&share) => Ok(format!("{number}%")),
        _ => Err(format!("--loss is a share such as 1%, not `{text}`")),
    }
}

/// A machine with the usual parts, for the ladder, which ends it after `silence` without output.
pub(crate) fn usual(silence: Duration) -> Machine {
    let limit = Limit::Silent(silence);
    let (append, port) = (String::new(), Port::Alone);
    Machine { cpus: 2, memory_mib: 4096, numa: false, hugepages: 128, limit, append, port }
}

fn run_one(words: &[String]) -> Outcome<u8> {
    let (options, rest) = Options::read(words, false)?;
    let machine = options.machine(Port::Alone);
    let parts = setup::machine()?;
    let (shared, line) = (Shared::new()?, shell_line(rest));
    let job = Job {
        machine: &machine,
        shared: &shared,
        role: "command",
        line: &line,
        sink: Sink::Through,
    };
    job.run(&parts, &|| false).map(|(code, _)| code)
}

fn run_pair(words: &[String]) -> Outcome<u8> {
    let (options, rest) = Options::read(words, true)?;
    let (server, client) = split(rest)?;
    let pair = Pair::new(|port| options.machine(port), &options.loss)?;
    let sinks = [Sink::Prefixed("server: "), Sink::Prefixed("client: ")];
    let [server, client] = pair.run([&shell_line(server), &shell_line(client)], sinks)?;
    verdict(server.map(|(code, _)| code), client.map(|(code, _)| code))
}

/// The benchmark, in the folder that the machines share.
const BENCH: &str = "doorbell-bench";

/// Ranks of the benchmark on two machines, started by `srun` and by `mpirun`.
fn run_ranks(words: &[String]) -> Outcome<u8> {
    if !words.is_empty() {
        return Err("`vm ranks` takes no words".to_owned());
    }
    packages::ensure(&[Need::Verbs, Need::Tests])?;
    let mut build = cargo();
    build.args(["build", "--quiet", "--package", BENCH, "--features", "verbs"]);
    let built = build.status().map_err(|cause| format!("cannot start cargo: {cause}"))?;
    if !built.success() {
        return Ok(exec::code(built));
    }
    let limit = Limit::Total(RANKS_LIMIT);
    let machine =
        |port| Machine { memory_mib: 2048, hugepages: 0, limit, port, ..usual(RANKS_LIMIT) };
    let pair = Pair::new(machine, "")?;
    let copy = pair.shared.folder.join(BENCH);
    fs::copy(target().join("debug").join(BENCH), &copy)
        .map_err(|cause| format!("cannot copy {BENCH}: {cause}"))?;
    let path = |path: &Path| quoted(&path.display().to_string());
    let variables = format!("SHARED={} DOORBELL_BENCH={}", path(&pair.shared.folder), path(&copy));
    let line = |side| format!("{variables} bash xtask/vm/ranks.sh {side}");
    let sinks = [Sink::Prefixed("server: "), Sink::Prefixed("client: ")];
    let [server, client] = pair.run([&line("server"), &line("client")], sinks)?;
    verdict(server.map(|(code, _)| code), client.map(|(code, _)| code))
}

/// Runs a line on each of two machines, the server's and the client's, whose wire loses that share
/// of the packets. Both find a shared folder in SHARED. A machine ends after `silence` without
/// output. Returns the output and the outcome of each.
pub(crate) fn on_a_wire(
    silence: Duration,
    loss: &str,
    lines: [&str; 2],
) -> Outcome<[Outcome<(u8, String)>; 2]> {
    let small = |port| Machine { memory_mib: 1024, hugepages: 0, port, ..usual(silence) };
    let pair = Pair::new(small, loss)?;
    let shared = quoted(&pair.shared.folder.display().to_string());
    let [server, client] = lines.map(|line| format!("SHARED={shared} {line}"));
    pair.run([&server, &client], [Sink::Kept; 2])
}

fn split(words: &[String]) -> Outcome<(&[String], &[String])> {
    let mut sides = words.split(|word| word == ":::");
    match (sides.next(), sides.next(), sides.next()) {
        (Some(server), Some(client), None) if !server.is_empty() && !client.is_empty() => {
            Ok((server, client))
        }
        _ => Err("a pair is `-- SERVER ::: CLIENT`".to_owned()),
    }
}

/// Two machines on one wire. If one ends without a result, it ends the other.
struct Pair {
    server: Machine,
    client: Machine,
    wire: u16,
    shared: Shared,
    server_gone: AtomicBool,
    client_gone: AtomicBool,
}

impl Pair {
    fn new(machine: impl Fn(Port) -> Machine, loss: &str) -> Outcome<Pair> {
        let wire = free_port()?;
        let end = |address, mac, way: &str| {
            let socket = format!("{way}=127.0.0.1:{wire}");
            machine(Port::Wire { address, mac, socket, loss: loss.to_owned() })
        };
        Ok(Pair {
            server: end("192.168.78.1", "52:54:00:00:00:01", "listen"),
            client: end("192.168.78.2", "52:54:00:00:00:02", "connect"),
            wire,
            shared: Shared::new()?,
            server_gone: AtomicBool::new(false),
            client_gone: AtomicBool::new(false),
        })
    }

    /// Runs the server's line and the client's.
    fn run(
        &self,
        [server, client]: [&str; 2],
        [to_server, to_client]: [Sink<'_>; 2],
    ) -> Outcome<[Outcome<(u8, String)>; 2]> {
        let parts = &setup::machine()?;
        // Relaxed: the flags only end a wait early; the files beside them carry the result.
        let gone = |flag: &AtomicBool, file| flag.load(Ordering::Relaxed) && !self.shared.has(file);
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let job = self.job(&self.server, "server", server, to_server);
                let ended = job.run(parts, &|| gone(&self.client_gone, "client.exit"));
                self.server_gone.store(true, Ordering::Relaxed);
                ended
            });
            self.await_wire();
            let job = self.job(&self.client, "client", client, to_client);
            let client = job.run(parts, &|| gone(&self.server_gone, "server.exit"));
            self.client_gone.store(true, Ordering::Relaxed);
            let server = server.join().map_err(|_| "the server's thread panicked".to_owned())?;
            Ok([server, client])
        })
    }

    fn job<'a>(
        &'a self,
        machine: &'a Machine,
        role: &'static str,
        line: &'a str,
        sink: Sink<'a>,
    ) -> Job<'a> {
        Job { machine, shared: &self.shared, role, line, sink }
    }

    /// Waits until the server's QEMU listens, because the client's gives up if nobody does. A test
    /// connection would be taken for the client's.
    fn await_wire(&self) {
        let since = Instant::now();
        let waiting = || since.elapsed() < Duration::from_secs(60);
        while waiting() && !self.server_gone.load(Ordering::Relaxed) {
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
            if listens(&table, self.wire) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The client's result; the server's if the client succeeded.
fn verdict(server: Outcome<u8>, client: Outcome<u8>) -> Outcome<u8> {
    match (server, client) {
        (Err(server), Err(client)) => Err(format!("{server}; {client}")),
        (Err(one), _) | (_, Err(one)) => Err(one),
        (Ok(server), Ok(0)) => Ok(server),
        (Ok(_), Ok(client)) => Ok(client),
    }
}

/// True if the kernel's table of TCP sockets has a listener on a port of 127.0.0.1.
fn listens(table: &str, port: u16) -> bool {
    let local = format!("0100007F:{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next() == Some(&local) && fields.nth(1) == Some("0A")
    })
}

fn free_port() -> Outcome<u16> {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|cause| format!("no free port on 127.0.0.1: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_are_read() {
        let line = "--cpus 3 --memory 512M --hugepages 8 --loss 1% --limit 9 --append x=y -- a b";
        let line = words(line);
        let (options, rest) = Options::read(&line, true).expect("all are known");
        assert_eq!((options.cpus, options.memory_mib, options.hugepages), (Some(3), 512, 8));
        assert_eq!((options.loss.as_str(), options.limit_s), ("1%", 9));
        assert_eq!(options.append, "x=y");
        assert_eq!(rest, words("a b"));
        assert!(Options::read(&line, false).is_err(), "one machine has no wire to lose on");
    }

    #[test]
    fn nonsense_is_refused() {
        for line in ["--cpus 2", "--cpus 0 -- a", "--numa --cpus 1 -- a", "--memory 4 -- a"] {
            assert!(Options::read(&words(line), true).is_err(), "{line}");
        }
        for line in ["--loss 100% -- a", "--loss x -- a", "--memory 9999999G -- a", "a"] {
            assert!(Options::read(&words(line), true).is_err(), "{line}");
        }
    }

    #[test]
    fn a_pair_has_two_sides() {
        let line = words("s -a ::: c -b");
        assert_eq!(split(&line), Ok((&line[..2], &line[3..])));
        for line in ["s", "s :::", "::: c", "s ::: c ::: d"] {
            assert!(split(&words(line)).is_err(), "{line}");
        }
    }

    #[test]
    fn a_failing_side_decides() {
        assert_eq!(verdict(Ok(0), Ok(0)), Ok(0));
        assert_eq!(verdict(Ok(2), Ok(0)), Ok(2));
        assert_eq!(verdict(Ok(2), Ok(3)), Ok(3));
        assert!(verdict(Err("gone".to_owned()), Ok(0)).is_err());
    }

    #[test]
    fn a_listener_is_found_by_port_and_state() {
        let table = "  sl  local_address rem_address   st\n\
                     0: 0100007F:1F90 00000000:0000 0A x\n\
                     1: 0100007F:1F91 00000000:0000 01 x\n";
        assert!(listens(table, 0x1F90));
        assert!(!listens(table, 0x1F91) && !listens(table, 0x1F92));
    }
}
