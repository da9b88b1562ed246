//! What is counted instead of timed: instructions of a message, and bytes of hot functions.
//! [`count`] starts this program below [`callgrind`], where [`counted`] goes through the [`cases`];
//! [`symbols`] has the sizes; [`limits`] holds all of it.

pub(crate) mod callgrind;
pub(crate) mod cases;
pub(crate) mod count;
pub(crate) mod counted;
pub(crate) mod limits;
pub(crate) mod symbols;
