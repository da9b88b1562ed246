//! `compare` and `--baseline`: two runs, figure by figure. [`figure`] finds in the JSON of each run
//! the figures that both have, [`interval`] says how sure their ratio is, and [`verdict`] whether
//! the second run was faster or slower.

pub(crate) mod figure;
pub(crate) mod interval;
pub(crate) mod verdict;

use std::fs;
use std::path::Path;

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

/// Where the figures of a run come from, in a line.
fn origin(document: &Value) -> String {
    let text = |path: &str| document.pointer(path).and_then(Value::as_str).unwrap_or("unknown");
    let build = match text("/machine/build") {
        "debug" => format!(" ({})", table::DEBUG_BUILD),
        _ => String::new(),
    };
    let kernel = text("/machine/kernel");
    format!("commit {}, {}, kernel {kernel}{build}", text("/commit"), text("/machine/cpu"))
}
