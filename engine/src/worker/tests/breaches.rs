//! Peers that break the rules of credit: each ends, and the reason says what was seen and what was
//! allowed. Another peer of the same worker is served as before.

use super::credits::{COUNTED, Hoarder, settle_credits};
use super::*;
use crate::worker::batch::request;
use crate::worker::credit::Credit;
use crate::worker::held::Held;
use crate::wr::{SendFlags, SendOp, Sge};

/// A worker that keeps messages which begin with 1, is done with those which begin with 3, and
/// replies to others; a peer that lies; and another peer.
struct Court {
    server: Side<Hoarder>,
    liar: Side,
    lying: PeerId,
    other: Side,
    asked: usize,
}

impl Court {
    fn new(liar: &Config) -> Court {
        let config = Config { keeps: 64, ..COUNTED };
        let mut server = side_of(&config, Hoarder::default());
        let (mut liar, mut other) = (side(liar, false), side(&COUNTED, false));
        connect(&mut liar, &mut server);
        connect(&mut other, &mut server);
        let lying = liar.only_peer();
        let mut court = Court { server, liar, lying, other, asked: 0 };
        court.other_is_served();
        court
    }

    /// The liar's worker does not turn, so it says only what a test makes it say.
    fn turns(&mut self) {
        for _ in 0..100 {
            self.server.worker.turn();
            self.other.worker.turn();
        }
    }

    fn other_is_served(&mut self) {
        let peer = self.other.only_peer();
        self.other.worker.outbox().send(peer, &payload(0, 40)).unwrap();
        self.turns();
        self.asked += 1;
        assert_eq!(self.other.worker.handler().got.len(), self.asked);
        assert_eq!(self.other.worker.handler().down, []);
    }

    /// The liar writes that word to the server.
    fn writes(&mut self, word: u64) {
        let at = self.liar.worker.core.sender.peers.get(self.lying).unwrap().credit.peer_word;
        let bytes = word.to_ne_bytes();
        let op = SendOp::Write(at.unwrap());
        self.posts(op, &bytes);
        let sq = &mut self.liar.worker.core.sender.peers.get(self.lying).unwrap().sq;
        sq.count_non_message();
    }

    /// The liar sends, whatever its credit is.
    fn sends(&mut self, count: u32, first: u8) {
        for _ in 0..count {
            self.posts(SendOp::Send, &[first; 40]);
        }
    }

    fn posts(&mut self, op: SendOp, bytes: &[u8]) {
        let wr = request(op, SendFlags::INLINE, Sge::inline(bytes));
        let sender = &mut self.liar.worker.core.sender;
        assert_eq!(sender.post_one(self.lying.slot, wr, Held::NOTHING), Ok(()));
    }

    /// The server reviews what its peers say.
    fn review(&mut self) {
        self.turns();
        settle_credits(&mut self.server);
        self.turns();
    }

    fn goes_on(&mut self) {
        assert_eq!(self.server.worker.handler().down, []);
        self.other_is_served();
    }

    fn ends(&mut self, breach: Breach) {
        assert_eq!(self.server.worker.handler().down, [DownReason::BrokeProtocol(breach)]);
        assert_eq!(self.server.worker.stats().breaches, 1);
        for _ in 0..40 {
            self.other_is_served();
        }
        assert_eq!(self.server.worker.handler().down.len(), 1);
        assert_eq!(self.server.worker.kept(), 0, "its blocks are home");
    }
}

/// It may have more messages in flight than its send queue usually takes.
const LIAR: Config = Config { send_queue: 64, ..COUNTED };

#[test]
fn a_peer_whose_credit_word_goes_back_ends() {
    let mut court = Court::new(&LIAR);
    for said in [10, 12, 12] {
        court.writes(said);
        court.review();
        court.goes_on();
    }
    court.writes(11);
    court.review();
    court.ends(Breach::WentBack { said: 11, before: 12 });
}

/// The word goes back between two reviews, below what was sent meanwhile.
#[test]
fn a_peer_that_takes_back_credit_which_was_used_ends() {
    let mut court = Court::new(&LIAR);
    court.writes(10);
    court.turns();
    let peer = court.server.worker.handler().up[0];
    for _ in 0..16 {
        court.server.worker.outbox().send(peer, b"message").unwrap();
    }
    court.writes(1);
    court.review();
    court.ends(Breach::WentBack { said: 1, before: 2 });
}

