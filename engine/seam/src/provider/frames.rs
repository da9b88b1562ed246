//! Types for RAW_PACKET queue pairs: Ethernet addresses, flow rules, and spreading of frames over
//! work queues.

use core::fmt;

use bitflags::bitflags;

use crate::error::SetupError;
use crate::wr::{PostError, RecvWr};

/// An Ethernet address, in wire order.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// True if it is a group address, broadcast included.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which frames of its port a RAW_PACKET queue pair gets (`struct ibv_flow_attr`). Without a rule
/// it gets none; with several, it gets each frame that any of them matches, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlowRule {
    /// All of them (`IBV_FLOW_ATTR_SNIFFER`).
    All,
    /// Frames sent to an address (`IBV_FLOW_ATTR_NORMAL` with `struct ibv_flow_spec_eth`).
    To(Mac),
    /// Frames whose headers match (`IBV_FLOW_ATTR_NORMAL` with any of `struct ibv_flow_spec_eth`,
    /// `_ipv4_ext`, `_ipv6` and `_tcp_udp`). Only soft has it.
    Matching(FrameFilter),
}

/// Values for some bits of a header; the others do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bits<const N: usize> {
    /// The bits, as in a frame.
    pub value: [u8; N],
    /// Those that count.
    pub mask: [u8; N],
}

impl<const N: usize> Default for Bits<N> {
    /// Matches everything.
    fn default() -> Self {
        Bits { value: [0; N], mask: [0; N] }
    }
}

impl<const N: usize> Bits<N> {
    /// True if these bytes have the values.
    pub fn match_bytes(&self, bytes: &[u8]) -> bool {
        let same = |((byte, value), mask): ((&u8, &u8), &u8)| (byte ^ value) & mask == 0;
        bytes.len() >= N && bytes.iter().zip(&self.value).zip(&self.mask).all(same)
    }

    /// Sets `M` bytes, the first at `at`. Sets none if one of them is beyond the last.
    pub fn set<const M: usize>(&mut self, at: usize, value: [u8; M], mask: [u8; M]) {
        for (to, from) in [(&mut self.value, value), (&mut self.mask, mask)] {
            if let Some(to) = to.get_mut(at..at + M) {
                to.copy_from_slice(&from);
            }
        }
    }
}

/// What the headers of a frame must be, layer by layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FrameFilter {
    /// Destination, source, and the type behind VLAN tags.
    pub ethernet: Bits<14>,
    /// The header of IP.
    pub ip: Option<IpFilter>,
    /// The protocol above IP (6 for TCP, 17 for UDP), with source and destination port.
    pub ports: Option<(u8, Bits<4>)>,
}

/// What an IP header must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpFilter {
    /// Version 4, without options.
    Four(Bits<20>),
    /// Version 6.
    Six(Bits<40>),
}

/// Bytes of a hash key: what a Toeplitz function over IPv6 addresses and ports needs.
pub const HASH_KEY_BYTES: usize = 40;

/// The hash function for spreading (`enum ibv_rx_hash_function_flags`, numbers as there).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum HashFunction {
    /// The Toeplitz hash of receive-side scaling.
    #[default]
    Toeplitz = 1,
}

bitflags! {
    /// Fields of a frame to spread by (`enum ibv_rx_hash_fields`, numbers as there). Fields of both
    /// IP versions, or ports of both TCP and UDP, cannot be combined.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct HashFields: u64 {
        /// The source's IPv4 address.
        const SRC_IPV4 = 1 << 0;
        /// The destination's IPv4 address.
        const DST_IPV4 = 1 << 1;
        /// The source's IPv6 address.
        const SRC_IPV6 = 1 << 2;
        /// The destination's IPv6 address.
        const DST_IPV6 = 1 << 3;
        /// The source's TCP port.
        const SRC_PORT_TCP = 1 << 4;
        /// The destination's TCP port.
        const DST_PORT_TCP = 1 << 5;
        /// The source's UDP port.
        const SRC_PORT_UDP = 1 << 6;
        /// The destination's UDP port.
        const DST_PORT_UDP = 1 << 7;
    }
}

/// How receives are spread over work queues (`struct ibv_rx_hash_conf`): the low bits of the hash
/// are the index into the table. A frame without the fields has a hash of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxHash {
    /// The function.
    pub function: HashFunction,
    /// Its key.
    pub key: [u8; HASH_KEY_BYTES],
    /// The fields to hash.
    pub fields: HashFields,
}

bitflags! {
    /// Flags of a work queue (`enum ibv_wq_flags`, numbers as there): they act as the
    /// [`CreateFlags`] of the same names, on frames that arrive here.
    ///
    /// [`CreateFlags`]: crate::provider::CreateFlags
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WqFlags: u32 {
        /// The device removes the outer VLAN tag of a frame.
        const CVLAN_STRIPPING = 1 << 0;
        /// A frame is followed by its check sequence.
        const SCATTER_FCS = 1 << 1;
    }
}

/// The state of a work queue (`enum ibv_wq_state`, numbers as there).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum WqState {
    /// Takes nothing; posted receives are forgotten.
    #[default]
    Reset = 0,
    /// Takes receives and frames.
    Ready = 1,
    /// Receives are flushed, those already posted and those posted from now on.
    Err = 2,
}

/// A receive work queue (`struct ibv_wq`), for tables that frames are spread over.
pub trait Wq {
    /// Its number; its completions carry it in place of a queue pair's number.
    fn num(&self) -> u32;

    /// How many receives it holds.
    fn depth(&self) -> u32;

    /// Moves it to another state (`ibv_modify_wq`): from RESET to RDY, from there to ERR, from
    /// anywhere to RESET.
    ///
    /// # Errors
    /// `Invalid`: there is no such transition. Otherwise the device's error.
    fn modify(&self, to: WqState) -> Result<(), SetupError>;

    /// Posts receives, oldest first, with one doorbell (`ibv_post_wq_recv`).
    ///
    /// # Errors
    /// See [`PostError`]; [`crate::wr::PostCause::State`] in RESET.
    ///
    /// # Safety
    /// As for [`crate::provider::Srq::post`], or until the queue was taken to RESET.
    #[expect(unsafe_code, reason = "the device writes to the buffers behind Rust's back")]
    unsafe fn post(&self, list: &[RecvWr]) -> Result<(), PostError>;
}
