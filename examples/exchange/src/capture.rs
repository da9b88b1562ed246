//! Captures: datagrams of the feed, or orders, with the times at which they came. A file is plain
//! pcap, so other programs read it: times in nanoseconds, link type 101 (raw IP), and each datagram
//! as IPv4 and UDP.
//!
//! | | of the feed | an order |
//! |---|---|---|
//! | from | 0.0.0.0 | the number of the user, as four bytes |
//! | to | the group of the line | 0.0.0.0 |
//! | port | 26400 for line A, 26401 for line B | 26410 |
//! | payload | a packet of MoldUDP64 | a message of OUCH |

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use crate::field::{Reader, Write};

/// The port of line A; that of line B follows.
const FEED: u16 = 26_400;

/// Lines that a capture may hold.
const LINES: u16 = 10;

/// The port of orders.
const ORDERS: u16 = FEED + LINES;

/// Bytes of the file's head, of a record's head, and of the heads of IPv4 and UDP.
const FILE_HEAD: usize = 24;
const RECORD_HEAD: usize = 16;
const IP_HEAD: usize = 20;
const HEADS: usize = IP_HEAD + 8;

/// The file's head: pcap 2.4 with times in nanoseconds, snapshot length 65 535, raw IP. The
/// numbers of pcap are little-endian here.
const HEAD: [u8; FILE_HEAD] =
    [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 101, 0, 0, 0];

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A datagram of the feed, on the line with that number, A being 0.
    Feed(u16),
    /// An order of that user.
    Order(u32),
}

/// A packet of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// What it is.
    pub kind: Kind,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// Why a file cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is another kind of file.
    #[error("it is no capture: a pcap file with nanoseconds and link type 101 is needed")]
    Other,
    /// A packet is damaged, or cut off.
    #[error("it is damaged: {why} in the packet at byte {at}")]
    Damaged {
        /// Where the packet begins.
        at: usize,
        /// What is wrong.
        why: &'static str,
    },
}

/// The sum of the Internet's checksums over some bytes.
fn checksum(parts: [&[u8]; 2]) -> u16 {
    let words = parts.into_iter().flat_map(|part| part.chunks(2));
    let word = |two: &[u8]| u32::from(two[0]) << 8 | u32::from(*two.get(1).unwrap_or(&0));
    let sum: u32 = words.map(word).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// The head of IPv4, without its checksum.
fn ip_head(from: u32, to: u32, payload: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEADS);
    head.u16(0x4500).u16((HEADS + payload) as u16).u32(0x4000).u16(0x4011).u16(0);
    head.u32(from).u32(to);
    head
}

/// The checksum of UDP: over the addresses and the protocol too.
fn udp_checksum(ip: &[u8], udp: &[u8]) -> u16 {
    let mut pseudo = ip[12..IP_HEAD].to_vec();
    pseudo.u16(17).u16(udp.len() as u16);
    checksum([&pseudo, udp])
}

/// Writes a capture.
pub struct Writer {
    file: BufWriter<File>,
    groups: Vec<Ipv4Addr>,
    bytes: Vec<u8>,
    packets: u64,
}

impl Writer {
    /// Begins a file, over one of the same name. `lines` are the groups of the lines; one of IPv6
    /// is written as 0.0.0.0.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn create(path: &Path, lines: &[IpAddr]) -> io::Result<Writer> {
        let group = |line: &IpAddr| match line {
            IpAddr::V4(group) => *group,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        file.write_all(&HEAD)?;
        let groups = lines.iter().map(group).collect();
        Ok(Writer { file, groups, bytes: Vec::new(), packets: 0 })
    }

    /// Writes a packet. A longer one than 65 507 bytes is cut off.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&mut self, time: u64, kind: Kind, payload: &[u8]) -> io::Result<()> {
        let payload = &payload[..payload.len().min(usize::from(u16::MAX) - HEADS)];
        let (from, to, port) = match kind {
            Kind::Feed(line) => {
                let group = self.groups.get(usize::from(line)).map_or(0, |group| group.to_bits());
                (0, group, FEED + line.min(LINES - 1))
            }
            Kind::Order(user) => (user, 0, ORDERS),
        };
        let (seconds, rest) = ((time / 1_000_000_000) as u32, (time % 1_000_000_000) as u32);
        let length = (HEADS + payload.len()) as u32;
        self.bytes.clear();
        for number in [seconds, rest, length, length] {
            self.bytes.extend(number.to_le_bytes());
        }
        let mut ip = ip_head(from, to, payload.len());
        let sum = checksum([&ip, &[]]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        self.bytes.text(&ip).u16(port).u16(port).u16((8 + payload.len()) as u16).u16(0);
        self.bytes.text(payload);
        let udp = RECORD_HEAD + IP_HEAD;
        // In UDP a sum of 0 would say that there is none.
        let sum = match udp_checksum(&ip, &self.bytes[udp..]) {
            0 => u16::MAX,
            sum => sum,
        };
        self.bytes[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
        self.packets += 1;
        self.file.write_all(&self.bytes)
    }

    /// Writes what is still in memory. Returns the number of packets.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn finish(&mut self) -> io::Result<u64> {
        self.file.flush()?;
        Ok(self.packets)
    }
}

/// Reads a whole file, and checks all of it.
///
/// # Errors
/// See [`CaptureError`].
pub fn read_file(path: &Path) -> Result<Vec<Packet>, CaptureError> {
    read(&std::fs::read(path)?)
}

