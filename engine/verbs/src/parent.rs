//! Thread domains and parent domains (`ibv_alloc_td`, `ibv_alloc_parent_domain`).

use crate::rdma_core::ibv_td;
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;

use super::handles::Owned;
use super::objects::{self, Pd};
use super::shim::refused;
use crate::error::{Code, SetupError};

/// A thread domain of an RDMA device.
#[derive(Clone)]
pub struct VerbsTd(Arc<Owned<ibv_td>>);

impl VerbsTd {
    /// What the device of that name answered when it was asked for one.
    pub(super) fn new(made: Result<Owned<ibv_td>, i32>, name: &str) -> Result<VerbsTd, SetupError> {
        let td = made.map_err(|errno| failed(format!("a thread domain on {name}"), errno))?;
        Ok(VerbsTd(Arc::new(td)))
    }

    pub(super) fn users(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

/// A parent domain over a protection domain, with that thread domain. `name` is the device's.
pub(super) fn alloc(pd: &Pd, td: Option<&VerbsTd>, name: &str) -> Result<Pd, SetupError> {
    let asked = || format!("a parent domain on {name}");
    if td.is_some_and(|td| td.0.context() != pd.context()) {
        let answer = "the thread domain is of another device";
        return Err(SetupError::new(Code::Invalid, asked(), answer));
    }
    let parent = objects::alloc_parent_domain(pd, td.map(|td| &td.0));
    parent.map(Arc::new).map_err(|errno| failed(asked(), errno))
}

/// Drivers without these domains have several answers for that.
fn failed(asked: String, errno: i32) -> SetupError {
    match errno {
        libc::EOPNOTSUPP | libc::ENOSYS => {
            SetupError::new(Code::NotSupported, asked, "the driver has none")
                .cure("use the protection domain itself: it can do the same, with locks")
        }
        errno => refused(asked, errno),
    }
}
