//! The private data of a connection: the identity of each side in connect and accept, and the
//! reason in a refusal.
//!
//! Each is a *frame* of [`HANDSHAKE_BYTES`], with up to [`PEER_DATA_MAX`] bytes of the program
//! behind it; together they fill the 56 bytes that a connect may carry. All versions begin with the
//! same fields:
//!
//! | bytes | |
//! |---|---|
//! | 0..3 | [`MAGIC`] |
//! | 3 | the version of the sender |
//! | 4 | kind in the upper two bits, bytes of the program in the lower six |
//! | 5 | a checksum over all 56 bytes, those that were not sent being zero |
//!
//! In a handshake, window (2 bytes), key (4), address (8) and block (4) follow. In a refusal, which
//! is the same in all versions, its reason (1), a zero, and two figures (4 each) follow. Numbers
//! are little-endian. Data that does not begin with the magic comes from a plain RDMA program.

use core::fmt;
use core::net::SocketAddr;

use crate::wr::Remote;

/// Bytes that two workers exchange when they connect: see [`super::PeerResources::handshake`].
pub const HANDSHAKE_BYTES: usize = 24;

/// The most bytes of its own that a program may send with connect, accept or reject.
pub const PEER_DATA_MAX: usize = 32;

/// The version of the handshake that this library speaks.
pub const HANDSHAKE_VERSION: u8 = 3;

/// Bytes of a frame with the most bytes of a program.
const WHOLE: usize = HANDSHAKE_BYTES + PEER_DATA_MAX;
/// Bytes of a frame behind its checksum.
const REST: usize = HANDSHAKE_BYTES - CHECK_AT - 1;
const MAGIC: [u8; 3] = [0xdb, b'e', b'l'];
const CHECK_AT: usize = 5;
const KIND_HELLO: u8 = 1;
const KIND_REFUSAL: u8 = 2;

/// Bytes that a program gave with a connect, an accept or a refusal: at most [`PEER_DATA_MAX`].
/// They come from the peer, so do not trust them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerData {
    bytes: [u8; PEER_DATA_MAX],
    length: u8,
}

impl PeerData {
    /// A copy of `bytes`; `None` if there are more than [`PEER_DATA_MAX`].
    pub fn new(bytes: &[u8]) -> Option<PeerData> {
        let mut data = PeerData::default();
        data.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        data.length = bytes.len() as u8;
        Some(data)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }
}

impl fmt::Debug for PeerData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// The private data of a connect, an accept or a reject, as bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData {
    bytes: [u8; WHOLE],
    length: u8,
}

impl PrivateData {
    fn new(version: u8, kind: u8, rest: &[u8], data: &PeerData) -> PrivateData {
        let mut bytes = [0; WHOLE];
        bytes[..3].copy_from_slice(&MAGIC);
        bytes[3] = version;
        bytes[4] = kind << 6 | data.length;
        let (frame, program) = bytes.split_at_mut(HANDSHAKE_BYTES);
        for (to, from) in frame.iter_mut().skip(CHECK_AT + 1).zip(rest) {
            *to = *from;
        }
        program.copy_from_slice(&data.bytes);
        bytes[CHECK_AT] = checksum(&bytes);
        PrivateData { bytes, length: HANDSHAKE_BYTES as u8 + data.length }
    }

    /// The bytes for the connection manager.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }
}

/// CRC-8 of all bytes except its own: it detects a change of up to eight consecutive bits.
fn checksum(bytes: &[u8; WHOLE]) -> u8 {
    let counted = |at: usize, byte: u8| if at == CHECK_AT { 0 } else { byte };
    bytes.iter().enumerate().fold(0xff, |crc, (at, byte)| {
        (0..8).fold(crc ^ counted(at, *byte), |crc, _| {
            if crc & 0x80 == 0 { crc << 1 } else { crc << 1 ^ 0x07 }
        })
    })
}

/// A frame that has passed its checks.
struct Frame {
    version: u8,
    kind: u8,
    /// The bytes behind the checksum.
    rest: [u8; REST],
    data: PeerData,
}

