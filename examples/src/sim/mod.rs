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
//!
//! Both worlds run on a [`device::Device`]: the soft device, a recorder that counts which path of
//! the seam each message takes, and faults before it. [`PLANTS`] are the mistakes that can be
//! planted.

pub mod bare;
pub mod book;
pub mod clerk;
pub mod device;
pub mod plan;
pub mod run;
#[cfg(test)]
mod tests;
pub mod text;
pub mod trace;
pub mod world;

pub use self::device::{PLANTS, Planted};
pub use self::run::{Report, run};
