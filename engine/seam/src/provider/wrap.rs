//! A device that wraps another device, written once: every call of the seam passes through here.
//!
//! Calls of the data path, and those that change an object, go to a [`Hook`], which may look at
//! them, change them or drop them. Calls that make an object or ask about one go straight to the
//! inner device. [`super::fault`] and [`super::trace`] are hooks. Most traits of
//! [`super::extension`] are in `wrap_extension.rs`.
//!
//! The wrapper must not inherit a method: a default body would hide a path of the inner device. The
//! lint `missing_trait_methods` rejects an `impl` here that omits one.
#![expect(unsafe_code, reason = "passes posts and other promises on")]
#![deny(clippy::missing_trait_methods)]

use core::time::Duration;

use doorbell_alloc::Mapping;

use super::call::{Call, Command, Look};
use super::wake::{Notifier, WakeFds};
use super::{
    Access, AddressVector, Caps, Datagrams, Doorbell, GRH_BYTES, InlineSend, Polled, Poller,
    PollerEx, Provider, Qp, QpCaps, Sharing, Srq, ThreadDomains, WcEx, WcFields, Window,
    WindowKind, Windows,
};
use crate::error::SetupError;
use crate::wc::Wc;
use crate::wr::{Binding, PostError, RecvWr, SendFlags, SendWr};

/// Code that runs between the caller and the inner device.
pub trait Hook: Clone + Send + Sync + 'static {
    /// Its state for a completion queue and the queue pairs whose sends complete there.
    type Queue: Clone + Default + Send + Sync + 'static;

    /// Handles a call that sends. Returns how many requests were taken.
    ///
    /// # Errors
    /// Those of [`Qp::post`].
    ///
    /// # Safety
    /// As for [`Call::make`].
    unsafe fn send<Q: Qp>(
        &self,
        queue: &Self::Queue,
        qp: &mut Q,
        call: Call<'_>,
    ) -> Result<usize, PostError>;

    /// Handles a call that polls. Returns the same as [`Look::make`].
    fn poll<Q: Poller>(
        &self,
        queue: &Self::Queue,
        poller: &mut Q,
        look: Look,
        out: &mut [Wc],
    ) -> Option<usize>;

    /// Handles receives that `post` posts to a shared queue or to a queue pair. The default passes
    /// them on.
    ///
    /// # Errors
    /// Those of `post`.
    fn receive(&self, list: &[RecvWr], mut post: impl FnMut(&[RecvWr]) -> Posted) -> Posted {
        post(list)
    }

    /// Handles a request that `post` posts to bind a window of type 1. Returns the window's new
    /// key. The default passes it on.
    ///
    /// # Errors
    /// Those of [`super::Window::bind`].
    fn bind(
        &self,
        _queue: &Self::Queue,
        post: impl FnOnce() -> Result<u32, PostError>,
    ) -> Result<u32, PostError> {
        post()
    }

    /// Handles a poll for one completion with those fields. The default passes it on.
    fn next<Q: PollerEx>(
        &self,
        _queue: &Self::Queue,
        poller: &mut Q,
        _fields: WcFields,
    ) -> Option<WcEx> {
        poller.next()
    }

    /// Decides about a command. True: the inner device carries it out, as by default. False: the
    /// caller is told that it was carried out, and it was not.
    ///
    /// # Errors
    /// The refusal to return to the caller.
    fn command(&self, _command: Command) -> Result<bool, SetupError> {
        Ok(true)
    }
}

/// How a post ended.
pub type Posted = Result<(), PostError>;

/// A device with a hook. Clones share the hook.
#[derive(Clone)]
pub struct Wrapped<P, H> {
    pub(super) inner: P,
    pub(super) hook: H,
}

impl<P: Provider, H: Hook> Wrapped<P, H> {
    /// Puts a hook in front of a device.
    pub fn around(inner: P, hook: H) -> Wrapped<P, H> {
        Wrapped { inner, hook }
    }

    /// The inner device.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// Wraps a queue pair of the inner device, whose sends complete in `cq`.
    pub fn wrap(&self, qp: P::Qp, cq: &WrappedCq<P, H>) -> WrappedQp<P, H> {
        WrappedQp { inner: qp, hook: self.hook.clone(), queue: cq.queue.clone() }
    }

    pub(super) fn srq(&self, inner: P::Srq) -> WrappedSrq<P, H> {
        WrappedSrq { inner, hook: self.hook.clone() }
    }
}

impl<P: Provider, H: Hook> Datagrams for Wrapped<P, H> {
    type Ah = P::Ah;

    fn create_ah(&self, to: &AddressVector) -> Result<P::Ah, SetupError> {
        self.inner.create_ah(to)
    }

