//! The messages between two ends, which have fixed sizes.
//!
//! ```text
//! active                         passive
//!   REQ  who I am, my queue pair →          CONNECT_REQUEST
//!        ← REP  my queue pair, the link     (its queue pair is connected)
//!   RTU  connected               →          ESTABLISHED
//!   BYE  or the end of the socket, either way: DISCONNECTED
//! ```
//! Datagrams are not connected; their listener is looked up: LOOKUP, then FOUND with the place to
//! send to. REJ may replace any answer. A message of another length, kind or version is refused. No
//! message carries an address or a length that the receiver relies on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use doorbell_fabric::{ACCEPT_DATA_MAX, CONNECT_DATA_MAX, Depths, REJECT_DATA_MAX, Rejection};

use crate::FileName;

/// First word of each message: the name of the protocol.
const MAGIC: u32 = 0x4442_434d;
/// Both sides must have the same. Raise it when a message changes, the layout of a link or a table,
/// or what a record may hold.
const VERSION: u16 = 12;

/// The longest message, in bytes.
pub(super) const MESSAGE_MAX: usize = 256;

/// A device instance: a random number, so that no two are the same.
pub(super) type Instance = [u8; 16];

/// Where a queue pair lives: device, domain, receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) instance: Instance,
    pub(super) domain: u32,
    pub(super) queue: u32,
}

/// The peer's queue pair, as its request or its answer describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerQp {
    /// Its number.
    pub num: u32,
    /// `retry_count` of the connecting side's [`doorbell_fabric::ConnParam`]; an answer has none,
    /// and this is 0 then, as in events of librdmacm.
    pub retry_count: u8,
    /// `rnr_retry` of the peer's [`doorbell_fabric::ConnParam`].
    pub rnr_retry: u8,
}

/// The request of an active side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) place: Place,
    pub(super) qp: u32,
    /// The address the active side gives as its own.
    pub(super) from: SocketAddr,
    pub(super) depths: Depths,
    /// `retry_count` and `rnr_retry` of the active side's [`doorbell_fabric::ConnParam`].
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    pub(super) directory: FileName,
    pub(super) data: [u8; CONNECT_DATA_MAX],
}

/// Bytes of private data in a look-up, and in its answer (CM-8).
const LOOKUP_DATA: usize = 180;
const FOUND_DATA: usize = 136;

/// A side asks for the listener of datagrams at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lookup {
    /// The address that side gives as its own.
    pub(super) from: SocketAddr,
    pub(super) data: [u8; LOOKUP_DATA],
}

/// The answer of a listener that accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) gid: [u8; 16],
    pub(super) qp: u32,
    pub(super) qkey: u32,
    pub(super) data: [u8; FOUND_DATA],
}

/// The answer of a passive side that accepts; the link's memory comes along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) place: Place,
    pub(super) qp: u32,
    /// The link, as its maker numbers it.
    pub(super) link: u64,
    /// The passive side is the link's maker.
    pub(super) maker: bool,
    pub(super) depths: Depths,
    /// `rnr_retry` of the passive side's [`doorbell_fabric::ConnParam`].
    pub(super) rnr_retry: u8,
    pub(super) directory: FileName,
    pub(super) data: [u8; ACCEPT_DATA_MAX],
}

/// A link for a queue pair that the receiver has, or will have, on its way to RTR; the link's
/// memory comes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByNumber {
    /// The GID of the sender's device.
    pub(super) gid: [u8; 16],
    /// The sender's queue pair.
    pub(super) from: u32,
    /// The receiver's queue pair.
    pub(super) to: u32,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Request(Box<Request>),
    Reply(Box<Reply>),
    Ready,
    Reject { status: i32, data: Box<[u8; REJECT_DATA_MAX]> },
    Bye,
    Lookup(Box<Lookup>),
    Found(Box<Found>),
    ByNumber(ByNumber),
}

/// Private data, padded with zeros as on InfiniBand (CM-8). The caller has checked its length.
pub(super) fn padded<const N: usize>(data: &[u8]) -> [u8; N] {
    let mut fixed = [0; N];
    let length = data.len().min(N);
    fixed[..length].copy_from_slice(&data[..length]);
    fixed
}

impl Message {
    /// A rejection by the program, with its private data.
    pub(super) fn reject(data: &[u8]) -> Message {
        Message::Reject { status: Rejection::Consumer as i32, data: Box::new(padded(data)) }
    }

