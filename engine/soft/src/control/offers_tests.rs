//! Tests of offers that wait, of peers by the dozen, and of processes without descriptors.

use std::fs::File;
use std::io::ErrorKind;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::{ConnParam, EventKind};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Gid, Poller, Ports, QpType};
use doorbell_seam::wc::Status;

use super::offers::Offers;
use super::rendezvous::{Rendezvous, listener_name};
use super::rendezvous_tests::{Side, next, wait_until_left};
use super::sys::{Epoll, READY_MAX, Received, Socket};
use super::tests::{self, Liar, SOON, left_of, listener, routed, with_qp};
use super::wire::{ByNumber, MESSAGE_MAX, Message};
use super::*;

/// Set in a process that runs one test alone.
const ALONE: &str = "DOORBELL_TEST_ALONE";

fn rendezvous(side: &Side) -> &Rendezvous {
    side.device.0.rendezvous.get().unwrap()
}

fn is_ready(watch: &Epoll) -> bool {
    !watch.wait(Some(Duration::ZERO), &mut [0; READY_MAX]).unwrap().is_empty()
}

fn is_closed(socket: &Socket) -> bool {
    !matches!(socket.receive(&mut [0; MESSAGE_MAX]), Ok(Received::Nothing))
}

fn connected(name: &str) -> Socket {
    let socket = Socket::new().unwrap();
    socket.connect(name).unwrap();
    socket
}

/// A peer of this process that has left an offer without a link.
fn offering(name: &str, gid: Gid, from: u32) -> Socket {
    let socket = connected(name);
    let what = ByNumber { gid: gid.0, from, to: 1 };
    socket.send(&Message::ByNumber(what).encode(), &[]).unwrap();
    socket
}

fn listening(name: &str, backlog: u32) -> Socket {
    let listener = Socket::new().unwrap();
    listener.bind(name).unwrap();
    listener.listen(backlog).unwrap();
    listener
}

/// A name that no other test has.
fn own_name(of: &str) -> String {
    format!("doorbell/test/{}/{of}", std::process::id())
}

/// Nobody takes them, and their makers say goodbye, or end without a word.
#[test]
fn offers_go_when_their_makers_leave() {
    let two = Side::new(QpType::Rc);
    let mut makers: Vec<Side> = (0..6).map(|_| Side::new(QpType::Rc)).collect();
    for maker in &mut makers {
        maker.connect(two.name()).unwrap();
    }
    two.device.rendezvous_step();
    assert_eq!(rendezvous(&two).waiting(), 6);
    for (at, maker) in makers.into_iter().enumerate() {
        if at % 2 == 0 {
            drop(maker.device.part(maker.name().1));
        }
        drop(maker);
    }
    let until = Instant::now() + SOON;
    while rendezvous(&two).waiting() > 0 {
        two.device.rendezvous_step();
        assert!(Instant::now() < until, "offers stay");
    }
    assert!(!is_ready(&rendezvous(&two).watch), "somebody waits for what is gone");
}

/// A full table refuses a new offer until one of its offers has ended.
#[test]
fn offers_are_bounded_and_those_that_ended_give_way() {
    if !is_alone("offers_are_bounded_and_those_that_ended_give_way") {
        return;
    }
    let (name, watch) = (own_name("bound"), Epoll::new().unwrap());
    let gid = SoftDevice::open().unwrap().query_gid(1, 0).unwrap();
    let mut offers = Offers::new(listening(&name, 64), 4);
    let mut peers: Vec<Socket> = (0..10).map(|from| offering(&name, gid, from)).collect();
    offers.admit(&watch);
    assert_eq!(offers.len(), 4);
    let refused = peers.iter().filter(|peer| is_closed(peer)).count();
    assert_eq!(refused, 6);
    peers.truncate(4);
    peers.drain(..2);
    peers.extend((10..12).map(|from| offering(&name, gid, from)));
    offers.admit(&watch);
    assert_eq!((offers.len(), peers.iter().any(is_closed)), (4, false));
    let wanted = |from| ByNumber { gid: gid.0, from, to: 1 };
    let taken: Vec<bool> = [0, 2, 11].map(|f| offers.take(wanted(f), &watch).is_some()).into();
    assert_eq!(taken, [false, true, true]);
}

