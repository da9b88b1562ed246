//! One-sided requests of a worker: what the peer did not allow is an error of the call, and the
//! connection goes on.

use doorbell_alloc::Mapping;
use doorbell_cm::Fabric;
use doorbell_engine::worker::{
    DownReason, Handler, Message, Outbox, PeerId, Piece, RegionId, Request, SendError, Verdict,
};
use doorbell_seam::provider::{Access, Provider};
use doorbell_seam::remote::{RESERVED_IMM, RemoteError, RemoteMemory, RequestOp};
use doorbell_seam::wc::Status;

use crate::bed::{CONFIG, Pair, cases};

/// Records what comes; the side that was dialed sends messages back.
#[derive(Default)]
struct Asker {
    echoes: bool,
    up: Vec<PeerId>,
    downs: u32,
    got: Vec<Vec<u8>>,
    done: Vec<Result<(), Status>>,
}

impl<P: Provider> Handler<P> for Asker {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        self.got.push(message.bytes().to_vec());
        match self.echoes && message.imm().is_none() {
            true => Verdict::Reply { len: message.len() },
            false => Verdict::Done,
        }
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_peer_down(&mut self, _: PeerId, _: DownReason, _: &mut Outbox<'_, P>) {
        self.downs += 1;
    }
    fn on_send_done(
        &mut self,
        _: PeerId,
        _: u64,
        result: Result<(), Status>,
        _: &mut Outbox<'_, P>,
    ) {
        self.done.push(result);
    }
}

/// The operations on eight bytes at an offset, with the right that each needs.
fn operations(at: RemoteMemory, offset: u64) -> [(Access, Result<RequestOp, RemoteError>); 5] {
    [
        (Access::REMOTE_READ, at.read(offset, 8)),
        (Access::REMOTE_WRITE, at.write(offset, 8)),
        (Access::REMOTE_WRITE, at.write_with_imm(offset, 8, 1)),
        (Access::REMOTE_ATOMIC, at.fetch_add(offset, 1)),
        (Access::REMOTE_ATOMIC, at.compare_swap(offset, 1, 2)),
    ]
}

fn a_request_that_the_peer_does_not_allow_costs_no_connection<F: Fabric>(nic: &F) {
    let echoes = Asker { echoes: true, ..Asker::default() };
    let mut pair = Pair::new(nic, &CONFIG, (Asker::default(), echoes), 1);
    let peer = pair.one.worker.handler().up[0];
    let memory = || Mapping::plain(4096).expect("memory");
    let local = nic.register(memory(), Access::LOCAL_WRITE).expect("a region");
    let local = pair.one.worker.adopt(local);
    let rights = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
    for (round, granted) in rights.into_iter().enumerate() {
        let region = nic.register(memory(), granted | Access::LOCAL_WRITE).expect("a region");
        let region = pair.two.worker.adopt(region);
        let all = Piece { region, offset: 0, length: 64 };
        let told = pair.two.worker.outbox().remote_memory(all).expect("inside").to_bytes();
        let there = RemoteMemory::from_bytes(&told);
        refused(&mut pair, (peer, local), there);

        let before = pair.one.worker.handler().done.len();
        let allowed = operations(there, 0).into_iter().filter_map(|(_, op)| op.ok());
        for op in allowed.clone() {
            request(&mut pair, (peer, local), op, 8).expect("it is allowed");
        }
        let count = before + allowed.count();
        pair.until("the allowed ones end", |pair| pair.one.worker.handler().done.len() == count);
        pair.one.worker.outbox().send(peer, &[round as u8]).expect("the connection is up");
        pair.until("it echoes", |pair| pair.one.worker.handler().got.len() == round + 1);
        let [one, two] = [pair.one.worker.handler(), pair.two.worker.handler()];
        assert!(one.done.iter().all(Result::is_ok), "{:?}", one.done);
        assert_eq!((one.got.last(), one.downs, two.downs), (Some(&vec![round as u8]), 0, 0));
    }
}

/// Every wrong request is an error.
fn refused<F: Fabric>(
    pair: &mut Pair<F, Asker, Asker>,
    to: (PeerId, RegionId),
    there: RemoteMemory,
) {
    let granted = there.rights();
    for (asked, op) in operations(there, 57) {
        match op.expect_err("past the end") {
            RemoteError::NotAllowed { asked: needs, granted: has } => {
                assert_eq!((needs, has), (asked, granted));
                assert_ne!(asked, granted);
            }
            error => assert_eq!(error, RemoteError::OutOfBounds { offset: 57, length: 8, len: 64 }),
        }
    }
    if granted == Access::REMOTE_ATOMIC {
        let addr = there.remote().addr + 4;
        assert_eq!(there.fetch_add(4, 1), Err(RemoteError::Misaligned { addr }));
        assert_eq!(there.compare_swap(4, 1, 2), Err(RemoteError::Misaligned { addr }));
    }
    for (asked, op) in operations(there, 0) {
        let Ok(op) = op else {
            assert_eq!(op, Err(RemoteError::NotAllowed { asked, granted }));
            continue;
        };
        let atomic = asked == Access::REMOTE_ATOMIC;
        let why = if atomic { SendError::Malformed } else { SendError::OtherLength };
        for length in [7, 9] {
            assert_eq!(request(pair, to, op, length), Err(why), "{op:?}");
        }
    }
    if let Ok(write) = there.write_with_imm(0, 8, u32::from(RESERVED_IMM) << 16 | 3) {
        assert_eq!(request(pair, to, write, 8), Err(SendError::ReservedImm));
    }
}

fn request<F: Fabric>(
    pair: &mut Pair<F, Asker, Asker>,
    (peer, region): (PeerId, RegionId),
    op: RequestOp,
    length: u32,
) -> Result<(), SendError> {
    let pieces = &[Piece { region, offset: 0, length }];
    pair.one.worker.outbox().request(peer, &Request { op, pieces, fence: false, token: 1 })
}

cases! {
    a_request_that_the_peer_does_not_allow_costs_no_connection
}
