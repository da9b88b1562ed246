//! The discovery log: where a subsystem can be reached.

use std::net::{IpAddr, SocketAddr};

use super::ADMIN_DEPTH;
use super::connect::ANY_CONTROLLER;
use super::le::{put, put_padded, text, u64_at};

/// Bytes of the header, and of each entry.
pub const ENTRY_BYTES: usize = 1024;

/// The number of the RDMA transport.
const RDMA: u8 = 1;

/// A subsystem and one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of the subsystem.
    pub subsystem: String,
    /// Where it listens.
    pub addr: SocketAddr,
}

impl Entry {
    fn bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut out = [0; ENTRY_BYTES];
        out[0] = RDMA;
        out[1] = if self.addr.is_ipv4() { 1 } else { 2 };
        out[2] = 2; // A subsystem with namespaces.
        put(&mut out, 4, &1_u16.to_le_bytes());
        put(&mut out, 6, &ANY_CONTROLLER.to_le_bytes());
        put(&mut out, 8, &ADMIN_DEPTH.to_le_bytes());
        put_padded(&mut out, 32, 32, &self.addr.port().to_string());
        put(&mut out, 256, self.subsystem.as_bytes());
        put_padded(&mut out, 512, 256, &self.addr.ip().to_string());
        // Connected queue pairs, no provider named, set up by the connection manager.
        (out[768], out[769], out[770]) = (1, 1, 1);
        out
    }

    fn read(bytes: &[u8]) -> Option<Entry> {
        let port = text(bytes, 32, 32)?.trim_end().parse().ok()?;
        let addr: IpAddr = text(bytes, 512, 256)?.trim_end().parse().ok()?;
        let subsystem = text(bytes, 256, 256)?.to_owned();
        let known = bytes.first() == Some(&RDMA);
        known.then(|| Entry { subsystem, addr: SocketAddr::new(addr, port) })
    }
}

/// The whole page.
pub fn page(entries: &[Entry]) -> Vec<u8> {
    let mut out = vec![0; ENTRY_BYTES];
    put(&mut out, 0, &1_u64.to_le_bytes()); // It never changes.
    put(&mut out, 8, &(entries.len() as u64).to_le_bytes());
    out.extend(entries.iter().flat_map(|entry| entry.bytes()));
    out
}

/// The number of entries that a header announces.
pub fn count(header: &[u8]) -> u64 {
    u64_at(header, 8)
}

/// The entries of a page that lead to subsystems over RDMA.
pub fn read(page: &[u8]) -> Vec<Entry> {
    let most = usize::try_from(count(page)).unwrap_or(usize::MAX);
    let entries = page.chunks_exact(ENTRY_BYTES).skip(1).take(most);
    entries.filter_map(Entry::read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_were_written() {
        let entry = |addr: &str| Entry {
            subsystem: "nqn.2026-11.org.example:disk".to_owned(),
            addr: addr.parse().expect("an address"),
        };
        let entries = [entry("192.168.77.1:4420"), entry("[fe80::1]:1")];
        let page = page(&entries);
        assert_eq!(page.len(), 3 * ENTRY_BYTES);
        assert_eq!(&page[1024 + 32..1024 + 38], b"4420  ");
        assert_eq!((count(&page), read(&page)), (2, entries.to_vec()));
        assert_eq!(read(&page[..2500]).len(), 1, "a page may be cut");
    }
}
