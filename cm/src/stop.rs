//! The end of a running program: by a call, or by a signal.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_fabric::CmError;
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Ends a [`crate::Runtime`] from any thread, or from a handler. Clones are handles to the same
/// runtime.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    /// The signal that asked for the end; 0 for none.
    signal: Arc<AtomicUsize>,
}

/// Why [`crate::Runtime::run`] returned without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The program called [`Stop::stop`].
    Asked,
    /// The process received this signal: SIGINT (2) or SIGTERM (15).
    Signal(i32),
}

impl Stop {
    /// Asks the runtime to end, and returns immediately. The runtime notices some milliseconds
    /// later. Then its workers drain, for as long as [`crate::Runtime::drain_within`] allows.
    pub fn stop(&self) {
        // Relaxed, here and below: the flag guards no other memory. The threads are joined before
        // anybody reads their results.
        self.flag.store(true, Ordering::Relaxed);
    }

    /// True if the runtime was asked to end.
    pub fn is_stopped(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// The flag, for loops that watch it.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    pub(crate) fn why(&self) -> Why {
        match i32::try_from(self.signal.load(Ordering::Relaxed)) {
            Ok(0) | Err(_) => Why::Asked,
            Ok(signal) => Why::Signal(signal),
        }
    }
}

/// The [`Signals`] of this process.
struct Known {
    live: usize,
    /// Actions of the last that was dropped. They give the signals their default effect, until the
    /// next one is made.
    left: Vec<SigId>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known { live: 0, left: Vec::new() });

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// SIGINT and SIGTERM stop a runtime while this exists.
pub(crate) struct Signals {
    /// A signal has come, so the next one has its default effect.
    came: Arc<AtomicBool>,
    ids: Vec<SigId>,
}

impl Signals {
    /// # Errors
    /// The system's refusal to install a signal handler.
    pub(crate) fn catch(stop: &Stop) -> Result<Signals, CmError> {
        known().live += 1;
        let mut signals = Signals { came: Arc::default(), ids: Vec::new() };
        for signal in [SIGINT, SIGTERM] {
            let failed = |error| CmError::from_io(format!("stop on signal {signal}"), &error);
            // Actions run in this order, so the first signal does not meet its own flag here. The
            // second one ends the process.
            let second = flag::register_conditional_default(signal, signals.came.clone());
            signals.ids.push(second.map_err(failed)?);
            let which = flag::register_usize(signal, stop.signal.clone(), signal as usize);
            signals.ids.push(which.map_err(failed)?);
            for set in [&signals.came, &stop.flag] {
                signals.ids.push(flag::register(signal, set.clone()).map_err(failed)?);
            }
        }
        unregister(&mut known().left);
        Ok(signals)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let mut known = known();
        known.live -= 1;
        if known.live == 0 {
            // A signal without an action is ignored, so the actions stay for the default effect.
            self.came.store(true, Ordering::Relaxed);
            known.left.append(&mut self.ids);
        } else {
            unregister(&mut self.ids);
        }
    }
}

fn unregister(ids: &mut Vec<SigId>) {
    for id in ids.drain(..) {
        low_level::unregister(id);
    }
}
