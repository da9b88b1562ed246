//! Commands: the 64 bytes at the front of each capsule.

use super::COMMAND_BYTES;
use super::le::{array, put, u16_at, u32_at, u64_at};
use super::sgl::{Data, SGL_BYTES};
use super::status::Status;

/// Opcodes of the fabrics, the admin and the I/O command sets.
#[expect(missing_docs, reason = "each is the command of that name")]
pub mod opcode {
    pub const FABRICS: u8 = 0x7f;

    pub const GET_LOG_PAGE: u8 = 0x02;
    pub const IDENTIFY: u8 = 0x06;
    pub const ABORT: u8 = 0x08;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0a;
    pub const ASYNC_EVENT: u8 = 0x0c;
    pub const KEEP_ALIVE: u8 = 0x18;

    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const COMPARE: u8 = 0x05;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// Types of fabrics commands, in the byte behind the command's number.
#[expect(missing_docs, reason = "each is the command of that name")]
pub mod fabrics {
    pub const PROPERTY_SET: u8 = 0x00;
    pub const CONNECT: u8 = 0x01;
    pub const PROPERTY_GET: u8 = 0x04;
    pub const DISCONNECT: u8 = 0x08;
}

/// The value of byte 1 for a command with a scatter-gather list (PSDT) that is not fused.
const WITH_SGL: u8 = 0x40;

/// Force unit access, in command dword 12.
const FUA: u32 = 1 << 30;

/// A submission queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command([u8; COMMAND_BYTES]);

impl Command {
    /// The command at the front of a capsule; `None` if the capsule is too short for one.
    pub fn read(capsule: &[u8]) -> Option<Command> {
        capsule.first_chunk().copied().map(Command)
    }

    /// A command with that opcode, for that namespace, without data.
    pub fn new(opcode: u8, namespace: u32) -> Command {
        let mut bytes = [0; COMMAND_BYTES];
        (bytes[0], bytes[1]) = (opcode, WITH_SGL);
        put(&mut bytes, 4, &namespace.to_le_bytes());
        let none = super::sgl::Keyed { addr: 0, len: 0, key: 0, invalidate: false };
        Command(bytes).data(Data::Keyed(none))
    }

    /// A fabrics command of that type, without data.
    pub fn fabrics(kind: u8) -> Command {
        Command::new(opcode::FABRICS, u32::from(kind))
    }

    /// The same command with that number.
    #[must_use]
    pub fn numbered(mut self, id: u16) -> Command {
        put(&mut self.0, 2, &id.to_le_bytes());
        self
    }

    /// The same command with that data.
    #[must_use]
    pub fn data(mut self, data: Data) -> Command {
        put(&mut self.0, 24, &data.bytes());
        self
    }

    /// The same command with a value in dword `index`.
    #[must_use]
    pub fn with(mut self, index: usize, value: u32) -> Command {
        put(&mut self.0, index * 4, &value.to_le_bytes());
        self
    }

    /// The same command with a value of eight bytes from dword `index` on.
    #[must_use]
    pub fn with_long(mut self, index: usize, value: u64) -> Command {
        put(&mut self.0, index * 4, &value.to_le_bytes());
        self
    }

    /// A command of the I/O set for `blocks` blocks, 1 to 65536, from `start` on.
    pub fn blocks(opcode: u8, namespace: u32, start: u64, blocks: u32) -> Command {
        Command::new(opcode, namespace)
            .with_long(10, start)
            .with(12, blocks.wrapping_sub(1) & 0xffff)
    }

    /// The same command, forced through to the medium (FUA).
    #[must_use]
    pub fn forced(self) -> Command {
        let word = self.dword(12) | FUA;
        self.with(12, word)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; COMMAND_BYTES] {
        &self.0
    }

    /// The opcode.
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Its number, by which the response names it.
    pub fn id(&self) -> u16 {
        u16_at(&self.0, 2)
    }

    /// The namespace.
    pub fn namespace(&self) -> u32 {
        self.dword(1)
    }

    /// The type of a fabrics command.
    pub fn fabrics_type(&self) -> u8 {
        self.0[4]
    }

    /// Dword `index`, 0 to 15.
    pub fn dword(&self, index: usize) -> u32 {
        u32_at(&self.0, index * 4)
    }

    /// Eight bytes from dword `index` on.
    pub fn long(&self, index: usize) -> u64 {
        u64_at(&self.0, index * 4)
    }

    /// Two bytes at a byte offset.
    pub fn word(&self, at: usize) -> u16 {
        u16_at(&self.0, at)
    }

    /// The first block and the number of blocks of an I/O command.
    pub fn range(&self) -> (u64, u64) {
        (self.long(10), u64::from(self.dword(12) & 0xffff) + 1)
    }

    /// True if the data must be on the medium before the response.
    pub fn is_forced(&self) -> bool {
        self.dword(12) & FUA != 0
    }

    /// Where its data is.
    ///
    /// # Errors
    /// Invalid Field: a fused command, or one without a scatter-gather list. SGL Descriptor Type
    /// Invalid.
    pub fn place(&self) -> Result<Data, Status> {
        if self.0[1] & 0xc3 != WITH_SGL {
            return Err(Status::INVALID_FIELD);
        }
        Data::read(&array::<SGL_BYTES>(&self.0, 24))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let command = Command::blocks(opcode::READ, 7, 0x1_0000_0002, 8).numbered(0x1234).forced();
        let bytes = command.bytes();
        assert_eq!((bytes[0], bytes[1], bytes[2], bytes[4]), (2, 0x40, 0x34, 7));
        assert_eq!((bytes[40], bytes[44], bytes[48]), (2, 1, 7), "blocks count from zero");
        assert_eq!(bytes[51], 0x40);
        let back = Command::read(bytes).expect("64 bytes");
        assert_eq!((back.range(), back.id(), back.namespace()), ((0x1_0000_0002, 8), 0x1234, 7));
        assert!(back.is_forced());
    }

    #[test]
    fn a_short_capsule_holds_no_command() {
        assert!(Command::read(&[0; 63]).is_none());
    }

    #[test]
    fn fused_commands_and_physical_pages_are_refused() {
        for flags in [0x00, 0x41, 0x42, 0x80, 0xc0] {
            let mut command = Command::new(opcode::READ, 1);
            command.0[1] = flags;
            assert_eq!(command.place(), Err(Status::INVALID_FIELD), "{flags:#x}");
        }
    }
}
