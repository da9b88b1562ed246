//! Two processes. The peer is this program, run again with a part to play.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use doorbell_cm::{ConnParam, EventKind, Fabric, Id, PortSpace, QpInit, SharedReceive};
use doorbell_seam::error::Code;
use doorbell_seam::wc::Status;
use doorbell_soft::SoftDevice;

use crate::bed::{Bed, SOON, event, received, send, send_inline};
use crate::events::sleepy;
use crate::harness::{moves, on_soft, run, skip};

cases! {
    two_processes_exchange_messages_of_every_size
    two_processes_share_one_link_for_many_connections
    a_killed_peer_is_an_event_and_flushes
    a_killed_peer_ends_a_wait
    a_peer_killed_while_connecting_harms_nobody
    a_peer_that_leaves_ends_a_wait
    cp_06_no_wake_up_between_processes_is_lost
}

/// The variable that names the part to play, and the address to connect to.
const PART: &str = "DOORBELL_TEST_PART";

/// Starts the peer.
pub(crate) fn peer(part: &str, addr: SocketAddr) -> Peer {
    let program = std::env::current_exe().expect("this program");
    let child = Command::new(program)
        .args(["--exact", "processes::the_other_process", "--nocapture"])
        .env(PART, format!("{part} {addr}"))
        .stdout(Stdio::null())
        .spawn()
        .expect("the other process");
    Peer(child)
}

/// A process that does not outlive its test.
pub(crate) struct Peer(Child);

impl Peer {
    fn kill(&mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }

