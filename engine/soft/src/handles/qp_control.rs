//! A queue pair as the control plane knows it: it leaves commands, which the domain carries out.

use std_alloc::boxed::Box;
use std_alloc::sync::{Arc, Weak};

use crate::device::path::Groups;
use crate::model::limits::READS_MAX;
use crate::provider::wake::Notifier;
use crate::provider::{Access, QpType};
use crate::state::link::Link;
use crate::state::link_shared::LinkShared;
use crate::state::qp::Gone;
use crate::steps::command::{Command, Connect};
use crate::steps::domain::Domain;

/// The figures of a connection, for [`QpControl::connect`].
#[derive(Clone, Copy, Debug)]
pub struct Wiring {
    /// The peer's queue pair number.
    pub peer: u32,
    /// Retries the peer makes when this side has no receive; 7 is for ever (RC-1).
    pub peer_rnr_retry: u8,
    /// Time between them, in nanoseconds (`min_rnr_timer` of this side).
    pub rnr_timer_ns: u64,
    /// READs and atomics this side may have in flight, 16 at most (`max_rd_atomic`, SQ-7).
    pub initiator_depth: u8,
    /// READs and atomics the peer may have in flight, 16 at most (`max_dest_rd_atomic`); with 0 it
    /// has no right to any (QP-20).
    pub responder_depth: u8,
}

/// Connects and fails a queue pair from another thread than the one that owns it. It does not
/// keep the queue pair alive.
#[derive(Clone)]
pub struct QpControl {
    pub(crate) domain: Arc<Domain>,
    pub(crate) num: u32,
    pub(crate) queue: u32,
    pub(crate) kind: QpType,
    pub(crate) groups: Option<Arc<Groups>>,
    pub(crate) life: Weak<()>,
}

impl QpControl {
    /// True once the queue pair has been dropped.
    pub fn is_gone(&self) -> bool {
        self.life.strong_count() == 0
    }

    /// The number of the queue pair.
    pub fn num(&self) -> u32 {
        self.num
    }

    /// See [`crate::SoftQp::place`].
    pub fn place(&self) -> (u32, u32) {
        (self.domain.id, self.queue)
    }

    /// The notifier of the queue pair's domain, for its peers.
    pub fn notifier(&self) -> Option<Notifier> {
        self.domain.local_waker.notifier.clone()
    }

    /// See [`crate::SoftQp::attach`].
    pub fn attach(&self, link: &Arc<LinkShared>) {
        let mut link = Link::new(link.clone());
        link.key = self.queue;
        self.domain.command(Command::AddLink(Box::new(link)));
    }

    /// Moves the queue pair from INIT to RTS over an attached link. The caller has taken one end of
    /// the link ([`LinkShared::acquire`], or as its maker). The end goes back when the queue pair
    /// is dropped, or at once if it has been dropped already.
    pub fn connect(&self, link: &Arc<LinkShared>, wiring: Wiring) {
        self.domain.command(Command::Connect(Connect {
            num: self.num,
            peer: wiring.peer,
            link: link.clone(),
            rnr_retry: wiring.peer_rnr_retry,
            rnr_timer_ns: wiring.rnr_timer_ns,
            initiator_depth: wiring.initiator_depth.min(READS_MAX as u8),
            responder_depth: wiring.responder_depth.min(READS_MAX as u8),
        }));
    }

    /// Sets the peer's wait between retries when this side has no receive, in nanoseconds; for a
    /// connected queue pair.
    pub fn set_rnr_timer(&self, rnr_timer_ns: u64) {
        self.domain.command(Command::SetRnrTimer { num: self.num, rnr_timer_ns });
    }

    /// Sets how often the peer of a connected queue pair sends again what finds no receive; 7 is
    /// for ever (RC-1).
    pub fn set_rnr_retry(&self, retries: u8) {
        self.domain.command(Command::SetRnrRetry { num: self.num, retries });
    }

    /// Sets how many READs and atomics a connected queue pair may have in flight, 16 at most.
    pub fn set_initiator_depth(&self, depth: u8) {
        let depth = depth.min(READS_MAX as u8);
        self.domain.command(Command::SetInitiatorDepth { num: self.num, depth });
    }

    /// Sets how many READs and atomics the peer of a connected queue pair may have in flight, 16 at
    /// most. It must be one that serves them.
    pub fn set_responder_depth(&self, depth: u8) {
        let depth = depth.min(READS_MAX as u8);
        self.domain.command(Command::SetResponderDepth { num: self.num, depth });
    }

    /// Moves the queue pair to ERR as if the peer had been lost: the oldest outstanding send ends
    /// with [`crate::wc::Status::RetryExceeded`], the rest is flushed. Does nothing if it is gone.
    pub fn fail_lost(&self) {
        self.peer_gone(Gone::Lost);
    }

    /// Sets what the peer may do to memory by itself (`qp_access_flags`), until the queue pair is
    /// reset. Without, it is all that the depths of the connection allow.
    pub fn set_rights(&self, rights: Access) {
        self.domain.command(Command::SetRights { num: self.num, rights });
    }

    /// The peer has left for good. If it has not taken all sends, they end as in
    /// [`QpControl::fail_lost`]; otherwise nothing happens. First come all completions of other
    /// queue pairs whose message or acknowledgement is there already: on a NIC, retries take time.
    pub fn peer_left(&self) {
        self.peer_gone(Gone::Left);
    }

    /// The peer has ended the connection. As [`QpControl::peer_left`], but the peer's queue pair
    /// may still wait for answers to its READs.
    pub fn peer_hung_up(&self) {
        self.peer_gone(Gone::HungUp);
    }

    fn peer_gone(&self, how: Gone) {
        self.domain.command(Command::PeerGone { num: self.num, key: self.queue, how });
    }

    /// Moves the queue pair to ERR (SM-2). Does nothing if it is gone.
    pub fn fail(&self) {
        self.domain.command(Command::Fail { num: self.num });
    }
}
