//! Where NBD clients connect: TCP or a socket file.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A listening socket.
#[derive(Debug)]
pub enum Listen {
    /// On an address.
    Tcp(TcpListener),
    /// On a file, which goes with it.
    Unix(UnixListener, PathBuf),
}

impl Listen {
    /// Listens on an address.
    ///
    /// # Errors
    /// The system's error.
    pub fn tcp(addr: SocketAddr) -> io::Result<Listen> {
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        Ok(Listen::Tcp(listener))
    }

    /// Listens on a socket file. One that a former gateway left is replaced.
    ///
    /// # Errors
    /// The system's error.
    pub fn unix(path: &Path) -> io::Result<Listen> {
        let left = path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket());
        if left && UnixStream::connect(path).is_err() {
            std::fs::remove_file(path)?;
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Listen::Unix(listener, path.to_owned()))
    }

    /// The address, if it has one.
    pub fn addr(&self) -> Option<SocketAddr> {
        match self {
            Listen::Tcp(listener) => listener.local_addr().ok(),
            Listen::Unix(..) => None,
        }
    }

    /// The next client, within `limit`.
    pub(super) fn accept(&self, limit: Duration) -> io::Result<Option<Stream>> {
        let fd = match self {
            Listen::Tcp(listener) => listener.as_fd(),
            Listen::Unix(listener, _) => listener.as_fd(),
        };
        wait(fd, false, limit)?;
        let accepted = match self {
            Listen::Tcp(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }),
            Listen::Unix(listener, _) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        };
        match accepted {
            Ok(stream) => Ok(Some(stream)),
            Err(error) if is_later(&error) => Ok(None),
            // A client that has left already is no failure of the gateway.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Listen {
    fn drop(&mut self) {
        if let Listen::Unix(_, path) = self {
            // Somebody may have removed it.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(listener) => match listener.local_addr() {
                Ok(addr) => write!(f, "nbd://{addr}"),
                Err(_) => f.write_str("nbd"),
            },
            Listen::Unix(_, path) => write!(f, "nbd+unix:///?socket={}", path.display()),
        }
    }
}

/// A client's socket.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Calls return at once from now on.
    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nonblocking(true),
            Stream::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    /// Reads and writes fail after that time without progress.
    pub(super) fn set_limit(&self, limit: Duration) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))
            }
            Stream::Unix(stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))
            }
        }
    }

    /// Waits until bytes can be read, or written if `out`, or the time is over.
    pub(super) fn wait(&self, out: bool, limit: Duration) -> io::Result<()> {
        wait(self.as_fd(), out, limit)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(to),
            Stream::Unix(stream) => stream.read(to),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(from),
            Stream::Unix(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// True if a socket only has nothing to do now.
pub(super) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn wait(fd: BorrowedFd<'_>, out: bool, limit: Duration) -> io::Result<()> {
    let mut events = PollFlags::IN;
    events.set(PollFlags::OUT, out);
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    match poll(&mut [PollFd::from_borrowed_fd(fd, events)], Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