    fn sender_of(&self, wc: &Wc, header: &[u8; GRH_BYTES]) -> Result<AddressVector, SetupError> {
        self.inner.sender_of(wc, header)
    }
}

impl<P: Provider, H: Hook> Provider for Wrapped<P, H> {
    type Region = P::Region;
    type Cq = WrappedCq<P, H>;
    type Poller = WrappedPoller<P, H>;
    type Srq = WrappedSrq<P, H>;
    type Qp = WrappedQp<P, H>;

    const OVER_NETWORK: bool = P::OVER_NETWORK;

    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn register(&self, memory: Mapping, access: Access) -> Result<P::Region, SetupError> {
        self.inner.register(memory, access)
    }

    fn create_cq(
        &self,
        depth: u32,
        sharing: Sharing,
    ) -> Result<(Self::Cq, Self::Poller), SetupError> {
        let (inner, poller) = self.inner.create_cq(depth, sharing)?;
        Ok(self.reader(inner, poller, WcFields::empty()))
    }

    fn create_srq(&self, depth: u32) -> Result<Self::Srq, SetupError> {
        Ok(self.srq(self.inner.create_srq(depth)?))
    }

    fn peer_memory(&self, len: usize) -> Result<Mapping, SetupError> {
        self.inner.peer_memory(len)
    }

    unsafe fn for_one_thread(&self) -> Result<Option<Self>, SetupError> {
        // SAFETY: the caller's promise, passed on.
        let inner = unsafe { self.inner.for_one_thread() }?;
        Ok(inner.map(|inner| Wrapped::around(inner, self.hook.clone())))
    }
}

impl<P: Provider, H: Hook> Wrapped<P, H> {
    pub(super) fn reader<Q>(
        &self,
        inner: P::Cq,
        poller: Q,
        fields: WcFields,
    ) -> (WrappedCq<P, H>, Reader<Q, H>) {
        let (hook, queue) = (self.hook.clone(), H::Queue::default());
        let reader = Reader { inner: poller, hook, queue: queue.clone(), fields };
        (WrappedCq { inner, queue }, reader)
    }
}

/// A completion queue of a wrapped device.
pub struct WrappedCq<P: Provider, H: Hook> {
    pub(super) inner: P::Cq,
    queue: H::Queue,
}

#[expect(clippy::missing_trait_methods, reason = "a trait of the language, not of the seam")]
impl<P: Provider, H: Hook> Clone for WrappedCq<P, H> {
    fn clone(&self) -> Self {
        WrappedCq { inner: self.inner.clone(), queue: self.queue.clone() }
    }
}

impl<P: Provider, H: Hook> WrappedCq<P, H> {
    /// The inner queue.
    pub fn inner(&self) -> &P::Cq {
        &self.inner
    }
}

/// The reader of a [`WrappedCq`].
pub type WrappedPoller<P, H> = Reader<<P as Provider>::Poller, H>;

/// A reader with a hook.
pub struct Reader<Q, H: Hook> {
    pub(super) inner: Q,
    pub(super) hook: H,
    pub(super) queue: H::Queue,
    /// The fields of its completions, if it reads an extended queue.
    pub(super) fields: WcFields,
}

impl<Q: Poller, H: Hook> Poller for Reader<Q, H> {
    fn poll_one(&mut self) -> Polled {
        let mut one = [Wc::default()];
        match self.hook.poll(&self.queue, &mut self.inner, Look::One, &mut one) {
            None => Polled::More,
            Some(0) => Polled::Nothing,
            Some(_) => Polled::One(one[0]),
        }
    }

    fn poll_more(&mut self, out: &mut [Wc]) -> usize {
        self.hook.poll(&self.queue, &mut self.inner, Look::More, out).unwrap_or(0)
    }

    fn poll(&mut self, out: &mut [Wc]) -> usize {
        self.hook.poll(&self.queue, &mut self.inner, Look::List, out).unwrap_or(0)
    }

    fn is_broken(&self) -> bool {
        self.inner.is_broken()
    }

    fn arm(&mut self, solicited: bool) -> Result<(), SetupError> {
        self.inner.arm(solicited)
    }

    fn wake_fds(&self) -> Option<WakeFds> {
        self.inner.wake_fds()
    }

    fn look_again(&mut self) -> Option<Duration> {
        self.inner.look_again()
    }

    fn woken(&mut self) -> bool {
        self.inner.woken()
    }

    fn notifier(&self) -> Option<Notifier> {
        self.inner.notifier()
    }
}

/// A shared receive queue of a wrapped device.
pub struct WrappedSrq<P: Provider, H: Hook> {
    pub(super) inner: P::Srq,
    pub(super) hook: H,
}

#[expect(clippy::missing_trait_methods, reason = "a trait of the language, not of the seam")]
impl<P: Provider, H: Hook> Clone for WrappedSrq<P, H> {
    fn clone(&self) -> Self {
        WrappedSrq { inner: self.inner.clone(), hook: self.hook.clone() }
    }
}

