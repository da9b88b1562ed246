//! Addresses of the soft device. It owns every address of this host, and names its sockets after
//! them.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use doorbell_fabric::CmError;
use doorbell_seam::error::Code;

use super::sys::{self, Socket};

/// Ports for requests with port 0, as Linux hands them out by default.
const FREE_PORTS: std::ops::Range<u16> = 32768..61000;

/// The abstract name of a port: one name space per user and device.
pub(super) fn name(device: &str, addr: SocketAddr) -> String {
    format!("doorbell/{}/{device}/{addr}", sys::user())
}

/// The name of a listener on all IPv6 addresses and no others (`AFONLY`, CM-16).
fn name_only(device: &str, port: u16) -> String {
    name(device, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)) + "/only"
}

/// The names of sockets that may answer a connection to `to`, best first: the address itself, then
/// the wildcards that include it.
pub(super) fn names_for(device: &str, to: SocketAddr) -> Vec<String> {
    let mut ips = vec![to.ip()];
    if to.is_ipv4() {
        ips.push(Ipv4Addr::UNSPECIFIED.into());
    }
    ips.push(Ipv6Addr::UNSPECIFIED.into());
    ips.dedup();
    let at = |ip| name(device, SocketAddr::new(ip, to.port()));
    let mut names: Vec<String> = ips.into_iter().map(at).collect();
    if to.is_ipv6() {
        names.push(name_only(device, to.port()));
    }
    names
}

/// True if `ip` belongs to this host: loopback, the wildcard, or an address of one of its
/// interfaces.
pub(super) fn is_local(ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified() || UdpSocket::bind((ip, 0)).is_ok()
}

/// The local address of an active side that gives none: the one it connects to, or loopback if that
/// is a group.
pub(super) fn source_for(to: SocketAddr) -> SocketAddr {
    let ip = match to.ip() {
        IpAddr::V4(ip) if ip.is_multicast() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_multicast() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, 0)
}

/// Fails unless `ip` belongs to this host.
pub(super) fn check_local(asked: &str, device: &str, ip: IpAddr) -> Result<(), CmError> {
    if is_local(ip) {
        return Ok(());
    }
    let answer = format!("{ip} is not an address of this host, and {device} has no others");
    Err(CmError::new(Code::AddrNotAvailable, asked, answer).cure(
        "use 127.0.0.1 or an address of a local interface; to reach another host set \
         DOORBELL_DEVICE or pass --device (in Rust: Device::choose, with the feature verbs)",
    ))
}

/// Gives the socket the name of `addr`, with a free port for port 0. Returns its address. With
/// `only`, the IPv6 wildcard does not include IPv4 addresses.
pub(super) fn claim(
    socket: &Socket,
    device: &str,
    addr: SocketAddr,
    only: bool,
) -> Result<SocketAddr, CmError> {
    let asked = || format!("bind to {addr} on {device}");
    let name = |device: &str, addr: SocketAddr| match addr.ip() {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) if only => name_only(device, addr.port()),
        _ => name(device, addr),
    };
    if addr.port() != 0 {
        return match socket.bind(&name(device, addr)) {
            Ok(()) => Ok(addr),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let answer = "the port is taken by another id of this user";
                Err(CmError::new(Code::AddrInUse, asked(), answer)
                    .cure("choose another port, or 0 for a free one"))
            }
            Err(error) => Err(CmError::from_io(asked(), &error)),
        };
    }
    let mut seed = [0; 2];
    sys::random(&mut seed).map_err(|error| CmError::from_io(asked(), &error))?;
    let count = FREE_PORTS.end - FREE_PORTS.start;
    let first = u16::from_ne_bytes(seed) % count;
    for step in 0..count {
        let offset = (u32::from(first) + u32::from(step)) % u32::from(count);
        let port = FREE_PORTS.start + offset as u16;
        let addr = SocketAddr::new(addr.ip(), port);
        match socket.bind(&name(device, addr)) {
            Ok(()) => return Ok(addr),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(CmError::from_io(asked(), &error)),
        }
    }
    Err(CmError::new(Code::AddrNotAvailable, asked(), "every port from 32768 to 60999 is taken")
        .cure("destroy ids that are no longer used"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_tries_the_address_then_its_wildcards() {
        let names = names_for("soft0", "127.0.0.1:7".parse().unwrap());
        let ends: Vec<_> = names.iter().map(|n| n.rsplit('/').next().unwrap()).collect();
        assert_eq!(ends, ["127.0.0.1:7", "0.0.0.0:7", "[::]:7"]);
        let names = names_for("soft0", "[::1]:7".parse().unwrap());
        let ends: Vec<_> = names.iter().map(|n| n.split_once("soft0/").unwrap().1).collect();
        assert_eq!(ends, ["[::1]:7", "[::]:7", "[::]:7/only"]);
    }

    #[test]
    fn the_longest_name_fits_a_socket_address() {
        let addr = "[1111:2222:3333:4444:5555:6666:7777:8888]:65535".parse().unwrap();
        assert!(name("soft0", addr).len() <= 107);
    }

    #[test]
    fn loopback_is_local_and_a_documentation_address_is_not() {
        assert!(is_local("127.0.0.1".parse().unwrap()));
        assert!(is_local("::1".parse().unwrap()));
        assert!(!is_local("192.0.2.1".parse().unwrap()));
        let error = check_local("x", "soft0", "192.0.2.1".parse().unwrap()).unwrap_err();
        assert_eq!(error.code(), Code::AddrNotAvailable);
        assert!(error.to_string().contains("127.0.0.1"), "{error}");
    }

    #[test]
    fn port_0_takes_a_free_port_and_a_taken_one_is_refused() {
        let (one, two) = (Socket::new().unwrap(), Socket::new().unwrap());
        let any = "127.0.0.1:0".parse().unwrap();
        let addr = claim(&one, "test", any, false).unwrap();
        assert_ne!(addr.port(), 0);
        assert_eq!(claim(&two, "test", addr, false).unwrap_err().code(), Code::AddrInUse);
        drop(one);
        assert_eq!(claim(&two, "test", addr, false).unwrap(), addr);
    }
}
