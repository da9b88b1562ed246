//! UD between devices of one process (UD-1). Inboxes are found by the names of their files, as
//! those of other processes are.

use std::any::Any;
use std::sync::Mutex;
use std::vec;

use super::*;
use crate::provider::{AddressHandle, AddressVector, Datagrams, GRH_BYTES, Gid, Multicast, Polled};
use crate::wc::{Status, WcFlags, WcOpcode};
use crate::wr::{Destination, MULTICAST_QPN};

const SIGNALED: SendFlags = SendFlags::SIGNALED;
const QKEY: u32 = 0x0123_4567;
const WIDE: QpCaps = QpCaps { send_wr: 128, send_sge: 4, ..CAPS };
const GROUP: Gid = Gid([0xff, 14, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);

/// The words that joins and leaves change, by device.
static CHANGES: Mutex<Vec<(String, Arc<Changes>)>> = Mutex::new(Vec::new());

fn changes(device: &str) -> Result<Arc<Changes>, SetupError> {
    let mut all = CHANGES.lock().unwrap();
    if let Some((_, known)) = all.iter().find(|(name, _)| name == device) {
        return Ok(known.clone());
    }
    let word = Arc::new(Changes::new(shared(Changes::BYTES)).unwrap());
    all.push((device.into(), word.clone()));
    Ok(word)
}

/// The members of each group.
static GROUPS: Mutex<Vec<(u64, String, Gid, Member)>> = Mutex::new(Vec::new());

struct Stays(u64, Arc<Changes>);

impl Drop for Stays {
    fn drop(&mut self) {
        GROUPS.lock().unwrap().retain(|(number, ..)| *number != self.0);
        self.1.note();
    }
}

fn join_group(device: &str, group: Gid, member: Member) -> Result<Membership, SetupError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    GROUPS.lock().unwrap().push((number, device.into(), group, member));
    let word = changes(device)?;
    word.note();
    Ok(Box::new(Stays(number, word)) as Box<dyn Any + Send + Sync>)
}

fn members(device: &str, group: Gid) -> Vec<Member> {
    let all = GROUPS.lock().unwrap();
    let of = all.iter().filter(|(_, name, gid, _)| name == device && *gid == group);
    of.map(|(.., member)| *member).collect()
}

pub(super) fn remote_map(process: i32, directory: FileName) -> Option<Arc<RemoteMap>> {
    let view = again(directory.fd, DIRECTORY_BYTES)?;
    let table = NonNull::new(view.as_ptr())?;
    // SAFETY: the view is kept, and nobody writes through it.
    let openers = Openers { attach, look: |_, _, _| None, notifier: |_, _| None };
    Some(Arc::new(unsafe { RemoteMap::new(table, Arc::new(view), process, openers) }))
}

pub(super) fn attach(_: i32, file: FileName, len: u64) -> Option<Mapping> {
    again(file.fd, len as usize)
}

/// A side on a device of that name.
pub(super) fn side(name: &str) -> End {
    let neighbours = Neighbours {
        process: 77,
        memory: |len| Ok(shared(len)),
        remote_map,
        attach,
        name_notifier: |_| None,
        notifier: |_, _| None,
        join: join_group,
        members,
        changes,
    };
    let host = Host { name_file, neighbours: Some(neighbours), ..Host::alone(clock) };
    let nic = Soft::new(name, host, Some(shared(DIRECTORY_BYTES)));
    let (cq, mut poller) = nic.create_cq(256, Sharing::Exclusive).unwrap();
    let qp = ud(&nic, &cq);
    let region = nic.register(mapping(4 << 20), Access::all()).unwrap();
    poller.poll(&mut []);
    End { nic, poller, cq, qp, region, srq: None }
}

fn ud(nic: &Soft, cq: &SoftCq) -> SoftQp {
    let qp = make_qp_of(QpType::Ud, nic, cq, None, WIDE);
    qp.control().set_qkey(QKEY);
    qp.control().open();
    qp
}

fn pair_of_ud() -> (End, End) {
    (side("soft0"), side("soft0"))
}

impl End {
    fn way_to(&self, other: &End) -> SoftAh {
        self.nic.create_ah(&AddressVector::to(other.nic.gid())).unwrap()
    }
}

