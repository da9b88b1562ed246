//! Addresses: `rdma_getaddrinfo` as plain data.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};

use doorbell_seam::error::Code;
use doorbell_seam::provider::QpType;

use crate::attr::PortSpace;
use crate::error::CmError;

/// What to look for (`struct rdma_addrinfo` as hints).
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// The address is for listening (`RAI_PASSIVE`).
    pub passive: bool,
    /// The port space.
    pub space: PortSpace,
    /// Local address of an active side.
    pub from: Option<SocketAddr>,
    /// The type of its queue pairs (`ai_qp_type`), for [`PortSpace::Ib`]; `None` for the type of
    /// the port space.
    pub qp_type: Option<QpType>,
}

impl Hints {
    /// For a side that listens.
    pub fn passive() -> Hints {
        Hints { passive: true, ..Hints::default() }
    }

    /// For a side that connects.
    pub fn active() -> Hints {
        Hints::default()
    }

    /// For one side of an extended reliable connection: the side that connects sends, the one that
    /// listens receives.
    #[must_use]
    pub fn xrc(self) -> Hints {
        let kind = if self.passive { QpType::XrcRecv } else { QpType::XrcSend };
        Hints { space: PortSpace::Ib, qp_type: Some(kind), ..self }
    }
}

/// One resolved address (`struct rdma_addrinfo`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddrInfo {
    passive: bool,
    space: PortSpace,
    kind: QpType,
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    connect_data: Vec<u8>,
}

impl AddrInfo {
    /// Resolves a host and a port (`rdma_getaddrinfo`, CM-15). An empty host is the wildcard
    /// address for a passive side, loopback for an active one.
    ///
    /// # Errors
    /// `Invalid`: neither host nor port, or a port that is no number. `NoDevice`: the host has no
    /// address.
    pub fn resolve(host: &str, port: &str, hints: &Hints) -> Result<AddrInfo, CmError> {
        let asked = || format!("resolve host '{host}' port '{port}'");
        if host.is_empty() && port.is_empty() {
            return Err(CmError::new(Code::Invalid, asked(), "neither is given")
                .cure("give a port to listen on any address, or a host"));
        }
        let number: u16 = if port.is_empty() {
            0
        } else {
            port.parse().map_err(|_| {
                CmError::new(Code::Invalid, asked(), "the port is not a number from 0 to 65535")
            })?
        };
        let addr = if host.is_empty() {
            let ip = if hints.passive { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
            SocketAddr::new(IpAddr::V4(ip), number)
        } else {
            let none = |answer: String| {
                CmError::new(Code::NoDevice, asked(), answer)
                    .cure("check the name, or give an address")
            };
            let found = (host, number).to_socket_addrs();
            let mut found = found.map_err(|error| none(error.to_string()))?;
            found.next().ok_or_else(|| none("no address found".to_owned()))?
        };
        Ok(AddrInfo::of(addr, hints))
    }

    /// An address that needs no look-up.
    pub fn of(addr: SocketAddr, hints: &Hints) -> AddrInfo {
        let (local, remote) =
            if hints.passive { (Some(addr), None) } else { (hints.from, Some(addr)) };
        let kind = match hints.qp_type {
            Some(kind) => kind,
            None => hints.space.qp_type(),
        };
        let (passive, space, connect_data) = (hints.passive, hints.space, Vec::new());
        AddrInfo { passive, space, kind, local, remote, connect_data }
    }

    /// Adds bytes that an active endpoint sends to its peer in front of its own private data
    /// (`ai_connect`, EP-5); the limit is for both together (CM-8).
    #[must_use]
    pub fn with_connect_data(mut self, data: &[u8]) -> AddrInfo {
        self.connect_data = data.to_vec();
        self
    }

    /// Those bytes.
    pub fn connect_data(&self) -> &[u8] {
        &self.connect_data
    }

    /// True if it is for listening.
    pub fn is_passive(&self) -> bool {
        self.passive
    }

    /// The port space.
    pub fn space(&self) -> PortSpace {
        self.space
    }

    /// The type of its queue pairs.
    pub fn qp_type(&self) -> QpType {
        self.kind
    }

    /// Refuses a type that does not fit its port space and side (QP-14).
    pub fn check_type(&self) -> Result<(), CmError> {
        let fits = match self.kind {
            QpType::XrcSend => self.space == PortSpace::Ib && !self.passive,
            QpType::XrcRecv => self.space == PortSpace::Ib && self.passive,
            kind => kind == self.space.qp_type(),
        };
        if fits {
            return Ok(());
        }
        let side = if self.passive { "listens" } else { "connects" };
        let asked = format!("an endpoint with queue pairs of {:?}", self.kind);
        let answer = format!("it {side} in the port space {:?} (QP-14)", self.space);
        Err(CmError::new(Code::Invalid, asked, answer)
            .cure("XRC takes PortSpace::Ib; the side that connects is XrcSend"))
    }

    /// The address to bind to, if any (`ai_src_addr`).
    pub fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// The address to connect to, if any (`ai_dst_addr`).
    pub fn remote(&self) -> Option<SocketAddr> {
        self.remote
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_an_address_is_no_device_and_says_what_to_check() {
        let error = AddrInfo::resolve("..", "1", &Hints::default()).unwrap_err();
        assert_eq!(error.code(), Code::NoDevice);
        assert!(error.to_string().contains("check the name"), "{error}");
        let error = AddrInfo::resolve("..", "none", &Hints::default()).unwrap_err();
        assert_eq!(error.code(), Code::Invalid);
    }
}
