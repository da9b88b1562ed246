//! What is asked: the command line ([`cli`]) and its [`values`], a placement plan ([`placed`]), the
//! device and cores ([`choose`]), and the steps to run ([`plan`]), each of which is a [`request`]
//! to the other side.

pub(crate) mod choose;
pub(crate) mod cli;
pub(crate) mod placed;
pub(crate) mod plan;
pub(crate) mod request;
pub(crate) mod values;
