//! Identify: what a controller and a namespace say about themselves.

use super::le::{put, put_padded, text, u16_at, u32_at, u64_at};
use super::{
    ADMIN_DEPTH, BLOCK_BYTES, CAPSULE_BYTES, IO_DEPTH, PAGE_BYTES, TRANSFER_EXPONENT, VERSION,
};

/// One page of data.
pub type Page = [u8; PAGE_BYTES];

/// Which structure Identify asks for (CNS).
#[expect(missing_docs, reason = "each is the structure of that name")]
pub mod cns {
    pub const NAMESPACE: u8 = 0x00;
    pub const CONTROLLER: u8 = 0x01;
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
}

/// Asynchronous event requests that a controller holds at a time.
pub const EVENTS_MAX: usize = 4;
/// Milliseconds between two steps of the keep-alive timer (KAS is in units of 100).
pub const KEEP_ALIVE_STEP_MS: u32 = 100;
/// Namespaces of a subsystem at most.
pub const NAMESPACES_MAX: u32 = 1024;

/// A controller, as Identify Controller shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Its number.
    pub id: u16,
    /// True for one of the discovery subsystem.
    pub discovery: bool,
    /// The serial number, of up to 20 letters.
    pub serial: String,
    /// The name of the subsystem.
    pub subsystem: String,
    /// The highest number of a namespace.
    pub namespaces: u32,
}

/// Commands beyond the mandatory ones: Compare, Dataset Management, Write Zeroes.
const OPTIONAL_COMMANDS: u16 = 1 | 1 << 2 | 1 << 3;
/// Scatter-gather lists, keyed ones, and offsets into the capsule.
const SGL_SUPPORT: u32 = 1 | 1 << 2 | 1 << 20;

impl Controller {
    /// The page.
    pub fn page(&self) -> Page {
        let mut out = [0; PAGE_BYTES];
        put_padded(&mut out, 4, 20, &self.serial);
        put_padded(&mut out, 24, 40, "Doorbell NVMe-oF target");
        put_padded(&mut out, 64, 8, env!("CARGO_PKG_VERSION"));
        out[76] = 0b11; // Several ports and several controllers may be there.
        out[77] = TRANSFER_EXPONENT;
        put(&mut out, 78, &self.id.to_le_bytes());
        put(&mut out, 80, &VERSION.to_le_bytes());
        put(&mut out, 96, &1_u32.to_le_bytes()); // Host identifiers have 128 bits.
        out[111] = if self.discovery { 2 } else { 1 };
        out[258] = 3; // Aborts at a time, from zero.
        out[259] = EVENTS_MAX as u8 - 1;
        out[260] = 0b11; // One firmware slot, and it is read-only.
        out[261] = 0b100; // Get Log Page takes long lengths and offsets.
        put(&mut out, 266, &343_u16.to_le_bytes());
        put(&mut out, 268, &353_u16.to_le_bytes());
        put(&mut out, 320, &1_u16.to_le_bytes());
        put(&mut out, 514, &if self.discovery { ADMIN_DEPTH } else { IO_DEPTH }.to_le_bytes());
        put(&mut out, 536, &SGL_SUPPORT.to_le_bytes());
        put(&mut out, 768, self.subsystem.as_bytes());
        if !self.discovery {
            (out[512], out[513]) = (0x66, 0x44);
            put(&mut out, 516, &self.namespaces.to_le_bytes());
            put(&mut out, 520, &OPTIONAL_COMMANDS.to_le_bytes());
            out[525] = 0b111; // A volatile write cache, and Flush of all namespaces at once.
            put(&mut out, 1792, &((CAPSULE_BYTES / 16) as u32).to_le_bytes());
            put(&mut out, 1796, &1_u32.to_le_bytes());
            out[1803] = 1; // Descriptors of a command.
        }
        out
    }

    /// Reads a page, as far as an initiator needs it.
    pub fn read(page: &Page) -> Controller {
        Controller {
            id: u16_at(page, 78),
            discovery: page[111] == 2,
            serial: text(page, 4, 20).unwrap_or_default().trim_end().to_owned(),
            subsystem: text(page, 768, 256).unwrap_or_default().to_owned(),
            namespaces: u32_at(page, 516),
        }
    }
}

/// What an initiator has to keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a transfer; `None`: any.
    pub transfer: Option<usize>,
    /// Bytes of data in a command capsule.
    pub in_capsule: usize,
    /// Commands of a queue.
    pub commands: u16,
    /// Keyed scatter-gather lists are understood.
    pub keyed: bool,
}

impl Limits {
    /// The limits in a page of Identify Controller.
    pub fn read(page: &Page) -> Limits {
        let sgl = u32_at(page, 536);
        let capsule = (u32_at(page, 1792) as usize).saturating_mul(16).saturating_sub(64);
        let with_offsets = sgl & 1 << 20 != 0 && u16_at(page, 1800) == 0;
        Limits {
            transfer: (1..=20).contains(&page[77]).then(|| PAGE_BYTES << page[77]),
            in_capsule: if with_offsets { capsule } else { 0 },
            commands: u16_at(page, 514),
            keyed: sgl & 1 << 2 != 0,
        }
    }
}

