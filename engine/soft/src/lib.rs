//! The soft device: RDMA in software, embedded, with no NIC, kernel module or root.
//!
//! The receiver's poll does the NIC's work. A post writes records to a ring in shared memory and
//! rings once; the peer's poll moves each into the next posted receive and makes the completion.
//! In data order: `requester`, `deferred` → `ring` → `reader` → `responder` → `recvq` →
//! `cq`, with `domain` as what one thread drives, and `link` as what connects two of them.
//! One-sided requests go the same way to `responder`, and what they ask for comes back through
//! `read_response`.
//!
//! What one process shares is a [`Soft`]; connections between processes are the business of the
//! control plane, which passes the memory of a [`LinkShared`] from one to the other.
#![expect(unsafe_code, reason = "the handles enter the domain their contract gives them")]
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc as std_alloc;
#[cfg(all(any(test, loom, feature = "sim"), not(feature = "std")))]
extern crate std;

mod backlog;
mod burst;
#[cfg(feature = "std")]
mod control;
mod copy;
#[cfg(all(target_feature = "sse2", not(any(loom, miri))))]
mod copy_x86;
mod cq;
mod cq_ex;
mod datagram;
mod deferred;
mod domain;
mod inbox;
mod inboxes;
mod layout;
mod link;
mod link_scheduler;
mod local_rdma;
mod local_waker;
mod memory;
#[cfg(test)]
#[cfg(loom)]
mod models;
mod nic;
mod path;
mod pd;
mod peer_waker;
mod policy;
mod poller;
mod predicted;
mod qp;
mod qp_control;
mod qp_table;
mod raw;
mod read_response;
mod reader;
mod receive;
mod recvq;
mod region;
mod remote_map;
mod requester;
mod reset_sqd;
mod responder;
mod ring;
#[cfg(any(test, feature = "sim"))]
#[cfg(not(any(loom, miri)))]
#[doc(hidden)]
pub mod scribbler;
#[cfg(feature = "sim")]
pub mod sim;
mod srq;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod unreliable;
#[cfg(test)]
#[cfg(loom)]
mod weakened;
mod wrap_policy;
mod xrc;

use core::ptr::NonNull;

use doorbell_alloc::Mapping;
use std_alloc::boxed::Box;
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;

#[cfg(feature = "std")]
pub use self::control::{SOFT_DEVICE, SoftChannel, SoftDevice, SoftId};
pub use self::cq_ex::SoftPollerEx;
pub use self::inbox::{INBOX_BYTES, OpenBell};
pub use self::layout::{LINK_BYTES, Side};
pub use self::link::LinkShared;
pub use self::memory::{DIRECTORY_BYTES, FileName};
pub use self::path::{Member, Membership, Neighbours, SoftAh};
pub use self::pd::SoftTd;
pub use self::poller::{SoftCq, SoftPoller};
pub use self::qp_control::QpControl as Breaker;
pub(crate) use self::qp_control::QpControl;
pub use self::raw::{SEGMENT_HEADER_MAX, SoftFlow, SoftIndTable, SoftWq};
pub use self::region::{SoftRegion, SoftWindow};
pub use self::remote_map::{Attach, Reach};
pub use self::srq::SoftSrq;
pub use self::xrc::SoftXrcd;

use self::cq::{CompletionQueue, Stamps};
use self::domain::{Command, Domain};
use self::nic::Nic;
use self::path::Groups;
use self::pd::Pd;
use self::poller::CqPlace;
use self::qp::{QpContext, QpParts, State};
use self::qp_table::Owned;
use self::recvq::RecvQueue;
use self::region::{BOUND_BY_CALL, bound_kind};
use doorbell_base::{room, sync};
use doorbell_seam::{error, event, provider, wc, wr};

use crate::error::{Code, SetupError};
use crate::event::AsyncEvent;
use crate::provider::wake::Bell;
use crate::provider::{
    Access, AddressVector, Caps, CqInit, CreateFlags, Doorbell, GRH_BYTES, Gid, InlineSend,
    PortAttr, Provider, Qp, QpCaps, QpType, Rereg, Reregistered, RxHash, Sharing, Window,
    WindowKind,
};
use crate::wc::{Wc, WcFlags};
use crate::wr::{Binding, PostCause, PostError, RecvWr, SendFlags, SendOp, SendWr, Sge};

