//! The rows: what is sent, how, and to whom. The set is fixed, so that runs can be compared.

use crate::error::Failure;
use crate::traffic::payload::LINKS_MAX;
use crate::traffic::schedule::Trace;

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    /// Peers, each on a link of its own.
    pub(crate) links: usize,
    pub(crate) handler: Handling,
}

/// How messages follow each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shape {
    /// A message goes out when the one before it is back.
    PingPong { size: u32, turns: Turns },
    /// Messages go out when they are due, whether or not earlier ones are back.
    Open {
        trace: Trace,
        /// How much is offered, in percent of the peak.
        percent: u32,
    },
}

/// Which peers a message goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turns {
    /// One after the other.
    InTurn,
    /// Any of them.
    Random,
    /// All at the same time.
    AtOnce,
    /// Always the first one; the others are idle.
    OneBusy,
    /// Mostly the first one. Now and then one of the others, which has rested since. Only those
    /// messages have a time. After each message one of the resting peers polls once, in turn, as
    /// its own loop would.
    Rested,
}

/// How long the serving side handles a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Handling {
    pub(crate) ns: u32,
    /// Each time is random, from 0 to `ns`.
    pub(crate) random: bool,
}

impl Row {
    fn new(name: impl Into<String>, shape: Shape) -> Row {
        Row { name: name.into(), shape, links: 1, handler: Handling::default() }
    }

    /// The largest message, in bytes.
    pub(crate) fn size_max(&self) -> u32 {
        match self.shape {
            Shape::PingPong { size, .. } => size,
            Shape::Open { trace, .. } => trace.size_max(),
        }
    }

    /// True if the figures are half round trips. The others count in full from when a message was
    /// due.
    pub(crate) fn is_half(&self) -> bool {
        matches!(self.shape, Shape::PingPong { turns, .. } if turns != Turns::AtOnce)
    }
}

/// Bytes of a message where a row is not about its size.
const USUAL: u32 = 64;

/// All rows, in order.
pub(crate) fn all() -> Vec<Row> {
    let ping = |size| Shape::PingPong { size, turns: Turns::InTurn };
    let named = |kind: &str, size: u32| match size {
        0x10_0000.. => format!("{kind}-{}M", size >> 20),
        0x4000.. | 1024 => format!("{kind}-{}K", size >> 10),
        _ => format!("{kind}-{size}"),
    };
    let mut rows: Vec<Row> =
        [8, 64, 200].iter().map(|&size| Row::new(named("ping", size), ping(size))).collect();
    for size in [208, 256, 512, 1024, 4080, 4088, 4096, 16 << 10, 64 << 10, 1 << 20] {
        rows.push(Row::new(named("size", size), ping(size)));
    }
    for (name, ns) in [("0.1", 100), ("0.4", 400), ("2", 2000)] {
        for (kind, random) in [("fixed", false), ("random", true)] {
            let handler = Handling { ns, random };
            let row = Row::new(format!("handler-{name}us-{kind}"), ping(USUAL));
            rows.push(Row { handler, ..row });
        }
    }
    for percent in [1, 10, 50, 80] {
        let shape = Shape::Open { trace: Trace::Fixed(USUAL), percent };
        rows.push(Row::new(format!("poisson-{percent}"), shape));
    }
    rows.push(Row::new("peers-1", ping(USUAL)));
    for links in [2, 8, LINKS_MAX] {
        for (kind, turns) in [
            ("turn", Turns::InTurn),
            ("random", Turns::Random),
            ("once", Turns::AtOnce),
            ("busy", Turns::OneBusy),
            ("rested", Turns::Rested),
        ] {
            let shape = Shape::PingPong { size: USUAL, turns };
            rows.push(Row { links, ..Row::new(format!("peers-{links}-{kind}"), shape) });
        }
    }
    rows.push(Row::new("mix-trade", Shape::Open { trace: Trace::Trade, percent: 20 }));
    rows.push(Row::new("mix-storage", Shape::Open { trace: Trace::Storage, percent: 50 }));
    rows
}

/// The rows whose name has one of `patterns` in it; all rows if there is no pattern.
///
/// # Errors
/// A pattern fits no row.
pub(crate) fn chosen(patterns: &[String]) -> Result<Vec<Row>, Failure> {
    let all = all();
    for pattern in patterns {
        if !all.iter().any(|row| row.name.contains(pattern)) {
            let names: Vec<&str> = all.iter().map(|row| &row.name[..]).collect();
            return Err(Failure::new(format!(
                "--rows {pattern}: no row has that in its name; there is: {}",
                names.join(", ")
            )));
        }
    }
    let fits = |row: &Row| patterns.iter().any(|pattern| row.name.contains(pattern));
    Ok(all.into_iter().filter(|row| patterns.is_empty() || fits(row)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let mut names: Vec<String> = all().into_iter().map(|row| row.name).collect();
        assert_eq!(names.len(), 41);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 41);
    }

    #[test]
    fn a_pattern_chooses_by_a_part_of_the_name() {
        let names = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            chosen(&patterns).map(|rows| rows.into_iter().map(|row| row.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["ping-8", "size-1M"]).unwrap(), ["ping-8", "size-1M"]);
        assert_eq!(names(&["peers-8-"]).unwrap().len(), 5);
        assert_eq!(names(&[]).unwrap().len(), all().len());
        assert!(names(&["ping", "pong"]).unwrap_err().to_string().contains("--rows pong"));
    }
}
