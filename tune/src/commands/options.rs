//! Options and helpers that several commands share.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use doorbell_tune::{Machine, Memory, Root};

use crate::failure::Failure;

/// Which machine to read.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// A folder with copies of a machine's files from /sys, /proc and /etc
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
    /// A machine in a file that `lstopo FILE.xml` wrote (needs the feature numa)
    #[arg(long, value_name = "FILE", conflicts_with = "root")]
    xml: Option<PathBuf>,
}

impl Which {
    pub(crate) fn root(&self) -> Root {
        Root::at(&self.root)
    }

    pub(crate) fn machine(&self) -> Result<Machine, Failure> {
        match &self.xml {
            Some(file) => from_xml(file),
            None => Ok(Machine::read(&self.root())?),
        }
    }
}

/// How strictly memory comes from a plan's nodes.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Policy {
    /// Only from these nodes; if they are full, the kernel kills the program
    Bind,
    /// From these nodes while they have free memory, then from others
    Prefer,
    /// From the node where a page is first touched
    Any,
}

impl From<Policy> for Memory {
    fn from(policy: Policy) -> Memory {
        match policy {
            Policy::Bind => Memory::Bind,
            Policy::Prefer => Memory::Prefer,
            Policy::Any => Memory::Any,
        }
    }
}

#[cfg(feature = "numa")]
fn from_xml(file: &Path) -> Result<Machine, Failure> {
    Ok(Machine::from_xml(file)?)
}

#[cfg(not(feature = "numa"))]
fn from_xml(file: &Path) -> Result<Machine, Failure> {
    Err(Failure::new(format_args!(
        "cannot read {}: this program was built without hwloc, which reads such files; build it \
         with --features numa",
        file.display()
    )))
}

/// Writes a file.
pub(crate) fn write(file: &Path, text: &str) -> Result<(), Failure> {
    fs::write(file, text).map_err(|error| {
        Failure::new(format_args!("cannot write {}: {error}; name another file", file.display()))
    })
}

/// Reads a size such as `64M`, in bytes.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 1 << 10),
        Some('m' | 'M') => (&text[..text.len() - 1], 1 << 20),
        Some('g' | 'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    // TOML cannot hold larger numbers.
    let bytes = bytes.filter(|bytes| i64::try_from(*bytes).is_ok());
    bytes.ok_or_else(|| "bytes, such as 4096, 64M or 2G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("64M"), Ok(64 << 20));
        assert_eq!(bytes("2G"), Ok(2 << 30));
        assert_eq!(bytes("2g"), Ok(2 << 30));
        for text in ["", "M", "-1", "1.5G", "99999999999G", "9223372036854775808", "é"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
