//! What some devices can do besides: one trait for each capability. The control plane asks for
//! them; a worker does not.

use super::cq_ex::{CqInit, WcEx};
use super::rereg::{Rereg, Reregistered};
use super::{Gid, Poller, PortAttr, Provider, Qp, Sharing, Srq};
use crate::error::SetupError;
use crate::event::AsyncEvent;
use crate::wr::{Binding, PostError, SendFlags};

/// What there is to know of ports.
pub trait Ports: Provider {
    /// What a port is, and how it is now (`ibv_query_port`); they count from 1 to
    /// [`super::Caps::ports`].
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
    /// As for [`Ports::query_gid`].
    fn query_pkey(&self, port: u8, index: u32) -> Result<u16, SetupError>;
}

/// Protection domains. Each handle on a device is one.
pub trait ProtectionDomains: Provider {
    /// Another handle on the same device, with a protection domain of its own (`ibv_alloc_pd`): to
    /// that belong the memory, receive queues, windows, address handles and queue pairs that are
    /// made through it. Keys are good within their domain (MR-2). Completion queues, XRC domains
    /// and ids are the device's. The domain goes with all that belongs to it.
    ///
    /// # Errors
    /// The device's limit.
    fn alloc_pd(&self) -> Result<Self, SetupError>;

    /// Handles on the protection domain of this one, itself among them, and what belongs to it.
    fn pd_users(&self) -> usize;

    /// True if both are handles on one device: what is made through one goes with what is made
    /// through the other, but for protection domains.
    fn is_same_device(&self, other: &Self) -> bool;
}

/// Thread domains, and the parent domains that name them.
pub trait ThreadDomains: Provider {
    /// A thread domain.
    type Td: Clone + Send + Sync + 'static;

    /// Makes a thread domain (`ibv_alloc_td`): a promise for which some devices leave out locks and
    /// give a doorbell of its own. It goes with the parent domains that name it.
    ///
    /// # Errors
    /// `NotSupported`: the device has none ([`super::Caps::thread_domains`]).
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
    /// `NotSupported`: the device has none ([`super::Caps::parent_domains`]); `Invalid`: the thread
    /// domain is another device's.
    fn alloc_parent_domain(&self, td: Option<&Self::Td>) -> Result<Self, SetupError>;
}

/// Asynchronous events.
pub trait AsyncEvents: Provider {
    /// The next asynchronous event, if there is one (`ibv_get_async_event`, AE-1). It is
    /// acknowledged as it is taken, so nothing that is destroyed later waits for it.
    fn next_async_event(&self) -> Option<AsyncEvent>;

    /// A descriptor that is readable when there is one; `None` where nobody can be woken.
    fn async_fd(&self) -> Option<i32>;

    /// By what number events name a completion queue.
    fn cq_id(&self, cq: &Self::Cq) -> u64;
}

/// Regions that change.
pub trait Reregister: Provider {
    /// Registers a region as something else (`ibv_rereg_mr`, MR-5): with other rights, in the
    /// protection domain of this handle, or of other memory. The region comes back, and with it the
    /// memory it was of, if that changed. Its keys may be new, and the old ones then open nothing;
    /// memory windows bound to it close. To requests that use it this is as if it were
    /// deregistered: what [`Qp::post`] and [`Srq::post`] ask for ends here.
    ///
    /// # Errors
    /// `Invalid`: access flags that do not go together (MR-1), a region of another device;
    /// `NotSupported`: the device cannot ([`super::Caps::rereg`]).
    /// [`super::ReregFailed`] says what is left.
    fn reregister(&self, region: Self::Region, change: Rereg) -> Reregistered<Self::Region>;
}

/// Completion queues on a vector of choice, and extended ones.
pub trait ExtendedCq: Provider {
    /// The one reader of an extended completion queue.
    type PollerEx: PollerEx + Send + 'static;

    /// As [`Provider::create_cq`], on that completion vector (`comp_vector`): which of the device's
    /// interrupts wakes who waits.
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
    /// take it as any other; it is [`Sharing::Shared`].
    ///
    /// # Errors
    /// As for [`ExtendedCq::create_cq_on`]; `NotSupported`: the device lacks one of the fields or
    /// flags ([`super::Caps::wc_fields`], [`super::Caps::cq_flags`]), or such queues at all.
    fn create_cq_ex(&self, init: &CqInit) -> Result<(Self::Cq, Self::PollerEx), SetupError>;
}

/// The reader of an extended completion queue. It can read it as any other, without the fields.
pub trait PollerEx: Poller {
    /// Takes the oldest completion, if there is one.
    fn next(&mut self) -> Option<WcEx>;
}

/// Completion queues that change their size.
pub trait ResizeCq: Provider {
    /// Gives a completion queue room for at least `depth` entries (`ibv_resize_cq`, CP-8), and says
    /// for how many. What is in it stays, and it stays armed. One that is larger may stay so.
    ///
    /// # Errors
    /// `Invalid`: more than that are in it, `depth` is 0 or over the device's limit, or the queue
    /// is another device's. It stays as it was.
    fn resize_cq(&self, cq: &Self::Cq, depth: u32) -> Result<u32, SetupError>;
}

/// Sizes and limits of a shared receive queue.
pub trait SrqLimits: Srq {
    /// Gives it room for at least `depth` receives (`ibv_modify_srq`, `IBV_SRQ_MAX_WR`, SRQ-15);
    /// [`Srq::depth`] says for how many. What is in it stays. One that is larger may stay so.
    ///
    /// # Errors
    /// `Invalid`: more than that are in it, the limit is more, or `depth` is 0 or over the device's
    /// limit; `NotSupported`: the device cannot ([`super::Caps::srq_resize`]). It stays as it was.
    fn resize(&self, depth: u32) -> Result<(), SetupError>;

    /// Asks for one event when fewer receives than that are left (`ibv_modify_srq`, SRQ-14);
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

    /// By what number events name it.
    fn id(&self) -> u64;
}

/// Multicast groups of a queue pair of UD.
pub trait Multicast: Qp {
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
    /// domain, until bound anew.
    One = 1,
    /// Bound by [`crate::wr::SendOp::Bind`], with a key of the poster's choice; open to the peer of
    /// that queue pair, until invalidated by either.
    Two = 2,
}

/// A memory window: part of a region, opened and closed by requests. Dropping it closes it. A
/// region that goes closes the windows bound to it.
pub trait Window: Send + Sync + 'static {
    /// The device's queue pairs.
    type Qp: Qp;

    /// Posts to `qp` a request that opens this window, of type 1, or closes it with a length of 0
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
        qp: &mut Self::Qp,
        binding: Binding,
        wr_id: u64,
        flags: SendFlags,
    ) -> Result<u32, PostError>;

    /// Its kind.
    fn kind(&self) -> WindowKind;
    /// The key it was made with, or was last given by [`Window::bind`]. Of type 2: the upper 24
    /// bits of each key it can have.
    fn rkey(&self) -> u32;
    /// By what number a [`crate::wr::Binding`] names it.
    fn handle(&self) -> u64;
    /// A request that opens it under that key has been posted: some devices want to be told the
    /// last key with the next such request.
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

    /// The domain that serves who names none, one for each device: opened when it is first asked
    /// for (QP-16).
    ///
    /// # Errors
    /// As for [`Xrc::open_xrcd`].
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
}

/// A shared receive queue that senders name.
pub trait XrcSrq: Srq {
    /// The number by which senders name it (`ibv_get_srq_num`, SRQ-10); none of one that is not of
    /// an [XRC domain](Xrc::create_xrc_srq).
    fn number(&self) -> Option<u32>;
}
