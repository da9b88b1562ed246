//! The core workloads of YCSB (Cooper and others, 2010) and their choice of keys.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Workload {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
}

impl Workload {
    /// Updates in a thousand operations.
    fn updates(self) -> u64 {
        match self {
            Workload::A => 500,
            Workload::B => 50,
            Workload::C => 0,
        }
    }
}

/// Random numbers from a seed.
struct Random {
    seed: u64,
    drawn: u64,
}

impl Random {
    fn word(&mut self) -> u64 {
        self.drawn += 1;
        xxh3_64_with_seed(&self.drawn.to_le_bytes(), self.seed)
    }

    /// From 0 to 1, without 1.
    fn share(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The constant of YCSB's zipfian distribution.
const THETA: f64 = 0.99;

/// Numbers from 0 on, the smaller the more frequent: number n by n^-[`THETA`] (Gray and others,
/// 1994).
struct Zipfian {
    count: f64,
    alpha: f64,
    eta: f64,
    zeta: f64,
}

impl Zipfian {
    fn new(count: u64) -> Zipfian {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-THETA)).sum::<f64>();
        let (two, all) = (zeta(2), zeta(count));
        let count = count as f64;
        let eta = (1.0 - (2.0 / count).powf(1.0 - THETA)) / (1.0 - two / all);
        Zipfian { count, alpha: 1.0 / (1.0 - THETA), eta, zeta: all }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let share = random.share();
        let weight = share * self.zeta;
        if weight < 1.0 {
            return 0;
        }
        if weight < 1.0 + 0.5_f64.powf(THETA) {
            return 1;
        }
        (self.count * (self.eta * share - self.eta + 1.0).powf(self.alpha)) as u64
    }
}

/// An operation of a workload: the number of the record, and whether it is an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The record.
    pub record: u32,
    /// False: a read.
    pub update: bool,
}

/// Draws operations in advance, so that drawing takes no time while something is measured. The
/// frequent records are spread over all numbers, as YCSB does.
pub fn choices(workload: Workload, records: u32, count: usize, seed: u64) -> Vec<Choice> {
    let zipfian = Zipfian::new(u64::from(records.max(2)));
    let mut random = Random { seed, drawn: 0 };
    let draw = |_| {
        let rank = zipfian.draw(&mut random);
        let record = xxh3_64_with_seed(&rank.to_le_bytes(), 0) % u64::from(records.max(1));
        let update = random.word() % 1000 < workload.updates();
        Choice { record: record as u32, update }
    };
    (0..count).map(draw).collect()
}

/// The key of a record.
pub fn key(record: u32) -> [u8; 24] {
    let mut key = *b"user00000000000000000000";
    let mut left = xxh3_64_with_seed(&record.to_le_bytes(), 1);
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipfian_prefers_a_few() {
        let zipfian = Zipfian::new(1000);
        let mut random = Random { seed: 5, drawn: 0 };
        let mut counts = [0_u32; 1000];
        for _ in 0..200_000 {
            counts[zipfian.draw(&mut random) as usize] += 1;
        }
        // 1 / zeta(1000, 0.99) = 0.1318 of all draws are number 0, and half as many number 1.
        assert!((25_000..28_000).contains(&counts[0]), "{}", counts[0]);
        assert!((12_000..15_000).contains(&counts[1]), "{}", counts[1]);
        assert!(counts[999] < 200, "{}", counts[999]);
    }

    #[test]
    fn workloads_have_their_share_of_updates() {
        for (workload, least, most) in
            [(Workload::A, 4800, 5200), (Workload::B, 400, 600), (Workload::C, 0, 0)]
        {
            let choices = choices(workload, 100, 10_000, 3);
            let updates = choices.iter().filter(|choice| choice.update).count();
            assert!((least..=most).contains(&updates), "{workload:?}: {updates}");
            assert!(choices.iter().all(|choice| choice.record < 100));
        }
    }

    #[test]
    fn keys_differ() {
        let keys: std::collections::BTreeSet<_> = (0..10_000).map(key).collect();
        assert_eq!(keys.len(), 10_000);
        assert!(key(7).starts_with(b"user"));
    }
}
