//! The RDMA device: whether there is one and it works, its packet size, and missing receives.

use super::condition::{Check, Verdict};
use super::fix::{Fix, Step};
use super::host::{Host, Unread};
use super::judge::other_steps;
use crate::machine::is_pci;

/// The smallest MTU for RDMA packets of 4096 bytes, which have up to 104 bytes of headers.
const MTU: u64 = 4200;

/// The family: a working port, then its packets, then missing receives.
pub const CHECKS: &[Check] = &[
    Check {
        name: "rdma_device",
        should: "there is an RDMA device with an active port",
        why: "without one, messages between machines go through the kernel's sockets",
        cost: "about 10 to 30 us a message by TCP instead of 1 to 2 us by a NIC (ping-pong of 64 \
               bytes: perftest, netperf)",
        judge: rdma_device,
        fixes: &[],
    },
    Check {
        name: "mtu",
        should: "the interface under an RDMA device carries packets of 4200 bytes or more",
        why: "RoCE uses the next smaller of 1024, 2048 and 4096 bytes; with an MTU of 1500 that is \
              1024",
        cost: "about 7 % of the wire for headers instead of 2 %, and four times as many packets \
               (82 bytes each for Ethernet, IP, UDP and InfiniBand)",
        judge: mtu,
        fixes: &[
            // Not at boot: only the owner of the switch knows whether it carries such packets.
            Fix::Advice("the peers and every switch between them must support it too"),
        ],
    },
    Check {
        name: "rnr_timer",
        should: "no message arrived while its receiver had no receive posted",
        why: "the sender then waits for the receiver's RNR timer, even if a receive is posted in \
              the meantime. The connection manager leaves that timer at code 0; doorbell sets code \
              12 on each connection it makes. The timer itself cannot be read, but the device \
              counts such messages",
        cost: "about 655 ms each with code 0, 0.64 ms with doorbell's (table of RNR NAK timers, \
               InfiniBand specification 9.7.5.2.8)",
        judge: rnr_timer,
        fixes: &[Fix::Advice(
            "post more receives (Config::recv_blocks); in other programs set min_rnr_timer on the \
             connected queue pair (ibv_modify_qp(3))",
        )],
    },
];

const CLASS: &str = "/sys/class/infiniband";

/// The folders of the ports of all RDMA devices.
fn ports(host: &Host<'_>) -> Vec<String> {
    host.files(&format!("{CLASS}/*/ports/[0-9]*"))
}

/// The name of a port: `rxe0 port 1`.
fn named(port: &str) -> String {
    port.trim_start_matches(CLASS).trim_start_matches('/').replace("/ports/", " port ")
}

const NONE: &str = "no RDMA device; there is only soft0, which reaches no other machine";

fn rdma_device(host: &Host<'_>, _: &Check) -> Result<Verdict, Unread> {
    let ports = ports(host);
    if ports.is_empty() {
        let add = "with a NIC: load its driver (rdma-core); without one, to try: modprobe \
                   rdma_rxe, then rdma link add rxe0 type rxe netdev INTERFACE";
        return Ok(Verdict::note(NONE, vec![Step::Advice(add.to_owned())]));
    }
    let (mut texts, mut steps, mut active) = (Vec::new(), Vec::new(), false);
    for port in &ports {
        let state = host.text(&format!("{port}/state"))?.unwrap_or_default();
        active |= state.starts_with("4:");
        texts.push(format!("{} is {state}", named(port)));
        if !state.starts_with("4:") {
            let up = match interface(host, port)? {
                Some(name) => format!("ip link set {name} up, and check its cable"),
                None => "check its cable and the subnet manager (opensm)".to_owned(),
            };
            steps.push(Step::Advice(format!("{}: {up}", named(port))));
        }
    }
    let is = texts.join("; ");
    Ok(match (active, steps.is_empty()) {
        (false, _) => Verdict::bad(is, steps),
        (true, false) => Verdict::note(is, steps),
        (true, true) => Verdict::fine(is),
    })
}

/// The network interface under a port; `None` for a port of InfiniBand.
fn interface(host: &Host<'_>, port: &str) -> Result<Option<String>, Unread> {
    if host.text(&format!("{port}/link_layer"))?.as_deref() == Some("InfiniBand") {
        return Ok(None);
    }
    let name = host.text(&format!("{port}/gid_attrs/ndevs/0"))?;
    Ok(name.filter(|name| !name.is_empty()))
}

fn mtu(host: &Host<'_>, check: &Check) -> Result<Verdict, Unread> {
    let (mut texts, mut steps) = (Vec::new(), Vec::new());
    for port in ports(host) {
        let Some(name) = interface(host, &port)? else { continue };
        let file = format!("/sys/class/net/{name}/mtu");
        let Some(bytes) = host.number(&file)? else { continue };
        texts.push(format!("{} on {name}: {bytes}", named(&port)));
        if bytes < MTU {
            steps.push(Step::Write { file, value: MTU.to_string() });
        }
    }
    let is = texts.join("; ");
    if texts.is_empty() {
        return Ok(Verdict::absent("no RDMA device on a network interface"));
    }
    if steps.is_empty() {
        return Ok(Verdict::fine(is));
    }
    steps.extend(other_steps(host, check));
    // Only a note: packets that are too large for a switch would cut the machine off.
    Ok(Verdict::note(is, steps))
}

/// Counters of missing receives at the receiver and at the sender: those of mlx5, then of rxe.
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
        return Ok(Verdict::fine("none since the device came up"));
    }
    Ok(Verdict::note(met.join("; "), other_steps(host, check)))
}

/// For each RDMA device on PCI, the folders of the bridges above it, the topmost first, and then
/// its own. They are folders below `/sys/devices`.
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