#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// What the device asks of the system it runs on.
#[derive(Clone, Copy)]
pub struct Host {
    /// Nanoseconds that never go back; asked only while a peer waits for a receive, and for
    /// completions that are to have it.
    pub clock: fn() -> u64,
    /// Nanoseconds since 1970; asked only for completions that are to have it.
    pub wallclock: fn() -> u64,
    /// Random bytes, from which the keys of regions come. The same ones give the same keys.
    pub seed: [u8; 32],
    /// The file behind memory, by which another process can find it.
    pub name_file: fn(&Mapping) -> Option<FileName>,
    /// A new bell; without one nobody can sleep on this device.
    pub bell: fn() -> Option<Bell>,
    /// Makes each thread of each process that shares a link with this one pass a full memory
    /// barrier before it returns.
    pub barrier: fn(),
    /// Other devices, for datagrams; without it there are no queue pairs of UD.
    pub neighbours: Option<Neighbours>,
}

impl Host {
    /// A host for devices within one address space, whose keys need not be secret: tests and
    /// simulations. Its one clock is both.
    pub fn alone(clock: fn() -> u64) -> Host {
        Host {
            clock,
            wallclock: clock,
            seed: [0; 32],
            name_file: |_| None,
            bell: || None,
            barrier: || (),
            neighbours: None,
        }
    }
}

/// The soft device, open.
#[derive(Clone)]
pub struct Soft {
    nic: Arc<Nic>,
    shared: Arc<Domain>,
    pd: Pd,
}

impl Soft {
    /// Opens the device on that system. Its table of regions lies in `directory`, which peers may
    /// read and nobody but this device may write; it has [`DIRECTORY_BYTES`], all zero. Without
    /// one, no peer reaches its memory but through its own polls.
    pub fn new(name: &str, host: Host, directory: Option<Mapping>) -> Soft {
        let nic = Arc::new(Nic::new(name, host, directory));
        let shared = Arc::new(Domain::new(&nic, Sharing::Shared));
        Soft { nic, shared, pd: Pd::default() }
    }

    /// Makes a queue pair in INIT (`ibv_create_qp`).
    ///
    /// # Errors
    /// Capacities of 0 or beyond [`Caps`], queues of another device (QP-2), or completion queues of
    /// two different threads.
    pub fn create_qp(&self, init: &SoftQpInit<'_>) -> Result<SoftQp, SetupError> {
        let asked = || format!("a queue pair with {:?}", init.caps);
        let invalid = |answer: String| SetupError::new(Code::Invalid, asked(), answer);
        let (want, limit) = (init.caps, &self.nic.caps);
        if want.send_wr == 0 || want.send_wr > limit.qp_wr_max || want.recv_wr > limit.qp_wr_max {
            return Err(invalid(format!("each queue takes 1 to {} requests", limit.qp_wr_max)));
        }
        if want.send_sge > limit.send_sge_max || want.recv_sge > 1 {
            let text = format!("at most {} pieces a send, 1 a receive", limit.send_sge_max);
            return Err(invalid(text));
        }
        if want.inline > limit.inline_max {
            return Err(invalid(format!(
                "inline payloads have at most {} bytes",
                limit.inline_max
            )));
        }
        let ours = |nic| Arc::ptr_eq(nic, &self.nic);
        let cqs = [init.send_cq, init.recv_cq];
        if !cqs.iter().all(|cq| ours(&cq.place.nic)) || !init.srq.is_none_or(|srq| ours(&srq.nic)) {
            return Err(invalid(String::from("one of its queues is another device's (QP-2)"))
                .cure("make them on the device that makes the queue pair"));
        }
        if !Arc::ptr_eq(&init.send_cq.domain, &init.recv_cq.domain) {
            return Err(invalid(String::from("its completion queues belong to different threads"))
                .cure("make both Sharing::Shared, or use one for both"));
        }
        if init.srq.is_some_and(|srq| srq.xrc.is_some()) {
            let answer = "its shared receive queue is one of an XRC domain (QX-19)";
            return Err(invalid(String::from(answer)).cure("senders name such a queue"));
        }
        if init.kind == QpType::XrcRecv {
            return Err(invalid(String::from("XRC_RECV has a domain instead of queues (QX-5)")));
        }
        self.add_qp(init)
    }

