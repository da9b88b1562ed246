//! How the receiver of a lent message copies it. A store to a line that both cores have waits until
//! the other core has given it up, and such stores wait one after the other. So it matters which
//! core has the lines that the receiver writes now, and those that the sender writes next. All of
//! this is for the processors on which it was measured ([`prefetch::owns`]).

use crate::model::buffers::Source;
use crate::prefetch;
use crate::shm::layout::LINE;

/// The shortest and the longest lent message for which this side gets the lines of a receive for
/// itself before it writes there ([`prefetch::own`]). The peer's core has them too, if the program
/// has sent a message from there.
///
/// It gets those of the next receive while it waits, as many as a message of the same length fills,
/// and those of a message's receive before it copies. Between far cores, half a round trip of 4 KiB
/// then takes 1270 ns in place of 1870, of 16 KiB 3.6 us in place of 6.2, and of 64 KiB 17 in place
/// of 22. Between near ones 4 KiB takes 411 in place of 470 and 16 KiB 950 in place of 1100, but 64
/// KiB takes 3300 in place of 2970. (The sender gets the lines that it writes, too:
/// `engine::worker`. Without that it was 2260 ns, 7.6 and 28 us far, and 520, 1120 and 2800 ns
/// near.)
///
/// Longer messages gain nothing: the peer's core no longer has most of the lines.
const OWN_MIN: u32 = 2049;
const OWN_MAX: u32 = 128 << 10;

/// The most bytes of the next receive whose lines this side gets while it waits.
const OWN_IDLE: u32 = 16 << 10;

/// If the sender's core is far, this side flushes the sender's lines behind the copy: the sender
/// gets them back from memory, several at a time. A stream of 3 KiB then goes at 0.9 M/s in place
/// of 0.6, of 4 KiB at 1.7 in place of 0.55, and of 16 KiB at 0.52 in place of 0.13. Between near
/// cores a flush takes longer than it saves.
///
/// The last line of each message is not flushed, because [`Distance`] looks at it. If the sender's
/// program has not written there since, as in many benchmarks, this side still has that line. The
/// look is then fast, and nothing is flushed: this side keeps the other lines too, and 64 KiB go at
/// 0.6 M/s in place of 0.16.
///
/// A side that answers from its own memory waits for the end of the flush before it does. It gains
/// from messages of this length on: half a round trip of 64 KiB takes 11 us in place of 18 to 20,
/// and of 256 KiB 39 in place of 88 to 105.
const FLUSH_ANSWERED_MIN: u32 = 32 << 10;

/// If the load of a line that the sender has written takes this many ticks of the processor's
/// clock, or more, its core is far. Between near cores it takes 100 to 200, and between far ones
/// 350 or more. A line that this side still has takes 50 to 100. From memory it takes 250 to 450,
/// so the last line is not flushed.
const FAR_TICKS: u64 = 275;

/// One long message in that many is looked at, if the looks before agree.
const LOOK_EVERY: u32 = 16;

/// Looks that agree, less those that do not, up to this.
const SURE: i8 = 3;

/// What to do besides the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copying {
    /// Nothing.
    Plain,
    /// This side gets the lines that it writes.
    Own,
    /// This side flushes the lines that it has read.
    Flush,
}

impl Copying {
    /// For a message of that length. `answers`: this side has lent since the last one. `is_far` is
    /// asked only where it matters.
    pub(crate) fn of(length: u32, answers: bool, is_far: impl FnOnce() -> bool) -> Copying {
        if (!answers || length >= FLUSH_ANSWERED_MIN) && is_far() {
            return Copying::Flush;
        }
        match answers && (OWN_MIN..=OWN_MAX).contains(&length) {
            true => Copying::Own,
            false => Copying::Plain,
        }
    }
}

/// How many lines behind the first of the next receive to get after a lent message of that length.
pub(crate) fn lines_to_own(length: u32) -> usize {
    match length < OWN_MIN {
        true => 0,
        false => (length.min(OWN_IDLE) as usize - 1) / LINE,
    }
}

/// Whether the sender's core is far, as far as the loads of its lines tell.
#[derive(Default)]
pub(crate) struct Distance {
    /// Slow looks less fast ones.
    balance: i8,
    /// Messages that were not looked at since the last look.
    passed: u32,
}

impl Distance {
    /// True if the sender of those bytes is far.
    #[inline]
    pub(crate) fn is_far(&mut self, bytes: Source<'_>) -> bool {
        if !prefetch::owns() {
            return false;
        }
        if self.is_look_due() {
            self.note(bytes.ticks_of_last());
        }
        self.balance > 0
    }

    /// True if this message is to be looked at.
    fn is_look_due(&mut self) -> bool {
        self.passed += 1;
        self.balance.abs() < SURE || self.passed >= LOOK_EVERY
    }

    /// Looks that agree have said that it is far.
    #[cfg(test)]
    pub(crate) fn far() -> Distance {
        Distance { balance: SURE, passed: 0 }
    }

    /// Counts a look that took as many ticks.
    fn note(&mut self, ticks: u64) {
        self.passed = 0;
        let step = if ticks < FAR_TICKS { -1 } else { 1 };
        self.balance = (self.balance + step).clamp(-SURE, SURE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_depends_on_length_distance_and_answers() {
        use Copying::{Flush, Own, Plain};
        for (length, streams, far_streams, answers, far_answers) in [
            (2048, Plain, Flush, Plain, Plain),
            (2049, Plain, Flush, Own, Own),
            (4096, Plain, Flush, Own, Own),
            (32 << 10, Plain, Flush, Own, Flush),
            (128 << 10, Plain, Flush, Own, Flush),
            (256 << 10, Plain, Flush, Plain, Flush),
        ] {
            assert_eq!(Copying::of(length, false, || false), streams, "{length}");
            assert_eq!(Copying::of(length, false, || true), far_streams, "{length}");
            assert_eq!(Copying::of(length, true, || false), answers, "{length}");
            assert_eq!(Copying::of(length, true, || true), far_answers, "{length}");
        }
        let asks = || panic!("a short answer is never flushed");
        assert_eq!(Copying::of(4096, true, asks), Own);
    }

    /// One slow load among fast ones, such as one that an interrupt delayed, changes nothing.
    #[test]
    fn several_looks_decide_and_one_does_not() {
        let mut distance = Distance::default();
        let mut look = |ticks| {
            distance.note(ticks);
            distance.balance > 0
        };
        assert!((0..10).all(|_| !look(150)));
        assert!(!look(100_000));
        assert!(!look(150));
        assert_eq!([450; 5].map(&mut look), [false, false, false, true, true]);
        assert_eq!([150; 5].map(&mut look), [true, false, false, false, false]);
    }

    #[test]
    fn looks_that_agree_make_the_next_ones_rare() {
        let mut distance = Distance::default();
        for ticks in [150; SURE as usize] {
            assert!(distance.is_look_due(), "not yet sure");
            distance.note(ticks);
        }
        for _ in 0..3 {
            assert!((1..LOOK_EVERY).all(|_| !distance.is_look_due()));
            assert!(distance.is_look_due());
            distance.note(150);
        }
        distance.note(450);
        assert!(distance.is_look_due(), "the last one did not agree");
    }
}
