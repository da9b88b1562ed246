//! Programs of the peers: a server and its client, each on a core of its own.

use std::fs;
use std::io::{self, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_tune as tune;

use crate::error::Failure;

/// The most time for a server to listen, for a client to finish, and for a server to end after it.
const START_LIMIT: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(120);
const END_LIMIT: Duration = Duration::from_secs(5);

/// A program that does not outlive this value.
pub(crate) struct Program {
    child: Child,
    name: String,
}

impl Program {
    /// Starts it on that core, where all its threads stay unless it moves them itself.
    pub(crate) fn start(command: &mut Command, core: Option<usize>) -> Result<Program, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        // A process begins with the mask of the thread that starts it. This starts a thread for
        // that, so that the current one keeps its mask.
        let spawned = thread::scope(|scope| {
            let starter = scope.spawn(|| {
                core.map_or(Ok(()), tune::pin)?;
                command.spawn().map_err(Failure::at(format!("start {name}")))
            });
            starter.join().map_err(|_| Failure::new(format!("start {name}: broke off")))?
        });
        Ok(Program { child: spawned?, name })
    }

    /// Waits until the program listens on a TCP port.
    pub(crate) fn listens(&mut self, port: u16) -> Result<(), Failure> {
        let start = Instant::now();
        while !is_listening(port) {
            self.is_there()?;
            if start.elapsed() > START_LIMIT {
                return Err(Failure::new(format!("{} does not listen on {port}", self.name)));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn is_there(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Failure::new(format!("{} ended: {status}", self.name))),
            Err(error) => Err(Failure::new(format!("lost {}: {error}", self.name))),
        }
    }

    /// Waits until it ends successfully; returns its output.
    pub(crate) fn finish(self) -> Result<String, Failure> {
        self.within(LIMIT)
    }

    /// Lets a server end by itself when its client is done, so that it removes its shared memory;
    /// then ends it. Its exit code does not matter: the client's does.
    pub(crate) fn part(self) {
        let _ = self.within(END_LIMIT);
    }

    /// Blocks instead of polling, because a polling process would disturb the measurement.
    fn within(mut self, limit: Duration) -> Result<String, Failure> {
        let mut text = String::new();
        let mut out = self.child.stdout.take();
        let (done, is_done) = mpsc::channel::<()>();
        let child = &mut self.child;
        let read = thread::scope(|scope| {
            scope.spawn(move || {
                if is_done.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                    // It may have ended already.
                    let _ = child.kill();
                }
            });
            // The end of its output is the end of the program, or this fails below.
            let read = out.as_mut().map_or(Ok(0), |out| out.read_to_string(&mut text));
            drop(done);
            read
        });
        let ended = read.and_then(|_| self.child.wait());
        match ended.map_err(Failure::at(format!("wait for {}", self.name)))? {
            status if status.success() => Ok(text),
            status => Err(Failure::new(format!("{} ended: {status}; {}", self.name, text.trim()))),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It holds nothing that must be kept, and usually has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program whose standard output is read.
pub(crate) fn heard(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// The same without its error output. For servers, because their clients report errors too.
pub(crate) fn mute(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = heard(name);
    command.stderr(Stdio::null());
    command
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16, Failure> {
    let port = || -> io::Result<u16> { Ok(TcpListener::bind("0.0.0.0:0")?.local_addr()?.port()) };
    port().map_err(Failure::at("find a free port"))
}

/// True if a process listens on it. This reads a table, because a connection would count as a
/// client.
fn is_listening(port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    tables.iter().any(|table| listed(&fs::read_to_string(table).unwrap_or_default(), port))
}

/// Whether a table of `/proc/net/tcp` lists the port as listening (state 0A).
fn listed(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next(), words.nth(1));
        local.is_some_and(|local| local.ends_with(&end)) && state == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_seen_and_a_free_port_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listening(port));
        drop(listener);
        assert!(!is_listening(port));
    }

    #[test]
    fn a_connected_port_is_no_listening_one() {
        let table = "  sl  local_address rem_address   st\n   \
                     0: 0100007F:3419 0100007F:9C40 01 00000000\n   \
                     1: 00000000:341A 00000000:0000 0A 00000000\n";
        assert!(!listed(table, 0x3419));
        assert!(listed(table, 0x341A));
    }

    #[test]
    fn output_comes_back_and_a_bad_end_is_told() {
        let run = |script: &str| {
            let mut command = heard("sh");
            Program::start(command.args(["-c", script]), None)?.finish()
        };
        assert_eq!(run("echo a; echo b").unwrap(), "a\nb\n");
        let text = run("echo because; exit 3").unwrap_err().to_string();
        assert!(text.contains("because") && text.contains('3'), "{text}");
        assert!(run_missing().to_string().contains("no-such-program"));
    }

    fn run_missing() -> Failure {
        Program::start(&mut mute("no-such-program"), None).err().unwrap()
    }

    #[test]
    fn a_program_starts_on_its_core_and_we_stay_where_we_are() {
        let before = tune::cores();
        let core = before[0];
        let mut command = heard("grep");
        command.args(["Cpus_allowed_list", "/proc/self/status"]);
        let text = Program::start(&mut command, Some(core)).unwrap().finish().unwrap();
        assert_eq!(text.split_whitespace().last(), Some(core.to_string().as_str()));
        assert_eq!(tune::cores(), before);
    }
}
