//! How this program times its own sides of a contest: round trips one by one, and streams.

use std::time::{Duration, Instant};

use crate::clock::{self, Clock};
use crate::error::Failure;
use crate::peer::Figure;

/// The most round trips that are timed.
const TRIPS_MAX: usize = 1 << 20;

/// The least, so that a machine that is busy gives a figure too. Their time is limited.
const TRIPS_MIN: usize = 256;
const TIMES_LONGER: u64 = 10;

/// Bytes and messages between two looks at the clock during a stream.
const LOOK_BYTES: usize = 256 << 10;
const LOOK_MAX: usize = 256;

/// The side of a ping-pong that sends first.
pub(crate) trait Trips {
    /// Writes message `number`. This time does not count: the message exists before it is sent.
    fn prepare(&mut self, number: u64) -> Result<(), Failure>;

    /// Sends that message, and waits until its answer has come and was read.
    fn trip(&mut self, number: u64) -> Result<(), Failure>;
}

/// Times round trips for that long, after a fifth of it to warm up: the median and the mean of half
/// of each.
pub(crate) fn half_trips(trips: &mut impl Trips, time: Duration) -> Result<Figure, Failure> {
    let clock = Clock::new();
    // Every page is there before the first trip.
    let mut ticks = vec![1_u64; TRIPS_MAX];
    let warm = run(trips, &mut ticks, 0, clock.ticks_in(time / 5))?;
    let count = run(trips, &mut ticks, warm as u64, clock.ticks_in(time))?;
    Ok(median_and_mean(&mut ticks[..count], clock.tick_ns / 2.0))
}

/// Fills in ticks until the time is over and there are enough, or there is no room. Returns the
/// number of trips.
fn run(
    trips: &mut impl Trips,
    times: &mut [u64],
    first: u64,
    limit: u64,
) -> Result<usize, Failure> {
    let start = clock::ticks();
    for (number, time) in times.iter_mut().enumerate() {
        trips.prepare(first + number as u64)?;
        let sent = clock::ticks();
        trips.trip(first + number as u64)?;
        let back = clock::ticks();
        *time = back.saturating_sub(sent);
        let passed = back.saturating_sub(start);
        if passed >= limit && (number + 1 >= TRIPS_MIN || passed >= TIMES_LONGER * limit) {
            return Ok(number + 1);
        }
    }
    Ok(times.len())
}

/// Of times in units of `unit_ns`. Empty if there is none.
pub(crate) fn median_and_mean(times: &mut [u64], unit_ns: f64) -> Figure {
    times.sort_unstable();
    let Some(middle) = times.get(times.len() / 2) else { return Figure::default() };
    let sum: u64 = times.iter().sum();
    Figure {
        p50_ns: Some(*middle as f64 * unit_ns),
        mean_ns: Some(sum as f64 / times.len() as f64 * unit_ns),
        messages_per_second: None,
    }
}

/// The sending side of a stream.
pub(crate) trait Stream {
    /// Sends one batch as soon as there is room. Returns its number of messages.
    fn send(&mut self) -> Result<u64, Failure>;

    /// Waits until everything that was sent has arrived, and was read and right.
    fn settle(&mut self) -> Result<(), Failure>;
}

/// Messages a second for that long, until the last one has arrived, after a fifth of it to warm up.
pub(crate) fn rate(
    stream: &mut impl Stream,
    size: usize,
    time: Duration,
) -> Result<Figure, Failure> {
    let look_every = (LOOK_BYTES / size.max(1)).clamp(1, LOOK_MAX) as u64;
    send_for(stream, look_every, time / 5)?;
    stream.settle()?;
    let start = Instant::now();
    let sent = send_for(stream, look_every, time)?;
    stream.settle()?;
    let rate = sent as f64 / start.elapsed().as_secs_f64();
    Ok(Figure { messages_per_second: Some(rate), ..Figure::default() })
}

fn send_for(stream: &mut impl Stream, look_every: u64, time: Duration) -> Result<u64, Failure> {
    let (start, mut sent, mut look) = (Instant::now(), 0, 0);
    loop {
        sent += stream.send()?;
        if sent >= look {
            if start.elapsed() >= time {
                return Ok(sent);
            }
            look = sent + look_every;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one_and_the_mean_counts_all() {
        let figure = median_and_mean(&mut [9, 1, 2], 0.5);
        assert_eq!((figure.p50_ns, figure.mean_ns), (Some(1.0), Some(2.0)));
        assert_eq!(median_and_mean(&mut [], 0.5), Figure::default());
    }

    /// Notes what it is asked to do.
    #[derive(Default)]
    struct Noted {
        prepared: u64,
        tripped: u64,
        sent: u64,
        settled: Vec<u64>,
    }

    impl Trips for Noted {
        fn prepare(&mut self, number: u64) -> Result<(), Failure> {
            assert_eq!((number, self.tripped), (self.prepared, self.prepared));
            self.prepared += 1;
            Ok(())
        }

        fn trip(&mut self, number: u64) -> Result<(), Failure> {
            assert_eq!(number, self.tripped);
            self.tripped += 1;
            if number > 2000 { Err(Failure::new("broken off")) } else { Ok(()) }
        }
    }

    impl Stream for Noted {
        fn send(&mut self) -> Result<u64, Failure> {
            self.sent += 3;
            Ok(3)
        }

        fn settle(&mut self) -> Result<(), Failure> {
            self.settled.push(self.sent);
            Ok(())
        }
    }

    #[test]
    fn every_trip_has_a_message_of_its_own_and_an_error_ends_them() {
        let mut noted = Noted::default();
        assert!(half_trips(&mut noted, Duration::ZERO).unwrap().p50_ns.is_some());
        assert_eq!(noted.tripped, 2, "one to warm up and one that counts");
        let failure = half_trips(&mut Noted::default(), Duration::from_secs(60)).unwrap_err();
        assert_eq!(failure.to_string(), "broken off");
    }

    #[test]
    fn a_stream_settles_before_the_clock_starts_and_before_it_stops() {
        let mut noted = Noted::default();
        rate(&mut noted, 64, Duration::from_millis(1)).unwrap();
        assert!(noted.settled.len() == 2 && noted.settled[1] == noted.sent);
        assert!(noted.settled[0] < noted.sent);
    }
}