fn to(ah: &SoftAh, other: &End) -> Destination {
    Destination { ah: ah.name(), qpn: other.qp.num(), qkey: QKEY }
}

fn statuses(list: &[Wc]) -> Vec<(u64, Status)> {
    list.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

#[test]
fn ud_datagrams_arrive_behind_forty_bytes() {
    let (mut one, mut two) = pair_of_ud();
    let ah = one.way_to(&two);
    for (n, length) in [0, 1, 8, 100, 4095, 4096].into_iter().enumerate() {
        let bytes = pattern(n, length);
        one.fill(0, &bytes);
        two.recv(9, 0, 5000);
        let op = SendOp::SendToWithImm(to(&ah, &two), 0x0102_0304);
        one.post(1, op, one.sge(0, length), SIGNALED).unwrap();
        let (sent, came) = settle(&mut one, &mut two);
        assert_eq!(statuses(&sent), [(1, Status::Success)]);
        let [wc] = came[..] else { panic!("{came:?}") };
        assert_eq!((wc.wr_id, wc.byte_len as usize), (9, GRH_BYTES + length));
        assert_eq!((wc.opcode, wc.flags), (WcOpcode::Recv, WcFlags::GRH | WcFlags::WITH_IMM));
        assert_eq!((wc.imm, wc.src_qp, wc.qp_num), (0x0102_0304, one.qp.num(), two.qp.num()));
        assert_eq!(two.bytes(GRH_BYTES, length), bytes);
        // An IPv4 header with a valid checksum and length.
        let ip = two.bytes(20, 20);
        let sum: u32 = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        assert_eq!((ip[0], ip[9], (sum & 0xffff) + (sum >> 16)), (0x45, 17, 0xffff));
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), 52 + length);
    }
}

/// `ibv_create_ah_from_wc`: a datagram tells where to reply.
#[test]
fn ud_a_datagram_names_its_sender() {
    let (mut one, mut two) = pair_of_ud();
    let ah = one.way_to(&two);
    two.recv(9, 0, 100);
    one.post(1, SendOp::SendTo(to(&ah, &two)), one.sge(0, 8), SIGNALED).unwrap();
    let (_, came) = settle(&mut one, &mut two);
    let header: [u8; GRH_BYTES] = two.bytes(0, GRH_BYTES).try_into().unwrap();
    let back = two.nic.sender_of(&came[0], &header).unwrap();
    let back = two.nic.create_ah(&back).unwrap();
    one.recv(8, 0, 100);
    let answer = Destination { ah: back.name(), qpn: came[0].src_qp, qkey: QKEY };
    two.post(2, SendOp::SendTo(answer), two.sge(0, 8), SIGNALED).unwrap();
    let (came, _) = settle(&mut one, &mut two);
    assert_eq!(statuses(&came), [(8, Status::Success)]);
    assert!(two.nic.sender_of(&Wc::default(), &header).is_err(), "without the flag");
}

/// No receive, a receive that is too short, another key, an unknown number: the datagram is
/// dropped, and the sender gets success. The receive that was too short takes the next datagram
/// that fits.
#[test]
fn ud_undeliverable_datagrams_are_dropped_silently() {
    let (mut one, mut two) = pair_of_ud();
    let ah = one.way_to(&two);
    let right = to(&ah, &two);
    let wrong = [
        right,
        Destination { qkey: QKEY ^ 1, ..right },
        Destination { qpn: right.qpn + 1, ..right },
        Destination { qpn: MULTICAST_QPN, ..right },
    ];
    for destination in wrong {
        one.post(1, SendOp::SendTo(destination), one.sge(0, 8), SIGNALED).unwrap();
        let (sent, came) = settle(&mut one, &mut two);
        assert_eq!((statuses(&sent), came.len()), ([(1, Status::Success)].into(), 0));
        if destination == right {
            two.recv(9, 0, GRH_BYTES + 8);
        }
    }
    for length in [9, 8] {
        one.post(1, SendOp::SendTo(right), one.sge(0, length), SIGNALED).unwrap();
    }
    let (_, came) = settle(&mut one, &mut two);
    assert_eq!(statuses(&came), [(9, Status::Success)]);
    assert_eq!(came[0].byte_len as usize, GRH_BYTES + 8);
}

