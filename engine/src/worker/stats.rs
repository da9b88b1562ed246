//! The worker's counters, and a copy of them for other threads.

use core::sync::atomic::{AtomicU64, Ordering};

use std_alloc::boxed::Box;

use super::config::{POLL_BATCH, SEND_BATCH};

/// The number of kinds of [`crate::wc::Status`].
const STATUSES: usize = 22;

/// Counters of one worker. They only grow, except those described as marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Stats {
    /// Turns.
    pub turns: u64,
    /// Turns that found nothing.
    pub idle_turns: u64,
    /// Completions taken.
    pub completions: u64,
    /// Messages received.
    pub received: u64,
    /// Requests handed to the device.
    pub sent: u64,
    /// Posts of sends: one doorbell each.
    pub doorbells: u64,
    /// Messages that had to wait or were refused because the peer had promised no receive, and
    /// calls of `Outbox::room` that returned 0 for that reason.
    pub credit_stalls: u64,
    /// Credit words sent to peers.
    pub credit_returns: u64,
    /// Replies that had to wait for room in a send queue, or for credit.
    pub deferred: u64,
    /// Posts that the device cut short because a queue was full.
    pub post_full: u64,
    /// Completions with an error.
    pub errors: u64,
    /// Completions that named no peer of this worker; their blocks were taken back.
    pub strays: u64,
    /// Connections that could not be reported to the control plane as closing.
    pub close_lost: u64,
    /// Receives given back to the shared queue.
    pub refilled: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Peers that were ended because they broke the rules of credit: see [`super::Breach`].
    pub breaches: u64,
    /// A mark: the most receives of the shared queue that this worker had at a time.
    pub receives_out_most: u64,
    /// A mark: peers, up or not, when the worker last published these numbers to other threads.
    pub peers: u64,
    /// Doorbells by the requests they rang for: 1, 2 to 3, 4 to 7, 8 to 15, 16 to 31, 32 to 63, 64.
    pub batches: [u64; SEND_BATCH.ilog2() as usize + 1],
    /// Polls that found something, by the number of completions: 1, 2 to 3, 4 to 7, 8 to 15, 16 to
    /// 31, 32 to 63, 64.
    pub polls: [u64; POLL_BATCH.ilog2() as usize + 1],
    /// Completions with an error by status (`enum ibv_wc_status`): 12 is a peer that did not
    /// answer, 13 one that had no receive, each over all retries.
    pub errors_by_status: [u64; STATUSES],
}

/// Words of [`Stats`].
const WORDS: usize = size_of::<Stats>() / size_of::<u64>();

impl Stats {
    /// Counts a post by the requests that the device has taken: for none it rings no doorbell.
    #[inline(always)]
    pub(super) fn count_batch(&mut self, requests: usize) {
        let Some(log) = requests.checked_ilog2() else { return };
        self.doorbells += 1;
        if let Some(count) = self.batches.get_mut(log as usize) {
            *count += 1;
        }
    }

    /// Counts messages with a doorbell each.
    pub(super) fn count_singles(&mut self, count: u32) {
        self.doorbells += u64::from(count);
        self.sent += u64::from(count);
        self.batches[0] += u64::from(count);
    }

    /// Counts turns that found nothing, and turns that took one completion.
    #[inline(always)]
    pub(super) fn count_short_turns(&mut self, idle: u64, alone: u64) {
        self.turns += idle + alone;
        self.idle_turns += idle;
        self.count_polls(1, alone);
    }

    /// Counts polls that each took `taken` completions, at least one.
    #[inline(always)]
    pub(super) fn count_polls(&mut self, taken: usize, polls: u64) {
        self.completions += taken as u64 * polls;
        if let Some(count) = self.polls.get_mut(taken.max(1).ilog2() as usize) {
            *count += polls;
        }
    }

    /// All numbers, in the order of the fields.
    fn words(&self) -> [u64; WORDS] {
        let plain = [
            self.turns,
            self.idle_turns,
            self.completions,
            self.received,
            self.sent,
            self.doorbells,
            self.credit_stalls,
            self.credit_returns,
            self.deferred,
            self.post_full,
            self.errors,
            self.strays,
            self.close_lost,
            self.refilled,
            self.datagrams_received,
            self.datagrams_sent,
            self.breaches,
            self.receives_out_most,
            self.peers,
        ];
        let mut words = [0; WORDS];
        let rest = self.batches.iter().chain(&self.polls).chain(&self.errors_by_status);
        for (word, number) in words.iter_mut().zip(plain.iter().chain(rest)) {
            *word = *number;
        }
        words
    }

    /// The numbers from [`Stats::words`].
    fn from_words(words: [u64; WORDS]) -> Stats {
        let mut stats = Stats::default();
        let Stats {
            turns,
            idle_turns,
            completions,
            received,
            sent,
            doorbells,
            credit_stalls,
            credit_returns,
            deferred,
            post_full,
            errors,
            strays,
            close_lost,
            refilled,
            datagrams_received,
            datagrams_sent,
            breaches,
            receives_out_most,
            peers,
            batches,
            polls,
            errors_by_status,
        } = &mut stats;
        let plain = [turns, idle_turns, completions, received, sent, doorbells, credit_stalls]
            .into_iter()
            .chain([credit_returns, deferred, post_full, errors, strays, close_lost, refilled])
            .chain([datagrams_received, datagrams_sent, breaches, receives_out_most, peers]);
        let places = plain.chain(batches).chain(polls).chain(errors_by_status);
        for (place, word) in places.zip(words) {
            *place = word;
        }
        stats
    }
}

/// The numbers as other threads see them: each is a little old, and they are not of one moment.
pub(super) struct PublishedStats(Box<[AtomicU64]>);

impl PublishedStats {
    pub(super) fn new() -> PublishedStats {
        PublishedStats((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Relaxed: these numbers guard no other memory.
    pub(super) fn publish(&self, stats: &Stats) {
        for (published, word) in self.0.iter().zip(stats.words()) {
            published.store(word, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> Stats {
        let mut words = [0; WORDS];
        for (word, published) in words.iter_mut().zip(&self.0) {
            *word = published.load(Ordering::Relaxed);
        }
        Stats::from_words(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Stats {
        let mut words = [0; WORDS];
        for (n, word) in words.iter_mut().enumerate() {
            *word = 1000 + n as u64;
        }
        Stats::from_words(words)
    }

    /// Every field keeps its place through the words and through the copy.
    #[test]
    fn the_copy_is_whole() {
        let stats = some();
        assert_eq!(stats.turns, 1000);
        assert_eq!(stats.receives_out_most, 1017);
        assert_eq!(stats.errors_by_status[21], 1000 + WORDS as u64 - 1);
        assert_eq!(Stats::from_words(stats.words()), stats);
        let published = PublishedStats::new();
        published.publish(&stats);
        assert_eq!(published.read(), stats);
    }
}
