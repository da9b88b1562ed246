//! One side finishes sending, and still takes messages; then both have, and the connection ends.

use super::*;
use crate::remote::RequestOp;
use crate::worker::credit::FINISHED_IMM;

const NARROW: Config = Config { window: 4, window_min: 4, ..CONFIG };

/// What a handler was told, in order.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Got(Vec<u8>, Option<u32>),
    Done(u64, Result<(), Status>),
    Finished,
    Down(DownReason),
}

use Told::{Done, Down, Finished, Got};

/// Records everything, and does with messages what it was made for.
#[derive(Default)]
struct Half {
    up: Vec<PeerId>,
    told: Vec<Told>,
    tokens: Vec<Token>,
    keeps: bool,
    echoes: bool,
}

impl<P: Provider> Handler<P> for Half {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        self.told.push(Got(message.bytes().to_vec(), message.imm()));
        match out.keep(&message).filter(|_| self.keeps) {
            Some(token) => {
                self.tokens.push(token);
                Verdict::Keep(token)
            }
            None if self.echoes => Verdict::Reply { len: message.len() },
            None => Verdict::Done,
        }
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_finished_sending(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        assert_eq!(self.up.last(), Some(&peer));
        self.told.push(Finished);
    }
    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
        self.told.push(Down(why));
    }
    fn on_send_done(
        &mut self,
        _: PeerId,
        token: u64,
        result: Result<(), Status>,
        _: &mut Outbox<'_, P>,
    ) {
        self.told.push(Done(token, result));
    }
}

struct Pair {
    one: Side<Half>,
    two: Side<Half>,
    nums: (u32, u32),
}

impl Pair {
    fn new(configs: [&Config; 2], two: Half) -> Pair {
        let (mut one, mut two) = (side_of(configs[0], Half::default()), side_of(configs[1], two));
        let nums = connect(&mut one, &mut two);
        Pair { one, two, nums }
    }

    /// Turns both; the control plane passes on an end that a worker asks for.
    fn turns(&mut self) {
        for _ in 0..200 {
            self.one.worker.turn();
            self.two.worker.turn();
            let asked = [self.one.intake.next_closing(), self.two.intake.next_closing()];
            if asked != [None, None] {
                assert!(self.one.intake.gone(self.nums.0) && self.two.intake.gone(self.nums.1));
            }
        }
    }

    fn peers(&self) -> (PeerId, PeerId) {
        (self.one.worker.handler().up[0], self.two.worker.handler().up[0])
    }
}

fn told(side: &Side<Half>) -> &[Told] {
    &side.worker.handler().told
}

/// Sends until there is no room, at most `count`: how many.
fn send(side: &mut Side<Half>, count: usize, length: usize) -> usize {
    let peer = side.worker.handler().up[0];
    let mut sent = 0;
    while sent < count && side.worker.outbox().send(peer, &payload(sent, length)).is_ok() {
        sent += 1;
    }
    sent
}

fn got(count: usize, length: usize) -> Vec<Told> {
    (0..count).map(|n| Got(payload(n, length), None)).collect()
}

/// Sends of every kind are refused, and say why.
fn assert_refused(side: &mut Side<Half>) {
    let peer = side.worker.handler().up[0];
    let mut out = side.worker.outbox();
    let no = SendError::FinishedSending;
    assert_eq!(out.send(peer, &[]), Err(no));
    assert_eq!(out.send(peer, &[0; 300]), Err(no));
    assert_eq!(out.send_now(peer, b"now"), Err(no));
    assert_eq!(out.send_imm(peer, b"imm", 1), Err(no));
    assert_eq!(out.send_list(peer, &[b"list"]), Err(ListError { accepted: 0, cause: no }));
    let request = Request { op: RequestOp::SEND, pieces: &[], fence: false, token: 99 };
    assert_eq!(out.request(peer, &request), Err(no));
    assert_eq!(out.room(peer), 0);
}

