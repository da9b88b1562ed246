//! The seam: the only place that knows a NIC exists. A NIC, a fault injector or a trace is an
//! implementation of [`Provider`], never an `if` in the worker.
//!
//! The data path is three calls on slices: [`Poller::poll`], [`Srq::post`], [`Qp::post`]. One slice
//! is one doorbell, and an empty poll is 0, not an error. [`Poller::poll_one`], [`Qp::post_inline`]
//! and [`Qp::post_inline_list`] are shorter ways that a device may offer for the same.

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
#[cfg(feature = "sim")]
mod wrap_extension;

use core::time::Duration;

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
    Bits, FlowRule, FrameFilter, HASH_KEY_BYTES, HashFields, HashFunction, IpFilter, Mac, RxHash,
    Wq, WqFlags, WqState,
};
pub use self::rereg::{Left, Rereg, ReregFailed, ReregFlags, Reregistered};
pub use self::transport::{AddressVector, GRH_BYTES, Gid, GlobalRoute, QpType};

use self::wake::{Notifier, WakeFds};
use crate::error::{Code, SetupError};
use crate::remote::{RemoteError, RemoteMemory};
use crate::wc::Wc;
use crate::wr::{AhName, PostError, RecvWr, Remote, SendWr, Sge};

/// An address handle (`struct ibv_ah`): the route of datagrams to a port or a group. It must live
/// until the requests that use it have completed.
pub trait AddressHandle {
    /// The name that requests use for it; valid as long as one clone of the handle lives.
    fn name(&self) -> AhName;
}

/// Address handles and senders of datagrams. A device without datagrams only writes `type Ah =
/// NoAddress`.
pub trait Datagrams: Clone + Send + Sync + Sized + 'static {
    /// The route to a port or a multicast group.
    type Ah: AddressHandle + Clone + Send + Sync + 'static;

    /// Makes an address handle (`ibv_create_ah`).
    ///
    /// # Errors
    /// `Invalid` or `NoDevice`: nothing can be reached at that address.
    fn create_ah(&self, to: &AddressVector) -> Result<Self::Ah, SetupError> {
        let asked = std_alloc::format!("an address handle to {to:?}");
        Err(SetupError::new(Code::NotSupported, asked, "the device has no datagrams"))
    }

    /// The address of the sender of a datagram (`ibv_init_ah_from_wc`): `header` is the first
    /// [`GRH_BYTES`] of its receive.
    ///
    /// # Errors
    /// `Invalid`: the completion is not for a datagram with a header (a flag tells).
    fn sender_of(&self, wc: &Wc, header: &[u8; GRH_BYTES]) -> Result<AddressVector, SetupError> {
        let _ = (wc, header);
        let answer = "the device has no datagrams";
        Err(SetupError::new(Code::NotSupported, "the address of a datagram's sender", answer))
    }
}

/// The address handle of a device without datagrams: a type without values.
#[derive(Clone, Copy, Debug)]
pub enum NoAddress {}

impl AddressHandle for NoAddress {
    fn name(&self) -> AhName {
        match *self {}
    }
}

/// An open device: what a worker needs from it. Cloning gives another handle on the same device.
///
/// A new device implements this trait with [`Region`], [`Poller`], [`Srq`] and [`Qp`], where most
/// methods have defaults, and [`Datagrams`]. Each other capability has a trait of its own: see
/// [`extension`].
pub trait Provider: Datagrams {
    /// Registered memory.
    type Region: Region;
    /// A completion queue as a resource, given when a queue pair is made.
    type Cq: Clone + Send + Sync + 'static;
    /// The one reader of a completion queue.
    type Poller: Poller + Send + 'static;
    /// A shared receive queue; several workers may post to it.
    type Srq: Srq + Clone + Send + Sync + 'static;
    /// A queue pair, owned by one worker or id. Dropping it destroys it.
    type Qp: Qp + Send + 'static;

    /// True if there is a network between the device and its peers. It may lose packets, also the
    /// last ones of a peer that ends, and a host may die without a word. A worker then writes to a
    /// peer now and then to which it sends nothing; the write fails if the peer is gone. A listener
    /// or dialer keeps the id of a connection that it has ended until the peer answers. False, the
    /// default, for a device that is told of each end.
    const OVER_NETWORK: bool = false;

