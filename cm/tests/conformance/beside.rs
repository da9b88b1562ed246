//! A shortage of receives in one queue delays no other receive queue (RC-1, RC-7, SRQ-13): through
//! ids, whose completion queues all threads share, and below them in completion queues of one
//! thread.
#![expect(unsafe_code, reason = "posts below the safe layer, and looks at the memory it names")]

use std::thread;
use std::time::{Duration, Instant};

use doorbell_alloc::Mapping;
use doorbell_cm::{AddrInfo, CmId, ConnParam, Fabric, Hints, Id, QpAttr, QpAttrEx, SharedReceive};
use doorbell_seam::provider::{Access, Poller, Qp, QpCaps, QpType, Region, Sharing, Srq};
use doorbell_seam::wc::{Status, Wc, WcOpcode};
use doorbell_seam::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};

use crate::bed::{Bed, SOON, received, send, sent};

cases! {
    rc_01_a_wait_for_a_receive_delays_no_other_queue_pair
    srq_13_empty_delays_no_queue_pair_of_another
    rc_01_a_wait_for_a_receive_delays_no_other_in_the_same_completion_queue
    srq_13_empty_delays_no_other_in_the_same_completion_queue
}

/// The number of messages that wait, and how often others pass them meanwhile.
const WAITING: u8 = 4;
const ROUNDS: u8 = 40;
/// Longer than one piece on the wire.
const LENGTHS: [usize; 4] = [1, 64, 700, 9000];

fn bytes(number: u8) -> Vec<u8> {
    let length = LENGTHS[usize::from(number) % LENGTHS.len()];
    (0..length).map(|at| number.wrapping_mul(37).wrapping_add((at * 3 + (at >> 8)) as u8)).collect()
}

/// Posts a different kind of message for each number.
fn say<F: Fabric>(bed: &Bed<F>, id: &mut Id<F>, number: u8) {
    let bytes = bytes(number);
    let mut buffer = bed.filled(bytes.len(), 0);
    buffer.copy_from_slice(&bytes);
    send(id, buffer);
}

fn listen<F: Fabric>(bed: &Bed<F>, id: &mut Id<F>, shared: Option<&SharedReceive<F>>) {
    let buffer = bed.filled(LENGTHS[3], 0xee);
    match shared {
        Some(srq) => srq.post(&mut vec![buffer]).expect("a shared receive"),
        None => id.queues().post_recv(buffer).expect("a receive"),
    }
}

fn pass_by<F: Fabric>(bed: &Bed<F>, shared: bool) {
    let srq = || shared.then(|| SharedReceive::new(&bed.fabric, 8).expect("a receive queue"));
    let (empty, full) = (srq(), srq());
    let pair = |srq: Option<&SharedReceive<F>>| {
        let (plain, none) = (bed.small(), ConnParam::default());
        let taker = srq.map_or_else(|| bed.small(), |srq| bed.small().srq(srq));
        bed.pair_with(&plain, &taker, &none, &none)
    };
    let (mut stuck, mut waits) = pair(empty.as_ref());
    let (mut one, mut two) = pair(full.as_ref());
    (0..WAITING).for_each(|number| say(bed, &mut stuck, number));
    for round in 0..ROUNDS {
        listen(bed, &mut two, full.as_ref());
        say(bed, &mut one, round);
        assert_eq!(received(&mut two).bytes(), bytes(round));
        sent(&mut one, &mut two).ok().expect("sent");
        listen(bed, &mut one, None);
        say(bed, &mut two, !round);
        assert_eq!(received(&mut one).bytes(), bytes(!round));
        sent(&mut two, &mut one).ok().expect("sent");
    }
    assert!(waits.queues().next_recv(Duration::ZERO).is_err(), "there was no receive");
    assert!(stuck.queues().next_send(Duration::ZERO).is_err(), "so nothing was acknowledged");
    (0..WAITING).for_each(|_| listen(bed, &mut waits, empty.as_ref()));
    for number in 0..WAITING {
        assert_eq!(received(&mut waits).bytes(), bytes(number), "in order");
        let buffer = sent(&mut stuck, &mut waits).ok().expect("sent").buffer;
        assert_eq!(buffer.expect("it comes back")[..], bytes(number));
    }
}

