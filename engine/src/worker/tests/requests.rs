//! Requests with a token: each does its work, and is answered once.

use super::*;
use crate::provider::Access;
use crate::remote::{RESERVED_IMM, RemoteError, RemoteMemory, RequestOp};
use crate::worker::credit::FINISHED_IMM;
use crate::wr::{AhName, Destination, Remote, Segmentation, SendOp, XrcOp};

/// Records what it is told, in order.
#[derive(Default)]
struct Asker {
    up: Vec<PeerId>,
    told: Vec<Told>,
}

#[derive(Clone, Debug, PartialEq)]
enum Told {
    Got(Vec<u8>, Option<u32>, Option<u32>),
    Done(u64, Result<(), Status>),
    Down,
}

impl<P: Provider> Handler<P> for Asker {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        let (imm, written) = (message.imm(), message.written());
        self.told.push(Told::Got(message.bytes().to_vec(), imm, written));
        Verdict::Done
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_peer_down(&mut self, _: PeerId, _: DownReason, out: &mut Outbox<'_, P>) {
        assert_eq!(out.pending(), 0, "a peer is down, and a request is not answered");
        self.told.push(Told::Down);
    }
    fn on_send_done(
        &mut self,
        _: PeerId,
        token: u64,
        result: Result<(), Status>,
        _: &mut Outbox<'_, P>,
    ) {
        self.told.push(Told::Done(token, result));
    }
}

/// Two sides, each with a page of memory that the other may use freely.
struct Pair {
    sides: [Side<Asker>; 2],
    regions: [RegionId; 2],
    nums: (u32, u32),
}

impl Pair {
    fn new(config: &Config) -> Pair {
        let mut sides = [(); 2].map(|()| side_of(config, Asker::default()));
        let regions = sides.each_mut().map(|side| {
            let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
            let memory = Mapping::plain(4096).unwrap();
            let region = side.nic.register(memory, rights | Access::REMOTE_ATOMIC).unwrap();
            side.worker.adopt(region)
        });
        let [one, two] = &mut sides;
        let nums = connect(one, two);
        Pair { sides, regions, nums }
    }

    fn turns(&mut self) {
        for _ in 0..300 {
            for side in &mut self.sides {
                side.worker.turn();
            }
        }
    }

    fn told(&mut self, side: usize) -> Vec<Told> {
        self.turns();
        std::mem::take(&mut self.sides[side].worker.handler_mut().told)
    }

    fn remote(&mut self, side: usize, offset: usize) -> Remote {
        let region = self.regions[side];
        self.sides[side].worker.outbox().remote(region, offset).unwrap()
    }

    fn piece(&self, offset: usize, length: u32) -> Piece {
        Piece { region: self.regions[0], offset, length }
    }

    fn put(&mut self, side: usize, offset: usize, bytes: &[u8]) {
        let region = self.regions[side];
        self.sides[side].worker.outbox().copy_in(region, offset, bytes).unwrap();
    }

    fn look(&mut self, side: usize, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let region = self.regions[side];
        self.sides[side].worker.outbox().copy_out(region, offset, &mut bytes).unwrap();
        bytes
    }

    /// The first side makes the requests.
    fn ask(&mut self, op: SendOp, pieces: &[Piece], token: u64) -> Result<(), SendError> {
        self.request(RequestOp::unchecked(op), pieces, token)
    }

    fn request(&mut self, op: RequestOp, pieces: &[Piece], token: u64) -> Result<(), SendError> {
        let worker = &mut self.sides[0].worker;
        let peer = worker.handler().up[0];
        worker.outbox().request(peer, &Request { op, pieces, fence: false, token })
    }
}

fn configs() -> [Config; 2] {
    [CONFIG, Config { window: 14, window_min: 14, ..CONFIG }]
}

