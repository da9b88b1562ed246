//! Queue pairs as their owners hold them.

use std_alloc::boxed::Box;
use std_alloc::sync::Arc;

use crate::device::nic::Nic;
use crate::device::path::Groups;
use crate::device::pd::Pd;
use crate::ext::raw::rss::SoftIndTable;
use crate::ext::xrc::SoftXrcd;
use crate::handles::poller::SoftCq;
use crate::handles::qp_control::{QpControl, Wiring};
use crate::model::recvq::RecvQueue;
use crate::provider::{QpCaps, QpType};
use crate::state::link_shared::LinkShared;
use crate::state::place::{Place, Pointer};
use crate::state::qp::{QpContext, State};
use crate::steps::command::Command;
use crate::steps::domain::Domain;

/// A queue pair of the soft device.
pub struct SoftQp {
    pub(crate) nic: Arc<Nic>,
    pub(crate) domain: Arc<Domain>,
    pub(crate) context: Pointer<QpContext>,
    pub(crate) queue: Arc<RecvQueue>,
    pub(crate) num: u32,
    pub(crate) kind: QpType,
    pub(crate) caps: QpCaps,
    /// The key that tells the links of its connections apart.
    pub(crate) key: u32,
    pub(crate) shared_queue: bool,
    /// Objects that must outlive it.
    _kept: Kept,
    pub(crate) groups: Option<Arc<Groups>>,
    /// Alive as long as the queue pair.
    pub(crate) life: Arc<()>,
}

/// Posts sends on a queue pair of the shared domain for several threads at once: the domain is
/// locked anyway. It does not keep the queue pair alive.
pub struct SharedSends {
    pub(crate) domain: Arc<Domain>,
    pub(crate) context: Pointer<QpContext>,
}

/// Posts receives on a queue pair with a receive queue of its own, for several threads at once: the
/// queue is locked anyway. A queue pair that was reset has another queue.
pub struct SharedReceives {
    pub(crate) queue: Arc<RecvQueue>,
}

impl SharedReceives {
    /// True if they go to the queue that the queue pair has now.
    pub fn are_of(&self, qp: &SoftQp) -> bool {
        Arc::ptr_eq(&self.queue, &qp.queue)
    }
}

/// What a queue pair flushes after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushes {
    /// Its sends, until the owner recovers it (SQE).
    Sends,
    /// Its sends and receives (ERR).
    Everything,
}

/// What a queue pair belongs to: completion queues, a protection domain and a table of work queues,
/// or an XRC domain. The last handle of a completion queue must not be dropped inside the domain.
pub(crate) type Kept =
    (Option<(SoftCq, SoftCq)>, Option<SoftXrcd>, Option<Pd>, Option<SoftIndTable>);

impl SoftQp {
    /// Gives a queue pair to its domain.
    pub(crate) fn new(
        (nic, domain): (&Arc<Nic>, &Arc<Domain>),
        context: Box<QpContext>,
        caps: QpCaps,
        queue: Arc<RecvQueue>,
        kept: Kept,
    ) -> SoftQp {
        let (num, kind, key) = (context.num, context.kind, context.key);
        let shared_queue = context.rq_shared || kind.is_xrc() || context.is_spread();
        let place = Place::from(context);
        let context = place.pointer();
        domain.command(Command::Add(place, queue.clone(), Default::default()));
        let (nic, domain, groups) = (nic.clone(), domain.clone(), None);
        let (_kept, life) = (kept, Arc::new(()));
        SoftQp {
            nic,
            domain,
            context,
            queue,
            num,
            kind,
            caps,
            key,
            shared_queue,
            _kept,
            groups,
            life,
        }
    }

    pub(crate) fn with_groups(mut self, groups: Option<Arc<Groups>>) -> SoftQp {
        self.groups = groups;
        self
    }

    /// See [`SharedSends`].
    pub fn shared_sends(&self) -> SharedSends {
        SharedSends { domain: self.domain.clone(), context: self.context }
    }

    /// See [`SharedReceives`]. `None`: it has no receive queue of its own.
    pub fn shared_receives(&self) -> Option<SharedReceives> {
        (!self.shared_queue).then(|| SharedReceives { queue: self.queue.clone() })
    }

    /// The transport.
    pub fn kind(&self) -> QpType {
        self.kind
    }

    /// What a link must join: the domain and the receive queue, as numbers of this device.
    pub fn place(&self) -> (u32, u32) {
        (self.domain.id, self.key)
    }

    /// Adds a new link to this queue pair's domain, before any queue pair connects over it.
    pub fn attach(&self, link: &Arc<LinkShared>) {
        self.control().attach(link);
    }

    /// See [`QpControl::connect`].
    pub fn connect(&mut self, link: &Arc<LinkShared>, wiring: Wiring) {
        self.control().connect(link, wiring);
    }

    /// See [`QpControl::peer_left`].
    pub fn peer_left(&mut self) {
        self.control().peer_left();
    }

    /// See [`QpControl::fail_lost`].
    pub fn fail_lost(&mut self) {
        self.control().fail_lost();
    }

    /// What it flushes now. `None`: nothing, or its domain belongs to one thread.
    pub fn flushes(&self) -> Option<Flushes> {
        self.domain.enter_shared(|state| match state.transport.qps.get(self.num)?.state {
            State::Sqe => Some(Flushes::Sends),
            State::Err => Some(Flushes::Everything),
            State::Init | State::Rts | State::Unreliable => None,
        })?
    }

    /// A handle by which the control plane can connect and fail the queue pair that a worker
    /// owns.
    pub fn control(&self) -> QpControl {
        QpControl {
            domain: self.domain.clone(),
            num: self.num,
            queue: self.key,
            kind: self.kind,
            groups: self.groups.clone(),
            life: Arc::downgrade(&self.life),
        }
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        if let Some(groups) = &self.groups {
            groups.end();
        }
        self.domain.end(Command::Destroy { num: self.num });
    }
}