impl Frame {
    /// The frame at the front of private data. `Ok(None)`: there is none.
    ///
    /// # Errors
    /// It begins like a frame and is damaged.
    fn parse(private_data: &[u8]) -> Result<Option<Frame>, Damaged> {
        let mut bytes = [0; WHOLE];
        for (to, from) in bytes.iter_mut().zip(private_data) {
            *to = *from;
        }
        let [a, b, c, version, shape, check, tail @ ..] = bytes;
        if [a, b, c] != MAGIC {
            return Ok(None);
        }
        let (Some((rest, program)), true) =
            (tail.split_first_chunk::<REST>(), checksum(&bytes) == check)
        else {
            return Err(Damaged);
        };
        let program = program.get(..usize::from(shape & 0x3f)).ok_or(Damaged)?;
        let data = PeerData::new(program).ok_or(Damaged)?;
        Ok(Some(Frame { version, kind: shape >> 6, rest: *rest, data }))
    }
}

/// The private data begins like a frame and is damaged.
struct Damaged;

/// A worker's handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handshake {
    /// Messages it accepts before the first credit word; 0: it does not count.
    pub(super) window: u32,
    /// The word that it reads its credit from.
    pub(super) word: Remote,
    /// The longest message it can receive, in bytes.
    pub(super) block_bytes: u32,
}

impl Handshake {
    pub(super) fn to_private_data(self, data: &PeerData) -> PrivateData {
        let mut rest = [0; REST];
        rest[..2].copy_from_slice(&(self.window as u16).to_le_bytes());
        rest[2..6].copy_from_slice(&self.word.rkey.to_le_bytes());
        rest[6..14].copy_from_slice(&self.word.addr.to_le_bytes());
        rest[14..].copy_from_slice(&self.block_bytes.to_le_bytes());
        PrivateData::new(HANDSHAKE_VERSION, KIND_HELLO, &rest, data)
    }

    fn from_rest(rest: &[u8; REST]) -> Handshake {
        let [a, b, rest @ ..] = *rest;
        let [c, d, e, f, rest @ ..] = rest;
        let [g, h, i, j, k, l, m, n, block @ ..] = rest;
        let addr = u64::from_le_bytes([g, h, i, j, k, l, m, n]);
        Handshake {
            window: u16::from_le_bytes([a, b]).into(),
            word: Remote { rkey: u32::from_le_bytes([c, d, e, f]), addr },
            block_bytes: u32::from_le_bytes(block),
        }
    }
}

/// A peer's identity from its connect or accept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Greeting {
    /// `None`: it is a plain RDMA program, not a worker.
    pub(super) handshake: Option<Handshake>,
    data: PeerData,
}

impl Greeting {
    /// Reads the private data of a connect or an accept. A plain RDMA program's data counts as its
    /// own bytes, up to [`PEER_DATA_MAX`] of them.
    ///
    /// # Errors
    /// Why a connection with this peer must be refused: it speaks another version, or its handshake
    /// is damaged.
    pub fn parse(private_data: &[u8]) -> Result<Greeting, Refusal> {
        let malformed = Refusal::new(RefusalReason::Malformed, [0; 2]);
        match Frame::parse(private_data).map_err(|Damaged| malformed)? {
            None => {
                let most = private_data.len().min(PEER_DATA_MAX);
                let data = private_data.get(..most).and_then(PeerData::new).unwrap_or_default();
                Ok(Greeting { handshake: None, data })
            }
            Some(frame) if frame.version != HANDSHAKE_VERSION => {
                let versions = [HANDSHAKE_VERSION, frame.version].map(u32::from);
                Err(Refusal::new(RefusalReason::Version, versions))
            }
            Some(Frame { kind: KIND_HELLO, rest, data, .. }) => {
                Ok(Greeting { handshake: Some(Handshake::from_rest(&rest)), data })
            }
            Some(_) => Err(malformed),
        }
    }

    /// True if the peer is a worker of this library.
    pub fn is_worker(&self) -> bool {
        self.handshake.is_some()
    }

    /// The longest message that the peer can receive, in bytes; `None` for a plain RDMA program,
    /// which does not say.
    pub fn block_bytes(&self) -> Option<u32> {
        self.handshake.map(|handshake| handshake.block_bytes)
    }

    /// The bytes of the peer's program.
    pub fn data(&self) -> &PeerData {
        &self.data
    }
}

