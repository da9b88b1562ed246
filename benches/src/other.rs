//! The other side: a thread, a process of this machine, or another host; and the way to it.
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

use crate::cli::ServeArgs;
use crate::error::{Failure, say};
use crate::serve::{self, Place};
use crate::wire::Line;

/// How long another host may take to answer a call, and to set up a run.
const CALL_LIMIT: Duration = Duration::from_secs(5);
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

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
            // It holds nothing that must be kept. If it has ended by itself, both say so.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Other {
    /// A thread of this process. It ends with the line.
    pub(crate) fn thread<F: Fabric>(fabric: &F, place: Place) -> Result<Other, Failure> {
        let lost = |error: io::Error| Failure::system("a socket pair", &error, "ulimit -n");
        let (near, far) = UnixStream::pair().map_err(lost)?;
        let mut far = Line::new(far.try_clone().map_err(lost)?, far);
        let fabric = fabric.clone();
        // Detached: it ends when the line does, and what it has to say comes over the line.
        thread::spawn(move || serve::serve(&fabric, &place, &mut far));
        let line = Line::new(near.try_clone().map_err(lost)?, near);
        Ok(Other { line, sides: "threads", child: None })
    }

    /// A process of this machine: this program again, in its hidden role. To be called on the
    /// main thread, whose end is the process's.
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

    /// Another host, which runs `--listen`; also the local address that leads there.
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

/// `--listen`: serves one other side that calls, and ends with it.
pub(crate) fn listen<F: Fabric>(
    fabric: &F,
    place: &Place,
    addr: SocketAddr,
) -> Result<(), Failure> {
    // The device's answer to the address comes before anybody waits on it.
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
    let mut line = Line::new(stream.try_clone().map_err(failed)?, stream);
    serve::serve(fabric, place, &mut line)
}

/// The serving process: serves the one that started it, and dies with it, even in the middle of
/// a run.
pub(crate) fn serve_parent<F: Fabric>(
    fabric: &F,
    args: &ServeArgs,
    soft: bool,
) -> Result<(), Failure> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory (prctl(2)).
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // Had the parent ended before, the signal would never come.
    if parent_id() != args.parent {
        return Ok(());
    }
    let place = Place { ip: args.addr, cores: args.cores.clone(), soft };
    let mut line = Line::new(io::stdin(), io::stdout());
    // What fails is told over the line, and the parent says it.
    let _ = serve::serve(fabric, &place, &mut line);
    Ok(())
}

fn comma_list(cores: &[usize]) -> String {
    cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}
