//! A process that may open no more files is told so, with the cure.

use std::process::Command;

use doorbell_cm::Exposed;
use doorbell_seam::provider::Access;
use doorbell_soft::SoftDevice;

/// Set in the process with the low limit.
const LOW: &str = "DOORBELL_TEST_FEW_DESCRIPTORS";
const NAME: &str = "a_lack_of_descriptors_is_told_with_its_cure";

/// Runs itself again with a low limit, which belongs to a whole process.
#[test]
fn a_lack_of_descriptors_is_told_with_its_cure() {
    if std::env::var_os(LOW).is_none() {
        let this = std::env::current_exe().expect("this program");
        let limited = "ulimit -n 40 && exec \"$0\" --exact \"$1\" --nocapture";
        let mut child = Command::new("sh");
        child.arg("-c").arg(limited).arg(this).arg(NAME).env(LOW, "1");
        let ran = child.output().expect("sh runs");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        return;
    }
    let nic = SoftDevice::open().expect("a device");
    // Each has a memfd.
    let exposed = || Exposed::<SoftDevice>::new(&nic, 4096, Access::REMOTE_READ);
    let (mut all, mut failed) = (Vec::new(), None);
    while failed.is_none() && all.len() < 100 {
        match exposed() {
            Ok(exposed) => all.push(exposed),
            Err(error) => failed = Some(error),
        }
    }
    let error = failed.expect("there are not 100 descriptors");
    assert_eq!(error.code().errno(), libc::EMFILE, "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
}
