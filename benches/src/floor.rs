//! The physical floor under a figure: [`doorbell_tune::floor`] before and after it, since the
//! hypervisor may move it under a run.

/// Below it the two cores are near, in nanoseconds.
const NEAR_NS: f64 = 100.0;

/// How the cores lay to each other before and after a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Floor {
    pub(crate) before_ns: f64,
    pub(crate) after_ns: f64,
}

impl Floor {
    /// Both times near, and both times far.
    pub(crate) const NEAR: &str = "NEAR";
    pub(crate) const FAR: &str = "FAR";

    /// The median of both.
    pub(crate) fn ns(&self) -> f64 {
        (self.before_ns + self.after_ns) / 2.0
    }

    /// NEAR, FAR, or MIX if it changed in between.
    pub(crate) fn mode(&self) -> &'static str {
        match (self.before_ns < NEAR_NS, self.after_ns < NEAR_NS) {
            (true, true) => Floor::NEAR,
            (false, false) => Floor::FAR,
            _ => "MIX",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_mix_when_the_cores_moved() {
        let mode = |before_ns, after_ns| Floor { before_ns, after_ns }.mode();
        assert_eq!(mode(50.0, 55.0), "NEAR");
        assert_eq!(mode(240.0, 190.0), "FAR");
        assert_eq!(mode(50.0, 240.0), "MIX");
        assert_eq!(mode(240.0, 50.0), "MIX");
        assert_eq!(Floor { before_ns: 50.0, after_ns: 60.0 }.ns(), 55.0);
    }
}
