//! Socket addresses as C has them, and what to say when one does not belong to the device.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use doorbell_fabric::CmError;
use doorbell_seam::error::Code;

use crate::Verbs;

/// A socket address in C's form.
pub(super) enum Raw {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl Raw {
    pub(super) fn new(addr: SocketAddr) -> Raw {
        match addr {
            SocketAddr::V4(v4) => Raw::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(v6) => Raw::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            }),
        }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        match self {
            Raw::V4(sin) => {
                let ip = Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr));
                SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into()
            }
            Raw::V6(sin6) => {
                let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
                let port = u16::from_be(sin6.sin6_port);
                SocketAddrV6::new(ip, port, 0, sin6.sin6_scope_id).into()
            }
        }
    }

    /// For a call that reads the address, as much of it as its family has.
    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        match self {
            Raw::V4(sin) => (&raw mut *sin).cast(),
            Raw::V6(sin6) => (&raw mut *sin6).cast(),
        }
    }

    pub(super) fn len(&self) -> libc::socklen_t {
        match self {
            Raw::V4(sin) => size_of_val(sin) as libc::socklen_t,
            Raw::V6(sin6) => size_of_val(sin6) as libc::socklen_t,
        }
    }

    pub(super) fn family(&self) -> libc::c_int {
        match self {
            Raw::V4(_) => libc::AF_INET,
            Raw::V6(_) => libc::AF_INET6,
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
            assert_eq!(Raw::new(addr).addr(), addr);
        }
    }
}
