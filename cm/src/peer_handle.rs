//! What a program holds of a connection that it dialed.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use doorbell_engine::worker::{PeerId, PeerWatch, Refusal};
use doorbell_fabric::CmError;

/// Where a dialed connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// It is being dialed, or waits to be dialed again.
    Connecting,
    /// It is up.
    Up,
    /// It is over, and is not dialed again.
    Ended,
}

/// A connection that a [`crate::Dialer`] made or keeps. Clones are the same connection, and any
/// thread may have one. Dropping it ends nothing.
#[derive(Clone)]
pub struct PeerHandle(Arc<Shared>);

struct Shared {
    addr: SocketAddr,
    /// It is dialed again when it has ended.
    kept: bool,
    ending: AtomicBool,
    /// Of the dialer: some handle has asked for the end.
    called: Arc<AtomicBool>,
    now: Mutex<Now>,
}

struct Now {
    state: PeerState,
    watch: Option<PeerWatch>,
    error: Option<CmError>,
    refusal: Option<Refusal>,
}

impl PeerHandle {
    pub(crate) fn new(addr: SocketAddr, kept: bool, called: &Arc<AtomicBool>) -> PeerHandle {
        let (state, ending) = (PeerState::Connecting, AtomicBool::new(false));
        let now = Mutex::new(Now { state, watch: None, error: None, refusal: None });
        PeerHandle(Arc::new(Shared { addr, kept, ending, called: called.clone(), now }))
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        // Each change is one assignment, so a thread that panicked left nothing half done.
        self.0.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address that was dialed.
    pub fn addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// Where it stands.
    pub fn state(&self) -> PeerState {
        self.now().state
    }

    /// Its id in the worker, for sends: from shortly before [`Handler::on_peer_up`] to the end of
    /// `on_peer_down`. A kept connection gets another id each time it comes up. This call takes a
    /// lock, so do not make it for each message.
    ///
    /// [`Handler::on_peer_up`]: doorbell_engine::worker::Handler::on_peer_up
    pub fn peer(&self) -> Option<PeerId> {
        self.now().watch.as_ref()?.peer()
    }

    /// Why the last try failed, or the connection ended. `None`: nothing went wrong, or this side
    /// ended it.
    pub fn last_error(&self) -> Option<CmError> {
        self.now().error.clone()
    }

    /// The peer's reason, if it refused the last try and gave one.
    pub fn refusal(&self) -> Option<Refusal> {
        self.now().refusal
    }

    /// Ends the connection with the dialer's next step, as
    /// [`Outbox::close`](doorbell_engine::worker::Outbox::close) does: what the peer has not
    /// received may be lost. A kept connection is not dialed again.
    pub fn end(&self) {
        self.0.ending.store(true, Ordering::Relaxed);
        // Release pairs with the Acquire in `Dialer::step`: a thread that sees `called` also sees
        // `ending`.
        self.0.called.store(true, Ordering::Release);
    }

    /// True if both are handles on the same connection.
    pub(crate) fn is_same(&self, other: &PeerHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// True if the program wants it to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.0.ending.load(Ordering::Relaxed)
    }

    pub(crate) fn watches(&self, watch: PeerWatch) {
        self.now().watch = Some(watch);
    }

    pub(crate) fn is_up(&self) {
        let mut now = self.now();
        (now.state, now.error, now.refusal) = (PeerState::Up, None, None);
    }

    /// Its id has gone. If it never came up, its dialer knows why and calls [`PeerHandle::failed`]:
    /// until then it does not show an end without a reason.
    pub(crate) fn is_down(&self, error: Option<CmError>) {
        let mut now = self.now();
        let is_dialed = now.state == PeerState::Connecting;
        if !is_dialed || error.is_some() || self.is_ending() {
            self.end_now(&mut now, error);
        }
    }

    /// The dial has failed. `refusal`: the peer's reason.
    pub(crate) fn failed(&self, error: Option<CmError>, refusal: Option<Refusal>) {
        let mut now = self.now();
        now.refusal = refusal;
        self.end_now(&mut now, error);
    }

    fn end_now(&self, now: &mut Now, error: Option<CmError>) {
        if error.is_some() {
            now.error = error;
        }
        now.state = match self.0.kept && !self.is_ending() {
            true => PeerState::Connecting,
            false => PeerState::Ended,
        };
    }

    /// Its dial is over, or its dialer has gone.
    pub(crate) fn is_left(&self) {
        let mut now = self.now();
        if now.state == PeerState::Connecting && !self.0.kept {
            now.state = PeerState::Ended;
        }
    }

    /// It is not dialed again.
    pub(crate) fn is_over(&self) {
        self.now().state = PeerState::Ended;
    }
}
