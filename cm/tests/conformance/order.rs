//! Requests of one RC queue pair take effect in the order of posting (SQ-5, RC-7).

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{Exposed, Fabric, Id, QpInit};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Access;
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{Remote, SendFlags, SendOp};

use crate::bed::{Bed, SOON, sent};
use crate::drops::Orders;

cases! {
    sq_05_a_write_waits_for_the_message_before_it
    rc_07_requests_of_all_kinds_take_effect_in_order
}

/// Words of memory that the requests change.
const WORDS: usize = 8;
/// The word that only WRITEs with immediate data change. A device may write it before the receive
/// that such a WRITE consumes is posted.
const EARLY: usize = WORDS - 1;
/// Requests of one round.
const REQUESTS: usize = 24;

/// The operation of a request.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A message.
    Send,
    /// Sets that word to the request's number.
    Write(usize),
    /// The same for [`EARLY`], and a message.
    WriteWithImm,
    /// Reads that word.
    Read(usize),
    /// Adds the request's number to that word.
    Add(usize),
    /// Replaces that word by the request's number if it is 0.
    Swap(usize),
}

impl Act {
    fn any(orders: &mut Orders) -> Act {
        let word = orders.next(EARLY);
        match orders.next(6) {
            0 => Act::Send,
            1 => Act::Write(word),
            2 => Act::WriteWithImm,
            3 => Act::Read(word),
            4 => Act::Add(word),
            _ => Act::Swap(word),
        }
    }

    fn is_message(self) -> bool {
        matches!(self, Act::Send | Act::WriteWithImm)
    }

    /// A READ may be repeated, and then reads what later requests have changed, so requests that
    /// change its word must wait for it.
    fn fence_behind(self, before: &[Act]) -> SendFlags {
        let (Act::Write(changed) | Act::Add(changed) | Act::Swap(changed)) = self else {
            return SendFlags::empty();
        };
        let is_read = |act: &Act| matches!(act, Act::Read(word) if *word == changed);
        let fence = before.iter().any(is_read);
        if fence { SendFlags::FENCE } else { SendFlags::empty() }
    }

    fn op(self, number: u64, at: impl Fn(usize) -> Remote) -> SendOp {
        match self {
            Act::Send => SendOp::SendWithImm(number as u32),
            Act::Write(word) => SendOp::Write(at(word)),
            Act::WriteWithImm => SendOp::WriteWithImm(at(EARLY), number as u32),
            Act::Read(word) => SendOp::Read(at(word)),
            Act::Add(word) => SendOp::FetchAdd { at: at(word), add: number },
            Act::Swap(word) => SendOp::CompareSwap { at: at(word), compare: 0, swap: number },
        }
    }

    /// Applies the request to the words; returns the requester's result.
    fn apply(self, number: u64, words: &mut [u64; WORDS]) -> Option<u64> {
        match self {
            Act::Send => None,
            Act::Write(word) => {
                words[word] = number;
                None
            }
            Act::WriteWithImm => {
                words[EARLY] = number;
                None
            }
            Act::Read(word) => Some(words[word]),
            Act::Add(word) => {
                let before = words[word];
                words[word] += number;
                Some(before)
            }
            Act::Swap(word) => {
                let before = words[word];
                if before == 0 {
                    words[word] = number;
                }
                Some(before)
            }
        }
    }
}

fn init<F: Fabric>() -> QpInit<F> {
    let requests = REQUESTS as u32;
    QpInit::rc().send_wr(requests).recv_wr(requests).inline(16).signal_all(true)
}

fn words_of<F: Fabric>(memory: &Exposed<F>) -> [u64; WORDS] {
    std::array::from_fn(|n| memory.word(8 * n).expect("a word").load(Ordering::Acquire))
}

fn exposed<F: Fabric>(bed: &Bed<F>) -> Exposed<F> {
    Exposed::new(&bed.fabric, 8 * WORDS, Access::all()).expect("exposed memory")
}

fn post<F: Fabric>(
    bed: &Bed<F>,
    id: &mut Id<F>,
    act: Act,
    number: u64,
    flags: SendFlags,
    memory: &Exposed<F>,
) {
    let mut buffer = bed.filled(8, 0);
    buffer.copy_from_slice(&number.to_ne_bytes());
    let op = act.op(number, |word| memory.remote(8 * word));
    id.queues().post_send(buffer, 8, op, flags).expect("post");
}