/// Everything accepted arrives, and then the word. The other side still sends. When it has finished
/// too, both see the same end, and nothing is lost.
#[test]
fn each_side_finishes_after_everything_it_accepted() {
    for (config, length) in [(CONFIG, 16), (CONFIG, 300), (NARROW, 16), (NARROW, 300)] {
        for count in [0, 1, 2, 7, 16] {
            let mut pair = Pair::new([&config, &config], Half::default());
            let (peer, back) = pair.peers();
            let sent = send(&mut pair.one, count, length);
            for _ in 0..2 {
                pair.one.worker.outbox().finish_sending(peer);
                assert_refused(&mut pair.one);
            }
            pair.turns();
            let mut all = got(sent, length);
            all.push(Finished);
            assert_eq!(told(&pair.two), all);
            assert!(told(&pair.one).is_empty());
            assert_refused(&mut pair.one);
            // More than the window, so credit still goes the other way.
            let mut answers = 0;
            while answers < 40 {
                let more = send(&mut pair.two, 40 - answers, length);
                assert_ne!(more, 0, "after {answers}");
                answers += more;
                pair.turns();
            }
            assert_eq!(told(&pair.one).len(), 40);
            let last = send(&mut pair.two, 3, length);
            pair.two.worker.outbox().finish_sending(back);
            assert_refused(&mut pair.two);
            pair.turns();
            assert_eq!(told(&pair.one)[40..40 + last], got(last, length));
            assert_eq!(told(&pair.one)[40 + last..], [Finished, Down(DownReason::Finished)]);
            assert_eq!(told(&pair.two)[all.len()..], [Down(DownReason::Finished)]);
            for side in [&pair.one, &pair.two] {
                assert_eq!((side.worker.peers(), side.worker.stats().errors_by_status[12]), (0, 0));
                assert_eq!(side.worker.send_blocks_home(), config.send_blocks as usize);
            }
        }
    }
}

/// Both finish at the same time; each has requests with tokens, which all succeed.
#[test]
fn both_finish_at_once_and_every_request_succeeds() {
    for config in [CONFIG, Config { window: 8, window_min: 8, ..CONFIG }] {
        let mut pair = Pair::new([&config, &config], Half::default());
        let (peer, back) = pair.peers();
        for (side, peer) in [(&mut pair.one, peer), (&mut pair.two, back)] {
            let mut out = side.worker.outbox();
            for token in 0..3 {
                let request = Request { op: RequestOp::SEND, pieces: &[], fence: false, token };
                out.request(peer, &request).unwrap();
            }
            out.finish_sending(peer);
        }
        pair.turns();
        for side in [&pair.one, &pair.two] {
            let told = told(side);
            let done = told.iter().filter(|told| matches!(told, Done(_, Ok(())))).count();
            assert_eq!((done, told.len()), (3, 8), "{told:?}");
            assert_eq!(told[7], Down(DownReason::Finished));
            assert_eq!(told.iter().filter(|told| **told == Finished).count(), 1);
        }
    }
}

/// A side that is through closes only when the other has said goodbye: so the other's last sends
/// are known to be over there.
#[test]
fn nobody_closes_before_the_other_knows_that_all_arrived() {
    let mut pair = Pair::new([&CONFIG, &CONFIG], Half::default());
    let (peer, back) = pair.peers();
    pair.one.worker.outbox().finish_sending(peer);
    pair.turns();
    let request = Request { op: RequestOp::SEND, pieces: &[], fence: false, token: 5 };
    pair.two.worker.outbox().request(back, &request).unwrap();
    pair.two.worker.outbox().finish_sending(back);
    for _ in 0..3 {
        pair.two.worker.turn();
    }
    // The second side has posted all, and does not turn: it does not know yet what has arrived.
    for _ in 0..100 {
        pair.one.worker.turn();
    }
    assert_eq!(told(&pair.one), [Got(vec![], None), Finished]);
    assert_eq!(pair.one.intake.next_closing(), None);
    pair.turns();
    assert_eq!(told(&pair.two), [Finished, Done(5, Ok(())), Down(DownReason::Finished)]);
    assert_eq!(told(&pair.one)[2..], [Down(DownReason::Finished)]);
}

