//! Where the ranks are: hosts, devices and cores.

use std::fs;

use doorbell_tune as tune;
use serde::{Deserialize, Serialize};

use crate::error::Failure;

/// What a rank says of its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Tells a running system from any other.
    boot: String,
    pub(crate) host: String,
    pub(crate) device: String,
    pub(crate) is_soft: bool,
    pub(crate) cpu: String,
    pub(crate) kernel: String,
}

impl Place {
    /// The place of this rank.
    pub(crate) fn look(device: &str, is_soft: bool, cpu: &str, kernel: &str) -> Place {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
        Place {
            boot: read("/proc/sys/kernel/random/boot_id"),
            host: read("/proc/sys/kernel/hostname"),
            device: device.to_owned(),
            is_soft,
            cpu: cpu.to_owned(),
            kernel: kernel.to_owned(),
        }
    }

    fn is_same_host(&self, other: &Place) -> bool {
        (&self.boot, &self.host) == (&other.boot, &other.host)
    }
}

/// # Errors
/// The ranks have devices that cannot talk to each other.
pub(crate) fn check(places: &[Place]) -> Result<(), Failure> {
    let Some(first) = places.first() else { return Ok(()) };
    for (rank, place) in (0..).zip(places).skip(1) {
        let (own, theirs) = (&first.device, &place.device);
        if place.is_soft != first.is_soft {
            return Err(Failure::new(format!(
                "rank {rank} on {} has the device {theirs}, and rank 0 has {own}: one is in \
                 software; name devices of the same kind with --device",
                place.host
            )));
        }
        if place.is_soft && !place.is_same_host(first) {
            return Err(Failure::new(format!(
                "rank {rank} is on {} and rank 0 on {}: the device {own} joins processes of one \
                 host; name RDMA devices with --device",
                place.host, first.host
            )));
        }
    }
    Ok(())
}

/// The ranks of this host below `rank`, and all ranks of this host.
pub(crate) fn local(places: &[Place], rank: u32) -> (usize, usize) {
    let Some(own) = places.get(rank as usize) else { return (0, 1) };
    let here = |places: &[Place]| places.iter().filter(|place| place.is_same_host(own)).count();
    (here(&places[..rank as usize]), here(places))
}

/// The cores of a rank's workers. `named` are those of the whole host, from `--cores` or a plan:
/// the first rank of a host takes the first ones. Otherwise the ranks of a host choose among the
/// cores that their launcher leaves them, so that none is taken twice while there are enough.
///
/// # Errors
/// A named core may not be used, or there are too few.
pub(crate) fn cores(
    named: &[usize],
    (index, count): (usize, usize),
    workers: usize,
) -> Result<Vec<usize>, Failure> {
    let allowed = tune::cores();
    let need = count * workers;
    if let Some(core) = named.iter().find(|core| !allowed.contains(core)) {
        return Err(Failure::new(format!(
            "core {core} of --cores or --plan is not one this rank may use; choose from {}, or let \
             the launcher bind nothing (mpirun --bind-to none, srun --cpu-bind=none)",
            tune::CoreList(&allowed)
        )));
    }
    if !named.is_empty() && named.len() < need {
        return Err(Failure::new(format!(
            "--cores or --plan: {} core(s) for {count} rank(s) of this host with {workers} \
             worker(s) each; name {need}, the first rank's first",
            named.len()
        )));
    }
    let from = match named {
        [] if allowed.len() >= need => tune::choose(need)?,
        [] => (0..need).map(|n| allowed[n % allowed.len().max(1)]).collect(),
        named => named.to_vec(),
    };
    Ok(from.into_iter().skip(index * workers).take(workers).collect())
}

/// For each rank, whether other workers have one of its cores.
pub(crate) fn shared(places: &[Place], cores: &[Vec<usize>]) -> Vec<bool> {
    let all = || places.iter().zip(cores);
    let users = |place: &Place, core: usize| {
        let here = all().filter(|(other, _)| other.is_same_host(place));
        here.flat_map(|(_, cores)| cores).filter(|other| **other == core).count()
    };
    all().map(|(place, cores)| cores.iter().any(|core| users(place, *core) > 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: &str, is_soft: bool) -> Place {
        let is = |text: &str| text.to_owned();
        let (device, cpu) = (is(if is_soft { "soft0" } else { "rxe0" }), is("x"));
        Place { boot: is(host), host: is(host), device, is_soft, cpu, kernel: is("") }
    }

    #[test]
    fn ranks_that_cannot_talk_are_refused_with_the_cure() {
        assert!(check(&[place("a", true), place("a", true)]).is_ok());
        assert!(check(&[place("a", false), place("b", false)]).is_ok());
        let text = check(&[place("a", true), place("b", true)]).unwrap_err().to_string();
        assert!(text.contains("rank 1 is on b") && text.contains("--device"), "{text}");
        let text = check(&[place("a", true), place("a", false)]).unwrap_err().to_string();
        assert!(text.contains("in software") && text.contains("--device"), "{text}");
    }

    #[test]
    fn ranks_of_a_host_take_different_cores_while_there_are_enough() {
        let places = [place("a", false), place("b", false), place("b", false)];
        assert_eq!([0, 1, 2].map(|rank| local(&places, rank)), [(0, 1), (0, 2), (1, 2)]);
        assert_eq!(shared(&places, &[vec![0], vec![0], vec![1]]), [false; 3]);
        assert_eq!(shared(&places, &[vec![0], vec![1], vec![0, 1]]), [false, true, true]);
        let allowed = tune::cores();
        let of = |index, count| cores(&[], (index, count), 1).unwrap();
        if allowed.len() >= 2 {
            assert_ne!(of(0, 2), of(1, 2));
        }
        assert_eq!(of(allowed.len(), allowed.len() + 1), [allowed[0]], "they share");
        let first = allowed[0];
        assert_eq!(cores(&[first, first], (1, 2), 1).unwrap(), [first]);
        let text = cores(&[first], (0, 2), 1).unwrap_err().to_string();
        assert!(text.contains("name 2"), "{text}");
        let text = cores(&[9999], (0, 1), 1).unwrap_err().to_string();
        assert!(text.contains("--bind-to none"), "{text}");
    }
}