    /// The sender's queue pair, in a request and in its answer.
    pub(super) fn qp(&self) -> Option<PeerQp> {
        match self {
            Message::Request(request) => Some(PeerQp {
                num: request.qp,
                retry_count: request.retry_count,
                rnr_retry: request.rnr_retry,
            }),
            Message::Reply(reply) => {
                Some(PeerQp { num: reply.qp, retry_count: 0, rnr_retry: reply.rnr_retry })
            }
            _ => None,
        }
    }

    fn kind(&self) -> u16 {
        match self {
            Message::Request(_) => 1,
            Message::Reply(_) => 2,
            Message::Ready => 3,
            Message::Reject { .. } => 4,
            Message::Bye => 5,
            Message::Lookup(_) => 6,
            Message::Found(_) => 7,
            Message::ByNumber(_) => 8,
        }
    }

    /// The bytes to send.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MESSAGE_MAX);
        out.extend(MAGIC.to_le_bytes());
        out.extend(VERSION.to_le_bytes());
        out.extend(self.kind().to_le_bytes());
        match self {
            Message::Request(request) => {
                put_place(&mut out, &request.place);
                out.extend(request.qp.to_le_bytes());
                put_addr(&mut out, request.from);
                out.extend([request.depths.responder, request.depths.initiator]);
                out.extend([request.retry_count, request.rnr_retry]);
                put_name(&mut out, request.directory);
                out.extend(request.data);
            }
            Message::Reply(reply) => {
                put_place(&mut out, &reply.place);
                out.extend(reply.qp.to_le_bytes());
                out.extend(reply.link.to_le_bytes());
                out.push(u8::from(reply.maker));
                out.extend([reply.depths.responder, reply.depths.initiator]);
                out.push(reply.rnr_retry);
                put_name(&mut out, reply.directory);
                out.extend(reply.data);
            }
            Message::Reject { status, data } => {
                out.extend(status.to_le_bytes());
                out.extend(data.iter());
            }
            Message::Lookup(lookup) => {
                put_addr(&mut out, lookup.from);
                out.extend(lookup.data);
            }
            Message::Found(found) => {
                out.extend(found.gid);
                out.extend(found.qp.to_le_bytes());
                out.extend(found.qkey.to_le_bytes());
                out.extend(found.data);
            }
            Message::ByNumber(offer) => {
                out.extend(offer.gid);
                out.extend(offer.from.to_le_bytes());
                out.extend(offer.to.to_le_bytes());
            }
            Message::Ready | Message::Bye => {}
        }
        debug_assert!(out.len() <= MESSAGE_MAX);
        out
    }

    /// Decodes `bytes`, if they are exactly one message.
    pub(super) fn decode(bytes: &[u8]) -> Option<Message> {
        let mut rest = Bytes(bytes);
        if rest.u32()? != MAGIC || rest.u16()? != VERSION {
            return None;
        }
        let message = match rest.u16()? {
            1 => Message::Request(Box::new(Request {
                place: rest.place()?,
                qp: rest.u32()?,
                from: rest.addr()?,
                depths: rest.depths()?,
                retry_count: rest.retries()?,
                rnr_retry: rest.retries()?,
                directory: rest.name()?,
                data: rest.array()?,
            })),
            2 => Message::Reply(Box::new(Reply {
                place: rest.place()?,
                qp: rest.u32()?,
                link: rest.u64()?,
                maker: rest.array::<1>()? != [0],
                depths: rest.depths()?,
                rnr_retry: rest.retries()?,
                directory: rest.name()?,
                data: rest.array()?,
            })),
            3 => Message::Ready,
            4 => Message::Reject {
                status: i32::from_le_bytes(rest.array()?),
                data: Box::new(rest.array()?),
            },
            5 => Message::Bye,
            6 => Message::Lookup(Box::new(Lookup { from: rest.addr()?, data: rest.array()? })),
            7 => Message::Found(Box::new(Found {
                gid: rest.array()?,
                qp: rest.u32()?,
                qkey: rest.u32()?,
                data: rest.array()?,
            })),
            8 => Message::ByNumber(ByNumber {
                gid: rest.array()?,
                from: rest.u32()?,
                to: rest.u32()?,
            }),
            _ => return None,
        };
        rest.0.is_empty().then_some(message)
    }
}

fn put_name(out: &mut Vec<u8>, name: FileName) {
    out.extend(name.fd.to_le_bytes());
    out.extend(name.inode.to_le_bytes());
}