/// Replies that wait for credit were accepted: they go before the word. A later one is not sent,
/// whether by a verdict or with a token, which still names its message.
#[test]
fn replies_go_before_the_word_and_none_after_it() {
    let echoes = Half { echoes: true, ..Half::default() };
    let mut pair = Pair::new([&NARROW, &CONFIG], echoes);
    let (_, back) = pair.peers();
    let sent = send(&mut pair.one, 16, 24);
    pair.one.worker.outbox().flush();
    for _ in 0..3 {
        pair.two.worker.turn();
    }
    assert!(pair.two.worker.stats().deferred > 4, "there was credit for all");
    pair.two.worker.outbox().finish_sending(back);
    assert_refused(&mut pair.two);
    pair.turns();
    let mut all = got(sent, 24);
    all.push(Finished);
    assert_eq!(told(&pair.one), all);
    // Messages that nobody answers use up no credit.
    for length in [0, 24, 300, 512] {
        for _ in 0..40 {
            assert_ne!(send(&mut pair.one, 1, length), 0);
            pair.turns();
        }
    }
    assert_eq!((told(&pair.one).len(), told(&pair.two).len()), (17, 16 + 160));
    pair.two.worker.handler_mut().keeps = true;
    assert_eq!(send(&mut pair.one, 1, 24), 1);
    pair.turns();
    let token = pair.two.worker.handler().tokens[0];
    assert_eq!(pair.two.worker.outbox().reply(token, 24), Err(SendError::FinishedSending));
    assert!(pair.two.worker.outbox().give_back(token));
}

/// The word waits for a receive, as a message does: nothing is told before the peer can take it.
#[test]
fn the_word_waits_for_credit() {
    let keeps = Half { keeps: true, ..Half::default() };
    let wide = Config { keeps: 16, ..NARROW };
    let mut pair = Pair::new([&NARROW, &wide], keeps);
    let (peer, back) = pair.peers();
    // Three messages, and an answer in the last receive: all are kept.
    assert_eq!(send(&mut pair.one, 16, 24), 3);
    pair.one.worker.handler_mut().echoes = true;
    pair.two.worker.outbox().send(back, b"well").unwrap();
    pair.turns();
    pair.one.worker.outbox().finish_sending(peer);
    pair.turns();
    assert_eq!(told(&pair.two).len(), 4, "{:?}", told(&pair.two));
    let token = pair.two.worker.handler().tokens[0];
    assert!(pair.two.worker.outbox().give_back(token));
    for _ in 0..200 {
        pair.turns();
    }
    assert_eq!(told(&pair.two)[4..], [Finished]);
}

/// A peer that is lost after one side has finished is gone, and has not finished.
#[test]
fn a_peer_that_is_lost_after_one_side_finished_is_gone() {
    for ours in [true, false] {
        let mut pair = Pair::new([&CONFIG, &CONFIG], Half::default());
        let (peer, back) = pair.peers();
        match ours {
            true => pair.one.worker.outbox().finish_sending(peer),
            false => pair.two.worker.outbox().finish_sending(back),
        }
        pair.turns();
        assert!(pair.one.intake.gone(pair.nums.0) && pair.two.intake.gone(pair.nums.1));
        pair.turns();
        for side in [&pair.one, &pair.two] {
            assert_eq!(told(side).last(), Some(&Down(DownReason::Disconnected)), "{ours}");
        }
    }
}

