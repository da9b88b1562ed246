//! The affinity mask of the calling thread, for any number of cores.
#![expect(unsafe_code, reason = "sched_getaffinity and sched_setaffinity are C")]

use std::io;

/// Bits in a word of a mask, which is an array of `unsigned long` (sched_setaffinity(2)).
pub(crate) const WORD: usize = libc::c_ulong::BITS as usize;

/// Length of the first try, words: 1024 cores, as in `cpu_set_t`.
const WORDS_FIRST: usize = 1024 / WORD;

/// Length of the last try, words: no kernel has 2²⁰ cores.
const WORDS_MAX: usize = (1 << 20) / WORD;

/// The cores that the calling thread may run on, ascending. Empty only if the kernel does not say.
///
/// Isolated cores (`isolcpus`) are not among them, unless the thread was started on them.
#[must_use]
pub fn cores() -> Vec<usize> {
    let mut words = WORDS_FIRST;
    while words <= WORDS_MAX {
        match read(words) {
            Ok(mask) => return to_cores(&mask),
            // EINVAL: the kernel's mask is longer.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => words *= 2,
            Err(_) => break,
        }
    }
    Vec::new()
}

fn read(words: usize) -> io::Result<Vec<libc::c_ulong>> {
    let mut mask: Vec<libc::c_ulong> = vec![0; words];
    let bytes = words * size_of::<libc::c_ulong>();
    // SAFETY: the mask has `bytes` initialised bytes and lives through the call, which writes at
    // most that many. Thread 0 is the caller.
    let answer = unsafe { libc::sched_getaffinity(0, bytes, mask.as_mut_ptr().cast()) };
    if answer == 0 { Ok(mask) } else { Err(io::Error::last_os_error()) }
}

/// Lets the calling thread run only on these cores, of any number.
pub(crate) fn set(cores: &[usize]) -> io::Result<()> {
    let mask = of(cores);
    let bytes = mask.len() * size_of::<libc::c_ulong>();
    // SAFETY: the mask has `bytes` bytes and lives through the call, which only reads it. Thread 0
    // is the caller.
    let answer = unsafe { libc::sched_setaffinity(0, bytes, mask.as_ptr().cast()) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A mask with these bits set, of at least 1024 bits.
pub(crate) fn of(bits: &[usize]) -> Vec<libc::c_ulong> {
    let last = bits.iter().max().copied().unwrap_or(0);
    let mut mask: Vec<libc::c_ulong> = vec![0; (last / WORD + 1).max(WORDS_FIRST)];
    bits.iter().for_each(|bit| mask[bit / WORD] |= 1 << (bit % WORD));
    mask
}

fn to_cores(mask: &[libc::c_ulong]) -> Vec<usize> {
    (0..mask.len() * WORD).filter(|core| mask[core / WORD] >> (core % WORD) & 1 == 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_holds_cores_beyond_1024() {
        for core in [0, 1, 63, 64, 1023, 1024, 5000] {
            assert_eq!(to_cores(&of(&[core])), [core]);
        }
        assert_eq!(to_cores(&of(&[5000, 3, 64])), [3, 64, 5000]);
    }

    #[test]
    fn cores_are_those_that_the_kernel_lists() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap();
        let listed = crate::list::parse(line.split_once(':').unwrap().1).unwrap();
        assert_eq!(cores(), listed);
    }
}