    pub(crate) fn ends_well(&mut self) {
        let status = loop {
            if let Some(status) = self.0.try_wait().expect("wait") {
                break status;
            }
            // It ends by itself if it hangs.
            moves();
            thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "the other process failed");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Usually it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Plays a part if one was given; otherwise there is nothing to test here.
#[test]
fn the_other_process() {
    let Ok(given) = std::env::var(PART) else {
        return println!("skipped: other tests run this one, in a process of its own");
    };
    let (part, addr) = given.split_once(' ').expect("part and address");
    run(Part { part: part.to_owned(), addr: addr.parse().expect("an address") });
}

struct Part {
    part: String,
    addr: SocketAddr,
}

impl doorbell_cm::Program for Part {
    type Output = ();

    fn run<F: Fabric>(self, fabric: F) {
        let bed = Bed::new(fabric);
        match self.part.as_str() {
            "echo" => echo(&bed, self.addr),
            "many" => many(&bed, self.addr),
            "come-and-go" => crate::many::come_and_go(&bed),
            "refuse" => crate::many::refuse(&bed),
            "drop" => crate::drops::in_any_order(&bed),
            "destroy" => crate::many::destroy(&bed),
            "fail" => crate::many::fail(&bed),
            "fail-endpoint" => crate::many::fail_endpoint(&bed),
            "sleepy" => {
                let mut id = bed.active(self.addr, &bed.small()).into_id();
                id.queues().post_recvs(&mut bed.numbered(2)).expect("receives");
                id.connect(&ConnParam::default()).expect("connect");
                sleepy(&bed, &mut id, true);
            }
            "sleep" => {
                let _id = connected(&bed, self.addr);
                thread::sleep(Duration::from_secs(600));
            }
            "knock" => {
                let channel = bed.fabric.open_channel().expect("a channel");
                let mut id =
                    Id::create(&bed.fabric, Some(&channel), PortSpace::Tcp).expect("an id");
                id.resolve_addr(None, self.addr, SOON).expect("resolve");
                event::<F>(&channel, EventKind::AddrResolved);
                id.resolve_route(SOON).expect("resolve");
                id.create_qp(&bed.small()).expect("a queue pair");
                id.connect(&ConnParam::default()).expect("connect");
                thread::sleep(Duration::from_secs(600));
            }
            "leave" => {
                let mut id = connected(&bed, self.addr);
                send_inline(&mut id, &[1]);
                id.queues().next_send(SOON).expect("sent").ok().expect("well");
            }
            "leaks" => leaks(),
            "xrc" => crate::xrc::send_from_afar(&bed, self.addr),
            "frames" => crate::frames::answer(&bed, self.addr.port()),
            part => panic!("no such part: {part}"),
        }
    }
}

const SIZES: [usize; 9] = [0, 1, 40, 41, 200, 5000, 65_536, 200_000, 1 << 20];

fn connected<F: Fabric>(bed: &Bed<F>, addr: SocketAddr) -> Id<F> {
    let mut id = bed.active(addr, &bed.small()).into_id();
    id.connect(&ConnParam::default()).expect("connect");
    id
}

/// Sends each message back in the same buffer.
fn echo<F: Fabric>(bed: &Bed<F>, addr: SocketAddr) {
    let mut id = bed.active(addr, &bed.small()).into_id();
    id.queues().post_recv(bed.filled(1 << 20, 0)).expect("a receive");
    id.connect(&ConnParam::default()).expect("connect");
    for size in SIZES {
        let got = received(&mut id);
        assert_eq!(got.len, size);
        let buffer = got.buffer.expect("its buffer");
        id.queues()
            .post_send(buffer, size, doorbell_seam::wr::SendOp::Send, Default::default())
            .expect("send back");
        let done = id.queues().next_send(SOON).expect("sent").ok().expect("well");
        id.queues().post_recv(done.buffer.expect("its buffer")).expect("a receive");
    }
    let _ = id.disconnect();
}

fn accept_one<F: Fabric>(bed: &Bed<F>, part: &str) -> (Id<F>, Peer) {
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    let peer = peer(part, addr);
    let mut id = listener.get_request(Some(SOON)).expect("a request");
    id.queues().post_recvs(&mut bed.numbered(2)).expect("receives");
    id.accept(&ConnParam::default()).expect("accept");
    (id, peer)
}

fn two_processes_exchange_messages_of_every_size<F: Fabric>(bed: &Bed<F>) {
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    let mut peer = peer("echo", addr);
    let mut id = listener.get_request(Some(SOON)).expect("a request");
    id.accept(&ConnParam::default()).expect("accept");
    id.set_rnr_timer(12).expect("connected");
    for (turn, size) in SIZES.into_iter().enumerate() {
        id.queues().post_recv(bed.filled(size, 0)).expect("a receive");
        send(&mut id, bed.filled(size, turn as u8 + 1));
        let got = received(&mut id);
        assert_eq!(got.len, size);
        assert!(got.bytes().iter().all(|byte| *byte == turn as u8 + 1), "size {size}");
        id.queues().next_send(SOON).expect("sent").ok().expect("well");
    }
    peer.ends_well();
}

/// The number of connections that `many` makes, all on one shared receive queue.
const MANY: usize = 40;

fn many<F: Fabric>(bed: &Bed<F>, addr: SocketAddr) {
    let srq = SharedReceive::new(&bed.fabric, 64).expect("a shared receive queue");
    srq.post(&mut bed.numbered(MANY)).expect("receives");
    let init = QpInit::rc().send_wr(4).recv_wr(4).inline(16).srq(&srq);
    let mut ids: Vec<Id<F>> = Vec::new();
    for at in 0..MANY {
        let mut id = bed.active(addr, &init).into_id();
        id.connect(&ConnParam::default()).expect("connect");
        send_inline(&mut id, &[at as u8]);
        ids.push(id);
    }
    for (at, id) in ids.iter_mut().enumerate() {
        assert_eq!(received(id).bytes(), [at as u8]);
        id.queues().next_send(SOON).expect("sent").ok().expect("well");
    }
}

fn two_processes_share_one_link_for_many_connections<F: Fabric>(bed: &Bed<F>) {
    let srq = SharedReceive::new(&bed.fabric, 64).expect("a shared receive queue");
    srq.post(&mut bed.numbered(MANY)).expect("receives");
    let init = QpInit::rc().send_wr(4).recv_wr(4).inline(16).srq(&srq);
    let (mut listener, addr) = bed.listener(Some(&init));
    let mut peer = peer("many", addr);
    let mut ids = Vec::new();
    for _ in 0..MANY {
        let mut id = listener.get_request(Some(SOON)).expect("a request");
        id.accept(&ConnParam::default()).expect("accept");
        ids.push(id);
    }
    if on_soft() {
        assert!(count_links() >= 1);
    }
    for id in &mut ids {
        let got = received(id);
        let byte = got.bytes()[0];
        send_inline(id, &[byte]);
        id.queues().next_send(SOON).expect("sent").ok().expect("well");
    }
    peer.ends_well();
}

/// Link memory that this process has mapped.
fn count_links() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    maps.lines().filter(|line| line.contains("memfd:doorbell")).count()
}

fn a_killed_peer_is_an_event_and_flushes<F: Fabric>(bed: &Bed<F>) {
    if !on_soft() {
        return skip("what a kernel says for a killed process is the kernel's affair");
    }
    let channel = bed.fabric.open_channel().expect("a channel");
    let mut listener = Id::create(&bed.fabric, Some(&channel), PortSpace::Tcp).expect("an id");
    listener.bind(bed.at(0)).expect("bind");
    listener.listen(0).expect("listen");
    let mut peer = peer("sleep", listener.local_addr().expect("bound"));
    let request = event::<F>(&channel, EventKind::ConnectRequest);
    let mut id = Id::of_request(&bed.fabric, request.request.expect("it brings an id"));
    id.create_qp(&bed.small()).expect("a queue pair");
    id.queues().post_recvs(&mut bed.numbered(2)).expect("receives");
    id.accept(&ConnParam::default()).expect("accept");
    event::<F>(&channel, EventKind::Established);
    send(&mut id, bed.filled(8, 1));
    send(&mut id, bed.filled(8, 2));
    peer.kill();
    let gone = event::<F>(&channel, EventKind::Disconnected);
    assert_eq!((gone.key, gone.status), (id.key(), -104));
    let first = id.queues().next_send(SOON).expect("sends come back");
    assert_eq!(first.status, Status::RetryExceeded, "the first that was not acknowledged");
    assert_eq!(id.queues().next_send(SOON).expect("sends come back").status, Status::Flushed);
    for _ in 0..2 {
        assert_eq!(
            id.queues().next_recv(SOON).expect("receives come back").status,
            Status::Flushed
        );
    }
    id.disconnect().expect("this side has not yet");
}

fn a_killed_peer_ends_a_wait<F: Fabric>(bed: &Bed<F>) {
    if !on_soft() {
        return skip("what a kernel says for a killed process is the kernel's affair");
    }
    let (mut id, mut peer) = accept_one(bed, "sleep");
    let killer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        peer.kill();
    });
    assert_eq!(id.queues().next_recv(SOON).expect("it is flushed").status, Status::Flushed);
    killer.join().expect("killed");
    assert_eq!(id.queues().next_recv(SOON).expect("it is flushed").status, Status::Flushed);
    let error = id.queues().next_recv(SOON).expect_err("nothing more will come");
    assert_eq!(error.code(), Code::Reset);
}

