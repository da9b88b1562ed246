//! Two processes of a program that talk to each other, both over the drop-in.

use std::env;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program may take that does not end by itself.
const LIMIT: Duration = Duration::from_secs(180);

/// One program at a time: each has threads that spin.
static TURN: Mutex<()> = Mutex::new(());

/// The library, which cargo builds with the tests and puts beside them.
fn library() -> PathBuf {
    let own = env::current_exe().unwrap();
    own.with_file_name("libdoorbell_dropin.so")
}

/// `doorbell run -- PROGRAM ARGS…`; `None` if the program is not installed, which is said.
fn command(program: &str, args: &[&str]) -> Option<Command> {
    let folders = env::var_os("PATH").unwrap_or_default();
    if !env::split_paths(&folders).any(|folder| folder.join(program).is_file()) {
        println!("skipped: {program} is not installed");
        return None;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    command.env("DOORBELL_DROPIN", library()).env("DOORBELL_EXPLAIN", "1");
    command.args(["run", "--", program]).args(args).stdin(Stdio::null());
    Some(command)
}

/// Runs a program, and returns what it prints.
pub fn run(program: &str, args: &[&str]) -> Option<String> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let side = Side::start(command(program, args)?);
    Some(side.end())
}

/// A program on both sides.
pub struct Pair<'a> {
    /// The program.
    pub program: &'a str,
    /// Its arguments on both sides.
    pub args: &'a [&'a str],
    /// Further ones.
    pub more: &'a [&'a str],
}

impl Pair<'_> {
    /// Runs a server and a client that exchange their parameters over a TCP port. Returns what the
    /// client printed.
    pub fn run(&self) -> Option<String> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let port = free_port();
        let number = port.to_string();
        let args = [self.args, self.more, &["-p", &number]].concat();
        let server = Side::start(command(self.program, &args)?);
        let client_args = [args.as_slice(), &["127.0.0.1"]].concat();
        let client = command(self.program, &client_args)?;
        server.wait_for(|| listens(port));
        let text = Side::start(client).end();
        server.end();
        Some(text)
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// True if somebody listens at that TCP port.
fn listens(port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    let all = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    all.into_iter().flatten().any(|text| {
        text.lines().any(|line| {
            let mut words = line.split_whitespace();
            let local = words.nth(1).unwrap_or_default();
            local.ends_with(&wanted) && words.nth(1) == Some("0A")
        })
    })
}

/// A process, and the threads that read what it prints.
struct Side {
    child: Mutex<Child>,
    readers: Vec<thread::JoinHandle<String>>,
    name: String,
}

impl Side {
    fn start(mut command: Command) -> Side {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = format!("{command:?}");
        let mut child = command.spawn().unwrap();
        let pipes: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        let readers = pipes
            .into_iter()
            .map(|mut pipe| {
                thread::spawn(move || {
                    let mut bytes = Vec::new();
                    pipe.read_to_end(&mut bytes).unwrap();
                    String::from_utf8_lossy(&bytes).into_owned()
                })
            })
            .collect();
        Side { child: Mutex::new(child), readers, name }
    }

    /// Waits until something is so.
    fn wait_for(&self, what: impl Fn() -> bool) {
        let until = Instant::now() + LIMIT;
        while !what() {
            let ended = self.child.lock().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{} ended at once: {ended:?}", self.name);
            assert!(Instant::now() < until, "{} does not listen", self.name);
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end, which must be a success, and returns what it printed.
    fn end(mut self) -> String {
        let until = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.lock().unwrap().try_wait().unwrap() {
                break Some(status);
            }
            if Instant::now() > until {
                break None;
            }
            thread::sleep(Duration::from_millis(5));
        };
        if status.is_none() {
            self.child.lock().unwrap().kill().unwrap();
        }
        let text: String =
            self.readers.drain(..).map(|reader| reader.join().unwrap()).collect();
        assert!(status.is_some_and(|status| status.success()), "{} {status:?}: {text}", self.name);
        text
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // It has ended, unless the test fails.
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}
