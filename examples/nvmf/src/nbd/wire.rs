//! The NBD protocol as plain values: the fixed newstyle handshake, requests and simple replies.
//!
//! Source: the protocol description of the Network Block Device project.

/// What a server says first: magic, the word for options, and its flags.
pub const GREETING: [u8; 18] = *b"NBDMAGICIHAVEOPT\x00\x03";
/// The client's flags: fixed newstyle, and no zeros behind an export's size.
pub const CLIENT_FIXED: u32 = 1;
/// See [`CLIENT_FIXED`].
pub const CLIENT_NO_ZEROES: u32 = 2;
/// The word in front of each option.
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The word in front of each reply to an option.
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The word in front of each request, and of each reply to one.
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;

/// Bytes of an option's header, and of a request's.
pub const OPTION_BYTES: usize = 16;
/// See [`OPTION_BYTES`].
pub const REQUEST_BYTES: usize = 28;
/// Bytes of an option's data at most.
pub const OPTION_MAX: usize = 4096 + 64;
/// Bytes of a request at most.
pub const REQUEST_MAX: u32 = 32 << 20;

/// Options.
#[expect(missing_docs, reason = "each is the option of that name")]
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
}

/// Types of replies to options.
#[expect(missing_docs, reason = "each is the reply of that name")]
pub mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const UNSUPPORTED: u32 = 1 << 31 | 1;
    pub const INVALID: u32 = 1 << 31 | 3;
    pub const TOO_BIG: u32 = 1 << 31 | 9;
}

/// Error numbers of replies to requests.
#[expect(missing_docs, reason = "each is the error of that name")]
pub mod errno {
    pub const EIO: u32 = 5;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
}

/// What an export can do: flush, FUA, trim, zeros, and several connections.
pub const EXPORT_FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8;
/// Flags of a request.
pub const FLAG_FUA: u16 = 1;
/// See [`FLAG_FUA`]: zeros must keep their room.
pub const FLAG_NO_HOLE: u16 = 1 << 1;

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    field(bytes, at).map(u32::from_be_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    field(bytes, at).map(u64::from_be_bytes)
}

/// The header of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// Which.
    pub option: u32,
    /// Bytes of its data.
    pub len: usize,
}

impl OptionHeader {
    /// Reads a header; `None` if it is none.
    pub fn read(bytes: &[u8; OPTION_BYTES]) -> Option<OptionHeader> {
        let magic = u64_at(bytes, 0)? == OPTION_MAGIC;
        let (option, len) = (u32_at(bytes, 8)?, u32_at(bytes, 12)? as usize);
        magic.then_some(OptionHeader { option, len })
    }
}

/// True if the data of INFO or GO is whole: a name, and a list of the wanted kinds.
pub fn is_info(data: &[u8]) -> bool {
    let count = |name: u32| {
        let at = (name as usize).checked_add(4)?;
        let count = field(data, at).map(u16::from_be_bytes)?;
        Some(at + 2 + usize::from(count) * 2)
    };
    u32_at(data, 0).and_then(count) == Some(data.len())
}

/// A reply to an option.
pub fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut out = REPLY_MAGIC.to_be_bytes().to_vec();
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

/// The data of the reply about an export: its size and what it can do.
pub fn export_info(bytes: u64) -> Vec<u8> {
    let mut out = 0_u16.to_be_bytes().to_vec();
    out.extend(bytes.to_be_bytes());
    out.extend(EXPORT_FLAGS.to_be_bytes());
    out
}

/// The data of the reply about sizes of requests: the smallest, the best and the longest.
pub fn block_info(block: u32) -> Vec<u8> {
    let mut out = 3_u16.to_be_bytes().to_vec();
    for value in [block, 4096, REQUEST_MAX] {
        out.extend(value.to_be_bytes());
    }
    out
}

