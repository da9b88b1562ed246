//! Tests of this device's own protocol: peers that lie, and links.

use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use doorbell_alloc::{Ask, MapRequest};
use doorbell_fabric::IdOption;
use doorbell_fabric::{Channel, Event, EventKind};
use doorbell_fabric::{ConnParam, Depths, QpAttr};
use doorbell_fabric::{Join, QpAttrEx, QpFields, QpState};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{
    AddressVector, HASH_KEY_BYTES, HashFields, HashFunction, Poller, Ports, Provider, Qp, QpCaps,
    QpType, RxHash, Sharing,
};
use doorbell_seam::wc::{Status, Wc};

use super::clock::rnr_timer_ns;
use super::sys::{Received, Socket};
use super::wire::{MESSAGE_MAX, Message, Place, Reply, Request, padded};
use super::*;
use crate::{FileName, QpControl, SoftQp};

/// No directory.
const NOWHERE: FileName = FileName { fd: 0, inode: 0 };

pub(super) const SOON: Duration = Duration::from_secs(60);
const CAPS: QpCaps = QpCaps { send_wr: 4, recv_wr: 4, send_sge: 1, recv_sge: 1, inline: 16 };

pub(super) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// The numbers of the queue pairs whose peers have left since the last call.
pub(super) fn left_of(device: &SoftDevice) -> Vec<u32> {
    device.rendezvous_step().iter().map(QpControl::num).collect()
}

/// The attributes of a small queue pair; `cqs`: of its sends, of its receives.
pub(super) fn attr<'a>(
    kind: QpType,
    [send_cq, recv_cq]: [&'a SoftCq; 2],
    srq: Option<&'a SoftSrq>,
) -> QpAttr<'a, SoftDevice> {
    let ex = QpAttrEx::default();
    QpAttr { kind, send_cq, recv_cq, srq, caps: CAPS, signal_all: true, ex }
}

pub(super) fn with_qp(device: &SoftDevice, id: &mut SoftId) -> (SoftQp, SoftPoller) {
    with_qp_on(device, id, None)
}

fn with_qp_on(device: &SoftDevice, id: &mut SoftId, srq: Option<&SoftSrq>) -> (SoftQp, SoftPoller) {
    let (cq, poller) = device.create_cq(16, Sharing::Shared).unwrap();
    (id.create_qp(device, &attr(QpType::Rc, [&cq; 2], srq)).unwrap(), poller)
}

pub(super) fn next(channel: &SoftChannel) -> Event<SoftDevice> {
    channel.next(SOON).unwrap().expect("an event")
}

/// An id that is ready to connect to an address.
pub(super) fn routed(
    device: &SoftDevice,
    channel: Option<&SoftChannel>,
    space: PortSpace,
    to: SocketAddr,
) -> SoftId {
    let mut id = device.create_id(channel, space).unwrap();
    id.resolve_addr(None, to, SOON).unwrap();
    id.resolve_route(SOON).unwrap();
    id
}

/// A listener with a channel, and the name to connect to by hand.
pub(super) fn listener(device: &SoftDevice, channel: &SoftChannel) -> (SoftId, String) {
    let mut id = device.create_id(Some(channel), PortSpace::Tcp).unwrap();
    id.bind(loopback(0)).unwrap();
    id.listen(0).unwrap();
    let name = place::name(device.name(), id.local_addr().unwrap());
    (id, name)
}

/// A peer that the test drives by hand.
pub(super) struct Liar(pub(super) Socket);

impl Liar {
    pub(super) fn connect(name: &str) -> Liar {
        let socket = Socket::new().unwrap();
        socket.connect(name).unwrap();
        Liar(socket)
    }

    pub(super) fn say(&self, message: &Message) {
        self.0.send(&message.encode(), &[]).unwrap();
    }