/// With the top bit set in the key, the sender's own key is sent.
#[test]
fn ud_a_key_with_the_top_bit_is_the_senders_own() {
    let (mut one, mut two) = pair_of_ud();
    let ah = one.way_to(&two);
    let to = Destination { qkey: 1 << 31 | 5, ..to(&ah, &two) };
    two.recv(9, 0, 100);
    one.post(1, SendOp::SendTo(to), one.sge(0, 8), SIGNALED).unwrap();
    assert_eq!(settle(&mut one, &mut two).1.len(), 1);
}

/// SM-1, SM-2: sends posted in SQD wait, and are flushed once if ERR comes first; none is sent when
/// the pause ends.
#[test]
fn ud_sends_waiting_in_sqd_are_flushed_in_err() {
    let (mut one, mut two) = pair_of_ud();
    let ah = one.way_to(&two);
    (0..3).for_each(|n| two.recv(n, 0, 100));
    one.qp.pause(false);
    let send = |one: &mut End, n| {
        let op = SendOp::SendTo(to(&ah, &two));
        one.post(n, op, one.sge(0, 8), SIGNALED).unwrap();
    };
    send(&mut one, 1);
    assert!(one.poll().is_empty());
    one.qp.fail();
    send(&mut one, 2);
    one.qp.resume();
    let mut ends = statuses(&one.poll());
    ends.extend(statuses(&one.poll()));
    assert_eq!(ends, [(1, Status::Flushed), (2, Status::Flushed)]);
    send(&mut one, 3);
    assert_eq!(statuses(&one.poll()), [(3, Status::Flushed)]);
    assert!(two.poll().is_empty() && one.poll().is_empty());
}

/// A datagram too long for one packet, or a wrong local key: SQE, and the way back. Incoming
/// datagrams are not affected.
#[test]
fn ud_a_send_that_fails_here_leaves_sqe() {
    let (mut one, mut two) = pair_of_ud();
    let (ah, back) = (one.way_to(&two), two.way_to(&one));
    let op = SendOp::SendTo(to(&ah, &two));
    let bad = Sge { lkey: 1, ..one.sge(0, 8) };
    for (sge, status) in [(one.sge(0, 4097), Status::LocalLength), (bad, Status::LocalProtection)] {
        two.recv(9, 0, 100);
        one.post(1, op, one.sge(0, 8), SendFlags::empty()).unwrap();
        one.post(2, op, sge, SendFlags::empty()).unwrap();
        one.post(3, op, one.sge(0, 8), SendFlags::empty()).unwrap();
        one.recv(8, 0, 100);
        two.post(4, SendOp::SendTo(to(&back, &one)), two.sge(0, 8), SIGNALED).unwrap();
        let (sent, came) = settle(&mut one, &mut two);
        let flushed = (3, Status::Flushed);
        assert_eq!(statuses(&sent), [(2, status), flushed, (8, Status::Success)]);
        assert_eq!(statuses(&came), [(4, Status::Success), (9, Status::Success)]);
        one.qp.recover();
        one.poll();
    }
    two.recv(9, 0, 100);
    one.post(1, op, one.sge(0, 8), SIGNALED).unwrap();
    let (sent, came) = settle(&mut one, &mut two);
    assert_eq!((sent.len(), came.len()), (1, 1));
}

#[test]
fn ud_only_datagrams_are_sent_and_only_there() {
    let (mut one, two) = pair_of_ud();
    let ah = one.way_to(&two);
    let refused = |result: Result<(), PostError>| result.unwrap_err().cause == PostCause::Malformed;
    let at = two.region.remote(0);
    for op in [SendOp::Send, SendOp::SendWithImm(1), SendOp::Write(at), SendOp::Read(at)] {
        assert!(refused(one.post(1, op, one.sge(0, 8), SIGNALED)));
    }
    let (mut near, _far) = pair(CAPS, false);
    near.poll();
    assert!(refused(near.post(1, SendOp::SendTo(to(&ah, &two)), near.sge(0, 8), SIGNALED)));
}

