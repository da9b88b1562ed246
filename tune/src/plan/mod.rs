//! A plan: on which CPU each worker runs, with which memory, and on which shared receive queue.

mod file;

mod make;

pub use file::{PLAN_VARIABLE, Plan, PlanError, Worker};
pub use make::{MakeError, Request};
