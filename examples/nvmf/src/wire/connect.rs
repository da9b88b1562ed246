//! The Connect command and its data, and the property commands.

use super::command::{Command, fabrics};
use super::le::{array, put, text, u16_at};
use super::status::Status;

/// Bytes of the data of Connect.
pub const CONNECT_BYTES: usize = 1024;
/// Bytes of the field for a name.
const NQN_BYTES: usize = 256;
/// Bytes of the longest name, without the zero at its end.
const NQN_MAX: usize = 223;
/// The controller number that asks for any new controller.
pub const ANY_CONTROLLER: u16 = 0xffff;

/// The fields of the Connect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The queue: 0 is the admin queue.
    pub queue: u16,
    /// Entries of the submission queue.
    pub depth: u16,
    /// Milliseconds of silence after which the target ends the controller; 0 for never.
    pub keep_alive_ms: u32,
}

impl Connect {
    /// The command.
    pub fn command(&self) -> Command {
        let last = u32::from(self.depth.wrapping_sub(1));
        Command::fabrics(fabrics::CONNECT)
            .with(10, u32::from(self.queue) << 16)
            .with(11, last)
            .with(12, self.keep_alive_ms)
    }

    /// Reads the command.
    ///
    /// # Errors
    /// Connect Incompatible Format; Connect Invalid Parameters with the byte that is wrong.
    pub fn read(command: &Command) -> Result<Connect, Refusal> {
        if command.word(40) != 0 {
            return Err(Refusal { status: Status::CONNECT_FORMAT, result: 0 });
        }
        let last = command.word(44);
        if last == 0 || last == u16::MAX {
            return Err(Refusal::field(44));
        }
        Ok(Connect { queue: command.word(42), depth: last + 1, keep_alive_ms: command.dword(12) })
    }
}

/// A refused Connect: its status, and the result that says which field is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: Status,
    /// The offset of the wrong byte, with a bit that says whether it is in the data.
    pub result: u64,
}

impl Refusal {
    /// Connect Invalid Parameters, for a byte of the command.
    pub fn field(offset: u16) -> Refusal {
        Refusal { status: Status::CONNECT_INVALID, result: u64::from(offset) }
    }

    /// Connect Invalid Parameters, for a byte of the data.
    pub fn data(offset: u16) -> Refusal {
        Refusal { status: Status::CONNECT_INVALID, result: u64::from(offset) | 1 << 16 }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        Refusal { status, result: 0 }
    }
}

/// The data of Connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// The host's identifier.
    pub host_id: [u8; 16],
    /// The controller of an I/O queue; [`ANY_CONTROLLER`] for an admin queue.
    pub controller: u16,
    /// The subsystem's name.
    pub subsystem: String,
    /// The host's name.
    pub host: String,
}

impl ConnectData {
    /// The data's bytes.
    pub fn bytes(&self) -> [u8; CONNECT_BYTES] {
        let mut out = [0; CONNECT_BYTES];
        put(&mut out, 0, &self.host_id);
        put(&mut out, 16, &self.controller.to_le_bytes());
        put(
            &mut out,
            256,
            self.subsystem.as_bytes().get(..NQN_MAX).unwrap_or(self.subsystem.as_bytes()),
        );
        put(&mut out, 512, self.host.as_bytes().get(..NQN_MAX).unwrap_or(self.host.as_bytes()));
        out
    }

    /// Reads the data.
    ///
    /// # Errors
    /// Data SGL Length Invalid: it is too short. Connect Invalid Parameters: a name has no end, or
    /// is no text.
    pub fn read(bytes: &[u8]) -> Result<ConnectData, Refusal> {
        if bytes.len() < CONNECT_BYTES {
            return Err(Status::SGL_LENGTH.into());
        }
        let name = |at: u16| match text(bytes, usize::from(at), NQN_BYTES) {
            Some(name) if name.len() <= NQN_MAX => Ok(name.to_owned()),
            _ => Err(Refusal::data(at)),
        };
        Ok(ConnectData {
            host_id: array(bytes, 0),
            controller: u16_at(bytes, 16),
            subsystem: name(256)?,
            host: name(512)?,
        })
    }
}

/// The properties of a controller: offset, and whether it has eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Property {
    /// Controller Capabilities.
    Cap = 0x00,
    /// Version.
    Vs = 0x08,
    /// Controller Configuration.
    Cc = 0x14,
    /// Controller Status.
    Csts = 0x1c,
}

impl Property {
    /// The property that a Property Get or Set names.
    ///
    /// # Errors
    /// Invalid Field: there is no such property, or it has another size.
    pub fn read(command: &Command) -> Result<Property, Status> {
        let long = command.dword(10) & 0x07;
        match (command.dword(11), long) {
            (0x00, 1) => Ok(Property::Cap),
            (0x08, 0) => Ok(Property::Vs),
            (0x14, 0) => Ok(Property::Cc),
            (0x1c, 0) => Ok(Property::Csts),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// The command that reads it.
    pub fn get(self) -> Command {
        self.name(fabrics::PROPERTY_GET)
    }

    /// The command that sets it.
    pub fn set(self, value: u64) -> Command {
        self.name(fabrics::PROPERTY_SET).with_long(12, value)
    }

    fn name(self, kind: u8) -> Command {
        Command::fabrics(kind).with(10, u32::from(self == Property::Cap)).with(11, self as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> ConnectData {
        ConnectData {
            host_id: [9; 16],
            controller: ANY_CONTROLLER,
            subsystem: "nqn.2026-11.org.example:disk".to_owned(),
            host: "nqn.2026-11.org.example:host".to_owned(),
        }
    }

    #[test]
    fn connect_is_read_as_it_was_written() {
        let connect = Connect { queue: 3, depth: 128, keep_alive_ms: 15_000 };
        let command = connect.command();
        let bytes = command.bytes();
        assert_eq!((bytes[0], bytes[4], bytes[42], bytes[44]), (0x7f, 1, 3, 127));
        assert_eq!(Connect::read(&command), Ok(connect));
        assert_eq!(ConnectData::read(&data().bytes()), Ok(data()));
    }

    #[test]
    fn each_mistake_names_its_field() {
        let good = Connect { queue: 0, depth: 32, keep_alive_ms: 0 }.command();
        let format = Connect::read(&good.with(10, 1)).map_err(|refusal| refusal.status);
        assert_eq!(format, Err(Status::CONNECT_FORMAT));
        assert_eq!(Connect::read(&good.with(11, 0)), Err(Refusal::field(44)));
        let mut bytes = data().bytes();
        assert!(ConnectData::read(&bytes[..1023]).is_err());
        bytes[256..512].fill(b'a');
        assert_eq!(
            ConnectData::read(&bytes),
            Err(Refusal { status: Status::CONNECT_INVALID, result: 1 << 16 | 256 })
        );
        bytes[256] = 0xff;
        assert!(ConnectData::read(&bytes).is_err());
    }

    #[test]
    fn properties_have_their_size() {
        for property in [Property::Cap, Property::Vs, Property::Cc, Property::Csts] {
            assert_eq!(Property::read(&property.get()), Ok(property));
            assert_eq!(Property::read(&property.set(1)), Ok(property));
            let other = property.get().dword(10) ^ 1;
            assert_eq!(Property::read(&property.get().with(10, other)), Err(Status::INVALID_FIELD));
        }
    }
}