/// Reads the bytes of a file.
///
/// # Errors
/// [`CaptureError::Other`] and [`CaptureError::Damaged`].
pub fn read(bytes: &[u8]) -> Result<Vec<Packet>, CaptureError> {
    let mut rest = bytes.strip_prefix(&HEAD).ok_or(CaptureError::Other)?;
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let at = bytes.len() - rest.len();
        let damaged = |why| CaptureError::Damaged { at, why };
        let (packet, more) = record(rest).map_err(damaged)?;
        packets.push(packet);
        rest = more;
    }
    Ok(packets)
}

/// Reads a record, and returns what follows it.
fn record(bytes: &[u8]) -> Result<(Packet, &[u8]), &'static str> {
    let (head, rest) = bytes.split_first_chunk::<RECORD_HEAD>().ok_or("a head is cut off")?;
    let number = |n: usize| {
        let [a, b, c, d] = [0, 1, 2, 3].map(|byte| head[n * 4 + byte]);
        u32::from_le_bytes([a, b, c, d])
    };
    let [seconds, rest_of_time, length, whole] = [0, 1, 2, 3].map(number);
    if rest_of_time >= 1_000_000_000 {
        return Err("a time that is none");
    }
    if length != whole || length > u32::from(u16::MAX) {
        return Err("a wrong length");
    }
    let (datagram, rest) = rest.split_at_checked(length as usize).ok_or("it is cut off")?;
    let (kind, payload) = unpack(datagram).ok_or("an unknown or damaged datagram")?;
    let time = u64::from(seconds) * 1_000_000_000 + u64::from(rest_of_time);
    Ok((Packet { time, kind, payload: payload.to_vec() }, rest))
}

/// What an IP datagram holds. `None`: no packet of a capture, or damaged.
fn unpack(datagram: &[u8]) -> Option<(Kind, &[u8])> {
    let (ip, udp) = datagram.split_at_checked(IP_HEAD)?;
    let mut reader = Reader(&ip[12..]);
    let (from, to) = (reader.u32()?, reader.u32()?);
    let payload = udp.get(8..)?;
    let mut should = ip_head(from, to, payload.len());
    let sum = checksum([&should, &[]]);
    should[10..12].copy_from_slice(&sum.to_be_bytes());
    // Summed up with its own checksum, a datagram gives 0.
    if ip != should || udp_checksum(ip, udp) != 0 {
        return None;
    }
    let mut reader = Reader(udp);
    let (source, port, length) = (reader.u16()?, reader.u16()?, reader.u16()?);
    if source != port || usize::from(length) != udp.len() {
        return None;
    }
    match port {
        FEED..ORDERS => Some((Kind::Feed(port - FEED), payload)),
        ORDERS => Some((Kind::Order(from), payload)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell::prng::Prng;

    fn sample(name: &str) -> (Vec<Packet>, Vec<u8>) {
        let kinds = [Kind::Feed(0), Kind::Feed(1), Kind::Order(7), Kind::Order(u32::MAX)];
        let packets: Vec<Packet> = (0..40_u64)
            .map(|n| {
                let payload = vec![n as u8; n as usize * 3];
                Packet { time: n * 400_000_000, kind: kinds[n as usize % 4], payload }
            })
            .collect();
        let path = std::env::temp_dir().join(format!("doorbell-{}-{name}", std::process::id()));
        let lines = ["239.1.2.3", "239.1.2.4"].map(|line| line.parse().expect("a group"));
        let mut writer = Writer::create(&path, &lines).expect("a file");
        for Packet { time, kind, payload } in &packets {
            writer.write(*time, *kind, payload).expect("it is written");
        }
        assert_eq!(writer.finish().expect("it is written"), 40);
        assert_eq!(read_file(&path).expect("it is whole"), packets);
        let bytes = std::fs::read(&path).expect("it is there");
        std::fs::remove_file(&path).expect("it is there");
        (packets, bytes)
    }

    /// Every bit that is flipped is found, except in a time, which has no checksum.
    #[test]
    fn a_file_is_read_as_it_was_written_or_not_at_all() {
        let (packets, bytes) = sample("flips");
        let mut prng = Prng::new(4);
        for _ in 0..20_000 {
            let mut damaged = bytes.clone();
            if prng.chance(100) {
                damaged.truncate(prng.below(bytes.len() as u64) as usize);
            } else {
                let at = prng.below(bytes.len() as u64) as usize;
                damaged[at] ^= 1 << prng.below(8);
            }
            let Ok(read) = read(&damaged) else { continue };
            let same = read
                .iter()
                .zip(&packets)
                .all(|(one, other)| (one.kind, &one.payload) == (other.kind, &other.payload));
            assert!(same && (read.len() == packets.len() || damaged.len() < bytes.len()));
        }
    }

    #[test]
    fn an_error_says_what_is_wrong_and_where() {
        let (_, bytes) = sample("errors");
        let said = |bytes: &[u8]| read(bytes).expect_err("it is damaged").to_string();
        assert!(said(b"").contains("it is no capture"));
        assert_eq!(said(&bytes[..30]), "it is damaged: a head is cut off in the packet at byte 24");
        let mut damaged = bytes.clone();
        damaged[24 + RECORD_HEAD + 9] = 6;
        assert!(said(&damaged).contains("an unknown or damaged datagram in the packet at byte 24"));
    }
}
