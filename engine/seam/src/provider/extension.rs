//! Capabilities that only some devices have: one trait for each. The control plane uses them; a
//! worker does not.

use super::cq_ex::{CqInit, WcEx};
use super::rereg::{Rereg, Reregistered};
use super::{Gid, Poller, PortAttr, Provider, Qp, Sharing, Srq};
use crate::error::SetupError;
use crate::event::AsyncEvent;
use crate::wr::{Binding, PostCause, PostError, SendFlags};

/// Queries about ports.
pub trait Ports: Provider {
    /// The attributes and current state of a port (`ibv_query_port`); ports count from 1 to
    /// [`super::Caps::ports`].
    ///
    /// # Errors
    /// `Invalid`: there is no such port. Otherwise the device's error.
    fn query_port(&self, port: u8) -> Result<PortAttr, SetupError>;

    /// An entry of a port's GID table (`ibv_query_gid`); an unused entry may be all zero or give an
    /// error.
    ///
    /// # Errors
    /// `Invalid`: no such port or entry. Otherwise the device's error.
    fn query_gid(&self, port: u8, index: u32) -> Result<Gid, SetupError>;

    /// An entry of a port's partition key table (`ibv_query_pkey`).
    ///
    /// # Errors
    /// As for [`Ports::query_gid`].
    fn query_pkey(&self, port: u8, index: u32) -> Result<u16, SetupError>;
}

/// Protection domains. Each handle on a device is one.
pub trait ProtectionDomains: Provider {
    /// Makes another handle on the same device, with a protection domain of its own
    /// (`ibv_alloc_pd`). Memory, receive queues, windows, address handles and queue pairs made
    /// through the handle belong to that domain. Keys are valid within their domain (MR-2).
    /// Completion queues, XRC domains and ids belong to the device. The domain ends when everything
    /// that belongs to it is gone.
    ///
    /// # Errors
    /// The device's limit.
    fn alloc_pd(&self) -> Result<Self, SetupError>;

    /// The number of handles on this handle's protection domain, this one included, and of objects
    /// that belong to the domain.
    fn pd_users(&self) -> usize;

    /// True if both are handles on one device: objects made through either can be used together, as
    /// far as their protection domains allow.
    fn is_same_device(&self, other: &Self) -> bool;
}

/// Thread domains, and the parent domains that name them.
pub trait ThreadDomains: Provider {
    /// A thread domain.
    type Td: Clone + Send + Sync + 'static;

    /// Makes a thread domain (`ibv_alloc_td`): the caller's promise lets some devices leave out
    /// locks and use a doorbell of its own. It ends with the parent domains that name it.
    ///
    /// # Errors
    /// `NotSupported`: the device has none ([`super::Caps::thread_domains`]).
    ///
    /// # Safety
    /// Take together all objects made on parent domains that name it: only one thread at a time
    /// posts to them or polls them, and none does so to an object that is being moved to RESET or
    /// destroyed. Otherwise any thread may make, change and destroy these objects: such calls go to
    /// the system, which locks by itself. Some drivers hold the queue's lock against posts while
    /// they move it to ERR: without that lock, a request posted at that moment may not be flushed
    /// before the next one is.
    #[expect(unsafe_code, reason = "devices rely on the promise")]
    unsafe fn alloc_td(&self) -> Result<Self::Td, SetupError>;

    /// The number of handles on a thread domain and of parent domains that name it.
    fn td_users(td: &Self::Td) -> usize;

    /// Makes a parent domain (`ibv_alloc_parent_domain`): another handle on this handle's
    /// protection domain, valid wherever the domain is. The thread domain's promise covers the
    /// queue pairs, shared receive queues and extended completion queues that are made on it. The
    /// protection domain outlives it.
    ///
    /// # Errors
    /// `NotSupported`: the device has none ([`super::Caps::parent_domains`]); `Invalid`: the thread
    /// domain belongs to another device.
    fn alloc_parent_domain(&self, td: Option<&Self::Td>) -> Result<Self, SetupError>;
}

/// Asynchronous events.
pub trait AsyncEvents: Provider {
    /// The next asynchronous event, if there is one (`ibv_get_async_event`, AE-1). This call
    /// acknowledges it, so that destroying an object later does not wait for it.
    fn next_async_event(&self) -> Option<AsyncEvent>;

    /// A descriptor that is readable when there is an event; `None` if the device cannot wake
    /// anyone.
    fn async_fd(&self) -> Option<i32>;

    /// The number by which events name a completion queue.
    fn cq_id(&self, cq: &Self::Cq) -> u64;
}