/// SQ-1, SQ-2: slots are counted as on any queue pair, although every send leaves at once.
#[test]
fn sq_2_slots_come_back_with_polled_completions_on_ud_too() {
    let (mut one, two) = pair_of_ud();
    let ah = one.way_to(&two);
    let op = SendOp::SendTo(to(&ah, &two));
    for n in 0..WIDE.send_wr - 1 {
        one.post(n.into(), op, one.sge(0, 8), SendFlags::empty()).unwrap();
    }
    assert!(one.poll().is_empty());
    one.post(500, op, one.sge(0, 8), SIGNALED).unwrap();
    assert_eq!(one.post(501, op, one.sge(0, 8), SIGNALED).unwrap_err().cause, PostCause::Full);
    assert_eq!(statuses(&one.poll()), [(500, Status::Success)]);
    one.post(501, op, one.sge(0, 8), SIGNALED).unwrap();
}

#[test]
fn ud_a_wrong_receive_fails_its_queue_pair() {
    let (mut one, mut two) = pair_of_ud();
    let ah = one.way_to(&two);
    let wrong = RecvWr { wr_id: 9, sge: Sge { lkey: 1, ..two.sge(0, 100) } };
    unsafe { two.qp.post_recv(&[wrong]).unwrap() };
    two.recv(10, 0, 100);
    one.post(1, SendOp::SendTo(to(&ah, &two)), one.sge(0, 8), SIGNALED).unwrap();
    let (_, came) = settle(&mut one, &mut two);
    assert_eq!(statuses(&came), [(9, Status::LocalProtection), (10, Status::Flushed)]);
}

/// The inbox of a removed queue pair goes with it; an inbox with another number is found again.
#[test]
fn ud_a_handle_outlives_queue_pairs() {
    let (mut one, mut two) = pair_of_ud();
    let ah = one.way_to(&two);
    let old = to(&ah, &two);
    one.post(1, SendOp::SendTo(old), one.sge(0, 8), SIGNALED).unwrap();
    two.qp = ud(&two.nic, &two.cq);
    two.poll();
    two.recv(9, 0, 100);
    one.post(1, SendOp::SendTo(old), one.sge(0, 8), SIGNALED).unwrap();
    assert!(settle(&mut one, &mut two).1.is_empty());
    one.post(2, SendOp::SendTo(to(&ah, &two)), one.sge(0, 8), SIGNALED).unwrap();
    assert_eq!(settle(&mut one, &mut two).1.len(), 1);
}

/// Datagrams before RTR are dropped.
#[test]
fn ud_in_init_everything_is_dropped() {
    let (mut one, mut two) = pair_of_ud();
    two.qp = make_qp_of(QpType::Ud, &two.nic, &two.cq, None, WIDE);
    two.qp.control().set_qkey(QKEY);
    two.poll();
    two.recv(9, 0, 100);
    let ah = one.way_to(&two);
    let op = SendOp::SendTo(to(&ah, &two));
    one.post(1, op, one.sge(0, 8), SIGNALED).unwrap();
    assert!(settle(&mut one, &mut two).1.is_empty());
    assert_eq!(two.send(1, 0, 8, SIGNALED).unwrap_err().cause, PostCause::State);
    two.qp.control().open();
    assert!(settle(&mut one, &mut two).1.is_empty());
    one.post(2, op, one.sge(0, 8), SIGNALED).unwrap();
    assert_eq!(statuses(&settle(&mut one, &mut two).1), [(9, Status::Success)]);
}

/// The domain moves it to RTR when its owner polls; datagrams that come in between belong to the
/// queue pair.
#[test]
fn ud_datagrams_after_opening_are_kept() {
    let (mut one, mut two) = pair_of_ud();
    two.qp = make_qp_of(QpType::Ud, &two.nic, &two.cq, None, WIDE);
    two.recv(9, 0, 100);
    let ah = one.way_to(&two);
    let op = SendOp::SendTo(to(&ah, &two));
    one.post(1, op, one.sge(0, 8), SIGNALED).unwrap();
    two.qp.control().set_qkey(QKEY);
    two.qp.control().open();
    one.post(2, op, one.sge(0, 7), SIGNALED).unwrap();
    let came = settle(&mut one, &mut two).1;
    assert_eq!(statuses(&came), [(9, Status::Success)]);
    assert_eq!(came[0].byte_len as usize, GRH_BYTES + 7, "the one from before is dropped");
}

