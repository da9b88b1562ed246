//! A device that records its calls: how many messages took which path of the seam.
#![expect(unsafe_code, reason = "passes posts on")]

use core::mem;

use spin::Mutex;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::call::{Call, Command, Lane, Look};
use super::wrap::{Hook, Wrapped};
use super::{InlineSend, Poller, PollerEx, Provider, Qp, WcEx, WcFields};
use crate::error::SetupError;
use crate::wc::Wc;
use crate::wr::PostError;

/// What one call moved: messages, completions, or nothing for a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Passed {
    /// The path of the call.
    pub lane: Lane,
    /// How many messages or completions.
    pub count: usize,
    /// True for an inline message without immediate data or a completion that follows another of
    /// the same queue pair. A device may be prepared for such a message.
    pub repeats: bool,
}

/// Records the calls.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Record>>);

#[derive(Default)]
struct Record {
    passed: Vec<Passed>,
    commands: Vec<Command>,
    /// The queue pair of the last message, if that was inline.
    inline: Option<u32>,
}

/// The device with a recorder.
pub type Trace<P> = Wrapped<P, Recorder>;

impl<P: Provider> Trace<P> {
    /// Wraps a device.
    pub fn new(inner: P) -> Trace<P> {
        Wrapped::around(inner, Recorder::default())
    }

    /// The calls of the data path since this was last called.
    pub fn take_passed(&self) -> Vec<Passed> {
        mem::take(&mut self.hook.0.lock().passed)
    }

    /// The commands since this was last called.
    pub fn take_commands(&self) -> Vec<Command> {
        mem::take(&mut self.hook.0.lock().commands)
    }
}

impl Hook for Recorder {
    type Queue = ();

    unsafe fn send<Q: Qp>(&self, (): &(), qp: &mut Q, call: Call<'_>) -> Result<usize, PostError> {
        let num = qp.num();
        // SAFETY: the caller's promise, passed on.
        let taken = unsafe { call.make(qp) };
        let (lane, count) = (call.lane(), taken.unwrap_or_else(|error| error.accepted));
        let mut record = self.0.lock();
        let plain = matches!(call, Call::Inline(InlineSend { imm: None, signaled: false, .. }, _));
        let repeats = plain && record.inline == Some(num);
        if count > 0 {
            record.inline = matches!(call, Call::Inline(..)).then_some(num);
        }
        if count > 0 || lane == Lane::Doorbell {
            record.passed.push(Passed { lane, count, repeats });
        }
        taken
    }

    fn poll<Q: Poller>(
        &self,
        (): &(),
        poller: &mut Q,
        look: Look,
        out: &mut [Wc],
    ) -> Option<usize> {
        let count = look.make(poller, out)?;
        if count > 0 {
            let lane = look.lane();
            self.0.lock().passed.push(Passed { lane, count, repeats: false });
        }
        Some(count)
    }

    fn bind(
        &self,
        (): &(),
        post: impl FnOnce() -> Result<u32, PostError>,
    ) -> Result<u32, PostError> {
        let key = post()?;
        let mut record = self.0.lock();
        record.inline = None;
        record.passed.push(Passed { lane: Lane::Bind, count: 1, repeats: false });
        Ok(key)
    }

    fn next<Q: PollerEx>(&self, (): &(), poller: &mut Q, _: WcFields) -> Option<WcEx> {
        let wc = poller.next()?;
        self.0.lock().passed.push(Passed { lane: Lane::Next, count: 1, repeats: false });
        Some(wc)
    }

    fn command(&self, command: Command) -> Result<bool, SetupError> {
        self.0.lock().commands.push(command);
        Ok(true)
    }
}
