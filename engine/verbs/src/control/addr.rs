//! Socket addresses as C has them, and what to say when one does not belong to the device.
#![expect(unsafe_code, reason = "socket addresses are read and written by address family")]

use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use doorbell_fabric::CmError;
use doorbell_seam::error::Code;

use crate::Verbs;

/// A socket address in C's form.
pub(super) struct Raw {
    storage: libc::sockaddr_storage,
    len: libc::socklen_t,
}

impl Raw {
    pub(super) fn new(addr: SocketAddr) -> Raw {
        // SAFETY: zero is a valid value of each field.
        let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
        let at = &raw mut storage;
        let len = match addr {
            SocketAddr::V4(v4) => {
                // SAFETY: zero is a valid value of each field.
                let mut sin: libc::sockaddr_in = unsafe { zeroed() };
                sin.sin_family = libc::AF_INET as libc::sa_family_t;
                sin.sin_port = v4.port().to_be();
                sin.sin_addr.s_addr = u32::from(*v4.ip()).to_be();
                // SAFETY: storage has room and alignment for each kind of address.
                unsafe { at.cast::<libc::sockaddr_in>().write(sin) };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(v6) => {
                // SAFETY: zero is a valid value of each field.
                let mut sin6: libc::sockaddr_in6 = unsafe { zeroed() };
                sin6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                sin6.sin6_port = v6.port().to_be();
                sin6.sin6_addr.s6_addr = v6.ip().octets();
                sin6.sin6_scope_id = v6.scope_id();
                // SAFETY: storage has room and alignment for each kind of address.
                unsafe { at.cast::<libc::sockaddr_in6>().write(sin6) };
                size_of::<libc::sockaddr_in6>()
            }
        };
        Raw { storage, len: len as libc::socklen_t }
    }

    /// For a call that reads the address.
    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    pub(super) fn len(&self) -> libc::socklen_t {
        self.len
    }

    pub(super) fn family(&self) -> libc::c_int {
        self.storage.ss_family.into()
    }
}

/// The address in C's form behind a pointer; `None` if there is none, or of another family.
///
/// # Safety
/// `from` points to room for a `sockaddr_storage`, initialised.
pub(super) unsafe fn read(from: *const libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: the caller vouches for the bytes; the family says which kind they are.
    unsafe {
        match libc::c_int::from((*from).ss_family) {
            libc::AF_INET => {
                let sin = from.cast::<libc::sockaddr_in>().read();
                let ip = Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into())
            }
            libc::AF_INET6 => {
                let sin6 = from.cast::<libc::sockaddr_in6>().read();
                let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
                let port = u16::from_be(sin6.sin6_port);
                Some(SocketAddrV6::new(ip, port, 0, sin6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// Which addresses to use instead.
pub(super) fn cure(device: &Verbs) -> String {
    let name = device.name();
    let own: Vec<String> = device.addresses().iter().map(IpAddr::to_string).collect();
    if own.is_empty() {
        return format!("give the network interface of {name} an address and use that");
    }
    format!("{name} is at {}: use that, or a peer in its network", own.join(", "))
}

/// Refuses loopback addresses: librdmacm takes them for any address of any device.
pub(super) fn check(device: &Verbs, asked: &str, addr: SocketAddr) -> Result<(), CmError> {
    if !addr.ip().is_loopback() {
        return Ok(());
    }
    let answer = format!("RDMA devices have no loopback address, {} is one", addr.ip());
    Err(CmError::new(Code::AddrNotAvailable, asked, answer).cure(cure(device)))
}

/// The error of a call about addresses, with what to do where that is known.
pub(super) fn address_error(
    device: &Verbs,
    asked: impl Into<String>,
    error: &io::Error,
) -> CmError {
    let code = error.raw_os_error().map_or(Code::Errno(libc::EIO), address_code);
    let answer = match code {
        Code::NoDevice => String::from("no RDMA device has that address, or a route to it"),
        _ => error.to_string(),
    };
    let error = CmError::new(code, asked, answer);
    match code {
        Code::NoDevice | Code::AddrNotAvailable => error.cure(cure(device)),
        Code::AddrInUse => error.cure("take another port, or 0 for a free one"),
        Code::TimedOut => error.cure("is the peer's interface up and in this network?"),
        _ => error,
    }
}

/// The code of an errno about an address. One that cannot be reached counts as one that the device
/// does not have.
pub(super) fn address_code(errno: i32) -> Code {
    match errno {
        libc::ENETUNREACH | libc::EHOSTUNREACH => Code::AddrNotAvailable,
        errno => Code::from_errno(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_went() {
        for text in ["192.168.77.1:7471", "0.0.0.0:0", "[fe80::1%7]:65535", "[2001:db8::2]:1"] {
            let addr: SocketAddr = text.parse().expect("an address");
            let raw = Raw::new(addr);
            // SAFETY: `raw` holds a whole storage.
            assert_eq!(unsafe { read(&raw const raw.storage) }, Some(addr));
        }
        // SAFETY: zero is a valid value of each field.
        let none: libc::sockaddr_storage = unsafe { zeroed() };
        // SAFETY: a whole storage.
        assert_eq!(unsafe { read(&raw const none) }, None);
    }
}
