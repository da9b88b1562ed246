//! The RDMA device: is it there, does it run, and how large are its packets.

use super::Check;
use super::host::{Host, Unread};
use super::mend::{Mend, Step};
use super::report::{Verdict, words};
use crate::machine::is_pci;

/// The least that carries RDMA packets of 4096 bytes: 4096 and at most 104 of headers.
const MTU: u64 = 4200;

/// The family: a port that works, then its packets, then what a missing receive costs.
pub const CHECKS: &[Check] = &[
    Check {
        name: "rdma_device",
        should: "there is an RDMA device, and a port of it is active",
        why: "without one, messages between machines go through the kernel's sockets",
        cost: "about 10 to 30 us a message by TCP instead of 1 to 2 us by a NIC (ping-pong of 64 \
               bytes: perftest, netperf)",
        judge: rdma_device,
        mends: &[],
    },
    Check {
        name: "mtu",
        should: "the interface under an RDMA device carries packets of 4200 bytes or more",
        why: "RoCE takes the next smaller of 1024, 2048 and 4096 bytes: with 1500 that is 1024",
        cost: "about 7 % of the wire instead of 2 %, and four times as many packets (82 bytes \
               around each: Ethernet, IP, UDP and InfiniBand headers)",
        judge: mtu,
        mends: &[
            // Not at boot: the switch has to carry them, which is for its owner to say.
            Mend::Advice("the peers and every switch between them have to carry as much"),
        ],
    },
    Check {
        name: "rnr_timer",
        should: "no sender has met a receiver that had no receive posted",
        why: "it then waits for the receiver's RNR timer, whatever comes in the meantime; the \
              connection manager leaves that timer at code 0, and doorbell sets code 12 on each \
              connection it makes. No file tells the timer of a connection, but the device counts \
              the occasions",
        cost: "about 655 ms each with code 0, 0.64 ms with doorbell's (table of RNR NAK timers, \
               InfiniBand specification 9.7.5.2.8)",
        judge: rnr_timer,
        mends: &[Mend::Advice(
            "more receive blocks (Config::recv_blocks); in other programs set min_rnr_timer once \
             connected (ibv_modify_qp(3))",
        )],
    },
];

const CLASS: &str = "/sys/class/infiniband";

/// Folders of the ports of all RDMA devices.
fn ports(host: &Host<'_>) -> Vec<String> {
    host.files(&format!("{CLASS}/*/ports/[0-9]*"))
}

/// `rxe0 port 1`.
fn named(port: &str) -> String {
    port.trim_start_matches(CLASS).trim_start_matches('/').replace("/ports/", " port ")
}

const NONE: &str = "no RDMA device, so there is only soft0, which does not leave the machine";

fn rdma_device(host: &Host<'_>, _: &Check) -> Result<Verdict, Unread> {
    let ports = ports(host);
    if ports.is_empty() {
        let add = "with a NIC: load its driver (rdma-core); without one, for trying: modprobe \
                   rdma_rxe, then rdma link add rxe0 type rxe netdev INTERFACE";
        return Ok(Verdict::note(NONE, vec![Step::Advice(add.to_owned())]));
    }
    let (mut told, mut steps, mut active) = (Vec::new(), Vec::new(), false);
    for port in &ports {
        let state = host.text(&format!("{port}/state"))?.unwrap_or_default();
        active |= state.starts_with("4:");
        told.push(format!("{} is {state}", named(port)));
        if !state.starts_with("4:") {
            let up = match interface(host, port)? {
                Some(name) => format!("ip link set {name} up, and see to its cable"),
                None => "see to its cable and to the subnet manager (opensm)".to_owned(),
            };
            steps.push(Step::Advice(format!("{}: {up}", named(port))));
        }
    }
    let is = told.join("; ");
    Ok(match (active, steps.is_empty()) {
        (false, _) => Verdict::bad(is, steps),
        (true, false) => Verdict::note(is, steps),
        (true, true) => Verdict::fine(is),
    })
}

/// The network interface under a port; none where packets are InfiniBand's own.
fn interface(host: &Host<'_>, port: &str) -> Result<Option<String>, Unread> {
    if host.text(&format!("{port}/link_layer"))?.as_deref() == Some("InfiniBand") {
        return Ok(None);
    }
    let name = host.text(&format!("{port}/gid_attrs/ndevs/0"))?;
    Ok(name.filter(|name| !name.is_empty()))
}

fn mtu(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let (mut told, mut steps) = (Vec::new(), Vec::new());
    for port in ports(host) {
        let Some(name) = interface(host, &port)? else { continue };
        let file = format!("/sys/class/net/{name}/mtu");
        let Some(bytes) = host.number(&file)? else { continue };
        told.push(format!("{} on {name}: {bytes}", named(&port)));
        if bytes < MTU {
            steps.push(Step::Write { file, value: MTU.to_string() });
        }
    }
    let is = told.join("; ");
    if told.is_empty() {
        return Ok(Verdict::absent("no RDMA device on a network interface"));
    }
    if steps.is_empty() {
        return Ok(Verdict::fine(is));
    }
    steps.extend(words(host, check));
    // A larger packet than a switch carries cuts the machine off, so this is nobody's default.
    Ok(Verdict::note(is, steps))
}

/// What devices call their counters of missing receives, as seen by the receiver and the sender:
/// mlx5, then rxe.
const COUNTERS: [&str; 4] = ["out_of_buffer", "rnr_nak_retry_err", "send_rnr_err", "rcvd_rnr_err"];

fn rnr_timer(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let (mut met, mut counters) = (Vec::new(), 0);
    for port in ports(host) {
        for counter in COUNTERS {
            let Some(number) = host.number(&format!("{port}/hw_counters/{counter}"))? else {
                continue;
            };
            counters += 1;
            if number > 0 {
                met.push(format!("{}: {counter} is {number}", named(&port)));
            }
        }
    }
    if counters == 0 {
        return Ok(Verdict::absent("no RDMA device that counts missing receives"));
    }
    if met.is_empty() {
        return Ok(Verdict::fine("since the device came up, none"));
    }
    Ok(Verdict::note(met.join("; "), words(host, check)))
}

/// Folders of the PCI functions that are RDMA devices, root first: each function's own, behind
/// those of the bridges above it. Names are those under `/sys/devices`.
pub(super) fn pci_paths(host: &Host<'_>) -> Vec<Vec<String>> {
    let Some(base) = host.root.resolve("/") else { return Vec::new() };
    let mut paths = Vec::new();
    for device in host.files(&format!("{CLASS}/*")) {
        let Some(real) = host.root.resolve(&device) else { continue };
        let Ok(inside) = real.strip_prefix(&base) else { continue };
        let mut folder = String::new();
        let mut path = Vec::new();
        for part in inside.iter().filter_map(|part| part.to_str()) {
            folder = format!("{folder}/{part}");
            if is_pci(part) {
                path.push(folder.clone());
            }
        }
        if !path.is_empty() && !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}
