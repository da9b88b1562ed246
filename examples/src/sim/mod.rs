//! Simulation: whole days of trouble between two groups of workers, from one number.
//!
//! Everything that is random comes from the seed: how many workers and queues, every limit in
//! their configuration, what the network and the devices do, who runs when, who sends, replies,
//! closes, stalls, dies. Time is virtual and there is one thread, so a seed that fails today fails
//! tomorrow, in the same event.
//!
//! [`plan`] draws the numbers, [`world`] builds what they describe, [`mod@run`] drives it,
//! [`clerk`] is the handler at each worker, [`text`] says what each message must contain, [`book`]
//! keeps the account and speaks up, and [`trace`] is the clock and the history. [`bare`] is the
//! same for queue pairs that have no workers: one-sided requests and datagrams.

pub mod bare;
pub mod book;
pub mod clerk;
pub mod plan;
pub mod run;
#[cfg(test)]
mod tests;
pub mod text;
pub mod trace;
pub mod world;

use doorbell::alloc::Mapping;
use doorbell::error::{Code, SetupError};

pub use self::run::{Report, run};

/// Memory for a wire, and for what is on it.
fn memory(bytes: usize) -> Result<Mapping, SetupError> {
    Mapping::plain(bytes).map_err(|error| {
        SetupError::new(Code::NoMemory, format!("{bytes} bytes"), format!("{error}"))
    })
}