/// Sends without a copy, in one piece or gathered from several, between sends of copies: they
/// arrive in order and are answered in order.
#[test]
fn sends_from_registered_memory_keep_their_order() {
    for config in configs() {
        let mut pair = Pair::new(&config);
        pair.put(0, 0, b"hello, gathered world");
        let peer = pair.sides[0].worker.handler().up[0];
        pair.sides[0].worker.outbox().send(peer, b"first").unwrap();
        pair.ask(SendOp::Send, &[pair.piece(0, 5)], 10).unwrap();
        let three = [pair.piece(16, 5), pair.piece(5, 2), pair.piece(0, 5)];
        pair.ask(SendOp::SendWithImm(77), &three, 11).unwrap();
        pair.ask(SendOp::Send, &[], 12).unwrap();
        pair.sides[0].worker.outbox().send_now(peer, b"last").unwrap();
        let got = |bytes: &[u8], imm| Told::Got(bytes.to_vec(), imm, None);
        let all = [
            got(b"first", None),
            got(b"hello", None),
            got(b"world, hello", Some(77)),
            got(b"", None),
            got(b"last", None),
        ];
        assert_eq!(pair.told(1), all);
        assert_eq!(pair.told(0), [10, 11, 12].map(|token| Told::Done(token, Ok(()))));
    }
}

/// A send that passes the batches during a reservation uses a credit of its own: a request of
/// several pieces, and a message with a doorbell behind one of another queue pair of the link.
#[test]
fn a_send_during_a_reservation_uses_a_credit_of_its_own() {
    for requests in [true, false] {
        let mut pair = Pair::new(&Config { window: 8, window_min: 8, ..CONFIG });
        let peer = pair.sides[0].worker.handler().up[0];
        let pieces = [pair.piece(0, 2), pair.piece(8, 2)];
        let mut went = 0;
        for n in 0..20 {
            went += usize::from(pair.sides[0].worker.outbox().send(peer, b"message").is_ok());
            if requests {
                went += usize::from(n < 2 && pair.ask(SendOp::Send, &pieces, n).is_ok());
            } else if n < 3 {
                ring(&mut pair.sides[0].worker.core, peer);
                let now = pair.sides[0].worker.outbox().send_now(peer, b"now");
                went += usize::from(now.is_ok());
            }
        }
        assert_eq!(went, 7, "one of eight is for replies");
        let got = pair.told(1).iter().filter(|told| matches!(told, Told::Got(..))).count();
        assert_eq!(got, 7);
    }
}

/// Rings the device's doorbell past the worker.
#[expect(unsafe_code, reason = "rings a doorbell")]
fn ring(core: &mut Core<Soft>, peer: PeerId) {
    let qp = core.sender.peers.get(peer).unwrap().qp.as_mut().unwrap();
    // SAFETY: the tests are one thread.
    unsafe { qp.ring_doorbell() };
}

/// READ, WRITE, WRITE with immediate data, atomics.
#[test]
fn each_one_sided_request_has_its_effect() {
    for config in configs() {
        let mut pair = Pair::new(&config);
        let there = pair.remote(1, 64);
        pair.put(0, 0, b"to be written");
        pair.ask(SendOp::Write(there), &[pair.piece(0, 5), pair.piece(8, 5)], 1).unwrap();
        assert_eq!(pair.told(0), [Told::Done(1, Ok(()))]);
        assert_eq!(pair.look(1, 64, 11), b"to beitten\0");
        pair.ask(SendOp::WriteWithImm(there, 9), &[pair.piece(0, 2)], 2).unwrap();
        assert_eq!(pair.told(1), [Told::Got(vec![], Some(9), Some(2))]);
        pair.ask(SendOp::Read(there), &[pair.piece(100, 4), pair.piece(200, 6)], 3).unwrap();
        assert_eq!(pair.told(0), [Told::Done(2, Ok(())), Told::Done(3, Ok(()))]);
        assert_eq!(
            (pair.look(0, 100, 4), pair.look(0, 200, 6)),
            (b"to b".into(), b"eitten".into())
        );
        let word = pair.remote(1, 8);
        pair.ask(SendOp::FetchAdd { at: word, add: 5 }, &[pair.piece(16, 8)], 4).unwrap();
        let swap = SendOp::CompareSwap { at: word, compare: 5, swap: 8 };
        pair.ask(swap, &[pair.piece(24, 8)], 5).unwrap();
        assert_eq!(pair.told(0).len(), 2);
        assert_eq!(pair.look(1, 8, 8), 8u64.to_ne_bytes());
        assert_eq!(pair.look(0, 16, 16), [0u64.to_ne_bytes(), 5u64.to_ne_bytes()].concat());
    }
}

