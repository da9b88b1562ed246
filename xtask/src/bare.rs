//! Builds for other targets: one without an operating system, which shows that the datapath is
//! `no_std`, and aarch64.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Outcome;
use crate::count::Count;
use crate::exec::{Limit, Sink, capture, must, stream};
use crate::members::{Package, members, workspace};
use crate::packages::installed;
use crate::place::{self, cargo, has_program, program};
use crate::report::Report;
use crate::unpack::{lock, unpack};

const BARE: &str = "x86_64-unknown-none";
const ARM: &str = "aarch64-unknown-linux-gnu";

/// Features that these packages need and that Debian's older compiler has, but calls unstable.
const UNSTABLE: &[&str] = &["let_chains", "unsigned_is_multiple_of"];

/// A compiler for another target.
#[derive(Debug)]
enum Toolchain {
    /// The default compiler, which has the target's standard library or `core` prebuilt.
    Installed,
    /// Debian's compiler, unpacked here, which has the source of `core` and builds it first. The
    /// folder is its `usr`.
    Debian(PathBuf),
}

/// A program without the standard library, in which two workers talk to each other. It is a
/// workspace of its own, because its panic handler and allocator fit no other program.
const ALONE: &str = "doorbell-alone";

/// Builds the `no_std` packages for the bare target, and runs a program without the standard
/// library.
pub(crate) fn check() -> Outcome<Report> {
    let built = capture(&mut build()?)?;
    let mut alone = cargo();
    alone.args(["run", "--release", "--locked", "--manifest-path"]);
    alone.arg(workspace(ALONE)?.manifest());
    let ran = capture(alone.arg("--target-dir").arg(place::state().join("alone")))?;
    let mut count = Count::one(built.ok);
    count += Count::one(ran.ok);
    Ok(Report { count, text: built.text + &ran.text })
}

/// Checks the workspace for aarch64, as far as possible without running it: everything including
/// lints and tests, or, with Debian's compiler, which has only `core`, the packages that need no
/// more.
pub(crate) fn arm() -> Outcome<Report> {
    let mut cargo = cargo();
    match toolchain(ARM)? {
        Toolchain::Installed => {
            cargo.args(["clippy", "--target", ARM, "--workspace", "--all-targets"]);
            for package in members().iter().filter(|package| package.has_feature("sim")) {
                cargo.args(["--features", &format!("{}/sim", package.name)]);
            }
            cargo.args(["--", "-D", "warnings"]);
        }
        Toolchain::Debian(usr) => {
            cargo.args(["check", "--no-default-features", "--target", ARM]);
            by_debian(&mut cargo, &usr);
        }
    }
    let done = capture(&mut cargo)?;
    Ok(Report { count: Count::one(done.ok), text: done.text })
}

fn build() -> Outcome<Command> {
    let mut cargo = cargo();
    cargo.args(["build", "--no-default-features", "--target", BARE]);
    match toolchain(BARE)? {
        Toolchain::Installed => name_packages(&mut cargo),
        Toolchain::Debian(usr) => by_debian(&mut cargo, &usr),
    }
    Ok(cargo)
}

/// The packages without the standard library.
fn packages() -> impl Iterator<Item = String> {
    members().into_iter().filter(Package::is_bare).map(|package| package.name)
}

fn name_packages(cargo: &mut Command) {
    for package in packages() {
        cargo.args(["--package", &package]);
    }
}

/// Compiles the packages with Debian's compiler, and `core` before them.
fn by_debian(cargo: &mut Command, usr: &Path) {
    let compiler = usr.join("bin").join("rustc");
    cargo.env("RUSTC", compiler).env("LD_LIBRARY_PATH", libraries(usr));
    // Building `core` is not yet a stable option of cargo, nor are options for single packages;
    // `core` itself accepts no feature twice.
    cargo.env("RUSTC_BOOTSTRAP", "1").args(["-Zbuild-std=core,alloc", "-Zprofile-rustflags"]);
    let options = UNSTABLE.iter().map(|name| format!("\"-Zcrate-attr=feature({name})\""));
    let options = options.collect::<Vec<_>>().join(",");
    for package in packages() {
        cargo.arg("--config").arg(format!("profile.dev.package.{package}.rustflags=[{options}]"));
    }
    name_packages(cargo);
    cargo.arg("--ignore-rust-version").env("CARGO_TARGET_DIR", place::state().join("bare"));
}

