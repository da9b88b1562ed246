//! What a plan is based on: how far cores are from each other, and nodes from memory.

mod figures;

mod latency;

mod bandwidth;

mod take;

pub use figures::{Bandwidth, MeasureError, Measured, Scope};
pub use latency::floor;
