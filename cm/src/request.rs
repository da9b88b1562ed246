//! A connection request as a program sees it before it is accepted, and the program's answer.

use std::net::SocketAddr;

use doorbell_engine::worker::{Greeting, Intake, PEER_DATA_MAX, PeerData};
use doorbell_fabric::{CmId, Credentials, Fabric};

/// A peer that wants to connect: see [`crate::Listener::on_request`]. Everything except
/// [`ConnectRequest::credentials`] is the peer's own claim.
pub struct ConnectRequest<'a> {
    pub(crate) addr: Option<SocketAddr>,
    pub(crate) private_data: &'a [u8],
    pub(crate) greeting: Greeting,
    pub(crate) credentials: Option<Credentials>,
}

impl<'a> ConnectRequest<'a> {
    pub(crate) fn new<F: Fabric>(id: &'a F::Id, greeting: Greeting) -> ConnectRequest<'a> {
        let (addr, private_data) = (id.peer_addr(), id.private_data());
        ConnectRequest { addr, private_data, greeting, credentials: id.credentials() }
    }

    /// The peer's address. On `soft` the peer chooses it itself.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// The bytes of the peer's program ([`crate::Dialer::dial_with`]); for a plain RDMA program the
    /// first 32 bytes of its private data.
    pub fn data(&self) -> &[u8] {
        self.greeting.data().bytes()
    }

    /// The whole private data of the request, including a worker's handshake; padded with zeros.
    pub fn private_data(&self) -> &[u8] {
        self.private_data
    }

    /// True if a worker wants to connect; false for a plain RDMA program.
    pub fn is_worker(&self) -> bool {
        self.greeting.is_worker()
    }

    /// The longest message that the peer accepts, in bytes, if it is a worker.
    pub fn block_bytes(&self) -> Option<u32> {
        self.greeting.block_bytes()
    }

    /// Process and user of the peer, as the kernel reports them. `None` on a NIC: the peer may be
    /// on another machine.
    pub fn credentials(&self) -> Option<Credentials> {
        self.credentials
    }
}

/// The answer to a [`ConnectRequest`].
pub struct Answer<F: Fabric> {
    pub(crate) accepted: bool,
    pub(crate) worker: Option<Intake<F>>,
    pub(crate) data: PeerData,
}

impl<F: Fabric> Answer<F> {
    /// The connection goes to the worker whose turn it is.
    pub fn accept() -> Answer<F> {
        Answer { accepted: true, worker: None, data: PeerData::default() }
    }

    /// The peer is refused. `why` goes with the refusal, in the clear, and the peer's error shows
    /// it; at most its first 32 bytes are sent.
    pub fn refuse(why: impl AsRef<[u8]>) -> Answer<F> {
        let why = why.as_ref();
        let most = why.len().min(PEER_DATA_MAX);
        let data = PeerData::new(&why[..most]).unwrap_or_default();
        Answer { accepted: false, worker: None, data }
    }

    /// An accepted connection goes to this worker, which need not be one that was fed.
    #[must_use]
    pub fn to_worker(self, worker: &Intake<F>) -> Answer<F> {
        Answer { worker: Some(worker.clone()), ..self }
    }

    /// The bytes go to the peer, which finds them in
    /// [`PeerInfo::data`](doorbell_engine::worker::PeerInfo::data).
    #[must_use]
    pub fn with_data(self, data: PeerData) -> Answer<F> {
        Answer { data, ..self }
    }
}
