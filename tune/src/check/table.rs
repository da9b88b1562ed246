//! The table of all checks.

use super::condition::Check;
use super::{cgroup, cpu, device, irq, memory, pci, time};

/// Every check, by family.
pub const FAMILIES: &[(&str, &[Check])] = &[
    ("memory", memory::CHECKS),
    ("cpu", cpu::CHECKS),
    ("irq", irq::CHECKS),
    ("device", device::CHECKS),
    ("pci", pci::CHECKS),
    ("time", time::CHECKS),
    ("cgroup", cgroup::CHECKS),
];

/// Every check, in the order of the table.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    FAMILIES.iter().flat_map(|(_, checks)| checks.iter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_check_has_its_own_name_and_says_what_it_costs() {
        let mut names = HashSet::new();
        for check in checks() {
            assert!(names.insert(check.name), "{} occurs twice", check.name);
            for text in [check.should, check.why, check.cost] {
                assert!(text.len() > 20, "{}: `{text}`", check.name);
            }
            assert!(check.cost.contains('('), "{}: the figure has no source", check.name);
        }
        assert!(names.len() >= 25);
    }
}
