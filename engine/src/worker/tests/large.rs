//! Messages larger than a block.

use super::*;
use crate::large::{Arrived, Large, Lost, Offer, Received};
use crate::provider::Access;
use crate::wr::SendOp;

const TOKENS: u64 = 500;
const BYTES: usize = 5 << 20;

/// Records the events, and takes an offer if it is told where to put it.
struct Hands {
    large: Large,
    up: Vec<PeerId>,
    region: Option<RegionId>,
    /// Where the next offer goes; declined if that is beyond the end.
    next: usize,
    taken: Vec<Arrived>,
    /// Requests that have ended, and how many had when a message arrived or failed.
    ends: u32,
    ends_then: Vec<u32>,
    /// When a message had arrived: the requests that wait for the doorbell.
    waiting_then: Vec<Vec<SendOp>>,
    done: Vec<(u64, bool)>,
    lost: Vec<Lost>,
    declines: Vec<Offer>,
}

impl Default for Hands {
    fn default() -> Hands {
        Hands {
            large: Large::new(4, TOKENS),
            up: Vec::new(),
            region: None,
            next: 0,
            taken: Vec::new(),
            ends: 0,
            ends_then: Vec::new(),
            waiting_then: Vec::new(),
            done: Vec::new(),
            lost: Vec::new(),
            declines: Vec::new(),
        }
    }
}

impl<P: Provider> Handler<P> for Hands {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        match self.large.received(&message) {
            Received::Offered(offer) => {
                let to = Piece {
                    region: self.region.unwrap(),
                    offset: self.next,
                    length: offer.length(),
                };
                match self.large.take(out, offer, to, offer.tag()) {
                    Ok(()) => self.next += offer.length() as usize,
                    Err(_) => self.declines.push(offer),
                }
            }
            Received::Done { key, taken } => self.done.push((key, taken)),
            Received::Foreign => {}
        }
        Verdict::Done
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_send_done(
        &mut self,
        peer: PeerId,
        token: u64,
        result: Result<(), Status>,
        out: &mut Outbox<'_, P>,
    ) {
        self.ends += 1;
        if let Some(arrived) = self.large.read(out, token, result) {
            self.taken.push(arrived);
            self.ends_then.push(self.ends);
            let sender = &mut out.core.sender;
            let batch = sender.peers.at(peer.slot).and_then(|peer| sender.batches.get(peer.batch));
            let waiting = batch.map(|batch| batch.list.iter().map(|wr| wr.op).collect());
            self.waiting_then.push(waiting.unwrap_or_default());
        }
    }
    fn on_peer_down(&mut self, peer: PeerId, _: DownReason, _: &mut Outbox<'_, P>) {
        self.lost.extend(std::iter::from_fn(|| self.large.lost(peer)));
    }
    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        while let Some(arrived) = self.large.progress(out) {
            self.taken.push(arrived);
        }
        self.declines.retain(|offer| self.large.decline(out, *offer).is_err());
    }
}

