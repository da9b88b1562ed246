//! Aims of figures, and whether a run met them.

/// A bound that a figure should keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Aim {
    AtMost(f64),
    AtLeast(f64),
}

impl Aim {
    fn text(self) -> String {
        match self {
            Aim::AtMost(bound) => format!("≤ {bound}"),
            Aim::AtLeast(bound) => format!("≥ {bound}"),
        }
    }

    fn is_met(self, figure: f64) -> bool {
        match self {
            Aim::AtMost(bound) => figure <= bound,
            Aim::AtLeast(bound) => figure >= bound,
        }
    }
}

/// Counts the aims of a page.
#[derive(Default)]
pub(crate) struct Aims {
    pub(crate) met: u32,
    /// One line for each aim that was missed.
    pub(crate) missed: Vec<String>,
}

impl Aims {
    /// Two cells: the aim, and whether the figure met it. `what` names the figure, `digits` are
    /// those that the page shows of it.
    pub(crate) fn judge(
        &mut self,
        what: &str,
        (figure, digits): (Option<f64>, usize),
        aim: Option<Aim>,
    ) -> [String; 2] {
        let Some(aim) = aim else { return ["-".to_owned(), "-".to_owned()] };
        let Some(figure) = figure else { return [aim.text(), "not measured".to_owned()] };
        let verdict = if aim.is_met(figure) {
            self.met += 1;
            "met"
        } else {
            self.missed.push(format!("{what}: {figure:.digits$}, the aim is {}", aim.text()));
            "**missed**"
        };
        [aim.text(), verdict.to_owned()]
    }
}

/// The aim of half a round trip with workers, in floors.
pub(crate) fn latency(size: u64, mode: &str) -> Option<Aim> {
    let floors = match (mode, size) {
        ("NEAR", 8 | 32) => 1.4,
        ("NEAR", 64) => 1.5,
        ("NEAR", 200) => 1.8,
        ("FAR", 8 | 32) => 1.2,
        _ => return None,
    };
    Some(Aim::AtMost(floors))
}

/// The aim of half a round trip with the device alone, in floors.
pub(crate) fn bare_latency(size: u64, mode: &str) -> Option<Aim> {
    let floors = match (mode, size) {
        ("NEAR", 8 | 32) => 1.25,
        ("NEAR", 64) => 1.35,
        ("NEAR", 200) => 1.65,
        _ => return None,
    };
    Some(Aim::AtMost(floors))
}

/// The longest message of a row of traffic that has aims.
const TRAFFIC_BYTES: u64 = 200;

/// The aim of the median of a row of traffic, as times that of the naive ring.
pub(crate) fn traffic_p50(size: u64) -> Option<Aim> {
    (size <= TRAFFIC_BYTES).then_some(Aim::AtMost(1.25))
}

/// The same for the 99th percentile.
pub(crate) fn traffic_p99(size: u64) -> Option<Aim> {
    (size <= TRAFFIC_BYTES).then_some(Aim::AtMost(1.5))
}

/// The aim of a message beside idle connections, as times that without them.
pub(crate) const IDLE: Aim = Aim::AtMost(1.05);

/// The aim of one-sided transfers, as a part of memcpy.
pub(crate) const MEMCPY: Aim = Aim::AtLeast(0.95);

/// The aim of counts that must be zero: allocations, errors.
pub(crate) const NONE: Aim = Aim::AtMost(0.0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_long_messages_have_no_aims() {
        for (size, has) in [(8, true), (200, true), (201, false), (1 << 20, false)] {
            assert_eq!(traffic_p50(size), has.then_some(Aim::AtMost(1.25)), "{size}");
            assert_eq!(traffic_p99(size), has.then_some(Aim::AtMost(1.5)), "{size}");
        }
    }

    #[test]
    fn a_missed_aim_is_marked_and_listed() {
        let mut aims = Aims::default();
        let cells = aims.judge("rate", (Some(2.0), 2), Some(Aim::AtLeast(2.0)));
        assert_eq!(cells, ["≥ 2", "met"]);
        let cells = aims.judge("latency", (Some(1.41), 2), latency(8, "NEAR"));
        assert_eq!(cells, ["≤ 1.4", "**missed**"]);
        assert_eq!(aims.judge("x", (None, 2), Some(NONE)), ["≤ 0", "not measured"]);
        assert_eq!(aims.judge("x", (Some(9.0), 2), None), ["-", "-"]);
        assert_eq!(
            (aims.met, aims.missed),
            (1, vec!["latency: 1.41, the aim is ≤ 1.4".to_owned()])
        );
    }
}
