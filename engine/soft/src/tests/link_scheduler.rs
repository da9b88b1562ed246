//! Many links of which few are busy: what a poll looks at, and that it misses nothing.

use core::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::provider::Polled;
use crate::shm::layout::Header;
use crate::shm::ring::tail_word;
use crate::state::link::Link;
use crate::state::policy::idle::{
    ANSWERS_EVERY, IDLE_AFTER, IDLE_CHECKS, IDLE_GLANCES, RESTING_MAX, TAIL_LOOKS, TAKEN_MAX,
};
use crate::wc::Status;

/// Enough polls without a message for every link but one to rest.
const QUIET: usize = 600;

/// Clients send many messages without asking for completions.
const DEEP: QpCaps = QpCaps { send_wr: 64, ..CAPS };

/// A server on one receive queue, and several devices that are connected to it, each over a link.
struct Many {
    server: End,
    qps: Vec<SoftQp>,
    clients: Vec<End>,
}

impl Many {
    fn new(clients: usize) -> Many {
        let mut server = end(DEEP, true);
        let (mut qps, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..clients {
            let mut client = end(DEEP, true);
            let mut qp = make_qp(&server.nic, &server.cq, server.srq.as_ref(), DEEP);
            join(&mut client.qp, &mut qp, 7);
            client.recv(0, 0, 64);
            qps.push(qp);
            ends.push(client);
        }
        for n in 0..32 {
            server.recv(n, 64 * n as usize, 64);
        }
        Many { server, qps, clients: ends }
    }

    /// A message comes from each client. After that, short polls wait on the busy link.
    fn hear_all(&mut self) {
        for client in &mut self.clients {
            client.send(1, 0, 8, SendFlags::empty()).unwrap();
            let came = (0..QUIET).find_map(|_| self.server.poll().first().copied());
            assert_eq!(came.map(|wc| wc.status), Some(Status::Success));
            self.server.recv(0, 0, 64);
        }
    }

    fn rest(&mut self) {
        for _ in 0..QUIET {
            assert!(self.server.poll().is_empty());
        }
    }

    /// Rests until every link but one is idle.
    fn rest_for_long(&mut self) {
        for _ in 0..IDLE_AFTER + 2 * RESTING_MAX as u32 {
            assert!(self.server.poll().is_empty());
        }
        assert_eq!(self.resting(), 0);
    }

    /// The number of links that rest and are not idle.
    fn resting(&self) -> usize {
        let state = unsafe { self.server.poller.cq.domain.alone() };
        state.links.scheduler.resting.len()
    }

    /// The number of links that the server does not serve.
    fn idle(&self) -> usize {
        let state = unsafe { self.server.poller.cq.domain.alone() };
        state.links.table.iter().flatten().filter(|link| link.is_idle()).count()
    }

    /// True if the server predicts a message.
    fn expects(&self) -> bool {
        unsafe { self.server.poller.cq.domain.alone() }.predicted.is_known()
    }

    /// The server's end of the link of that client.
    fn link(&self, client: usize) -> &Link {
        let state = unsafe { self.server.poller.cq.domain.alone() };
        let qp = state.transport.qps.get(self.qps[client].num()).unwrap();
        state.links.table[qp.link].as_ref().unwrap()
    }

    /// True if the link of that client is one of them.
    fn is_idle(&self, client: usize) -> bool {
        self.link(client).is_idle()
    }

    /// The queue pair whose message comes within that many polls, and the number of polls it took.
    fn comes_within(&mut self, polls: usize) -> (u32, usize) {
        for n in 1..=polls {
            if let [wc] = self.server.poll()[..] {
                assert_eq!(wc.status, Status::Success);
                return (wc.qp_num, n);
            }
        }
        panic!("nothing in {polls} polls");
    }
}

/// Three clients, whose links have rested, and one of them whose link still does.
fn one_quiet() -> (Many, usize) {
    let mut many = Many::new(3);
    many.hear_all();
    many.rest();
    let quiet = (0..3).find(|n| many.is_idle(*n)).unwrap();
    (many, quiet)
}

/// A post with a doorbell of its own goes out over a resting link, too, and makes it busy.
#[test]
fn a_post_at_once_on_a_resting_link_goes_out() {
    let (mut many, quiet) = one_quiet();
    let (sge, flags) = (many.server.sge(0, 8), SendFlags::INLINE);
    let wr = SendWr { wr_id: 1, op: SendOp::Send, flags, sge, more: &[] };
    // The next message of the busy link was predicted meanwhile.
    let busy = (0..3).find(|n| !many.is_idle(*n)).unwrap();
    assert!(many.expects());
    assert!(unsafe { many.qps[quiet].post_at_once(&wr) });
    assert!(!many.is_idle(quiet));
    for n in [quiet, busy] {
        many.clients[n].send(1, 0, 8, SendFlags::empty()).unwrap();
        assert_eq!(many.comes_within(2).0, many.qps[n].num());
    }
    assert_eq!(many.clients[quiet].poll().len(), 1);
}

/// A lone message goes into the slot of a resting link, as on a busy one. In the ring alone it
/// would be seen later, and cost the peer a full poll.
#[test]
fn a_lone_post_on_a_resting_link_uses_the_slot() {
    let (mut many, quiet) = one_quiet();
    let link = |many: &Many| unsafe {
        let state = many.server.poller.cq.domain.alone();
        let link = state.transport.qps.get(many.qps[quiet].num()).unwrap().link;
        let tx = &state.links.table[link].as_ref().unwrap().tx;
        (tx.last_in_slot(), tx.published() as u32)
    };
    let (sge, flags) = (many.server.sge(0, 8), SendFlags::INLINE);
    let wr = SendWr { wr_id: 1, op: SendOp::Send, flags, sge, more: &[] };
    let before = link(&many);
    unsafe { many.qps[quiet].post(&[wr]) }.unwrap();
    let after = link(&many);
    assert!(after.1 != before.1 && after.0 == after.1, "{before:?}, {after:?}");
    assert_eq!(many.clients[quiet].poll().len(), 1);
}

/// The next poll sees a message over a link that rests, whichever it is. Of messages that come at
/// once each poll sees some, until all are seen. More links than a poll looks at are idle.
#[test]
fn messages_over_a_resting_link_are_seen_at_once() {
    let clients = RESTING_MAX + 4;
    let mut many = Many::new(clients);
    many.rest();
    assert_eq!((many.idle(), many.resting()), (clients - 1, RESTING_MAX));
    let state = unsafe { many.server.poller.cq.domain.alone() };
    let rests = |link| state.links.scheduler.resting.place_of(link).is_some();
    let link = |qp: &SoftQp| state.transport.qps.get(qp.num()).unwrap().link;
    let resting: Vec<usize> = (0..clients).filter(|n| rests(link(&many.qps[*n]))).collect();
    for from in [resting[0], resting[RESTING_MAX - 1], resting[RESTING_MAX / 2]] {
        many.rest();
        many.clients[from].send(1, 0, 8, SendFlags::empty()).unwrap();
        assert_eq!(many.comes_within(1), (many.qps[from].num(), 1), "of link {from}");
    }
    many.rest();
    for from in &resting[4..20] {
        many.clients[*from].send(1, 0, 8, SendFlags::empty()).unwrap();
    }
    let mut seen = 0;
    while seen < 16 {
        let came = many.server.poll().len();
        assert!(came > 0, "after {seen}");
        seen += came;
    }
    assert!(many.server.poll().is_empty());
}

/// Clients that send in turn: each next poll takes the message, and all links but one go on
/// resting.
#[test]
fn links_in_turn_go_on_resting() {
    let mut many = Many::new(8);
    // Receives are prefetched only for links on which a message has come in the slot.
    for n in 0..16 {
        many.clients[n % 8].send(1, 0, 8, SendFlags::empty()).unwrap();
        assert_eq!(many.server.poll().len(), 1);
    }
    many.rest();
    for round in 0..2 {
        for from in 0..8 {
            many.clients[from].send(1, 0, 8, SendFlags::empty()).unwrap();
            assert_eq!(many.comes_within(1).0, many.qps[from].num(), "{round}: link {from}");
            assert_eq!(many.resting(), 7, "{round}: link {from}");
            many.server.recv(1, 0, 64);
        }
    }
    assert!(many.server.poll().is_empty());
}

/// A signalled send over a resting link completes: the link leaves its rest to acknowledge.
#[test]
fn a_resting_link_acknowledges() {
    let mut many = Many::new(4);
    for from in 0..4 {
        many.rest();
        many.clients[from].send(7, 0, 8, SendFlags::SIGNALED).unwrap();
        assert_eq!(many.comes_within(1).0, many.qps[from].num());
        many.server.poll();
        let ends: Vec<_> = (0..8).flat_map(|_| many.clients[from].poll()).collect();
        assert_eq!(ends.len(), 1, "of link {from}");
    }
}

/// Several messages at once over a resting link are in the ring alone. They are seen once a poll
/// has looked at that link's tail.
#[test]
fn messages_in_the_ring_of_a_resting_link_are_seen() {
    let clients = RESTING_MAX + 1;
    let mut many = Many::new(clients);
    for from in [0, clients - 1, clients / 2] {
        many.rest();
        let sge = many.clients[from].sge(0, 8);
        let wr = SendWr { wr_id: 1, op: SendOp::Send, flags: SendFlags::empty(), sge, more: &[] };
        unsafe { many.clients[from].qp.post(&[wr, wr]) }.unwrap();
        let came = (0..RESTING_MAX / TAIL_LOOKS).map(|_| many.server.poll().len());
        assert_eq!(came.sum::<usize>(), 2, "of link {from}");
    }
}

/// The busy link expects a receive, and a message on a resting link takes it. The next message on
/// the busy link takes the next receive.
#[test]
fn a_message_on_a_resting_link_takes_the_expected_receive() {
    let mut many = Many::new(2);
    for n in 0..4 {
        many.clients[n % 2].send(1, 0, 8, SendFlags::empty()).unwrap();
        assert_eq!(many.server.poll()[0].wr_id, n as u64);
    }
    many.rest();
    let busy = (0..2).find(|n| !many.is_idle(*n)).unwrap();
    many.clients[busy].send(1, 0, 8, SendFlags::empty()).unwrap();
    assert_eq!(many.server.poll()[0].wr_id, 4);
    many.rest();
    assert!(many.expects());
    for (from, wr_id) in [(1 - busy, 5), (busy, 6)] {
        many.clients[from].send(1, 0, 8, SendFlags::empty()).unwrap();
        let got = many.server.poll();
        assert_eq!((got[0].qp_num, got[0].wr_id), (many.qps[from].num(), wr_id));
    }
}

/// A message on a quiet link that is like the predicted one takes the shortest poll, in the slot as
/// well as in the ring. While nothing comes, the next is predicted again.
#[test]
fn a_message_on_a_quiet_link_takes_the_shortest_poll() {
    for (idles, in_ring) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut many = Many::new(3);
        many.hear_all();
        many.hear_all();
        for round in 0..4 {
            if idles {
                many.rest_for_long()
            } else {
                many.rest()
            }
            let from = (0..3).find(|n| many.is_idle(*n)).unwrap();
            let length = if in_ring && round > 0 { 64 } else { 8 };
            many.clients[from].send(1, 0, length, SendFlags::empty()).unwrap();
            let Polled::One(wc) = many.server.poller.poll_one() else { panic!("{idles} {round}") };
            assert_eq!((wc.qp_num, wc.byte_len as usize), (many.qps[from].num(), length));
            assert!(many.is_idle(from) && !many.expects());
            assert!(many.server.poll().is_empty() && many.expects());
            many.server.recv(0, 0, 64);
        }
    }
}

