//! The output. [`grid`] writes every table: those of a command ([`table`]), which also go to a
//! [`page`] of HTML with [`chart`]s that [`draw`] fills, and those of the page of [`results`],
//! whose [`sections`] (with [`peers`], the other libraries, and [`perftest`], an RDMA device) hold
//! figures against their [`aims`]. A [`sheet`] is a file that they are written to, and [`csv`] one
//! for spreadsheets. [`ending`] is the order in which a run tells all that, and [`ranks`] what many
//! ranks have beside.

pub(crate) mod aims;
pub(crate) mod chart;
pub(crate) mod csv;
pub(crate) mod draw;
pub(crate) mod ending;
pub(crate) mod grid;
pub(crate) mod page;
pub(crate) mod peers;
pub(crate) mod perftest;
pub(crate) mod ranks;
pub(crate) mod results;
pub(crate) mod sections;
pub(crate) mod sheet;
pub(crate) mod table;
