//! Soft-RoCE devices of the tests' own: one whose network is silent, and one that goes away.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{CmId, Fabric, PortSpace};
use doorbell_seam::error::Code;
use doorbell_seam::provider::AsyncEvents;
use doorbell_verbs::Verbs;
use rustix::event::{PollFd, PollFlags, poll};

use crate::rig::{LIMIT, device, listener};

/// A device over an interface without a wire, which asks for its neighbours and hears nothing.
struct Spare {
    name: &'static str,
    /// Its address; the rest of the network of 256 is silent.
    ip: Ipv4Addr,
}

impl Spare {
    /// `None` if this machine makes no such device. A machine with a NIC is left as it is.
    fn new(name: &'static str, ip: Ipv4Addr) -> Option<Spare> {
        let (device, _) = device()?;
        if device.name().starts_with("rxe") {
            let spare = Spare { name, ip };
            let line = format!(
                "ip link add {name} type dummy && ip link set {name} arp on up && \
                 ip addr add {ip}/24 dev {name} && rdma link add {name} type rxe netdev {name}"
            );
            if shell(&line).status().is_ok_and(|status| status.success()) {
                return Some(spare);
            }
        }
        println!("skipped: this machine makes no soft-RoCE device for the test");
        None
    }

    fn open(&self) -> Verbs {
        Verbs::open(self.name).expect("the device opens")
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        let name = self.name;
        // The kernel waits for those who have the device open, at the latest until this process
        // ends. So the test does not wait for the command.
        let removal = format!("rdma link del {name}; ip link del {name}");
        shell(&removal).spawn().map(drop).unwrap_or_default();
    }
}

fn shell(line: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shell
}

#[test]
fn a_device_that_goes_away_stays_open() {
    let Some(spare) = Spare::new("dbgone", Ipv4Addr::new(192, 168, 81, 1)) else { return };
    let name = spare.name;
    let gone = spare.open();
    let again = spare.open();
    let fd = gone.async_fd().expect("it has events");
    let file = || fs::read_link(format!("/proc/self/fd/{fd}")).map(|it| it.display().to_string());
    let before = file().expect("it is open");
    drop(spare);
    let end = Instant::now() + LIMIT;
    // Each look takes the devices that have gone off librdmacm's list.
    while Verbs::devices().iter().any(|device| device == name) {
        assert!(Instant::now() < end, "the device does not go away");
        thread::yield_now();
    }
    drop(again);
    assert!(!Verbs::devices().iter().any(|device| device == name));
    assert_eq!(file().ok(), Some(before), "its context was closed");
    assert_eq!(gone.name(), name);
}

#[test]
fn after_a_time_out_the_next_attempt_is_judged_by_its_own_event() {
    let Some(spare) = Spare::new("dbsilent", Ipv4Addr::new(192, 168, 82, 1)) else { return };
    let device = spare.open();
    let nobody = SocketAddr::from(([192, 168, 82, 7], 7471));
    let mut id = device.create_id(None, PortSpace::Tcp).expect("an id");
    for _ in 0..3 {
        let error = id.resolve_addr(None, nobody, Duration::from_millis(50)).expect_err("silent");
        assert_eq!(error.code(), Code::TimedOut, "{error}");
    }
    id.resolve_addr(None, SocketAddr::from((spare.ip, 7471)), LIMIT).expect("its own address");
    id.resolve_route(LIMIT).expect("and the way there");
}

#[test]
fn an_event_that_is_there_before_a_call_is_not_the_calls_own() {
    let Some((device, ip)) = device() else { return };
    let (_listener, addr) = listener(&device, ip);
    let channel = device.open_channel().expect("a channel");
    let mut id = device.create_id(Some(&channel), PortSpace::Tcp).expect("an id");
    id.resolve_addr(None, addr, LIMIT).expect("begun");
    let mut ready = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
    poll(&mut ready, None).expect("it waits");
    id.migrate(None).expect("synchronous from now on");
    id.resolve_route(LIMIT).expect("resolved");
}
