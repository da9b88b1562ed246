//! Rates of links, by their numbers in C: as multiples of 2.5 Gbit/s, and in Mbit/s.
#![expect(unsafe_code, reason = "symbols with the names of the C library")]

use libc::c_int;

/// A rate: its number, its multiple of 2.5 Gbit/s if it has one, and Mbit/s.
struct Rate(c_int, Option<c_int>, c_int);

const RATES: [Rate; 23] = [
    Rate(2, Some(1), 2_500),
    Rate(3, Some(4), 10_000),
    Rate(4, Some(12), 30_000),
    Rate(5, Some(2), 5_000),
    Rate(6, Some(8), 20_000),
    Rate(7, Some(16), 40_000),
    Rate(8, Some(24), 60_000),
    Rate(9, Some(32), 80_000),
    Rate(10, Some(48), 120_000),
    // 14.0625 Gbit/s a lane.
    Rate(11, None, 14_062),
    Rate(12, None, 56_250),
    Rate(13, None, 112_500),
    Rate(14, None, 168_750),
    // 25.78125 Gbit/s a lane.
    Rate(15, None, 25_781),
    Rate(16, None, 103_125),
    Rate(17, None, 206_250),
    Rate(18, None, 309_375),
    // The figures of these rates include the overhead of the line code.
    Rate(19, Some(11), 28_125),
    Rate(20, Some(20), 53_125),
    Rate(21, Some(160), 425_000),
    Rate(22, Some(240), 637_500),
    Rate(23, Some(320), 850_000),
    Rate(24, Some(480), 1_275_000),
];

/// What C calls the greatest rate.
const MAX: c_int = 0;

fn first(is_it: impl Fn(&Rate) -> bool) -> Option<&'static Rate> {
    RATES.iter().find(|rate| is_it(rate))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    first(|known| known.0 == rate).and_then(|known| known.1).unwrap_or(-1)
}

#[unsafe(no_mangle)]
extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    first(|known| known.1 == Some(mult)).map_or(MAX, |known| known.0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    first(|known| known.0 == rate).map_or(-1, |known| known.2)
}

#[unsafe(no_mangle)]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    first(|known| known.2 == mbps).map_or(MAX, |known| known.0)
}
