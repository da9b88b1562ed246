//! The seam: the only place that knows a NIC exists. A NIC, a fault injector or a trace is an
//! implementation of [`Provider`], never an `if` in the worker.
//!
//! Three hot verbs, all on slices: [`Poller::poll`], [`Srq::post`], [`Qp::post`]. One slice, one
//! doorbell. An empty poll is 0, not an error.

mod access;
#[cfg(feature = "sim")]
pub mod call;
mod caps;
mod cq_ex;
mod extended;
pub mod extension;
#[cfg(feature = "sim")]
pub mod fault;
mod frames;
pub mod heap;
mod rereg;
#[cfg(feature = "sim")]
pub mod trace;
mod transport;
pub mod wake;
#[cfg(feature = "sim")]
pub mod wrap;

use doorbell_alloc::Mapping;

pub use self::access::{Access, QpCaps, Sharing};
pub use self::caps::{Atomics, Caps, LinkLayer, PortAttr, PortState};
pub use self::cq_ex::{CqFlags, CqInit, WcEx, WcFields};
pub use self::extended::{AttrMask, CreateFlags, SendOps};
pub use self::extension::{
    AsyncEvents, ExtendedCq, Multicast, PollerEx, Ports, ProtectionDomains, Reregister, ResizeCq,
    SrqLimits, ThreadDomains, Window, WindowKind, Windows, Xrc, XrcSrq,
};
pub use self::frames::{
    FlowRule, HASH_KEY_BYTES, HashFields, HashFunction, Mac, RxHash, Wq, WqFlags, WqState,
};
pub use self::rereg::{Left, Rereg, ReregFailed, ReregFlags, Reregistered};
pub use self::transport::{AddressVector, GRH_BYTES, Gid, GlobalRoute, QpType};

use self::wake::{Bell, WakeFds};
use crate::error::{Code, SetupError};
use crate::wc::Wc;
use crate::wr::{AhName, PostError, RecvWr, Remote, SendWr, Sge};

/// An address handle (`struct ibv_ah`): the way of datagrams to a port or a group. It has to live
/// until what was sent by it has completed.
pub trait AddressHandle {
    /// What requests call it; good as long as one clone of the handle lives.
    fn name(&self) -> AhName;
}

/// Address handles and where datagrams come from. A device without datagrams has nothing to write
/// but `type Ah = NoAddress`.
pub trait Datagrams: Clone + Send + Sync + Sized + 'static {
    /// The way to a port or a multicast group.
    type Ah: AddressHandle + Clone + Send + Sync + 'static;

    /// Makes an address handle (`ibv_create_ah`).
    ///
    /// # Errors
    /// `Invalid` or `NoDevice`: nothing is reached by that address.
    fn create_ah(&self, to: &AddressVector) -> Result<Self::Ah, SetupError> {
        let asked = std_alloc::format!("an address handle to {to:?}");
        Err(SetupError::new(Code::NotSupported, asked, "the device has no datagrams"))
    }

    /// The way back to the sender of a datagram (`ibv_init_ah_from_wc`): `header` is the first
    /// [`GRH_BYTES`] of its receive.
    ///
    /// # Errors
    /// `Invalid`: the completion is not of a datagram with a header (its flag says so).
    fn sender_of(&self, wc: &Wc, header: &[u8; GRH_BYTES]) -> Result<AddressVector, SetupError> {
        let _ = (wc, header);
        let answer = "the device has no datagrams";
        Err(SetupError::new(Code::NotSupported, "the way back to a sender", answer))
    }
}

/// The address handle of a device without datagrams: there is none.
#[derive(Clone, Copy, Debug)]
pub enum NoAddress {}

impl AddressHandle for NoAddress {
    fn name(&self) -> AhName {
        match *self {}
    }
}

/// One device, open: what a worker needs of it. Cloning gives another handle on the same device.
///
/// A new device implements this trait with [`Region`], [`Poller`], [`Srq`] and [`Qp`], where most
/// methods have defaults, and [`Datagrams`]. What else a device can do are traits of their own, one
/// for each capability: see [`extension`].
pub trait Provider: Datagrams {
    /// Registered memory.
    type Region: Region;
    /// A completion queue as a resource: named when a queue pair is made.
    type Cq: Clone + Send + Sync + 'static;
    /// The one reader of a completion queue.
    type Poller: Poller + Send + 'static;
    /// A shared receive queue; several workers post to it.
    type Srq: Srq + Clone + Send + Sync + 'static;
    /// A queue pair, owned by one worker or id. Dropping it destroys it.
    type Qp: Qp + Send + 'static;

    /// The limits of the device.
    fn caps(&self) -> &Caps;

    /// Registers memory (`ibv_reg_mr`). The region owns the mapping: it deregisters first and
    /// unmaps second, so no device ever writes to memory that is gone.
    ///
    /// # Errors
    /// Access flags that do not go together (MR-1), or the device's refusal, with its cure.
    fn register(&self, memory: Mapping, access: Access) -> Result<Self::Region, SetupError>;

    /// Makes a completion queue of at least `depth` entries (`ibv_create_cq`) and its reader.
    ///
    /// # Errors
    /// `depth` of 0 or over the device's limit.
    fn create_cq(
        &self,
        depth: u32,
        sharing: Sharing,
    ) -> Result<(Self::Cq, Self::Poller), SetupError>;

    /// Makes a shared receive queue for at least `depth` requests (`ibv_create_srq`).
    ///
    /// # Errors
    /// `depth` of 0 or over the device's limit.
    fn create_srq(&self, depth: u32) -> Result<Self::Srq, SetupError>;

    /// Memory for words that peers write: at least `len` bytes, zeroed, in pages of their own, of
    /// the kind that the device's peers reach best.
    ///
    /// # Errors
    /// `NoMemory`.
    fn peer_memory(&self, len: usize) -> Result<Mapping, SetupError> {
        heap::zeroed(len)
    }

    /// A handle that makes queue pairs for one thread alone, where that spares the device locks or
    /// gives it a doorbell of its own; `None` where it makes no difference.
    ///
    /// # Errors
    /// The device's limit.
    ///
    /// # Safety
    /// As for [`extension::ThreadDomains::alloc_td`], for each call a thread of its own.
    #[expect(unsafe_code, reason = "devices rely on the promise")]
    unsafe fn for_one_thread(&self) -> Result<Option<Self>, SetupError> {
        Ok(None)
    }
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
    fn arm(&mut self, solicited: bool) -> Result<(), SetupError> {
        let _ = solicited;
        Err(SetupError::new(Code::NotSupported, "arm a completion queue", "it wakes nobody"))
    }

    /// What to wait on; `None` where nobody can be woken.
    fn wake_fds(&self) -> Option<WakeFds> {
        None
    }

    /// To be called when a wait is over, however it ended: makes the descriptors unreadable again,
    /// and says whether the completion that was waited for has come. If not, the queue is still
    /// armed, and who wants to sleeps on.
    fn woken(&mut self) -> bool {
        false
    }

    /// What other threads ring to wake this poller, besides the device.
    fn bell(&self) -> Option<Bell> {
        None
    }
}

/// A shared receive queue.
pub trait Srq {
    /// The depth that came back (SRQ-3).
    fn depth(&self) -> u32;

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
    /// (`ibv_modify_qp`, SM-6). In any other state nothing happens.
    fn recover(&mut self) {}
}
