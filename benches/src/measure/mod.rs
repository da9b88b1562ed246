//! What is measured. [`run`] goes through a plan; [`all`] measures one step of it by [`latency`],
//! [`rate`], [`load`], [`sweep`] (with its [`verdict`]), [`crowd`] or [`bandwidth`]; [`connect`] is
//! on its own. [`load`] has its [`arrivals`] and a [`search`] for the best rate, by [`tries`] of
//! each. They have [`times`] and [`piece`]s in common, and end in an [`outcome`] and a [`record`];
//! [`live`] shows how far they got.

pub(crate) mod all;
pub(crate) mod arrivals;
pub(crate) mod bandwidth;
pub(crate) mod connect;
pub(crate) mod crowd;
pub(crate) mod latency;
pub(crate) mod live;
pub(crate) mod load;
pub(crate) mod outcome;
pub(crate) mod piece;
pub(crate) mod rate;
pub(crate) mod record;
pub(crate) mod run;
pub(crate) mod search;
pub(crate) mod searches;
pub(crate) mod sweep;
pub(crate) mod times;
pub(crate) mod tries;
pub(crate) mod verdict;