/// Two messages in the ring of a quiet link come one after the other, in two polls.
#[test]
fn the_second_message_on_a_quiet_link_follows_at_once() {
    let clients = RESTING_MAX;
    let mut many = Many::new(clients);
    many.hear_all();
    many.rest();
    for from in (0..clients).filter(|n| many.is_idle(*n)).take(3).collect::<Vec<_>>() {
        let sge = many.clients[from].sge(0, 8);
        let wr = SendWr { wr_id: 1, op: SendOp::Send, flags: SendFlags::empty(), sge, more: &[] };
        unsafe { many.clients[from].qp.post(&[wr, wr]) }.unwrap();
        let (num, _) = many.comes_within(RESTING_MAX / TAIL_LOOKS);
        assert_eq!((num, many.comes_within(1).0), (many.qps[from].num(), num));
        (0..2).for_each(|_| many.server.recv(0, 0, 64));
    }
}

/// What is predicted for a quiet link counts there alone: the peer of the busy link may not send
/// to a queue pair of the quiet one.
#[test]
fn a_prediction_for_a_quiet_link_counts_nowhere_else() {
    let (mut many, quiet) = one_quiet();
    many.hear_all();
    many.rest();
    let busy = (0..3).find(|n| !many.is_idle(*n)).unwrap();
    let quiet = if quiet == busy { (busy + 1) % 3 } else { quiet };
    // It is found, and differs from the prediction.
    let sge = many.clients[quiet].sge(0, 8);
    many.clients[quiet].post(1, SendOp::SendWithImm(7), sge, SendFlags::empty()).unwrap();
    assert!(matches!(many.server.poller.poll_one(), Polled::More));
    let num = many.qps[quiet].num();
    let link = many.link(busy);
    let (way, end) = (&link.rx.dir, link.rx.at + 16);
    way.slot_header().store(Header::plain_for(num).0 | 8, Relaxed);
    way.seal().store(way.seal_of(end), Relaxed);
    way.slot_tail().store(tail_word(end, link.tx.published()), Relaxed);
    assert!(matches!(many.server.poller.poll_one(), Polled::More));
    let got: Vec<_> = (0..4).flat_map(|_| many.server.poll()).collect();
    let taken = got.iter().filter(|wc| wc.status == Status::Success);
    assert_eq!(taken.map(|wc| (wc.qp_num, wc.imm)).collect::<Vec<_>>(), [(num, 7)]);
}