    /// A completion queue of a domain.
    fn cq_in(
        &self,
        domain: &Arc<Domain>,
        (depth, bell): (u32, Option<Bell>),
        stamps: Option<Stamps>,
    ) -> SoftCq {
        let index = domain.add_cq(CompletionQueue::new(depth, bell.clone(), stamps));
        let place = Arc::new(CqPlace { nic: self.nic.clone(), domain: domain.clone(), index });
        SoftCq { domain: domain.clone(), index, bell, place }
    }

    /// A number for a queue pair.
    fn take_number(&self) -> Result<u32, SetupError> {
        self.nic.take_number().ok_or_else(|| {
            SetupError::new(Code::NoMemory, "a queue pair", "all numbers are in use")
                .cure("close connections first")
        })
    }

    fn add_qp(&self, init: &SoftQpInit<'_>) -> Result<SoftQp, SetupError> {
        let mut caps = init.caps;
        caps.send_sge = self.nic.caps.send_sge_max;
        caps.recv_sge = 1;
        if init.kind == QpType::XrcSend {
            (caps.recv_wr, caps.recv_sge) = (0, 0);
        }
        let queue = match init.srq {
            Some(srq) => {
                caps.recv_wr = 0;
                srq.queue.clone()
            }
            None => Arc::new(RecvQueue::new(self.nic.next_queue(), caps.recv_wr, self.pd.mark())),
        };
        let num = self.take_number()?;
        let (datagrams, groups) = match init.kind {
            QpType::Ud | QpType::RawPacket => self
                .datagrams(num, init.kind, init.send_cq, init.ex)
                .map(|(one, two)| (Some(one), Some(two)))?,
            _ => (None, None),
        };
        let parts = QpParts {
            num,
            kind: init.kind,
            send_cq: init.send_cq.index,
            recv_cq: init.recv_cq.index,
            rq_shared: init.srq.is_some(),
            signal_all: init.signal_all,
            pd: self.pd.mark(),
            key: queue.id(),
        };
        let mut context = Box::new(QpContext::new(&parts, caps));
        context.datagrams = datagrams;
        let cqs = Some((init.send_cq.clone(), init.recv_cq.clone()));
        let kept = (cqs, None, Some(self.pd.clone()));
        Ok(SoftQp::new((&self.nic, &init.send_cq.domain), context, caps, queue, kept)
            .with_groups(groups))
    }

    /// The GID by which address handles lead here; all zero if none does.
    pub fn gid(&self) -> Gid {
        self.nic.gid
    }
}

/// What a queue pair is made of.
pub struct SoftQpInit<'a> {
    /// The transport.
    pub kind: QpType,
    /// Where sends complete.
    pub send_cq: &'a SoftCq,
    /// Where receives complete.
    pub recv_cq: &'a SoftCq,
    /// The shared receive queue, if it has none of its own.
    pub srq: Option<&'a SoftSrq>,
    /// Capacities wanted.
    pub caps: QpCaps,
    /// Every send completes (SQ-8).
    pub signal_all: bool,
    /// What the extended call has besides.
    pub ex: SoftQpEx<'a>,
}

/// What a queue pair is made with by the extended call (`ibv_create_qp_ex`). Whether it goes
/// together with the type is for the caller to look at.
#[derive(Clone, Copy, Default)]
pub struct SoftQpEx<'a> {
    /// Flags of creation (QX-6).
    pub create_flags: CreateFlags,
    /// The longest header of a segmented send; 0 for none of those (QX-7).
    pub max_tso_header: u16,
    /// The work queues that receives go to instead of one of its own, and by what (QX-8).
    pub spread: Option<(&'a SoftIndTable, &'a RxHash)>,
}

impl Provider for Soft {
    type Region = SoftRegion;
    type Cq = SoftCq;
    type Poller = SoftPoller;
    type PollerEx = SoftPollerEx;
    type Srq = SoftSrq;
    type Window = SoftWindow;
    type Qp = SoftQp;
    type Xrcd = SoftXrcd;
    type Td = SoftTd;
    type Ah = SoftAh;

    fn caps(&self) -> &Caps {
        &self.nic.caps
    }

    fn query_port(&self, port: u8) -> Result<PortAttr, SetupError> {
        self.nic.port(port)
    }

    fn query_gid(&self, port: u8, index: u32) -> Result<Gid, SetupError> {
        self.nic.port_entry(port, index).map(|()| self.nic.gid)
    }

    fn query_pkey(&self, port: u8, index: u32) -> Result<u16, SetupError> {
        // That of the default partition, with full membership.
        self.nic.port_entry(port, index).map(|()| 0xffff)
    }

