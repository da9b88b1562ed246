//! Values on the command line: sizes, rates, times and addresses with their units, and lists.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::ops::{Add, Mul};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The port of `--listen` and `--connect` if none is named.
const PORT: u16 = 7471;

/// Messages a second of an open loop. No core sends more.
pub(crate) const RATES: std::ops::RangeInclusive<f64> = 1.0..=100_000_000.0;

/// The time of a figure, in seconds.
const SECONDS: std::ops::RangeInclusive<f64> = 0.001..=3600.0;

/// The most values that one range stands for.
const SPAN_MAX: usize = 1000;

/// One value of a list, or all values of a range in it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span<T>(Vec<T>);

impl<T: Clone> Span<T> {
    /// All values of a list.
    pub(crate) fn all(list: &[Span<T>]) -> Vec<T> {
        list.iter().flat_map(|span| span.0.iter().cloned()).collect()
    }
}

/// A value, or a range: `8..64` doubles until the last value, `8..64+8` goes in steps.
fn span<T>(text: &str, two: T, one: impl Fn(&str) -> Result<T, String>) -> Result<Span<T>, String>
where
    T: Copy + PartialOrd + Add<Output = T> + Mul<Output = T> + Default,
{
    let Some((from, rest)) = text.split_once("..") else {
        return one(text).map(|of| Span(vec![of]));
    };
    let (to, step) = match rest.split_once('+') {
        Some((to, step)) => (to, Some(one(step)?)),
        None => (rest, None),
    };
    let (from, to) = (one(from)?, one(to)?);
    let mut values = vec![from];
    while let Some(last) = values.last().copied() {
        // The next value would be beyond the end, and perhaps beyond the type.
        let is_over = match step {
            Some(step) => last + step > to,
            None => last * two > to,
        };
        if is_over || values.len() > SPAN_MAX {
            break;
        }
        values.push(step.map_or(last * two, |step| last + step));
    }
    match from > T::default() && from <= to && values.len() <= SPAN_MAX {
        true => Ok(Span(values)),
        false => Err(format!("a range from a low to a high value, of {SPAN_MAX} values at most")),
    }
}

/// An address with or without a port, by number or by name.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    let found = match text.contains(':') {
        true => text.to_socket_addrs(),
        false => (text, PORT).to_socket_addrs(),
    };
    let first = found.map_err(|error| error.to_string())?.next();
    first.ok_or_else(|| "the name has no address".to_owned())
}

/// Bytes, with a unit or without.
pub(crate) fn bytes(text: &str) -> Result<u32, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1u32),
    };
    let bytes = number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    bytes.ok_or_else(|| "bytes below 4G, such as 64, 4K or 1M".to_owned())
}

/// The number of a core.
pub(crate) fn core(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "the number of a core, such as 1; several as 1,2".to_owned())
}

/// The time of a figure, in seconds unless it has a unit.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (text, 1.0),
    };
    match number.parse::<f64>().map(|number| number * unit) {
        Ok(seconds) if SECONDS.contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => {
            Err(format!("seconds, {} to {}, such as 0.5 or 500ms", SECONDS.start(), SECONDS.end()))
        }
    }
}

/// Bytes, or a range of them.
pub(crate) fn sizes(text: &str) -> Result<Span<u32>, String> {
    // Wider than the type, so that doubling the last value is no error.
    let wide = span(text, 2_u64, |text| bytes(text).map(u64::from))?;
    Ok(Span(wide.0.into_iter().filter_map(|bytes| u32::try_from(bytes).ok()).collect()))
}

/// Messages a second, or a range of them.
pub(crate) fn per_second(text: &str) -> Result<Span<f64>, String> {
    span(text, 2.0, rate)
}

fn rate(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    match number.parse::<f64>().map(|number| number * unit) {
        Ok(rate) if RATES.contains(&rate) => Ok(rate),
        _ => Err(format!(
            "messages a second, {} to {}, such as 500k or 1.5M",
            RATES.start(),
            RATES.end()
        )),
    }
}

/// When messages of an open loop are due.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Arrivals {
    /// Evenly.
    Fixed,
    /// Independently of each other.
    Poisson,
    /// As in a file.
    Recorded(Recorded),
}

impl Arrivals {
    /// The word for them on the command line.
    pub(crate) fn name(&self) -> &str {
        match self {
            Arrivals::Fixed => "fixed",
            Arrivals::Poisson => "poisson",
            Arrivals::Recorded(recorded) => &recorded.file,
        }
    }
}

/// Recorded arrivals.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recorded {
    file: Arc<str>,
    /// Times between arrivals, in nanoseconds. The last one leads back to the first arrival.
    pub(crate) gaps: Arc<[f64]>,
}

impl Recorded {
    /// Arrivals a second.
    pub(crate) fn rate(&self) -> f64 {
        1e9 * self.gaps.len() as f64 / self.gaps.iter().sum::<f64>()
    }
}

/// How messages are due.
pub(crate) fn arrivals(text: &str) -> Result<Arrivals, String> {
    match text {
        "fixed" => Ok(Arrivals::Fixed),
        "poisson" => Ok(Arrivals::Poisson),
        file => recorded(file).map(Arrivals::Recorded),
    }
}