/// Changing regions.
pub trait Reregister: Provider {
    /// Registers a region as something else (`ibv_rereg_mr`, MR-5): with other rights, in the
    /// protection domain of this handle, or over other memory. The call returns the region, and its
    /// previous memory if that changed. The keys may be new; then the old ones are invalid. Memory
    /// windows bound to the region close. For requests that use the region, this counts as
    /// deregistering it: the guarantees that [`Qp::post`] and [`Srq::post`] ask for end here.
    ///
    /// # Errors
    /// `Invalid`: access flags that contradict each other (MR-1), or a region of another device;
    /// `NotSupported`: the device cannot ([`super::Caps::rereg`]). [`super::ReregFailed`] says what
    /// is left.
    fn reregister(&self, region: Self::Region, change: Rereg) -> Reregistered<Self::Region>;
}

/// Completion queues on a chosen vector, and extended ones.
pub trait ExtendedCq: Provider {
    /// The one reader of an extended completion queue.
    type PollerEx: PollerEx + Send + 'static;

    /// As [`Provider::create_cq`], on that completion vector (`comp_vector`): the vector chooses
    /// the device interrupt that wakes a waiting thread.
    ///
    /// # Errors
    /// As there; `Invalid`: the device has no such vector ([`super::Caps::comp_vectors`]).
    fn create_cq_on(
        &self,
        depth: u32,
        sharing: Sharing,
        comp_vector: u32,
    ) -> Result<(Self::Cq, Self::Poller), SetupError>;

    /// Makes an extended completion queue (`ibv_create_cq_ex`, CP-9) and its reader. Queue pairs
    /// use it like any other; it is [`Sharing::Shared`].
    ///
    /// # Errors
    /// As for [`ExtendedCq::create_cq_on`]; `NotSupported`: the device lacks one of the fields or
    /// flags ([`super::Caps::wc_fields`], [`super::Caps::cq_flags`]), or such queues at all.
    fn create_cq_ex(&self, init: &CqInit) -> Result<(Self::Cq, Self::PollerEx), SetupError>;
}

/// The reader of an extended completion queue. It can also poll it like any other queue, without
/// the extended fields.
pub trait PollerEx: Poller {
    /// Takes the oldest completion, if there is one.
    fn next(&mut self) -> Option<WcEx>;
}

/// Resizing completion queues.
pub trait ResizeCq: Provider {
    /// Gives a completion queue room for at least `depth` entries (`ibv_resize_cq`, CP-8), and
    /// returns the new capacity. Its entries stay, and it stays armed. A larger queue may keep its
    /// size.
    ///
    /// # Errors
    /// `Invalid`: it holds more entries than `depth`, `depth` is 0 or over the device's limit, or
    /// the queue belongs to another device. The queue is unchanged.
    fn resize_cq(&self, cq: &Self::Cq, depth: u32) -> Result<u32, SetupError>;
}

/// Sizes and limits of a shared receive queue.
pub trait SrqLimits: Srq {
    /// Gives it room for at least `depth` receives (`ibv_modify_srq`, `IBV_SRQ_MAX_WR`, SRQ-15);
    /// [`Srq::depth`] gives the new capacity. Its receives stay. A larger queue may keep its size.
    ///
    /// # Errors
    /// `Invalid`: it holds more receives than `depth`, its limit is higher than `depth`, or `depth`
    /// is 0 or over the device's limit; `NotSupported`: the device cannot resize
    /// ([`super::Caps::srq_resize`]). The queue is unchanged.
    fn resize(&self, depth: u32) -> Result<(), SetupError>;

    /// Asks for one event when fewer than `limit` receives are left (`ibv_modify_srq`, SRQ-14); 0
    /// asks for none. After the event, the limit is 0 again.
    ///
    /// # Errors
    /// A limit over the depth, or the device's refusal.
    fn set_limit(&self, limit: u32) -> Result<(), SetupError>;

    /// The current limit (`ibv_query_srq`).
    ///
    /// # Errors
    /// The device's refusal.
    fn limit(&self) -> Result<u32, SetupError>;

    /// The number by which events name it.
    fn id(&self) -> u64;
}

/// Multicast groups of a UD queue pair.
pub trait Multicast: Qp {
    /// Attaches a UD queue pair to a multicast group (`ibv_attach_mcast`); attaching twice changes
    /// nothing. A dropped queue pair leaves its groups.
    ///
    /// # Errors
    /// `Invalid`: not a UD queue pair, or not a group. Otherwise the device's error.
    fn attach_mcast(&mut self, group: Gid) -> Result<(), SetupError>;

