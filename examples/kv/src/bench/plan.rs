//! What a benchmark is asked to measure.

use super::workload::Workload;
use crate::client::How;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The workload.
    pub workload: Workload,
    /// The ways to get, each in each round.
    pub hows: Vec<How>,
    /// Rounds, after a first one that does not count.
    pub rounds: u32,
    /// Records.
    pub records: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Operations of a round, over all clients.
    pub operations: u64,
    /// Clients, each with a thread.
    pub clients: u32,
    /// Operations of a client at a time.
    pub depth: u32,
    /// Workers of the server.
    pub servers: u32,
    /// Bytes of a slot of the server's table.
    pub slot_bytes: u32,
}