/// Fetches what the checks of other targets need.
pub(crate) fn fetch() -> Outcome<()> {
    [BARE, ARM].into_iter().try_for_each(|target| toolchain(target).map(drop))
}

/// Finds a compiler for the target, or fetches one: rustup's if its server can be reached, else
/// Debian's.
fn toolchain(target: &str) -> Outcome<Toolchain> {
    if rustup_has(target) {
        return Ok(Toolchain::Installed);
    }
    let _lock = lock()?;
    let usr = place::state().join("rust").join("usr");
    if usr.join("bin").join("rustc").exists() {
        return Ok(Toolchain::Debian(usr));
    }
    if has_program("rustup") {
        println!("setup: rustup target add {target}");
        let mut add = program("rustup");
        add.args(["target", "add", target]);
        stream(&mut add, Sink::Kept, Limit::Total(Duration::from_secs(90)), &|| false)?;
        if rustup_has(target) {
            return Ok(Toolchain::Installed);
        }
    }
    debian(&place::state().join("rust"), target)?;
    Ok(Toolchain::Debian(usr))
}

fn rustup_has(target: &str) -> bool {
    let mut list = program("rustup");
    list.args(["target", "list", "--installed"]);
    capture(&mut list).is_ok_and(|done| done.ok && done.text.lines().any(|line| line == target))
}

/// Unpacks the compiler that Debian builds for browsers, with the source of its `core`. It is not
/// installed, because it would replace an installed `rustc` or `rustup`.
fn debian(home: &Path, target: &str) -> Outcome<()> {
    let cure = format!("`rustup target add {target}` did not work, and Debian's rustc-web");
    if !has_program("apt-cache") {
        return Err(format!("{cure} is for Debian only"));
    }
    let names = closure().map_err(|cause| format!("{cure} cannot be had: {cause}"))?;
    println!("setup: rustc-web and rust-web-src into target/doorbell/rust");
    unpack(&names, home, |folder| {
        let usr = folder.join("usr");
        for source in place::entries(&usr.join("src")) {
            // Only `library` is built; the compiler's own source is twenty times as much.
            for part in ["compiler", "src"] {
                std::fs::remove_dir_all(source.join(part)).unwrap_or_default();
            }
        }
        let mut rustc = program(usr.join("bin").join("rustc"));
        must(rustc.arg("--version").env("LD_LIBRARY_PATH", libraries(&usr))).map(drop)
    })
}

fn libraries(usr: &Path) -> PathBuf {
    usr.join("lib").join("x86_64-linux-gnu")
}

/// The compiler, its source, and those of their dependencies that this system lacks.
fn closure() -> Outcome<Vec<String>> {
    let mut query = program("apt-cache");
    query.args(["depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts"]);
    query.args(["--no-breaks", "--no-replaces", "--no-enhances", "rustc-web", "rust-web-src"]);
    let names = packages_of(&must(&mut query)?);
    let present = installed(names.iter().map(String::as_str))?;
    Ok(names.into_iter().filter(|name| !present.contains(name)).collect())
}

/// The packages at the left edge of apt's report. Names in angle brackets are not packages.
fn packages_of(report: &str) -> Vec<String> {
    let edge = |line: &&str| line.starts_with(|first: char| first.is_ascii_alphanumeric());
    let plain = |line: &&str| !line.contains(':');
    report.lines().filter(edge).filter(plain).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_gives_its_packages() {
        let report = "rustc-web\n  Depends: libc6\n |Depends: gcc\nlibc6\n<libc-dev>\nx:i386\n";
        assert_eq!(packages_of(report), ["rustc-web", "libc6"]);
    }
}
