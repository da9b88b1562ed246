//! Socket addresses, and `rdma_getaddrinfo`.
#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::{c_char, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr;

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::border::{Errno, INVALID, number, put, zeroed};

use super::abi::rdma_addrinfo;

pub(crate) const PASSIVE: c_int = 1;
const NUMERIC: c_int = 2;
const FAMILY: c_int = 8;
/// Port spaces of TCP and UDP, and the types of their queue pairs.
const TCP: c_int = 0x106;
const UDP: c_int = 0x111;
const RC: c_int = 2;
const UD: c_int = 4;

/// An address of the program.
///
/// # Safety
/// It is NULL, or an address of its family.
pub(crate) unsafe fn read(at: *const sockaddr) -> Result<SocketAddr, Errno> {
    if at.is_null() {
        return Err(INVALID);
    }
    // SAFETY: as the caller says; a program may keep it unaligned.
    unsafe {
        match c_int::from((*at).sa_family) {
            libc::AF_INET => {
                let sin = at.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(sin.sin_addr.s_addr));
                Ok(SocketAddr::new(ip.into(), u16::from_be(sin.sin_port)))
            }
            libc::AF_INET6 => {
                let sin = at.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(sin.sin6_addr.s6_addr);
                let port = u16::from_be(sin.sin6_port);
                Ok(SocketAddrV6::new(ip, port, 0, sin.sin6_scope_id).into())
            }
            _ => Err(INVALID),
        }
    }
}

/// An address for the program, and its length.
pub(crate) fn storage(addr: SocketAddr) -> (sockaddr_storage, socklen_t) {
    let mut storage: sockaddr_storage = zeroed();
    let at = &raw mut storage;
    let length = match addr {
        SocketAddr::V4(addr) => {
            let mut sin: sockaddr_in = zeroed();
            sin.sin_family = libc::AF_INET as libc::sa_family_t;
            sin.sin_port = addr.port().to_be();
            sin.sin_addr.s_addr = u32::from(*addr.ip()).to_be();
            // SAFETY: the storage has room for every address.
            unsafe { at.cast::<sockaddr_in>().write(sin) };
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(addr) => {
            let mut sin: sockaddr_in6 = zeroed();
            sin.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            sin.sin6_port = addr.port().to_be();
            sin.sin6_addr.s6_addr = addr.ip().octets();
            sin.sin6_scope_id = addr.scope_id();
            // SAFETY: as above.
            unsafe { at.cast::<sockaddr_in6>().write(sin) };
            size_of::<sockaddr_in6>()
        }
    };
    (storage, length as socklen_t)
}

/// What one answer of `rdma_getaddrinfo` points to.
#[repr(C)]
struct Answer {
    /// First: the program has its address.
    info: rdma_addrinfo,
    src: sockaddr_storage,
    dst: sockaddr_storage,
}

/// Asks the C library for an address.
///
/// # Safety
/// Both are NULL or C strings.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
) -> Result<SocketAddr, c_int> {
    let mut asked: libc::addrinfo = zeroed();
    if hints.ai_flags & PASSIVE != 0 {
        asked.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & NUMERIC != 0 {
        asked.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_flags & FAMILY != 0 {
        asked.ai_family = hints.ai_family;
    }
    asked.ai_socktype = libc::SOCK_STREAM;
    let mut found = ptr::null_mut();
    // SAFETY: as the caller says; the answer is freed below.
    unsafe {
        let code = libc::getaddrinfo(node, service, &raw const asked, &raw mut found);
        if code != 0 {
            return Err(code);
        }
        let addr = read((*found).ai_addr);
        libc::freeaddrinfo(found);
        addr.map_err(|_| libc::EAI_FAMILY)
    }
}

unsafe fn answer(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
) -> Result<*mut rdma_addrinfo, c_int> {
    let passive = hints.ai_flags & PASSIVE != 0;
    let (mut src, mut dst) = (None, None);
    if !node.is_null() || !service.is_null() {
        // SAFETY: as the caller says.
        let found = unsafe { look_up(node, service, hints) }?;
        if passive { src = Some(found) } else { dst = Some(found) }
    }
    // SAFETY: the program's addresses.
    unsafe {
        src = src.or(read(hints.ai_src_addr).ok());
        dst = dst.or(read(hints.ai_dst_addr).ok());
    }
    let datagrams = hints.ai_port_space == UDP || hints.ai_qp_type == UD;
    let set = |value, usual| if value != 0 { value } else { usual };
    let mut made = Box::new(Answer { info: zeroed(), src: zeroed(), dst: zeroed() });
    let info = &mut made.info;
    info.ai_flags = hints.ai_flags;
    info.ai_port_space = set(hints.ai_port_space, if datagrams { UDP } else { TCP });
    info.ai_qp_type = set(hints.ai_qp_type, if datagrams { UD } else { RC });
    let one = src.or(dst).ok_or(libc::EAI_NONAME)?;
    info.ai_family = if one.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    if let Some(addr) = src {
        (made.src, made.info.ai_src_len) = storage(addr);
        made.info.ai_src_addr = (&raw mut made.src).cast();
    }
    if let Some(addr) = dst {
        (made.dst, made.info.ai_dst_len) = storage(addr);
        made.info.ai_dst_addr = (&raw mut made.dst).cast();
    }
    Ok(Box::into_raw(made).cast())
}

/// Answers an error of `getaddrinfo`, as librdmacm does.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    let mut failed = 0;
    let done = number(|| {
        if node.is_null() && service.is_null() && hints.is_null() {
            return Err(INVALID);
        }
        let none: rdma_addrinfo = zeroed();
        // SAFETY: the program's hints and names.
        let made = unsafe { answer(node, service, hints.as_ref().unwrap_or(&none)) };
        let made = made.map_err(|code| {
            failed = code;
            INVALID
        })?;
        // SAFETY: room for the answer.
        unsafe { put(res, made) }?;
        Ok(0)
    });
    if failed != 0 { failed } else { done }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    if !res.is_null() {
        // SAFETY: `rdma_getaddrinfo` made it as the first field of an `Answer`.
        drop(unsafe { Box::from_raw(res.cast::<Answer>()) });
    }
}

/// The bytes of private data that the program gives.
///
/// # Safety
/// There are as many.
pub(crate) unsafe fn bytes<'a>(at: *const c_void, length: u8) -> &'a [u8] {
    if at.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(at.cast(), length.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_whole() {
        for addr in ["127.0.0.1:7", "[::1]:8", "[fe80::1%3]:9"] {
            let addr: SocketAddr = addr.parse().unwrap();
            let (mut storage, _) = storage(addr);
            // SAFETY: an address.
            assert_eq!(unsafe { read((&raw mut storage).cast()) }, Ok(addr));
        }
    }
}