/// A refused request leaves nothing behind.
#[test]
fn a_request_that_is_refused_is_not_answered() {
    let mut pair = Pair::new(&CONFIG);
    let there = pair.remote(1, 0);
    let beyond = pair.sides[0].worker.outbox().remote(pair.regions[0], 4096);
    assert_eq!(beyond, None);
    let none = Piece { region: RegionId(7), ..pair.piece(0, 1) };
    for (op, pieces, why) in [
        (SendOp::Send, &[pair.piece(4090, 7)][..], SendError::OutOfBounds),
        (SendOp::Send, &[pair.piece(usize::MAX, 1)], SendError::OutOfBounds),
        (SendOp::Send, &[none], SendError::OutOfBounds),
        (SendOp::Send, &[pair.piece(0, 1); 5], SendError::OutOfBounds),
        (SendOp::Send, &[pair.piece(0, 513)], SendError::TooLong),
        (SendOp::FetchAdd { at: there, add: 1 }, &[pair.piece(0, 4)], SendError::Malformed),
    ] {
        assert_eq!(pair.ask(op, pieces, 1), Err(why));
    }
    for token in 0..4 {
        pair.ask(SendOp::Write(there), &[pair.piece(0, 1)], token).unwrap();
    }
    assert_eq!(pair.ask(SendOp::Write(there), &[], 9), Err(SendError::TooMany));
    assert_eq!(pair.told(0), [0, 1, 2, 3].map(|token| Told::Done(token, Ok(()))));
    let config = Config { send_queue: 4, signal_every: 2, requests: 32, ..CONFIG };
    let mut pair = Pair::new(&config);
    let there = pair.remote(1, 0);
    let mut taken = 0;
    while pair.ask(SendOp::Write(there), &[pair.piece(0, 1), pair.piece(5, 1)], 0).is_ok() {
        taken += 1;
    }
    assert_eq!((taken, pair.told(0).len()), (4, 4));
    assert_eq!(pair.sides[0].worker.outbox().pending(), 0);
}

/// What the second side tells about a region says what the first may do there.
#[test]
fn a_region_tells_what_its_peers_may_do() {
    let mut pair = Pair::new(&CONFIG);
    let [_, side] = &mut pair.sides;
    let memory = Mapping::plain(4096).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = side.worker.adopt(side.nic.register(memory, access).unwrap());
    let own = side.worker.adopt_own(&side.nic, Mapping::plain(4096).unwrap()).unwrap();
    let out = side.worker.outbox();
    let piece = |offset, length| Piece { region, offset, length };
    let told = out.remote_memory(piece(64, 128)).unwrap().to_bytes();
    let beyond = RemoteError::OutOfBounds { offset: 4000, length: 128, len: 4096 };
    assert_eq!(out.remote_memory(piece(4000, 128)), Err(beyond));
    assert_eq!(out.remote_memory(own.piece(0, 8).into()), Err(RemoteError::NoRights));

    let there = RemoteMemory::from_bytes(&told);
    let (asked, granted) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
    assert_eq!(there.read(0, 8), Err(RemoteError::NotAllowed { asked, granted }));
    let beyond = RemoteError::OutOfBounds { offset: 121, length: 8, len: 128 };
    assert_eq!(there.write(121, 8), Err(beyond));
    pair.put(0, 0, b"written");
    pair.request(there.write(120, 7).unwrap(), &[pair.piece(0, 7)], 1).unwrap();
    assert_eq!(pair.told(0), [Told::Done(1, Ok(()))]);
    let mut bytes = [0; 7];
    pair.sides[1].worker.outbox().copy_out(region, 184, &mut bytes).unwrap();
    assert_eq!(&bytes, b"written");
}

/// A copy into or out of a worker's memory takes any length and place, and touches no byte beside.
#[test]
fn copies_in_and_out_are_exact() {
    let mut pair = Pair::new(&CONFIG);
    for (offset, length) in (0..9).flat_map(|offset| (0..40).map(move |length| (offset, length))) {
        pair.put(0, 0, &[0xee; 64]);
        let bytes: Vec<u8> = (1..=length as u8).collect();
        pair.put(0, offset, &bytes);
        assert_eq!(pair.look(0, offset, length), bytes, "{length} at {offset}");
        let all = pair.look(0, 0, 64);
        let mut others = all[..offset].iter().chain(&all[offset + length..]);
        assert!(others.all(|byte| *byte == 0xee), "{length} at {offset}");
    }
}

