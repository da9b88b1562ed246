//! The path from the device to memory: PCIe link, ordering, IOMMU, bridges, node.

use super::condition::{Check, Verdict};
use super::device::pci_paths;
use super::fix::{Fix, Step};
use super::host::{Host, Unread};
use super::judge::other_steps;
use crate::machine;

/// The family, in the order in which a write of the NIC passes it.
pub const CHECKS: &[Check] = &[
    Check {
        name: "pcie_link",
        should: "the device's PCIe link runs at its full width and speed",
        why: "a slot with fewer lanes, or a badly seated card, halves the rate once or more",
        cost: "about half the rate for half the lanes, and the same for half the speed (the PCIe \
               specification's rates a lane)",
        judge: link,
        fixes: &[Fix::Advice("use another slot, or reseat the card; see LnkSta in lspci -vv")],
    },
    Check {
        name: "pcie_relaxed",
        should: "relaxed ordering is enabled for the device (DevCtl, RlxdOrd+)",
        why: "without it each write waits for those before it, although only completions need to",
        cost: "about 150 instead of 200 Gb/s on AMD EPYC, 16 instead of 40 GB/s on Emerald \
               Rapids (UCX, pull requests 8062 and 10955); nothing for lone small messages",
        judge: relaxed,
        fixes: &[],
    },
    Check {
        name: "iommu",
        should: "no IOMMU, or one that passes the device's addresses through (iommu=pt)",
        why: "otherwise each address is translated, and a miss in the IOMMU's cache walks a table \
              in memory",
        cost: "about 0.3 us a miss (Neugebauer and others, SIGCOMM 2018), up to 20 % of the rate \
               at 200 Gb/s (Farshin and others, PeerJ CS 2023)",
        judge: iommu,
        fixes: &[Fix::Kernel("iommu=pt")],
    },
    Check {
        name: "acs",
        should: "bridges above the device forward requests between devices directly (ACS off)",
        why: "with redirection, a write from one device to another goes up to the root and back",
        cost: "about half the rate from device to device, such as GPU to NIC, as each byte \
               passes the link to the root twice (derived, not measured); nothing between NIC and \
               memory",
        judge: acs,
        fixes: &[],
    },
    Check {
        name: "device_node",
        should: "the system knows which node the device is near",
        why: "memory and workers on the other socket reach the NIC over the link between sockets",
        cost: "about 0.1 to 0.2 us each way (remote less local latency; tune measure)",
        judge: node,
        fixes: &[Fix::Advice(
            "use firmware that reports it, or edit `cpu`, `node` and `memory_node` of the workers \
             in a plan (tune plan)",
        )],
    },
];

const NO_DEVICE: &str = "no RDMA device on PCIe";

/// The state of one PCI function.
enum Function {
    /// It is as it should be.
    Good(String),
    /// It is not, and these steps fix it.
    Wrong(String, Vec<Step>),
}

