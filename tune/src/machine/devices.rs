//! [`Device`]: NICs and RDMA devices, from the kernel's files.

use std::fmt;

use serde::Serialize;

use crate::root::Root;

/// A NIC or an RDMA device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    /// Its name: `eth0`, `mlx5_0`.
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Its PCI address, `0000:3b:00.0`; `None` for a software device.
    pub pci: Option<String>,
    /// The NUMA node it is attached to; `None` if the machine does not say.
    pub node: Option<usize>,
    /// Its PCIe link; `None` if there is none or the machine does not say.
    pub link: Option<Link>,
    /// For an RDMA device, the network interface of its first port.
    pub interface: Option<String>,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A network interface.
    Net,
    /// An RDMA device.
    Rdma,
}

/// A PCIe link: what it runs at, and what the device is capable of.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Lanes in use.
    pub width: u32,
    /// Lanes that the device has.
    pub width_max: u32,
    /// Speed of a lane, GT/s.
    pub speed_gts: f64,
    /// Speed of a lane that the device is capable of, GT/s.
    pub speed_gts_max: f64,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "x{} at {} GT/s", self.width, self.speed_gts)?;
        if (self.width, self.speed_gts) != (self.width_max, self.speed_gts_max) {
            write!(f, " (could be x{} at {} GT/s)", self.width_max, self.speed_gts_max)?;
        }
        Ok(())
    }
}

/// NICs on a PCI bus and RDMA devices, sorted by name.
pub(super) fn read(root: &Root, nodes: &[usize]) -> Vec<Device> {
    let mut devices = Vec::new();
    for name in root.entries("/sys/class/net") {
        let folder = format!("/sys/class/net/{name}");
        if let Some(pci) = pci_of(root, &folder) {
            devices.push(on_pci(root, name, DeviceKind::Net, pci, nodes));
        }
    }
    for name in root.entries("/sys/class/infiniband") {
        let device = rdma(root, name, nodes, &devices);
        devices.push(device);
    }
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    name_interfaces(&mut devices);
    devices
}

fn rdma(root: &Root, name: String, nodes: &[usize], nets: &[Device]) -> Device {
    let folder = format!("/sys/class/infiniband/{name}");
    let interface = root
        .entries(&format!("{folder}/ports"))
        .first()
        .and_then(|port| root.text(&format!("{folder}/ports/{port}/gid_attrs/ndevs/0")));
    if let Some(pci) = pci_of(root, &folder) {
        return Device { interface, ..on_pci(root, name, DeviceKind::Rdma, pci, nodes) };
    }
    // A software device is on the node of its interface.
    let below = nets.iter().find(|net| Some(&net.name) == interface.as_ref());
    let node = below.and_then(|net| net.node);
    Device { name, kind: DeviceKind::Rdma, pci: None, node, link: None, interface }
}

/// Gives an RDMA device that does not say which interface it uses the one of the same PCI function.
pub(super) fn name_interfaces(devices: &mut [Device]) {
    let nets: Vec<Device> =
        devices.iter().filter(|device| device.kind == DeviceKind::Net).cloned().collect();
    let of = |pci: &String| nets.iter().find(|net| net.pci.as_ref() == Some(pci));
    for device in devices.iter_mut().filter(|device| device.kind == DeviceKind::Rdma) {
        let below = device.pci.as_ref().and_then(of).map(|net| net.name.clone());
        device.interface = device.interface.take().or(below);
    }
}

pub(super) fn on_pci(
    root: &Root,
    name: String,
    kind: DeviceKind,
    pci: String,
    nodes: &[usize],
) -> Device {
    let node = root.value::<usize>(&format!("/sys/bus/pci/devices/{pci}/numa_node"));
    // On a machine with one node the kernel writes -1, which is not a `usize`.
    let node = node.filter(|id| nodes.contains(id)).or(match nodes {
        [only] => Some(*only),
        _ => None,
    });
    let link = link(root, &pci);
    Device { name, kind, pci: Some(pci), node, link, interface: None }
}

/// The link of a PCI function; `None` if it does not say.
pub(crate) fn link(root: &Root, pci: &str) -> Option<Link> {
    let text = |name: &str| root.text(&format!("/sys/bus/pci/devices/{pci}/{name}"));
    let speed = |name| text(name)?.split_whitespace().next()?.parse::<f64>().ok();
    let width = |name| text(name)?.parse::<u32>().ok().filter(|width| *width > 0);
    Some(Link {
        width: width("current_link_width")?,
        width_max: width("max_link_width")?,
        speed_gts: speed("current_link_speed")?,
        speed_gts_max: speed("max_link_speed")?,
    })
}

/// The PCI address of a class entry: the last one in the path that it points to.
fn pci_of(root: &Root, entry: &str) -> Option<String> {
    let folder = root.resolve(entry)?;
    let names = folder.components().rev().filter_map(|part| part.as_os_str().to_str());
    names.map(str::to_owned).find(|name| is_pci(name))
}

/// Whether `name` is a PCI address: domain, bus, device and function, as in `0000:3b:00.0`.
pub(crate) fn is_pci(name: &str) -> bool {
    let hex = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_hexdigit());
    let parts: Vec<&str> = name.split([':', '.']).collect();
    name.contains('.') && parts.len() == 4 && parts.iter().all(|part| hex(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_told_from_other_names() {
        assert!(is_pci("0000:3b:00.0") && is_pci("10000:00:1f.6"));
        assert!(!is_pci("pci0000:3a") && !is_pci("eth0") && !is_pci("1:2:3:4") && !is_pci("..."));
    }

    #[test]
    fn a_slow_link_says_what_it_could_do() {
        let full = Link { width: 16, width_max: 16, speed_gts: 16.0, speed_gts_max: 16.0 };
        assert_eq!(full.to_string(), "x16 at 16 GT/s");
        let half = Link { width: 8, speed_gts: 2.5, ..full };
        assert_eq!(half.to_string(), "x8 at 2.5 GT/s (could be x16 at 16 GT/s)");
    }
}
