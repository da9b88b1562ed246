//! A seeded generator of order flow: prices walk, most orders rest near the best price, some trade,
//! and many are canceled or replaced.

use crate::field::Symbol;
use crate::ouch::{Enter, Flags, Replace, Request, TimeInForce};

/// SplitMix64.
struct Random(u64);

impl Random {
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

/// Times at which requests are due: a Poisson process, whose gaps are independent.
pub struct Arrivals {
    random: Random,
    mean: f64,
    next: f64,
}

impl Arrivals {
    /// The arrivals of a seed with `rate` requests a second; 0 makes all of them due at once.
    pub fn new(seed: u64, rate: u64) -> Arrivals {
        let mean = if rate == 0 { 0.0 } else { 1e9 / rate as f64 };
        Arrivals { random: Random(!seed), mean, next: 0.0 }
    }

    /// When the next request is due, in nanoseconds from the start.
    pub fn next_time(&mut self) -> u64 {
        // 53 bits: a number above 0 and at most 1.
        let share = ((self.random.word() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        self.next -= self.mean * share.ln();
        self.next as u64
    }
}

/// The requests of one user.
pub struct Flow {
    random: Random,
    symbols: Vec<Symbol>,
    /// The price around which each security trades, in cents.
    cents: Vec<u64>,
    last_ref: u32,
    /// Numbers of recent orders with their securities, to cancel or replace them.
    recent: Vec<u32>,
}

/// Recent orders that are remembered.
const RECENT: usize = 64;

impl Flow {
    /// The flow of a seed.
    pub fn new(seed: u64, symbols: &[Symbol]) -> Flow {
        let (random, symbols) = (Random(seed), symbols.to_vec());
        Flow {
            random,
            cents: vec![10_000; symbols.len()],
            symbols,
            last_ref: 0,
            recent: Vec::new(),
        }
    }

    /// The next request.
    pub fn next_request(&mut self) -> Request {
        let any = self.random.below(self.recent.len() as u64) as usize;
        match self.random.below(10) {
            0..3 if !self.recent.is_empty() => {
                let user_ref = self.recent.swap_remove(any);
                // Mostly all of it.
                let quantity = self.random.below(4).saturating_sub(2) as u32 * 100;
                Request::Cancel { user_ref, quantity }
            }
            3 if !self.recent.is_empty() => {
                let old_user_ref = self.recent.swap_remove(any);
                let Enter { user_ref, quantity, price, .. } = self.enter();
                let (time_in_force, cl_ord_id) = (TimeInForce::Day, [b' '; 14]);
                let (display, sweep) = (b'Y', b'N');
                Request::Replace(Replace {
                    old_user_ref,
                    user_ref,
                    quantity,
                    price,
                    time_in_force,
                    display,
                    sweep,
                    cl_ord_id,
                })
            }
            _ => Request::Enter(self.enter()),
        }
    }

    /// The next number of an order.
    pub fn next_number(&mut self) -> u32 {
        self.last_ref += 1;
        self.last_ref
    }

    fn enter(&mut self) -> Enter {
        let which = self.random.below(self.symbols.len() as u64) as usize;
        let step = self.random.below(3);
        let cents = &mut self.cents[which];
        *cents = (*cents + step).saturating_sub(1).max(100);
        let buys = self.random.below(2) == 0;
        // Most prices are on the passive side, some cross.
        let away = self.random.below(12);
        let price = if buys { *cents + 2 - away.min(*cents) } else { *cents + away - 2 };
        let ioc = self.random.below(8) == 0;
        let user_ref = self.next_number();
        if self.recent.len() == RECENT {
            self.recent.remove(0);
        }
        self.recent.push(user_ref);
        Enter {
            user_ref,
            side: if buys { b'B' } else { b'S' },
            quantity: (1 + self.random.below(5) as u32) * 100,
            symbol: self.symbols[which],
            price: price.max(1) * 100,
            time_in_force: if ioc { TimeInForce::Ioc } else { TimeInForce::Day },
            flags: Flags::VISIBLE,
            cl_ord_id: [b' '; 14],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gaps of a Poisson process: the mean is that of the rate, and so is the standard deviation.
    #[test]
    fn arrivals_are_those_of_a_poisson_process() {
        let (mut arrivals, count) = (Arrivals::new(5, 20_000), 100_000);
        let (mut last, mut sum, mut squares) = (0, 0.0, 0.0);
        for _ in 0..count {
            let next = arrivals.next_time();
            let gap = (next - last) as f64 / 50_000.0;
            (last, sum, squares) = (next, sum + gap, squares + gap * gap);
        }
        let (mean, square) = (sum / f64::from(count), squares / f64::from(count));
        assert!((mean - 1.0).abs() < 0.02 && (square - 2.0).abs() < 0.1, "{mean} {square}");
        assert_eq!(Arrivals::new(5, 0).next_time(), 0);
    }
}