/// A wrong right, range, length or address is an error of the call. Nothing of it reaches the
/// peer's device, so the connection goes on.
#[test]
fn a_request_beyond_what_the_peer_told_is_an_error_before_it_is_posted() {
    let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
    for granted in [read, write, Access::REMOTE_ATOMIC] {
        let mut pair = Pair::new(&CONFIG);
        let there = RemoteMemory::new(pair.remote(1, 8), 64, granted);
        let atomics = |at| [there.fetch_add(at, 1), there.compare_swap(at, 1, 2)];
        let moves = |at| [there.read(at, 8), there.write(at, 8), there.write_with_imm(at, 8, 1)];
        for op in moves(57).into_iter().chain(atomics(57)).chain(moves(u64::MAX)) {
            assert!(op.is_err(), "past the end: {op:?}");
        }
        for op in atomics(4) {
            assert!(op.is_err(), "misaligned: {op:?}");
        }
        let (mut posted, mut got) = (Vec::new(), Vec::new());
        for (op, right) in moves(0).into_iter().chain(atomics(0)).zip([0, 1, 1, 2, 2]) {
            let asked = [read, write, Access::REMOTE_ATOMIC][right];
            if asked != granted {
                assert_eq!(op, Err(RemoteError::NotAllowed { asked, granted }));
                continue;
            }
            let op = op.unwrap();
            let why = if right == 2 { SendError::Malformed } else { SendError::OtherLength };
            let two = [pair.piece(0, 8), pair.piece(8, 1)];
            for pieces in [&[][..], &[pair.piece(0, 7)], &[pair.piece(0, 9)], &two] {
                assert_eq!(pair.request(op, pieces, 9), Err(why), "{op:?}");
            }
            pair.request(op, &[pair.piece(0, 8)], right as u64).unwrap();
            posted.push(Told::Done(right as u64, Ok(())));
            if matches!(op.op(), SendOp::WriteWithImm(..)) {
                got.push(Told::Got(vec![], Some(1), Some(8)));
            }
        }
        let peer = pair.sides[0].worker.handler().up[0];
        pair.sides[0].worker.outbox().send(peer, b"echo").unwrap();
        got.push(Told::Got(b"echo".to_vec(), None, None));
        assert_eq!((pair.told(1), pair.told(0)), (got, posted));
    }
}

/// The worker marks the end of its messages with a WRITE of eight bytes that carries immediate data
/// of its own. A program's WRITE cannot look like it, and what has these numbers otherwise is sent.
#[test]
fn a_write_with_reserved_immediate_data_is_refused() {
    let mut pair = Pair::new(&CONFIG);
    let at = pair.remote(1, 0);
    let there = RemoteMemory::new(at, 64, Access::REMOTE_WRITE);
    let first = u32::from(RESERVED_IMM) << 16;
    for imm in [first, FINISHED_IMM, first | 0xffff] {
        let checked = there.write_with_imm(0, 8, imm).unwrap();
        let unchecked = RequestOp::unchecked(SendOp::WriteWithImm(at, imm));
        for op in [checked, unchecked] {
            let refused = pair.request(op, &[pair.piece(0, 8)], 1);
            assert_eq!(refused, Err(SendError::ReservedImm), "{imm:#x}");
        }
    }
    let mut sent = Vec::new();
    for imm in [first - 1, first + 0x1_0000, 3] {
        let op = there.write_with_imm(0, 8, imm).unwrap();
        pair.request(op, &[pair.piece(0, 8)], 1).unwrap();
        sent.push(Told::Got(vec![], Some(imm), Some(8)));
    }
    pair.request(RequestOp::send_with_imm(FINISHED_IMM), &[pair.piece(0, 8)], 1).unwrap();
    sent.push(Told::Got(vec![0; 8], Some(FINISHED_IMM), None));
    assert_eq!(pair.told(1), sent);
}