/// A child of fork shares the listener. Its peers hear of its end all the same.
#[test]
fn a_listener_that_a_child_shares_ends_with_its_device() {
    let name = own_name("child");
    let listener = listening(&name, 4);
    let _child = listener.shared().unwrap();
    let offers = Offers::new(listener, 4);
    let waiting = connected(&name);
    drop(offers);
    let until = Instant::now() + SOON;
    while !is_closed(&waiting) {
        assert!(Instant::now() < until, "it waits for nobody");
    }
    let late = Socket::new().unwrap().connect(&name).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::ConnectionRefused);
}

/// A crowd of peers must not keep the others of this process waiting.
#[test]
fn a_step_takes_some_peers_and_not_all() {
    let (name, watch) = (own_name("step"), Epoll::new().unwrap());
    let mut offers = Offers::new(listening(&name, 128), 4);
    offers.listen(&watch);
    let crowd: Vec<Socket> = (0..100).map(|_| connected(&name)).collect();
    offers.admit(&watch);
    assert!(is_ready(&watch), "the rest waits");
    let out = crowd.iter().filter(|peer| is_closed(peer)).count();
    assert!(out < 50, "{out} were turned away");
    offers.admit(&watch);
    assert!(!is_ready(&watch));
}

/// Too many peers have connected to the second side's process, which takes them a moment later.
#[test]
fn a_full_backlog_is_waited_for() {
    let mut one = Side::new(QpType::Rc);
    // A device of this process that does not exist.
    let mut gid = one.gid;
    gid.0[15] ^= 0x55;
    let name = listener_name(one.device.name(), gid);
    let listener = listening(&name, 0);
    let _first = connected(&name);
    thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            let until = Instant::now() + SOON;
            let mut accepted = Vec::new();
            while accepted.len() < 2 && Instant::now() < until {
                accepted.extend(listener.accept().unwrap());
            }
            accepted
        });
        one.connect((gid, 5)).unwrap();
        assert_eq!(accepting.join().unwrap().len(), 2);
    });
}

/// Its peers would talk to somebody else.
#[test]
fn a_name_that_is_taken_is_an_error() {
    let device = SoftDevice::open().unwrap();
    let name = listener_name(device.name(), device.query_gid(1, 0).unwrap());
    let squatter = listening(&name, 1);
    assert_eq!(device.connect_by_number().unwrap_err().code(), Code::AddrInUse);
    assert_eq!(device.rendezvous_fd(), None);
    drop(squatter);
    device.connect_by_number().unwrap();
}

#[test]
fn threads_that_allow_it_at_once_all_find_it_allowed() {
    for _ in 0..50 {
        let device = SoftDevice::open().unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    device.connect_by_number().unwrap();
                    assert!(device.rendezvous_fd().is_some());
                });
            }
        });
    }
}

/// Runs a test in a process of its own, which may have 200 descriptors: the test takes them all, or
/// a child that another test starts would keep a socket open for a moment. True in that process.
fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let name = format!("control::offers_tests::{test}");
    let own = std::env::current_exe().unwrap();
    let mut alone = Command::new("sh");
    alone.args(["-c", r#"ulimit -n 200 && exec "$0" --exact "$1""#]).arg(own).arg(&name);
    let output = alone.env(ALONE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// Takes all descriptors that this process may have.
fn take_all() -> Vec<File> {
    let mut files = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => files.push(file),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
                return files;
            }
        }
    }
}

#[test]
fn without_descriptors_peers_are_refused_and_nobody_spins() {
    if !is_alone("without_descriptors_peers_are_refused_and_nobody_spins") {
        return;
    }
    let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
    let name = listener_name(two.device.name(), two.gid);
    let peers: Vec<Socket> = (0..3).map(|_| connected(&name)).collect();
    let files = take_all();
    for _ in 0..10 {
        two.device.rendezvous_step();
    }
    assert!(!is_ready(&rendezvous(&two).watch), "there is work for ever");
    assert!(peers.iter().all(is_closed));
    drop(files);
    let (a, b) = (one.name(), two.name());
    one.connect(b).unwrap();
    two.connect(a).unwrap();
    two.receive();
    one.send(b"");
    assert_eq!(next(&mut two, &mut one).status, Status::Success);
}