/// A caller may leave what a short poll has found to a later one. Messages in the ring of the busy
/// link do not hide it.
#[test]
fn what_was_found_and_left_is_found_again() {
    let mut many = Many::new(2);
    many.hear_all();
    many.rest();
    let busy = (0..2).find(|n| !many.is_idle(*n)).unwrap();
    let sge = many.clients[1 - busy].sge(0, 8);
    many.clients[1 - busy].post(1, SendOp::SendWithImm(7), sge, SendFlags::empty()).unwrap();
    assert!(matches!(many.server.poller.poll_one(), Polled::More));
    let polls = [(); 3].map(|()| {
        many.clients[busy].send(1, 0, 64, SendFlags::empty()).unwrap();
        matches!(many.server.poller.poll_one(), Polled::More)
    });
    assert_eq!(polls, [false, true, false]);
}

/// A link on which each poll finds a message does not keep the poll from another link, whether it
/// is the busy one or rests, whether its messages cross others or not, and whether they are in the
/// slot or, being longer, in the ring alone.
#[test]
fn a_lively_link_starves_no_other() {
    let cases = (0..8).map(|n| (n & 1 > 0, n & 2 > 0, if n & 4 > 0 { 8 } else { 64 }));
    for (lively_rests, crosses, length) in cases {
        let mut many = Many::new(4);
        many.clients[1].send(1, 0, 8, SendFlags::empty()).unwrap();
        assert_eq!(many.server.poll().len(), 1);
        many.rest();
        let busy = (0..4).find(|n| !many.is_idle(*n)).unwrap();
        let rests = (busy + 1) % 4;
        let (lively, other) = if lively_rests { (rests, busy) } else { (busy, rests) };
        let other_num = many.qps[other].num();
        if crosses {
            let (sge, flags) = (many.server.sge(0, 8), SendFlags::INLINE);
            let wr = SendWr { wr_id: 7, op: SendOp::Send, flags, sge, more: &[] };
            unsafe { many.qps[lively].post(&[wr, wr]) }.unwrap();
        }
        let comes = |many: &mut Many| {
            many.clients[lively].send(1, 0, length, SendFlags::empty()).unwrap();
            let came: Vec<u32> = many.server.poll().iter().map(|wc| wc.qp_num).collect();
            came.contains(&other_num)
        };
        many.clients[other].send(1, 0, 8, SendFlags::empty()).unwrap();
        assert_eq!(many.server.poll()[0].qp_num, other_num);
        for _ in 0..3 {
            assert!(!comes(&mut many));
        }
        many.clients[other].send(1, 0, 8, SendFlags::empty()).unwrap();
        let came = (0..3).any(|_| comes(&mut many));
        assert!(came, "lively one rests: {lively_rests}, crosses: {crosses}, {length} bytes");
    }
}