/// A request that connected queue pairs do not send is refused, with one piece or more, and the
/// connection goes on.
#[test]
fn a_request_for_another_kind_of_queue_pair_is_malformed() {
    let mut pair = Pair::new(&CONFIG);
    let to = Destination { ah: AhName(0), qpn: 1, qkey: 1 };
    let cut = Segmentation { header: 0, header_len: 14, mss: 512 };
    let named = SendOp::Xrc { srq: 1, op: XrcOp::Send };
    for op in [SendOp::SendTo(to), SendOp::SendToWithImm(to, 1), SendOp::Tso(cut), named] {
        for pieces in [&[pair.piece(0, 8)][..], &[pair.piece(0, 8), pair.piece(8, 8)]] {
            assert_eq!(pair.ask(op, pieces, 1), Err(SendError::Malformed), "{op:?}");
        }
    }
    pair.ask(SendOp::Send, &[pair.piece(0, 8)], 2).unwrap();
    assert_eq!(pair.told(1), [Told::Got(vec![0; 8], None, None)]);
    assert_eq!(pair.told(0), [Told::Done(2, Ok(()))]);
}

/// A queue pair that refuses a request, though it has room, ends with its peer, however many pieces
/// the request has: a caller that tried again would try for ever.
#[test]
fn a_request_that_the_device_refuses_ends_its_peer() {
    for pieces in 1..3 {
        let mut pair = Pair::new(&CONFIG);
        let worker = &mut pair.sides[0].worker;
        let peer = worker.handler().up[0];
        drop(worker.core.sender.peers.get(peer).unwrap().qp.take());
        let list = [pair.piece(0, 8), pair.piece(8, 8)];
        let asked = pair.ask(SendOp::Send, &list[..pieces], 1);
        let told = pair.told(0);
        let mut want = vec![Told::Done(1, Err(Status::Flushed)), Told::Down];
        if pieces > 1 {
            assert_eq!(asked, Err(SendError::NotConnected));
            want.remove(0);
        }
        assert_eq!(told, want, "{pieces}");
    }
}

/// However a peer ends, each request is answered once, and before its peer is down.
#[test]
fn each_request_is_answered_once_also_on_failure() {
    for config in configs() {
        for way in 0..5 {
            let mut pair = Pair::new(&Config { requests: 8, ..config });
            let there = pair.remote(1, 0);
            let wrong = Remote { rkey: there.rkey ^ 1 << 20, ..there };
            for token in 0..6 {
                let op = match (way, token) {
                    (0, 3) => SendOp::Write(wrong),
                    (_, 0) => SendOp::Read(there),
                    (_, 1) => SendOp::Send,
                    _ => SendOp::Write(there),
                };
                pair.ask(op, &[pair.piece(64 * token as usize, 8)], token).unwrap();
            }
            let peer = pair.sides[0].worker.handler().up[0];
            match way {
                0 => {}
                1 => pair.sides[0].worker.outbox().close(peer),
                2 => {
                    pair.sides[0].worker.turn();
                    assert!(pair.sides[0].intake.gone(pair.nums.0));
                }
                3 => {
                    assert!(pair.sides[1].intake.gone(pair.nums.1));
                    pair.sides[1].worker.turn();
                }
                _ => {
                    // It never drains: the queue pair is taken away.
                    pair.sides[0].worker.outbox().flush();
                    pair.sides[0].worker.outbox().close(peer);
                    for _ in 0..1100 {
                        pair.sides[0].worker.turn();
                    }
                }
            }
            let told = pair.told(0);
            let tokens = told.iter().filter_map(|told| match told {
                Told::Done(token, _) => Some(*token),
                _ => None,
            });
            assert_eq!(tokens.collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5], "way {way}: {told:?}");
            assert_eq!(told.last(), Some(&Told::Down), "way {way}");
            let failed = told.iter().filter(|told| matches!(told, Told::Done(_, Err(_)))).count();
            match way {
                0 => {
                    assert_eq!(told[3], Told::Done(3, Err(Status::RemoteAccess)));
                    assert_eq!(told[4], Told::Done(4, Err(Status::Flushed)));
                    assert_eq!(failed, 3);
                }
                1 => assert_eq!(failed, 6, "nothing had been posted"),
                _ => assert!(failed > 0, "way {way}: {told:?}"),
            }
        }
    }
}
