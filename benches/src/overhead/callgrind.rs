//! Runs this program below callgrind, and reads what it counted.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::Failure;
use crate::overhead::cases::Case;

/// A folder for callgrind's files, for as long as this lives.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Best effort: what stays is small and lies in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What callgrind counted inside one function.
pub(crate) struct Counts {
    /// Instructions of a message, for each case.
    pub(crate) cases: Vec<f64>,
    /// Instructions by the mangled name of the function they belong to, over all cases.
    pub(crate) functions: BTreeMap<String, u64>,
}

/// Runs all cases, with that many messages each, and counts what happens inside `function`.
pub(crate) fn run(function: &str, sizes: &[u32], messages: u64) -> Result<Counts, Failure> {
    let name = format!("doorbell-overhead-{}-{function}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    let failed = |asked: &str| {
        let asked = asked.to_owned();
        move |error: io::Error| Failure::system(&asked, &error, "is the disk full?")
    };
    fs::create_dir_all(&folder.0).map_err(failed("make a folder for counts"))?;
    let own = std::env::current_exe().map_err(failed("find this program"))?;
    let list: Vec<String> = sizes.iter().map(u32::to_string).collect();
    let out = folder.0.join("out");
    // Valgrind runs one thread at a time. Scheduled in turn, the one that waits for the connection
    // does not keep the one that accepts it from running.
    let output = valgrind()
        .args(["-q", "--tool=callgrind", "--fair-sched=yes", "--demangle=no"])
        .args(["--dump-after=*counted_case_end*", &format!("--toggle-collect=*{function}*")])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(own)
        .args(["count", "--size", &list.join(","), "--messages", &messages.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(missing)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or_default();
        return Err(Failure::new(format!(
            "below valgrind it ended with {}: {last}",
            output.status
        )));
    }
    let mut reader = Reader::default();
    let mut cases = Vec::new();
    for n in 1..=Case::all(sizes).len() {
        let file = out.with_extension(n.to_string());
        cases.push(reader.read(&file)? as f64 / messages as f64);
    }
    Ok(Counts { cases, functions: reader.functions() })
}

/// The version of valgrind.
pub(crate) fn version() -> Result<String, Failure> {
    let output = valgrind().arg("--version").output().map_err(missing)?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn valgrind() -> Command {
    Command::new("valgrind")
}

fn missing(error: io::Error) -> Failure {
    Failure::system("start valgrind", &error, "install it: apt-get install valgrind")
}

/// Reads callgrind's files in order. A name appears once in all of them; later lines refer to it by
/// number.
#[derive(Default)]
struct Reader {
    names: HashMap<String, String>,
    /// Instructions by the number of the function.
    counts: HashMap<String, u64>,
}

impl Reader {
    /// The instructions in a file.
    fn read(&mut self, file: &Path) -> Result<u64, Failure> {
        let wrong = |what: String| {
            Failure::new(format!("callgrind left no count in {}: {what}", file.display()))
        };
        let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        match self.total(&text) {
            Some(count) if count > 0 => Ok(count),
            _ => Err(wrong("is this program built without symbols?".to_owned())),
        }
    }

    /// Adds up the text of a file: its total, and the instructions of each function itself.
    fn total(&mut self, text: &str) -> Option<u64> {
        let (mut current, mut total) = (String::new(), None);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(name) = line.strip_prefix("fn=") {
                current = self.number(name);
            } else if let Some(name) = line.strip_prefix("cfn=") {
                self.number(name);
            } else if line.starts_with("calls=") {
                // The next line has the cost of the call, which belongs to the function called.
                lines.next();
            } else if let Some(rest) = line.strip_prefix("totals:") {
                total = rest.split_whitespace().next()?.parse().ok();
            } else if let Some((place, cost)) = line.split_once(' ')
                && place.starts_with(|first: char| "+-*".contains(first) || first.is_ascii_digit())
                && let Ok(cost) = cost.trim().parse::<u64>()
            {
                *self.counts.entry(current.clone()).or_default() += cost;
            }
        }
        total
    }

    /// The number in `(number) name`. Keeps the name, if there is one.
    fn number(&mut self, text: &str) -> String {
        let (number, name) = text.split_once(' ').unwrap_or((text, ""));
        if !name.is_empty() {
            self.names.insert(number.to_owned(), name.to_owned());
        }
        number.to_owned()
    }

    fn functions(self) -> BTreeMap<String, u64> {
        let mut functions = BTreeMap::new();
        for (number, count) in self.counts {
            if let Some(name) = self.names.get(&number) {
                *functions.entry(name.clone()).or_default() += count;
            }
        }
        functions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_and_the_functions_they_belong_to_are_read() {
        let mut reader = Reader::default();
        let first = "events: Ir\nfn=(1) turn\n10 4\n+2 3\ncfn=(2) post\ncalls=1 5\n* 90\n* 1\n\n\
                     fn=(2)\n7 90\ntotals: 98\n";
        assert_eq!(reader.total(first), Some(98));
        // The second file knows the names of the first one.
        assert_eq!(reader.total("fn=(2)\n7 10\ntotals: 10\n"), Some(10));
        assert_eq!(reader.total("events: Ir\n"), None);
        let expected = [("turn".to_owned(), 8), ("post".to_owned(), 100)];
        assert_eq!(reader.functions(), expected.into_iter().collect());
    }
}