fn a_peer_killed_while_connecting_harms_nobody<F: Fabric>(bed: &Bed<F>) {
    if !on_soft() {
        return skip("what a kernel says for a killed process is the kernel's affair");
    }
    let (mut listener, addr) = bed.listener(Some(&bed.small()));
    let mut first = peer("knock", addr);
    let mut id = listener.get_request(Some(SOON)).expect("a request");
    first.kill();
    let error = id.accept(&ConnParam::default()).expect_err("it is gone");
    assert!(matches!(error.code(), Code::Reset | Code::Refused), "{error}");
    // The next one is served.
    let mut second = peer("leave", addr);
    let mut id = listener.get_request(Some(SOON)).expect("a request");
    id.queues().post_recvs(&mut bed.numbered(1)).expect("receives");
    id.accept(&ConnParam::default()).expect("accept");
    assert_eq!(received(&mut id).bytes(), [1]);
    second.ends_well();
}

fn cp_06_no_wake_up_between_processes_is_lost<F: Fabric>(bed: &Bed<F>) {
    let (mut id, mut peer) = accept_one(bed, "sleepy");
    sleepy(bed, &mut id, false);
    peer.ends_well();
}

fn a_peer_that_leaves_ends_a_wait<F: Fabric>(bed: &Bed<F>) {
    if !on_soft() {
        return skip("a device that works by itself tells this by events only");
    }
    let (mut id, mut peer) = accept_one(bed, "leave");
    assert_eq!(received(&mut id).bytes(), [1], "its message from before its end arrives");
    peer.ends_well();
    let error = id.queues().next_recv(SOON).expect_err("nothing more will come");
    assert_eq!(error.code(), Code::Reset);
    id.disconnect().expect("this side has not yet");
    assert_eq!(id.queues().next_recv(SOON).expect("flushed now").status, Status::Flushed);
}

/// Connects and disconnects many times in a process of its own; descriptors and mappings must not
/// grow.
#[test]
fn two_hundred_connections_leave_nothing_behind() {
    if !on_soft() {
        return skip("what a driver keeps is its own affair");
    }
    peer("leaks", "127.0.0.1:0".parse().expect("an address")).ends_well();
}

fn leaks() {
    let bed = Bed::new(SoftDevice::open().expect("the soft device"));
    let counts = || {
        let open = std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
        (open, count_links())
    };
    let cycle = |count: usize| {
        for turn in 0..count {
            let (mut one, mut two) = bed.pair(&bed.small());
            two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
            send_inline(&mut one, &[turn as u8]);
            assert_eq!(received(&mut two).bytes(), [turn as u8]);
            match turn % 3 {
                0 => one.disconnect().expect("disconnect"),
                1 => drop(one),
                _ => drop(two),
            }
        }
    };
    cycle(20);
    let before = counts();
    cycle(200);
    let after = counts();
    // The link of the last connection goes with the next one that ends.
    assert!(after.0 <= before.0 + 2 && after.1 <= before.1 + 2, "{before:?} {after:?}");
}