/// The window alone limits messages: the send queue is longer.
fn hands(requests: u32) -> Side<Hands> {
    let config = Config { window: 14, window_min: 14, send_queue: 64, requests, ..CONFIG };
    let mut side = side_of(&config, Hands::default());
    let memory = Mapping::plain(BYTES).unwrap();
    let region = side.nic.register(memory, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    side.worker.handler_mut().region = Some(side.worker.adopt(region));
    side
}

fn pair() -> (Side<Hands>, Side<Hands>, (u32, u32)) {
    pair_of(2)
}

fn pair_of(requests: u32) -> (Side<Hands>, Side<Hands>, (u32, u32)) {
    let (mut one, mut two) = (hands(requests), hands(requests));
    let nums = connect(&mut one, &mut two);
    (one, two, nums)
}

fn turns(one: &mut Side<Hands>, two: &mut Side<Hands>, count: usize) {
    for _ in 0..count {
        one.worker.turn();
        two.worker.turn();
    }
}

/// Calls and outbox at once, from outside the handler.
fn offer(side: &mut Side<Hands>, offset: usize, length: u32, key: u64) -> Result<(), SendError> {
    let (peer, region) = (side.worker.handler().up[0], side.worker.handler().region.unwrap());
    let mut large = std::mem::replace(&mut side.worker.handler_mut().large, Large::new(0, 0));
    let piece = Piece { region, offset, length };
    let result = large.offer(&mut side.worker.outbox(), peer, piece, key, key + 1000);
    side.worker.handler_mut().large = large;
    result
}

/// Messages of no, one and several READs at the same time: every byte arrives, and each side is
/// told once.
#[test]
fn large_messages_arrive_whole() {
    let (mut one, mut two, _) = pair();
    let lengths = [3 << 20, 0, 1, (1 << 20) + 7];
    let bytes: Vec<u8> = (0..BYTES).map(|n| (n * 31 + n / 4096 + (n >> 20) * 7) as u8).collect();
    let region = one.worker.handler().region.unwrap();
    one.worker.outbox().copy_in(region, 0, &bytes).unwrap();
    let mut offset = 0;
    for (key, length) in lengths.into_iter().enumerate() {
        offer(&mut one, offset, length, key as u64).unwrap();
        offset += length as usize;
    }
    assert_eq!(offer(&mut one, 0, 1, 9), Err(SendError::TooMany));
    turns(&mut one, &mut two, 3000);
    let mut there = vec![0; offset];
    let region = two.worker.handler().region.unwrap();
    two.worker.outbox().copy_out(region, 0, &mut there).unwrap();
    assert!(there == bytes[..offset], "bytes are missing or wrong");
    let mut done = one.worker.handler().done.clone();
    done.sort_unstable();
    assert_eq!(done, [0, 1, 2, 3].map(|key| (key, true)));
    let mut taken = std::mem::take(&mut two.worker.handler_mut().taken);
    taken.sort_unstable_by_key(|arrived| arrived.key);
    let all: Vec<_> = taken.iter().map(|a| (a.key, a.offer.length(), a.result)).collect();
    let key = |n: usize| (1000 + n as u64, lengths[n], Ok(()));
    assert_eq!(all, [0, 1, 2, 3].map(key));
    for side in [&mut one, &mut two] {
        let large = &side.worker.handler().large;
        assert_eq!((large.pending(), large.waiting()), (0, (0, 0)), "an idle turn looks at none");
    }
}

/// While the peer carries out one READ of a message, the next are on their way: as many as there is
/// room for, and four at most. The bytes arrive in order.
#[test]
fn several_reads_of_a_message_are_in_flight() {
    for (requests, most) in [(2, 2), (16, 4)] {
        let (mut one, mut two, _) = pair_of(requests);
        let length = (4 << 20) + 13;
        let bytes: Vec<u8> = (0..length).map(|n| (n * 7 + n / 4096) as u8).collect();
        let region = one.worker.handler().region.unwrap();
        one.worker.outbox().copy_in(region, 0, &bytes).unwrap();
        offer(&mut one, 0, length as u32, 1).unwrap();
        let mut seen = 0;
        for _ in 0..2000 {
            turns(&mut one, &mut two, 1);
            seen = seen.max(two.worker.handler().large.in_flight());
        }
        assert_eq!(seen, most, "of {requests} requests");
        assert_eq!(one.worker.handler().done, [(1, true)]);
        let mut there = vec![0; length];
        let region = two.worker.handler().region.unwrap();
        two.worker.outbox().copy_out(region, 0, &mut there).unwrap();
        assert!(there == bytes, "bytes are missing or wrong");
    }
}

/// A turn posts one READ where it handles messages, and one where it reports requests, however many
/// messages there are: two sides that read from each other have to look at each other meanwhile.
#[test]
fn a_turn_posts_few_reads() {
    let (mut one, mut two, _) = pair_of(16);
    for key in 0..3 {
        offer(&mut one, key << 20, 1 << 20, key as u64).unwrap();
    }
    let (mut before, mut most) = (0, 0);
    for _ in 0..3000 {
        turns(&mut one, &mut two, 1);
        let now = two.worker.handler().large.in_flight();
        most = most.max(now.saturating_sub(before));
        before = now;
    }
    assert!((1..=2).contains(&most), "{most} in a turn");
    assert_eq!(one.worker.handler().done.len(), 3);
}

/// The peer is told that a message was taken before the next one is read: a device in software
/// carries a READ out in the post, and what is posted behind it waits for the copy.
#[test]
fn the_answer_goes_before_the_next_read() {
    let (mut one, mut two, _) = pair_of(16);
    for key in 0..3 {
        offer(&mut one, key << 10, 1 << 10, key as u64).unwrap();
    }
    turns(&mut one, &mut two, 300);
    assert_eq!(one.worker.handler().done.len(), 3);
    let waiting = &two.worker.handler().waiting_then;
    assert!(matches!(waiting[0][..], [SendOp::Read(_)]), "the answer is written: {waiting:?}");
}

/// A message that fails is over when its last request has ended: until then the device may write
/// to its memory.
#[test]
fn a_message_that_fails_ends_with_its_last_request() {
    let mut failed = 0;
    for count in 0..60 {
        let (mut one, mut two, nums) = pair_of(16);
        offer(&mut one, 0, 4 << 20, 1).unwrap();
        turns(&mut one, &mut two, count);
        assert!(one.intake.gone(nums.0));
        turns(&mut one, &mut two, 30);
        assert!(two.intake.gone(nums.1));
        turns(&mut one, &mut two, 1200);
        let hands = two.worker.handler();
        if let [Arrived { result: Err(_), .. }] = hands.taken[..] {
            assert_eq!(hands.ends_then, [hands.ends], "after {count} turns");
            failed += 1;
        }
    }
    assert!(failed > 0, "no read ever failed");
}

/// A message without memory for it is declined, and the sender is told.
#[test]
fn a_message_without_room_is_declined() {
    let (mut one, mut two, _) = pair();
    two.worker.handler_mut().next = BYTES - 100;
    offer(&mut one, 0, 101, 1).unwrap();
    offer(&mut one, 0, 100, 2).unwrap();
    assert_eq!(offer(&mut one, BYTES - 1, 2, 3), Err(SendError::OutOfBounds));
    assert_eq!(offer(&mut one, 0, (1 << 30) + 1, 3), Err(SendError::TooLong));
    for access in [Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_WRITE] {
        let memory = one.nic.register(Mapping::plain(4096).unwrap(), access).unwrap();
        let region = one.worker.adopt(memory);
        let readable = one.worker.handler_mut().region.replace(region);
        assert_eq!(offer(&mut one, 0, 1, 3), Err(SendError::NoRights), "{access:?}");
        one.worker.handler_mut().region = readable;
    }
    turns(&mut one, &mut two, 500);
    let mut done = one.worker.handler().done.clone();
    done.sort_unstable();
    assert_eq!(done, [(1, false), (2, true)]);
    assert_eq!(one.worker.handler().large.pending(), 0);
}

/// A peer that goes in the middle: each side is told once of each message, and nothing is left.
#[test]
fn a_peer_that_goes_in_the_middle_leaves_nothing() {
    let mut failed = 0;
    for count in 0..60 {
        let (mut one, mut two, nums) = pair();
        offer(&mut one, 0, 3 << 20, 1).unwrap();
        offer(&mut one, 0, 2 << 20, 2).unwrap();
        turns(&mut one, &mut two, count);
        assert!(one.intake.gone(nums.0));
        turns(&mut one, &mut two, 30);
        assert!(two.intake.gone(nums.1));
        turns(&mut one, &mut two, 1200);
        let (ends, taken) = {
            let hands = one.worker.handler();
            assert_eq!(hands.large.pending(), 0);
            (hands.done.len() + hands.lost.len(), hands.done.len())
        };
        assert_eq!(ends, 2, "after {count} turns");
        let hands = two.worker.handler();
        assert_eq!(hands.large.pending(), 0);
        let whole = hands.taken.iter().filter(|arrived| arrived.result.is_ok()).count();
        assert!(whole >= taken && hands.taken.len() + hands.lost.len() <= 2);
        failed += hands.taken.len() - whole;
    }
    assert!(failed > 0, "no read ever failed");
}

/// Takes an offer from outside the handler.
fn take(side: &mut Side<Hands>, offer: Offer) -> Result<(), SendError> {
    let region = side.worker.handler().region.unwrap();
    let mut large = std::mem::replace(&mut side.worker.handler_mut().large, Large::new(0, 0));
    let to = Piece { region, offset: 0, length: offer.length() };
    let result = large.take(&mut side.worker.outbox(), offer, to, 7);
    side.worker.handler_mut().large = large;
    result
}

/// A side that has an offer of that length, and the sides' queue pairs. It did not take it at once.
fn offered(length: u32) -> (Side<Hands>, Side<Hands>, (u32, u32), Offer) {
    let (mut one, mut two, nums) = pair();
    two.worker.handler_mut().next = BYTES;
    offer(&mut one, 0, length, 1).unwrap();
    one.worker.turn();
    two.worker.turn();
    let offer = two.worker.handler_mut().declines.pop().unwrap();
    (one, two, nums, offer)
}

/// An offer of a peer that is gone cannot be taken: no event would come to end it.
#[test]
fn an_offer_of_a_peer_that_is_gone_is_not_taken() {
    let (mut one, mut two, nums, offer) = offered(1 << 20);
    assert!(one.intake.gone(nums.0) && two.intake.gone(nums.1));
    turns(&mut one, &mut two, 1200);
    assert_eq!(take(&mut two, offer), Err(SendError::NotConnected));
    assert_eq!(two.worker.handler().large.pending(), 0);
}

/// A side that has finished sending may neither read nor answer: what it has taken ends.
#[test]
fn a_transfer_ends_when_its_side_has_finished_sending() {
    for (length, whole) in [(1 << 20, false), (1 << 10, true)] {
        let (mut one, mut two, _, offer) = offered(length);
        assert_eq!(take(&mut two, offer), Ok(()));
        two.worker.outbox().finish_sending(offer.peer());
        turns(&mut one, &mut two, 1200);
        let hands = two.worker.handler();
        assert_eq!(hands.large.pending(), 0, "{length} bytes");
        let ends: Vec<_> = hands.taken.iter().map(|a| (a.key, a.result.is_ok())).collect();
        assert_eq!(ends, [(7, whole)], "{length} bytes");
        assert_eq!(take(&mut two, offer), Err(SendError::FinishedSending));
    }
}

/// The same for a message of which it has asked for nothing yet, because the turn allowed no more.
#[test]
fn a_transfer_that_has_not_begun_ends_too() {
    let (mut one, mut two, _) = pair();
    two.worker.handler_mut().next = BYTES;
    for key in [1, 2] {
        offer(&mut one, 0, 1 << 10, key).unwrap();
    }
    one.worker.turn();
    two.worker.turn();
    let offers = std::mem::take(&mut two.worker.handler_mut().declines);
    for offer in &offers {
        assert_eq!(take(&mut two, *offer), Ok(()));
    }
    assert_eq!(two.worker.handler().large.in_flight(), 1);
    two.worker.outbox().finish_sending(offers[0].peer());
    turns(&mut one, &mut two, 1200);
    let hands = two.worker.handler();
    assert_eq!((hands.large.pending(), hands.large.waiting()), (0, (0, 0)));
    let whole: Vec<_> = hands.taken.iter().map(|arrived| arrived.result.is_ok()).collect();
    assert_eq!(whole, [false, true], "the one that has not begun ends first");
}

/// A message that has arrived while there is no room for the answer is answered later.
#[test]
fn an_answer_waits_for_room() {
    let (mut one, mut two, _) = pair();
    offer(&mut one, 0, 100, 7).unwrap();
    let fill = |side: &mut Side<Hands>| {
        let peer = side.worker.handler().up[0];
        while side.worker.outbox().send(peer, b"in the way").is_ok() {}
    };
    // The answer finds no room if the peer has granted nothing since the last message.
    let waits = (0..100).any(|_| {
        one.worker.turn();
        fill(&mut two);
        two.worker.turn();
        two.worker.handler().large.waiting() == (0, 1)
    });
    assert!(waits && two.worker.handler().taken.is_empty());
    assert_eq!(one.worker.handler().done, []);
    turns(&mut one, &mut two, 1200);
    assert_eq!(one.worker.handler().done, [(7, true)]);
    let hands = two.worker.handler();
    assert_eq!((hands.taken.len(), hands.large.waiting()), (1, (0, 0)));
}
