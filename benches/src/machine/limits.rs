//! What many connections need: open files, and memory.
#![expect(unsafe_code, reason = "getrlimit and setrlimit are C")]

use std::fs;

use crate::error::Failure;

/// The most files that a side has open besides those of its connections.
const FILES_MORE: u64 = 64;

/// Raises the limit on open files so that this process can have that many connections, one file
/// each.
///
/// # Errors
/// The system does not allow as many.
pub(crate) fn files_for(connections: u64) -> Result<(), Failure> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write one rlimit, which lives on this stack (getrlimit(2)).
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
        "{connections} connections in this process need {need} open files, but it may have {may}; \
         run ulimit -n {need} as root first, or ask for fewer with --idle-qps"
    )))
}

/// Resident memory of this process, in bytes (`man 5 proc`, statm); 0 if the system does not tell.
pub(crate) fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    // SAFETY: sysconf takes a number and touches no memory of this program.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    pages.unwrap_or_default() * u64::try_from(page).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_is_resident() {
        let before = resident();
        let bytes = std::hint::black_box(vec![1_u8; 64 << 20]);
        let after = resident();
        assert!(after >= before + (bytes.len() as u64) / 2, "{before} {after}");
    }

    #[test]
    fn a_low_limit_is_reported_with_its_cure() {
        assert!(files_for(1).is_ok());
        let text = files_for(1 << 40).unwrap_err().to_string();
        assert!(text.contains("ulimit -n") && text.contains("open files"), "{text}");
    }
}
