//! A small fuzzer for parsers: it changes valid messages by a seed, for some time.
//!
//! `DOORBELL_FUZZ_SECONDS` says for how long (1 by default, for each parser), and
//! `DOORBELL_FUZZ_SEED` repeats a run. A failure prints the seed and the message.

use std::time::{Duration, Instant};

/// Changed messages that are kept to be changed further.
const KEPT: usize = 256;

/// Numbers that parsers get wrong.
const EDGES: [u64; 8] = [0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff_ffff, u64::MAX];

/// SplitMix64.
struct Prng(u64);

impl Prng {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }
}

/// Prints the message under test if the parser panics.
struct Report<'a> {
    name: &'a str,
    seed: u64,
    message: &'a [u8],
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.message.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("{}: DOORBELL_FUZZ_SEED={} came to: {hex}", self.name, self.seed);
        }
    }
}

fn from_env(name: &str) -> Option<u64> {
    let read = |value: String| value.parse().unwrap_or_else(|_| panic!("{name} is no number"));
    std::env::var(name).ok().map(read)
}

/// Gives `check` changed messages of the corpus. It panics if a parser breaks its word, and says
/// whether the parser took the message.
pub(crate) fn fuzz(name: &str, corpus: &[Vec<u8>], mut check: impl FnMut(&[u8]) -> bool) {
    let seed = from_env("DOORBELL_FUZZ_SEED").unwrap_or_else(doorbell::clock_ns);
    let limit = Duration::from_secs(from_env("DOORBELL_FUZZ_SECONDS").unwrap_or(1));
    let (mut prng, mut pool, began) = (Prng(seed), corpus.to_vec(), Instant::now());
    let (mut count, mut taken) = (0_u64, 0_u64);
    for message in corpus {
        let _report = Report { name, seed, message };
        assert!(check(message), "a message of the corpus is refused");
    }
    while count == 0 || began.elapsed() < limit {
        for _ in 0..256 {
            let message = changed(&mut prng, &pool);
            let report = Report { name, seed, message: &message };
            let is_taken = check(&message);
            drop(report);
            (count, taken) = (count + 1, taken + u64::from(is_taken));
            // Valid messages far from the corpus lead to others.
            if is_taken && pool.len() < corpus.len() + KEPT {
                pool.push(message);
            } else if is_taken && prng.below(32) == 0 {
                let at = corpus.len() + prng.below(KEPT as u64) as usize;
                pool[at] = message;
            }
        }
    }
    println!("{name}: seed {seed}, {count} messages, {taken} taken");
    assert!(taken > 0, "every message was refused");
}

/// A message of the pool with some changes.
fn changed(prng: &mut Prng, pool: &[Vec<u8>]) -> Vec<u8> {
    let any = |prng: &mut Prng| pool[prng.below(pool.len() as u64) as usize].clone();
    let mut message = any(prng);
    for _ in 0..prng.below(5) {
        let at = prng.below(message.len() as u64 + 1) as usize;
        let length = (1 + prng.below(8)).min((message.len() - at) as u64) as usize;
        match prng.below(9) {
            _ if message.is_empty() => message.extend(prng.word().to_le_bytes()),
            0..3 if length > 0 => message[at] ^= 1 << prng.below(8),
            3 if length > 0 => message[at] = prng.word() as u8,
            4 if length > 0 => {
                let number = EDGES[prng.below(EDGES.len() as u64) as usize]
                    .wrapping_add(prng.below(3))
                    .wrapping_sub(1);
                let (big, little) = (number.to_be_bytes(), number.to_le_bytes());
                let bytes =
                    if prng.below(2) == 0 { &big[8 - length.min(8)..] } else { &little[..] };
                message[at..].iter_mut().zip(bytes).take(length).for_each(|(to, from)| *to = *from);
            }
            5 => message.truncate(at),
            6 => drop(message.drain(at..at + length)),
            7 => {
                let again = message[at..at + length].to_vec();
                message.splice(at..at, again);
            }
            8 => {
                let other = any(prng);
                let from = prng.below(other.len() as u64 + 1) as usize;
                message.truncate(at);
                message.extend(&other[from..]);
            }
            _ => message.push(prng.word() as u8),
        }
    }
    message
}
