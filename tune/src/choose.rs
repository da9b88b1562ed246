//! [`choose`]: picks cores that share as little as possible.

use std::collections::HashSet;
use std::fmt;

use thiserror::Error;

use crate::list::CoreList;
use crate::machine::Machine;
use crate::mask;
use crate::root::Root;

/// Fewer cores are allowed than were asked for.
#[derive(Clone, PartialEq, Eq, Error)]
#[error(
    "{wanted} cores are needed, but this program may use only {} ({}); allow more with taskset(1)",
    allowed.len(),
    CoreList(allowed)
)]
pub struct ChooseError {
    /// How many cores were asked for.
    pub wanted: usize,
    /// The cores that are allowed, ascending.
    pub allowed: Vec<usize>,
}

impl fmt::Debug for ChooseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Chooses `wanted` of the cores that this thread may run on. It prefers hardware threads of
/// different physical cores, fast ones before slow ones, all on the first socket that has enough of
/// them. Core 0 comes last of its kind, because most machines send their interrupts there.
///
/// # Errors
/// Fewer cores are allowed.
pub fn choose(wanted: usize) -> Result<Vec<usize>, ChooseError> {
    let allowed = mask::cores();
    if allowed.len() < wanted {
        return Err(ChooseError { wanted, allowed });
    }
    // If the machine cannot be read, its cores count as sharing nothing.
    let machine = Machine::from_files(&Root::system()).unwrap_or_default();
    let mut cores: Vec<Core> = allowed.into_iter().map(|id| Core::of(&machine, id)).collect();
    sort(&mut cores);
    Ok(pick(&cores, wanted))
}

/// Where a hardware thread is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Core {
    id: usize,
    /// Its socket; 0 if the system does not say.
    package: usize,
    /// The first hardware thread of its physical core; itself if the system does not say.
    first: usize,
    /// True for the slower kind, if there are two kinds.
    slow: bool,
}

impl Core {
    fn of(machine: &Machine, id: usize) -> Core {
        let core = machine.cores.iter().find(|core| core.cpus.contains(id));
        let first = core.and_then(|core| core.cpus.first()).unwrap_or(id);
        let package = core.map_or(0, |core| core.package);
        Core { id, package, first, slow: core.is_some_and(|core| core.slow) }
    }
}

/// Fast ones first, core 0 at the end of its kind.
fn sort(cores: &mut [Core]) {
    cores.sort_by_key(|core| (core.slow, core.id == 0, core.id));
}

fn pick(cores: &[Core], wanted: usize) -> Vec<usize> {
    let fast: Vec<Core> = cores.iter().filter(|core| !core.slow).cloned().collect();
    // Fast cores, else also slow ones, else also second hardware threads.
    let mut chosen = apart(&fast, wanted)
        .or_else(|| apart(cores, wanted))
        .unwrap_or_else(|| one_per_core(cores));
    let rest = cores.iter().map(|core| core.id).filter(|id| !chosen.contains(id));
    let rest: Vec<usize> = rest.collect();
    chosen.extend(rest);
    chosen.truncate(wanted);
    chosen
}

/// One hardware thread of each physical core of one socket, else of all sockets; `None` if there
/// are not enough.
fn apart(cores: &[Core], wanted: usize) -> Option<Vec<usize>> {
    let mut packages: Vec<usize> = cores.iter().map(|core| core.package).collect();
    packages.sort_unstable();
    packages.dedup();
    let by_package = packages.iter().map(|package| {
        let here: Vec<Core> =
            cores.iter().filter(|core| core.package == *package).cloned().collect();
        one_per_core(&here)
    });
    let all = std::iter::once_with(|| one_per_core(cores));
    by_package.chain(all).find(|ids| ids.len() >= wanted)
}

/// One hardware thread of each physical core.
fn one_per_core(cores: &[Core]) -> Vec<usize> {
    let mut seen = HashSet::new();
    cores.iter().filter(|core| seen.insert(core.first)).map(|core| core.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets of two physical cores with two threads each, numbered as Linux does.
    fn machine() -> Vec<Core> {
        let core = |id| Core { id, package: id % 4 / 2, first: id % 4, slow: false };
        [1, 2, 3, 4, 5, 6, 7, 0].map(core).to_vec()
    }

    /// Four slow cores, then four fast ones: an RK3588. Older kernels count each cluster as a
    /// socket.
    fn two_kinds(packages: [usize; 8]) -> Vec<Core> {
        let core = |id: usize| Core { id, package: packages[id], first: id, slow: id < 4 };
        let mut cores: Vec<Core> = (0..8).map(core).collect();
        sort(&mut cores);
        cores
    }

    #[test]
    fn fast_cores_are_chosen_before_slow_ones() {
        for packages in [[0; 8], [0, 0, 0, 0, 1, 1, 2, 2]] {
            let cores = two_kinds(packages);
            assert_eq!(pick(&cores, 2), [4, 5], "{packages:?}");
            assert_eq!(pick(&cores, 4), [4, 5, 6, 7], "{packages:?}");
            assert_eq!(pick(&cores, 6), [4, 5, 6, 7, 1, 2], "{packages:?}");
            assert_eq!(pick(&cores, 8), [4, 5, 6, 7, 1, 2, 3, 0], "{packages:?}");
        }
    }

    #[test]
    fn a_slow_core_comes_before_the_second_thread_of_a_fast_one() {
        let core = |id: usize| Core { id, package: 0, first: id & !1, slow: false };
        let mut cores: Vec<Core> = (0..4).map(core).collect();
        cores.push(Core { id: 4, package: 0, first: 4, slow: true });
        sort(&mut cores);
        assert_eq!(pick(&cores, 3), [1, 2, 4]);
        assert_eq!(pick(&cores, 5), [1, 2, 4, 3, 0]);
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
    fn siblings_are_chosen_last() {
        let core = |id| Core { id, package: 0, first: id & !1, slow: false };
        let cores: Vec<Core> = [1, 2, 3].map(core).to_vec();
        assert_eq!(pick(&cores, 2), [1, 2]);
        assert_eq!(pick(&cores, 3), [1, 2, 3]);
    }

    #[test]
    fn without_topology_each_core_stands_alone() {
        let core = Core::of(&Machine::default(), 7);
        assert_eq!(core, Core { id: 7, package: 0, first: 7, slow: false });
    }

    #[test]
    fn chosen_cores_are_allowed_and_too_many_are_an_error() {
        let allowed = mask::cores();
        let all = choose(allowed.len()).unwrap();
        assert!(all.iter().all(|core| allowed.contains(core)));
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), allowed.len());
        let error = choose(allowed.len() + 1).unwrap_err();
        assert_eq!(error, ChooseError { wanted: allowed.len() + 1, allowed });
    }
}
