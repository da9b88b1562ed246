//! The error of set-up calls. The data plane has small errors of its own.

use core::fmt;
use std_alloc::string::String;

/// A resource could not be made. The error says what was asked, what the answer was, and what to
/// do.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub struct SetupError {
    code: Code,
    asked: String,
    answer: String,
    cure: Option<String>,
}

impl fmt::Debug for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The kind of a set-up failure, with the errno a C program would see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Code {
    /// EINVAL: the arguments contradict each other or are out of range.
    Invalid,
    /// ENOMEM: no memory, or a limit on it.
    NoMemory,
    /// EBUSY: something still uses it.
    Busy,
    /// ENODEV: no such device, or no device has that address.
    NoDevice,
    /// EOPNOTSUPP: the device cannot do this.
    NotSupported,
    /// EADDRINUSE: the port is taken.
    AddrInUse,
    /// EADDRNOTAVAIL: the address does not belong to this device.
    AddrNotAvailable,
    /// ECONNREFUSED: nobody listens there, or the peer rejected the request.
    Refused,
    /// ETIMEDOUT: no reply in time.
    TimedOut,
    /// EACCES or EPERM: permission is missing.
    Denied,
    /// ECONNRESET: the connection ended while it was in use.
    Reset,
    /// EAGAIN: nothing is available yet.
    Again,
    /// Any other errno.
    Errno(i32),
}

impl Code {
    const TABLE: [(Code, i32); 12] = [
        (Code::Invalid, 22),
        (Code::NoMemory, 12),
        (Code::Busy, 16),
        (Code::NoDevice, 19),
        (Code::NotSupported, 95),
        (Code::AddrInUse, 98),
        (Code::AddrNotAvailable, 99),
        (Code::Refused, 111),
        (Code::TimedOut, 110),
        (Code::Denied, 13),
        (Code::Reset, 104),
        (Code::Again, 11),
    ];

    /// The code of an errno value (Linux numbers); its sign does not matter (G-2).
    pub fn from_errno(errno: i32) -> Code {
        let errno = errno.saturating_abs();
        if errno == 1 {
            return Code::Denied;
        }
        Code::TABLE.iter().find(|(_, n)| *n == errno).map_or(Code::Errno(errno), |(code, _)| *code)
    }

    /// The errno value (Linux numbers).
    pub fn errno(self) -> i32 {
        match self {
            Code::Errno(errno) => errno,
            code => Code::TABLE.iter().find(|(c, _)| *c == code).map_or(22, |(_, n)| *n),
        }
    }
}

impl SetupError {
    /// Makes an error, printed as `asked: answer`. `asked` names the request with its figures,
    /// `answer` gives the system's reason.
    pub fn new(code: Code, asked: impl Into<String>, answer: impl Into<String>) -> SetupError {
        SetupError { code, asked: asked.into(), answer: answer.into(), cure: None }
    }

    /// Adds the action that removes the cause; it is printed last.
    #[must_use]
    pub fn cure(mut self, cure: impl Into<String>) -> SetupError {
        self.cure = Some(cure.into());
        self
    }

    /// The kind of failure.
    pub fn code(&self) -> Code {
        self.code
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.asked, self.answer)?;
        match &self.cure {
            Some(cure) => write!(f, "; {cure}"),
            None => Ok(()),
        }
    }
}
