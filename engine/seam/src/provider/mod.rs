//! The seam: the only place that knows a NIC exists. A NIC, a fault injector or a trace is an
//! implementation of [`Provider`], never an `if` in the worker.
//!
//! Three hot verbs, all on slices: [`Poller::poll`], [`Srq::post`], [`Qp::post`]. One slice, one
//! doorbell. An empty poll is 0, not an error.

mod caps;
mod cq_ex;
mod extended;
#[cfg(feature = "sim")]
pub mod fault;
mod frames;
pub mod heap;
mod rereg;
mod transport;
pub mod wake;

use bitflags::bitflags;
use doorbell_alloc::Mapping;

pub use self::caps::{Atomics, Caps, LinkLayer, PortAttr, PortState};
pub use self::cq_ex::{CqFlags, CqInit, PollerEx, WcEx, WcFields};
pub use self::extended::{AttrMask, CreateFlags, SendOps};
pub use self::frames::{
    FlowRule, HASH_KEY_BYTES, HashFields, HashFunction, Mac, RxHash, Wq, WqFlags, WqState,
};
pub use self::rereg::{Left, Rereg, ReregFailed, ReregFlags, Reregistered};
pub use self::transport::{AddressHandle, AddressVector, GRH_BYTES, Gid, GlobalRoute, QpType};

use self::wake::{Bell, WakeFds};
use crate::error::SetupError;
use crate::event::AsyncEvent;
use crate::wc::Wc;
use crate::wr::{Binding, PostError, RecvWr, Remote, SendFlags, SendWr, Sge};

bitflags! {
    /// What a region may be used for (`enum ibv_access_flags`, MR-1). Local read is always on.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Receives and results of READs may be written here.
        const LOCAL_WRITE = 1;
        /// A peer may WRITE here; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 2;
        /// A peer may READ from here.
        const REMOTE_READ = 4;
        /// A peer may do atomics here; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to it.
        const MW_BIND = 16;
    }
}

impl Access {
    /// False if a peer may change bytes that the owner may not (MR-1).
    pub fn is_consistent(self) -> bool {
        let changes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        !self.intersects(changes) || self.contains(Access::LOCAL_WRITE)
    }
}

/// Who polls a completion queue, and who posts on the queue pairs that use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One thread at a time does both: no locks (a worker).
    Exclusive,
    /// Any thread may post while any other polls; the device locks where it must.
    Shared,
}

/// Capacities of a queue pair (`struct ibv_qp_cap`): asked for, and what came back (QP-10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCaps {
    /// Send requests outstanding.
    pub send_wr: u32,
    /// Receive requests outstanding; ignored on a shared receive queue (SRQ-11).
    pub recv_wr: u32,
    /// Pieces of a send request.
    pub send_sge: u32,
    /// Pieces of a receive request.
    pub recv_sge: u32,
    /// Bytes of an inline payload.
    pub inline: u32,
}