    pub(super) fn receive(&self) -> Option<Message> {
        let end = Instant::now() + SOON;
        let mut bytes = [0; MESSAGE_MAX];
        while Instant::now() < end {
            match self.0.receive(&mut bytes).unwrap() {
                Received::Message(length, _) | Received::Short(length, _) => {
                    return Message::decode(&bytes[..length]);
                }
                Received::Closed => return None,
                Received::Nothing => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        panic!("not a word");
    }
}

pub(super) fn request() -> Message {
    let place = Place { instance: [3; 16], domain: 1, queue: 2 };
    let from = loopback(9);
    Message::Request(Box::new(Request {
        place,
        qp: 77,
        from,
        depths: Depths::default(),
        retry_count: 7,
        rnr_retry: 7,
        directory: NOWHERE,
        data: padded(b"hi"),
    }))
}

/// A listener, a peer driven by hand that has sent it a request, and the id of that request.
pub(super) fn asked(device: &SoftDevice, channel: &SoftChannel) -> (SoftId, Liar, SoftId) {
    let (listener, name) = listener(device, channel);
    let liar = Liar::connect(&name);
    liar.say(&request());
    (listener, liar, next(channel).request.unwrap())
}

#[test]
fn rc_1_the_timer_table_has_its_known_values() {
    assert_eq!(rnr_timer_ns(0), Some(655_360_000));
    assert_eq!(rnr_timer_ns(1), Some(10_000));
    assert_eq!(rnr_timer_ns(12), Some(640_000));
    assert_eq!(rnr_timer_ns(31), Some(491_520_000));
    assert_eq!(rnr_timer_ns(32), None);
}

#[test]
fn names_are_checked() {
    assert!(SoftDevice::named("soft1").is_ok());
    for name in ["", "soft/0", "a b", "averyverylongname"] {
        assert!(SoftDevice::named(name).is_err_and(|error| error.code() == Code::Invalid));
    }
}

#[test]
fn devices_of_different_names_do_not_see_each_other() {
    let (one, two) = (SoftDevice::named("one").unwrap(), SoftDevice::named("two").unwrap());
    let channel = one.open_channel().unwrap();
    let (listener, _) = listener(&one, &channel);
    let to = listener.local_addr().unwrap();
    let mut id = routed(&two, None, PortSpace::Tcp, to);
    let _qp = with_qp(&two, &mut id);
    let error = id.connect(&ConnParam::default()).unwrap_err();
    assert_eq!(error.code(), Code::Refused);
}

/// A wait of `Duration::MAX` for a listener does not end, and reaches one that comes later.
#[test]
fn a_connect_can_wait_for_a_listener_without_limit() {
    let device = SoftDevice::open().unwrap();
    device.wait_for_listeners(Duration::MAX);
    let (here, there) = (device.open_channel().unwrap(), device.open_channel().unwrap());
    let mut late = device.create_id(Some(&there), PortSpace::Tcp).unwrap();
    late.bind(loopback(0)).unwrap();
    let mut id = routed(&device, Some(&here), PortSpace::Tcp, late.local_addr().unwrap());
    let _qp = with_qp(&device, &mut id);
    id.connect(&ConnParam::default()).unwrap();
    let kinds = [next(&here).kind, next(&here).kind];
    assert_eq!(kinds, [EventKind::AddrResolved, EventKind::RouteResolved]);
    late.listen(0).unwrap();
    let begin = Instant::now();
    let request = std::iter::repeat_with(|| {
        // The connecting side tries again while it waits for its answer.
        assert!(here.next(Duration::from_millis(5)).unwrap().is_none());
        there.next(Duration::ZERO).unwrap()
    });
    let request = request.take_while(|_| begin.elapsed() < SOON).flatten().next();
    assert_eq!(request.expect("a request").kind, EventKind::ConnectRequest);
}

/// A peer that says nothing, sends nonsense, sends the wrong message or is of an older version
/// loses only its own connection: no request comes of it, and the next peer is served.
#[test]
fn a_listener_survives_peers_that_lie() {
    let device = SoftDevice::open().unwrap();
    let channel = device.open_channel().unwrap();
    let (_listener, name) = listener(&device, &channel);
    let _silent = Liar::connect(&name);
    drop(Liar::connect(&name));
    let nonsense = Liar::connect(&name);
    nonsense.0.send(&[0xff; MESSAGE_MAX], &[]).unwrap();
    let long = Liar::connect(&name);
    long.0.send(&[0; MESSAGE_MAX + 1], &[]).unwrap();
    let wrong = Liar::connect(&name);
    wrong.say(&Message::Ready);
    let old = Liar::connect(&name);
    let mut bytes = request().encode();
    bytes[4] -= 1;
    old.0.send(&bytes, &[]).unwrap();
    let honest = Liar::connect(&name);
    honest.say(&request());
    let event = next(&channel);
    assert_eq!(event.kind, EventKind::ConnectRequest);
    assert_eq!(event.private_data[..3], *b"hi\0");
    assert!(channel.next(Duration::from_millis(20)).unwrap().is_none(), "the only request");
    for liar in [nonsense, long, wrong, old] {
        assert!(liar.receive().is_none(), "it was hung up on");
    }
}

/// A peer that was accepted and then sends nonsense, or claims the memory of a link it never took,
/// loses its connection; its queue pair here is flushed.
#[test]
fn an_accepted_peer_that_lies_is_cut_off() {
    let device = SoftDevice::open().unwrap();
    for nonsense in [Message::Ready.encode(), request().encode(), vec![7; 40]] {
        let channel = device.open_channel().unwrap();
        let (_listener, liar, mut id) = asked(&device, &channel);
        let (_qp, _poller) = with_qp(&device, &mut id);
        id.accept(&ConnParam::default()).unwrap();
        assert!(matches!(liar.receive(), Some(Message::Reply(_))));
        liar.say(&Message::Ready);
        assert_eq!(next(&channel).kind, EventKind::Established);
        liar.0.send(&nonsense, &[]).unwrap();
        let event = next(&channel);
        assert_eq!((event.kind, event.status), (EventKind::Disconnected, -104));
        assert!(liar.receive().is_none(), "it was hung up on");
    }
}

/// Peers in this process and in others can reach a worker's credit words directly.
#[test]
fn memory_for_peers_can_be_mapped() {
    let device = SoftDevice::open().unwrap();
    let memory = device.peer_memory(24).unwrap();
    assert!(memory.fd().is_some() && memory.len() >= 24);
}

/// A passive side that names a missing link, or sends something other than memory, is refused: an
/// error here, a rejection there.
#[test]
fn a_reply_with_a_false_link_is_refused() {
    let device = SoftDevice::open().unwrap();
    let short = doorbell_alloc::MapRequest::new(4096).pages(doorbell_alloc::Ask::Plain);
    let short = short.shared(true).map().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let files = [(true, None), (false, None), (true, short.fd()), (true, Some(raw(&null)))];
    for (maker, file) in files {
        let socket = Socket::new().unwrap();
        let to = place::claim(&socket, device.name(), loopback(0), false).unwrap();
        socket.listen(4).unwrap();
        let channel = device.open_channel().unwrap();
        let mut id = routed(&device, Some(&channel), PortSpace::Tcp, to);
        let (_qp, _poller) = with_qp(&device, &mut id);
        id.connect(&ConnParam::default()).unwrap();
        let kinds = [next(&channel).kind, next(&channel).kind];
        assert_eq!(kinds, [EventKind::AddrResolved, EventKind::RouteResolved]);
        let liar = Liar(socket.accept().unwrap().expect("it has connected"));
        assert!(matches!(liar.receive(), Some(Message::Request(_))));
        let place = Place { instance: [3; 16], domain: 1, queue: 2 };
        let reply = Reply {
            place,
            qp: 77,
            link: 5,
            maker,
            depths: Depths::default(),
            rnr_retry: 7,
            directory: NOWHERE,
            data: padded(&[]),
        };
        let reply = Message::Reply(Box::new(reply)).encode();
        liar.0.send(&reply, file.as_slice()).unwrap();
        let event = next(&channel);
        assert_eq!((event.kind, event.status), (EventKind::ConnectError, -22));
        assert!(matches!(liar.receive(), Some(Message::Reject { status: 28, .. })));
        assert_eq!(device.0.links.alive(), 0);
    }
}

fn raw(file: &std::fs::File) -> i32 {
    use std::os::fd::AsRawFd;
    file.as_raw_fd()
}

/// Runs `f` on a thread that acts as another user, which only root can do; false for other users.
fn as_stranger(f: impl FnOnce() + Send + 'static) -> bool {
    const NOBODY: libc::c_long = 65534;
    if sys::user() != 0 {
        std::println!("skipped: only root can pose as another user");
        return false;
    }
    let stranger = std::thread::spawn(move || {
        #[expect(unsafe_code, reason = "the library's own call would change every thread")]
        // SAFETY: takes numbers only. The system call, unlike the library's, changes this thread.
        let answer = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        assert_eq!((answer, sys::user()), (0, NOBODY as u32));
        f();
    });
    stranger.join().expect("the stranger");
    true
}

#[test]
fn another_users_process_is_not_let_in() {
    let device = SoftDevice::open().unwrap();
    let channel = device.open_channel().unwrap();
    let (_listener, name) = listener(&device, &channel);
    let (tell, told) = std::sync::mpsc::channel();
    let connected = as_stranger(move || {
        let liar = Liar::connect(&name);
        liar.say(&request());
        tell.send(liar).unwrap();
    });
    if connected {
        assert!(channel.next(Duration::from_millis(20)).unwrap().is_none(), "no request");
        assert!(told.recv().unwrap().receive().is_none(), "it was hung up on");
    }
}

#[test]
fn another_users_listener_is_not_talked_to() {
    let device = SoftDevice::open().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let (name, to) = {
        let socket = Socket::new().unwrap();
        let to = place::claim(&socket, device.name(), loopback(0), false).unwrap();
        (place::name(device.name(), to), to)
    };
    let listens = as_stranger(move || {
        let socket = Socket::new().unwrap();
        socket.bind(&name).unwrap();
        socket.listen(4).unwrap();
        tell.send(socket).unwrap();
    });
    if listens {
        let socket = told.recv().unwrap();
        let mut id = routed(&device, None, PortSpace::Tcp, to);
        let _qp = with_qp(&device, &mut id);
        let error = id.connect(&ConnParam::default()).unwrap_err();
        assert_eq!(error.code(), Code::Denied, "{error}");
        assert!(Liar(socket.accept().unwrap().unwrap()).receive().is_none(), "not a word to it");
    }
}

/// One connection, by hand on both sides, in one thread.
pub(super) struct Both {
    one: (SoftId, SoftQp, SoftPoller),
    two: (SoftId, SoftQp, SoftPoller),
}

pub(super) fn connect(
    one: &SoftDevice,
    two: &SoftDevice,
    srqs: Option<(&SoftSrq, &SoftSrq)>,
) -> Both {
    let (here, there) = (one.open_channel().unwrap(), two.open_channel().unwrap());
    let (listener, _) = listener(two, &there);
    let mut id = routed(one, Some(&here), PortSpace::Tcp, listener.local_addr().unwrap());
    let (qp, poller) = with_qp_on(one, &mut id, srqs.map(|srqs| srqs.0));
    id.connect(&ConnParam::default()).unwrap();
    let mut request = next(&there).request.unwrap();
    let (other_qp, other_poller) = with_qp_on(two, &mut request, srqs.map(|srqs| srqs.1));
    request.accept(&ConnParam::default()).unwrap();
    for kind in [EventKind::AddrResolved, EventKind::RouteResolved, EventKind::Established] {
        assert_eq!(next(&here).kind, kind);
    }
    assert_eq!(next(&there).kind, EventKind::Established);
    Both { one: (id, qp, poller), two: (request, other_qp, other_poller) }
}

#[test]
fn connections_between_the_same_places_share_a_link_and_the_last_takes_it_along() {
    let (one, two) = (SoftDevice::open().unwrap(), SoftDevice::open().unwrap());
    let srqs = (one.create_srq(8).unwrap(), two.create_srq(8).unwrap());
    let srqs = Some((&srqs.0, &srqs.1));
    let first = connect(&one, &two, srqs);
    let second = connect(&one, &two, srqs);
    // In the other direction the roles change; the link is the same.
    let back = connect(&two, &one, srqs.map(|(a, b)| (b, a)));
    assert_eq!((one.0.links.alive(), two.0.links.alive()), (1, 1));
    drop(first);
    drop(back);
    assert_eq!((one.0.links.alive(), two.0.links.alive()), (1, 1), "still in use");
    drop(second);
    let next = connect(&one, &two, srqs);
    assert_eq!((one.0.links.alive(), two.0.links.alive()), (1, 1), "a new one, the old is gone");
    drop(next);
}

/// The connection manager keeps no address for a queue pair, so in SQD it may have any.
#[test]
fn in_sqd_the_queue_pair_of_an_id_takes_an_address() {
    let (one, two) = (SoftDevice::open().unwrap(), SoftDevice::open().unwrap());
    let mut both = connect(&one, &two, None);
    let qp = &mut both.one.1;
    one.modify_qp(qp, QpState::Rts, &QpFields::to(QpState::Sqd)).unwrap();
    let av = Some(AddressVector::to(two.query_gid(1, 0).unwrap()));
    one.modify_qp(qp, QpState::Sqd, &QpFields { av, ..QpFields::to(QpState::Sqd) }).unwrap();
}

#[test]
fn queue_pairs_of_one_device_and_one_queue_meet_themselves() {
    let device = SoftDevice::open().unwrap();
    let srq = device.create_srq(8).unwrap();
    let first = connect(&device, &device, Some((&srq, &srq)));
    let second = connect(&device, &device, Some((&srq, &srq)));
    assert_eq!(device.0.links.alive(), 2, "its two ends");
    drop((first, second));
}

/// Retries for want of a receive are the other side's, all others the connecting side's.
#[test]
fn qp_20_each_side_hears_the_retries_of_the_other() {
    let device = SoftDevice::open().unwrap();
    let [here, there] = [(); 2].map(|()| device.open_channel().unwrap());
    let (listener, _) = listener(&device, &there);
    let mut id = routed(&device, Some(&here), PortSpace::Tcp, listener.local_addr().unwrap());
    let mut unbound = device.create_id(None, PortSpace::Tcp).unwrap();
    unbound.bind(loopback(0)).unwrap();
    let (qp, _poller) = with_qp(&device, &mut unbound);
    let param = |retry_count, rnr_retry| ConnParam { retry_count, rnr_retry, ..Default::default() };
    id.connect_with(&qp, &param(3, 2)).unwrap();
    let told = |id: &mut SoftId| {
        let fields = id.init_qp_attr(QpState::Rts).unwrap();
        (id.peer_qp().unwrap(), fields.retry_cnt.zip(fields.rnr_retry).unwrap())
    };
    let mut request = next(&there).request.unwrap();
    let (other, _other_poller) = with_qp(&device, &mut request);
    let theirs = PeerQp { num: qp.num(), retry_count: 3, rnr_retry: 2 };
    assert_eq!(told(&mut request), (theirs, (3, 2)));
    request.accept(&param(5, 6)).unwrap();
    for kind in [EventKind::AddrResolved, EventKind::RouteResolved, EventKind::ConnectResponse] {
        assert_eq!(next(&here).kind, kind);
    }
    let theirs = PeerQp { num: other.num(), retry_count: 0, rnr_retry: 6 };
    assert_eq!(told(&mut id), (theirs, (3, 6)));
}

#[test]
fn an_accepted_peer_that_never_took_its_end_gives_it_back() {
    let device = SoftDevice::open().unwrap();
    let channel = device.open_channel().unwrap();
    let (_listener, liar, mut id) = asked(&device, &channel);
    let (qp, mut poller) = with_qp(&device, &mut id);
    id.accept(&ConnParam::default()).unwrap();
    assert_eq!(device.0.links.alive(), 1);
    assert!(matches!(liar.receive(), Some(Message::Reply(_))));
    let data = Box::new(padded(b"no, thank you"));
    liar.say(&Message::Reject { status: 28, data });
    let event = next(&channel);
    assert_eq!((event.kind, event.status), (EventKind::Rejected, 28));
    assert!(event.private_data.starts_with(b"no, thank you\0"));
    assert_eq!(poller.poll(&mut [Wc::default(); 4]), 0, "nothing was posted");
    drop((id, qp));
    assert_eq!(device.0.links.alive(), 0, "the link went with the queue pair");
}

/// A worker drops the queue pair before the control plane hears the answer.
#[test]
fn a_queue_pair_that_is_gone_when_the_answer_comes_leaks_no_link() {
    let (one, two) = (SoftDevice::open().unwrap(), SoftDevice::open().unwrap());
    let (here, there) = (one.open_channel().unwrap(), two.open_channel().unwrap());
    let (listener, _) = listener(&two, &there);
    let mut id = routed(&one, Some(&here), PortSpace::Tcp, listener.local_addr().unwrap());
    let (qp, _poller) = with_qp(&one, &mut id);
    id.connect(&ConnParam::default()).unwrap();
    drop(qp);
    let mut request = next(&there).request.unwrap();
    let (other, _other_poller) = with_qp(&two, &mut request);
    request.accept(&ConnParam::default()).unwrap();
    for kind in [EventKind::AddrResolved, EventKind::RouteResolved, EventKind::Established] {
        assert_eq!(next(&here).kind, kind);
    }
    drop(id);
    assert_eq!(next(&there).kind, EventKind::Established);
    assert_eq!(next(&there).kind, EventKind::Disconnected);
    drop(other);
    assert_eq!(two.0.links.alive(), 0);
    // On the other side it is removed when the next connection comes.
    let _next = connect(&one, &two, None);
    assert_eq!(one.0.links.alive(), 1);
}

#[test]
fn a_waiting_channel_notices_ids_that_join_it() {
    let device = SoftDevice::open().unwrap();
    let channel = std::sync::Arc::new(device.open_channel().unwrap());
    let (tell, told) = std::sync::mpsc::channel();
    let waits = channel.clone();
    // The wait is longer than the test allows: only a wake-up ends it in time.
    std::thread::spawn(move || {
        let event = waits.next(Duration::from_secs(3600)).unwrap().expect("an event");
        tell.send(event.kind).unwrap();
    });
    std::thread::sleep(Duration::from_millis(20));
    let mut id = device.create_id(Some(&channel), PortSpace::Tcp).unwrap();
    id.resolve_addr(None, loopback(7), SOON).unwrap();
    assert_eq!(told.recv_timeout(SOON).expect("woken"), EventKind::AddrResolved);
}

/// Callers that bypass the safe layer meet the same rules.
#[test]
fn an_id_makes_one_queue_pair_and_only_when_bound() {
    let device = SoftDevice::open().unwrap();
    let (cq, _poller) = device.create_cq(16, Sharing::Shared).unwrap();
    let attr = attr(QpType::Rc, [&cq; 2], None);
    let mut id = device.create_id(None, PortSpace::Tcp).unwrap();
    let code = |made: Result<SoftQp, CmError>| made.map(|_| ()).map_err(|error| error.code());
    assert_eq!(code(id.create_qp(&device, &attr)), Err(Code::Invalid), "QP-2");
    id.bind(loopback(0)).unwrap();
    let other = SoftDevice::open().unwrap();
    assert_eq!(code(id.create_qp(&other, &attr)), Err(Code::Invalid), "QP-2");
    let _qp = id.create_qp(&device.alloc_pd().unwrap(), &attr).unwrap();
    assert_eq!(code(id.create_qp(&device, &attr)), Err(Code::Invalid), "QP-11");
    let error = id.resolve_route(SOON).unwrap_err();
    assert_eq!(error.code(), Code::Invalid, "CM-3");
    id.resolve_addr(None, loopback(7), SOON).unwrap();
    assert_eq!(id.resolve_route(Duration::ZERO).unwrap_err().code(), Code::Invalid, "CM-3");
    assert_eq!(id.set_rnr_timer(12).unwrap_err().code(), Code::Invalid, "not connected");
}

/// Programs wait for it before they use a queue pair anew. A side that has not disconnected has not
/// begun to wait.
#[test]
fn timewait_ends_after_both_sides_have_disconnected() {
    let device = SoftDevice::open().unwrap();
    let channel = device.open_channel().unwrap();
    for is_first in [true, false] {
        let (_listener, liar, mut id) = asked(&device, &channel);
        let _qp = with_qp(&device, &mut id);
        // A millisecond.
        id.set_option(IdOption::AckTimeout(8)).unwrap();
        id.accept(&ConnParam::default()).unwrap();
        liar.say(&Message::Ready);
        assert_eq!(next(&channel).kind, EventKind::Established);
        if !is_first {
            liar.say(&Message::Bye);
            assert_eq!(next(&channel).kind, EventKind::Disconnected);
            assert!(channel.next(Duration::from_millis(20)).unwrap().is_none());
        }
        id.disconnect().unwrap();
        if is_first {
            assert_eq!(next(&channel).kind, EventKind::Disconnected);
        }
        let event = next(&channel);
        assert_eq!((event.kind, event.status), (EventKind::TimewaitExit, 0));
        assert_eq!(event.key, id.key());
        assert!(channel.next(Duration::from_millis(20)).unwrap().is_none(), "only once");
    }
}

#[test]
fn an_abandoned_queue_pair_is_flushed_when_its_id_goes() {
    let device = SoftDevice::open().unwrap();
    let Both { one, two } = connect(&device, &device, None);
    let (id, _qp, mut poller) = one;
    let region = device.register(Mapping::plain(4096).unwrap(), Access::LOCAL_WRITE).unwrap();
    let (mut other_id, mut other_qp, mut other_poller) = two;
    post_receive(&mut other_qp, &region);
    drop(id);
    let mut out = [Wc::default(); 4];
    assert_eq!(poller.poll(&mut out), 0);
    assert_eq!(other_poller.poll(&mut out), 0, "the peer's queue pair is untouched (QP-22)");
    // Its channel is gone, but the id still answers queries.
    let _ = other_id.disconnect();
    assert_eq!(other_poller.poll(&mut out), 1);
    assert_eq!(out[0].status, Status::Flushed);
    drop(other_qp);
}

pub(super) fn post_receive(qp: &mut SoftQp, region: &SoftRegion) {
    use doorbell_seam::provider::Region;
    use doorbell_seam::wr::{RecvWr, Sge};
    let sge = Sge { addr: region.as_ptr() as u64, length: 64, lkey: region.lkey() };
    #[expect(unsafe_code, reason = "the region outlives the queue pair in its test")]
    // SAFETY: as the reason says, and nobody else touches the bytes.
    unsafe { qp.post_recv(&[RecvWr { wr_id: 1, sge }]) }.unwrap();
}

#[test]
fn a_region_is_found_by_its_name_and_is_the_same_memory() {
    let memory = MapRequest::new(8192).pages(Ask::Plain).shared(true).map().unwrap();
    let name = files::name_of(memory.fd().unwrap()).unwrap();
    let view = files::attach(std::process::id().cast_signed(), name, 8192).unwrap();
    #[expect(unsafe_code, reason = "other processes may map the memory, so it has no references")]
    // SAFETY: both are mappings of at least one byte that only this test uses.
    unsafe {
        memory.as_ptr().write_volatile(77);
        assert_eq!(view.as_ptr().read_volatile(), 77);
    }
    assert_ne!(memory.as_ptr(), view.as_ptr());
}

/// A queue pair that is the last user of work queues takes them and their completion queue along.
#[test]
fn a_queue_pair_may_outlive_its_work_queues() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let device = SoftDevice::open().unwrap();
        let (sends, _poller) = device.create_cq(16, Sharing::Shared).unwrap();
        let (frames, poller) = device.create_cq(16, Sharing::Shared).unwrap();
        let queue = device.create_wq(&frames, 4, WqFlags::empty()).unwrap();
        let table = device.create_rwq_ind_table(&[&queue]).unwrap();
        let (function, key) = (HashFunction::Toeplitz, [7; HASH_KEY_BYTES]);
        let by = RxHash { function, key, fields: HashFields::SRC_IPV4 };
        let qp = Fabric::create_qp(
            &device,
            &QpAttr {
                kind: QpType::RawPacket,
                send_cq: &sends,
                recv_cq: &sends,
                srq: None,
                caps: QpCaps { recv_wr: 0, recv_sge: 0, ..CAPS },
                signal_all: true,
                ex: QpAttrEx {
                    rwq_ind_tbl: Some(&table),
                    rx_hash_conf: Some(by),
                    ..QpAttrEx::default()
                },
            },
        );
        let qp = qp.unwrap();
        drop((table, queue, frames, poller));
        drop(qp);
        tell.send(()).unwrap();
    });
    told.recv_timeout(SOON).expect("it is gone");
}