    fn alloc_pd(&self) -> Result<Soft, SetupError> {
        Ok(Soft { pd: Pd::new(&self.nic)?, ..self.clone() })
    }

    unsafe fn alloc_td(&self) -> Result<SoftTd, SetupError> {
        Ok(SoftTd::new(&self.nic))
    }

    fn td_users(td: &SoftTd) -> usize {
        td.users()
    }

    fn alloc_parent_domain(&self, td: Option<&SoftTd>) -> Result<Soft, SetupError> {
        if td.is_some_and(|td| !Arc::ptr_eq(&td.nic, &self.nic)) {
            let answer = "the thread domain is of another device";
            return Err(SetupError::new(Code::Invalid, "a parent domain", answer));
        }
        Ok(Soft { pd: self.pd.within_parent(td), ..self.clone() })
    }

    fn is_same_device(&self, other: &Soft) -> bool {
        Arc::ptr_eq(&self.nic, &other.nic)
    }

    fn pd_users(&self) -> usize {
        self.pd.users()
    }

    /// Memory that processes of this machine can map, if they find each other: then a WRITE there
    /// is carried out by who posts it, and no record goes through the ring.
    fn peer_memory(&self, len: usize) -> Result<Mapping, SetupError> {
        match &self.nic.host.neighbours {
            Some(neighbours) => (neighbours.memory)(len),
            None => crate::provider::heap::zeroed(len),
        }
    }

    fn register(&self, memory: Mapping, access: Access) -> Result<SoftRegion, SetupError> {
        self.new_region(memory, access)
    }

    fn reregister(&self, region: SoftRegion, change: Rereg) -> Reregistered<SoftRegion> {
        self.change_region(region, change)
    }

    fn create_cq_on(
        &self,
        depth: u32,
        sharing: Sharing,
        comp_vector: u32,
    ) -> Result<(SoftCq, SoftPoller), SetupError> {
        check_depth("completion queue", depth, self.nic.caps.cqe_max)?;
        self.check_vector(comp_vector)?;
        let domain = match sharing {
            Sharing::Shared => self.shared.clone(),
            Sharing::Exclusive => Arc::new(Domain::new(&self.nic, sharing)),
        };
        // A worker's completions go straight to its poller: its queue needs no ring, and what wakes
        // it is the domain's own bell.
        let room = match sharing {
            Sharing::Shared => (depth, (self.nic.host.bell)()),
            Sharing::Exclusive => (0, None),
        };
        let cq = self.cq_in(&domain, room, None);
        Ok((cq.clone(), SoftPoller { cq }))
    }

    fn create_cq_ex(&self, init: &CqInit) -> Result<(SoftCq, SoftPollerEx), SetupError> {
        self.extended_cq(init)
    }

    /// A queue that is [`Sharing::Exclusive`] keeps no entries, so that any size will do.
    fn resize_cq(&self, cq: &SoftCq, depth: u32) -> Result<u32, SetupError> {
        check_depth("completion queue", depth, self.nic.caps.cqe_max)?;
        let asked = || format!("a completion queue of {depth}");
        if !Arc::ptr_eq(&self.nic, &cq.place.nic) {
            let answer = "the queue is of another device";
            return Err(SetupError::new(Code::Invalid, asked(), answer));
        }
        match cq.domain.resize_cq(cq.index, depth) {
            Ok(()) => Ok(depth),
            Err(count) => {
                let answer = format!("{count} completions are in it (CP-8)");
                Err(SetupError::new(Code::Invalid, asked(), answer).cure("poll them first"))
            }
        }
    }

    fn create_srq(&self, depth: u32) -> Result<SoftSrq, SetupError> {
        check_depth("shared receive queue", depth, self.nic.caps.srq_wr_max)?;
        let queue = Arc::new(RecvQueue::new(self.nic.next_queue(), depth, self.pd.mark()));
        Ok(SoftSrq { xrc: None, nic: self.nic.clone(), queue, _pd: self.pd.clone() })
    }

    fn open_xrcd(&self) -> Result<SoftXrcd, SetupError> {
        Ok(self.new_xrcd())
    }

    fn default_xrcd(&self) -> Result<SoftXrcd, SetupError> {
        Ok(self.common_xrcd())
    }

