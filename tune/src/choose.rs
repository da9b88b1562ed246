//! Which cores have nothing in common.

use std::collections::HashSet;

use thiserror::Error;

use crate::list::CoreList;
use crate::machine::Machine;
use crate::mask;
use crate::root::Root;

/// Fewer cores than asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{wanted} cores are needed, and this program may use {} only ({}); allow more with taskset(1)",
    allowed.len(),
    CoreList(allowed)
)]
pub struct ChooseError {
    /// Cores asked for.
    pub wanted: usize,
    /// Cores allowed, ascending.
    pub allowed: Vec<usize>,
}

/// Chooses `wanted` of the cores this thread may run on: hardware threads of different physical
/// cores as far as there are, of the first socket that has enough, and core 0, which most
/// machines give their interrupts, last.
///
/// # Errors
/// Fewer cores than that are allowed.
pub fn choose(wanted: usize) -> Result<Vec<usize>, ChooseError> {
    let allowed = mask::cores();
    if allowed.len() < wanted {
        return Err(ChooseError { wanted, allowed });
    }
    // A machine that says nothing has cores with nothing in common.
    let machine = Machine::from_files(&Root::system()).unwrap_or_default();
    let mut cores: Vec<Core> = allowed.into_iter().map(|id| Core::of(&machine, id)).collect();
    // Ascending, but core 0 at the end.
    cores.sort_by_key(|core| (core.id == 0, core.id));
    Ok(pick(&cores, wanted))
}

/// Where a hardware thread sits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Core {
    id: usize,
    /// Its socket; 0 where the system does not say.
    package: usize,
    /// The first hardware thread of its physical core; itself where the system does not say.
    first: usize,
}

impl Core {
    fn of(machine: &Machine, id: usize) -> Core {
        let core = machine.cores.iter().find(|core| core.cpus.contains(id));
        let first = core.and_then(|core| core.cpus.first()).unwrap_or(id);
        Core { id, package: core.map_or(0, |core| core.package), first }
    }
}

fn pick(cores: &[Core], wanted: usize) -> Vec<usize> {
    let mut packages: Vec<usize> = cores.iter().map(|core| core.package).collect();
    packages.sort_unstable();
    packages.dedup();
    let alone = packages.iter().map(|package| {
        let here: Vec<Core> =
            cores.iter().filter(|core| core.package == *package).cloned().collect();
        apart(&here)
    });
    // One socket's physical cores, else those of all, else whatever there is.
    let mut chosen =
        alone.into_iter().find(|ids| ids.len() >= wanted).unwrap_or_else(|| apart(cores));
    let rest = cores.iter().map(|core| core.id).filter(|id| !chosen.contains(id));
    let rest: Vec<usize> = rest.collect();
    chosen.extend(rest);
    chosen.truncate(wanted);
    chosen
}

/// One hardware thread of each physical core.
fn apart(cores: &[Core]) -> Vec<usize> {
    let mut seen = HashSet::new();
    cores.iter().filter(|core| seen.insert(core.first)).map(|core| core.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of two physical cores with two threads each, numbered as Linux does.
    fn machine() -> Vec<Core> {
        let core = |id| Core { id, package: id % 4 / 2, first: id % 4 };
        [1, 2, 3, 4, 5, 6, 7, 0].map(core).to_vec()
    }

    #[test]
    fn two_are_physical_cores_of_one_socket() {
        // Core 4 is the other thread of core 0.
        assert_eq!(pick(&machine(), 2), [1, 4]);
    }

    #[test]
    fn four_take_both_sockets_and_five_the_other_threads() {
        assert_eq!(pick(&machine(), 4), [1, 2, 3, 4]);
        assert_eq!(pick(&machine(), 5), [1, 2, 3, 4, 5]);
        assert_eq!(pick(&machine(), 8).len(), 8);
    }

    #[test]
    fn siblings_come_only_when_nothing_else_is_left() {
        let cores: Vec<Core> = [1, 2, 3].map(|id| Core { id, package: 0, first: id & !1 }).to_vec();
        assert_eq!(pick(&cores, 2), [1, 2]);
        assert_eq!(pick(&cores, 3), [1, 2, 3]);
    }

    #[test]
    fn a_system_that_says_nothing_is_taken_as_flat() {
        let core = Core::of(&Machine::default(), 7);
        assert_eq!(core, Core { id: 7, package: 0, first: 7 });
    }

    #[test]
    fn what_is_chosen_is_allowed_and_too_many_is_an_error() {
        let allowed = mask::cores();
        let all = choose(allowed.len()).unwrap();
        assert!(all.iter().all(|core| allowed.contains(core)));
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), allowed.len());
        let error = choose(allowed.len() + 1).unwrap_err();
        assert_eq!(error, ChooseError { wanted: allowed.len() + 1, allowed });
    }
}
