//! What many connections take: open files, and memory.
#![expect(unsafe_code, reason = "getrlimit and setrlimit are C")]

use std::fs;

use crate::error::Failure;

/// Files a side has open besides those of its connections, at most.
const FILES_MORE: u64 = 64;

/// Makes sure that this process may open a file for each of so many connections, by raising its
/// own limit as far as it may.
///
/// # Errors
/// It may not.
pub(crate) fn files_for(connections: u64) -> Result<(), Failure> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write one rlimit, which is on this stack (getrlimit(2)).
    let set = unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return Ok(());
        }
        let most = limit.rlim_max;
        let raised = libc::rlimit { rlim_cur: most, rlim_max: most };
        limit.rlim_cur == most || libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) == 0
    };
    let may = if set { limit.rlim_max } else { limit.rlim_cur };
    let need = connections + FILES_MORE;
    if need <= may {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{connections} connections in this process need {need} open files, and it may have {may}; \
         say ulimit -n {need} as root first, or ask for fewer with --idle-qps"
    )))
}

/// Memory of this process that is there, in bytes (`man 5 proc`, statm); 0 where the system does
/// not tell.
pub(crate) fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    // SAFETY: sysconf takes a number and touches no memory of ours.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.unwrap_or_default() * u64::try_from(page).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_touched_is_there() {
        let before = resident();
        let bytes = std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = resident();
        assert!(after >= before + (bytes.len() as u64) / 2, "{before} {after}");
    }

    #[test]
    fn a_limit_too_low_is_told_with_its_cure() {
        assert!(files_for(1).is_ok());
        let text = files_for(1 << 40).unwrap_err().to_string();
        assert!(text.contains("ulimit -n") && text.contains("open files"), "{text}");
    }
}
