//! `doorbell run -- PROGRAM ARGS…` runs a program for RDMA over the software device; `doorbell env`
//! prints the setting that does so, for scripts.

#![expect(unsafe_code, reason = "the C library knows whether it finds a library")]

use std::env;
use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

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

/// The real libraries, by the names that programs ask for.
const REAL: [&CStr; 2] = [c"libibverbs.so.1", c"librdmacm.so.1"];
/// The folder beside the library that has these names for it.
const STAND_IN: &str = "doorbell-stand-in";
/// Where programs look for libraries first.
const SEARCHED: &str = "LD_LIBRARY_PATH";

/// True if the real library is installed. This program may itself run over the drop-in, whose
/// `dlopen` would open the drop-in.
fn is_installed(name: &CStr) -> bool {
    // SAFETY: a text that ends with a zero. Loading runs the library's own initialisation.
    let handle = unsafe { libc::dlmopen(libc::LM_ID_BASE, name.as_ptr(), libc::RTLD_LAZY) };
    !handle.is_null()
}

/// The value of `LD_LIBRARY_PATH` if a real library is missing. A program that is linked to it then
/// starts nevertheless: the folder that comes first gives its name to the drop-in.
fn search_path(library: &Path) -> Result<Option<OsString>, String> {
    let missing: Vec<&CStr> = REAL.into_iter().filter(|name| !is_installed(name)).collect();
    if missing.is_empty() {
        return Ok(None);
    }
    let library = library.canonicalize().map_err(|cause| cannot("find", library, &cause))?;
    let folder = library.with_file_name(STAND_IN);
    let there = |made: io::Result<()>| match made {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    there(fs::create_dir(&folder)).map_err(|cause| cannot("make", &folder, &cause))?;
    // The folder can move together with the library.
    let target = Path::new("..").join(library.file_name().unwrap_or_default());
    for name in missing {
        let link = folder.join(OsStr::from_bytes(name.to_bytes()));
        if fs::read_link(&link).is_ok_and(|old| old != target) {
            // If that fails, so does the next step.
            let _ = fs::remove_file(&link);
        }
        there(symlink(&target, &link)).map_err(|cause| cannot("make", &link, &cause))?;
    }
    let mut value = folder.into_os_string();
    if let Some(others) = env::var_os(SEARCHED).filter(|others| !others.is_empty()) {
        value.push(":");
        value.push(others);
    }
    Ok(Some(value))
}

/// A value of `LD_LIBRARY_PATH` without the folder that names the drop-in.
fn without_stand_in(value: &OsStr) -> Result<OsString, String> {
    let others = env::split_paths(value).filter(|folder| !folder.ends_with(STAND_IN));
    env::join_paths(others).map_err(|cause| format!("{SEARCHED}: {cause}"))
}

fn cannot(verb: &str, path: &Path, cause: &io::Error) -> String {
    format!(
        "a real library of rdma-core is missing, and this cannot {verb} {}, which gives its name \
         to the drop-in: {cause}; install rdma-core's libraries, or put {LIBRARY} into a folder \
         that you may write to, and set {WHERE}",
        path.display()
    )
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
        if let Some(searched) = env::var_os(SEARCHED) {
            command.env(SEARCHED, without_stand_in(&searched)?);
        }
        let cause = command.exec();
        return Err(format!("cannot run {}: {cause}", program.display()));
    }
    let library = library()?;
    command.env("LD_PRELOAD", preload(&library));
    if let Some(path) = search_path(&library)? {
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
    let all = [("LD_PRELOAD", Some(preload(&library))), (SEARCHED, search_path(&library)?)];
    for (name, value) in all {
        let Some(value) = value else { continue };
        let value = value.to_str().ok_or_else(|| format!("{name} would not be text"))?;
        println!("export {name}='{}'", value.replace('\'', "'\\''"));
    }
    println!("export {0}=\"${{{0}:-{1}}}\"", UCX_HEADER.0, UCX_HEADER.1);
    Ok(())
}