    /// The limits of the device.
    fn caps(&self) -> &Caps;

    /// Registers memory (`ibv_reg_mr`). The region owns the mapping: it deregisters first and
    /// unmaps second, so no device ever writes to memory that is gone.
    ///
    /// # Errors
    /// Access flags that contradict each other (MR-1), or the device's refusal, with its cure.
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

    /// Memory for words that peers write: at least `len` bytes, zeroed, in pages of its own, of the
    /// kind that suits the device's peers best.
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
    /// Address of the first byte.
    fn as_ptr(&self) -> *mut u8;
    /// Length in bytes, as mapped (a multiple of the page size).
    fn len(&self) -> usize;
    /// True if it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Key for local use, in an [`crate::wr::Sge`].
    fn lkey(&self) -> u32;
    /// Key that a peer needs for one-sided access.
    fn rkey(&self) -> u32;
    /// What it is registered for.
    fn access(&self) -> Access;
    /// The number by which a [`crate::wr::Binding`] names it.
    fn handle(&self) -> u64;
    /// The address and key that a peer needs for one-sided access to the bytes from `offset` on.
    fn remote(&self, offset: usize) -> Remote {
        Remote { addr: (self.as_ptr() as u64).wrapping_add(offset as u64), rkey: self.rkey() }
    }
    /// What to tell peers about `length` bytes from `offset` on, so that they can use them.
    ///
    /// # Errors
    /// `NoRights`: it is not registered for peers. `OutOfBounds`: it is shorter.
    fn remote_memory(&self, offset: usize, length: usize) -> Result<RemoteMemory, RemoteError> {
        if offset.checked_add(length).is_none_or(|end| end > self.len()) {
            let (offset, length, len) = (offset as u64, length as u64, self.len() as u64);
            return Err(RemoteError::OutOfBounds { offset, length, len });
        }
        RemoteMemory::of(self.remote(offset), length as u64, self.access())
    }
}

/// What [`Poller::poll_one`] found.
#[derive(Clone, Copy, Debug)]
pub enum Polled {
    /// The queue is empty.
    Nothing,
    /// One completion, taken.
    One(Wc),
    /// The caller has to poll for a list.
    More,
}

/// The reader of a completion queue.
pub trait Poller {
    /// Takes up to `out.len()` completions, oldest first, and returns how many (CP-4). 0 means an
    /// empty queue.
    fn poll(&mut self, out: &mut [Wc]) -> usize;

    /// Takes one completion, where a device can give it with less work than a list, such as that of
    /// a message that came alone. [`Polled::More`]: nothing was taken, and only [`Poller::poll`]
    /// can tell whether there is a completion.
    #[inline(always)]
    fn poll_one(&mut self) -> Polled {
        Polled::More
    }

    /// [`Poller::poll`] right after [`Polled::More`]: the device need not check again what
    /// `poll_one` has checked.
    #[inline(always)]
    fn poll_more(&mut self, out: &mut [Wc]) -> usize {
        self.poll(out)
    }

    /// True if the queue was overrun or failed, and will never give another completion (CP-4,
    /// CP-5).
    fn is_broken(&self) -> bool {
        false
    }

    /// Asks to be woken by the next completion (`ibv_req_notify_cq`, CP-6): the descriptors of
    /// [`Poller::wake_fds`] become readable then. Completions already in the queue wake nobody, so
    /// poll once more before sleeping. `solicited`: only a message whose sender asked for it, or an
    /// error, has to wake; a device may wake for less. A completion that an earlier call awaited
    /// still wakes, and a queue that is armed for any completion stays so. [`Poller::woken`] may
    /// tell of the completions that several calls awaited one by one or all together.
    ///
    /// # Errors
    /// `NotSupported`: the device cannot wake anyone.
    fn arm(&mut self, solicited: bool) -> Result<(), SetupError> {
        let _ = solicited;
        Err(SetupError::new(Code::NotSupported, "arm a completion queue", "it wakes nobody"))
    }

    /// What to wait on; `None` if the device cannot wake anyone.
    fn wake_fds(&self) -> Option<WakeFds> {
        None
    }

