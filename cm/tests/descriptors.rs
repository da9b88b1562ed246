//! A process that may open no more files is told so, with the cure. The limit belongs to the whole
//! process, so this program has one test.
#![expect(unsafe_code, reason = "setrlimit(2) has no safe form in std")]

use doorbell_cm::Exposed;
use doorbell_seam::provider::Access;
use doorbell_soft::SoftDevice;

/// Leaves this process no descriptor; returns the limit of before.
fn leave_none() -> libc::rlimit {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one rlimit, which is on this stack (getrlimit(2)).
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) }, 0);
    set(&libc::rlimit { rlim_cur: 0, ..before });
    before
}

fn set(limit: &libc::rlimit) {
    // SAFETY: the call reads one rlimit (setrlimit(2)).
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }, 0);
}

#[test]
fn a_lack_of_descriptors_is_told_with_its_cure() {
    let nic = SoftDevice::open().unwrap();
    let before = leave_none();
    let exposed = Exposed::<SoftDevice>::new(&nic, 4096, Access::REMOTE_READ).map(drop);
    set(&before);
    let error = exposed.unwrap_err();
    assert_eq!(error.code().errno(), libc::EMFILE, "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
}
