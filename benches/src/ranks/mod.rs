//! Many ranks: processes that `mpirun`, `srun` or `--ranks` has started, on one host or several.
//!
//! In data order: which rank this process is ([`launch`]; [`local`] starts them without a
//! launcher), how the ranks find each other ([`meet`]) and talk ([`net`]), where they are
//! ([`place`]), who calls whom ([`pattern`]) with which [`sizes`], a worker's handler ([`party`]),
//! one thread with its worker ([`member`]) and what it tells the main thread ([`control`]), the run
//! ([`run`]), and the record of all ranks ([`report`]).

pub(crate) mod control;
pub(crate) mod launch;
pub(crate) mod local;
pub(crate) mod meet;
pub(crate) mod member;
pub(crate) mod net;
pub(crate) mod party;
pub(crate) mod pattern;
pub(crate) mod place;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod sizes;