/// Both have finished, and the peer is lost. If it had taken everything, nothing is wrong; if not,
/// it is gone.
#[test]
fn a_peer_that_is_lost_at_the_end_has_finished_if_it_took_everything() {
    for takes in [true, false] {
        let mut pair = Pair::new([&CONFIG, &CONFIG], Half::default());
        let (peer, back) = pair.peers();
        pair.two.worker.outbox().finish_sending(back);
        pair.turns();
        assert_eq!(send(&mut pair.one, 3, 24), 3);
        pair.one.worker.outbox().finish_sending(peer);
        for _ in 0..10 {
            pair.one.worker.turn();
        }
        assert_eq!(told(&pair.one), [Finished]);
        if takes {
            pair.two.worker.turn();
        }
        assert!(pair.one.intake.gone(pair.nums.0));
        for _ in 0..2000 {
            pair.one.worker.turn();
        }
        let why = if takes { DownReason::Finished } else { DownReason::Disconnected };
        assert_eq!(told(&pair.one), [Finished, Down(why)]);
    }
}

/// The other side never says goodbye: after `Config::drain_turns` the connection ends all the same.
/// Everything has arrived, so both have finished.
#[test]
fn a_peer_that_falls_silent_at_the_end_is_closed() {
    let mut pair = Pair::new([&CONFIG, &CONFIG], Half::default());
    let (peer, back) = pair.peers();
    pair.one.worker.outbox().finish_sending(peer);
    pair.turns();
    pair.two.worker.outbox().finish_sending(back);
    pair.two.worker.turn();
    let turns = (0..5000).take_while(|_| {
        pair.one.worker.turn();
        pair.one.intake.next_closing().is_none()
    });
    let turns = turns.count() as u64;
    // The worker counts idle turns by the dozen.
    assert!(turns.abs_diff(CONFIG.drain_turns) <= 32, "{turns}");
    pair.one.worker.turn();
    assert_eq!(told(&pair.one), [Finished, Down(DownReason::Finished)]);
}

/// Both have finished, and the peer acknowledges nothing: after `Config::drain_turns` this side
/// closes. It does not say that everything has arrived.
#[test]
fn a_peer_that_takes_nothing_at_the_end_is_closed_and_has_not_finished() {
    let mut pair = Pair::new([&CONFIG, &CONFIG], Half::default());
    let (peer, back) = pair.peers();
    pair.two.worker.outbox().finish_sending(back);
    pair.turns();
    assert_eq!(send(&mut pair.one, 3, 24), 3);
    pair.one.worker.outbox().finish_sending(peer);
    let silent = (0..5000).any(|_| {
        pair.one.worker.turn();
        pair.one.intake.next_closing().is_some()
    });
    assert!(silent && pair.one.intake.gone(pair.nums.0));
    for _ in 0..2000 {
        pair.one.worker.turn();
    }
    assert_eq!(told(&pair.one), [Finished, Down(DownReason::CutOff)]);
}

/// A worker drains that has finished sending to a peer, and keeps a message of it: there is nothing
/// to wait for. One whose peer takes nothing ends when its time is over.
#[test]
fn a_drain_after_it_ends_as_before() {
    for silent in [false, true] {
        let mut pair = Pair::new([&CONFIG, &CONFIG], Half::default());
        pair.one.worker.handler_mut().keeps = true;
        let (peer, back) = pair.peers();
        pair.two.worker.outbox().send(back, b"keep").unwrap();
        pair.turns();
        assert_eq!(pair.one.worker.kept(), 1);
        assert_eq!(send(&mut pair.one, 3, 24), 3);
        pair.one.worker.outbox().finish_sending(peer);
        let mut left = 300;
        let undone = pair.one.worker.drain(|| {
            if !silent {
                pair.two.worker.turn();
            }
            left -= 1;
            left > 0
        });
        assert_eq!((undone.peers, left > 0), (usize::from(silent), !silent));
        assert_eq!(told(&pair.one).last(), Some(&Down(DownReason::Closed)));
        if !silent {
            assert!(pair.two.intake.gone(pair.nums.1));
            pair.turns();
            // The word may be superseded by the goodbye.
            let others = told(&pair.two).iter().filter(|told| **told != Finished).cloned();
            let mut all = got(3, 24);
            all.push(Down(DownReason::Finished));
            assert_eq!(others.collect::<Vec<_>>(), all);
        }
    }
}