    fn create_xrc_srq(
        &self,
        xrcd: &SoftXrcd,
        cq: &SoftCq,
        depth: u32,
    ) -> Result<SoftSrq, SetupError> {
        self.new_xrc_srq(xrcd, cq, depth)
    }

    fn create_window(&self, kind: WindowKind) -> Result<SoftWindow, SetupError> {
        match self.nic.memory.insert_window(self.pd.mark()) {
            Some(key) => Ok(SoftWindow { nic: self.nic.clone(), kind, key, _pd: self.pd.clone() }),
            None => Err(table_full(String::from("a memory window"))),
        }
    }

    fn cq_id(&self, cq: &SoftCq) -> u64 {
        cq.domain.cq_id(cq.index)
    }

    fn next_async_event(&self) -> Option<AsyncEvent> {
        self.nic.next_event()
    }

    fn async_fd(&self) -> Option<i32> {
        self.nic.events_bell.as_ref().map(Bell::fd)
    }

    fn create_ah(&self, to: &AddressVector) -> Result<SoftAh, SetupError> {
        let gid = to.route.map(|route| route.gid).unwrap_or_default();
        SoftAh::new(&self.nic.caps.device, gid, &self.nic.host, &self.pd).ok_or_else(|| {
            let asked = format!("an address handle to {gid}");
            SetupError::new(Code::NoDevice, asked, "there is no such device, or not any more")
                .cure("take the address from an event or a datagram of that device")
        })
    }

    fn sender_of(&self, wc: &Wc, header: &[u8; GRH_BYTES]) -> Result<AddressVector, SetupError> {
        if wc.status.is_ok() && wc.flags.contains(WcFlags::GRH) {
            return Ok(AddressVector::to(datagram::sender_in(header)));
        }
        let answer = "the completion is not of a datagram with its header";
        Err(SetupError::new(Code::Invalid, "the way back to a sender", answer))
    }
}

fn table_full(asked: String) -> SetupError {
    let answer = format!("all {} entries of the region table are taken", memory::REGIONS);
    SetupError::new(Code::NoMemory, asked, answer).cure("register fewer, larger regions")
}

fn check_depth(what: &str, depth: u32, max: u32) -> Result<(), SetupError> {
    if depth == 0 || depth > max {
        return Err(SetupError::new(
            Code::Invalid,
            format!("a {what} of {depth}"),
            format!("this device takes 1 to {max}"),
        ));
    }
    Ok(())
}

/// A queue pair of the soft device.
pub struct SoftQp {
    nic: Arc<Nic>,
    domain: Arc<Domain>,
    context: NonNull<QpContext>,
    queue: Arc<RecvQueue>,
    num: u32,
    kind: QpType,
    caps: QpCaps,
    /// What links of its connections are told apart by.
    key: u32,
    shared_queue: bool,
    /// Not gone before the queue pair that is theirs.
    _kept: Kept,
    groups: Option<Arc<Groups>>,
    /// Ends with the queue pair.
    life: Arc<()>,
}

/// What a queue pair belongs to: completion queues and a protection domain, or an XRC domain.
type Kept = (Option<(SoftCq, SoftCq)>, Option<SoftXrcd>, Option<Pd>);

// SAFETY: the context lives in the domain until this handle asks for its destruction, and is
// touched only inside `Domain::enter`.
unsafe impl Send for SoftQp {}

/// The figures of a connection, for [`SoftQp::connect`].
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

