//! Extended completion queues of the soft device: in the shared domain, with the time at which each
//! entry was made beside it.

use core::time::Duration;

use crate::error::{Code, SetupError};
use crate::handles::device::{Soft, check_depth};
use crate::handles::poller::{SoftCq, SoftPoller};
use crate::model::cq::{Queued, Stamps};
use crate::provider::wake::{Notifier, WakeFds};
use crate::provider::{CqFlags, CqInit, Poller, PollerEx, Sharing, WcEx, WcFields};
use crate::steps::domain::Reader;
use crate::wc::Wc;

impl Soft {
    pub(crate) fn extended_cq(&self, init: &CqInit) -> Result<(SoftCq, SoftPollerEx), SetupError> {
        check_depth("completion queue", init.depth, self.nic.caps.cqe_max)?;
        self.check_vector(init.comp_vector)?;
        let host = &self.nic.host;
        let wanted = |field, clock| init.fields.contains(field).then_some(clock);
        let stamps = Stamps {
            clock: wanted(WcFields::COMPLETION_TIMESTAMP, host.clock),
            wallclock: wanted(WcFields::COMPLETION_TIMESTAMP_WALLCLOCK, host.wallclock),
            overwrites: init.flags.contains(CqFlags::IGNORE_OVERRUN),
        };
        let cq = self.cq_in(&self.shared, (init.depth, (host.notifier)()), Some(stamps));
        let reader = Reader::of_shared(&self.shared);
        let poller = SoftPoller { cq: cq.clone(), reader };
        Ok((cq, SoftPollerEx { poller, fields: init.fields }))
    }

    /// Fails unless the completion vector exists. This device has one way to wake a thread.
    pub(crate) fn check_vector(&self, vector: u32) -> Result<(), SetupError> {
        let count = self.nic.caps.comp_vectors;
        if vector < count {
            return Ok(());
        }
        let asked = std_alloc::format!("a completion queue on completion vector {vector}");
        let answer = std_alloc::format!("this device has {count}, from 0 on");
        Err(SetupError::new(Code::Invalid, asked, answer))
    }
}

/// The reader of an extended completion queue of the soft device.
pub struct SoftPollerEx {
    poller: SoftPoller,
    fields: WcFields,
}

impl PollerEx for SoftPollerEx {
    fn next(&mut self) -> Option<WcEx> {
        let cq = &self.poller.cq;
        debug_assert_eq!(cq.domain.sharing(), Sharing::Shared);
        let taken = cq.domain.enter_shared(|state| {
            state.progress(&mut Queued::polling(cq.index, &mut []));
            state.attend_overruns();
            state.transport.take_stamped(cq.index)
        });
        let (wc, [completion_ts, wallclock_ns]) = taken.flatten()?;
        let mut whole = WcEx::of(&wc, self.fields);
        if wc.status.is_ok() {
            (whole.completion_ts, whole.wallclock_ns) = (completion_ts, wallclock_ns);
        }
        Some(whole)
    }
}

impl Poller for SoftPollerEx {
    fn poll(&mut self, out: &mut [Wc]) -> usize {
        self.poller.poll(out)
    }

    fn arm(&mut self, solicited: bool) -> Result<(), SetupError> {
        self.poller.arm(solicited)
    }

    fn wake_fds(&self) -> Option<WakeFds> {
        self.poller.wake_fds()
    }

    fn look_again(&mut self) -> Option<Duration> {
        self.poller.look_again()
    }

    fn woken(&mut self) -> bool {
        self.poller.woken()
    }

    fn notifier(&self) -> Option<Notifier> {
        self.poller.notifier()
    }
}
