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
const LIMIT: Duration = Duration::from_secs(60);

/// One program at a time: each has threads that spin.
static TURN: Mutex<()> = Mutex::new(());

/// The library, which cargo builds with the tests and puts beside them.
pub(crate) fn library() -> PathBuf {
    let own = env::current_exe().unwrap();
    own.with_file_name("libdoorbell_dropin.so")
}

/// `doorbell run -- PROGRAM ARGS…`; `None` if the program is not installed, which is said.
fn command(program: &str, args: &[&str]) -> Option<Command> {
    let folders = env::var_os("PATH").unwrap_or_default();
    // A path of its own counts as it is.
    if !env::split_paths(&folders).any(|folder| folder.join(program).is_file()) {
        println!("skipped: {program} is not installed");
        return None;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    command.env("DOORBELL_DROPIN", library()).env("DOORBELL_EXPLAIN", "1");
    command.args(["run", "--", program]).args(args).stdin(Stdio::null());
    // A program that ends badly may leave a file where it runs.
    command.current_dir(env!("CARGO_TARGET_TMPDIR"));
    Some(command)
}

/// Runs a program, and returns what it prints.
pub(crate) fn run(program: &str, args: &[&str]) -> Option<String> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let side = Side::start(command(program, args)?);
    Some(side.end().success())
}

/// The same, several times if it fails and says this.
pub(crate) fn run_again_if(program: &str, args: &[&str], excuse: &str) -> Option<String> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..10 {
        let end = Side::start(command(program, args)?).end();
        if end.ok || !end.text.contains(excuse) {
            return Some(end.success());
        }
    }
    panic!("{program} failed 10 times with {excuse}");
}

/// A program on both sides.
pub(crate) struct Pair<'a> {
    /// The program.
    pub(crate) program: &'a str,
    /// Its arguments on both sides.
    pub(crate) args: &'a [&'a str],
    /// Further ones.
    pub(crate) more: &'a [&'a str],
}

impl Pair<'_> {
    /// Runs a server and a client that exchange their parameters over a TCP port. Returns what the
    /// client printed.
    pub(crate) fn run(&self) -> Option<String> {
        self.run_both().map(|(client, _)| client)
    }

    /// The same; returns what the client and the server printed.
    pub(crate) fn run_both(&self) -> Option<(String, String)> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let port = free_port();
        let number = port.to_string();
        let args = [self.args, self.more, &["-p", &number]].concat();
        let server = Side::start(command(self.program, &args)?);
        let client_args = [args.as_slice(), &["127.0.0.1"]].concat();
        let client = command(self.program, &client_args)?;
        server.wait_for(|| listens(port));
        let text = Side::start(client).end().success();
        Some((text, server.end().success()))
    }
}

/// A server and a client that have their port where their arguments say [`PORT`].
pub(crate) struct Sides<'a> {
    /// The side that listens: the program and its arguments.
    pub(crate) server: &'a [&'a str],
    /// The side that connects.
    pub(crate) client: &'a [&'a str],
    /// What the server listens at.
    pub(crate) meets: Meets,
    /// False for a server that goes on: it is stopped.
    pub(crate) ends: bool,
}

/// Stands for the port in arguments.
pub(crate) const PORT: &str = "PORT";

/// What a server listens at.
#[derive(Clone, Copy)]
pub(crate) enum Meets {
    /// A port of TCP.
    Tcp,
    /// A port of the connection manager.
    Soft,
}

impl Meets {
    fn is_ready(self, port: u16) -> bool {
        match self {
            Meets::Tcp => listens(port),
            Meets::Soft => listens_on_soft(port),
        }
    }

    /// True if a client has come.
    fn has_client(self, port: u16) -> bool {
        match self {
            Meets::Tcp => has_tcp(port, "01"),
            Meets::Soft => soft_sockets(port).any(|words| words[5] == CONNECTED),
        }
    }
}

impl Sides<'_> {
    /// Runs both. Returns what they printed, the server first; both must succeed.
    pub(crate) fn run(&self) -> Option<[String; 2]> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let port = free_port();
        let (server, client) = (with_port(self.server, port)?, with_port(self.client, port)?);
        let server = Side::start(server);
        server.wait_for(|| self.meets.is_ready(port));
        let client = Side::start(client).end();
        if !client.ok || !self.ends {
            server.stop();
        }
        let server = server.end();
        let texts = [if self.ends { server.success() } else { server.text }, client.success()];
        Some(texts)
    }
}

