//! Prints the figures as text.

use std::fmt::Write;

use doorbell_tune::{Core, Machine, Measured};

/// The widest matrix that is printed. JSON and the heat map have larger ones.
const COLUMNS: usize = 16;

/// What two CPUs have in common, nearest first.
const WAYS: [&str; 4] =
    ["threads of one core", "cores of one cache", "cores of one node", "cores of two nodes"];

pub(super) fn text(machine: &Machine, measured: &Measured) -> String {
    // Writing to a string cannot fail, here and below.
    let mut text = String::new();
    write_summary(&mut text, machine, measured);
    write_matrix(&mut text, measured);
    if !measured.bandwidth.is_empty() {
        text.push_str("reading memory, GB/s\n");
    }
    for one in &measured.bandwidth {
        let _ = writeln!(
            text,
            "  {} cores of node {}, memory of node {}: {:.1}",
            one.cores,
            one.node,
            one.memory_node,
            one.bytes_per_second / 1e9
        );
    }
    text
}

fn write_summary(text: &mut String, machine: &Machine, measured: &Measured) {
    let mut found: [Vec<f64>; WAYS.len()] = Default::default();
    for (from, row) in measured.latency_ns.iter().enumerate() {
        for (to, half) in row.iter().enumerate().skip(from + 1) {
            if let Some(half) = half {
                found[way(machine, measured.cpus[from], measured.cpus[to])].push(*half);
            }
        }
    }
    for (name, mut halves) in WAYS.into_iter().zip(found) {
        halves.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (halves.first(), halves.last()) else { continue };
        // Of an even count, the mean of the middle two.
        let median = f64::midpoint(halves[(halves.len() - 1) / 2], halves[halves.len() / 2]);
        let _ = writeln!(
            text,
            "{name}: {least:.0} to {most:.0} ns, median {median:.0} ({} pairs)",
            halves.len()
        );
    }
}

/// The index in [`WAYS`] for two CPUs.
fn way(machine: &Machine, from: usize, to: usize) -> usize {
    let core = |cpu: usize| machine.cores.iter().find(|core: &&Core| core.cpus.contains(cpu));
    let last = machine.caches.iter().map(|cache| cache.level).max();
    let cache = |cpu: usize| {
        machine.caches.iter().find(|cache| Some(cache.level) == last && cache.cpus.contains(cpu))
    };
    match (core(from), core(to)) {
        (Some(one), Some(other)) if one == other => 0,
        _ if cache(from).is_some() && cache(from) == cache(to) => 1,
        (Some(one), Some(other)) if one.node != other.node => 3,
        _ => 2,
    }
}

fn write_matrix(text: &mut String, measured: &Measured) {
    if !(2..=COLUMNS).contains(&measured.cpus.len()) {
        return;
    }
    text.push_str("half a round trip, ns\n      ");
    measured.cpus.iter().for_each(|cpu| {
        let _ = write!(text, "{cpu:>6}");
    });
    text.push('\n');
    for (cpu, row) in measured.cpus.iter().zip(&measured.latency_ns) {
        let _ = write!(text, "{cpu:>6}");
        for half in row {
            match half {
                Some(half) => {
                    let _ = write!(text, "{half:>6.0}");
                }
                None => text.push_str("     -"),
            }
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_tune::{Bandwidth, Cache, Ids};

    fn ids(text: &str) -> Ids {
        text.parse().unwrap()
    }

    #[test]
    fn pairs_are_told_apart_by_what_they_share() {
        let core = |cpus, node| Core { package: 0, node, cpus: ids(cpus), slow: false };
        let cache = |cpus| Cache { level: 3, bytes: 1, cpus: ids(cpus) };
        let machine = Machine {
            cores: vec![core("0,4", 0), core("1,5", 0), core("2,6", 0), core("3,7", 1)],
            caches: vec![cache("0-1,4-5"), cache("2,6"), cache("3,7")],
            ..Machine::default()
        };
        assert_eq!([4, 5, 2, 7].map(|to| way(&machine, 0, to)), [0, 1, 2, 3]);
        let pair = |one: f64| vec![None, Some(one)];
        let measured = Measured {
            cpus: vec![0, 7],
            latency_ns: vec![pair(210.4), vec![Some(210.4), None]],
            bandwidth: vec![Bandwidth {
                node: 0,
                cores: 3,
                memory_node: 1,
                bytes_per_second: 20.04e9,
            }],
        };
        let text = text(&machine, &measured);
        for part in [
            "cores of two nodes: 210 to 210 ns, median 210 (1 pairs)\n",
            "           0     7\n     0     -   210\n     7   210     -\n",
            "  3 cores of node 0, memory of node 1: 20.0\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn the_median_of_two_pairs_is_between_them() {
        let cache = Cache { level: 3, bytes: 1, cpus: ids("0-2") };
        let core = |cpus| Core { package: 0, node: 0, cpus: ids(cpus), slow: false };
        let machine = Machine {
            cores: vec![core("0"), core("1"), core("2")],
            caches: vec![cache],
            ..Machine::default()
        };
        let measured = Measured {
            cpus: vec![0, 1, 2],
            latency_ns: vec![vec![None, Some(40.0), Some(60.0)]],
            bandwidth: Vec::new(),
        };
        let mut text = String::new();
        write_summary(&mut text, &machine, &measured);
        assert!(text.contains(": 40 to 60 ns, median 50 (2 pairs)\n"), "{text}");
    }
}
