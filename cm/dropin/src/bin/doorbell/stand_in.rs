//! Folders that give the drop-in the name of a real library that is not installed. A program that
//! is linked to the library starts nevertheless.
#![expect(unsafe_code, reason = "the C library knows whether it finds a library, and whose files")]

use std::env;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process;

/// The real libraries, by the names that programs ask for.
const REAL: [&CStr; 2] = [c"libibverbs.so.1", c"librdmacm.so.1"];
/// The folder of these folders. Each has the name of one library, and only those of missing ones
/// are searched: a library that is installed later is not hidden.
const STAND_IN: &str = "doorbell-stand-in";
/// Where programs look for libraries first.
pub(crate) const SEARCHED: &str = "LD_LIBRARY_PATH";

/// The value of `LD_LIBRARY_PATH` if a real library is missing. The search path of this program has
/// no stand-ins.
pub(crate) fn search_path(library: &Path) -> Option<OsString> {
    let missing = REAL.into_iter().filter(|name| !is_installed(name));
    let missing: Vec<&OsStr> = missing.map(|name| OsStr::from_bytes(name.to_bytes())).collect();
    if missing.is_empty() {
        return None;
    }
    match folders(library, &missing) {
        Ok(folders) => Some(before_others(&folders, env::var_os(SEARCHED))),
        Err(tried) => {
            let names = missing.join(OsStr::new(", "));
            eprintln!(
                "doorbell: warning: not installed: {}; programs that are linked to them will not \
                 start, because no folder can give these names to the drop-in: {tried}; install \
                 rdma-core's libraries, or set XDG_RUNTIME_DIR to a folder of yours",
                names.display()
            );
            None
        }
    }
}

/// True if the real library is installed. This program may itself run over the drop-in, whose
/// `dlopen` would open the drop-in.
fn is_installed(name: &CStr) -> bool {
    // SAFETY: a text that ends with a zero. Loading runs the library's own initialisation.
    let handle = unsafe { libc::dlmopen(libc::LM_ID_BASE, name.as_ptr(), libc::RTLD_LAZY) };
    !handle.is_null()
}

/// A search path without the folders of this file.
pub(crate) fn without_stand_ins(value: &OsStr) -> OsString {
    let is_other = |part: &&[u8]| {
        let folder = Path::new(OsStr::from_bytes(part));
        !folder.iter().any(|name| name == STAND_IN)
    };
    // The loader takes both signs.
    let parts = value.as_bytes().split(|byte| matches!(byte, b':' | b';')).filter(is_other);
    OsString::from_vec(parts.collect::<Vec<_>>().join(&b':'))
}

fn before_others(folders: &[PathBuf], others: Option<OsString>) -> OsString {
    let others = others.filter(|others| !others.is_empty()).map(PathBuf::from);
    let all: Vec<&OsStr> = folders.iter().chain(&others).map(|path| path.as_os_str()).collect();
    all.join(OsStr::new(":"))
}

/// Makes a folder for each name beside the library, or else in the user's runtime folder. The error
/// says what was tried.
fn folders(library: &Path, names: &[&OsStr]) -> Result<Vec<PathBuf>, String> {
    let library = library.canonicalize().map_err(|cause| cannot("find", library, &cause))?;
    // The folder can move together with the library.
    let target = Path::new("../..").join(library.file_name().unwrap_or_default());
    let beside = all_of(&library.with_file_name(STAND_IN), names, &target);
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let Some(runtime) = runtime.filter(|folder| folder.is_absolute()) else { return beside };
    beside.or_else(|first| {
        let second = all_of(&runtime.join(STAND_IN), names, &library);
        second.map_err(|second| format!("{first}, and {second}"))
    })
}

fn all_of(base: &Path, names: &[&OsStr], target: &Path) -> Result<Vec<PathBuf>, String> {
    own_folder(base)?;
    names.iter().map(|name| folder_of(base, name, target)).collect()
}

/// A folder with one link.
fn folder_of(base: &Path, name: &OsStr, target: &Path) -> Result<PathBuf, String> {
    let folder = base.join(name);
    if folder.is_symlink() {
        // An older version made a link here. If it stays, the next step says so.
        let _ = fs::remove_file(&folder);
    }
    own_folder(&folder)?;
    let link = folder.join(name);
    let is_there = || fs::read_link(&link).is_ok_and(|found| found == target);
    if !is_there() {
        replace(&folder, &link, target).map_err(|cause| cannot("make", &link, &cause))?;
    }
    if is_there() {
        Ok(folder)
    } else {
        Err(format!("{} does not lead to {}", link.display(), target.display()))
    }
}

