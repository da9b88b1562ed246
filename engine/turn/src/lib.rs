//! A worker's turn over the soft device, and nothing else: what can be reached from it is what is
//! in this library. Its panic handler calls a function that nobody has written, so it links only if
//! no panic can be reached. `cargo xtask test --only panics` links it, and names the culprits if it
//! does not.
//!
//! Set-up is not in here: it reports failures by values, and ends the process only if memory for a
//! small thing runs out.
#![no_std]
#![expect(unsafe_code, reason = "an allocator, and functions that are found by their names")]

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;

use doorbell_engine::large::{Large, Received};
use doorbell_engine::rpc::{self, CallId, Calls, Incoming};
use doorbell_engine::worker::{
    Datagram, DestinationId, DownReason, Handler, Message, Outbox, PeerId, Piece, RegionId,
    Request, Token, Verdict, Worker,
};
use doorbell_seam::provider::Provider;
use doorbell_seam::remote::RequestOp;
use doorbell_seam::wc::Status;
use doorbell_seam::wr::SendOp;
use doorbell_soft::Soft;

unsafe extern "C" {
    /// That of the C library.
    fn aligned_alloc(align: usize, size: usize) -> *mut u8;
    /// That of the C library.
    fn free(ptr: *mut u8);
    /// Nowhere.
    fn a_panic_can_be_reached_from_turn() -> !;
}

struct Heap;

// SAFETY: the C library's allocator keeps the contract.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the alignment of a layout is a power of two.
        unsafe { aligned_alloc(layout.align(), layout.size()) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, _: Layout) {
        // SAFETY: the caller has it from `alloc`.
        unsafe { free(ptr) }
    }
}

#[global_allocator]
static HEAP: Heap = Heap;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    // SAFETY: there is no such function, and so no program that calls it.
    unsafe { a_panic_can_be_reached_from_turn() }
}

/// A handler that does everything there is to do with an outbox, as its peers tell it to.
pub struct Everything {
    kept: Option<Token>,
    region: RegionId,
    /// Opened beforehand: that is no work for a turn.
    destination: DestinationId,
    large: Large,
    calls: Calls,
    call: Option<CallId>,
}

impl Everything {
    fn ask<P: Provider>(&self, peer: PeerId, op: SendOp, out: &mut Outbox<'_, P>) {
        let pieces = [Piece { region: self.region, offset: 8, length: 24 }; 3];
        for some in [&pieces[..1], &pieces[..]] {
            let op = RequestOp::unchecked(op);
            let request = Request { op, pieces: some, fence: true, token: out.pending() as u64 };
            // What is not taken is not asked again.
            let _ = out.request(peer, &request);
        }
    }

    fn obey<P: Provider>(
        &mut self,
        message: &mut Message<'_>,
        out: &mut Outbox<'_, P>,
    ) -> Option<Verdict> {
        let peer = message.peer();
        let bytes = message.bytes();
        // What is refused is not sent again.
        match bytes.first()? {
            0 => out.send(peer, bytes).ok()?,
            1 => out.send_imm(peer, bytes, message.imm().unwrap_or(1)).ok()?,
            2 => out.send_now(peer, bytes).ok()?,
            3 => self.ask(peer, SendOp::Send, out),
            4 => self.ask(peer, SendOp::Read(out.remote(self.region, 4)?), out),
            5 => self.ask(peer, SendOp::WriteWithImm(out.remote(self.region, 4)?, 7), out),
            6 => {
                self.kept = out.keep(message);
                return self.kept.map(Verdict::Keep);
            }
            7 => {
                let token = self.kept.take()?;
                let len = out.kept(token).map_or(0, |kept| kept.len());
                out.reply(token, len).ok()?;
            }
            8 => {
                out.give_back(self.kept.take()?);
            }
            9 => {
                let timer = out.set_timer(out.now() + 1, 0)?;
                out.cancel_timer(timer);
            }
            10 => out.copy_in(self.region, 3, bytes).ok()?,
            11 => out.copy_out(self.region, 3, message.block()).ok()?,
            12 => {
                let deadline = Some(out.now() + 9);
                self.call = self.calls.call(out, peer, bytes, 1, deadline).ok();
            }
            13 => {
                self.calls.cancel(out, self.call.take()?)?;
            }
            14 => {
                let piece = Piece { region: self.region, offset: 8, length: 1 << 30 };
                self.large.offer(out, peer, piece, 3, 4).ok()?;
            }
            15 => out.finish(peer),
            16 => out.close(peer),
            17 => out.flush(),
            18 => out.finish_sending(peer),
            19 => out.send_list(peer, &[bytes, bytes]).ok()?,
            _ if out.room(peer) > 0 => return Some(Verdict::Reply { len: message.len() }),
            _ => {}
        }
        None
    }
}

impl<P: Provider> Handler<P> for Everything {
    fn on_message(&mut self, mut message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        match self.calls.incoming(out, &message) {
            Incoming::Foreign => {}
            Incoming::Call(_) => {
                let len = rpc::answer(&mut message, |room| room.len() / 2);
                return len.map_or(Verdict::Done, |len| Verdict::Reply { len });
            }
            Incoming::Answer { .. } | Incoming::Late => return Verdict::Done,
        }
        if let Received::Offered(offer) = self.large.received(&message) {
            let to = Piece { region: self.region, offset: 0, length: offer.length() };
            if self.large.take(out, offer, to, offer.tag()).is_err() {
                let _ = self.large.decline(out, offer);
            }
            return Verdict::Done;
        }
        self.obey(&mut message, out).unwrap_or(Verdict::Done)
    }

    fn on_datagram(&mut self, datagram: Datagram<'_>, out: &mut Outbox<'_, P>) {
        if out.send_to(self.destination, datagram.bytes(), datagram.imm()).is_err() {
            out.release_destination(self.destination);
        }
    }

    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let _ = out.send(peer, b"up");
    }

    fn on_finished_sending(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        out.finish_sending(peer);
    }

    fn on_peer_down(&mut self, peer: PeerId, _: DownReason, out: &mut Outbox<'_, P>) {
        while self.calls.lost(out, peer).is_some() {}
        while self.large.lost(peer).is_some() {}
        out.close(peer);
    }

    fn on_timer(&mut self, key: u64, _: &mut Outbox<'_, P>) {
        self.calls.expired(key);
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        while self.large.progress(out).is_some() {}
    }

    fn on_send_done(
        &mut self,
        peer: PeerId,
        token: u64,
        result: Result<(), Status>,
        out: &mut Outbox<'_, P>,
    ) {
        let read = self.large.read(out, token, result);
        if read.is_none() && result.is_ok() {
            self.ask(peer, SendOp::Send, out);
        }
    }
}

/// One turn, and the timers.
#[unsafe(no_mangle)]
pub extern "C" fn turn(worker: &mut Worker<Soft, Everything>, now: u64) -> usize {
    worker.turn() + worker.advance(now)
}
