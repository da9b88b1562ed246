//! Status codes of completions.

use std::fmt;

/// How a command ended: status code type and status code, with the bit that says not to retry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

/// Set in a status that the host must not retry (DNR).
const NO_RETRY: u16 = 1 << 14;

const fn generic(code: u8) -> Status {
    Status(code as u16)
}

const fn specific(code: u8) -> Status {
    Status(1 << 8 | code as u16)
}

const fn media(code: u8) -> Status {
    Status(2 << 8 | code as u16)
}

impl Status {
    /// The command succeeded.
    pub const SUCCESS: Status = generic(0x00);
    /// Invalid Command Opcode.
    pub const INVALID_OPCODE: Status = generic(0x01).final_one();
    /// Invalid Field in Command.
    pub const INVALID_FIELD: Status = generic(0x02).final_one();
    /// Data Transfer Error.
    pub const TRANSFER: Status = generic(0x04);
    /// Internal Error.
    pub const INTERNAL: Status = generic(0x06);
    /// Command Abort Requested.
    pub const ABORT_REQUESTED: Status = generic(0x07).final_one();
    /// Invalid Namespace or Format.
    pub const INVALID_NAMESPACE: Status = generic(0x0b).final_one();
    /// Command Sequence Error.
    pub const SEQUENCE: Status = generic(0x0c).final_one();
    /// Data SGL Length Invalid.
    pub const SGL_LENGTH: Status = generic(0x0f).final_one();
    /// SGL Descriptor Type Invalid.
    pub const SGL_TYPE: Status = generic(0x11).final_one();
    /// SGL Offset Invalid.
    pub const SGL_OFFSET: Status = generic(0x16).final_one();
    /// LBA Out of Range.
    pub const OUT_OF_RANGE: Status = generic(0x80).final_one();
    /// Capacity Exceeded.
    pub const CAPACITY: Status = generic(0x81).final_one();
    /// Asynchronous Event Request Limit Exceeded.
    pub const EVENT_LIMIT: Status = specific(0x05).final_one();
    /// Invalid Log Page.
    pub const INVALID_LOG: Status = specific(0x09).final_one();
    /// Feature Not Changeable.
    pub const NOT_CHANGEABLE: Status = specific(0x0e).final_one();
    /// Connect Incompatible Format.
    pub const CONNECT_FORMAT: Status = specific(0x80).final_one();
    /// Connect Controller Busy.
    pub const CONNECT_BUSY: Status = specific(0x81);
    /// Connect Invalid Parameters.
    pub const CONNECT_INVALID: Status = specific(0x82).final_one();
    /// Connect Invalid Host.
    pub const CONNECT_HOST: Status = specific(0x84).final_one();
    /// Write Fault.
    pub const WRITE_FAULT: Status = media(0x80);
    /// Unrecovered Read Error.
    pub const READ_ERROR: Status = media(0x81);
    /// Compare Failure.
    pub const COMPARE: Status = media(0x85).final_one();

    const fn final_one(self) -> Status {
        Status(self.0 | NO_RETRY)
    }

    /// The status field of a completion, with its phase bit clear.
    pub fn field(self) -> u16 {
        self.0 << 1
    }

    /// The status in the status field of a completion.
    pub fn from_field(field: u16) -> Status {
        Status(field >> 1)
    }

    /// True for success.
    pub fn is_ok(self) -> bool {
        self.code() == 0
    }

    /// True if trying again cannot help.
    pub fn is_final(self) -> bool {
        self.0 & NO_RETRY != 0
    }

    /// Status code type and status code: type times 256 plus code.
    pub fn code(self) -> u16 {
        self.0 & 0x07ff
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#05x}{})", self.code(), if self.is_final() { ", final" } else { "" })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVMe status type {} code {:#04x}", self.code() >> 8, self.code() & 0xff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_has_code_type_and_retry_bit_in_their_places() {
        assert_eq!(Status::SUCCESS.field(), 0);
        assert_eq!(Status::INVALID_FIELD.field(), 0x8004);
        assert_eq!(Status::CONNECT_INVALID.field(), 0x8000 | 1 << 9 | 0x82 << 1);
        assert_eq!(Status::COMPARE.field(), 0x8000 | 2 << 9 | 0x85 << 1);
        assert_eq!(Status::from_field(0x8004 | 1), Status::INVALID_FIELD, "the phase is no part");
        assert!(Status::OUT_OF_RANGE.is_final() && !Status::WRITE_FAULT.is_final());
    }
}