fn recorded(file: &str) -> Result<Recorded, String> {
    let text = std::fs::read_to_string(Path::new(file))
        .map_err(|error| format!("fixed, poisson or a file of times: {error}"))?;
    let mut times = Vec::new();
    for (n, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let time = line.trim().parse::<f64>().ok().filter(|time| time.is_finite());
        let last = times.last().copied().unwrap_or(f64::NEG_INFINITY);
        let time = time.filter(|time| *time >= last);
        times.push(time.ok_or_else(|| {
            format!("line {} is not a time in nanoseconds, as late as the one before", n + 1)
        })?);
    }
    let mut gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len().max(1) as f64;
    if mean <= 0.0 {
        return Err("at least two different times are needed".to_owned());
    }
    gaps.push(mean);
    Ok(Recorded { file: file.into(), gaps: gaps.into() })
}

/// A percentile that must stay within a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slo {
    /// Which one: `p99.9`, `max`.
    pub(crate) percentile: &'static str,
    pub(crate) limit_ns: f64,
}

/// The percentiles that an objective may be about.
const PERCENTILES: [&str; 6] = ["p50", "p90", "p99", "p99.9", "p99.99", "max"];

/// A percentile and a time, such as `p99.9=5us`.
pub(crate) fn slo(text: &str) -> Result<Slo, String> {
    let wanted =
        || format!("a percentile and a time, such as p99.9=5us; {}", PERCENTILES.join(", "));
    let (percentile, time) = text.split_once('=').ok_or_else(wanted)?;
    let percentile = PERCENTILES.into_iter().find(|of| *of == percentile).ok_or_else(wanted)?;
    let number = time.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &time[number.len()..] {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(wanted()),
    };
    match number.parse::<f64>().map(|number| number * unit) {
        Ok(limit_ns) if limit_ns >= 1.0 => Ok(Slo { percentile, limit_ns }),
        _ => Err(wanted()),
    }
}

pub(crate) fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("percent, 0 to 100".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_usual_port() {
        assert_eq!(address("127.0.0.1").unwrap().to_string(), "127.0.0.1:7471");
        assert_eq!(address("127.0.0.1:9").unwrap().to_string(), "127.0.0.1:9");
        assert_eq!(address("::1").unwrap().to_string(), "[::1]:7471");
        assert!(address("127.0.0.1:port").is_err());
    }

    #[test]
    fn bytes_have_units() {
        for (text, count) in [("64", 64), ("4K", 4096), ("4k", 4096), ("2g", 2 << 30)] {
            assert_eq!(bytes(text), Ok(count), "{text}");
        }
        for text in ["", "k", "4G", "1.5m", "-1", "64b", "é"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_have_bounds() {
        for text in ["0.5", "0.5s", "500ms"] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(500)), "{text}");
        }
        for text in ["0", "-1", "NaN", "inf", "x", "1e9", "ms", "0.5ms", "1us"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_double_or_go_in_steps() {
        let of = |text| sizes(text).map(|span| span.0);
        assert_eq!(of("64"), Ok(vec![64]));
        assert_eq!(of("8..100"), Ok(vec![8, 16, 32, 64]));
        assert_eq!(of("1K..4K"), Ok(vec![1024, 2048, 4096]));
        assert_eq!(of("64..256+64"), Ok(vec![64, 128, 192, 256]));
        assert_eq!(of("3g..4294967295").map(|all| all.len()), Ok(1));
        for text in ["8..", "..8", "64..8", "0..8", "8..64+0", "8..64+x", "1..2000+1", "8.."] {
            assert!(of(text).is_err(), "{text}");
        }
        let of = |text| per_second(text).map(|span| span.0);
        assert_eq!(of("500k"), Ok(vec![500e3]));
        assert_eq!(of("1.5M..4M"), Ok(vec![1.5e6, 3e6]));
        assert_eq!(of("1M..2M+500k"), Ok(vec![1e6, 1.5e6, 2e6]));
        for text in ["0", "1e9", "NaN", "k", "1m", "1..", "é"] {
            assert!(of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn objectives_have_a_percentile_and_a_time() {
        assert_eq!(slo("p99.9=5us"), Ok(Slo { percentile: "p99.9", limit_ns: 5e3 }));
        assert_eq!(slo("max=1.5ms"), Ok(Slo { percentile: "max", limit_ns: 1.5e6 }));
        for text in ["", "p99.9", "p98=1us", "p99=us", "p99=5", "p99=0ns", "p99=-1us", "p99=5m"] {
            assert!(slo(text).is_err(), "{text}");
        }
    }

    #[test]
    fn recorded_arrivals_are_ascending_times() {
        let file = std::env::temp_dir().join(format!("doorbell-times-{}", std::process::id()));
        let of = |text: &str| {
            std::fs::write(&file, text).unwrap();
            arrivals(file.to_str().unwrap())
        };
        let Ok(Arrivals::Recorded(found)) = of("100\n200\n\n500\n") else { panic!("three times") };
        assert_eq!((&found.gaps[..], found.rate()), (&[100.0, 300.0, 200.0][..], 5e6));
        for text in ["", "1", "1\n1", "2\n1", "1\nx", "1\nNaN"] {
            assert!(of(text).is_err(), "{text}");
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(arrivals("poisson"), Ok(Arrivals::Poisson));
        assert!(arrivals("/none-such").is_err());
    }
}
