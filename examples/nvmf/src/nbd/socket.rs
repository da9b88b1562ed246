//! Where NBD clients connect: TCP or a socket file.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

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
        wait(fd, limit)?;
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
}

/// A descriptor that is readable when a stream is ready.
#[derive(Debug)]
pub(super) struct Watch {
    set: OwnedFd,
    /// What the set waits for.
    flags: epoll::EventFlags,
}

impl Watch {
    pub(super) fn new(stream: &Stream) -> io::Result<Watch> {
        let (set, flags) = (epoll::create(epoll::CreateFlags::CLOEXEC)?, epoll::EventFlags::IN);
        epoll::add(&set, stream, epoll::EventData::new_u64(0), flags)?;
        Ok(Watch { set, flags })
    }

    /// The descriptor, if the stream is waited for: until it has bytes, if `input`, and until it
    /// takes bytes, if `output`.
    pub(super) fn until(
        &mut self,
        stream: &Stream,
        input: bool,
        output: bool,
    ) -> io::Result<Option<BorrowedFd<'_>>> {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, input);
        flags.set(epoll::EventFlags::OUT, output);
        if flags.is_empty() {
            return Ok(None);
        }
        if flags != self.flags {
            epoll::modify(&self.set, stream, epoll::EventData::new_u64(0), flags)?;
            self.flags = flags;
        }
        Ok(Some(self.set.as_fd()))
    }
}

/// Waits until a descriptor is readable, or the time is over.
pub(super) fn wait(fd: BorrowedFd<'_>, limit: Duration) -> io::Result<()> {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until it is readable, for `limit` at most.
    fn is_readable(fd: Option<BorrowedFd<'_>>, limit: Duration) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(fd.unwrap(), PollFlags::IN)];
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: 0 };
        poll(&mut fds, Some(&limit)).unwrap() == 1
    }

    #[test]
    fn a_watch_waits_for_what_it_is_asked_for() {
        let (stream, mut client) = UnixStream::pair().unwrap();
        let mut stream = Stream::Unix(stream);
        stream.set_nonblocking().unwrap();
        let mut watch = Watch::new(&stream).unwrap();
        let (now, long) = (Duration::ZERO, Duration::from_secs(60));
        assert!(watch.until(&stream, false, false).unwrap().is_none());
        assert!(!is_readable(watch.until(&stream, true, false).unwrap(), now));
        assert!(is_readable(watch.until(&stream, true, true).unwrap(), now));

        let mut sent = 0;
        while let Ok(count) = stream.write(&[7; 4096]) {
            sent += count;
        }
        assert!(!is_readable(watch.until(&stream, true, true).unwrap(), now), "it is full");
        client.write_all(b"x").unwrap();
        assert!(!is_readable(watch.until(&stream, false, true).unwrap(), now));
        assert!(is_readable(watch.until(&stream, true, true).unwrap(), long));
        client.read_exact(&mut vec![0; sent]).unwrap();
        assert!(is_readable(watch.until(&stream, false, true).unwrap(), long));
    }
}
