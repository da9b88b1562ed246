//! Queue pair states that only the owner sets (SM-6): a pause of its sends, and a reset.

use std_alloc::boxed::Box;
use std_alloc::sync::Arc;

use crate::device::nic::Nic;
use crate::event::{AsyncKind, Object};
use crate::ext::xrc_part::NO_CQ;
use crate::handles::queue_pair::SoftQp;
use crate::model::recvq::Used;
use crate::model::send_queue::Sent;
use crate::provider::QpType;
use crate::state::domain_state::DomainState;
use crate::state::link_scheduler::Links;
use crate::state::qp::{QpContext, QpParts, Reserved, State};
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
            self.queue = Arc::new(self.nic.new_queue(self.caps.recv_wr, pd));
        }
        self.key = if own { self.queue.id() } else { self.nic.next_queue() };
        let (num, key, queue) = (self.num, self.key, self.queue.clone());
        let used = Used::default();
        self.domain.command(Command::Reset(Box::new(Reset { num, queue, used, key })));
    }
}

impl QpContext {
    /// True if it may go to SQD.
    pub(crate) fn may_pause(&self) -> bool {
        !self.paused && self.state.sends()
    }

    /// SQD: no send begins from here on. With `notify`, an event is raised when all sends that have
    /// begun are done.
    pub(crate) fn pause(&mut self, links: &mut Links, notify: bool) {
        (self.paused, self.draining, self.drain_urged) = (true, notify, false);
        self.reserved = Reserved::NONE;
        if let Some(link) = links.get_mut(self.link) {
            link.pause(true);
        }
    }

    /// From SQD back to RTS: begins the sends that were posted meanwhile.
    pub(crate) fn resume(&mut self, links: &mut Links, nic: &Nic) {
        (self.paused, self.draining, self.drain_urged) = (false, false, false);
        if self.kind == QpType::Ud {
            // In ERR, posts were flushed and never kept.
            if self.state == State::Unreliable {
                self.send_kept_datagrams(nic);
            }
        } else if let Some(link) = links.get_mut(self.link) {
            link.pause(false);
            let waits = self.sq.sent != self.sq.posted && !self.reads.waits && !self.in_backlog;
            if waits && self.state.sends() && self.failure.poison.is_none() {
                self.in_backlog = true;
                link.let_wait(self.num);
            }
        }
    }

    /// Sends the datagrams that were posted to a UD queue pair in SQD.
    fn send_kept_datagrams(&mut self, nic: &Nic) {
        while self.sq.sent != self.sq.posted {
            let pending = self.sq.kept(self.sq.sent);
            let mut flags = SendFlags::empty();
            flags.set(SendFlags::INLINE, pending.inline);
            flags.set(SendFlags::SOLICITED, pending.solicited);
            let Some(wr) = pending.pieces.posted(pending.op, flags) else { return };
            let status = match self.state {
                State::Unreliable => self.send_datagram(nic, &wr),
                _ => Status::Flushed,
            };
            let how = if status.is_ok() { Sent::ON_WIRE } else { Sent::failed(status) };
            let index = self.sq.sent;
            self.sq.entry(index).sent |= how;
            self.sq.sent = index.wrapping_add(1);
            if !status.is_ok() {
                self.state = State::Sqe;
            }
        }
    }

    /// In SQD, raises the event when all sends that began before it are done. False: it is still
    /// due.
    pub(crate) fn has_drained(&mut self, links: &mut Links, nic: &Nic) -> bool {
        if !self.draining || self.state == State::Err {
            return true;
        }
        let over = self.has_finished(links);
        if over {
            self.draining = false;
            nic.raise(AsyncKind::SqDrained, Object::Qp(self.num));
        }
        over
    }

    /// True if the peer has not taken all that was posted.
    pub(crate) fn is_sending(&mut self, links: &mut Links) -> bool {
        self.sq.sent != self.sq.posted || !self.has_finished(links)
    }

    /// True if no send that has begun is under way.
    fn has_finished(&mut self, links: &mut Links) -> bool {
        if self.kind.is_unreliable() {
            return self.sq.completed == self.sq.sent && self.sq.sent_bytes == 0;
        }
        let last = self.sq.sent.wrapping_sub(1);
        let end = if self.sq.sent == self.sq.retired { 0 } else { self.sq.entry(last).end };
        self.reads.in_flight() == 0 && self.sq.sent_bytes == 0 && links.acked_position(self) >= end
    }
}

impl DomainState {
    /// RESET: forgets requests, completions (SM-1) and the connection. Records that the old peer
    /// still sends are dropped. Then the queue pair is in INIT.
    pub(crate) fn reset(&mut self, new: Reset) {
        let Some(mut owned) = self.take_out(new.num) else { return };
        let context = &mut *owned;
        let xrc = context.kind == QpType::XrcRecv;
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
