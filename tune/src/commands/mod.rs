//! What the command line asks for, a file each.

pub(crate) mod topology;

use std::path::PathBuf;

use clap::Args;
use doorbell_tune::Root;

/// Which machine is meant.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// A folder with a copy of the machine's files under /sys, /proc and /etc
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
}

impl Which {
    pub(crate) fn root(&self) -> Root {
        Root::at(&self.root)
    }
}
