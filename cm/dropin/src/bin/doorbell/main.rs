//! `doorbell run -- PROGRAM ARGS…` runs a program for RDMA over the software device; `doorbell env`
//! prints the setting that does so, for scripts.

mod stand_in;

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use stand_in::{SEARCHED, search_path, without_stand_ins};

/// The file name of the library.
const LIBRARY: &str = "libdoorbell_dropin.so";
/// Makes it.
const BUILD: &str = "cargo build --profile dropin -p doorbell-dropin";
/// Names the library where it does not lie beside this program.
const WHERE: &str = "DOORBELL_DROPIN";

const HELP: &str = "\
doorbell run -- PROGRAM ARGS…   runs a program for RDMA over the software device soft0
doorbell env                    prints the setting that does so:  eval \"$(doorbell env)\"";

fn main() -> ExitCode {
    if let Err(cause) = search_anew() {
        eprintln!("doorbell: {cause}");
        return ExitCode::from(2);
    }
    let mut args = env::args_os().skip(1);
    let command = args.next();
    let rest: Vec<OsString> = args.collect();
    let done = match (command.as_deref().and_then(OsStr::to_str), rest.as_slice()) {
        (Some("run"), [dashes, program, args @ ..]) if dashes == "--" => run(program, args),
        (Some("run"), [program, args @ ..]) if program != "--" => run(program, args),
        (Some("env"), []) => print_env(),
        (Some("help" | "--help" | "-h"), []) => {
            println!("{HELP}");
            Ok(())
        }
        _ => Err(format!("this is not a command; there are\n{HELP}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("doorbell: {cause}");
            ExitCode::from(2)
        }
    }
}

/// Starts this program anew if its search path has stand-ins of an earlier `doorbell env`. The
/// loader reads the path at the start only, and would take a stand-in for an installed library.
fn search_anew() -> Result<(), String> {
    let Some(old) = env::var_os(SEARCHED) else { return Ok(()) };
    let new = without_stand_ins(&old);
    if new == old {
        return Ok(());
    }
    let own = env::current_exe();
    let own = own.map_err(|cause| format!("cannot find this program's own path ({cause})"))?;
    let cause = Command::new(&own).args(env::args_os().skip(1)).env(SEARCHED, new).exec();
    Err(format!("cannot run {}: {cause}", own.display()))
}

/// Where the library lies: as the environment says, beside this program, or in the folder `lib`
/// beside this program's folder.
fn library() -> Result<PathBuf, String> {
    if let Some(named) = env::var_os(WHERE) {
        let named = PathBuf::from(named);
        return if named.is_file() {
            Ok(named)
        } else {
            Err(format!("{WHERE} names {}, which is not a file", named.display()))
        };
    }
    let own = env::current_exe()
        .map_err(|cause| format!("cannot find this program's own path ({cause}); set {WHERE}"))?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)];
    let found = places.iter().find(|place| place.is_file());
    found.cloned().ok_or_else(|| {
        format!("{LIBRARY} is not beside {}; build it ({BUILD}), or set {WHERE}", own.display())
    })
}

/// The value of `LD_PRELOAD`: the library, before what is there already.
fn preload(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(others) = others() {
        value.push(":");
        value.push(others);
    }
    value
}

/// What `LD_PRELOAD` names beside the library, which is there in a shell that has taken
/// `doorbell env`.
fn others() -> Option<OsString> {
    let preloaded = env::var_os("LD_PRELOAD").unwrap_or_default();
    let parts = preloaded.as_bytes().split(|byte| matches!(byte, b':' | b' '));
    let is_other = |part: &&[u8]| {
        let path = Path::new(OsStr::from_bytes(part));
        !part.is_empty() && path.file_name() != Some(OsStr::new(LIBRARY))
    };
    let kept: Vec<&[u8]> = parts.filter(is_other).collect();
    (!kept.is_empty()).then(|| OsString::from_vec(kept.join(&b':')))
}

/// UCX drops datagrams whose header is not that of its own vendor's NICs, unless this is said.
const UCX_HEADER: (&str, &str) = ("UCX_UD_VERBS_ETH_DGID_CHECK", "n");

/// Names the device, as for programs in Rust.
const DEVICE: &str = "DOORBELL_DEVICE";

/// True if the environment names another device than this one: the program then runs as it is.
fn names_a_real_device() -> bool {
    let device = env::var_os(DEVICE).unwrap_or_default();
    !device.is_empty() && device != "soft0" && device != "soft"
}

fn run(program: &OsStr, args: &[OsString]) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(args);
    if names_a_real_device() {
        let device = env::var_os(DEVICE).unwrap_or_default();
        eprintln!("doorbell: {DEVICE}={}: this runs over rdma-core", device.display());
        match others() {
            Some(others) => command.env("LD_PRELOAD", others),
            None => command.env_remove("LD_PRELOAD"),
        };
        let cause = command.exec();
        return Err(format!("cannot run {}: {cause}", program.display()));
    }
    let library = library()?;
    command.env("LD_PRELOAD", preload(&library));
    if let Some(path) = search_path(&library) {
        command.env(SEARCHED, path);
    }
    if env::var_os(UCX_HEADER.0).is_none() {
        command.env(UCX_HEADER.0, UCX_HEADER.1);
    }
    let cause = command.exec();
    Err(format!("cannot run {}: {cause}", program.display()))
}

fn print_env() -> Result<(), String> {
    let library = library()?;
    // The shell may still have a path with stand-ins, which this program has started without.
    let searched = search_path(&library).or_else(|| env::var_os(SEARCHED));
    let all = [("LD_PRELOAD", Some(preload(&library))), (SEARCHED, searched)];
    for (name, value) in all {
        let Some(value) = value else { continue };
        let value = value.to_str().ok_or_else(|| format!("{name} would not be text"))?;
        println!("export {name}='{}'", value.replace('\'', "'\\''"));
    }
    println!("export {0}=\"${{{0}:-{1}}}\"", UCX_HEADER.0, UCX_HEADER.1);
    Ok(())
}
