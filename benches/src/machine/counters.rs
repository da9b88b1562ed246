//! Hardware counters of the calling thread, where the system offers them.
#![expect(unsafe_code, reason = "perf_event_open is a bare system call")]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};

/// `PERF_TYPE_HARDWARE` and `PERF_COUNT_HW_CACHE_MISSES` (perf_event_open(2)).
const HARDWARE: u32 = 0;
const CACHE_MISSES: u64 = 3;

/// The bits `disabled`, `exclude_kernel` and `exclude_hv` of the flags.
const FLAGS: u64 = 1 | 1 << 5 | 1 << 6;

/// `PERF_EVENT_IOC_ENABLE`, `_DISABLE` and `_RESET`.
const ENABLE: libc::c_ulong = 0x2400;
const DISABLE: libc::c_ulong = 0x2401;
const RESET: libc::c_ulong = 0x2403;

/// `struct perf_event_attr` in its first published size.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint_type: u32,
    breakpoint: u64,
}

/// A counter of the thread that made it.
pub(crate) struct Counter(File);

impl Counter {
    /// Cache misses in user space.
    ///
    /// # Errors
    /// The reason that the system has none, in words.
    pub(crate) fn cache_misses() -> Result<Counter, String> {
        let attributes = Attributes {
            kind: HARDWARE,
            size: size_of::<Attributes>() as u32,
            config: CACHE_MISSES,
            sample_period: 0,
            sample_type: 0,
            read_format: 0,
            flags: FLAGS,
            wakeup: 0,
            breakpoint_type: 0,
            breakpoint: 0,
        };
        // This thread, any core, no group, closed on exec.
        let (thread, core, group, close_on_exec) = (0, -1, -1, 8);
        // SAFETY: the kernel reads the attributes, whose size they name, and writes nothing.
        let fd = unsafe {
            let at = &raw const attributes;
            libc::syscall(libc::SYS_perf_event_open, at, thread, core, group, close_on_exec)
        };
        if fd < 0 {
            let error = io::Error::last_os_error();
            return Err(format!(
                "not available ({error}); virtual machines often have none, and \
                 /proc/sys/kernel/perf_event_paranoid may forbid them"
            ));
        }
        // SAFETY: the descriptor is new, and nobody else closes it.
        Ok(Counter(unsafe { File::from_raw_fd(fd as i32) }))
    }

    /// Counts from 0.
    pub(crate) fn start(&mut self) {
        self.ask(RESET);
        self.ask(ENABLE);
    }

    /// Stops counting. Returns the count.
    pub(crate) fn stop(&mut self) -> Option<u64> {
        self.ask(DISABLE);
        let mut count = [0; 8];
        self.0.read_exact(&mut count).ok()?;
        Some(u64::from_ne_bytes(count))
    }

    fn ask(&self, what: libc::c_ulong) {
        // SAFETY: the descriptor is a counter's; these requests take a number and touch no memory
        // of this program.
        unsafe { libc::ioctl(self.0.as_raw_fd(), what, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_counts_or_says_why_it_is_not_there() {
        match Counter::cache_misses() {
            Ok(mut counter) => {
                counter.start();
                assert!(counter.stop().is_some());
            }
            Err(why) => assert!(why.starts_with("not available ("), "{why}"),
        }
    }
}
