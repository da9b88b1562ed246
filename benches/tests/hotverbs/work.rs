//! What a child does: one kind of request, in batches, warm and then sealed.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use doorbell::provider::{GRH_BYTES, QpType};
use doorbell::wc::Wc;
use doorbell::wr::{SendFlags, SendOp, SendWr};

use crate::Plant;
use crate::count::allocations;
use crate::pair::{End, pair};
use crate::seal::{leave, seal};

/// Requests that are outstanding at a time. The last of them completes.
pub(crate) const BATCH: u64 = 16;
/// Batches while sealed; and before, where every queue and ring wraps several times.
pub(crate) const ROUNDS: u64 = 2_000;
const WARM: u64 = 200;

/// Bytes of the requests, in turn: inline, in one fragment, in several.
const SIZES: [usize; 4] = [8, 64, 1024, 4096];
/// Bytes from one place to the next. The second half of the memory is the target of the other end.
const STRIDE: usize = 8192;
const HALF: usize = BATCH as usize * STRIDE;

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Datagram,
    Write,
    WriteImm,
    Read,
    Add,
    Swap,
}

impl Kind {
    pub(crate) const ALL: [Kind; 6] =
        [Kind::Datagram, Kind::Write, Kind::WriteImm, Kind::Read, Kind::Add, Kind::Swap];

    /// True if it takes a receive.
    fn is_heard(self) -> bool {
        matches!(self, Kind::Datagram | Kind::WriteImm)
    }
}

/// A task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) kind: Kind,
    /// Each end has mapped the memory of the other, and does not wait for the other's polls.
    pub(crate) mapped: bool,
    pub(crate) plant: Plant,
}

/// What the sealed thread leaves behind: requests done, wrong results, allocations.
pub(crate) struct Left {
    done: AtomicBool,
    figures: [AtomicU64; 3],
}

pub(crate) static DONE: Left =
    Left { done: AtomicBool::new(false), figures: [const { AtomicU64::new(0) }; 3] };

impl Left {
    pub(crate) fn read(&self) -> Option<[u64; 3]> {
        // Pairs with the release in `leave`: the figures were written before.
        let done = self.done.load(Ordering::Acquire);
        done.then(|| std::array::from_fn(|n| self.figures[n].load(Ordering::Relaxed)))
    }

    fn leave(&self, figures: [u64; 3]) -> ! {
        for (place, figure) in self.figures.iter().zip(figures) {
            place.store(figure, Ordering::Relaxed);
        }
        self.done.store(true, Ordering::Release);
        leave()
    }
}

/// Connects, warms up, seals the thread, and does the task.
pub(crate) fn run(task: Task) {
    let qp_type = if task.kind == Kind::Datagram { QpType::Ud } else { QpType::Rc };
    let ends = pair(qp_type, 2 * HALF, task.mapped);
    let mut work = Work { task, ends, number: 0, done: 0, wrong: 0, alone: false };
    for _ in 0..WARM {
        work.batch();
    }
    seal();
    (work.done, work.wrong) = (0, 0);
    work.alone = task.mapped && !task.kind.is_heard();
    let before = allocations();
    for round in 0..ROUNDS {
        work.batch();
        if round == ROUNDS / 2 {
            match task.plant {
                Plant::Nothing => {}
                Plant::Call => thread::yield_now(),
                Plant::Allocation => drop(black_box(Box::new(7_u64))),
            }
        }
    }
    DONE.leave([work.done, work.wrong, allocations() - before])
}

struct Work {
    task: Task,
    ends: [End; 2],
    /// The number of the next request.
    number: u64,
    done: u64,
    wrong: u64,
    /// The far end is not polled, because the near one does everything by itself.
    alone: bool,
}

impl Work {
    /// Posts a batch, polls both ends until it is over, and checks the results.
    fn batch(&mut self) {
        let first = self.number;
        for n in 0..BATCH {
            let place = n as usize * STRIDE;
            if self.task.kind.is_heard() {
                self.ends[1].recv(first + n, HALF + place, STRIDE);
            }
            self.post(place, n + 1 == BATCH);
        }
        let (mut heard, mut over) = (0, false);
        while !over || (self.task.kind.is_heard() && heard < BATCH) {
            let mut wcs = [Wc::default(); 32];
            let count = self.ends[0].poll(&mut wcs);
            for wc in &wcs[..count] {
                self.wrong += u64::from(!wc.status.is_ok() || wc.wr_id != first + BATCH - 1);
                over = true;
            }
            if self.alone {
                continue;
            }
            let count = self.ends[1].poll(&mut wcs);
            for wc in &wcs[..count] {
                self.wrong += u64::from(!self.came_right(wc, first + heard));
                heard += 1;
            }
        }
        for n in 0..BATCH {
            self.wrong += u64::from(!self.is_right(first + n, n as usize * STRIDE));
            self.done += 1;
        }
    }

    fn size(&self, number: u64) -> usize {
        match self.task.kind {
            Kind::Add | Kind::Swap => 8,
            _ => SIZES[(number / BATCH) as usize % SIZES.len()],
        }
    }

    /// Posts the next request. Its bytes lie at the same offset on both sides.
    fn post(&mut self, place: usize, last: bool) {
        let (number, length) = (self.number, self.size(self.number));
        let [one, two] = &mut self.ends;
        let at = two.remote(place);
        let (word, imm) = (two.remote(0), number as u32);
        let op = match self.task.kind {
            Kind::Datagram => SendOp::SendToWithImm(one.destination(), imm),
            Kind::Write => SendOp::Write(at),
            Kind::WriteImm => SendOp::WriteWithImm(at, imm),
            Kind::Read => SendOp::Read(at),
            Kind::Add => SendOp::FetchAdd { at: word, add: 1 },
            Kind::Swap => SendOp::CompareSwap { at: word, compare: number, swap: number + 1 },
        };
        let from = if self.task.kind == Kind::Read { &*two } else { &*one };
        if !matches!(self.task.kind, Kind::Add | Kind::Swap) {
            from.write_word(place, number);
            from.write_word(place + length - 8, number);
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, last);
        flags.set(SendFlags::INLINE, op.is_outward() && length <= 64);
        let sge = one.sge(place, length);
        one.post(&SendWr { wr_id: number, op, flags, sge, more: &[] });
        self.number += 1;
    }

    /// True if a receive has the right bytes.
    fn came_right(&self, wc: &Wc, number: u64) -> bool {
        let header = if self.task.kind == Kind::Datagram { GRH_BYTES } else { 0 };
        let told = (wc.wr_id, wc.imm, wc.byte_len as usize);
        wc.status.is_ok() && told == (number, number as u32, self.size(number) + header)
    }

    /// True if the request did what it should.
    fn is_right(&self, number: u64, place: usize) -> bool {
        let [one, two] = &self.ends;
        let last = place + self.size(number) - 8;
        match self.task.kind {
            Kind::Datagram => {
                let at = HALF + GRH_BYTES;
                two.word(at + place) == number && two.word(at + last) == number
            }
            Kind::Write | Kind::WriteImm => two.word(place) == number && two.word(last) == number,
            Kind::Read => one.word(place) == number && one.word(last) == number,
            Kind::Add | Kind::Swap => one.word(place) == number,
        }
    }
}