/// Judges each RDMA function; `wrong` makes the verdict if one of them is not as it should be.
fn each(
    host: &Host<'_>,
    wrong: fn(String, Vec<Step>) -> Verdict,
    judge: impl Fn(&str) -> Result<Function, Unread>,
) -> Result<Verdict, Unread> {
    let (mut good, mut bad, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for folder in pci_paths(host).iter().filter_map(|path| path.last()) {
        match judge(folder)? {
            Function::Good(what) => good.push(format!("{} {what}", address(folder))),
            Function::Wrong(what, help) => {
                bad.push(format!("{} {what}", address(folder)));
                steps.extend(help);
            }
        }
    }
    Ok(match (bad.is_empty(), good.is_empty()) {
        (true, true) => Verdict::absent(NO_DEVICE),
        (true, false) => Verdict::fine(good.join("; ")),
        (false, _) => wrong(bad.join("; "), steps),
    })
}

/// The last part of a folder's name.
fn address(folder: &str) -> &str {
    folder.rsplit('/').next().unwrap_or(folder)
}

fn link(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    each(host, Verdict::bad, |folder| {
        Ok(match machine::link(host.root, address(folder)) {
            None => Function::Good("does not report its link".to_owned()),
            Some(link) if (link.width, link.speed_gts) == (link.width_max, link.speed_gts_max) => {
                Function::Good(format!("is {link}"))
            }
            Some(link) => Function::Wrong(format!("is {link}"), other_steps(host, check)),
        })
    })
}

fn relaxed(host: &Host<'_>, _: &Check) -> Result<Verdict, Unread> {
    // A note: the firmware or the kernel may have a reason, and only streams of data gain.
    each(host, Verdict::note, |folder| {
        let config = Config::read(host, folder)?;
        Ok(match config.device_control()? {
            None => Function::Good("is not PCIe".to_owned()),
            Some(control) if control & RELAXED != 0 => Function::Good("has it enabled".to_owned()),
            Some(_) => {
                let at = address(folder);
                let help = format!(
                    "setpci -s {at} CAP_EXP+8.w=10:10, unless the kernel's log says that the root \
                     port mishandles it; and request it at registration \
                     (IBV_ACCESS_RELAXED_ORDERING)"
                );
                Function::Wrong("has it disabled".to_owned(), vec![Step::Advice(help)])
            }
        })
    })
}

fn iommu(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    each(host, Verdict::bad, |folder| {
        let Some(group) = host.root.link(&format!("{folder}/iommu_group")) else {
            return Ok(Function::Good("is behind no IOMMU".to_owned()));
        };
        let kind = host.text(&format!("/sys/kernel/iommu_groups/{group}/type"))?;
        Ok(match kind.as_deref() {
            Some("identity") => Function::Good(format!("passes through (group {group})")),
            kind => {
                let kind = kind.unwrap_or("of an unnamed kind");
                let bad = format!("is translated: group {group} is {kind}");
                Function::Wrong(bad, other_steps(host, check))
            }
        })
    })
}

fn acs(host: &Host<'_>, _: &Check) -> Result<Verdict, Unread> {
    let paths = pci_paths(host);
    let (mut redirecting, mut steps, mut bridges) = (Vec::new(), Vec::new(), 0);
    for bridge in paths.iter().flat_map(|path| path.split_last().map_or(&[][..], |(_, up)| up)) {
        bridges += 1;
        let config = Config::read(host, bridge)?;
        let at = address(bridge);
        if config.access_control()?.is_some_and(|control| control & REDIRECT != 0)
            && !redirecting.contains(&at)
        {
            redirecting.push(at);
            steps.push(Step::Advice(format!(
                "if peers share it and trust each other: setpci -s {at} ECAP_ACS+6.w=0:c, or \
                 pci=disable_acs_redir={at} on the kernel's command line"
            )));
        }
    }
    Ok(match (paths.is_empty(), redirecting.is_empty()) {
        (true, _) => Verdict::absent(NO_DEVICE),
        (false, true) => Verdict::fine(format!("{bridges} bridges, none of which redirects")),
        (false, false) => Verdict::note(format!("{} redirects", redirecting.join(", ")), steps),
    })
}

fn node(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let nodes = host.files("/sys/devices/system/node/node[0-9]*").len();
    each(host, Verdict::note, |folder| {
        let node = host.text(&format!("{folder}/numa_node"))?;
        Ok(match node.as_deref() {
            Some("-1") | None if nodes > 1 => {
                let bad = "is near no known node".to_owned();
                Function::Wrong(bad, other_steps(host, check))
            }
            Some("-1") | None => Function::Good("is on the only node".to_owned()),
            Some(node) => Function::Good(format!("is on node {node}")),
        })
    })
}

/// Enable Relaxed Ordering, in Device Control (PCI Express Base Specification 7.5.3.4).
const RELAXED: u16 = 1 << 4;
/// Request and Completion Redirect, in ACS Control (7.7.11.3).
const REDIRECT: u16 = 1 << 2 | 1 << 3;

/// The part of a function's configuration space that may be read.
struct Config {
    file: String,
    bytes: Vec<u8>,
}

impl Config {
    fn read(host: &Host<'_>, folder: &str) -> Result<Config, Unread> {
        let file = format!("{folder}/config");
        let bytes = host.bytes(&file)?.unwrap_or_default();
        Ok(Config { file, bytes })
    }

    fn u16(&self, at: usize) -> Result<u16, Unread> {
        match self.bytes.get(at..at + 2) {
            Some(two) => Ok(u16::from_le_bytes([two[0], two[1]])),
            None => Err(Unread::Short { file: self.file.clone(), len: self.bytes.len() }),
        }
    }

    /// Device Control, of the PCI Express capability; `None` for a function of plain PCI.
    fn device_control(&self) -> Result<Option<u16>, Unread> {
        const LIST: u16 = 1 << 4;
        if self.u16(6)? & LIST == 0 {
            return Ok(None);
        }
        let mut at = usize::from(self.u16(0x34)? & 0xFC);
        // At most as many as fit, so that a circular list ends too.
        for _ in 0..48 {
            if at == 0 {
                break;
            }
            let head = self.u16(at)?;
            if head & 0xFF == 0x10 {
                return self.u16(at + 8).map(Some);
            }
            at = usize::from(head >> 8 & 0xFC);
        }
        Ok(None)
    }

    /// ACS Control, of the extended capability; `None` for a function without it.
    fn access_control(&self) -> Result<Option<u16>, Unread> {
        // A configuration space of 256 bytes is complete and has no extended part.
        if self.bytes.len() == 256 {
            return Ok(None);
        }
        let mut at = 0x100;
        for _ in 0..960 {
            let (id, next) = (self.u16(at)?, self.u16(at + 2)?);
            match id {
                0x000D => return self.u16(at + 6).map(Some),
                0 | 0xFFFF => break,
                _ => at = usize::from(next >> 4 & 0xFFC),
            }
            if at < 0x100 {
                break;
            }
        }
        Ok(None)
    }
}
