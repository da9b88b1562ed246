//! Waiting on descriptors.
#![expect(unsafe_code, reason = "ppoll(2) and epoll(7) have no safe form in std")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::{Duration, Instant};

use doorbell_engine::worker::{Handler, Worker};
use doorbell_fabric::CmError;
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;

/// One descriptor for all that wakes a worker, to hand to epoll, `tokio`, `mio` or io_uring. It is
/// readable when there is a reason to turn a worker that is [armed](Worker::arm). Register it once;
/// never read from it. It may outlive the worker.
#[derive(Debug)]
pub struct WakeFd(OwnedFd);

impl WakeFd {
    /// The descriptor of a worker: a set of epoll over [`Worker::wake_fds`].
    ///
    /// # Errors
    /// `NotSupported`: the device cannot wake anybody; or the system's limit on open files.
    pub fn of<P: Provider, H: Handler<P>>(worker: &Worker<P, H>) -> Result<WakeFd, CmError> {
        let asked = "make a descriptor for a worker";
        let fds = worker.wake_fds().ok_or_else(|| {
            CmError::new(Code::NotSupported, asked, "this device cannot wake anybody")
                .cure("turn the worker without sleeping")
        })?;
        let failed = || CmError::from_io(asked, &io::Error::last_os_error());
        // SAFETY: takes a number only.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if set < 0 {
            return Err(failed());
        }
        // SAFETY: the descriptor was made above, and nobody else has it.
        let set = unsafe { OwnedFd::from_raw_fd(set) };
        let [device, queue] = fds.all();
        for fd in [Some(device), Some(queue).filter(|queue| *queue != device)] {
            let Some(fd) = fd else { continue };
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            // SAFETY: the event is a local value, which the call only reads.
            if unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } != 0
            {
                return Err(failed());
            }
        }
        Ok(WakeFd(set))
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for WakeFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// What a wait has found at a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Readable,
    /// It is closed or broken: nothing will come any more, and each wait on it ends at once.
    Gone,
}

/// Waits until one of the descriptors is readable or gone, or `limit` is over (none: for ever).
/// True if one is. It allocates nothing.
pub(crate) fn readable<const N: usize>(
    fds: [RawFd; N],
    limit: Option<Duration>,
) -> io::Result<bool> {
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    wait_on(&mut fds.map(entry), limit, end)
}

/// As [`readable`], and says what it has found at each. `end`: the time at which `limit` is over,
/// since on some machines each question for the time is a system call.
pub(crate) fn found_until<const N: usize>(
    fds: [RawFd; N],
    limit: Option<Duration>,
    end: Option<Instant>,
) -> io::Result<[Found; N]> {
    let mut entries = fds.map(entry);
    wait_on(&mut entries, limit, end)?;
    Ok(entries.map(|entry| match entry.revents {
        0 => Found::Nothing,
        events if events & libc::POLLIN != 0 => Found::Readable,
        _ => Found::Gone,
    }))
}

/// As [`readable`], for a number of descriptors that is not known before. It allocates.
pub(crate) fn any_readable(fds: &[RawFd], limit: Duration) -> io::Result<bool> {
    let mut entries: Vec<_> = fds.iter().copied().map(entry).collect();
    wait_on(&mut entries, Some(limit), Instant::now().checked_add(limit))
}

fn entry(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

fn wait_on(
    entries: &mut [libc::pollfd],
    limit: Option<Duration>,
    end: Option<Instant>,
) -> io::Result<bool> {
    let mut left = limit;
    loop {
        let wait = left.map(|left| libc::timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let wait = wait.as_ref().map_or(ptr::null(), ptr::from_ref);
        let (entry, count) = (entries.as_mut_ptr(), entries.len() as libc::nfds_t);
        // SAFETY: the slice has as many entries as said; the time is a local value or none.
        let got = unsafe { libc::ppoll(entry, count, wait, ptr::null()) };
        match got {
            1.. => return Ok(true),
            0 => return Ok(false),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
        left = end.map(|end| end.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_wait_ends_with_something_to_read_or_with_its_limit() {
        let (reader, mut writer) = io::pipe().unwrap();
        let fds = [reader.as_raw_fd()];
        assert!(!readable(fds, Some(Duration::ZERO)).unwrap());
        let begin = Instant::now();
        assert!(!readable(fds, Some(Duration::from_millis(20))).unwrap());
        assert!(begin.elapsed() >= Duration::from_millis(20));
        writer.write_all(&[1]).unwrap();
        assert!(readable(fds, None).unwrap());
    }
}