/// Not even a spare one is left.
#[test]
fn a_listener_that_cannot_take_anybody_is_not_watched_meanwhile() {
    if !is_alone("a_listener_that_cannot_take_anybody_is_not_watched_meanwhile") {
        return;
    }
    let (name, watch) = (own_name("deaf"), Epoll::new().unwrap());
    let listener = listening(&name, 8);
    let _peers: Vec<Socket> = (0..3).map(|_| connected(&name)).collect();
    let files = take_all();
    let mut offers = Offers::new(listener, 4);
    offers.listen(&watch);
    assert!(is_ready(&watch));
    offers.admit(&watch);
    assert!(!is_ready(&watch));
    drop(files);
    offers.admit(&watch);
    assert_eq!(offers.len(), 3);
    let _late = connected(&name);
    assert!(is_ready(&watch), "it listens again");
}

/// A side that has no descriptor for the other's notifier could never wake it.
#[test]
fn without_a_descriptor_for_its_notifier_a_peer_is_lost() {
    if !is_alone("without_a_descriptor_for_its_notifier_a_peer_is_lost") {
        return;
    }
    // The side that comes second.
    let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
    one.connect(two.name()).unwrap();
    two.device.rendezvous_step();
    assert_eq!(rendezvous(&two).waiting(), 1);
    let files = take_all();
    assert_eq!(two.connect(one.name()).unwrap_err().code(), Code::from_errno(libc::EMFILE));
    drop(files);
    wait_until_left(&one);
    // The side that comes first: it cannot receive the descriptor, or not open it.
    for free in [0, 1] {
        let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
        one.connect(two.name()).unwrap();
        two.connect(one.name()).unwrap();
        let mut files = take_all();
        files.truncate(files.len() - free);
        assert_eq!(left_of(&one.device), [one.name().1], "{free} descriptors left");
        drop(files);
        wait_until_left(&two);
    }
}

/// The next event of that kind.
fn event(channel: &SoftChannel, kind: EventKind) {
    while tests::next(channel).kind != kind {}
}

fn lacks_files(result: Result<(), CmError>) -> bool {
    result.is_err_and(|error| error.code() == Code::from_errno(libc::EMFILE))
}

/// `ibv_modify_qp`.
fn step(side: &mut Side, from: QpState, fields: &QpFields) -> Result<(), CmError> {
    side.device.modify_qp(&mut side.qp, from, fields)
}

/// What the second side sends wakes the first.
fn wakes(one: &mut Side, two: &mut Side) {
    one.receive();
    one.poller.arm(false).unwrap();
    two.send(b"");
    let epoll = Epoll::new().unwrap();
    epoll.add(one.poller.wake_fds().unwrap().device, 1).unwrap();
    let mut keys = [0; READY_MAX];
    assert!(!epoll.wait(Some(SOON), &mut keys).unwrap().is_empty(), "nobody wakes it");
}

/// An id of the first side's device, and the request that it will send to the second.
struct Asking {
    id: SoftId,
    answers: SoftChannel,
    requests: SoftChannel,
    _listener: SoftId,
}

impl Asking {
    fn new(one: &SoftDevice, two: &SoftDevice) -> Asking {
        let (answers, requests) = (one.open_channel().unwrap(), two.open_channel().unwrap());
        let (listener, _) = listener(two, &requests);
        let to = listener.local_addr().unwrap();
        let id = routed(one, Some(&answers), PortSpace::Tcp, to);
        Asking { id, answers, requests, _listener: listener }
    }
}

#[test]
fn an_accept_that_lacked_descriptors_may_be_repeated() {
    if !is_alone("an_accept_that_lacked_descriptors_may_be_repeated") {
        return;
    }
    let side = |device: &SoftDevice, id: &mut SoftId| {
        let (device, (qp, poller)) = (device.clone(), with_qp(device, id));
        Side { gid: device.query_gid(1, 0).unwrap(), device, qp, poller }
    };
    let devices = [SoftDevice::open().unwrap(), SoftDevice::open().unwrap()];
    let mut asking = Asking::new(&devices[0], &devices[1]);
    let mut one = side(&devices[0], &mut asking.id);
    asking.id.connect(&ConnParam::default()).unwrap();
    let mut request = tests::next(&asking.requests).request.unwrap();
    let mut two = side(&devices[1], &mut request);
    let files = take_all();
    assert!(lacks_files(request.accept(&ConnParam::default())));
    drop(files);
    request.accept(&ConnParam::default()).unwrap();
    event(&asking.answers, EventKind::Established);
    wakes(&mut one, &mut two);
}

