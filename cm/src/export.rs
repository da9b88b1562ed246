//! [`Export`]: shows a process's metrics to `doorbell-top` and to others of the same user.
#![expect(unsafe_code, reason = "getsockopt and geteuid have no safe form in std")]

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use doorbell_engine::metrics::Metrics;
use doorbell_fabric::CmError;
use doorbell_seam::error::Code;

/// The names of these sockets begin with this; the process's name follows.
const PREFIX: &str = "doorbell-metrics-";

/// The most processes of one number that export: one of each container that shares the network.
const NAMESAKES: u32 = 4096;

/// The process that has an [`Export`]; 0 for none. A child of fork is another process.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The most readers that are served at a time. Others wait.
const READERS: usize = 8;

/// How long [`read_metrics`] waits for a process that does not step.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest text that [`read_metrics`] accepts.
const TEXT_MAX: u64 = 16 << 20;

/// Serves this process's metrics as text, on a Unix socket in the abstract namespace that is named
/// after the process. Only processes of the same user, and root, get an answer; nothing stays
/// behind when the process dies. It has no thread: the thread that runs the control plane calls
/// [`Export::step`]. [`crate::Runtime::export`] does that.
///
/// Readers are in the same network namespace, which containers often have to themselves. A process
/// is named by its number. If containers share the network, processes may have the same number: the
/// second is then named `NUMBER-2`, and so on.
#[derive(Debug)]
pub struct Export {
    listener: UnixListener,
    answers: Vec<Answer>,
    // Behind the listener: it is closed when the next one may be opened.
    _only: Only,
}

/// The right to export, which a process has once.
#[derive(Debug)]
struct Only;

impl Only {
    fn take() -> Option<Only> {
        let own = std::process::id();
        (OWNER.swap(own, Ordering::Relaxed) != own).then_some(Only)
    }
}

impl Drop for Only {
    fn drop(&mut self) {
        OWNER.store(0, Ordering::Relaxed);
    }
}

/// A text on its way to a reader.
#[derive(Debug)]
struct Answer {
    stream: UnixStream,
    text: Vec<u8>,
    sent: usize,
}