    /// Detaches a queue pair from a group (`ibv_detach_mcast`).
    ///
    /// # Errors
    /// `Invalid`: it is not in that group.
    fn detach_mcast(&mut self, group: Gid) -> Result<(), SetupError>;
}

/// Memory windows.
pub trait Windows: Provider {
    /// A memory window.
    type Window: Window<Qp = Self::Qp>;

    /// Makes a memory window, closed (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// The device has none, or none left.
    fn create_window(&self, kind: WindowKind) -> Result<Self::Window, SetupError>;
}

/// Kinds of memory windows (`enum ibv_mw_type`, numbers as there; MW-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WindowKind {
    /// Bound by [`Window::bind`], which chooses the key; open to every queue pair of the device's
    /// domain until it is bound again.
    One = 1,
    /// Bound by [`crate::wr::SendOp::Bind`], with a key of the poster's choice; open to the peer of
    /// that queue pair, until either side invalidates it.
    Two = 2,
}

impl WindowKind {
    /// Fails unless [`Window::bind`] binds windows of this kind. A device calls this first.
    ///
    /// # Errors
    /// [`PostCause::Malformed`] for type 2.
    pub fn check_bound_by_call(self) -> Result<(), PostError> {
        match self {
            WindowKind::One => Ok(()),
            WindowKind::Two => Err(PostError { accepted: 0, cause: PostCause::Malformed }),
        }
    }
}

/// A memory window: part of a region, opened and closed by requests. Dropping it closes it.
/// Deregistering a region closes the windows bound to it.
pub trait Window: Send + Sync + 'static {
    /// The device's queue pairs.
    type Qp: Qp;

    /// Posts to `qp` a request that binds this window, of type 1, or closes it if the length is 0
    /// (`ibv_bind_mw`, MW-1). Returns the new key; the key in the binding is ignored. The new key
    /// is valid once the request has completed.
    ///
    /// # Errors
    /// See [`PostError`]; a window of the other type is [`PostCause::Malformed`].
    ///
    /// # Safety
    /// The region that the binding names lives until the request has completed.
    #[expect(unsafe_code, reason = "the device is given the region by address")]
    unsafe fn bind(
        &mut self,
        qp: &mut Self::Qp,
        binding: Binding,
        wr_id: u64,
        flags: SendFlags,
    ) -> Result<u32, PostError>;

    /// The kind of this window.
    fn kind(&self) -> WindowKind;
    /// The key it was made with, or the last key from [`Window::bind`]. For type 2, the upper 24
    /// bits of every key that it can have.
    fn rkey(&self) -> u32;
    /// The number by which a [`crate::wr::Binding`] names it.
    fn handle(&self) -> u64;
    /// Notes that a request was posted that binds it under that key: some devices need the last key
    /// for the next such request.
    fn set_rkey(&mut self, _rkey: u32) {}
}

/// Extended reliable connections.
pub trait Xrc: Provider {
    /// A domain of extended reliable connections.
    type Xrcd: Clone + Send + Sync + 'static;

    /// Opens a domain of extended reliable connections of this process (`ibv_open_xrcd` with no
    /// file).
    ///
    /// # Errors
    /// `NotSupported`: the device has none ([`super::Caps::xrc`]).
    fn open_xrcd(&self) -> Result<Self::Xrcd, SetupError>;

    /// The default XRC domain, one for each device, opened on first use (QP-16).
    ///
    /// # Errors
    /// As for [`Xrc::open_xrcd`].
    fn default_xrcd(&self) -> Result<Self::Xrcd, SetupError>;

    /// Makes a shared receive queue of a domain (`ibv_create_srq_ex` with `IBV_SRQT_XRC`), for at
    /// least `depth` receives, which complete in `cq`.
    ///
    /// # Errors
    /// `depth` of 0 or over the device's limit; `NotSupported`: the device has no such queues, or
    /// none with a completion queue that is [`Sharing::Exclusive`].
    fn create_xrc_srq(
        &self,
        xrcd: &Self::Xrcd,
        cq: &Self::Cq,
        depth: u32,
    ) -> Result<Self::Srq, SetupError>;
}

/// A shared receive queue that senders address by number.
pub trait XrcSrq: Srq {
    /// The number by which senders name it (`ibv_get_srq_num`, SRQ-10); `None` unless the queue
    /// belongs to an [XRC domain](Xrc::create_xrc_srq).
    fn number(&self) -> Option<u32>;
}