/// The answer to EXPORT_NAME.
pub fn old_export(bytes: u64, zeroes: bool) -> Vec<u8> {
    let mut out = bytes.to_be_bytes().to_vec();
    out.extend(EXPORT_FLAGS.to_be_bytes());
    out.resize(if zeroes { 10 + 124 } else { 10 }, 0);
    out
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the command of that name")]
pub enum Kind {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
    /// A command that the export did not offer.
    Other,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it asks for.
    pub kind: Kind,
    /// Its flags.
    pub flags: u16,
    /// The client's number, which the reply returns.
    pub cookie: u64,
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u32,
}

impl Request {
    /// Reads a request; `None` if it is none.
    pub fn read(bytes: &[u8; REQUEST_BYTES]) -> Option<Request> {
        let kind = match field(bytes, 6).map(u16::from_be_bytes)? {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::Disconnect,
            3 => Kind::Flush,
            4 => Kind::Trim,
            6 => Kind::WriteZeroes,
            _ => Kind::Other,
        };
        let flags = field(bytes, 4).map(u16::from_be_bytes)?;
        let (cookie, at, len) = (u64_at(bytes, 8)?, u64_at(bytes, 16)?, u32_at(bytes, 24)?);
        let magic = u32_at(bytes, 0)? == REQUEST_MAGIC;
        magic.then_some(Request { kind, flags, cookie, at, len })
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; REQUEST_BYTES] {
        let kind: u16 = match self.kind {
            Kind::Read => 0,
            Kind::Write => 1,
            Kind::Disconnect => 2,
            Kind::Flush => 3,
            Kind::Trim => 4,
            Kind::WriteZeroes => 6,
            Kind::Other => 99,
        };
        let mut out = [0; REQUEST_BYTES];
        out[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&kind.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.at.to_be_bytes());
        out[24..].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    /// The error of a request that an export of that size and block cannot carry out; 0 for none.
    pub fn check(&self, size: u64, block: u64) -> u32 {
        let moves = matches!(self.kind, Kind::Read | Kind::Write);
        let (at, len) = (self.at, u64::from(self.len));
        match self.kind {
            Kind::Flush | Kind::Disconnect => 0,
            Kind::Other => errno::EINVAL,
            _ if at.checked_add(len).is_none_or(|end| end > size) => match self.kind {
                Kind::Read => errno::EINVAL,
                _ => errno::ENOSPC,
            },
            _ if at % block != 0 || len % block != 0 || len == 0 => errno::EINVAL,
            _ if moves && self.len > REQUEST_MAX => errno::EINVAL,
            _ => 0,
        }
    }
}

/// The header of a reply to a request.
pub fn simple_reply(error: u32, cookie: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..4].copy_from_slice(&SIMPLE_MAGIC.to_be_bytes());
    out[4..8].copy_from_slice(&error.to_be_bytes());
    out[8..].copy_from_slice(&cookie.to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: Kind, at: u64, len: u32) -> Request {
        Request { kind, flags: FLAG_FUA, cookie: 0x1122_3344_5566_7788, at, len }
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        let kinds = [Kind::Read, Kind::Write, Kind::Disconnect, Kind::Flush, Kind::Trim];
        for kind in kinds.into_iter().chain([Kind::WriteZeroes, Kind::Other]) {
            let request = request(kind, 1 << 40, 4096);
            assert_eq!(Request::read(&request.bytes()), Some(request));
        }
        let mut bytes = request(Kind::Read, 0, 512).bytes();
        bytes[0] ^= 1;
        assert_eq!(Request::read(&bytes), None);
    }

    #[test]
    fn requests_that_do_not_fit_are_errors() {
        let check = |kind, at, len| request(kind, at, len).check(1 << 20, 512);
        assert_eq!(check(Kind::Read, (1 << 20) - 512, 512), 0);
        assert_eq!(check(Kind::Read, 1 << 20, 512), errno::EINVAL);
        assert_eq!(check(Kind::Write, u64::MAX, 512), errno::ENOSPC);
        assert_eq!(check(Kind::Write, 1, 512), errno::EINVAL);
        assert_eq!(check(Kind::Trim, 0, 100), errno::EINVAL);
        assert_eq!(check(Kind::Other, 0, 512), errno::EINVAL);
        let long = request(Kind::Write, 0, REQUEST_MAX + 512).check(1 << 40, 512);
        assert_eq!(long, errno::EINVAL);
    }

    #[test]
    fn options_are_checked() {
        assert_eq!(
            OptionHeader::read(b"IHAVEOPT\0\0\0\x07\0\0\0\x06"),
            Some(OptionHeader { option: 7, len: 6 })
        );
        assert_eq!(OptionHeader::read(b"IHAVEOPX\0\0\0\x07\0\0\0\x06"), None);
        assert!(is_info(b"\0\0\0\x01x\0\x01\0\x03") && is_info(b"\0\0\0\0\0\0"));
        assert!(!is_info(b"\0\0\0\x01x\0\x02\0\x03") && !is_info(b"\xff\xff\xff\xff\0\0"));
        assert!(!is_info(b"") && !is_info(b"\0\0\0\0\0\0\0"));
    }
}