impl Export {
    /// Opens the socket of this process.
    ///
    /// # Errors
    /// `AddrInUse`: the process has one already. The system's limit on open files.
    pub fn open() -> Result<Export, CmError> {
        let asked = "export metrics";
        let in_use = |answer| CmError::new(Code::AddrInUse, asked, answer);
        let only = Only::take().ok_or_else(|| {
            in_use("this process exports its metrics already")
                .cure("use the Export that it has; with Runtime::export, that runtime serves it")
        })?;
        let own = std::process::id();
        let more = (2..=NAMESAKES).map(|nth| format!("{own}-{nth}"));
        for process in std::iter::once(own.to_string()).chain(more) {
            match bind(&process) {
                Ok(listener) => return Ok(Export { listener, answers: Vec::new(), _only: only }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(CmError::from_io(asked, &error)),
            }
        }
        Err(in_use("other processes have all names for this one's number")
            .cure("give the container a network namespace of its own"))
    }

    /// One step, which never waits: gathers the text for a new reader, and sends earlier readers
    /// more of theirs. Without a reader it is one system call.
    pub fn step(&mut self, gather: impl FnOnce() -> Metrics) {
        if self.answers.len() < READERS
            && let Ok((stream, _)) = self.listener.accept()
            && peer_user(&stream).is_some_and(|reader| may_read(own_user(), reader))
            && stream.set_nonblocking(true).is_ok()
        {
            let text = gather().to_string().into_bytes();
            self.answers.push(Answer { stream, text, sent: 0 });
        }
        self.answers.retain_mut(Answer::goes_on);
    }
}

impl Answer {
    /// Sends as much as there is room for. False: everything is sent, or the reader is gone.
    fn goes_on(&mut self) -> bool {
        while let Some(rest) = self.text.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(0) => return false,
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        false
    }
}

/// The names of the processes in this network namespace that export metrics: see [`Export`].
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn exporting_processes() -> io::Result<Vec<String>> {
    let sockets = std::fs::read_to_string("/proc/net/unix")?;
    let process = |line: &str| {
        let (_, name) = line.rsplit_once(" @")?;
        let process = name.strip_prefix(PREFIX)?;
        // Anybody may open a socket of any name.
        let is_one = process.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        is_one.then(|| process.to_owned())
    };
    let mut found: Vec<String> = sockets.lines().filter_map(process).collect();
    found.sort_unstable();
    // Accepted connections have the same name.
    found.dedup();
    Ok(found)
}

/// The metrics of a process that exports them, as text. `process`: its number, or the name that
/// [`exporting_processes`] gives.
///
/// # Errors
/// `ConnectionRefused`: the process exports none. `PermissionDenied`: it belongs to another user.
/// `WouldBlock`: it did not answer within two seconds, because it does not step.
pub fn read_metrics(process: &str) -> io::Result<String> {
    let stream = UnixStream::connect_addr(&name(process)?)?;
    if !peer_user(&stream).is_some_and(|server| may_ask(own_user(), server)) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.take(TEXT_MAX).read_to_string(&mut text)?;
    if text.is_empty() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(text)
}

fn bind(process: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&name(process)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn name(process: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{process}"))
}

/// True if a process of user `own` shows its metrics to one of user `reader`.
fn may_read(own: libc::uid_t, reader: libc::uid_t) -> bool {
    reader == own || reader == 0
}

/// True if a process of user `own` believes what one of user `server` shows. Root asks everybody.
fn may_ask(own: libc::uid_t, server: libc::uid_t) -> bool {
    own == server || own == 0
}

/// The user of this process.
fn own_user() -> libc::uid_t {
    // SAFETY: it only reads a number.
    unsafe { libc::geteuid() }
}

/// The user at the other end.
fn peer_user(stream: &UnixStream) -> Option<libc::uid_t> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the call writes at most `len` bytes into a structure of that size, and only numbers;
    // the descriptor is open as long as the stream.
    let answer = unsafe {
        let option = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let to = (&raw mut peer).cast();
        libc::getsockopt(stream.as_raw_fd(), option.0, option.1, to, &raw mut len)
    };
    (answer == 0).then_some(peer.uid)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use doorbell_engine::metrics::Metrics;
    use doorbell_engine::worker::Stats;
    use doorbell_seam::error::Code;

    use super::{Export, bind, exporting_processes, may_ask, may_read, read_metrics};

    /// As with two containers that share their network.
    #[test]
    fn a_process_of_the_same_number_keeps_nobody_from_its_export() {
        let number = std::process::id().to_string();
        let _other = bind(&number).expect("the name is free");
        let mut export = Export::open().expect("another name is free");
        let again = Export::open().expect_err("a process has one");
        assert_eq!(again.code(), Code::AddrInUse, "{again}");
        let second = format!("{number}-2");
        let found = exporting_processes().expect("it can be read");
        assert!(found.contains(&number) && found.contains(&second), "{found:?}");
        let reader = thread::spawn(move || read_metrics(&second));
        while !reader.is_finished() {
            export.step(|| {
                let mut metrics = Metrics::new();
                metrics.worker("mine", &Stats::default());
                metrics
            });
        }
        let text = reader.join().expect("it does not panic").expect("it is served");
        assert!(text.contains("mine"), "{text}");
        drop(export);
        Export::open().expect("the first has ended");
    }

    #[test]
    fn only_the_same_user_and_root_read() {
        const ROOT: u32 = 0;
        let (one, other) = (1000, 1001);
        for (server, reader, reads) in [
            (one, one, true),
            (one, ROOT, true),
            (ROOT, ROOT, true),
            (one, other, false),
            (ROOT, one, false),
        ] {
            assert_eq!(may_read(server, reader), reads, "{reader} reads {server}");
            assert_eq!(may_ask(reader, server), reads, "{reader} asks {server}");
        }
    }
}
