//! Measures this machine.

use super::figures::{MeasureError, Measured, Scope};
use super::{bandwidth, latency};
use crate::ids::Ids;
use crate::machine::Machine;
use crate::place;

impl Measured {
    /// Measures this machine. Nothing else should run in the meantime. Afterwards the calling
    /// thread may run only on the CPUs that were measured.
    ///
    /// # Errors
    /// A CPU or a node does not exist, there is too little memory, or the kernel refuses.
    pub fn take(machine: &Machine, scope: &Scope) -> Result<Measured, MeasureError> {
        bandwidth::check(machine, scope)?;
        let nodes = bandwidth::pairs(machine, scope);
        // Isolated CPUs must be added to the mask before threads can be pinned to them.
        let readers = nodes.iter().flat_map(|pair| pair.cpus.iter()).collect::<Ids>();
        place::run_on(&scope.cpus.or(&readers))?;
        Ok(Measured {
            cpus: scope.cpus.iter().collect(),
            latency_ns: latency::matrix(scope.cpus.as_slice())?,
            bandwidth: nodes.iter().map(bandwidth::measure).collect::<Result<_, _>>()?,
        })
    }
}
