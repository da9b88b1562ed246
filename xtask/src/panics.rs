//! Checks that no panic can be reached from a worker's turn: a library of the turn alone must link
//! although its panic handler calls a function that does not exist.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::count::Count;
use crate::exec::capture;
use crate::members::workspace;
use crate::place::{self, cargo, has_program, program};
use crate::report::Report;

/// The library. It is a workspace of its own, because no other program can use its panic handler.
const PACKAGE: &str = "doorbell-turn";
const LIBRARY: &str = "libdoorbell_turn.so";

/// The path of the source of `core` and `alloc` at their build: code inlined from there is named by
/// the line that calls it.
const LIBRARY_SOURCE: &str = "/rustc/";

/// The function that its panic handler calls, and a name that the library must contain.
const PANIC: &str = "a_panic_can_be_reached_from_turn";
const TURN: &str = "turn";

/// Names of functions that only ever panic, or parts of them.
const CULPRITS: &[&str] = &[
    "panick",
    "unwrap_failed",
    "expect_failed",
    "_index_fail",
    "assert_failed",
    "handle_error",
    "handle_alloc_error",
    "capacity_overflow",
    "grow_one",
    "do_reserve_and_handle",
];

/// Links it. If that fails, names what panics.
pub(crate) fn check() -> Outcome<Report> {
    let done = capture(link()?.args(["-C", "link-arg=-Wl,-z,defs", "-C", "link-arg=-lc"]))?;
    if done.ok {
        // The proof holds only if the turn is in there.
        let names = symbols(&library())?;
        let there = names.lines().any(|line| line.ends_with(&format!(" T {TURN}")));
        return Ok(Report { count: Count::one(there), text: done.text + &names });
    }
    let mut text = done.text;
    if text.contains(PANIC) {
        text = format!("a worker's turn can panic:\n{}", culprits()?.join("\n"));
    }
    Ok(Report { count: Count::one(false), text })
}

fn link() -> Outcome<Command> {
    let mut cargo = cargo();
    cargo.args(["rustc", "--release", "--locked", "--manifest-path"]);
    cargo.arg(workspace(PACKAGE)?.manifest());
    cargo.arg("--target-dir").arg(folder()).arg("--");
    Ok(cargo)
}

fn folder() -> PathBuf {
    place::state().join("panics")
}

fn library() -> PathBuf {
    folder().join("release").join(LIBRARY)
}

/// The symbols that the library exports.
fn symbols(library: &Path) -> Outcome<String> {
    Ok(capture(program("nm").arg("-D").arg(library))?.text)
}

/// The callers of panicking functions with their source lines, in a library linked as if the
/// missing function existed.
fn culprits() -> Outcome<Vec<String>> {
    let done = capture(&mut link()?)?;
    if !done.ok || !has_program("objdump") {
        return Err(format!("the culprits cannot be named: {}", done.text));
    }
    let mut dump = program("objdump");
    let code = capture(dump.args(["-dCl", "--no-show-raw-insn"]).arg(library()))?.text;
    Ok(calls(&code))
}

/// The calls of panicking functions: caller, callee, and the source line.
fn calls(code: &str) -> Vec<String> {
    let is_culprit = |name: &str| CULPRITS.iter().any(|part| name.contains(part));
    let (mut caller, mut line, mut found) = ("", "", Vec::new());
    for text in code.lines() {
        if let Some((_, name)) = text.strip_suffix(">:").and_then(|text| text.split_once(" <")) {
            caller = name;
        } else if text.contains(".rs:") && !text.contains(LIBRARY_SOURCE) {
            line = text.trim();
        } else if let Some((_, name)) =
            text.split_once("call").and_then(|(_, to)| to.split_once('<'))
            && is_culprit(name)
            && !is_culprit(caller)
        {
            found.push(format!("{caller}, at {line}: {}", name.trim_end_matches('>')));
        }
    }
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panicking_functions_are_named() {
        let code = "\
0000000000001000 <doorbell::turn>:
doorbell::turn():
/src/worker.rs:7
/rustc/1/library/vec.rs:3
    1004:\tcall   2000 <core::panicking::panic_bounds_check>
    1009:\tcall   3000 <doorbell::harmless>
0000000000002000 <core::panicking::panic_bounds_check>:
/lib/panicking.rs:9
    2004:\tcall   4000 <core::panicking::panic_fmt>
";
        assert_eq!(
            calls(code),
            ["doorbell::turn, at /src/worker.rs:7: core::panicking::panic_bounds_check"]
        );
    }
}
