//! What a poll of the shared domain finds out while it waits for the predicted message, and what is
//! then still true when that comes: how the send that it acknowledges ends, and that its completion
//! may go straight to a poll.
#![expect(unsafe_code, reason = "uses an object of the domain by its pointer")]

use crate::model::send_queue::SqEntry;
use crate::state::completion::sent_wc;
use crate::state::completions::NO_QUEUE;
use crate::state::link::Link;
use crate::state::place::Pointer;
use crate::state::predicted::PredictedReceive;
use crate::state::qp::{QpContext, State};
use crate::state::qp_table::QpTable;
use crate::state::transport::Transport;
use crate::wc::{Wc, WcOpcode};

/// See above. It counts only as long as a message is predicted. Each poll of the shared domain that
/// predicts one renews or forgets it. What ends a send forgets it, and so does what arms or changes
/// a completion queue, or takes back the promise of a poll.
pub(crate) struct Ready {
    /// The completion queue in which the only send that waits on the link ends: it is empty, and an
    /// entry may go straight to its poll. The receive of the predicted message may wait.
    /// [`NO_QUEUE`]: nothing is known.
    send_cq: usize,
    /// The end of the queue of signalled sends, with that one.
    tail: u32,
    /// The completion queue of the receive is empty as well, and an entry may go straight to its
    /// poll. Another receive is prefetched, and the acknowledgement may wait for a reply.
    pub(crate) receive: bool,
    qp: Option<Pointer<QpContext>>,
    num: u32,
    /// The requests of its queue pair that then have completed.
    upto: u32,
    // The rest of its completion. Fields that are always the same are not stored: a poll would load
    // each of them.
    length: u32,
    opcode: WcOpcode,
    wr_id: u64,
}

impl Ready {
    pub(crate) fn nothing() -> Ready {
        Ready {
            send_cq: NO_QUEUE,
            tail: 0,
            receive: false,
            qp: None,
            num: 0,
            upto: 0,
            length: 0,
            opcode: WcOpcode::Send,
            wr_id: 0,
        }
    }

    /// Something has changed: nothing is known.
    #[inline(always)]
    pub(crate) fn forget(&mut self) {
        (self.send_cq, self.receive) = (NO_QUEUE, false);
    }

    /// Finds out what is true now, for the message that was just predicted on that link.
    pub(crate) fn renew(
        &mut self,
        predicted: &PredictedReceive,
        link: &Link,
        transport: &mut Transport,
    ) {
        self.forget();
        if !predicted.is_known() || !transport.res.may_wait(predicted.recv_cq) {
            return;
        }
        let Some(send) = link.signaled.first().filter(|_| link.signaled.has_one()) else { return };
        let Some(qp) = transport.qps.get_mut(send.qp) else { return };
        let completions = &transport.res.completions;
        if qp.state != State::Rts || !completions.passes_plain(qp.send_cq) {
            return;
        }
        let rq = transport.res.receives.get_mut(link.rq);
        self.receive = transport.res.completions.passes_plain(predicted.recv_cq)
            && rq.is_some_and(|rq| rq.prefetch.len() > 1)
            && link.reply.arrives_again(link.tx.published());
        (self.send_cq, self.tail) = (qp.send_cq, link.signaled.tail());
        let SqEntry { wr_id, sent, length, .. } = *qp.sq.entry(send.index);
        (self.num, self.upto) = (qp.num, send.index.wrapping_add(1));
        (self.wr_id, self.length, self.opcode) = (wr_id, length, sent.opcode());
        self.qp = Some(Pointer::to(qp));
    }

    /// Ends that send for a poll of that queue, if the look that has read these words of the peer
    /// has found the predicted message, and leaves the message to the next poll. As on a NIC, a
    /// send ends before the receive of its answer. The poll has just called [`Ready::renew`], so
    /// nothing has changed since.
    #[inline(always)]
    pub(crate) fn end_found(
        &mut self,
        predicted: &mut PredictedReceive,
        link: &mut Link,
        (cq, words): (usize, [u64; 2]),
        transport: &mut Transport,
    ) -> Option<Wc> {
        if self.send_cq != cq {
            return None;
        }
        let record = predicted.find_among(link, words)?;
        let wc = self.end_checked_send(link, &mut transport.qps)?;
        link.spin.note_found();
        link.reply.peer_replies = true;
        predicted.leave(record);
        Some(wc)
    }

    /// Ends that send for a poll of that queue: the peer has taken it. `None`, and nothing was
    /// done: it is not known, or not the only one any more.
    #[inline(always)]
    pub(crate) fn end_send(&mut self, link: &mut Link, cq: usize, qps: &mut QpTable) -> Option<Wc> {
        // What ends a send forgets this, so it is still the only one unless one was posted.
        if self.send_cq != cq || link.signaled.tail() != self.tail {
            return None;
        }
        // SAFETY: the queue pair is in the table. Commands alone take one out, and after them
        // nothing is predicted.
        let qp = unsafe { self.qp?.get(qps) };
        if qp.state != State::Rts {
            return None;
        }
        self.end_checked_send(link, qps)
    }

    /// The same after its checks.
    #[inline(always)]
    fn end_checked_send(&mut self, link: &mut Link, qps: &mut QpTable) -> Option<Wc> {
        debug_assert!(link.signaled.has_one() && link.signaled.tail() == self.tail);
        // SAFETY: as in `end_send`.
        let qp = unsafe { self.qp?.get(qps) };
        debug_assert!(qp.state == State::Rts);
        self.send_cq = NO_QUEUE;
        link.signaled.pop();
        (qp.sq.completed, qp.sq.retired) = (self.upto, self.upto);
        Some(sent_wc(self.wr_id, self.num, self.length, self.opcode))
    }
}
