//! How a domain carries out the commands of the control plane.

use crate::model::limits::QPS;
use crate::model::pd::qp_word;
use crate::provider::QpType;
use crate::shm::layout::{Header, KIND_SEND, RecordFlags};
use crate::state::domain_state::DomainState;
use crate::state::link::CLOSED;
use crate::state::place::Place;
use crate::state::qp::{Gone, QpContext, State};
use crate::state::transport::Transport;
use crate::steps::command::{Command, Connect};
use crate::sync::Ordering;
use crate::wc::Status;

impl DomainState {
    pub(crate) fn execute(&mut self, command: Command) {
        let DomainState { links, transport, .. } = self;
        let Transport { qps, res } = transport;
        match command {
            Command::Add(qp, queue, used) => transport.add(qp, queue, used),
            Command::AddSrq(new) => res.add_srq(*new),
            Command::RemoveSrq(number) => transport.remove_srq(number),
            Command::AddLink(link) => links.add(link),
            Command::Connect(connect) => self.connect(&connect),
            Command::SetRnrTimer { num, rnr_timer_ns } => {
                self.change(num, |qp| qp.rnr_timer_ns = rnr_timer_ns);
            }
            Command::SetRnrRetry { num, retries } => self.change(num, |qp| qp.rnr_retry = retries),
            Command::SetInitiatorDepth { num, depth } => {
                self.change(num, |qp| qp.reads.depth = depth);
            }
            Command::SetResponderDepth { num, depth } => self.set_responder_depth(num, depth),
            Command::Fail { num } => self.fail(num),
            Command::SetRights { num, rights } => {
                if let Some(qp) = qps.get_mut(num) {
                    qp.rights_max = rights;
                    res.change_rights(qp);
                }
            }
            Command::PeerGone { num, key, how } => self.peer_gone(num, key, how),
            Command::SetQkey { num, qkey } => {
                let datagrams = qps.get_mut(num).and_then(|qp| qp.datagrams.as_mut());
                if let Some(datagrams) = datagrams {
                    datagrams.qkey = qkey;
                }
            }
            Command::Open { num, first } => {
                if let Some(qp) = qps.get_mut(num) {
                    if qp.open(first, res.nic.host.clock) {
                        res.inboxes.add(num);
                    }
                    res.service_queue.schedule(qp);
                }
            }
            Command::Pause { num, notify } => {
                if let Some(qp) = qps.get_mut(num).filter(|qp| qp.may_pause()) {
                    qp.pause(links, notify);
                    res.service_queue.schedule(qp);
                }
            }
            Command::Resume { num } => {
                if let Some(qp) = qps.get_mut(num).filter(|qp| qp.paused) {
                    qp.resume(links, &res.nic);
                    res.service_queue.schedule(qp);
                }
            }
            Command::Reset(new) => {
                self.reset(*new);
                self.links.ack_all();
            }
            Command::Recover { num } => self.change(num, QpContext::recover),
            Command::Destroy { num } => {
                if self.remove(num) {
                    self.links.ack_all();
                }
            }
        }
    }

    /// Changes a queue pair, if it is there.
    fn change(&mut self, num: u32, how: impl FnOnce(&mut QpContext)) {
        if let Some(qp) = self.transport.qps.get_mut(num) {
            how(qp);
        }
    }

    /// Sets the depth of a connected queue pair that serves requests. If there is no memory for
    /// their responses, the queue pair goes to ERR.
    fn set_responder_depth(&mut self, num: u32, depth: u8) {
        let DomainState { links, transport, .. } = self;
        let Transport { qps, res } = transport;
        let Some(qp) = qps.get_mut(num) else { return };
        let Some(link) = links.get_mut(qp.link) else { return };
        link.responses.release(qp.responder_depth);
        qp.responder_depth = depth;
        res.change_rights(qp);
        if !link.responses.reserve(depth) {
            self.fail(num);
        }
    }

    /// Moves the queue pair to ERR.
    fn fail(&mut self, num: u32) {
        let DomainState { links, transport, .. } = self;
        if let Some(link) = transport.qps.get(num).and_then(|qp| links.get_mut(qp.link)) {
            // What the peer acknowledged last may not have been read.
            transport.look_around(link);
        }
        let Transport { qps, res } = transport;
        let Some(qp) = qps.get_mut(num) else { return };
        // The peer may be known to have gone since a moment ago.
        let is_lost = qp.peer_gone.take().is_some() && !qp.kind.is_unreliable();
        let cause = (is_lost && qp.is_sending(links)).then_some(Status::RetryExceeded);
        res.fail_unacked(links, qp, cause);
    }

