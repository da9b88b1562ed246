//! A small limit on locked memory, set in a child process of this test.
#![cfg(all(feature = "std", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]
#![expect(unsafe_code, reason = "setrlimit and capset have no safe form in std")]

use std::env;
use std::process::Command;

use doorbell_alloc::{Ask, MapError, MapRequest, Shortfall};

const LIMIT: u64 = 64 << 10;
const LEN: usize = 1 << 20;
const CHILD: &str = "DOORBELL_ALLOC_TEST_CHILD";

/// Drops every capability of this thread, so that the limit applies to root too: CAP_IPC_LOCK lifts
/// it (capabilities(7)).
fn drop_capabilities() {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    // _LINUX_CAPABILITY_VERSION_3: effective, permitted and inheritable, twice 32 bits.
    let header = Header { version: 0x2008_0522, pid: 0 };
    let none = [0_u32; 6];
    // SAFETY: version 3 reads the header and the six words, and writes neither.
    let answer = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    assert_eq!(answer, 0);
}

fn limit_locked_memory() {
    let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
    // SAFETY: reads one rlimit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
}

fn in_the_child() {
    limit_locked_memory();
    drop_capabilities();
    let request = MapRequest::new(LEN).pages(Ask::Plain);

    let mapping = request.map().unwrap();
    assert!(!mapping.report().locked());
    let [note @ Shortfall::Lock { len: LEN, limit: Some(LIMIT), held: 0, errno: None }] =
        mapping.report().notes()
    else {
        panic!("{}", mapping.report());
    };
    assert!(note.to_string().contains("ulimit -l 2048"), "{note}");

    let error = request.strict(true).map().unwrap_err();
    assert!(matches!(error, MapError::Lock(_)), "{error:?}");
    assert!(request.strict(true).lock(false).map().is_ok());

    let small = MapRequest::new(4096).pages(Ask::Plain).strict(true).map().unwrap();
    assert!(small.report().locked() && small.report().notes().is_empty());
    println!("the child ran");
}

#[test]
fn a_lock_beyond_the_limit_is_noted_and_if_strict_an_error() {
    if env::var_os(CHILD).is_some() {
        return in_the_child();
    }
    let name = "a_lock_beyond_the_limit_is_noted_and_if_strict_an_error";
    let mut child = Command::new(env::current_exe().unwrap());
    let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("the child ran"), "{output:?}");
}