/// The same for a queue pair without an id, which goes to RTR before.
#[test]
fn a_way_to_rtr_that_lacked_descriptors_may_be_repeated() {
    if !is_alone("a_way_to_rtr_that_lacked_descriptors_may_be_repeated") {
        return;
    }
    let (mut one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
    let mut asking = Asking::new(&one.device, &two.device);
    asking.id.connect_with(&one.qp, &ConnParam::default()).unwrap();
    let mut request = tests::next(&asking.requests).request.unwrap();
    let fields = request.init_qp_attr(QpState::Rtr).unwrap();
    let files = take_all();
    assert!(lacks_files(step(&mut two, QpState::Init, &fields)));
    drop(files);
    step(&mut two, QpState::Init, &fields).unwrap();
    request.accept_with(&two.qp, &ConnParam::default()).unwrap();
    event(&asking.answers, EventKind::ConnectResponse);
    let fields = asking.id.init_qp_attr(QpState::Rtr).unwrap();
    step(&mut one, QpState::Init, &fields).unwrap();
    asking.id.establish().unwrap();
    wakes(&mut one, &mut two);
}

/// A queue pair that goes to RESET and to RTR again before accept leaves no link behind.
#[test]
fn a_second_way_to_rtr_leaves_no_link_of_the_first() {
    let (one, mut two) = (Side::new(QpType::Rc), Side::new(QpType::Rc));
    let mut asking = Asking::new(&one.device, &two.device);
    asking.id.connect_with(&one.qp, &ConnParam::default()).unwrap();
    let mut request = tests::next(&asking.requests).request.unwrap();
    for _ in 0..2 {
        let fields = request.init_qp_attr(QpState::Rtr).unwrap();
        step(&mut two, QpState::Init, &fields).unwrap();
        step(&mut two, QpState::Rtr, &QpFields::to(QpState::Reset)).unwrap();
    }
    drop(request);
    let device = two.device.clone();
    drop(two);
    assert_eq!(device.0.links.alive(), 0);
}

/// A request that took the spare descriptor cannot be accepted later. The program can still reject
/// it, and say why.
#[test]
fn a_request_that_came_without_descriptors_can_be_rejected_alone() {
    if !is_alone("a_request_that_came_without_descriptors_can_be_rejected_alone") {
        return;
    }
    let device = SoftDevice::open().unwrap();
    let channel = device.open_channel().unwrap();
    let (_listener, name) = listener(&device, &channel);
    let liar = Liar::connect(&name);
    liar.say(&tests::request());
    let files = take_all();
    let mut request = tests::next(&channel).request.unwrap();
    drop(files);
    let _qp = with_qp(&device, &mut request);
    for _ in 0..2 {
        assert!(lacks_files(request.accept(&ConnParam::default())));
    }
    request.reject(b"why").unwrap();
    let Some(Message::Reject { data, .. }) = liar.receive() else { panic!("no rejection") };
    assert!(data.starts_with(b"why"));
}

/// While the spare descriptor is in use, peers wait, and nobody spins meanwhile.
#[test]
fn without_descriptors_a_channel_looks_for_requests_now_and_then() {
    if !is_alone("without_descriptors_a_channel_looks_for_requests_now_and_then") {
        return;
    }
    let device = SoftDevice::open().unwrap();
    let channel = device.open_channel().unwrap();
    let (listener, name) = listener(&device, &channel);
    let _silent = Liar::connect(&name);
    let liar = Liar::connect(&name);
    liar.say(&tests::request());
    let (end, _) = channel.0.find(listener.key().0).unwrap();
    let files = take_all();
    let until = Instant::now() + SOON;
    while end.lock().watched {
        assert!(channel.0.next(Some(Duration::ZERO)).unwrap().is_none());
        assert!(Instant::now() < until, "there is work for ever");
    }
    drop(files);
    assert_eq!(tests::next(&channel).kind, EventKind::ConnectRequest);
}