    /// The peer takes nothing more. The service queue ends the sends that it has not taken, once
    /// the links have been served.
    fn peer_gone(&mut self, num: u32, key: u32, how: Gone) {
        let Transport { qps, res } = &mut self.transport;
        let Some(qp) = qps.get_mut(num).filter(|qp| qp.key == key) else { return };
        qp.asker_gone |= how > Gone::HungUp && qp.state != State::Init;
        if qp.state != State::Err && !qp.peer_lost {
            // Once for each loss: a program may post again and again to a peer that is lost.
            if qp.peer_gone.is_none() {
                res.service_queue.wait_for_links();
            }
            qp.peer_gone = qp.peer_gone.max(Some(how));
            res.service_queue.schedule(qp);
        }
    }

    fn connect(&mut self, connect: &Connect) {
        let index = self.links.index_of(&connect.link);
        let Transport { qps, res } = &mut self.transport;
        let (Some(qp), Some(index)) = (qps.get_mut(connect.num), index) else {
            return self.decline(connect);
        };
        if qp.state != State::Init {
            return self.decline(connect);
        }
        qp.link = index;
        qp.peer = connect.peer;
        let mut flags = RecordFlags::FIRST | RecordFlags::LAST;
        let reliable = !qp.kind.is_unreliable();
        // On UC too: the flag also says that the sender wants a completion.
        flags.set(RecordFlags::ACK_REQ, qp.signal_all);
        flags.set(RecordFlags::UNRELIABLE, !reliable);
        qp.common = Header::new(KIND_SEND, flags, 0, connect.peer).0;
        qp.rnr_retry = connect.rnr_retry;
        qp.rnr_timer_ns = connect.rnr_timer_ns;
        if reliable {
            qp.reads.depth = connect.initiator_depth;
            qp.responder_depth = connect.responder_depth;
        }
        let takes = qp.kind != QpType::XrcSend;
        if !takes {
            qp.responder_depth = 0;
        }
        qp.state = if reliable { State::Rts } else { State::Unreliable };
        if qp.kind == QpType::Rc {
            qp.word = qp_word(qp.who(), res.nic.next_connection());
            let lenders = &res.nic.memory.table().lenders;
            lenders[qp.num as usize % QPS].store(qp.word, Ordering::Release);
        }
        res.change_rights(qp);
        if let Some(link) = self.links.get_mut(index) {
            if link.users == 0 {
                link.rq = qp.rq;
            }
            qp.open_on = if link.rq == qp.rq && !qp.kind.is_xrc() { index } else { CLOSED };
            if !takes {
                link.always_slow();
            }
            link.users += 1;
            let room = link.responses.reserve(qp.responder_depth);
            if link.is_broken() || !link.reserve_waiting() || !room {
                res.fail_qp(qp, 0, Some(Status::RetryExceeded));
            }
        }
    }

    /// The queue pair to connect is gone or in error: gives back its end of the link.
    fn decline(&mut self, connect: &Connect) {
        connect.link.release_end();
        self.links.drop_unused();
    }

    /// Takes a queue pair out and frees it. Its link goes away with the link's last user. Returns
    /// false if there is no such queue pair.
    pub(crate) fn remove(&mut self, num: u32) -> bool {
        let Some(qp) = self.take_out(num) else { return false };
        let nic = &self.transport.res.nic;
        if let Some(place) = qp.datagrams.as_ref().and_then(|datagrams| datagrams.place) {
            nic.memory.hide_inbox(place);
        }
        nic.free_number(qp.num);
        self.links.drop_unused();
        true
    }

    /// Takes a queue pair out of the table, off its link, off its receive queue and out of its
    /// completion queues (QX-17, SM-1).
    pub(crate) fn take_out(&mut self, num: u32) -> Option<Place<QpContext>> {
        let mut owned = self.transport.qps.remove(num)?;
        let (qp, res) = (&mut *owned, &mut self.transport.res);
        res.take_word_back(qp);
        res.service_queue.remove(qp.num);
        res.inboxes.remove(qp.num);
        if let (true, Some(assembly)) = (qp.rq_shared, qp.assembly)
            && let Some(rq) = res.receives.get_mut(qp.rq)
        {
            // A message had begun to fill this receive and would never complete it. If the program
            // has filled its place in the queue since, the receive ends without a completion.
            if rq.queue.post(&[assembly.wr]).is_err() {
                res.lost_receives.tell(assembly.wr.wr_id);
            }
        }
        res.receives.leave(qp.own_rq());
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Some(cq) = res.completions.get_mut(cq) {
                cq.forget(qp.num, |wr_id| res.lost_receives.tell(wr_id));
            }
        }
        if let Some(link) = self.links.get_mut(qp.link) {
            link.waits_no_more(qp.num);
            link.responses.release(qp.responder_depth);
            link.await_less(qp.reads.give_up());
            link.users -= 1;
            link.shared.release_end();
            if qp.paused {
                link.pause(false);
            }
            if link.shared.is_of_one_pair() {
                link.ack_now();
                link.break_off();
            }
        }
        Some(owned)
    }
}
