//! What ids, queue pairs and connections are made with.

use doorbell_engine::provider::{Provider, QpCaps, QpType};

/// Port spaces (`enum rdma_port_space`, numbers as there: G-5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum PortSpace {
    /// Reliable, connected, messages: queue pairs are RC (ID-5).
    #[default]
    Tcp = 0x0106,
}

/// What a queue pair is made with (`struct ibv_qp_init_attr`).
pub struct QpAttr<'a, P: Provider> {
    /// The transport.
    pub kind: QpType,
    /// Where sends complete.
    pub send_cq: &'a P::Cq,
    /// Where receives complete.
    pub recv_cq: &'a P::Cq,
    /// The shared receive queue, if it has none of its own.
    pub srq: Option<&'a P::Srq>,
    /// Capacities wanted; the real ones are the queue pair's (QP-10).
    pub caps: QpCaps,
    /// Every send completes (QP-15).
    pub signal_all: bool,
}

/// Parameters of connect and accept (`struct rdma_conn_param`). The default is what a NULL
/// parameter means (CM-6).
#[derive(Clone, Copy, Debug)]
pub struct ConnParam<'a> {
    /// Bytes for the peer: at most 56 with connect, 196 with accept in the TCP port space (CM-8).
    /// The peer sees them padded with zeros to that length.
    pub private_data: &'a [u8],
    /// READs and atomics of the peer this side serves at a time; 255 is the device's maximum.
    pub responder_resources: u8,
    /// READs and atomics this side has in flight at a time; 255 is the device's maximum.
    pub initiator_depth: u8,
    /// Retries after a lost packet, 0 to 7; of the connecting side, for both.
    pub retry_count: u8,
    /// Retries the *peer's* sends make when this side has no receive posted; 7 is for ever.
    pub rnr_retry: u8,
}

impl Default for ConnParam<'_> {
    fn default() -> Self {
        ConnParam {
            private_data: &[],
            responder_resources: 255,
            initiator_depth: 255,
            retry_count: 7,
            rnr_retry: 7,
        }
    }
}

/// Private data limits of the TCP port space (CM-8), in bytes.
pub const CONNECT_DATA_MAX: usize = 56;
/// As above, for accept.
pub const ACCEPT_DATA_MAX: usize = 196;
/// As above, for reject.
pub const REJECT_DATA_MAX: usize = 148;
