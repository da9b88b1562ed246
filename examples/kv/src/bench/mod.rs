//! `kv bench`: a workload of YCSB, by READ and by SEND in turn.
//!
//! All clients load the records first, each its part. Then they run rounds. In each round all
//! clients do the same number of operations; the next begins when the last has ended.

mod driver;
mod plan;
mod report;
mod run;
pub mod workload;

pub use self::driver::Driver;
pub use self::plan::Bench;
pub use self::report::{Report, Way};