/// A resting link on which each poll finds a message does not keep the poll from an idle link, nor
/// from a refusal on another resting link.
#[test]
fn a_lively_resting_link_starves_nothing_else() {
    for refused in [false, true] {
        let mut many = Many::new(4);
        many.rest_for_long();
        let busy = (0..4).find(|n| !many.is_idle(*n)).unwrap();
        let [next, other] = [1, 2].map(|n| (busy + n) % 4);
        let sends = |many: &mut Many, from: usize| {
            many.clients[from].send(1, 0, 8, SendFlags::empty()).unwrap();
        };
        if refused {
            let sge = many.server.sge(0, 8);
            let wr =
                SendWr { wr_id: 7, op: SendOp::Send, flags: SendFlags::empty(), sge, more: &[] };
            unsafe { many.qps[other].post(&[wr]) }.unwrap();
        }
        // Two links have had messages lately. One of them is the busy one, and one rests.
        sends(&mut many, next);
        many.comes_within(8);
        (0..8).for_each(|_| assert!(many.server.poll().is_empty()));
        let lively = if many.is_idle(next) { next } else { busy };
        match refused {
            true => {
                many.clients[other].qp.fail();
                many.clients[other].poll();
            }
            false => sends(&mut many, other),
        }
        let num = many.qps[other].num();
        let came = (0..8 * TAKEN_MAX).any(|_| {
            sends(&mut many, lively);
            let came = many.server.poll();
            let taken = came.iter().filter(|wc| wc.qp_num == many.qps[lively].num()).count();
            (0..taken).for_each(|_| many.server.recv(1, 0, 64));
            came.iter().any(|wc| wc.qp_num == num)
        });
        assert!(came, "refused: {refused}");
    }
}

