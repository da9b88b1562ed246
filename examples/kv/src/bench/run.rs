//! A benchmark from its first connection to its report.

use std::net::SocketAddr;
use std::sync::Arc;

use doorbell::{CmError, Fabric};

use super::driver::{Driver, Shared};
use super::plan::Bench;
use super::report::Report;
use super::workload::choices;
use crate::client::{How, Settings};
use crate::guest;

impl Bench {
    /// Runs it against a server.
    ///
    /// # Errors
    /// The control plane's; a server that goes away; an operation that the server refuses.
    pub fn run<F: Fabric>(&self, nic: &F, addr: SocketAddr) -> Result<Report, CmError> {
        let settings = Settings {
            depth: self.depth,
            slot_max: self.slot_bytes,
            how: How::Read,
            parts: 1,
            mistake: None,
        };
        let who = (settings, self.servers);
        let mut runtime = guest::runtime::<F, Driver>(nic, who, self.clients);
        let shared = Arc::new(Shared::new(self));
        for number in 0..self.clients {
            let seed = u64::from(number) + 1;
            let list = choices(self.workload, self.records, 1 << 16, seed);
            let driver = Driver::new(self, number, list, shared.clone(), runtime.stopper());
            guest::add(&mut runtime, nic, who, driver)?;
        }
        guest::dial(&mut runtime, addr, self.servers)?;
        runtime.stop_on_signals()?;
        runtime.run()?;
        let drivers = runtime.workers().iter().map(|worker| {
            let handler = worker.handler();
            (&handler.caller, handler.client.counts())
        });
        Ok(Report::new(self, &shared, drivers))
    }
}
