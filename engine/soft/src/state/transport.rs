//! The queue pairs of a domain and what they use to serve a link.

use std_alloc::sync::Arc;

use crate::model::cq::{CompletionQueue, Retire};
use crate::model::recvq::{RecvQueue, Used};
use crate::state::place::Place;
use crate::state::qp::QpContext;
use crate::state::qp::State;
use crate::state::qp_table::QpTable;
use crate::state::resources::Resources;
use crate::wc::Wc;

/// The queue pairs of a domain and what they use to serve a link.
pub(crate) struct Transport {
    pub(crate) qps: QpTable,
    pub(crate) res: Resources,
}

impl Transport {
    /// Moves completions from a queue's ring to its reader, and retires what they stand for.
    pub(crate) fn take_completions(&mut self, index: usize, out: &mut [Wc]) -> usize {
        let mut taken = 0;
        for place in out {
            let Some((wc, retire)) =
                self.res.completions.get_mut(index).and_then(CompletionQueue::pop)
            else {
                break;
            };
            *place = wc;
            taken += 1;
            self.retire(retire);
        }
        taken
    }

    /// As `take_completions`, for one completion with its times, as far as the queue records them.
    pub(crate) fn take_stamped(&mut self, index: usize) -> Option<(Wc, [Option<u64>; 2])> {
        let cq = self.res.completions.get_mut(index)?;
        let times = cq.first_times();
        let (wc, retire) = cq.pop()?;
        self.retire(retire);
        Some((wc, times))
    }

    fn retire(&mut self, retire: Retire) {
        if let Some(qp) = self.qps.get_mut(retire.qp) {
            qp.sq.retired = retire.upto;
        }
    }
}

impl Transport {
    /// Adds a queue pair.
    pub(crate) fn add(&mut self, mut owned: Place<QpContext>, queue: Arc<RecvQueue>, used: Used) {
        let qp = &mut *owned;
        let Resources { receives, local_waker, .. } = &mut self.res;
        match receives.enter(queue, used, local_waker) {
            Some(rq) => qp.set_own_rq(rq),
            // Without memory to note its receive queue it goes to ERR and is never connected.
            None => qp.state = State::Err,
        }
        self.qps.insert(owned);
    }
}