fn rc_01_a_wait_for_a_receive_delays_no_other_queue_pair<F: Fabric>(bed: &Bed<F>) {
    pass_by(bed, false);
}

fn srq_13_empty_delays_no_queue_pair_of_another<F: Fabric>(bed: &Bed<F>) {
    pass_by(bed, true);
}

const CAPS: QpCaps = QpCaps { send_wr: 4, recv_wr: 4, send_sge: 1, recv_sge: 1, inline: 0 };
const SLOT: usize = 16 << 10;

/// One end of a connection.
struct Way<F: Fabric> {
    qp: F::Qp,
    srq: Option<F::Srq>,
    id: F::Id,
}

/// One side's ends of both connections, on one completion queue of this thread. For each connection
/// the memory has a slot for each message it sends, then one for each it receives.
struct Side<F: Fabric> {
    ways: Vec<Way<F>>,
    cq: F::Cq,
    poller: F::Poller,
    memory: F::Region,
}

impl<F: Fabric> Side<F> {
    fn new(bed: &Bed<F>) -> Side<F> {
        let (cq, poller) = bed.fabric.create_cq(32, Sharing::Exclusive).expect("a queue");
        let memory = Mapping::plain(4 * usize::from(WAITING) * SLOT).expect("memory");
        let memory = bed.fabric.register(memory, Access::LOCAL_WRITE).expect("a region");
        Side { ways: Vec::new(), cq, poller, memory }
    }

    fn way(&self, bed: &Bed<F>, mut id: F::Id, shared: bool) -> Way<F> {
        let srq = shared.then(|| bed.fabric.create_srq(8).expect("a receive queue"));
        let attr = QpAttr {
            kind: QpType::Rc,
            send_cq: &self.cq,
            recv_cq: &self.cq,
            srq: srq.as_ref(),
            caps: CAPS,
            signal_all: true,
            ex: QpAttrEx::default(),
        };
        let qp = id.create_qp(&bed.fabric, &attr).expect("a queue pair");
        Way { qp, srq, id }
    }

    /// The slot of a message that way `n` sends or receives.
    fn slot(&self, n: usize, number: u8, receives: bool) -> *mut u8 {
        let at = 2 * n + usize::from(receives);
        let slot = at * usize::from(WAITING) + usize::from(number % WAITING);
        self.memory.as_ptr().wrapping_add(slot * SLOT)
    }

    fn sge(&self, at: *mut u8, length: usize) -> Sge {
        Sge { addr: at as u64, length: length as u32, lkey: self.memory.lkey() }
    }

    fn say(&mut self, n: usize, number: u8) {
        let (bytes, at) = (bytes(number), self.slot(n, number, false));
        let (op, flags, sge) = (SendOp::Send, SendFlags::SIGNALED, self.sge(at, bytes.len()));
        let wr = SendWr { wr_id: number.into(), op, flags, sge, more: &[] };
        // SAFETY: the slot is in the region, which outlives the queue pairs; the request that used
        // it before has completed.
        unsafe {
            at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.ways[n].qp.post(&[wr]).expect("a send");
        }
    }

    fn listen(&mut self, n: usize, number: u8) {
        let sge = self.sge(self.slot(n, number, true), SLOT);
        let (wr, way) = (RecvWr { wr_id: number.into(), sge }, &mut self.ways[n]);
        // SAFETY: as in `say`.
        let posted = unsafe {
            match &way.srq {
                Some(srq) => srq.post(&[wr]),
                None => way.qp.post_recv(&[wr]),
            }
        };
        posted.expect("a receive");
    }

    /// Takes a completion of way `n`. True if it succeeded and has that number and, for a receive,
    /// the whole message.
    fn is_done(&self, wc: &Wc, n: usize, number: u8, opcode: WcOpcode) -> bool {
        let (length, at) = (bytes(number).len(), self.slot(n, number, true));
        let same = (wc.qp_num, wc.wr_id) == (self.ways[n].qp.num(), number.into());
        // SAFETY: the receive has completed, so the slot is ours again.
        let came = unsafe { std::slice::from_raw_parts(at, length) };
        let whole =
            opcode == WcOpcode::Send || (wc.byte_len as usize == length && came == bytes(number));
        same && wc.status == Status::Success && wc.opcode == opcode && whole
    }
}