#[test]
fn a_peer_that_grants_more_than_a_window_ends() {
    let mut court = Court::new(&LIAR);
    let most = u32::from(u16::MAX);
    court.writes(u64::from(most) - 14);
    court.review();
    court.goes_on();
    court.writes(u64::from(most) - 13);
    court.review();
    court.ends(Breach::GrantedTooMuch { said: most + 1, most });
}

/// A peer whose messages the server keeps has used its credit, and says that it gave it back.
#[test]
fn a_peer_that_gives_back_what_it_has_used_ends() {
    let mut court = Court::new(&LIAR);
    court.sends(13, 1);
    court.writes(Credit::says_given(1));
    court.review();
    court.goes_on();
    assert_eq!(court.server.worker.handler().kept, 13);
    // It was granted again what it gave back, and has that one.
    court.writes(Credit::says_given(3));
    court.review();
    court.ends(Breach::GaveBackTooMuch { said: 2, allowed: 1 });
}

/// The replies to some of its messages wait for its credit. These messages have used credit, too.
#[test]
fn a_peer_that_gives_back_what_deferred_replies_used_ends() {
    let mut court = Court::new(&Config { window: 4, window_min: 4, ..LIAR });
    court.sends(10, 5);
    court.review();
    court.goes_on();
    let deferred = |court: &mut Court| {
        let peer = court.server.worker.handler().up[0];
        court.server.worker.core.sender.peers.get(peer).unwrap().deferred
    };
    assert_eq!(deferred(&mut court), 6, "of 10 replies, 4 found credit");
    court.writes(Credit::says_given(9));
    court.review();
    court.ends(Breach::GaveBackTooMuch { said: 9, allowed: 8 });
}

/// The server is done with the messages of a peer that ignores its credit. It sees that when it
/// tells the peer its credit, without a review.
#[test]
fn a_peer_that_sends_beyond_its_credit_ends() {
    for (count, ends) in [(14, false), (15, true), (30, true)] {
        let mut court = Court::new(&LIAR);
        court.sends(count, 3);
        court.turns();
        match ends {
            true => court.ends(Breach::SentTooMuch { sent: count, allowed: 14 }),
            false => court.goes_on(),
        }
    }
}

/// The server keeps the messages of a peer that ignores its credit: a review sees that.
#[test]
fn a_peer_whose_kept_messages_exceed_its_credit_ends() {
    for (count, ends) in [(14, false), (15, true), (30, true)] {
        let mut court = Court::new(&LIAR);
        court.sends(count, 1);
        court.review();
        match ends {
            true => court.ends(Breach::SentTooMuch { sent: count, allowed: 14 }),
            false => court.goes_on(),
        }
    }
}

/// A worker does not sleep over a breach that it finds when it is about to sleep, whichever of its
/// idle turns comes next: the peer has ended, or the worker is busy.
#[test]
fn a_breach_that_is_found_before_a_sleep_ends_the_peer() {
    for turns in 0..16 {
        let mut court = Court::new(&LIAR);
        court.writes(12);
        court.review();
        court.writes(11);
        (0..20 + turns).for_each(|_| _ = court.server.worker.turn());
        assert_eq!(court.server.worker.stats().breaches, 0);
        let mut arms = 0;
        while arms < 8 && court.server.worker.arm().is_err() {
            arms += 1;
        }
        let down = &court.server.worker.handler().down;
        assert_eq!(down.len(), 1, "{turns} turns: it sleeps after {arms} turns");
        court.ends(Breach::WentBack { said: 11, before: 12 });
    }
}

#[test]
fn a_breach_says_what_was_seen_and_what_was_allowed() {
    let said = [
        Breach::SentTooMuch { sent: 30, allowed: 14 },
        Breach::GaveBackTooMuch { said: 30, allowed: 14 },
        Breach::WentBack { said: 30, before: 14 },
        Breach::GrantedTooMuch { said: 30, most: 14 },
    ];
    for text in said.map(|breach| std::string::ToString::to_string(&breach)) {
        assert!(text.contains("30") && text.contains("14"), "{text}");
    }
}
