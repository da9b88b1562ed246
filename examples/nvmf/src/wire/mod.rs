//! What goes over the wire, as plain values: no I/O, no state. A builder writes bytes, a parser
//! reads them, and bytes that make no sense give the NVMe status for them.
//!
//! Sources: NVM Express Base 1.4 and 2.0, NVM Express over Fabrics 1.1, and the RDMA Transport.

pub mod cm;
pub mod command;
pub mod connect;
pub mod discovery;
pub mod identify;
mod le;
pub mod log;
pub mod response;
pub mod sgl;
pub mod status;

/// Bytes of a submission queue entry.
pub const COMMAND_BYTES: usize = 64;
/// Bytes of a logical block.
pub const BLOCK_BYTES: u64 = 512;
/// Bytes of an identify page and of most log pages.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of data that a command capsule may carry behind the command.
pub const IN_CAPSULE_BYTES: usize = 4096;
/// Bytes of the longest command capsule.
pub const CAPSULE_BYTES: usize = COMMAND_BYTES + IN_CAPSULE_BYTES;
/// The exponent of the longest transfer, in pages (MDTS).
pub const TRANSFER_EXPONENT: u8 = 5;
/// Bytes of the longest transfer of one command.
pub const TRANSFER_BYTES: usize = PAGE_BYTES << TRANSFER_EXPONENT;
/// Entries of an admin queue.
pub const ADMIN_DEPTH: u16 = 32;
/// Entries of an I/O queue at most.
pub const IO_DEPTH: u16 = 128;
/// The name of the discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// The version that the target speaks: 1.4.
pub const VERSION: u32 = 0x0001_0400;
