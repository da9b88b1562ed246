//! Two workers over the soft device, in one address space and one thread, in a program without the
//! standard library: one calls, the other answers in place, both count their blocks. Of the C
//! library it takes the start of the program and the heap; a machine without one has others.
//!
//! Its exit code is 0 if all went well, else the number of the step that did not.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "an allocator, a function the C library calls, a heap's memory")]

extern crate alloc;

use alloc::sync::Arc;
use alloc::vec;
use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;

use doorbell_alloc::{BlockPool, Mapping};
use doorbell_engine::worker::{
    Config, Handler, Intake, Message, Outbox, PeerData, PeerId, SharedRecv, Verdict, Worker,
};
use doorbell_seam::provider::{Provider, Qp, QpType};
use doorbell_soft::{Host, LINK_BYTES, LinkShared, Soft, SoftQp, SoftQpEx, SoftQpInit, Wiring};

#[link(name = "c")]
unsafe extern "C" {
    fn aligned_alloc(align: usize, size: usize) -> *mut u8;
    fn free(ptr: *mut u8);
    fn abort() -> !;
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
    // SAFETY: it takes nothing and does not return.
    unsafe { abort() }
}

/// The compiler's `alloc` was built for programs that unwind, and asks for these two. This one ends
/// where it would.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// See there.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    // SAFETY: it takes nothing and does not return.
    unsafe { abort() }
}

const CONFIG: Config = Config {
    peers: 1,
    recv_blocks: 64,
    send_blocks: 8,
    block_bytes: 1024,
    refill: 8,
    window: 16,
    ..Config::DEFAULT
};

/// Calls that are made.
const CALLS: u32 = 10_000;

/// Either side.
#[derive(Default)]
struct Side {
    answers: bool,
    peer: Option<PeerId>,
    got: u32,
    wrong: u32,
}

/// The payload of a call: inline ones, and ones that go in a block.
fn payload(number: u32, bytes: &mut [u8; 600]) -> &[u8] {
    let length = if number.is_multiple_of(3) { 600 } else { 4 + number as usize % 200 };
    bytes.fill(number as u8);
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    &bytes[..length]
}

impl<P: Provider> Handler<P> for Side {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        let wrong = message.bytes() != payload(self.got, &mut [0; 600]);
        self.got += 1;
        self.wrong += u32::from(wrong);
        if self.answers { Verdict::Reply { len: message.len() } } else { Verdict::Done }
    }

    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.peer = Some(peer);
    }
}

/// Memory of the heap that begins at a page, for good.
fn memory(len: usize) -> Option<Mapping> {
    const PAGE: usize = 4096;
    let bytes = vec![0; len + PAGE].leak();
    let at = bytes.as_ptr().align_offset(PAGE);
    bytes.get_mut(at..at + len).map(Mapping::from_static)
}

fn queue_pair(nic: &Soft, intake: &Intake<Soft>) -> Option<SoftQp> {
    let init = SoftQpInit {
        kind: QpType::Rc,
        send_cq: intake.cq(),
        recv_cq: intake.cq(),
        srq: Some(intake.srq()),
        caps: intake.qp_caps(),
        signal_all: false,
        ex: SoftQpEx::default(),
    };
    nic.create_qp(&init).ok()
}

type Made = (Worker<Soft, Side>, Intake<Soft>);

fn worker(nic: &Soft, answers: bool) -> Option<Made> {
    let shared = SharedRecv::new(nic, memory(CONFIG.recv_bytes())?, &CONFIG).ok()?;
    let side = Side { answers, ..Side::default() };
    Worker::new(nic, &shared, memory(CONFIG.send_bytes())?, side, &CONFIG).ok()
}

/// What a control plane does to connect two workers.
fn connect(nic: &Soft, one: &Intake<Soft>, two: &Intake<Soft>) -> Option<()> {
    let (maker, taker) = LinkShared::pair(memory(LINK_BYTES)?).ok()?;
    let (maker, taker) = (Arc::new(maker), Arc::new(taker));
    let (mut a, mut b) = (queue_pair(nic, one)?, queue_pair(nic, two)?);
    let (here, there) = (one.reserve().ok()?, two.reserve().ok()?);
    let (first, second) = (a.num(), b.num());
    let wiring = |peer| Wiring {
        peer,
        peer_rnr_retry: 7,
        rnr_timer_ns: 0,
        initiator_depth: 4,
        responder_depth: 4,
    };
    a.attach(&maker);
    b.attach(&taker);
    a.connect(&maker, wiring(second));
    b.connect(&taker, wiring(first));
    let data = (here.handshake(&PeerData::default()), there.handshake(&PeerData::default()));
    let greetings = (one.check_peer(data.1.bytes()).ok()?, two.check_peer(data.0.bytes()).ok()?);
    one.admit(a, here, None, Some(greetings.0)).ok()?;
    two.admit(b, there, None, Some(greetings.1)).ok()?;
    (one.up(first, greetings.0) && two.up(second, greetings.1)).then_some(())
}

/// The number of the step that failed.
fn run() -> Result<(), u8> {
    let mut pool = BlockPool::new(4, 64).map_err(|_| 1)?;
    let taken = pool.take().ok_or(1)?;
    pool.put(taken);
    pool.close().map_err(|_| 2)?;

    let nic = Soft::new("soft0", Host::alone(|| 0), None);
    let (mut one, here) = worker(&nic, false).ok_or(3)?;
    let (mut two, there) = worker(&nic, true).ok_or(4)?;
    connect(&nic, &here, &there).ok_or(5)?;
    one.turn();
    two.turn();
    let peer = one.handler().peer.ok_or(6)?;
    let (mut sent, mut turns) = (0, 0);
    while one.handler().got < CALLS {
        while sent < CALLS && one.outbox().send(peer, payload(sent, &mut [0; 600])).is_ok() {
            sent += 1;
        }
        one.turn();
        two.turn();
        turns += 1;
        if turns > 100 * CALLS {
            return Err(7);
        }
    }
    if one.handler().wrong + two.handler().wrong > 0 || two.handler().got != CALLS {
        return Err(8);
    }
    one.outbox().finish(peer);
    for _ in 0..1000 {
        one.turn();
        two.turn();
    }
    if one.peers() != 0 || one.send_blocks_home() != CONFIG.send_blocks as usize {
        return Err(9);
    }
    Ok(())
}

/// What the C library calls.
#[unsafe(no_mangle)]
extern "C" fn main(_count: i32, _words: *const *const u8) -> i32 {
    run().map_or_else(i32::from, |()| 0)
}