/// One device, open. Cloning gives another handle on the same device.
pub trait Provider: Clone + Send + Sync + Sized + 'static {
    /// Registered memory.
    type Region: Region;
    /// A completion queue as a resource: named when a queue pair is made.
    type Cq: Clone + Send + Sync + 'static;
    /// The one reader of a completion queue.
    type Poller: Poller + Send + 'static;
    /// The one reader of an extended completion queue.
    type PollerEx: PollerEx + Send + 'static;
    /// A shared receive queue; several workers post to it.
    type Srq: Srq + Clone + Send + Sync + 'static;
    /// A memory window.
    type Window: Window;
    /// A queue pair, owned by one worker or id. Dropping it destroys it.
    type Qp: Qp<Window = Self::Window> + Send + 'static;

    /// A domain of extended reliable connections.
    type Xrcd: Clone + Send + Sync + 'static;

    /// A thread domain.
    type Td: Clone + Send + Sync + 'static;

    /// The way to a port or a multicast group, for datagrams.
    type Ah: AddressHandle + Clone + Send + Sync + 'static;

    /// The limits of the device.
    fn caps(&self) -> &Caps;

    /// What a port is, and how it is now (`ibv_query_port`); they count from 1 to
    /// [`Caps::ports`].
    ///
    /// # Errors
    /// `Invalid`: there is no such port; what the device answers.
    fn query_port(&self, port: u8) -> Result<PortAttr, SetupError>;

    /// An entry of a port's table of GIDs (`ibv_query_gid`); one that is not used may be all zero,
    /// or an error.
    ///
    /// # Errors
    /// `Invalid`: no such port or entry; what the device answers.
    fn query_gid(&self, port: u8, index: u32) -> Result<Gid, SetupError>;

    /// An entry of a port's table of partition keys (`ibv_query_pkey`).
    ///
    /// # Errors
    /// As for [`Provider::query_gid`].
    fn query_pkey(&self, port: u8, index: u32) -> Result<u16, SetupError>;

    /// Another handle on the same device, with a protection domain of its own (`ibv_alloc_pd`): to
    /// that belong the memory, receive queues, windows, address handles and queue pairs that are
    /// made through it. Keys are good within their domain (MR-2). Completion queues, XRC domains
    /// and ids are the device's. The domain goes with all that belongs to it.
    ///
    /// # Errors
    /// The device's limit.
    fn alloc_pd(&self) -> Result<Self, SetupError>;

    /// Makes a thread domain (`ibv_alloc_td`): a promise for which some devices leave out locks and
    /// give a doorbell of its own. It goes with the parent domains that name it.
    ///
    /// # Errors
    /// `NotSupported`: the device has none ([`Caps::thread_domains`]).
    ///
    /// # Safety
    /// What is made on parent domains that name it, all of that together, is posted to and polled
    /// by one thread at a time, and not while it is moved to RESET or destroyed. Otherwise any
    /// thread may make, change and destroy it: those calls are the system's, which locks by itself.
    /// Some drivers keep posts out by the queue's lock while they move it to ERR: without it, a
    /// request that is posted at just that moment may be flushed no sooner than the next one is.
    #[expect(unsafe_code, reason = "devices rely on the promise")]
    unsafe fn alloc_td(&self) -> Result<Self::Td, SetupError>;

    /// Handles on a thread domain, and the parent domains that name it.
    fn td_users(td: &Self::Td) -> usize;

    /// Makes a parent domain (`ibv_alloc_parent_domain`): another handle on the protection domain
    /// of this one, which stands for that in every call. What is made on it is under the thread
    /// domain's promise: queue pairs, shared receive queues, and extended completion queues. The
    /// protection domain goes after it.
    ///
    /// # Errors
    /// `NotSupported`: the device has none ([`Caps::parent_domains`]); `Invalid`: the thread domain
    /// is another device's.
    fn alloc_parent_domain(&self, td: Option<&Self::Td>) -> Result<Self, SetupError>;

    /// True if both are handles on one device: what is made through one goes with what is made
    /// through the other, but for protection domains.
    fn is_same_device(&self, other: &Self) -> bool;

    /// Handles on the protection domain of this one, itself among them, and what belongs to it.
    fn pd_users(&self) -> usize;

    /// Memory for words that peers write: at least `len` bytes, zeroed, in pages of their own, of
    /// the kind that the device's peers reach best.
    ///
    /// # Errors
    /// `NoMemory`.
    fn peer_memory(&self, len: usize) -> Result<Mapping, SetupError> {
        heap::zeroed(len)
    }

    /// Registers memory (`ibv_reg_mr`). The region owns the mapping: it deregisters first and
    /// unmaps second, so no device ever writes to memory that is gone.
    ///
    /// # Errors
    /// Access flags that do not go together (MR-1), or the device's refusal, with its cure.
    fn register(&self, memory: Mapping, access: Access) -> Result<Self::Region, SetupError>;

    /// Registers a region as something else (`ibv_rereg_mr`, MR-5): with other rights, in the
    /// protection domain of this handle, or of other memory. The region comes back, and with it the
    /// memory it was of, if that changed. Its keys may be new, and the old ones then open nothing;
    /// memory windows bound to it close. To requests that use it this is as if it were
    /// deregistered: what [`Qp::post`] and [`Srq::post`] ask for ends here.
    ///
    /// # Errors
    /// `Invalid`: access flags that do not go together (MR-1), a region of another device;
    /// `NotSupported`: the device cannot ([`Caps::rereg`]). [`ReregFailed`] says what is left.
    fn reregister(&self, region: Self::Region, change: Rereg) -> Reregistered<Self::Region>;

    /// Makes a completion queue of at least `depth` entries (`ibv_create_cq`) and its reader.
    ///
    /// # Errors
    /// `depth` of 0 or over the device's limit.
    fn create_cq(
        &self,
        depth: u32,
        sharing: Sharing,
    ) -> Result<(Self::Cq, Self::Poller), SetupError> {
        self.create_cq_on(depth, sharing, 0)
    }

    /// As [`Provider::create_cq`], on that completion vector (`comp_vector`): which of the device's
    /// interrupts wakes who waits.
    ///
    /// # Errors
    /// As there; `Invalid`: the device has no such vector ([`Caps::comp_vectors`]).
    fn create_cq_on(
        &self,
        depth: u32,
        sharing: Sharing,
        comp_vector: u32,
    ) -> Result<(Self::Cq, Self::Poller), SetupError>;

    /// Makes an extended completion queue (`ibv_create_cq_ex`, CP-9) and its reader. Queue pairs
    /// take it as any other; it is [`Sharing::Shared`].
    ///
    /// # Errors
    /// As for [`Provider::create_cq_on`]; `NotSupported`: the device lacks one of the fields or
    /// flags ([`Caps::wc_fields`], [`Caps::cq_flags`]), or such queues at all.
    fn create_cq_ex(&self, init: &CqInit) -> Result<(Self::Cq, Self::PollerEx), SetupError>;

    /// Gives a completion queue room for at least `depth` entries (`ibv_resize_cq`, CP-8), and says
    /// for how many. What is in it stays, and it stays armed. One that is larger may stay so.
    ///
    /// # Errors
    /// `Invalid`: more than that are in it, `depth` is 0 or over the device's limit, or the queue
    /// is another device's. It stays as it was.
    fn resize_cq(&self, cq: &Self::Cq, depth: u32) -> Result<u32, SetupError>;

    /// Makes a shared receive queue for at least `depth` requests (`ibv_create_srq`).
    ///
    /// # Errors
    /// `depth` of 0 or over the device's limit.
    fn create_srq(&self, depth: u32) -> Result<Self::Srq, SetupError>;

    /// Opens a domain of extended reliable connections of this process (`ibv_open_xrcd` with no
    /// file).
    ///
    /// # Errors
    /// `NotSupported`: the device has none ([`Caps::xrc`]).
    fn open_xrcd(&self) -> Result<Self::Xrcd, SetupError>;

    /// The domain that serves who names none, one for each device: opened when it is first asked
    /// for (QP-16).
    ///
    /// # Errors
    /// As for [`Provider::open_xrcd`].
    fn default_xrcd(&self) -> Result<Self::Xrcd, SetupError>;

    /// Makes a shared receive queue of a domain (`ibv_create_srq_ex` with `IBV_SRQT_XRC`), for at
    /// least `depth` receives, which complete in `cq`.
    ///
    /// # Errors
    /// `depth` of 0 or over the device's limit; `NotSupported`: the device has none, or not with a
    /// completion queue that is [`Sharing::Exclusive`].
    fn create_xrc_srq(
        &self,
        xrcd: &Self::Xrcd,
        cq: &Self::Cq,
        depth: u32,
    ) -> Result<Self::Srq, SetupError>;

    /// Makes a memory window, closed (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// The device has none, or none left.
    fn create_window(&self, kind: WindowKind) -> Result<Self::Window, SetupError>;

    /// By what number events name a completion queue.
    fn cq_id(&self, cq: &Self::Cq) -> u64;

    /// The next asynchronous event, if there is one (`ibv_get_async_event`, section 2.9). It is
    /// acknowledged as it is taken, so nothing that is destroyed later waits for it.
    fn next_async_event(&self) -> Option<AsyncEvent>;

    /// A descriptor that is readable when there is one; `None` where nobody can be woken.
    fn async_fd(&self) -> Option<i32>;

    /// Makes an address handle (`ibv_create_ah`).
    ///
    /// # Errors
    /// `Invalid` or `NoDevice`: nothing is reached by that address.
    fn create_ah(&self, to: &AddressVector) -> Result<Self::Ah, SetupError>;

    /// The way back to the sender of a datagram (`ibv_init_ah_from_wc`): `header` is the first
    /// [`GRH_BYTES`] of its receive.
    ///
    /// # Errors
    /// `Invalid`: the completion is not of a datagram with a header (its flag says so).
    fn sender_of(&self, wc: &Wc, header: &[u8; GRH_BYTES]) -> Result<AddressVector, SetupError>;
}

