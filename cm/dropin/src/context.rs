//! Open devices.
#![expect(unsafe_code, reason = "programs name contexts by address")]

use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

use doorbell_soft::SoftDevice;

use crate::abi::ibv_context;
use crate::abi_context::verbs_context;
use crate::border::{Errno, INVALID, Noun, Object, object};
use crate::per_process::PerProcess;
use crate::progress::{self, Progress};
use crate::queue::AsyncQueue;

/// How long a connection waits for a program that is about to listen.
const LISTENER_LIMIT: Duration = Duration::from_millis(200);

/// The device of this process, which all contexts share: their queue pairs can connect, and a
/// region has one key.
pub(crate) fn device() -> Result<&'static Progress, Errno> {
    static DEVICE: PerProcess<Progress> = PerProcess::new();
    let progress = DEVICE.get_or_make(|| {
        let device = SoftDevice::open()?;
        device.connect_by_number()?;
        device.wait_for_listeners(LISTENER_LIMIT);
        Progress::new(device)
    })?;
    progress::start(progress);
    Ok(progress)
}

/// An open device.
pub(crate) struct Context {
    pub(crate) progress: &'static Progress,
    pub(crate) events: Arc<AsyncQueue>,
}

impl Noun for Context {
    type C = verbs_context;
    const TAG: u64 = 0x6462_5f63_7478_0003;
}

impl Context {
    pub(crate) fn device(&self) -> &SoftDevice {
        &self.progress.device
    }

    pub(crate) fn progress(&self) -> &'static Progress {
        self.progress
    }
}

/// The context at an address that the program gave.
///
/// # Safety
/// As for [`object`].
pub(crate) unsafe fn context<'a>(at: *mut ibv_context) -> Result<&'a Object<Context>, Errno> {
    if at.is_null() {
        return Err(INVALID);
    }
    let outer = at.wrapping_byte_sub(offset_of!(verbs_context, context));
    // SAFETY: the context lies in a `verbs_context` of ours.
    unsafe { object::<Context>(outer.cast()) }
}
