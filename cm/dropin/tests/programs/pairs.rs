//! Two processes that talk to each other.

use std::fs;
use std::net::TcpListener;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::left::Belongings;
use crate::side::{End, Side, command};

/// One test at a time: each program has threads that spin.
static TURN: Mutex<()> = Mutex::new(());

/// Waits for the turn of a test.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stands for the port in arguments.
pub(crate) const PORT: &str = "PORT";
/// Where servers listen.
pub(crate) const HERE: &str = "127.0.0.1";

/// Runs a program, and returns what it prints.
pub(crate) fn run(args: &[&str]) -> Option<String> {
    let _turn = turn();
    let side = Side::start(command(args)?);
    Some(side.end().success())
}

/// The same, several times if it fails and says this.
pub(crate) fn run_again_if(args: &[&str], excuse: &str) -> Option<String> {
    let _turn = turn();
    for _ in 0..10 {
        let end = Side::start(command(args)?).end();
        if end.is_ok() || !end.text.contains(excuse) {
            return Some(end.success());
        }
    }
    panic!("{} failed 10 times with {excuse}", args.join(" "));
}

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
            Meets::Tcp => has_tcp(port, "0A"),
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

/// A server and a client that have their port where their arguments say [`PORT`].
pub(crate) struct Sides {
    /// The side that listens: the program and its arguments.
    server: Vec<String>,
    /// The side that connects.
    client: Vec<String>,
    meets: Meets,
    /// The port, if it is the program's own.
    port: Option<u16>,
    /// False for a server that goes on: it is stopped.
    ends: bool,
}

fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

impl Sides {
    pub(crate) fn new(server: &[&str], client: &[&str], meets: Meets) -> Sides {
        let (server, client) = (owned(server), owned(client));
        Sides { server, client, meets, port: None, ends: true }
    }

    /// A program that takes the same arguments on both sides, and its port after `-p`. That of the
    /// client is told the server's address too.
    pub(crate) fn same(args: &[&str], meets: Meets) -> Sides {
        let server = [args, &["-p", PORT]].concat();
        Sides::new(&server, &[server.as_slice(), &[HERE]].concat(), meets)
    }

    /// The server goes on when the client has ended.
    pub(crate) fn goes_on(self) -> Sides {
        Sides { ends: false, ..self }
    }

    /// The program's own port.
    pub(crate) fn at(self, port: u16) -> Sides {
        Sides { port: Some(port), ..self }
    }

    /// Runs both. Returns what they printed, the server first; both must succeed.
    pub(crate) fn run(&self) -> Option<[String; 2]> {
        self.run_once().map(|ends| self.both(ends))
    }

    /// The same, up to three times if a side fails and has printed both texts.
    pub(crate) fn run_again_if(&self, excuse: [&str; 2]) -> Option<[String; 2]> {
        for _ in 0..2 {
            let ends = self.run_once()?;
            let is_excused = |end: &End| excuse.iter().all(|text| end.text.contains(text));
            if !ends.iter().any(|end| !end.is_ok() && is_excused(end)) {
                return Some(self.both(ends));
            }
        }
        self.run()
    }

    fn both(&self, [server, client]: [End; 2]) -> [String; 2] {
        [if self.ends { server.success() } else { server.text }, client.success()]
    }

    /// Runs both, and returns how they ended.
    fn run_once(&self) -> Option<[End; 2]> {
        let _turn = turn();
        let port = self.port.unwrap_or_else(free_port);
        let client = with_port(&self.client, port)?;
        let server = started(&self.server, self.meets, port)?;
        let client = Side::start(client).end();
        if !client.is_ok() || !self.ends {
            server.stop();
        }
        Some([server.end(), client])
    }

    /// Runs both. Returns what the client printed.
    pub(crate) fn run_client(&self) -> Option<String> {
        self.run().map(|[_, client]| client)
    }

    /// Kills one side of a pair that talks, that long after both have met. Returns how the other
    /// side ended, and what is left of both; it must end by itself.
    pub(crate) fn kill_one(
        &self,
        server_dies: bool,
        after: Duration,
    ) -> Option<(End, Vec<String>)> {
        let _turn = turn();
        let port = self.port.unwrap_or_else(free_port);
        let belongings = Belongings::of(port);
        let (mut server, mut client) =
            (with_port(&self.server, port)?, with_port(&self.client, port)?);
        belongings.mark(&mut server);
        belongings.mark(&mut client);
        let server = Side::start(server);
        server.wait_for(|| self.meets.is_ready(port));
        let client = Side::start(client);
        client.wait_for(|| self.meets.has_client(port));
        thread::sleep(after);
        let (dies, lives) = if server_dies { (server, client) } else { (client, server) };
        dies.stop();
        dies.end();
        let end = lives.end();
        Some((end, belongings.left()))
    }
}

/// Runs two sides that meet by a name of the soft device, not by a port: the second starts when the
/// kernel's list of sockets has that text in a name. Returns what they printed; both must succeed.
pub(crate) fn meet(first: &[&str], second: &[&str], name: &str) -> Option<[String; 2]> {
    let _turn = turn();
    let (first, second) = (command(first)?, command(second)?);
    let first = Side::start(first);
    let has_name = |line: &str| line.contains("/soft0/") && line.contains(name);
    first.wait_for(|| fs::read_to_string("/proc/net/unix").unwrap().lines().any(has_name));
    let second = Side::start(second).end();
    if !second.is_ok() {
        first.stop();
    }
    Some([first.end().success(), second.success()])
}

/// Starts a server and waits until it listens at that port.
pub(crate) fn started<S: AsRef<str>>(server: &[S], meets: Meets, port: u16) -> Option<Side> {
    let server = Side::start(with_port(server, port)?);
    server.wait_for(|| meets.is_ready(port));
    Some(server)
}

/// A command whose arguments say [`PORT`].
pub(crate) fn with_port<S: AsRef<str>>(args: &[S], port: u16) -> Option<std::process::Command> {
    let number = port.to_string();
    let args: Vec<String> = args.iter().map(|arg| arg.as_ref().replace(PORT, &number)).collect();
    command(&args)
}

/// What a line of the kernel's list of sockets says at the end of its flags.
const LISTENS: &str = "00010000";
const CONNECTED: &str = "03";

/// True if an id of the soft device listens at that port.
pub(crate) fn listens_on_soft(port: u16) -> bool {
    soft_sockets(port).any(|words| words[3] == LISTENS)
}

/// The sockets of ids of the soft device that are bound to that port: flags and states among the
/// words of their lines.
pub(crate) fn soft_sockets(port: u16) -> impl Iterator<Item = Vec<String>> {
    let (device, end) = ("/soft0", format!(":{port}"));
    let text = fs::read_to_string("/proc/net/unix").unwrap();
    let lines: Vec<Vec<String>> = text
        .lines()
        .filter(|line| line.contains(device) && line.ends_with(&end))
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect();
    lines.into_iter()
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind((HERE, 0)).unwrap().local_addr().unwrap().port()
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
