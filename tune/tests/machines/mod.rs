//! Recorded machines: folders with the files of /sys and /proc that matter, written from a short
//! description of each. A test binary includes them with `mod machines;`.

#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

mod kinds;
pub(crate) mod others;
mod write;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell_tune::{Ids, Root};

pub(crate) use kinds::{amd, container, eight_nodes, laptop, many, two_sockets};

/// A recorded machine. Its folder is removed when it is dropped.
pub(crate) struct Recorded {
    folder: PathBuf,
}

impl Recorded {
    fn new(name: &str) -> Recorded {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: the number only has to be unique.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let own = format!("{name}-{}-{number}", std::process::id());
        // In memory if possible: tens of thousands of small files are slow on a disk.
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory } else { Path::new(env!("CARGO_TARGET_TMPDIR")) };
        // Not `doorbell-`: a test of this machine's leftovers may run meanwhile, and counts those.
        let folder = place.join(format!("recorded-{own}"));
        fs::create_dir_all(&folder).unwrap();
        Recorded { folder }
    }

    /// Its folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The root to read it from.
    pub(crate) fn root(&self) -> Root {
        Root::at(&self.folder)
    }

    /// Writes a file, named by its path on the machine itself.
    pub(crate) fn write(&self, file: &str, text: impl AsRef<str>) {
        let path = self.folder.join(file.trim_start_matches('/'));
        let text = format!("{}\n", text.as_ref());
        // For most files the folder exists already.
        if fs::write(&path, &text).is_err() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &text).unwrap();
        }
    }

    /// Removes a file or folder.
    pub(crate) fn remove(&self, file: &str) {
        let path = self.folder.join(file.trim_start_matches('/'));
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    }

    /// Gives a file or folder another name.
    pub(crate) fn rename(&self, from: &str, to: &str) {
        let [from, to] = [from, to].map(|file| self.folder.join(file.trim_start_matches('/')));
        fs::rename(from, to).unwrap();
    }

    /// Makes a symbolic link.
    pub(crate) fn link(&self, file: &str, target: &str) {
        let path = self.folder.join(file.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

/// How the kernel numbers the hardware threads of a core.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Threads {
    /// One per core.
    One,
    /// CPU n and CPU n + number of cores, as on servers.
    Far,
    /// CPUs 2n and 2n + 1, as in virtual machines.
    Near,
}

/// A machine whose packages, nodes and cores are all alike.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) processor: &'static str,
    pub(crate) packages: usize,
    pub(crate) nodes_per_package: usize,
    pub(crate) cores_per_node: usize,
    pub(crate) threads: Threads,
    /// Number of cores that share a level 3 cache, and its size.
    pub(crate) cores_per_l3: usize,
    pub(crate) l3_kib: u64,
    pub(crate) node_mib: u64,
    /// Distance to another node of the same package, and to one of another package.
    pub(crate) distances: (u64, u64),
    pub(crate) isolated: &'static str,
    pub(crate) offline: &'static str,
    /// Nodes without memory.
    pub(crate) empty: &'static [usize],
}

impl Shape {
    pub(crate) fn nodes(&self) -> usize {
        self.packages * self.nodes_per_package
    }

    pub(crate) fn cores(&self) -> usize {
        self.nodes() * self.cores_per_node
    }

    /// The CPUs of a core.
    pub(crate) fn cpus(&self, core: usize) -> Vec<usize> {
        match self.threads {
            Threads::One => vec![core],
            Threads::Far => vec![core, core + self.cores()],
            Threads::Near => vec![2 * core, 2 * core + 1],
        }
    }

    /// The online CPUs of some cores.
    pub(crate) fn cpus_of(&self, cores: impl IntoIterator<Item = usize>) -> Ids {
        let all: Ids = cores.into_iter().flat_map(|core| self.cpus(core)).collect();
        all.without(&self.offline.parse().unwrap())
    }
}

/// A NIC, with an RDMA device if it has a name for one.
pub(crate) struct Nic {
    pub(crate) net: &'static str,
    pub(crate) rdma: Option<&'static str>,
    /// Bus, in hexadecimal.
    pub(crate) bus: u8,
    pub(crate) node: Option<usize>,
    pub(crate) width: u32,
    pub(crate) width_max: u32,
    pub(crate) speed: &'static str,
}