/// Why a connection was refused. The number goes to the peer, and keeps its meaning in all
/// versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u8)]
pub enum RefusalReason {
    /// A reason that this version does not know, or none was given.
    Unknown = 0,
    /// The listener has no worker.
    NoWorker = 1,
    /// The worker has no slot left for a peer (`Config::peers`).
    NoSlot = 2,
    /// All receives are promised to other peers (`Config::recv_blocks`, `Config::overcommit`): the
    /// workers that share them have more than `Config::peers` together.
    NoReceives = 3,
    /// The worker's mailbox is full, because it does not turn.
    Busy = 4,
    /// The system or the device lacks something for a queue pair: descriptors, memory.
    Resources = 5,
    /// The peers speak different versions of the handshake.
    Version = 6,
    /// One side sends inline messages that are longer than the blocks of the other.
    Blocks = 7,
    /// The handshake was damaged.
    Malformed = 8,
    /// The program refused: see [`Refusal::data`].
    Program = 9,
}

impl RefusalReason {
    /// All reasons, by number.
    pub const ALL: [RefusalReason; 10] = [
        RefusalReason::Unknown,
        RefusalReason::NoWorker,
        RefusalReason::NoSlot,
        RefusalReason::NoReceives,
        RefusalReason::Busy,
        RefusalReason::Resources,
        RefusalReason::Version,
        RefusalReason::Blocks,
        RefusalReason::Malformed,
        RefusalReason::Program,
    ];
}

/// A refused connection: the reason, its figures, and the bytes of the program. Its text says what
/// the refusing side lacks ("its" means the side that refused).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    reason: RefusalReason,
    figures: [u32; 2],
    data: PeerData,
}

impl Refusal {
    fn new(reason: RefusalReason, figures: [u32; 2]) -> Refusal {
        Refusal { reason, figures, data: PeerData::default() }
    }

    /// The listener has no worker.
    pub fn no_worker() -> Refusal {
        Refusal::new(RefusalReason::NoWorker, [0; 2])
    }

    pub(super) fn no_slot(peers: u32) -> Refusal {
        Refusal::new(RefusalReason::NoSlot, [peers, 0])
    }

    pub(super) fn no_receives(blocks: u32, spare: u32) -> Refusal {
        Refusal::new(RefusalReason::NoReceives, [blocks, spare])
    }

    pub(super) fn blocks(inline: u32, block: u32) -> Refusal {
        Refusal::new(RefusalReason::Blocks, [inline, block])
    }

    /// The worker's mailbox is full.
    pub fn busy() -> Refusal {
        Refusal::new(RefusalReason::Busy, [0; 2])
    }

    /// No queue pair could be made, because of that errno.
    pub fn resources(errno: i32) -> Refusal {
        Refusal::new(RefusalReason::Resources, [errno.unsigned_abs(), 0])
    }

    /// The program does not want this connection; the bytes go to the peer.
    pub fn program(data: PeerData) -> Refusal {
        Refusal { data, ..Refusal::new(RefusalReason::Program, [0; 2]) }
    }

    /// Why.
    pub fn reason(&self) -> RefusalReason {
        self.reason
    }

    /// The bytes of the program that refused.
    pub fn data(&self) -> &[u8] {
        self.data.bytes()
    }

    /// The private data of the reject.
    pub fn to_private_data(&self) -> PrivateData {
        let mut rest = [0; 10];
        rest[0] = self.reason as u8;
        rest[2..6].copy_from_slice(&self.figures[0].to_le_bytes());
        rest[6..].copy_from_slice(&self.figures[1].to_le_bytes());
        PrivateData::new(HANDSHAKE_VERSION, KIND_REFUSAL, &rest, &self.data)
    }