/// Polls both sides until they have that many completions together.
fn gather<F: Fabric>(one: &mut Side<F>, two: &mut Side<F>, enough: usize) -> [Vec<Wc>; 2] {
    let (end, mut found) = (Instant::now() + SOON, [Vec::new(), Vec::new()]);
    while found.iter().map(Vec::len).sum::<usize>() < enough {
        assert!(Instant::now() < end, "nothing more completes: {found:?}");
        for (side, found) in [&mut *one, &mut *two].into_iter().zip(&mut found) {
            let mut out = [Wc::default(); 8];
            let count = side.poller.poll(&mut out);
            found.extend_from_slice(&out[..count]);
        }
    }
    found
}

/// Connects both sides once more.
fn connect<F: Fabric>(bed: &Bed<F>, one: &mut Side<F>, two: &mut Side<F>, shared: bool) {
    let passive = AddrInfo::of(bed.at(0), &Hints::passive());
    let mut listener = bed.fabric.create_endpoint(&passive).expect("a listener");
    listener.listen(0).expect("listen");
    let active = AddrInfo::of(listener.local_addr().expect("bound"), &Hints::active());
    let id = bed.fabric.create_endpoint(&active).expect("an active endpoint");
    let mut way = one.way(bed, id, false);
    thread::scope(|scope| {
        let connecting = scope.spawn(|| way.id.connect(&ConnParam::default()).expect("connect"));
        let request = listener.get_request(Some(SOON)).expect("a request");
        let mut other = two.way(bed, request, shared);
        other.id.accept(&ConnParam::default()).expect("accept");
        two.ways.push(other);
        connecting.join().expect("the connecting side");
    });
    one.ways.push(way);
}

/// The first connection waits, the second one goes on.
fn pass_by_in_one_queue<F: Fabric>(bed: &Bed<F>, shared: bool) {
    let (mut one, mut two) = (Side::new(bed), Side::new(bed));
    connect(bed, &mut one, &mut two, shared);
    connect(bed, &mut one, &mut two, shared);
    (0..WAITING).for_each(|number| one.say(0, number));
    for round in 0..ROUNDS {
        one.listen(1, !round);
        two.listen(1, round);
        one.say(1, round);
        two.say(1, !round);
        let [here, there] = gather(&mut one, &mut two, 4);
        let both = |side: &Side<F>, found: &[Wc], sent, came| {
            let is = |number, opcode| {
                found.iter().filter(|wc| side.is_done(wc, 1, number, opcode)).count() == 1
            };
            found.len() == 2 && is(sent, WcOpcode::Send) && is(came, WcOpcode::Recv)
        };
        assert!(both(&one, &here, round, !round), "round {round}: {here:?}");
        assert!(both(&two, &there, !round, round), "round {round}: {there:?}");
    }
    (0..WAITING).for_each(|number| two.listen(0, number));
    let [sent, came] = gather(&mut one, &mut two, 2 * usize::from(WAITING));
    for (number, (sent, came)) in (0..WAITING).zip(sent.iter().zip(&came)) {
        assert!(one.is_done(sent, 0, number, WcOpcode::Send), "{number}: {sent:?}");
        assert!(two.is_done(came, 0, number, WcOpcode::Recv), "{number}: {came:?}");
    }
    assert_eq!((sent.len(), came.len()), (WAITING.into(), WAITING.into()));
}

fn rc_01_a_wait_for_a_receive_delays_no_other_in_the_same_completion_queue<F: Fabric>(
    bed: &Bed<F>,
) {
    pass_by_in_one_queue(bed, false);
}

fn srq_13_empty_delays_no_other_in_the_same_completion_queue<F: Fabric>(bed: &Bed<F>) {
    pass_by_in_one_queue(bed, true);
}
