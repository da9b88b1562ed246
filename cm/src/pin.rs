//! Moves a worker's thread to its core.

use core_affinity::CoreId;
use doorbell_fabric::CmError;
use doorbell_seam::error::Code;

/// `core_affinity` aborts for cores beyond its `cpu_set_t`.
const CORES_MAX: usize = 1024;

/// Moves the calling thread to a core, and checks that it is there.
pub(crate) fn pin(core: usize) -> Result<(), CmError> {
    let before = cores();
    if core < CORES_MAX && core_affinity::set_for_current(CoreId { id: core }) && cores() == [core]
    {
        return Ok(());
    }
    let answer = format!("this thread may run on cores {before:?}");
    Err(CmError::new(Code::Invalid, format!("run a worker on core {core}"), answer)
        .cure("choose one of these, or allow more with taskset(1)"))
}

/// The cores that the calling thread may run on.
fn cores() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_moves_to_its_core_or_is_told_which_there_are() {
        let core = cores()[0];
        assert_eq!(
            thread::spawn(move || pin(core).map(|()| cores())).join().unwrap(),
            Ok(vec![core])
        );
        for core in [1023, 1024, 1 << 30] {
            let error = thread::spawn(move || pin(core)).join().unwrap().unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&format!("core {core}")) && text.contains("[0"), "{text}");
        }
    }
}
