//! Queue pair states that only the owner sets (SM-6): a pause of its sends, and a reset.

use std_alloc::boxed::Box;
use std_alloc::sync::Arc;

use crate::event::{AsyncKind, Object};
use crate::ext::xrc_part::NO_CQ;
use crate::handles::queue_pair::SoftQp;
use crate::model::recvq::{RecvQueue, Used};
use crate::model::send_queue::Sent;
use crate::provider::QpType;
use crate::state::domain_state::DomainState;
use crate::state::link_scheduler::Links;
use crate::state::qp::{QpContext, QpParts, Reserved, State};
use crate::state::resources::Resources;
use crate::steps::command::{Command, Reset};
use crate::wc::Status;
use crate::wr::SendFlags;

impl SoftQp {
    /// RTS to SQD: sends are accepted and do not begin. With `notify`, an event is raised when the
    /// sends that have begun are done.
    pub fn pause(&mut self, notify: bool) {
        self.domain.command(Command::Pause { num: self.num, notify });
    }

    /// SQD to RTS.
    pub fn resume(&mut self) {
        self.domain.command(Command::Resume { num: self.num });
    }

    /// Any state to RESET and INIT: forgets all requests, their completions and the connection
    /// (SM-1). The next connection uses a link of its own.
    pub fn reset(&mut self) {
        let own = !self.shared_queue || self.kind.is_xrc();
        if own {
            let pd = self.queue.pd();
            self.queue = Arc::new(RecvQueue::new(self.nic.next_queue(), self.caps.recv_wr, pd));
        }
        self.key = if own { self.queue.id() } else { self.nic.next_queue() };
        let (num, key, queue) = (self.num, self.key, self.queue.clone());
        let used = Used::default();
        self.domain.command(Command::Reset(Box::new(Reset { num, queue, used, key })));
    }
}

impl Resources {
    /// SQD: no send begins from here on. With `notify`, an event is raised when all sends that have
    /// begun are done.
    pub(crate) fn pause(&mut self, links: &mut Links, qp: &mut QpContext, notify: bool) {
        if qp.paused || !qp.state.sends() {
            return;
        }
        (qp.paused, qp.draining) = (true, notify);
        qp.reserved = Reserved::NONE;
        if let Some(link) = links.get_mut(qp.link) {
            link.pause(true);
        }
        self.schedule(qp);
    }

    /// From SQD back to RTS: begins the sends that were posted meanwhile.
    pub(crate) fn resume(&mut self, links: &mut Links, qp: &mut QpContext) {
        if !qp.paused {
            return;
        }
        (qp.paused, qp.draining) = (false, false);
        if qp.kind == QpType::Ud {
            // In ERR, posts were flushed and never kept.
            if qp.state == State::Unreliable {
                self.send_kept_datagrams(qp);
            }
        } else if let Some(link) = links.get_mut(qp.link) {
            link.pause(false);
            let waits = qp.sq.sent != qp.sq.posted && !qp.reads.waits && !qp.in_backlog;
            if waits && qp.state.sends() && qp.failure.poison.is_none() {
                qp.in_backlog = true;
                link.let_wait(qp.num);
            }
        }
        self.schedule(qp);
    }

    /// Sends the datagrams that were posted to a UD queue pair in SQD.
    fn send_kept_datagrams(&mut self, qp: &mut QpContext) {
        while qp.sq.sent != qp.sq.posted {
            let pending = qp.sq.kept(qp.sq.sent);
            let mut flags = SendFlags::empty();
            flags.set(SendFlags::INLINE, pending.inline);
            flags.set(SendFlags::SOLICITED, pending.solicited);
            let Some(wr) = pending.pieces.posted(pending.op, flags) else { return };
            let status = match qp.state {
                State::Unreliable => self.send_datagram(qp, &wr),
                _ => Status::Flushed,
            };
            let how = if status.is_ok() { Sent::ON_WIRE } else { Sent::failed(status) };
            let index = qp.sq.sent;
            qp.sq.entry(index).sent |= how;
            qp.sq.sent = index.wrapping_add(1);
            if !status.is_ok() {
                qp.state = State::Sqe;
            }
        }
    }

    /// In SQD, raises the event when all sends that began before it are done. False: it is still
    /// due.
    pub(crate) fn has_drained(&mut self, links: &mut Links, qp: &mut QpContext) -> bool {
        if !qp.draining || qp.state == State::Err {
            return true;
        }
        let over = if qp.kind.is_unreliable() {
            qp.sq.completed == qp.sq.sent
        } else {
            let last = qp.sq.sent.wrapping_sub(1);
            let end = if qp.sq.sent == qp.sq.retired { 0 } else { qp.sq.entry(last).end };
            qp.reads.in_flight() == 0 && qp.sq.sent_bytes == 0 && links.acked_position(qp) >= end
        };
        if over {
            qp.draining = false;
            self.nic.raise(AsyncKind::SqDrained, Object::Qp(qp.num));
        }
        over
    }
}

impl DomainState {
    /// RESET: forgets requests, completions (SM-1) and the connection. Records that the old peer
    /// still sends are dropped. Then the queue pair is in INIT.
    pub(crate) fn reset(&mut self, new: Reset) {
        let Some(mut owned) = self.take_out(new.num) else { return };
        let context = &mut *owned;
        let xrc = context.kind == QpType::XrcRecv;
        for cq in [context.send_cq, context.recv_cq] {
            if let Some(cq) = self.transport.res.cqs.get_mut(cq) {
                cq.forget(new.num);
            }
        }
        if let Some(link) = self.links.get_mut(context.link) {
            link.forget(new.num);
        }
        let parts = QpParts {
            num: new.num,
            kind: context.kind,
            send_cq: context.send_cq,
            recv_cq: if xrc { NO_CQ } else { context.recv_cq },
            rq_shared: context.rq_shared,
            signal_all: context.signal_all,
            pd: context.pd,
            key: new.key,
        };
        context.reset(&parts);
        self.transport.add(owned, new.queue, new.used);
        self.links.drop_unused();
    }
}