/// When a queue pair goes, its link may go with it. No link rests from then on, so nobody looks at
/// the words of one that is gone.
#[test]
fn no_link_rests_when_one_may_have_gone() {
    let mut many = Many::new(8);
    many.rest();
    assert_eq!(many.resting(), 7);
    drop((many.qps.remove(0), many.clients.remove(0)));
    assert_eq!(many.resting(), 0);
    many.clients[0].send(1, 0, 8, SendFlags::empty()).unwrap();
    assert_eq!(many.comes_within(1).0, many.qps[0].num());
}

/// All but one of the links without messages become idle. A message over an idle link is seen after
/// as many polls as it takes to look at all of them; the next one is seen at once.
#[test]
fn messages_over_an_idle_link_are_seen() {
    let clients = 4 * IDLE_CHECKS;
    let mut many = Many::new(clients);
    assert_eq!(many.idle(), 0);
    many.rest_for_long();
    assert_eq!(many.idle(), clients - 1);
    for from in [0, clients - 1, clients / 2] {
        many.rest_for_long();
        let num = many.qps[from].num();
        many.clients[from].send(1, 0, 8, SendFlags::empty()).unwrap();
        assert_eq!(many.comes_within(clients / IDLE_GLANCES).0, num, "of link {from}");
        for _ in 0..3 {
            many.clients[from].send(1, 0, 8, SendFlags::empty()).unwrap();
            assert_eq!(many.comes_within(2).0, num);
        }
    }
    // All at once: each message is seen.
    many.rest_for_long();
    for client in &mut many.clients {
        client.send(1, 0, 8, SendFlags::empty()).unwrap();
    }
    let mut came = Vec::new();
    for _ in 0..QUIET {
        for wc in many.server.poll() {
            many.server.recv(wc.wr_id, 64 * wc.wr_id as usize, 64);
            came.push(wc.qp_num);
        }
    }
    came.sort_unstable();
    let mut nums: Vec<_> = many.qps.iter().map(SoftQp::num).collect();
    nums.sort_unstable();
    assert_eq!(came, nums);
}