/// The whole connection may be ended after one direction was; and the other way round nothing
/// changes.
#[test]
fn a_peer_may_be_finished_after_sending_was() {
    for first in [true, false] {
        let mut pair = Pair::new([&CONFIG, &CONFIG], Half::default());
        let (peer, _) = pair.peers();
        let mut out = pair.one.worker.outbox();
        if first {
            out.finish_sending(peer);
            out.finish(peer);
        } else {
            out.finish(peer);
            out.finish_sending(peer);
        }
        let why = if first { SendError::FinishedSending } else { SendError::NotConnected };
        assert!([why, SendError::NotConnected].contains(&out.send(peer, b"more").unwrap_err()));
        pair.turns();
        assert_eq!(told(&pair.one), [Down(DownReason::Closed)]);
        assert_eq!(told(&pair.two).last(), Some(&Down(DownReason::Finished)));
    }
}

/// A program's own message with the immediate data of the word is a message, even if the word has
/// arrived before the peer takes it. A WRITE with it is refused, see `requests`.
#[test]
fn a_message_that_looks_like_the_word_is_a_message() {
    let mut pair = Pair::new([&CONFIG, &CONFIG], Half::default());
    let (peer, _) = pair.peers();
    pair.one.worker.outbox().send_imm(peer, &[0; 8], FINISHED_IMM).unwrap();
    pair.one.worker.outbox().finish_sending(peer);
    for _ in 0..300 {
        pair.one.worker.turn();
    }
    pair.turns();
    assert_eq!(told(&pair.two), [Got(vec![0; 8], Some(FINISHED_IMM)), Finished]);
}

/// Credit words are sends, too. However many follow the last message, none opens the queue again,
/// although their number wraps.
#[test]
fn sending_stays_finished_when_counts_wrap() {
    let mut pair = Pair::new([&NARROW, &NARROW], Half::default());
    let (peer, _) = pair.peers();
    pair.one.worker.outbox().finish_sending(peer);
    pair.turns();
    for round in 0..5 {
        let sq = &mut pair.one.worker.core.sender.peers.get(peer).unwrap().sq;
        sq.pushed = sq.pushed.wrapping_add(1 << 30);
        sq.retired = sq.retired.wrapping_add(1 << 30);
        sq.non_messages = sq.non_messages.wrapping_add(1 << 30);
        // As each word does.
        sq.set_room(0);
        // It reviews all peers.
        let _ = pair.one.worker.arm();
        let sq = &pair.one.worker.core.sender.peers.get(peer).unwrap().sq;
        assert!(!sq.has_budget::<false>(), "round {round}");
        assert_eq!(pair.one.worker.outbox().send(peer, b"more"), Err(SendError::FinishedSending));
    }
}

/// The next peer in a slot is as new as the first, and no receive is lost with any of them.
#[test]
fn a_slot_forgets_that_its_last_peer_had_finished() {
    let lone = Config { peers: 1, ..NARROW };
    let mut pair = Pair::new([&lone, &lone], Half::default());
    let (first, _) = pair.peers();
    for round in 1..2 * NARROW.recv_blocks as usize {
        let sides = [&mut pair.one, &mut pair.two];
        let [peer, back] = sides.map(|side| *side.worker.handler().up.last().unwrap());
        assert_eq!(peer.index(), first.index());
        pair.one.worker.outbox().send(peer, b"hello").unwrap();
        pair.one.worker.outbox().finish_sending(peer);
        pair.two.worker.outbox().finish_sending(back);
        pair.turns();
        assert_eq!((pair.one.worker.peers(), pair.two.worker.peers()), (0, 0));
        let all = [Got(b"hello".to_vec(), None), Finished, Down(DownReason::Finished)];
        assert_eq!(told(&pair.two)[3 * (round - 1)..], all, "round {round}");
        pair.nums = connect(&mut pair.one, &mut pair.two);
    }
}