#[test]
fn an_address_of_no_device_is_refused() {
    let one = side("soft0");
    let nowhere = AddressVector::to(Gid([0, 0, 0, 1, 0x7f, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]));
    assert_eq!(one.nic.create_ah(&nowhere).err().unwrap().code(), Code::NoDevice);
    let alone = Soft::new("soft0", Host::alone(|| 0), None);
    assert!(alone.create_ah(&AddressVector::to(one.nic.gid())).is_err());
    let (cq, _poller) = alone.create_cq(8, Sharing::Exclusive).unwrap();
    let init = SoftQpInit {
        kind: QpType::Ud,
        send_cq: &cq,
        recv_cq: &cq,
        srq: None,
        caps: CAPS,
        signal_all: false,
        ex: SoftQpEx::default(),
    };
    assert_eq!(alone.create_qp(&init).err().unwrap().code(), Code::NotSupported);
}

/// Each member gets a copy, and so does the sender. A former member gets none, and neither do
/// devices of another name. The next datagram after a join or a leave goes to the new list.
#[test]
fn a_group_gets_a_copy_each() {
    let (mut one, mut two) = pair_of_ud();
    let mut other = side("soft1");
    let attached = |end: &mut End| end.qp.attach_mcast(GROUP).unwrap();
    attached(&mut one);
    attached(&mut other);
    let ah = one.nic.create_ah(&AddressVector::to(GROUP)).unwrap();
    let op = SendOp::SendTo(Destination { ah: ah.name(), qpn: MULTICAST_QPN, qkey: QKEY });
    let send = |one: &mut End, two: &mut End, other: &mut End| {
        for end in [&mut *one, &mut *two, &mut *other] {
            end.recv(9, 0, 100);
        }
        one.post(1, op, one.sge(0, 8), SendFlags::empty()).unwrap();
        let (first, second) = settle(one, two);
        assert!(other.poll().is_empty(), "another device");
        (first.len(), second.len())
    };
    assert_eq!(send(&mut one, &mut two, &mut other), (1, 0));
    attached(&mut two);
    attached(&mut two);
    assert_eq!(send(&mut one, &mut two, &mut other), (1, 1), "attached twice is once");
    one.qp.detach_mcast(GROUP).unwrap();
    assert_eq!(send(&mut one, &mut two, &mut other), (0, 1));
    assert_eq!(one.qp.detach_mcast(GROUP).unwrap_err().code(), Code::Invalid);
    let control = two.qp.control();
    drop(two.qp);
    assert!(members("soft0", GROUP).is_empty(), "it leaves its groups when it goes");
    assert!(control.attach_mcast(GROUP).is_err());
}

#[test]
fn only_datagrams_are_for_groups() {
    let mut one = side("soft0");
    assert_eq!(one.qp.attach_mcast(Gid([1; 16])).unwrap_err().code(), Code::Invalid);
    let mut rc = make_qp(&one.nic, &one.cq, None, CAPS);
    assert_eq!(rc.attach_mcast(GROUP).unwrap_err().code(), Code::Invalid);
    assert_eq!(rc.detach_mcast(GROUP).unwrap_err().code(), Code::Invalid);
}

/// Receives of a shared queue serve datagrams too.
#[test]
fn ud_takes_receives_of_a_shared_queue() {
    let (mut one, mut two) = pair_of_ud();
    let srq = two.nic.create_srq(16).unwrap();
    two.qp = make_qp_of(QpType::Ud, &two.nic, &two.cq, Some(&srq), WIDE);
    two.qp.control().set_qkey(QKEY);
    two.qp.control().open();
    two.srq = Some(srq);
    two.poll();
    let ah = one.way_to(&two);
    two.recv(9, 0, 100);
    let list = vec![SendOp::SendTo(to(&ah, &two)); 2];
    for op in list {
        one.post(1, op, one.sge(0, 8), SIGNALED).unwrap();
    }
    assert_eq!(statuses(&settle(&mut one, &mut two).1), [(9, Status::Success)]);
}

/// Two sides, each with a UD queue pair and a connection in one domain.
fn with_a_connection() -> (End, End, SoftQp, SoftQp) {
    let (mut one, mut two) = pair_of_ud();
    let mut near = make_qp(&one.nic, &one.cq, None, CAPS);
    let mut far = make_qp(&two.nic, &two.cq, None, CAPS);
    join(&mut near, &mut far, 7);
    settle(&mut one, &mut two);
    (one, two, near, far)
}