/// Polls both sides, so that everything that can take effect does.
fn move_on<F: Fabric>(one: &Id<F>, two: &mut Id<F>) {
    let _ = one.query_qp();
    let nothing = two.queues().next_recv(Duration::ZERO).expect_err("no receive is posted");
    assert_eq!(nothing.code(), Code::TimedOut);
    thread::sleep(Duration::from_micros(200));
}

fn sq_05_a_write_waits_for_the_message_before_it<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&init());
    let memory = exposed(bed);
    for round in 1..9 {
        let (number, none) = (2 * round, SendFlags::empty());
        post(bed, &mut one, Act::Send, number, none, &memory);
        post(bed, &mut one, Act::Write(0), number + 1, none, &memory);
        for _ in 0..20 {
            move_on(&one, &mut two);
            assert_eq!(words_of(&memory)[0], if round == 1 { 0 } else { number - 1 }, "{round}");
        }
        two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
        let got = two.queues().next_recv(SOON).expect("the message");
        assert_eq!((got.status, got.imm), (Status::Success, Some(number as u32)));
        for _ in 0..2 {
            sent(&mut one, &mut two).ok().expect("done");
        }
        assert_eq!(words_of(&memory)[0], number + 1);
    }
}

/// Posts requests of all kinds, and gives the peer one receive after the other. While a message
/// waits for its receive, exactly the requests before it have taken effect. rxe stops at a fence
/// behind a retry for lack of a receive, so READs are not fenced there and may read later bytes.
fn rc_07_requests_of_all_kinds_take_effect_in_order<F: Fabric>(bed: &Bed<F>) {
    let (mut one, mut two) = bed.pair(&init());
    let memory = exposed(bed);
    let mut orders = Orders(0x2545_f491_4f6c_dd1d);
    let (mut words, mut number) = ([0; WORDS], 0);
    for round in 0..if bed.is_strict() { 60 } else { 12 } {
        let acts: Vec<Act> = (0..REQUESTS).map(|_| Act::any(&mut orders)).collect();
        let first = number + 1;
        for (n, act) in acts.iter().enumerate() {
            number += 1;
            let fence = act.fence_behind(&acts[..n]);
            let flags = if bed.is_strict() { fence } else { SendFlags::empty() };
            post(bed, &mut one, *act, number, flags, &memory);
        }
        let mut results = Vec::new();
        for (act, number) in acts.iter().zip(first..) {
            if act.is_message() {
                has_happened(&words, &memory, (&one, &mut two), &format!("{round}: {acts:?}"));
                two.queues().post_recv(bed.filled(8, 0)).expect("a receive");
                let got = two.queues().next_recv(SOON).expect("a message");
                assert_eq!((got.status, got.imm), (Status::Success, Some(number as u32)));
            }
            results.push(act.apply(number, &mut words));
        }
        for (act, result) in acts.iter().zip(results) {
            let done = sent(&mut one, &mut two).ok().expect("done");
            let Some(word) = result else { continue };
            let is_sure = bed.is_strict() || !matches!(act, Act::Read(_));
            let is_right = done.bytes() == word.to_ne_bytes();
            assert!(!is_sure || is_right, "{round}: {act:?} of {acts:?}: {:?}", done.bytes());
        }
        assert_eq!(words_of(&memory), words, "{round}: {acts:?}");
    }
}

/// Waits until the memory holds those words, and checks that nothing behind them arrives.
fn has_happened<F: Fabric>(
    words: &[u64; WORDS],
    memory: &Exposed<F>,
    (one, two): (&Id<F>, &mut Id<F>),
    what: &str,
) {
    let end = Instant::now() + SOON;
    while words_of(memory)[..EARLY] != words[..EARLY] {
        assert!(Instant::now() < end, "{:?} is not {words:?}, {what}", words_of(memory));
        move_on(one, two);
    }
    for _ in 0..3 {
        move_on(one, two);
        assert_eq!(words_of(memory)[..EARLY], words[..EARLY], "{what}");
    }
}