/// A message that comes alone on an idle link is taken there, and the link rests again. If others
/// come with it, the link becomes busy.
#[test]
fn a_message_on_an_idle_link_lets_it_rest_again() {
    let mut many = Many::new(4);
    many.hear_all();
    for count in [1, 3] {
        many.rest_for_long();
        let from = (0..4).find(|n| many.is_idle(*n)).unwrap();
        for _ in 0..count {
            many.clients[from].send(1, 0, 8, SendFlags::empty()).unwrap();
        }
        let came = (0..4).map(|_| many.server.poll().len()).find(|came| *came > 0);
        assert_eq!(came, Some(count));
        (0..count).for_each(|n| many.server.recv(n as u64, 64 * n, 64));
        assert_eq!((many.is_idle(from), many.resting()), (count == 1, usize::from(count == 1)));
    }
}

/// If no more links may rest, an idle link becomes busy with its message, so the next is seen at
/// once.
#[test]
fn an_idle_link_with_a_message_becomes_busy_when_no_more_may_rest() {
    let clients = RESTING_MAX + 12;
    let mut many = Many::new(clients);
    many.hear_all();
    many.rest_for_long();
    let idle: Vec<_> = (0..clients).filter(|n| many.is_idle(*n)).collect();
    let last = *idle.last().unwrap();
    for (n, from) in idle.into_iter().take(RESTING_MAX).chain([last]).enumerate() {
        many.clients[from].send(1, 0, 8, SendFlags::empty()).unwrap();
        let num = many.qps[from].num();
        assert_eq!(many.comes_within(clients / IDLE_GLANCES + 1).0, num, "of link {from}");
        many.server.recv(0, 0, 64);
        let rests = n < RESTING_MAX;
        assert_eq!((many.is_idle(from), many.resting()), (rests, (n + 1).min(RESTING_MAX)));
    }
    many.clients[last].send(1, 0, 8, SendFlags::empty()).unwrap();
    assert_eq!(many.comes_within(1).0, many.qps[last].num());
}

/// A post on an idle link goes out at once, and completes; so does a list, and a request that the
/// peer carries out.
#[test]
fn posts_on_an_idle_link_go_out() {
    let mut many = Many::new(3);
    for round in 0..3 {
        for n in 0..3 {
            many.rest();
            assert_eq!(many.idle(), 2);
            let at = many.clients[n].region.remote(0);
            let sge = many.server.sge(0, 8);
            let wr = |op| SendWr { wr_id: 7, op, flags: SendFlags::SIGNALED, sge, more: &[] };
            let (list, sends): (&[_], _) = match round {
                0 => (&[wr(SendOp::Send)], 1),
                1 => (&[wr(SendOp::Send), wr(SendOp::Send)], 2),
                _ => (&[wr(SendOp::Write(at))], 0),
            };
            many.clients[n].recv(1, 0, 64);
            unsafe { many.qps[n].post(list) }.unwrap();
            let (mut got, mut done) = (0, 0);
            for _ in 0..16 {
                got += many.clients[n].poll().len();
                done += many.server.poll().len();
            }
            assert_eq!((got, done), (sends, list.len()), "{round} over link {n}");
        }
    }
}

/// A link that awaits a completion stays busy, because the peer acknowledges beside the slot. A
/// link with a message that nobody has taken becomes idle, but a refusal is seen.
#[test]
fn acknowledgements_beside_the_slot_are_read() {
    for flags in [SendFlags::SIGNALED, SendFlags::empty()] {
        let mut many = Many::new(4);
        let sge = many.server.sge(0, 8);
        let wr = SendWr { wr_id: 7, op: SendOp::Send, flags, sge, more: &[] };
        unsafe { many.qps[2].post(&[wr]) }.unwrap();
        many.rest();
        let refused = flags.is_empty();
        assert_eq!((many.idle(), many.is_idle(2)), (3, refused));
        if refused {
            many.clients[2].qp.fail();
        }
        let mut ends = Vec::new();
        for _ in 0..QUIET {
            many.clients[2].poll();
            ends.extend(many.server.poll().iter().map(|wc| (wc.wr_id, wc.status)));
        }
        let status = if refused { Status::RetryExceeded } else { Status::Success };
        assert_eq!(ends, [(7, status)]);
    }
}

