//! The commands of the program, one file or folder each.

mod options;
mod svg;

pub(crate) mod topology;

pub(crate) mod check;

pub(crate) mod plan;

pub(crate) mod run;

pub(crate) mod measure;