/// Posts an inline message on that side's connection, and a receive for it on the other side.
fn message(from: (&End, &mut SoftQp), to: (&End, &mut SoftQp)) {
    let recv = RecvWr { wr_id: 8, sge: to.0.sge(64, 64) };
    let (flags, sge) = (SendFlags::INLINE | SIGNALED, from.0.sge(0, 8));
    let send = SendWr { wr_id: 7, op: SendOp::Send, flags, sge, more: &[] };
    // SAFETY: both sides are polled by this thread, and their regions outlive the requests.
    unsafe {
        to.1.post_recv(&[recv]).unwrap();
        from.1.post(&[send]).unwrap();
    }
}

/// A UD queue pair leaves the short poll of its domain fast: an empty poll has nothing more to do,
/// and the next message is predicted.
#[test]
fn ud_leaves_a_domain_its_short_poll() {
    let (mut one, mut two, mut near, mut far) = with_a_connection();
    for _ in 0..300 {
        assert!(matches!(two.poller.poll_one(), Polled::Nothing));
    }
    for _ in 0..16 {
        let recv = RecvWr { wr_id: 8, sge: two.sge(64, 64) };
        // SAFETY: as in `message`.
        unsafe { far.post_recv(&[recv]).unwrap() };
    }
    for _ in 0..2 {
        // The first message prefetches receives, the second tells which queue pair to predict.
        message((&one, &mut near), (&two, &mut far));
        assert_eq!(two.poll().len(), 1);
        settle(&mut one, &mut two);
    }
    // SAFETY: this thread is the one that polls.
    let known = |end: &End| unsafe { end.poller.cq.domain.enter(|it| it.predicted.is_known()) };
    let polls = (0..).take_while(|_| two.poll().is_empty() && !known(&two)).take(200).count();
    assert!(polls < 200, "the next message is not predicted");
    let (flags, sge) = (SendFlags::INLINE, one.sge(0, 8));
    // SAFETY: as in `message`.
    unsafe { near.post(&[SendWr { wr_id: 7, op: SendOp::Send, flags, sge, more: &[] }]).unwrap() };
    let Polled::One(wc) = two.poller.poll_one() else { panic!("not the predicted one") };
    assert_eq!(wc.wr_id, 8);
}

/// A datagram is seen within two short polls, with or without messages in between.
#[test]
fn ud_datagrams_are_seen_among_messages() {
    for talks in [false, true] {
        let (mut one, mut two, mut near, mut far) = with_a_connection();
        let ah = one.way_to(&two);
        for round in 0..50 {
            two.recv(9, 4096, 100);
            one.post(1, SendOp::SendTo(to(&ah, &two)), one.sge(0, 8), SIGNALED).unwrap();
            let mut polls = 0;
            let came = loop {
                if talks {
                    message((&one, &mut near), (&two, &mut far));
                }
                let came = two.poll();
                polls += 1;
                if let Some(wc) = came.iter().find(|wc| wc.src_qp == one.qp.num()) {
                    break *wc;
                }
                if talks {
                    // A reply, so that the next poll is the first after a reply.
                    message((&two, &mut far), (&one, &mut near));
                    one.poll();
                }
                assert!(polls < 4, "round {round}");
            };
            assert_eq!((came.wr_id, came.status), (9, Status::Success));
            settle(&mut one, &mut two);
        }
    }
}

/// Before a domain sleeps, the last look covers all inboxes, however many.
#[test]
fn ud_the_last_look_before_sleep_is_at_all_inboxes() {
    let (mut one, mut two, ..) = with_a_connection();
    let mut more: Vec<_> = (0..3).map(|_| ud(&two.nic, &two.cq)).collect();
    two.poll();
    let ah = one.way_to(&two);
    for place in (0..more.len()).rev() {
        let recv = RecvWr { wr_id: place as u64, sge: two.sge(0, 100) };
        // SAFETY: as in `message`.
        unsafe { more[place].post_recv(&[recv]).unwrap() };
        let to = Destination { ah: ah.name(), qpn: more[place].num(), qkey: QKEY };
        one.post(1, SendOp::SendTo(to), one.sge(0, 8), SendFlags::empty()).unwrap();
        // SAFETY: this thread is the one that polls.
        unsafe { two.poller.cq.domain.enter(|state| state.fall_asleep()) };
        assert_eq!(two.poll().len(), 1, "inbox {place}");
    }
}
