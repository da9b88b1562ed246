//! Simulation: days of trouble between two groups of workers, from one number.
//!
//! Everything random comes from the seed: the number of workers and queues, every limit of their
//! configuration, the faults of the network and the devices, and who runs, sends, replies, closes,
//! stalls or dies when. Time is virtual and there is one thread, so a seed that fails today fails
//! tomorrow, at the same event.
//!
//! [`plan`] draws the numbers, [`world`] builds what they describe, [`mod@run`] drives it,
//! [`clerk`] is the handler of each worker, [`text`] defines the content of each message, [`book`]
//! keeps the account and reports errors, and [`trace`] is the clock and the history. [`bare`] is
//! the same for queue pairs without workers: one-sided requests and datagrams.
//!
//! Both worlds run on a [`device::Device`]: the soft device, a recorder that counts the path of the
//! seam that each message takes, and faults in front of it. [`PLANTS`] are the mistakes that can be
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