    /// Reads the private data of a reject; `None` if no worker's listener wrote it.
    pub fn parse(private_data: &[u8]) -> Option<Refusal> {
        let Ok(Some(frame)) = Frame::parse(private_data) else { return None };
        if frame.kind != KIND_REFUSAL {
            return None;
        }
        let [number, _, a, b, c, d, e, f, g, h, ..] = frame.rest;
        let reason =
            RefusalReason::ALL.get(usize::from(number)).copied().unwrap_or(RefusalReason::Unknown);
        let figures = [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])];
        Some(Refusal { reason, figures, data: frame.data })
    }

    /// What the reader can do about it.
    pub fn cure(&self) -> &'static str {
        match self.reason {
            RefusalReason::Unknown => "build both sides with the same version of Doorbell",
            RefusalReason::NoWorker => "feed() that listener with a worker before it runs",
            RefusalReason::NoSlot => "raise Config::peers there, or connect to another worker",
            RefusalReason::NoReceives => {
                "raise Config::recv_blocks or Config::overcommit there, or lower Config::window"
            }
            RefusalReason::Busy => "try again; if it lasts, that worker does not turn",
            RefusalReason::Resources => "raise its limits on open files and locked memory",
            RefusalReason::Version => "build both sides with the same version of Doorbell",
            RefusalReason::Blocks => {
                "raise Config::block_bytes on one side or lower Config::inline_bytes on the other"
            }
            RefusalReason::Malformed => "connect with a Dialer, or without private data",
            RefusalReason::Program => "ask the program that refused what it expects",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.figures;
        match self.reason {
            RefusalReason::Unknown => f.write_str("for a reason that this version does not know"),
            RefusalReason::NoWorker => f.write_str("its listener has no worker"),
            RefusalReason::NoSlot => {
                write!(f, "its worker has slots for {a} peers, and all are taken")
            }
            RefusalReason::NoReceives => {
                write!(f, "of its {a} receive blocks, {b} are not promised to other peers")
            }
            RefusalReason::Busy => f.write_str("its worker's mailbox is full"),
            RefusalReason::Resources => write!(f, "it could not make a queue pair (errno {a})"),
            RefusalReason::Version => write!(f, "it speaks version {a} of the handshake, not {b}"),
            RefusalReason::Blocks => {
                write!(f, "it sends up to {a} bytes inline, and the other side's blocks hold {b}")
            }
            RefusalReason::Malformed => f.write_str("the handshake was damaged on its way"),
            RefusalReason::Program if self.data().is_empty() => {
                f.write_str("its program did not want it")
            }
            RefusalReason::Program => write!(f, "its program said: {}", self.data().escape_ascii()),
        }
    }
}

/// The facts about a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerInfo {
    pub(super) addr: Option<SocketAddr>,
    pub(super) greeting: Greeting,
    pub(super) message_max: u32,
    pub(super) dialed: bool,
    /// A reply was longer: the next flush closes the peer.
    pub(super) overlong: bool,
}

impl PeerInfo {
    /// Its address, if the control plane gave one. On `soft` a dialing peer chooses its address
    /// itself.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// The private data of its program, from its connect or its accept; up to 32 bytes.
    pub fn data(&self) -> &[u8] {
        self.greeting.data.bytes()
    }

    /// True if it is a worker; false if it is a plain RDMA program, or its handshake has not come
    /// yet.
    pub fn is_worker(&self) -> bool {
        self.greeting.is_worker()
    }

    /// True if this side dialed it; false if it dialed this side.
    pub fn is_dialed(&self) -> bool {
        self.dialed
    }

