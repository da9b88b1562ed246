//! What costs latency or rate on a machine: one table of conditions, each of which can be read,
//! judged and mended.
//!
//! A run goes through the files in this order: a [`Host`] is what is read, the families
//! ([`memory`] to [`cgroup`]) judge it, a [`Report`] is what came out, [`script()`] is the shell
//! that mends it, [`undo`] takes that back, and [`boot`] is the same at every start of the machine.

mod host;
mod mend;

pub mod cgroup;
pub mod cpu;
pub mod device;
pub mod irq;
pub mod memory;
pub mod pci;
pub mod time;

pub mod boot;
mod report;
mod script;
mod state;

pub use host::{Host, Unread, Wants};
pub use mend::{Mend, Rule, Setting, Step};
pub use report::{Finding, Report, Severity, Verdict};
pub use script::{STATE, run_script, script};
pub use state::{UndoError, Undone, undo};

/// One condition. What it says about cost is an order of magnitude with where it comes from, not a
/// promise for one machine.
#[derive(Debug)]
pub struct Check {
    /// What `--only` calls it.
    pub name: &'static str,
    /// What should be.
    pub should: &'static str,
    /// Why.
    pub why: &'static str,
    /// What it costs otherwise, and the source of that figure.
    pub cost: &'static str,
    /// Reads what is, and says how bad that is.
    pub judge: fn(&Host<'_>, &Check) -> Result<Verdict, Unread>,
    /// What would mend it, at run time and at the next start.
    pub mends: &'static [Mend],
}

/// The table: every check there is, family by family.
pub const FAMILIES: &[(&str, &[Check])] = &[
    ("memory", memory::CHECKS),
    ("cpu", cpu::CHECKS),
    ("irq", irq::CHECKS),
    ("device", device::CHECKS),
    ("pci", pci::CHECKS),
    ("time", time::CHECKS),
    ("cgroup", cgroup::CHECKS),
];

/// Every check, in the table's order.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    FAMILIES.iter().flat_map(|(_, checks)| checks.iter())
}

/// Judges a machine by the checks called `only`, or by all if there is none.
pub fn run(host: &Host<'_>, only: &[String]) -> Report {
    let asked = |check: &&Check| only.is_empty() || only.iter().any(|name| name == check.name);
    Report { findings: checks().filter(asked).map(|check| Finding::of(host, check)).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_check_has_its_own_name_and_says_what_it_costs() {
        let mut names = HashSet::new();
        for check in checks() {
            assert!(names.insert(check.name), "{} is there twice", check.name);
            for text in [check.should, check.why, check.cost] {
                assert!(text.len() > 20, "{}: `{text}`", check.name);
            }
            assert!(check.cost.contains('('), "{}: the figure has no source", check.name);
        }
        assert!(names.len() >= 25);
    }
}
