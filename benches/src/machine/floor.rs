//! The physical floor under a figure: how long a cache line takes between the two cores
//! ([`doorbell_tune::floor`]). Measured before and after, since a hypervisor may move the cores.

/// Below this floor, in nanoseconds, the two cores are near.
const NEAR_NS: f64 = 100.0;

/// The floor before and after a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Floor {
    pub(crate) before_ns: f64,
    pub(crate) after_ns: f64,
}

impl Floor {
    /// Near before and after.
    pub(crate) const NEAR: &str = "NEAR";
    /// Far before and after.
    pub(crate) const FAR: &str = "FAR";
    /// The cores moved.
    pub(crate) const MIX: &str = "MIX";

    /// The mean of both.
    pub(crate) fn ns(&self) -> f64 {
        (self.before_ns + self.after_ns) / 2.0
    }

    /// NEAR, FAR, or MIX if the cores moved in between.
    pub(crate) fn mode(&self) -> &'static str {
        match (self.before_ns < NEAR_NS, self.after_ns < NEAR_NS) {
            (true, true) => Floor::NEAR,
            (false, false) => Floor::FAR,
            _ => Floor::MIX,
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