    /// The longest message that may be sent to it, in bytes: a block of this side or of the peer,
    /// the shorter one.
    pub fn message_max(&self) -> u32 {
        self.message_max
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::ToString;

    use super::*;

    const HELLO: Handshake = Handshake {
        window: 65535,
        word: Remote { addr: u64::MAX - 1, rkey: 7 << 28 },
        block_bytes: 1 << 30,
    };

    /// Padded with zeros, as a device shows private data.
    fn padded(data: &PrivateData) -> [u8; 148] {
        let mut bytes = [0; 148];
        bytes[..data.bytes().len()].copy_from_slice(data.bytes());
        bytes
    }

    #[test]
    fn a_handshake_comes_back_as_it_was_with_every_length_of_data() {
        for length in 0..=PEER_DATA_MAX {
            let data = PeerData::new(&[0xa5; PEER_DATA_MAX][..length]).unwrap();
            let private = HELLO.to_private_data(&data);
            assert_eq!(private.bytes().len(), HANDSHAKE_BYTES + length);
            assert!(private.bytes().len() <= 56, "a connect carries no more");
            for seen in [private.bytes(), &padded(&private)[..56], &padded(&private)] {
                let greeting = Greeting::parse(seen).unwrap();
                assert_eq!((greeting.handshake, greeting.data), (Some(HELLO), data));
                assert_eq!(Refusal::parse(seen), None, "a handshake is no refusal");
            }
        }
        assert_eq!(PeerData::new(&[0; PEER_DATA_MAX + 1]), None);
    }

    #[test]
    fn a_refusal_comes_back_as_it_was() {
        for reason in RefusalReason::ALL {
            let data = PeerData::new(b"bad\tsecret").unwrap();
            let refusal = Refusal { data, ..Refusal::new(reason, [u32::MAX, 77]) };
            let private = refusal.to_private_data();
            assert_eq!(Refusal::parse(&padded(&private)), Some(refusal));
            assert!(Greeting::parse(private.bytes()).is_err(), "a refusal is no greeting");
            assert!(!refusal.to_string().is_empty() && !refusal.cure().is_empty());
        }
        let text = Refusal::program(PeerData::new(b"bad\tsecret\0").unwrap()).to_string();
        assert_eq!(text, "its program said: bad\\tsecret\\x00");
    }

    #[test]
    fn other_data_is_a_plain_programs() {
        for data in [&[][..], &[0; 56], &[0xdb; 56], b"\xdbe", b"key=1"] {
            let greeting = Greeting::parse(data).unwrap();
            assert_eq!((greeting.is_worker(), greeting.block_bytes()), (false, None));
            assert_eq!(greeting.data().bytes(), &data[..data.len().min(PEER_DATA_MAX)]);
            assert_eq!(Refusal::parse(data), None);
        }
    }

    #[test]
    fn another_version_is_named_and_its_refusal_is_read() {
        let rest = [3, 0, 1, 0, 0, 0, 2];
        let data = PeerData::default();
        let hello = PrivateData::new(7, KIND_HELLO, &rest, &data);
        let refusal = Greeting::parse(hello.bytes()).unwrap_err();
        assert_eq!(refusal, Refusal::new(RefusalReason::Version, [HANDSHAKE_VERSION.into(), 7]));
        let text = format!("{refusal}; {}", refusal.cure());
        assert!(text.contains("version 3 of the handshake, not 7; build both"), "{text}");
        let of_another = PrivateData::new(7, KIND_REFUSAL, &rest, &data);
        let refusal = Refusal::parse(of_another.bytes()).unwrap();
        assert_eq!((refusal.reason, refusal.figures), (RefusalReason::NoReceives, [1, 2]));
        // A frame of a future version.
        let newer = PrivateData::new(7, KIND_REFUSAL, &[200], &data);
        assert_eq!(Refusal::parse(newer.bytes()).unwrap().reason, RefusalReason::Unknown);
    }

    /// Each byte of a frame is changed to each value: the result is never another handshake, nor a
    /// refusal.
    #[test]
    fn a_changed_byte_never_passes_for_another_handshake() {
        let data = PeerData::new(b"secret").unwrap();
        let private = HELLO.to_private_data(&data);
        let seen = padded(&private);
        assert!(Greeting::parse(&seen).is_ok());
        for at in 0..56 {
            for value in (0..=255).filter(|value| *value != seen[at]) {
                let mut changed = seen;
                changed[at] = value;
                assert_eq!(Refusal::parse(&changed), None, "byte {at} is {value}");
                match Greeting::parse(&changed[..56]) {
                    Ok(greeting) => assert!(at < 3 && !greeting.is_worker()),
                    Err(refusal) => assert_eq!(refusal.reason, RefusalReason::Malformed),
                }
            }
        }
    }

    /// Random and cut data: each is plain bytes, an error, or a handshake within its bounds.
    #[test]
    fn no_data_breaks_the_parser() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..100_000 {
            let mut bytes = [0u8; 196];
            bytes.iter_mut().for_each(|byte| *byte = next() as u8);
            let length = next() as usize % (bytes.len() + 1);
            if next() & 1 == 0 {
                bytes[..3].copy_from_slice(&MAGIC);
                bytes[CHECK_AT] = checksum(bytes.first_chunk().unwrap());
            }
            let seen = &bytes[..length];
            if let Ok(greeting) = Greeting::parse(seen) {
                assert!(greeting.data().bytes().len() <= PEER_DATA_MAX.min(length));
            }
            if let Some(refusal) = Refusal::parse(seen) {
                assert!(RefusalReason::ALL.contains(&refusal.reason()));
                assert!(!refusal.to_string().contains('\0'));
            }
        }
    }
}
