//! The other side: a thread, a process of this machine, or another host; and how the connecting
//! side and the serving side find each other.
#![expect(unsafe_code, reason = "prctl is C")]

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use doorbell::{Fabric, Listener};
use doorbell_tune::CoreList;

use crate::error::{Failure, say};
use crate::meet::line::Line;

/// How long another host may take to answer a call.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// How long another host may take to set up a run.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Where a serving side runs.
pub(crate) struct Place {
    /// The address it listens on.
    pub(crate) ip: IpAddr,
    /// A core for each worker.
    pub(crate) cores: Vec<usize>,
    /// True for a device in software.
    pub(crate) soft: bool,
}

/// The other side, for as long as this lives.
pub(crate) struct Other {
    pub(crate) line: Line,
    /// `threads`, `processes` or `hosts`.
    pub(crate) sides: &'static str,
    child: Option<Child>,
}

impl Drop for Other {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It has nothing to save. Both calls fail if it has ended by itself, which is fine.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Other {
    /// A thread of this process that runs `serve`. It ends when the line does.
    pub(crate) fn thread(serve: impl FnOnce(&mut Line) + Send + 'static) -> Result<Other, Failure> {
        let lost = |error: io::Error| Failure::system("a socket pair", &error, "ulimit -n");
        let (near, far) = UnixStream::pair().map_err(lost)?;
        let mut far = Line::new(far.try_clone().map_err(lost)?, far);
        // Detached: it ends when the line does, and reports over the line.
        thread::spawn(move || serve(&mut far));
        let line = Line::new(near.try_clone().map_err(lost)?, near);
        Ok(Other { line, sides: "threads", child: None })
    }

    /// A process of this machine: this program again, in its hidden role. Call it on the main
    /// thread: the child dies when the thread that started it ends.
    pub(crate) fn process(device: &str, place: &Place) -> Result<Other, Failure> {
        let failed = |error: io::Error| {
            Failure::system("start the serving process", &error, "or use --threads")
        };
        let mut child = Command::new(std::env::current_exe().map_err(failed)?)
            .args(["serve", "--device", device, "--addr", &place.ip.to_string()])
            .args(["--cores", &comma_list(&place.cores)])
            .args(["--parent", &std::process::id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("the serving process has no pipes"));
        };
        Ok(Other { line: Line::new(from, to), sides: "processes", child: Some(child) })
    }

    /// Another host, which runs `--listen`. Also returns the local address that leads there.
    pub(crate) fn call(addr: SocketAddr) -> Result<(Other, IpAddr), Failure> {
        let failed = |error: io::Error| {
            let cure = "start doorbell-bench there with --listen first, and check address and port";
            Failure::system(format!("connect to {addr}"), &error, cure)
        };
        let stream = TcpStream::connect_timeout(&addr, CALL_LIMIT).map_err(failed)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let local = stream.local_addr().map_err(failed)?.ip();
        let line = Line::new(stream.try_clone().map_err(failed)?, stream);
        Ok((Other { line, sides: "hosts", child: None }, local))
    }
}

/// `--listen`: waits for one caller. Returns the line to it.
pub(crate) fn listen<F: Fabric>(
    fabric: &F,
    place: &Place,
    addr: SocketAddr,
) -> Result<Line, Failure> {
    // If the device does not know the address, say so before anybody waits on it.
    drop(Listener::bind(fabric, SocketAddr::new(place.ip, 0))?);
    let failed = |error: io::Error| {
        let cure = "choose another port, or an address of this host";
        Failure::system(format!("listen on {addr}"), &error, cure)
    };
    let listener = TcpListener::bind(addr).map_err(failed)?;
    let at = listener.local_addr().map_err(failed)?;
    say(&format!("{} waits at {at} for doorbell-bench --connect\n", fabric.caps().device))?;
    let (stream, from) = listener.accept().map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    say(&format!("serving {from} on cores {}\n", CoreList(&place.cores)))?;
    Ok(Line::new(stream.try_clone().map_err(failed)?, stream))
}

/// In a serving process: the line to the process that started it. From now on this process dies
/// with that one, even in the middle of a run. Returns nothing if the parent is gone already.
pub(crate) fn parent(parent: u32) -> Option<Line> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory (prctl(2)).
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // If the parent ended before that call, the signal never comes.
    (parent_id() == parent).then(|| Line::new(io::stdin(), io::stdout()))
}

fn comma_list(cores: &[usize]) -> String {
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}