impl<P: Provider, H: Hook> WrappedSrq<P, H> {
    /// The inner queue.
    pub fn inner(&self) -> &P::Srq {
        &self.inner
    }
}

impl<P: Provider, H: Hook> Srq for WrappedSrq<P, H> {
    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    unsafe fn post(&self, list: &[RecvWr]) -> Posted {
        // SAFETY: the caller's promise, passed on.
        self.hook.receive(list, |list| unsafe { self.inner.post(list) })
    }
}

/// A queue pair of a wrapped device.
pub struct WrappedQp<P: Provider, H: Hook> {
    pub(super) inner: P::Qp,
    pub(super) hook: H,
    pub(super) queue: H::Queue,
}

impl<P: Provider, H: Hook> WrappedQp<P, H> {
    /// The inner queue pair.
    pub fn inner(&self) -> &P::Qp {
        &self.inner
    }

    /// # Safety
    /// As for [`Call::make`].
    unsafe fn send(&mut self, call: Call<'_>) -> Result<usize, PostError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.hook.send(&self.queue, &mut self.inner, call) }
    }
}

impl<P: Provider, H: Hook> Qp for WrappedQp<P, H> {
    const POSTS_INLINE: bool = P::Qp::POSTS_INLINE;

    fn num(&self) -> u32 {
        self.inner.num()
    }

    fn caps(&self) -> QpCaps {
        self.inner.caps()
    }

    unsafe fn post(&mut self, list: &[SendWr<'_>]) -> Posted {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.send(Call::Post(list)) }.map(|_| ())
    }

    unsafe fn post_inline(&mut self, send: InlineSend, doorbell: Doorbell) -> bool {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.send(Call::Inline(send, doorbell)) == Ok(1) }
    }

    unsafe fn post_inline_list(&mut self, first: u64, list: &[&[u8]]) -> usize {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.send(Call::InlineList(first, list)) }.unwrap_or(0)
    }

    unsafe fn ring_doorbell(&mut self) {
        // SAFETY: the caller's promise, passed on. This call is never refused.
        let _ = unsafe { self.send(Call::Doorbell) };
    }

    unsafe fn fetch_ahead(&mut self) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.fetch_ahead() }
    }

    unsafe fn post_recv(&mut self, list: &[RecvWr]) -> Posted {
        let Self { inner, hook, .. } = self;
        // SAFETY: the caller's promise, passed on.
        hook.receive(list, |list| unsafe { inner.post_recv(list) })
    }

    fn fail(&mut self) {
        self.inner.fail();
    }

    fn recover(&mut self) {
        self.inner.recover();
    }
}

impl<P: ThreadDomains, H: Hook> ThreadDomains for Wrapped<P, H> {
    type Td = P::Td;

    unsafe fn alloc_td(&self) -> Result<P::Td, SetupError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.alloc_td() }
    }

    fn td_users(td: &P::Td) -> usize {
        P::td_users(td)
    }

    fn alloc_parent_domain(&self, td: Option<&P::Td>) -> Result<Self, SetupError> {
        Ok(Wrapped::around(self.inner.alloc_parent_domain(td)?, self.hook.clone()))
    }
}

impl<P: Windows, H: Hook> Windows for Wrapped<P, H> {
    type Window = WrappedWindow<P, H>;

    fn create_window(&self, kind: WindowKind) -> Result<WrappedWindow<P, H>, SetupError> {
        let inner = self.inner.create_window(kind)?;
        Ok(WrappedWindow { inner, hook: self.hook.clone() })
    }
}

/// A memory window of a wrapped device.
pub struct WrappedWindow<P: Windows, H: Hook> {
    inner: P::Window,
    hook: H,
}

impl<P: Windows, H: Hook> Window for WrappedWindow<P, H> {
    type Qp = WrappedQp<P, H>;

    unsafe fn bind(
        &mut self,
        qp: &mut WrappedQp<P, H>,
        binding: Binding,
        wr_id: u64,
        flags: SendFlags,
    ) -> Result<u32, PostError> {
        let WrappedQp { inner: qp, queue, .. } = qp;
        let window = &mut self.inner;
        // SAFETY: the caller's promise, passed on.
        self.hook.bind(queue, || unsafe { window.bind(qp, binding, wr_id, flags) })
    }

    fn kind(&self) -> WindowKind {
        self.inner.kind()
    }

    fn rkey(&self) -> u32 {
        self.inner.rkey()
    }

    fn handle(&self) -> u64 {
        self.inner.handle()
    }

    fn set_rkey(&mut self, rkey: u32) {
        self.inner.set_rkey(rkey);
    }
}