/// A namespace, as Identify Namespace shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Blocks.
    pub blocks: u64,
    /// The globally unique identifier.
    pub guid: [u8; 16],
}

impl Namespace {
    /// The page.
    pub fn page(&self) -> Page {
        let mut out = [0; PAGE_BYTES];
        for at in [0, 8, 16] {
            put(&mut out, at, &self.blocks.to_le_bytes());
        }
        out[24] = 0b1_0000; // The preferred sizes below are valid.
        out[30] = 1; // Several controllers may use it.
        out[33] = 0b1; // Deallocated blocks read as zeros.
        let page = (PAGE_BYTES as u64 / BLOCK_BYTES) as u16 - 1;
        for at in [64, 66, 68, 70] {
            put(&mut out, at, &page.to_le_bytes());
        }
        put(&mut out, 104, &self.guid);
        out[130] = BLOCK_BYTES.trailing_zeros() as u8;
        out
    }

    /// Blocks, and the bytes of one, in a page of Identify Namespace; `None` if its format is not
    /// one that a host can use.
    pub fn read(page: &Page) -> Option<(u64, u64)> {
        let format = usize::from(page[26] & 0x0f);
        let shift = page[128 + 4 * format + 2];
        (9..=16).contains(&shift).then(|| (u64_at(page, 0), 1 << shift))
    }

    /// The page of identification descriptors.
    pub fn descriptors(&self) -> Page {
        let mut out = [0; PAGE_BYTES];
        (out[0], out[1]) = (2, 16); // The globally unique identifier,
        put(&mut out, 4, &self.guid);
        (out[20], out[21]) = (3, 16); // the same as a UUID,
        put(&mut out, 24, &self.guid);
        (out[40], out[41]) = (4, 1); // and the command set, which is NVM.
        out
    }
}

/// The page of active namespaces whose numbers are above `after`, of those up to `last`.
pub fn active(after: u32, last: u32) -> Page {
    let mut out = [0; PAGE_BYTES];
    for (index, id) in (after.saturating_add(1)..=last).take(PAGE_BYTES / 4).enumerate() {
        put(&mut out, index * 4, &id.to_le_bytes());
    }
    out
}

/// The numbers in a page of active namespaces.
pub fn read_active(page: &Page) -> Vec<u32> {
    let ids = (0..PAGE_BYTES / 4).map(|index| u32_at(page, index * 4));
    ids.take_while(|id| *id != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller(discovery: bool) -> Controller {
        Controller {
            id: 5,
            discovery,
            serial: "0123456789".to_owned(),
            subsystem: "nqn.2026-11.org.example:disk".to_owned(),
            namespaces: if discovery { 0 } else { 2 },
        }
    }

    #[test]
    fn a_controller_is_read_as_it_was_written() {
        for discovery in [false, true] {
            let controller = controller(discovery);
            assert_eq!(Controller::read(&controller.page()), controller);
        }
        let page = controller(false).page();
        let limits = Limits::read(&page);
        assert_eq!((limits.transfer, limits.in_capsule), (Some(131_072), 4096));
        assert_eq!((limits.commands, limits.keyed), (128, true));
        assert_eq!(&page[4..24], b"0123456789          ", "padded with spaces");
    }

    /// What the kernel's initiator insists on.
    #[test]
    fn the_page_has_what_a_fabrics_host_requires() {
        let page = controller(false).page();
        assert_eq!(u32_at(&page, 536) & 1 << 2, 1 << 2, "keyed lists");
        assert!(u32_at(&page, 1792) >= 4 && u32_at(&page, 1796) >= 1, "capsule sizes");
        assert_ne!(u16_at(&page, 514), 0, "outstanding commands");
        assert_ne!(u16_at(&page, 320), 0, "keep-alive");
        assert_eq!(u16_at(&page, 1800), 0, "data begins right behind the command");
    }

    #[test]
    fn a_namespace_has_its_size_and_format() {
        let page = Namespace { blocks: 524_288, guid: [3; 16] }.page();
        assert_eq!(Namespace::read(&page), Some((524_288, 512)));
        let mut odd = page;
        odd[130] = 3;
        assert_eq!(Namespace::read(&odd), None);
    }

    #[test]
    fn active_namespaces_come_after_the_one_named() {
        assert_eq!(read_active(&active(0, 3)), [1, 2, 3]);
        assert_eq!(read_active(&active(2, 3)), [3]);
        assert_eq!(read_active(&active(u32::MAX, 3)), []);
        assert_eq!(read_active(&active(0, 5000)).len(), 1024);
    }
}