/// Registered memory. The bytes stay mapped and registered until it is dropped.
///
/// # Implementation safety
/// `as_ptr()..as_ptr() + len()` is valid for reads and writes for the life of the value, at one
/// address.
#[expect(unsafe_code, reason = "raw pointers handed out here are trusted by the worker")]
pub unsafe trait Region: Send + Sync + 'static {
    /// First byte.
    fn as_ptr(&self) -> *mut u8;
    /// Bytes, as mapped (a multiple of the page).
    fn len(&self) -> usize;
    /// True where there is not one byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Key for local use, in an [`crate::wr::Sge`].
    fn lkey(&self) -> u32;
    /// Key a peer needs for one-sided access.
    fn rkey(&self) -> u32;
    /// By what number a [`crate::wr::Binding`] names it.
    fn handle(&self) -> u64;
    /// What a peer is told, for one-sided access to the bytes from `offset` on.
    fn remote(&self, offset: usize) -> Remote {
        Remote { addr: (self.as_ptr() as u64).wrapping_add(offset as u64), rkey: self.rkey() }
    }
}

/// Kinds of memory windows (`enum ibv_mw_type`, numbers as there; MW-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WindowKind {
    /// Bound by [`Qp::bind`], which chooses the key; open to every queue pair of the device's
    /// domain, until bound anew.
    One = 1,
    /// Bound by [`crate::wr::SendOp::Bind`], with a key of the poster's choice; open to the peer of
    /// that queue pair, until invalidated by either.
    Two = 2,
}