/// A device may wait longer for a listener than a side waits for an answer.
#[test]
fn a_wait_for_a_listener_may_be_long() {
    let device = SoftDevice::open().unwrap();
    device.wait_for_listeners(Duration::from_secs(3600));
    let [here, there] = [(); 2].map(|()| device.open_channel().unwrap());
    let mut late = device.create_id(Some(&there), PortSpace::Tcp).unwrap();
    late.bind(loopback(0)).unwrap();
    let mut id = routed(&device, Some(&here), PortSpace::Tcp, late.local_addr().unwrap());
    let _qp = with_qp(&device, &mut id);
    id.connect(&ConnParam::default()).unwrap();
    let (end, _) = here.0.find(id.key().0).unwrap();
    let later = Instant::now() + Duration::from_secs(120);
    assert!(end.expire(later).is_none(), "it goes on");
    late.listen(0).unwrap();
    assert!(end.expire(later).is_none());
    assert_eq!(next(&there).kind, EventKind::ConnectRequest);
}

/// Datagrams: a queue pair of the id that is gone counts for nothing.
#[test]
fn a_queue_pair_that_is_gone_is_not_the_ids_any_more() {
    let device = SoftDevice::open().unwrap();
    let [here, there] = [(); 2].map(|()| device.open_channel().unwrap());
    let (cq, _poller) = device.create_cq(16, Sharing::Shared).unwrap();
    let attr = attr(QpType::Ud, [&cq; 2], None);
    let mut listener = device.create_id(Some(&there), PortSpace::Udp).unwrap();
    listener.bind(loopback(0)).unwrap();
    listener.listen(0).unwrap();
    let mut id = routed(&device, Some(&here), PortSpace::Udp, listener.local_addr().unwrap());
    id.connect(&ConnParam::default()).unwrap();
    let mut request = next(&there).request.unwrap();
    drop(request.create_qp(&device, &attr).unwrap());
    let other = Fabric::create_qp(&device, &attr).unwrap();
    request.accept_with(&other, &ConnParam::default()).unwrap();
    let events = [next(&here), next(&here), next(&here)];
    assert_eq!(events[2].ud.expect("where to send").qp_num, other.num);
    let mut member = device.create_id(Some(&there), PortSpace::Udp).unwrap();
    member.bind(loopback(0)).unwrap();
    drop(member.create_qp(&device, &attr).unwrap());
    member.join_multicast("239.8.7.6".parse().unwrap(), Join::FullMember).unwrap();
    assert_eq!(next(&there).kind, EventKind::MulticastJoin);
}

