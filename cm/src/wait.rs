//! Waiting on descriptors.
#![expect(unsafe_code, reason = "poll(2) has no safe form in std")]

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Waits until one of the descriptors is readable, or `limit` is over (`None`: for ever). True if
/// one is.
pub(crate) fn readable(fds: &[RawFd], limit: Option<Duration>) -> io::Result<bool> {
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    let entry = |fd: &RawFd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 };
    let mut entries: Vec<libc::pollfd> = fds.iter().map(entry).collect();
    loop {
        // Rounded up: a wait must not end before its time and spin.
        let left = |end: Instant| end.saturating_duration_since(Instant::now());
        let millis = end.map_or(-1, |end| {
            i32::try_from(left(end).as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        // SAFETY: the vector holds as many entries as said.
        let got = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as _, millis) };
        match got {
            0 if end.is_some_and(|end| left(end).is_zero()) => return Ok(false),
            0 => {}
            1.. => return Ok(true),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
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
        assert!(!readable(&fds, Some(Duration::ZERO)).unwrap());
        let begin = Instant::now();
        assert!(!readable(&fds, Some(Duration::from_millis(20))).unwrap());
        assert!(begin.elapsed() >= Duration::from_millis(20));
        writer.write_all(&[1]).unwrap();
        assert!(readable(&fds, None).unwrap());
    }
}