/// A memory window: part of a region, opened and closed by requests. Dropping it closes it. A
/// region that goes closes the windows bound to it.
pub trait Window: Send + Sync + 'static {
    /// Its kind.
    fn kind(&self) -> WindowKind;
    /// The key it was made with, or was last given by [`Qp::bind`]. Of type 2: the upper 24 bits of
    /// each key it can have.
    fn rkey(&self) -> u32;
    /// By what number a [`crate::wr::Binding`] names it.
    fn handle(&self) -> u64;
    /// A request that opens it under that key has been posted: some devices want to be told the
    /// last key with the next such request.
    fn set_rkey(&mut self, _rkey: u32) {}
}

/// What [`Poller::poll_one`] found.
#[derive(Clone, Copy, Debug)]
pub enum Polled {
    /// The queue is empty.
    Nothing,
    /// One completion, taken.
    One(Wc),
    /// A list has to be polled for.
    More,
}

/// The reader of a completion queue.
pub trait Poller {
    /// Takes up to `out.len()` completions, oldest first, and says how many (CP-4). 0 is an
    /// empty queue.
    fn poll(&mut self, out: &mut [Wc]) -> usize;

    /// Takes the next completion by itself, where a device can give it with less work than a list,
    /// as that of a message that came alone. [`Polled::More`]: nothing was taken, and only
    /// [`Poller::poll`] knows whether there is something.
    #[inline(always)]
    fn poll_one(&mut self) -> Polled {
        Polled::More
    }

    /// [`Poller::poll`] for who has just heard [`Polled::More`]: what `poll_one` has looked at need
    /// not be looked at again.
    #[inline(always)]
    fn poll_more(&mut self, out: &mut [Wc]) -> usize {
        self.poll(out)
    }

