//! `compare` and `--baseline`: two runs, figure by figure. [`figure`] finds in the JSON of each run
//! the figures that both have, [`interval`] says how sure their ratio is, and [`verdict`] whether
//! the second run was faster or slower. [`turns`] measures two builds in turn.

pub(crate) mod figure;
pub(crate) mod interval;
pub(crate) mod turns;
pub(crate) mod verdict;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::Failure;
use crate::tell::table;

/// The JSON of an earlier run.
///
/// # Errors
/// The file cannot be read, or is not the JSON of a run.
pub(crate) fn read(file: &Path) -> Result<Value, Failure> {
    let asked = format!("read the run {}", file.display());
    let cure = "name a file that --json wrote";
    let text = fs::read_to_string(file).map_err(|error| Failure::system(&asked, &error, cure))?;
    let document: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::new(format!("{asked}: it is not JSON ({error}); {cure}")))?;
    match document["results"].is_array() {
        true => Ok(document),
        false => Err(Failure::new(format!("{asked}: it has no results; {cure}"))),
    }
}

/// The JSON of every run in a folder, in the order of the file names.
///
/// # Errors
/// The folder has none, or one of its `.json` files is not the JSON of a run.
pub(crate) fn read_all(folder: &Path) -> Result<Vec<Value>, Failure> {
    let asked = format!("read the runs in {}", folder.display());
    let cure = "name a folder with files that --json wrote";
    let found = fs::read_dir(folder).map_err(|error| Failure::system(&asked, &error, cure))?;
    let mut files: Vec<PathBuf> = found.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "json"));
    files.sort();
    match files.is_empty() {
        true => Err(Failure::new(format!("{asked}: it has no .json file; {cure}"))),
        false => files.iter().map(|file| read(file)).collect(),
    }
}

/// Where the figures of a run come from, in a line.
fn origin(document: &Value) -> String {
    format!("commit {}, {}", text(document, "/commit"), system(document))
}

/// The machine of a run, and whether its build means anything.
fn system(document: &Value) -> String {
    let build = match text(document, "/machine/build") {
        "debug" => format!(" ({})", table::DEBUG_BUILD),
        _ => String::new(),
    };
    let [cpu, kernel] = ["/machine/cpu", "/machine/kernel"].map(|path| text(document, path));
    format!("{cpu}, kernel {kernel}{build}")
}

fn text<'a>(document: &'a Value, path: &str) -> &'a str {
    document.pointer(path).and_then(Value::as_str).unwrap_or("unknown")
}
