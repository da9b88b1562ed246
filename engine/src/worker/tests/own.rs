//! Own memory of a worker: plain slices while no request in flight uses the bytes.

use super::*;
use crate::provider::{Access, Region};
use crate::remote::RequestOp;
use crate::wr::{Remote, SendOp};

/// Records how its requests ended.
#[derive(Default)]
struct Ends {
    up: Vec<PeerId>,
    ended: Vec<Result<(), Status>>,
    /// Whether the bytes of a request were free when it ended.
    was_free: Vec<bool>,
    piece: Option<OwnPiece>,
    got: Vec<Vec<u8>>,
}

impl<P: Provider> Handler<P> for Ends {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        self.got.push(message.bytes().to_vec());
        Verdict::Done
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_send_done(
        &mut self,
        _: PeerId,
        _: u64,
        result: Result<(), Status>,
        out: &mut Outbox<'_, P>,
    ) {
        self.ended.push(result);
        self.was_free.extend(self.piece.map(|piece| out.bytes_mut(piece).is_ok()));
    }
}

/// A side with own memory, and a peer with memory that it may read and write.
struct Pair {
    here: Side<Ends>,
    there: Side<Ends>,
    own: OwnRegion,
    remote: Remote,
    nums: (u32, u32),
}

impl Pair {
    fn new() -> Pair {
        let [mut here, mut there] = [(); 2].map(|()| side_of(&CONFIG, Ends::default()));
        let own = here.worker.adopt_own(&here.nic, Mapping::plain(4096).unwrap()).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = there.nic.register(Mapping::plain(4096).unwrap(), rights).unwrap();
        let remote = region.remote(0);
        there.worker.adopt(region);
        let nums = connect(&mut here, &mut there);
        Pair { here, there, own, remote, nums }
    }

    fn ask(&mut self, op: SendOp, piece: OwnPiece) {
        let worker = &mut self.here.worker;
        let peer = worker.handler().up[0];
        worker.handler_mut().piece = Some(piece);
        let op = RequestOp::unchecked(op);
        let request = Request { op, pieces: &[piece.into()], fence: false, token: 1 };
        worker.outbox().request(peer, &request).unwrap();
    }

    fn turns(&mut self) {
        for _ in 0..300 {
            self.here.worker.turn();
            self.there.worker.turn();
        }
    }

    /// The refused loans of that piece, for reading and for writing.
    fn refused(&mut self, piece: OwnPiece) -> (bool, bool) {
        let mut out = self.here.worker.outbox();
        let read = out.bytes(piece) == Err(LendError::InFlight);
        (read, out.bytes_mut(piece).map(drop) == Err(LendError::InFlight))
    }
}

/// During a SEND or a WRITE the payload can be read; during a READ the bytes cannot be borrowed;
/// the bytes beside theirs are not affected.
#[test]
fn bytes_are_lent_except_to_whom_a_request_in_flight_contradicts() {
    for (op, reads_refused) in [(0, false), (1, false), (2, true)] {
        let mut pair = Pair::new();
        let own = pair.own;
        let payload = own.piece(64, 5);
        pair.here.worker.outbox().bytes_mut(payload).unwrap().copy_from_slice(b"hello");
        let op = match op {
            0 => SendOp::Send,
            1 => SendOp::Write(pair.remote),
            _ => SendOp::Read(pair.remote),
        };
        pair.ask(op, payload);
        for (offset, length, touches) in [
            (64, 5, true),
            (0, 64, false),
            (0, 65, true),
            (68, 1, true),
            (69, 100, false),
            (66, 0, true),
            (0, 4096, true),
        ] {
            let want = (touches && reads_refused, touches);
            assert_eq!(pair.refused(own.piece(offset, length)), want, "{op:?} {offset} {length}");
        }
        pair.turns();
        assert_eq!(pair.here.worker.handler().ended, [Ok(())]);
        assert_eq!(pair.here.worker.handler().was_free, [true], "the handler has the bytes again");
        assert_eq!(pair.refused(payload), (false, false));
        if op == SendOp::Send {
            assert_eq!(pair.there.worker.handler().got, [b"hello"]);
        }
    }
}

/// None of a request's pieces can be borrowed, and what lies between them can.
#[test]
fn every_piece_of_a_request_is_refused() {
    let mut pair = Pair::new();
    let own = pair.own;
    let pieces = [own.piece(0, 8), own.piece(100, 8)];
    let worker = &mut pair.here.worker;
    let peer = worker.handler().up[0];
    let op = RequestOp::unchecked(SendOp::Read(pair.remote));
    let request = Request { op, pieces: &pieces.map(Piece::from), fence: false, token: 1 };
    worker.outbox().request(peer, &request).unwrap();
    assert_eq!(pieces.map(|piece| pair.refused(piece)), [(true, true); 2]);
    assert_eq!(pair.refused(own.piece(50, 8)), (false, false));
    pair.turns();
    assert_eq!(pieces.map(|piece| pair.refused(piece)), [(false, false); 2]);
}

/// A READ brings its bytes into the worker's own memory.
#[test]
fn a_read_lands_in_own_memory() {
    let mut pair = Pair::new();
    let (first, second) = (pair.own.piece(0, 4), pair.own.piece(100, 4));
    pair.here.worker.outbox().bytes_mut(first).unwrap().copy_from_slice(b"data");
    pair.ask(SendOp::Write(pair.remote), first);
    pair.turns();
    pair.ask(SendOp::Read(pair.remote), second);
    pair.turns();
    assert_eq!(pair.here.worker.outbox().bytes(second).unwrap(), b"data");
}

/// The same if the peer goes away with the request.
#[test]
fn a_failed_request_gives_its_bytes_back() {
    let mut pair = Pair::new();
    let piece = pair.own.piece(0, 8);
    pair.ask(SendOp::Read(pair.remote), piece);
    assert_eq!(pair.refused(piece), (true, true));
    assert!(pair.here.intake.gone(pair.nums.0));
    pair.turns();
    assert_eq!(pair.here.worker.handler().ended, [Err(Status::Flushed)]);
    assert_eq!(pair.refused(piece), (false, false));
}

/// Checks at run time what the types cannot: a region that peers may write to, and memory that
/// another process may write, are refused.
#[test]
fn only_own_memory_is_lent() {
    let mut pair = Pair::new();
    assert_eq!(pair.there.worker.outbox().bytes(pair.own.piece(0, 1)), Err(LendError::OutOfBounds));
    for (offset, length) in [(4096, 1), (usize::MAX, 1), (4000, 97)] {
        let piece = pair.own.piece(offset, length);
        assert_eq!(pair.here.worker.outbox().bytes(piece), Err(LendError::OutOfBounds));
        assert!(pair.here.worker.outbox().bytes_mut(piece).is_err());
    }
    let shared = doorbell_alloc::MapRequest::new(4096).shared(true).map().unwrap();
    let refused = pair.here.worker.adopt_own(&pair.here.nic, shared);
    assert_eq!(refused.map_err(|error| error.code()), Err(Code::Invalid));
}