    /// True if the queue was overrun or failed, and gives nothing more for good (CP-4, CP-5).
    fn is_broken(&self) -> bool {
        false
    }

    /// Asks to be woken by the next completion (`ibv_req_notify_cq`, CP-6): the descriptors of
    /// [`Poller::wake_fds`] become readable then. Completions that were there before wake nobody,
    /// so poll once more before sleeping. `solicited`: only by a message whose sender asked for
    /// that, or an error; a device may wake for less.
    ///
    /// # Errors
    /// `NotSupported`: nobody can be woken here.
    fn arm(&mut self, solicited: bool) -> Result<(), SetupError>;

    /// What to wait on; `None` where nobody can be woken.
    fn wake_fds(&self) -> Option<WakeFds>;

    /// To be called when a wait is over, however it ended: makes the descriptors unreadable again,
    /// and says whether the completion that was waited for has come. If not, the queue is still
    /// armed, and who wants to sleeps on.
    fn woken(&mut self) -> bool;

    /// What other threads ring to wake this poller, besides the device.
    fn bell(&self) -> Option<Bell>;
}

/// A shared receive queue.
pub trait Srq {
    /// The depth that came back (SRQ-3).
    fn depth(&self) -> u32;

    /// Gives it room for at least `depth` receives (`ibv_modify_srq` with `IBV_SRQ_MAX_WR`, section
    /// 2.7); [`Srq::depth`] says for how many. What is in it stays. One that is larger may stay so.
    ///
    /// # Errors
    /// `Invalid`: more than that are in it, the limit is more, or `depth` is 0 or over the device's
    /// limit; `NotSupported`: the device cannot ([`Caps::srq_resize`]). It stays as it was.
    fn resize(&self, depth: u32) -> Result<(), SetupError>;

    /// By what number events name it.
    fn id(&self) -> u64;

    /// The number by which senders name it (`ibv_get_srq_num`, SRQ-10); none of one that is not of
    /// an [XRC domain](Provider::create_xrc_srq).
    fn number(&self) -> Option<u32>;

    /// Asks for one event when fewer receives than that are left (`ibv_modify_srq`, section 2.7);
    /// 0 asks for none. Once it has come, the limit is 0 again.
    ///
    /// # Errors
    /// A limit over the depth, or the device's refusal.
    fn set_limit(&self, limit: u32) -> Result<(), SetupError>;

    /// The limit as it stands (`ibv_query_srq`).
    ///
    /// # Errors
    /// The device's refusal.
    fn limit(&self) -> Result<u32, SetupError>;

    /// Posts receives, oldest first, with one doorbell (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// The buffers stay registered, and nobody else touches them, until their completions were
    /// polled or every queue pair on this queue and the queue itself are gone.
    #[expect(unsafe_code, reason = "the device writes to the buffers behind Rust's back")]
    unsafe fn post(&self, list: &[RecvWr]) -> Result<(), PostError>;
}

/// When a device is rung for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// At once.
    Now,
    /// With a later one: more is to follow.
    Later,
}

/// An inline SEND, see [`Qp::post_inline`].
#[derive(Clone, Copy, Debug)]
pub struct InlineSend {
    /// Number of the request.
    pub wr_id: u64,
    /// The payload; its key is not looked at.
    pub sge: Sge,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Asks for a completion.
    pub signaled: bool,
}

/// A queue pair.
pub trait Qp {
    /// The device's memory windows.
    type Window: Window;

    /// Posts a request that opens a window of type 1, or closes it with a length of 0
    /// (`ibv_bind_mw`, MW-1), and says under what key: that of the binding is not looked at. The
    /// key opens it once the request has completed.
    ///
    /// # Errors
    /// See [`PostError`]; a window of the other type is [`crate::wr::PostCause::Malformed`].
    ///
    /// # Safety
    /// The region that the binding names lives until the request has completed.
    #[expect(unsafe_code, reason = "the device is given the region by address")]
    unsafe fn bind(
        &mut self,
        window: &mut Self::Window,
        binding: Binding,
        wr_id: u64,
        flags: SendFlags,
    ) -> Result<u32, PostError>;

