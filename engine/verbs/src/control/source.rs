//! The device's own GIDs, as the kernel lists them: for queue pairs that are connected by hand.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use doorbell_seam::provider::Gid;

use doorbell_fabric::Source;

/// The kernel's name for the type of GIDs that packets over IP carry. A link has GIDs of other
/// types with the same address.
const BY_IP: &str = "RoCE v2";

/// The GID of that address for packets over IP.
pub(super) fn find(device: &str, addr: IpAddr) -> Option<Source> {
    find_in(&Path::new("/sys/class/infiniband").join(device).join("ports"), addr)
}

fn find_in(ports: &Path, addr: IpAddr) -> Option<Source> {
    let mut numbers: Vec<u8> = names(ports).iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.into_iter().find_map(|port| {
        let of_port = ports.join(port.to_string());
        let mut found: Vec<(u8, Gid)> = names(&of_port.join("gids"))
            .iter()
            .filter_map(|name| name.parse().ok())
            .filter_map(|index: u8| Some((index, gid(&of_port, index, addr)?)))
            .collect();
        found.sort_unstable();
        found.first().map(|(index, gid)| Source { gid: *gid, index: *index, port })
    })
}

/// The GID of that index, if it is of that address and for packets over IP.
fn gid(port: &Path, index: u8, addr: IpAddr) -> Option<Gid> {
    let read = |path: &str| fs::read_to_string(port.join(path).join(index.to_string())).ok();
    let gid: Ipv6Addr = read("gids")?.trim().parse().ok()?;
    let same = IpAddr::V6(gid).to_canonical() == addr.to_canonical();
    // An entry that is not used has a GID and no type.
    let by_ip = same && read("gid_attrs/types")?.trim() == BY_IP;
    by_ip.then(|| Gid(gid.octets()))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gid_for_packets_by_ip_is_found_among_others() {
        let folder = std::env::temp_dir().join(format!("doorbell-gids-{}", std::process::id()));
        let port = folder.join("1");
        let write = |index: u8, gid: &str, kind: &str| {
            for (path, text) in [("gids", gid), ("gid_attrs/types", kind)] {
                fs::create_dir_all(port.join(path)).unwrap();
                fs::write(port.join(path).join(index.to_string()), text).unwrap();
            }
        };
        write(0, "fe80:0000:0000:0000:5054:00ff:fe12:3456\n", "RoCE v2\n");
        write(1, "0000:0000:0000:0000:0000:ffff:c0a8:4d01\n", "IB/RoCE v1\n");
        write(2, "0000:0000:0000:0000:0000:ffff:c0a8:4d01\n", "RoCE v2\n");
        let source = find_in(&folder, "192.168.77.1".parse().unwrap()).unwrap();
        assert_eq!((source.port, source.index), (1, 2));
        assert_eq!(source.gid.to_string(), "::ffff:192.168.77.1");
        assert!(find_in(&folder, "192.168.77.2".parse().unwrap()).is_none());
        assert!(find_in(&folder.join("2"), "192.168.77.1".parse().unwrap()).is_none());
        fs::remove_dir_all(folder).unwrap();
    }
}