impl SoftQp {
    /// Gives a queue pair to its domain.
    fn new(
        (nic, domain): (&Arc<Nic>, &Arc<Domain>),
        context: Box<QpContext>,
        caps: QpCaps,
        queue: Arc<RecvQueue>,
        kept: Kept,
    ) -> SoftQp {
        let (num, kind, key) = (context.num, context.kind, context.key);
        let shared_queue = context.rq_shared || kind.is_xrc() || context.is_spread();
        let context = NonNull::from(Box::leak(context));
        domain.command(Command::Add(Owned(context), queue.clone(), Default::default()));
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

    fn with_groups(mut self, groups: Option<Arc<Groups>>) -> SoftQp {
        self.groups = groups;
        self
    }

    /// The transport.
    pub fn kind(&self) -> QpType {
        self.kind
    }

    /// What a link must join: the domain and the receive queue, as numbers of this device.
    pub fn place(&self) -> (u32, u32) {
        (self.domain.id, self.key)
    }

    /// Brings a new link to this queue pair's domain, before any queue pair connects over it.
    pub fn attach(&self, link: &Arc<LinkShared>) {
        self.breaker().attach(link);
    }

    /// See [`QpControl::connect`].
    pub fn connect(&mut self, link: &Arc<LinkShared>, wiring: Wiring) {
        self.breaker().connect(link, wiring);
    }

    /// The peer is gone for good: the oldest outstanding send ends with
    /// [`crate::wc::Status::RetryExceeded`], the rest is flushed.
    pub fn fail_lost(&mut self) {
        self.breaker().fail_lost();
    }

    /// A handle by which the control plane can connect and fail the queue pair that a worker
    /// owns.
    pub fn breaker(&self) -> QpControl {
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

impl Qp for SoftQp {
    type Window = SoftWindow;

    unsafe fn bind(
        &mut self,
        window: &mut SoftWindow,
        binding: Binding,
        wr_id: u64,
        flags: SendFlags,
    ) -> Result<u32, PostError> {
        if window.kind != WindowKind::One {
            return Err(PostError { accepted: 0, cause: PostCause::Malformed });
        }
        let rkey = window.key & !0xff | window.key.wrapping_add(1) & 0xff;
        let handle = window.handle() | BOUND_BY_CALL;
        let op = SendOp::Bind(Binding { window: handle, rkey, ..binding });
        let wr = SendWr { wr_id, op, flags, sge: Sge::default(), more: &[] };
        // SAFETY: as in `post`; the request has no buffers.
        unsafe {
            self.domain.enter(|state| state.post(&mut *self.context.as_ptr(), &[wr]))?;
        }
        window.key = rkey;
        Ok(rkey)
    }

    fn num(&self) -> u32 {
        self.num
    }

    fn caps(&self) -> QpCaps {
        self.caps
    }

    #[inline(always)]
    unsafe fn post(&mut self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: on an exclusive domain the caller is the polling thread, by the contract of
        // `Qp::post`; a shared one is locked. The context lives until this handle is dropped,
        // and `enter` has carried out the command that gave it to the domain.
        unsafe { self.domain.enter(|state| state.post(&mut *self.context.as_ptr(), list)) }
    }

    const POSTS_INLINE: bool = true;

    #[inline(always)]
    unsafe fn post_inline(&mut self, send: InlineSend, doorbell: Doorbell) -> bool {
        let InlineSend { wr_id, sge, imm, signaled } = send;
        let (plain, now) = (imm.is_none() && !signaled, doorbell == Doorbell::Now);
        // SAFETY: as the caller vouches.
        unsafe {
            if plain && if now { self.post_next(wr_id, sge) } else { self.hold_more(wr_id, sge) } {
                return true;
            }
            if now {
                self.post_checked::<true>(wr_id, signaled, imm, sge.addr, sge.length)
            } else {
                self.post_checked::<false>(wr_id, signaled, imm, sge.addr, sge.length)
            }
        }
    }

    #[inline(always)]
    unsafe fn post_inline_list(&mut self, first: u64, list: &[&[u8]]) -> usize {
        if self.domain.sharing() == Sharing::Shared {
            return 0;
        }
        // SAFETY: as in `post`.
        unsafe { self.domain.alone().hold_list(&mut *self.context.as_ptr(), first, list) }
    }

    #[inline(always)]
    unsafe fn ring_doorbell(&mut self) {
        // SAFETY: as in `post`.
        unsafe { self.domain.enter(|state| state.ring(&mut *self.context.as_ptr())) }
    }

    unsafe fn post_recv(&mut self, list: &[RecvWr]) -> Result<(), PostError> {
        if self.shared_queue {
            return Err(PostError { accepted: 0, cause: PostCause::State });
        }
        let result = self.queue.post(list);
        // SAFETY: as in `post`.
        unsafe {
            self.domain.enter(|state| {
                let qp = &mut *self.context.as_ptr();
                if qp.state == State::Err {
                    state.transport.res.schedule(qp);
                }
            });
        }
        result
    }

    fn fail(&mut self) {
        self.domain.ask(Command::Fail { num: self.num, lost: false });
    }

    fn recover(&mut self) {
        self.domain.ask(Command::Recover { num: self.num });
    }

    fn attach_mcast(&mut self, group: Gid) -> Result<(), SetupError> {
        self.breaker().attach_mcast(group)
    }

    fn detach_mcast(&mut self, group: Gid) -> Result<(), SetupError> {
        self.breaker().detach_mcast(group)
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