    /// Its number (QX-13).
    fn num(&self) -> u32;

    /// The capacities that came back, each at least what was asked (QX-11).
    fn caps(&self) -> QpCaps;

    /// Posts send requests in order with one doorbell (`ibv_post_send`).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// Buffers that are not inline stay registered and unchanged until a completion of the same
    /// or a later request was polled, or the queue pair is gone; so do the region that a
    /// [`crate::wr::SendOp::Bind`] names, whose window is there for the call and looked up by its
    /// number later, and the address handle of a datagram. With
    /// [`Sharing::Exclusive`] the caller is the thread that polls the completion queue.
    #[expect(unsafe_code, reason = "the device reads the buffers behind Rust's back")]
    unsafe fn post(&mut self, list: &[SendWr<'_>]) -> Result<(), PostError>;

    /// True if [`Qp::post_inline`] and [`Qp::post_inline_list`] take messages, so that no list of
    /// requests has to be made for them.
    const POSTS_INLINE: bool = false;

    /// Posts one inline SEND. With [`Doorbell::Later`] the peer sees it with the next
    /// [`Qp::ring_doorbell`] or [`Qp::post`] of this queue pair at the latest. False: nothing was
    /// done, because the device cannot simply take it; [`Qp::post`] takes it, or says why not.
    ///
    /// # Safety
    /// As for [`Qp::post`]; the payload is no longer than the inline limit.
    #[inline(always)]
    #[expect(unsafe_code, reason = "the device reads the buffer behind Rust's back")]
    unsafe fn post_inline(&mut self, send: InlineSend, doorbell: Doorbell) -> bool {
        let _ = (send, doorbell);
        false
    }

    /// Posts inline SENDs without completions or a doorbell, under numbers that follow `first`: how
    /// many were taken from the front of the list. It stops before a message that is longer than
    /// the inline limit, or that [`Qp::post_inline`] would not take.
    ///
    /// # Safety
    /// As for [`Qp::post`].
    #[inline(always)]
    #[expect(unsafe_code, reason = "a part of the contract of `post`")]
    unsafe fn post_inline_list(&mut self, first: u64, list: &[&[u8]]) -> usize {
        let _ = (first, list);
        0
    }

    /// Rings for what was posted with [`Doorbell::Later`].
    ///
    /// # Safety
    /// With [`Sharing::Exclusive`] the caller is the thread that polls the completion queue.
    #[inline(always)]
    #[expect(unsafe_code, reason = "the device is the polling thread's")]
    unsafe fn ring_doorbell(&mut self) {}

    /// Posts receives to the queue pair's own receive queue (`ibv_post_recv`).
    ///
    /// # Errors
    /// See [`PostError`]; on a shared receive queue always [`crate::wr::PostCause::State`].
    ///
    /// # Safety
    /// As for [`Srq::post`], until the queue pair is gone; and with [`Sharing::Exclusive`] the
    /// caller is the thread that polls the completion queue.
    #[expect(unsafe_code, reason = "the device writes to the buffers behind Rust's back")]
    unsafe fn post_recv(&mut self, list: &[RecvWr]) -> Result<(), PostError>;

    /// Moves the queue pair to ERR: what is outstanding completes as flushed (SM-2).
    fn fail(&mut self);

    /// Moves a queue pair of UC or UD from SQE, where a failed send has left it, back to RTS
    /// (`ibv_modify_qp`, section 2.1). In any other state nothing happens.
    fn recover(&mut self);

    /// Attaches a queue pair of UD to a multicast group (`ibv_attach_mcast`); a second time changes
    /// nothing. It leaves its groups when it is dropped.
    ///
    /// # Errors
    /// `Invalid`: not a queue pair of UD, or not a group; what the device answers.
    fn attach_mcast(&mut self, group: Gid) -> Result<(), SetupError>;

    /// Takes a queue pair out of a group (`ibv_detach_mcast`).
    ///
    /// # Errors
    /// `Invalid`: it is not in that group.
    fn detach_mcast(&mut self, group: Gid) -> Result<(), SetupError>;
}
