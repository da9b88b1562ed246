//! Memory over files: shared and copied, and what is refused because it could raise SIGBUS.
#![cfg(all(feature = "std", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]
#![expect(unsafe_code, reason = "writes shared bytes")]

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

use doorbell_alloc::{FileError, FileUse, Mapping};

/// A file of its own, removed at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str, bytes: &[u8]) -> Temporary {
        let path = std::env::temp_dir().join(format!("doorbell-{name}-{}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        Temporary(path)
    }

    fn open(&self) -> File {
        File::options().read(true).write(true).open(&self.0).unwrap()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn writes_to_shared_memory_reach_the_file() {
    let file = Temporary::new("shared", b"old bytes");
    let mut mapping = Mapping::file(file.open(), 100_000, FileUse::Shared).unwrap();
    assert!(mapping.len() >= 100_000);
    assert_eq!(mapping.fd(), None, "a peer that mapped the file could be killed by its end");
    assert!(mapping.report().shared() && mapping.as_mut_slice().is_none());
    // SAFETY: the bytes lie in the range, and no reference to them exists.
    unsafe {
        assert_eq!(mapping.as_ptr().read(), b'o');
        assert_eq!(mapping.as_ptr().add(99_999).read(), 0, "it is extended with zeros");
        mapping.as_ptr().copy_from(b"new".as_ptr(), 3);
        mapping.as_ptr().add(99_999).write(7);
    }
    drop(mapping);
    let bytes = fs::read(&file.0).unwrap();
    assert_eq!((bytes.len(), &bytes[..9], bytes[99_999]), (100_000, &b"new bytes"[..], 7));
}

/// A sparse file on a full disk would raise SIGBUS at the first write to a hole.
#[test]
fn all_of_a_shared_file_is_allocated() {
    let file = Temporary::new("holes", b"");
    file.open().set_len(1 << 20).unwrap();
    assert!(fs::metadata(&file.0).unwrap().blocks() * 512 < 1 << 20);
    let _mapping = Mapping::file(file.open(), 1 << 20, FileUse::Shared).unwrap();
    assert!(fs::metadata(&file.0).unwrap().blocks() * 512 >= 1 << 20);
}

#[test]
fn a_shared_file_is_locked_as_long_as_it_is_mapped() {
    let file = Temporary::new("locked", b"");
    let mapping = Mapping::file(file.open(), 4096, FileUse::Shared).unwrap();
    let second = Mapping::file(file.open(), 4096, FileUse::Shared);
    assert!(matches!(second, Err(FileError::Locked)), "{second:?}");
    assert!(file.open().try_lock().is_err());
    drop(mapping);
    Mapping::file(file.open(), 4096, FileUse::Shared).unwrap();
}

#[test]
fn a_file_that_others_may_truncate_is_refused() {
    let file = Temporary::new("modes", b"bytes");
    for mode in [0o620, 0o602, 0o666] {
        fs::set_permissions(&file.0, Permissions::from_mode(mode)).unwrap();
        let refused = Mapping::file(file.open(), 4096, FileUse::Shared).unwrap_err();
        assert!(
            matches!(refused, FileError::OthersMayWrite { mode: m, .. } if m == mode),
            "{refused}"
        );
        assert!(refused.to_string().contains(&format!("{mode:o}")), "{refused}");
    }
    let refused = Mapping::file(File::open("/dev/null").unwrap(), 4096, FileUse::Shared);
    assert!(matches!(refused, Err(FileError::NotRegular)));
    assert!(Mapping::file(file.open(), 0, FileUse::Shared).is_err());
    fs::set_permissions(&file.0, Permissions::from_mode(0o600)).unwrap();
    assert!(Mapping::file(File::open(&file.0).unwrap(), 4096, FileUse::Shared).is_err());
}

/// The file may shrink and change after it was copied.
#[test]
fn a_copy_is_private_and_stays() {
    let bytes: Vec<u8> = (0..50_000_u32).map(|n| n as u8).collect();
    let file = Temporary::new("copy", &bytes);
    let mut copy = Mapping::file(File::open(&file.0).unwrap(), 50_000, FileUse::Copy).unwrap();
    file.open().write_at(b"changed", 0).unwrap();
    file.open().set_len(0).unwrap();
    assert!(!copy.report().shared());
    let copied = copy.as_mut_slice().unwrap();
    assert_eq!(copied[..50_000], bytes);
    copied[0] = 99;
    assert_eq!(fs::metadata(&file.0).unwrap().len(), 0, "nothing is written back");
    let short = Mapping::file(file.open(), 1, FileUse::Copy);
    assert!(matches!(short, Err(FileError::Short { size: 0, asked: 1 })), "{short:?}");
}