/// Kills one side of a pair that talks, that long after both have met. Returns how the other side
/// ended and what it printed; it must end by itself. Nothing of the dead side may be left.
pub(crate) fn kill_one(sides: &Sides<'_>, kill_server: bool, after: Duration) -> Option<End> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let port = free_port();
    let (server, client) = (with_port(sides.server, port)?, with_port(sides.client, port)?);
    let server = Side::start(server);
    server.wait_for(|| sides.meets.is_ready(port));
    let client = Side::start(client);
    client.wait_for(|| sides.meets.has_client(port));
    thread::sleep(after);
    let (dies, lives) = if kill_server { (server, client) } else { (client, server) };
    dies.stop();
    let end = lives.end();
    dies.end();
    assert!(!listens_on_soft(port), "a listener is left");
    let shared = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let left = shared.filter(|entry| entry.file_name().to_string_lossy().contains("doorbell"));
    assert_eq!(left.count(), 0, "shared memory is left");
    Some(end)
}

/// A command whose arguments say [`PORT`].
fn with_port(args: &[&str], port: u16) -> Option<Command> {
    let args: Vec<String> = args.iter().map(|arg| arg.replace(PORT, &port.to_string())).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (program, args) = args.split_first().unwrap();
    command(program, args)
}

/// True if a program that another one starts is installed; if not, that is said.
pub(crate) fn has(program: &str) -> bool {
    command(program, &[]).is_some()
}

/// Two programs that find each other by the connection manager.
pub(crate) struct CmPair<'a> {
    /// The side that listens: the program and its arguments.
    pub(crate) server: &'a [&'a str],
    /// The side that connects.
    pub(crate) client: &'a [&'a str],
    /// Where they meet.
    pub(crate) port: Port,
}

/// The port of a pair.
#[derive(Clone, Copy)]
pub(crate) enum Port {
    /// A free one, which both take by that option.
    By(&'static str),
    /// The program's own.
    Always(u16),
}

impl CmPair<'_> {
    /// Runs both. Returns what they printed, the server first.
    pub(crate) fn run(&self) -> Option<[String; 2]> {
        let [server, client] = self.try_run()?;
        Some([server.success(), client.success()])
    }

    fn try_run(&self) -> Option<[End; 2]> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let port = match self.port {
            Port::By(_) => free_port(),
            Port::Always(port) => port,
        };
        let number = port.to_string();
        let with_port = |args: &[&str]| {
            let (program, args) = args.split_first().unwrap();
            match self.port {
                Port::By(option) => command(program, &[args, &[option, &number]].concat()),
                Port::Always(_) => command(program, args),
            }
        };
        let (server, client) = (with_port(self.server)?, with_port(self.client)?);
        let server = Side::start(server);
        server.wait_for(|| listens_on_soft(port));
        let client = Side::start(client).end();
        if !client.ok {
            server.stop();
        }
        Some([server.end(), client])
    }
}

/// What a line of the kernel's list of sockets says at the end of its flags.
const LISTENS: &str = "00010000";
const CONNECTED: &str = "03";

/// True if an id of the soft device listens at that port.
fn listens_on_soft(port: u16) -> bool {
    soft_sockets(port).any(|words| words[3] == LISTENS)
}

/// The sockets of ids of the soft device that are bound to that port: flags and states among the
/// words of their lines.
fn soft_sockets(port: u16) -> impl Iterator<Item = Vec<String>> {
    let (device, end) = ("/soft0", format!(":{port}"));
    let text = fs::read_to_string("/proc/net/unix").unwrap();
    let lines: Vec<Vec<String>> = text
        .lines()
        .filter(|line| line.contains(device) && line.ends_with(&end))
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect();
    lines.into_iter()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// True if somebody listens at that TCP port.
fn listens(port: u16) -> bool {
    has_tcp(port, "0A")
}

/// True if a socket of that local TCP port is in that state.
fn has_tcp(port: u16, state: &str) -> bool {
    let wanted = format!(":{port:04X}");
    let all = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    all.into_iter().flatten().any(|text| {
        text.lines().any(|line| {
            let mut words = line.split_whitespace();
            let local = words.nth(1).unwrap_or_default();
            local.ends_with(&wanted) && words.nth(1) == Some(state)
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

    /// Ends it.
    fn stop(&self) {
        let _ = self.child.lock().unwrap().kill();
    }

    /// Waits for its end.
    fn end(mut self) -> End {
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
        let text: String = self.readers.drain(..).map(|reader| reader.join().unwrap()).collect();
        let ok = status.is_some_and(|status| status.success());
        let by_itself = status.is_some();
        End { ok, by_itself, text, what: format!("{} {status:?}", self.name) }
    }
}

/// How a program ended.
pub(crate) struct End {
    ok: bool,
    /// It ended before the limit.
    pub(crate) by_itself: bool,
    /// What it printed.
    pub(crate) text: String,
    what: String,
}

impl End {
    /// What it printed; it must have succeeded.
    fn success(self) -> String {
        assert!(self.ok, "{}: {}", self.what, self.text);
        self.text
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