fn put_place(out: &mut Vec<u8>, place: &Place) {
    out.extend(place.instance);
    out.extend(place.domain.to_le_bytes());
    out.extend(place.queue.to_le_bytes());
}

fn put_addr(out: &mut Vec<u8>, addr: SocketAddr) {
    let (family, ip) = match addr.ip() {
        IpAddr::V4(ip) => (4_u8, padded::<16>(&ip.octets())),
        IpAddr::V6(ip) => (6, ip.octets()),
    };
    out.push(family);
    out.extend(ip);
    out.extend(addr.port().to_le_bytes());
}

/// Bytes still to be read.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn name(&mut self) -> Option<FileName> {
        Some(FileName { fd: self.u32()?, inode: self.u64()? })
    }

    fn depths(&mut self) -> Option<Depths> {
        let [responder, initiator] = self.array()?;
        Some(Depths { responder, initiator })
    }

    /// A number of retries, which has three bits.
    fn retries(&mut self) -> Option<u8> {
        let [count] = self.array()?;
        (count <= 7).then_some(count)
    }

    fn place(&mut self) -> Option<Place> {
        Some(Place { instance: self.array()?, domain: self.u32()?, queue: self.u32()? })
    }

    fn addr(&mut self) -> Option<SocketAddr> {
        let [family] = self.array()?;
        let ip: [u8; 16] = self.array()?;
        let ip = match family {
            4 => IpAddr::V4(Ipv4Addr::new(ip[0], ip[1], ip[2], ip[3])),
            6 => IpAddr::V6(Ipv6Addr::from(ip)),
            _ => return None,
        };
        Some(SocketAddr::new(ip, self.u16()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Message> {
        let place = Place { instance: [7; 16], domain: 3, queue: 9 };
        let from = "[::1]:70".parse().unwrap();
        let data = padded(b"hello");
        let depths = Depths { responder: 3, initiator: 16 };
        let directory = FileName { fd: 9, inode: 1 << 50 };
        let welcome = padded(b"welcome");
        let (retry_count, rnr_retry, link) = (5, 6, 1 << 40);
        let request =
            Request { place, qp: 4, from, depths, retry_count, rnr_retry, directory, data };
        let data = welcome;
        let reply = Reply { place, qp: 5, link, maker: true, depths, rnr_retry, directory, data };
        vec![
            Message::Request(Box::new(request)),
            Message::Reply(Box::new(reply)),
            Message::Ready,
            Message::Reject { status: 28, data: Box::new(padded(b"no")) },
            Message::Bye,
            Message::Lookup(Box::new(Lookup { from, data: padded(b"who") })),
            Message::Found(Box::new(Found { gid: [5; 16], qp: 3, qkey: 4, data: padded(b"me") })),
            Message::ByNumber(ByNumber { gid: [6; 16], from: 17, to: 18 }),
        ]
    }

    #[test]
    fn encoding_and_decoding_agree() {
        for message in all() {
            assert_eq!(Message::decode(&message.encode()).as_ref(), Some(&message));
        }
    }

    #[test]
    fn more_retries_than_three_bits_hold_are_refused() {
        for message in all() {
            let counts: &[usize] = match &message {
                // Behind the head, the place, the queue pair, the address and the depths.
                Message::Request(_) => &[57, 58],
                // Behind the head, the place, the queue pair, the link, its maker and the depths.
                Message::Reply(_) => &[47],
                _ => &[],
            };
            for at in counts {
                let mut bytes = message.encode();
                assert!((5..=6).contains(&bytes[*at]));
                bytes[*at] = 8;
                assert_eq!(Message::decode(&bytes), None);
            }
        }
    }

    /// A peer may write anything: no prefix, no longer message and no changed head is accepted, and
    /// no single changed byte leads to a panic.
    #[test]
    fn anything_else_is_refused() {
        for message in all() {
            let good = message.encode();
            assert!(good.len() <= MESSAGE_MAX);
            for cut in 0..good.len() {
                assert_eq!(Message::decode(&good[..cut]), None);
            }
            let longer = [good.as_slice(), &[0]].concat();
            assert_eq!(Message::decode(&longer), None);
            for at in 0..good.len() {
                let mut bad = good.clone();
                bad[at] ^= 0xff;
                let taken = Message::decode(&bad);
                assert!(at >= 8 || taken.is_none(), "byte {at} of the head was not looked at");
            }
        }
    }
}