/// Puts the link in place at once: another program may look for it meanwhile.
fn replace(folder: &Path, link: &Path, target: &Path) -> io::Result<()> {
    let new = folder.join(format!(".new-{}", process::id()));
    // One that a process of the same number has left.
    let _ = fs::remove_file(&new);
    symlink(target, &new)?;
    fs::rename(&new, link).inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })
}

/// Makes a folder that no other user can write to, or finds that one is there.
fn own_folder(folder: &Path) -> Result<(), String> {
    match DirBuilder::new().mode(0o755).create(folder) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => {
            return Err(cannot("make", folder, &cause));
        }
        _ => {}
    }
    // A link to a folder does not count: somebody else may change it.
    let found = fs::symlink_metadata(folder).map_err(|cause| cannot("look at", folder, &cause))?;
    // SAFETY: takes and returns numbers.
    let user = unsafe { libc::geteuid() };
    let is_trusted = [0, user].contains(&found.uid()) && found.mode() & 0o022 == 0;
    if found.is_dir() && is_trusted {
        return Ok(());
    }
    let path = folder.display();
    Err(format!("{path} is not a folder that only this user or root can write to; remove it"))
}

fn cannot(verb: &str, path: &Path, cause: &io::Error) -> String {
    format!("cannot {verb} {}: {cause}", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A new folder with a library in it.
    fn library(name: &str) -> PathBuf {
        let folder = env::temp_dir().join(format!("doorbell-{name}-{}", process::id()));
        let _ = fs::remove_dir_all(&folder);
        DirBuilder::new().mode(0o755).create(&folder).unwrap();
        fs::write(folder.join("lib.so"), "").unwrap();
        folder.join("lib.so").canonicalize().unwrap()
    }

    fn remove(library: &Path) {
        fs::remove_dir_all(library.parent().unwrap()).unwrap();
    }

    #[test]
    fn each_missing_library_has_a_folder_of_its_own() {
        let library = library("each");
        let base = library.with_file_name(STAND_IN);
        let (one, two) = (OsStr::new("one.so.1"), OsStr::new("two.so.1"));
        assert_eq!(folders(&library, &[one, two]).unwrap(), [base.join(one), base.join(two)]);
        let link = base.join(one).join(one);
        assert_eq!(link.canonicalize().unwrap(), library);
        // A link that leads elsewhere.
        fs::remove_file(&link).unwrap();
        symlink("/nowhere", &link).unwrap();
        assert_eq!(folders(&library, &[one]).unwrap(), [base.join(one)]);
        assert_eq!(link.canonicalize().unwrap(), library);
        assert_eq!(fs::read_dir(base.join(one)).unwrap().count(), 1, "something is left");
        remove(&library);
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_not_used() {
        let library = library("others");
        let base = library.with_file_name(STAND_IN);
        let name = OsStr::new("one.so.1");
        let made = || all_of(&base, &[name], Path::new("../../lib.so"));
        made().unwrap();
        for folder in [&base, &base.join(name)] {
            for mode in [0o775, 0o757] {
                fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
                assert!(made().unwrap_err().contains("only this user or root"), "{mode:o}");
            }
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
            made().unwrap();
        }
        fs::rename(&base, base.with_file_name("moved")).unwrap();
        symlink("moved", &base).unwrap();
        made().unwrap_err();
        remove(&library);
    }

    #[test]
    fn a_search_path_keeps_all_but_the_stand_ins() {
        let new = |old: &str| without_stand_ins(OsStr::new(old)).into_string().unwrap();
        assert_eq!(new("/a/doorbell-stand-in:/one:/b/doorbell-stand-in/x.so.1/;/two"), "/one:/two");
        assert_eq!(new("/a/doorbell-stand-in"), "");
        assert_eq!(new("/one::/not-doorbell-stand-in"), "/one::/not-doorbell-stand-in");
        let folders = [PathBuf::from("/s/one"), PathBuf::from("/s/two")];
        assert_eq!(before_others(&folders, Some("/a:/b".into())), "/s/one:/s/two:/a:/b");
        assert_eq!(before_others(&folders, Some(OsString::new())), "/s/one:/s/two");
    }
}