    /// How long a wait on those descriptors may last, from now on. Then the device has something to
    /// do by itself that nobody announces, such as the end of a peer's retries for a receive that
    /// is missing (RC-1). Ask again before each wait, after the poll that follows
    /// [`Poller::arm`]. When the time is over, call [`Poller::woken`], arm and poll again. If the
    /// device must look earlier than it has said, it makes a descriptor readable. `None`: as long
    /// as no descriptor is readable.
    fn look_again(&mut self) -> Option<Duration> {
        None
    }

    /// Call this when a wait is over, however it ended. It tells whether the awaited completion has
    /// come, and makes the descriptors unreadable again. If the completion has come, a ring of the
    /// notifier may stay until the next call: then the next wait ends at once. If it has not come,
    /// the queue is still armed, and the caller may sleep again.
    fn woken(&mut self) -> bool {
        false
    }

    /// What other threads signal to wake this poller; the device wakes it too.
    fn notifier(&self) -> Option<Notifier> {
        None
    }
}

/// A shared receive queue.
pub trait Srq {
    /// The granted depth (SRQ-3).
    fn depth(&self) -> u32;

    /// Posts receives, oldest first, with one doorbell (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// See [`PostError`].
    ///
    /// # Safety
    /// The buffers stay registered, and nobody else touches them, until their completions have been
    /// polled, or every queue pair on this queue and the queue itself are gone.
    #[expect(unsafe_code, reason = "the device writes to the buffers behind Rust's back")]
    unsafe fn post(&self, list: &[RecvWr]) -> Result<(), PostError>;
}

/// When to ring the device's doorbell for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// At once.
    Now,
    /// With a later message: more will follow.
    Later,
}

/// An inline SEND, see [`Qp::post_inline`].
#[derive(Clone, Copy, Debug)]
pub struct InlineSend {
    /// Number of the request.
    pub wr_id: u64,
    /// The payload; its key is ignored.
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

    /// The granted capacities, each at least what was requested (QX-11).
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

    /// True if [`Qp::post_inline`] and [`Qp::post_inline_list`] take messages, so that the caller
    /// need not build a list of requests.
    const POSTS_INLINE: bool = false;

    /// Posts one inline SEND. With [`Doorbell::Later`] the peer sees it with the next
    /// [`Qp::ring_doorbell`] or [`Qp::post`] of this queue pair at the latest. False: the device
    /// could not take it this way and did nothing; [`Qp::post`] takes it, or says why not.
    ///
    /// # Safety
    /// As for [`Qp::post`]; the payload is no longer than the inline limit.
    #[inline(always)]
    #[expect(unsafe_code, reason = "the device reads the buffer behind Rust's back")]
    unsafe fn post_inline(&mut self, send: InlineSend, doorbell: Doorbell) -> bool {
        let _ = (send, doorbell);
        false
    }

    /// Posts inline SENDs without completions or a doorbell, under numbers that follow `first`.
    /// Returns how many messages it took from the front of the list. It stops before a message that
    /// is longer than the inline limit, or that [`Qp::post_inline`] would not take.
    ///
    /// # Safety
    /// As for [`Qp::post`].
    #[inline(always)]
    #[expect(unsafe_code, reason = "a part of the contract of `post`")]
    unsafe fn post_inline_list(&mut self, first: u64, list: &[&[u8]]) -> usize {
        let _ = (first, list);
        0
    }

    /// Rings the doorbell for messages posted with [`Doorbell::Later`].
    ///
    /// # Safety
    /// With [`Sharing::Exclusive`] the caller is the thread that polls the completion queue.
    #[inline(always)]
    #[expect(unsafe_code, reason = "the device is the polling thread's")]
    unsafe fn ring_doorbell(&mut self) {}

    /// Prefetches the memory that the next message of this queue pair needs, either way. A worker
    /// calls it now and then for queue pairs that rest, so that their first message finds it in a
    /// near cache. It changes nothing else.
    ///
    /// # Safety
    /// As for [`Qp::ring_doorbell`].
    #[inline(always)]
    #[expect(unsafe_code, reason = "the device is the polling thread's")]
    unsafe fn fetch_ahead(&mut self) {}

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

    /// Moves the queue pair to ERR: outstanding requests complete as flushed (SM-2).
    fn fail(&mut self);

    /// Moves a UC or UD queue pair from SQE, where a failed send left it, back to RTS
    /// (`ibv_modify_qp`, SM-6). In any other state nothing happens.
    fn recover(&mut self) {}
}
