//! Downloads system packages and unpacks them below `target/`, without installing them.

use std::fs::{self, File};
use std::path::Path;

use crate::Outcome;
use crate::exec::must;
use crate::packages::with_fresh_lists;
use crate::place::{self, program};

/// Keeps a second set-up of this repository waiting until the first has ended, however it ends.
pub(crate) fn lock() -> Outcome<File> {
    let path = place::state().join("setup.lock");
    place::make(&place::state())?;
    let file = File::create(&path).and_then(|file| file.lock().map(|()| file));
    file.map_err(|cause| format!("cannot lock {}: {cause}", path.display()))
}

/// Downloads packages and unpacks them to `home`, without installing. `finish` sees the folder
/// under a temporary name; only a complete one gets its final name.
pub(crate) fn unpack(
    names: &[String],
    home: &Path,
    finish: impl FnOnce(&Path) -> Outcome<()>,
) -> Outcome<()> {
    let folder = home.with_extension("new");
    let debs = folder.join("debs");
    for stale in [&folder, &home.to_path_buf()] {
        if stale.exists() {
            fs::remove_dir_all(stale)
                .map_err(|cause| format!("cannot remove {}: {cause}", stale.display()))?;
        }
    }
    place::make(&debs)?;
    with_fresh_lists(|| {
        let mut apt = program("apt-get");
        // Root's download would go to a user who cannot write to this folder.
        apt.args(["-o", "APT::Sandbox::User=root", "download"]).args(names).current_dir(&debs);
        must(&mut apt)
    })?;
    for deb in place::entries(&debs) {
        must(program("dpkg-deb").arg("-x").arg(&deb).arg(&folder))?;
    }
    finish(&folder)?;
    fs::remove_dir_all(&debs)
        .and_then(|()| fs::rename(&folder, home))
        .map_err(|cause| format!("cannot move {} into place: {cause}", folder.display()))
}
