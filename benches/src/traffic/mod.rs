//! `traffic`: a fixed set of [`rows`], each measured in turn with a [`naive`] ring in [`shared`]
//! memory. A row's messages ([`payload`]) and when they are due ([`schedule`]) follow from a seed
//! ([`random`]). [`drive`] sends them over either contestant, [`link`] or [`naive`], and a
//! [`ledger`] times them; [`serve`] answers after its [`work`]. [`run`] goes through the rows and
//! writes a [`mod@row`] for each.

pub(crate) mod drive;
pub(crate) mod ledger;
pub(crate) mod link;
pub(crate) mod naive;
pub(crate) mod payload;
pub(crate) mod random;
pub(crate) mod row;
pub(crate) mod rows;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod serve;
pub(crate) mod shared;
pub(crate) mod work;