/// ID-9: a synchronous listener that goes while a thread waits for its requests frees its address.
/// Until then it does not move to another channel: the thread would wait for ever.
#[test]
fn id_9_a_listener_goes_although_a_thread_waits_for_its_requests() {
    let device = SoftDevice::open().unwrap();
    let mut id = device.create_id(None, PortSpace::Tcp).unwrap();
    id.bind(loopback(0)).unwrap();
    id.listen(0).unwrap();
    let addr = id.local_addr().unwrap();
    let channel = device.open_channel().unwrap();
    drop(id.requests().unwrap());
    id.migrate(Some(&channel)).unwrap();
    id.migrate(None).unwrap();
    let requests = id.requests().unwrap();
    assert_eq!(id.migrate(Some(&channel)).unwrap_err().code(), Code::Busy);
    drop(id);
    let mut next = device.create_id(None, PortSpace::Tcp).unwrap();
    next.bind(addr).unwrap();
    next.listen(0).unwrap();
    drop(requests);
    next.migrate(Some(&channel)).unwrap();
}

/// A child of fork lives on, and keeps no address of its parent's.
#[test]
#[expect(unsafe_code, reason = "a child of fork")]
fn an_address_is_free_again_although_a_child_lives() {
    let device = SoftDevice::open().unwrap();
    for listens in [true, false] {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut id = device.create_id(None, PortSpace::Tcp).unwrap();
        id.bind(loopback(0)).unwrap();
        if listens {
            id.listen(0).unwrap();
        }
        let addr = id.local_addr().unwrap();
        // SAFETY: the child makes system calls, no more.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = 0_u8;
            // SAFETY: says that the child has begun, waits until the parent closes its end, and
            // ends the child without the parent's handlers.
            unsafe {
                libc::write(theirs.as_raw_fd(), (&raw const byte).cast(), 1);
                libc::close(ours.as_raw_fd());
                libc::read(theirs.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
        }
        (&ours).read_exact(&mut [0]).unwrap();
        drop(id);
        let mut next = device.create_id(None, PortSpace::Tcp).unwrap();
        let bound = next.bind(addr);
        drop((ours, theirs));
        // SAFETY: the status is not asked for.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        bound.unwrap();
    }
}

/// A child that gives up its parent's listener ends nothing. Its maker ends it for both. The child
/// is made without the C library, whose hooks would take the listener from it.
#[test]
#[expect(unsafe_code, reason = "a child of fork")]
fn only_its_maker_ends_a_listener() {
    let listener = Socket::new().unwrap();
    let name = format!("doorbell-test/{}/maker", std::process::id());
    listener.bind(&name).unwrap();
    listener.listen(4).unwrap();
    // SAFETY: numbers only: a fork. The child makes system calls, no more.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
    if child == 0 {
        listener.stop_listening();
        // SAFETY: ends the child without the parent's handlers.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: the status is not asked for.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    Socket::new().unwrap().connect(&name).unwrap();
    let _child = listener.shared().unwrap();
    listener.stop_listening();
    let refused = Socket::new().unwrap().connect(&name).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// A program closes the descriptor of a named socket and opens its own under the number: that stays
/// open in a child.
#[test]
#[expect(unsafe_code, reason = "a child of fork")]
fn a_child_keeps_a_file_that_took_the_number_of_a_named_socket() {
    let named = Socket::new().unwrap();
    named.bind(&format!("doorbell-test/{}/taken", std::process::id())).unwrap();
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    // SAFETY: numbers only. Nobody uses the named socket meanwhile, which closes its number later.
    assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), named.fd()) }, named.fd());
    drop(theirs);
    // SAFETY: the child makes system calls, no more.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: reads one byte, and ends the child without the parent's handlers.
        unsafe {
            libc::write(named.fd(), [7_u8].as_ptr().cast(), 1);
            libc::_exit(0);
        }
    }
    drop(named);
    let mut said = Vec::new();
    ours.read_to_end(&mut said).unwrap();
    // SAFETY: the status is not asked for.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    assert_eq!(said, [7]);
}
