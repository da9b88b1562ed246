//! Scatter-gather descriptors: where the data of a command is.
//!
//! The transport takes one descriptor a command (MSDBD 1): either data in the capsule, by its
//! offset, or the host's memory, by address and key.

use super::le::{put, u32_at, u64_at};
use super::status::Status;

/// Bytes of a descriptor.
pub const SGL_BYTES: usize = 16;

/// Data Block descriptor, sub type Offset.
const IN_CAPSULE: u8 = 0x01;
/// Keyed Data Block descriptor, sub type Address.
const KEYED: u8 = 0x40;
/// The same, with the wish that the response invalidates the key.
const KEYED_INVALIDATE: u8 = 0x4f;

/// Memory of the host that a key opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyed {
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes, below 2^24.
    pub len: u32,
    /// The key.
    pub key: u32,
    /// The host wants the response to invalidate the key.
    pub invalidate: bool,
}

/// The place of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Behind the command.
    InCapsule {
        /// Bytes from the start of the capsule's data.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// In the host's memory.
    Keyed(Keyed),
}

impl Data {
    /// Reads a descriptor.
    ///
    /// # Errors
    /// SGL Descriptor Type Invalid.
    pub fn read(bytes: &[u8; SGL_BYTES]) -> Result<Data, Status> {
        let addr = u64_at(bytes, 0);
        match bytes[15] {
            IN_CAPSULE => Ok(Data::InCapsule { offset: addr, len: u32_at(bytes, 8) }),
            kind @ (KEYED | KEYED_INVALIDATE) => {
                let len = u32_at(bytes, 8) & 0x00ff_ffff;
                let invalidate = kind == KEYED_INVALIDATE;
                Ok(Data::Keyed(Keyed { addr, len, key: u32_at(bytes, 11), invalidate }))
            }
            _ => Err(Status::SGL_TYPE),
        }
    }

    /// The descriptor's bytes.
    pub fn bytes(&self) -> [u8; SGL_BYTES] {
        let mut out = [0; SGL_BYTES];
        match *self {
            Data::InCapsule { offset, len } => {
                put(&mut out, 0, &offset.to_le_bytes());
                put(&mut out, 8, &len.to_le_bytes());
                out[15] = IN_CAPSULE;
            }
            Data::Keyed(keyed) => {
                put(&mut out, 0, &keyed.addr.to_le_bytes());
                put(&mut out, 8, &keyed.len.to_le_bytes()[..3]);
                put(&mut out, 11, &keyed.key.to_le_bytes());
                out[15] = if keyed.invalidate { KEYED_INVALIDATE } else { KEYED };
            }
        }
        out
    }

    /// Bytes of data.
    pub fn len(&self) -> usize {
        match self {
            Data::InCapsule { len, .. } => *len as usize,
            Data::Keyed(keyed) => keyed.len as usize,
        }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The data in a capsule that a descriptor of that kind names.
///
/// # Errors
/// SGL Offset Invalid or Data SGL Length Invalid: it is not in the capsule as it came.
pub fn in_capsule(data: &[u8], offset: u64, len: u32) -> Result<&[u8], Status> {
    let start = usize::try_from(offset).map_err(|_| Status::SGL_OFFSET)?;
    let rest = data.get(start..).ok_or(Status::SGL_OFFSET)?;
    rest.get(..len as usize).ok_or(Status::SGL_LENGTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_read_as_they_were_written() {
        let keyed =
            Keyed { addr: 0x1122_3344_5566_7788, len: 0x00ab_cdef, key: 77, invalidate: true };
        for data in [
            Data::Keyed(keyed),
            Data::Keyed(Keyed { invalidate: false, ..keyed }),
            Data::InCapsule { offset: 64, len: 512 },
        ] {
            assert_eq!(Data::read(&data.bytes()), Ok(data));
        }
        let bytes = Data::Keyed(keyed).bytes();
        assert_eq!(
            (bytes[0], bytes[8], bytes[10], bytes[11], bytes[15]),
            (0x88, 0xef, 0xab, 77, 0x4f)
        );
    }

    #[test]
    fn other_types_are_refused() {
        for kind in (0..=255).filter(|kind| ![IN_CAPSULE, KEYED, KEYED_INVALIDATE].contains(kind)) {
            let mut bytes = [0xff; SGL_BYTES];
            bytes[15] = kind;
            assert_eq!(Data::read(&bytes), Err(Status::SGL_TYPE), "{kind:#x}");
        }
    }

    #[test]
    fn data_outside_the_capsule_is_refused() {
        let data = [1, 2, 3, 4];
        assert_eq!(in_capsule(&data, 1, 3), Ok(&data[1..]));
        assert_eq!(in_capsule(&data, 1, 4), Err(Status::SGL_LENGTH));
        assert_eq!(in_capsule(&data, 5, 0), Err(Status::SGL_OFFSET));
        assert_eq!(in_capsule(&data, u64::MAX, 1), Err(Status::SGL_OFFSET));
    }
}
