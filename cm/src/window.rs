//! Memory windows: part of exposed memory, opened to peers for a while.

use std::fmt;
use std::sync::{Arc, Mutex};

use doorbell_fabric::{CmError, Fabric};
use doorbell_seam::provider::{Window as _, WindowKind};

use crate::exposed::Exposed;

/// A memory window (`ibv_alloc_mw`, MW-1), closed at first. [`crate::Queues::bind_window`] opens
/// it. A window of type 2 ends with the queue pair that opened it last.
pub struct Window<F: Fabric> {
    // Before what it is bound to: the device lets go of the window first.
    state: Arc<Mutex<State<F>>>,
    kind: WindowKind,
    rkey: u32,
    bound: Option<Exposed<F>>,
}

/// The state that a queue pair shares with its windows of type 2.
pub(crate) struct State<F: Fabric> {
    /// None once that queue pair is gone.
    pub(crate) raw: Option<F::Window>,
    /// The queue pair that has opened it last.
    pub(crate) on: Option<u32>,
}

impl<F: Fabric> Window<F> {
    /// A window of that kind.
    ///
    /// # Errors
    /// `NotSupported`: the device has none; `NoMemory`: none left.
    pub fn new(device: &F, kind: WindowKind) -> Result<Window<F>, CmError> {
        let raw = device.create_window(kind)?;
        let rkey = raw.rkey();
        let state = Arc::new(Mutex::new(State { raw: Some(raw), on: None }));
        Ok(Window { state, kind, rkey, bound: None })
    }

    /// Its kind.
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// The key under which it was bound last.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The key under which a window of type 2 is bound next: the last one with its low eight bits
    /// advanced by one (`ibv_inc_rkey`).
    pub(crate) fn next_rkey(&self) -> u32 {
        self.rkey & !0xff | self.rkey.wrapping_add(1) & 0xff
    }

    pub(crate) fn state(&self) -> &Arc<Mutex<State<F>>> {
        &self.state
    }

    /// Records that it is now bound to that memory, with that key. The memory stays registered
    /// meanwhile.
    pub(crate) fn note(&mut self, rkey: u32, memory: Exposed<F>) {
        (self.rkey, self.bound) = (rkey, Some(memory));
    }
}

impl<F: Fabric> fmt::Debug for Window<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("kind", &self.kind())
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}