/// A link rests although its last message is not acknowledged. A message over it is
/// seen by the next poll, and a refusal soon.
#[test]
fn a_resting_link_reports_a_refusal() {
    for refused in [false, true] {
        let mut many = Many::new(4);
        let sge = many.server.sge(0, 8);
        let wr = SendWr { wr_id: 7, op: SendOp::Send, flags: SendFlags::empty(), sge, more: &[] };
        unsafe { many.qps[2].post(&[wr]) }.unwrap();
        many.rest();
        assert_eq!((many.resting(), many.is_idle(2)), (3, true));
        if !refused {
            many.clients[2].send(1, 0, 8, SendFlags::empty()).unwrap();
            assert_eq!(many.comes_within(1), (many.qps[2].num(), 1));
            continue;
        }
        many.clients[2].qp.fail();
        many.clients[2].poll();
        let mut ends = Vec::new();
        for _ in 0..2 * many.resting() {
            ends.extend(many.server.poll().iter().map(|wc| (wc.wr_id, wc.status)));
        }
        assert_eq!(ends, [(7, Status::RetryExceeded)]);
    }
}

/// An idle link is checked for a refusal, too, once in [`ANSWERS_EVERY`] checks.
#[test]
fn an_idle_link_reports_a_refusal() {
    let mut many = Many::new(4);
    let sge = many.server.sge(0, 8);
    let wr = SendWr { wr_id: 7, op: SendOp::Send, flags: SendFlags::empty(), sge, more: &[] };
    unsafe { many.qps[2].post(&[wr]) }.unwrap();
    many.rest_for_long();
    assert!(many.is_idle(2));
    many.clients[2].qp.fail();
    many.clients[2].poll();
    // The poll behind the check reports it.
    let polls = many.idle() * ANSWERS_EVERY + 1;
    let ends = (0..polls).flat_map(|_| many.server.poll()).map(|wc| (wc.wr_id, wc.status));
    assert_eq!(ends.collect::<Vec<_>>(), [(7, Status::RetryExceeded)]);
}

/// CP-6: before it sleeps, a domain looks at every link, including idle ones.
#[test]
fn cp_6_the_last_look_covers_every_link() {
    let mut many = Many::new(6 * IDLE_CHECKS);
    many.rest_for_long();
    many.clients[3 * IDLE_CHECKS].send(1, 0, 8, SendFlags::empty()).unwrap();
    unsafe { many.server.poller.cq.domain.enter(|state| state.fall_asleep()) };
    assert_eq!(many.comes_within(1).1, 1);
}

/// Every poll serves every busy link, including the first poll after most of them have gone.
#[test]
fn a_poll_serves_all_that_are_left() {
    for polls in 1..12 {
        let mut many = Many::new(12);
        for _ in 0..polls {
            many.server.poll();
        }
        many.qps.drain(2..);
        many.clients.drain(2..);
        many.clients[1].send(1, 0, 8, SendFlags::empty()).unwrap();
        assert_eq!(many.comes_within(1).1, 1, "after {polls} polls");
    }
}

/// A connection that ends while its link is idle takes the link along.
#[test]
fn an_idle_link_goes_with_its_last_queue_pair() {
    let mut many = Many::new(4);
    many.rest();
    for left in (0..4).rev() {
        drop(many.clients.remove(0));
        drop(many.qps.remove(0));
        many.rest();
        let state = unsafe { many.server.poller.cq.domain.alone() };
        assert_eq!(state.links.table.iter().flatten().count(), left);
        if let Some(client) = many.clients.first_mut() {
            client.send(1, 0, 8, SendFlags::empty()).unwrap();
            many.comes_within(4);
        }
    }
}
