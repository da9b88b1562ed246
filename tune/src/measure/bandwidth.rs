//! How fast the cores of one node read the memory of a node.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use memmap2::{Advice, MmapMut};

use super::figures::{Bandwidth, MeasureError, Scope};
use crate::ids::Ids;
use crate::machine::{self, Machine};
use crate::pin::pin;
use crate::place::{Memory, take_memory};
use crate::root::Root;

/// How often the memory is read. The fastest pass counts, because nothing interrupted it.
const PASSES: usize = 5;

/// Cores of one node, and the node whose memory they read.
pub(super) struct Pair {
    node: usize,
    /// One CPU of each core.
    pub(super) cpus: Ids,
    memory_node: usize,
    /// Bytes for each core.
    bytes: usize,
}

/// Refuses more than half of a node's free memory, cached files included: the kernel cannot use
/// other nodes here, and might kill programs.
pub(super) fn check(machine: &Machine, scope: &Scope) -> Result<(), MeasureError> {
    let bytes = scope.memory_bytes;
    for node in machine.memory_nodes.iter() {
        match machine::free(&Root::system(), node) {
            Some(free) if bytes > free / 2 => {
                return Err(MeasureError::TooMuch { node, bytes, free });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Every node with usable CPUs, paired with every node with memory.
pub(super) fn pairs(machine: &Machine, scope: &Scope) -> Vec<Pair> {
    let mut pairs = Vec::new();
    if scope.memory_bytes == 0 {
        return pairs;
    }
    for node in &machine.nodes {
        let cores = machine.cores.iter().filter(|core| core.node == node.id);
        let cpus: Ids =
            cores.filter_map(|core| core.cpus.and(&machine.cpus.usable).first()).collect();
        if cpus.is_empty() {
            continue;
        }
        let bytes = scope.memory_bytes.div_ceil(cpus.len() as u64);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let pair = |memory_node| Pair { node: node.id, cpus: cpus.clone(), memory_node, bytes };
        pairs.extend(machine.memory_nodes.iter().map(pair));
    }
    pairs
}

pub(super) fn measure(pair: &Pair) -> Result<Bandwidth, MeasureError> {
    let together = Barrier::new(pair.cpus.len());
    let times: Vec<Vec<f64>> = thread::scope(|scope| {
        let together = &together;
        let each = |cpu| scope.spawn(move || core(pair, cpu, together));
        let threads: Vec<_> = pair.cpus.iter().map(each).collect();
        let joined = threads.into_iter().map(|one| one.join().map_err(|_| MeasureError::Lost)?);
        joined.collect::<Result<_, _>>()
    })?;
    // A pass ends when its last core has finished.
    let slowest = |pass: usize| times.iter().map(|times| times[pass]).fold(0.0, f64::max);
    let fastest = (0..PASSES).map(slowest).fold(f64::INFINITY, f64::min);
    let bytes = pair.bytes as f64 * pair.cpus.len() as f64;
    Ok(Bandwidth {
        node: pair.node,
        cores: pair.cpus.len(),
        memory_node: pair.memory_node,
        bytes_per_second: bytes / fastest.max(f64::MIN_POSITIVE),
    })
}

/// Seconds of each pass on one core. A thread that fails still takes part in every barrier, so that
/// the others do not wait for it for ever.
fn core(pair: &Pair, cpu: usize, together: &Barrier) -> Result<Vec<f64>, MeasureError> {
    let memory = memory(pair, cpu);
    let mut times = Vec::with_capacity(PASSES);
    for _ in 0..PASSES {
        together.wait();
        let start = Instant::now();
        if let Ok(memory) = &memory {
            black_box(sum(memory));
        }
        times.push(start.elapsed().as_secs_f64());
    }
    memory.map(|_| times)
}

/// Memory of the pair's node. It is written to first, because untouched memory is all one page of
/// zeros.
fn memory(pair: &Pair, cpu: usize) -> Result<MmapMut, MeasureError> {
    pin(cpu)?;
    take_memory(Memory::Bind, &[pair.memory_node].into_iter().collect())?;
    let failed = |source| MeasureError::Memory { bytes: pair.bytes, source };
    let mut memory = MmapMut::map_anon(pair.bytes).map_err(failed)?;
    // Without huge pages the figure is only slightly lower.
    let _ = memory.advise(Advice::HugePage);
    memory.fill(1);
    Ok(memory)
}

fn sum(memory: &[u8]) -> u64 {
    let (words, _) = memory.as_chunks::<8>();
    words.iter().fold(0, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read() {
        let mut memory = vec![0_u8; 64];
        memory[8] = 1;
        memory[63] = 2;
        assert_eq!(sum(&memory), 1 + (2 << 56));
    }

    #[test]
    fn nodes_of_this_machine_have_a_bandwidth() {
        let machine = Machine::read(&Root::system()).unwrap();
        let scope = Scope { cpus: Ids::default(), memory_bytes: 1 << 20 };
        let pairs = pairs(&machine, &scope);
        assert_eq!(pairs.len() % machine.memory_nodes.len(), 0);
        let measured = thread::scope(|scope| scope.spawn(|| measure(&pairs[0])).join().unwrap());
        let measured = measured.unwrap();
        assert!(measured.bytes_per_second > 0.0 && measured.cores > 0, "{measured:?}");
        assert!(check(&machine, &scope).is_ok());
        let none = Scope { memory_bytes: 0, ..scope };
        assert!(super::pairs(&machine, &none).is_empty());
    }

    #[test]
    fn too_much_memory_is_an_error_and_does_not_hang() {
        let machine = Machine::read(&Root::system()).unwrap();
        let scope = Scope { cpus: Ids::default(), memory_bytes: u64::MAX };
        let error = check(&machine, &scope);
        assert!(matches!(error, Err(MeasureError::TooMuch { .. })), "{error:?}");
        let pairs = pairs(&machine, &scope);
        let error = thread::scope(|scope| scope.spawn(|| measure(&pairs[0])).join().unwrap());
        assert!(matches!(error, Err(MeasureError::Memory { .. })), "{error:?}");
    }
}
