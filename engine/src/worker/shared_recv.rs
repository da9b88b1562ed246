//! Receive memory that workers share: one region cut into blocks, all of them posted to one shared
//! receive queue.
#![expect(unsafe_code, reason = "posts buffers it owns")]

use core::num::NonZero;
use core::ptr::NonNull;

use doorbell_alloc::Mapping;
use std_alloc::format;
use std_alloc::string::String;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::config::Config;
use super::promises::Promises;
use super::wr_id;
use crate::error::{Code, SetupError};
use crate::provider::{Access, Provider, Region, Srq};
use crate::wr::{RecvWr, Sge};

/// A shared receive queue with its memory. Clones are handles to the same queue. The memory goes
/// with the last handle and the last worker on it.
///
/// Several workers may share it. A worker that is dropped, also because its handler panics, posts
/// all receives again that it has, so the others can use them.
pub struct SharedRecv<P: Provider> {
    inner: Arc<Inner<P>>,
    blocks: Blocks,
}

struct Inner<P: Provider> {
    // Before the region: dropped first, so that no posted buffer outlives its memory.
    srq: P::Srq,
    // The memory of the blocks, as long as anybody has a handle.
    _region: P::Region,
    promises: Promises,
    overcommit: u32,
}

/// Where the blocks are: a copy in each handle, for the data path.
#[derive(Clone, Copy)]
struct Blocks {
    start: NonNull<u8>,
    stride: NonZero<usize>,
    count: u32,
    bytes: u32,
    lkey: u32,
}

// SAFETY: an address and numbers. The workers decide who may touch a block, and the memory belongs
// to the region, which any thread may hold.
unsafe impl Send for Blocks {}
// SAFETY: as above.
unsafe impl Sync for Blocks {}

impl<P: Provider> Clone for SharedRecv<P> {
    fn clone(&self) -> Self {
        SharedRecv { inner: self.inner.clone(), blocks: self.blocks }
    }
}

impl<P: Provider> SharedRecv<P> {
    /// Registers `memory`, at least [`Config::recv_bytes`] long, and posts all of its blocks. It is
    /// memory of your choice: huge pages, a static buffer ([`Mapping::from_static`]), or a copy of
    /// a file. Messages arrive there, and handlers borrow them there.
    ///
    /// # Errors
    /// `Invalid`: the configuration; memory that is too short, or that another process may write
    /// ([`MapReport::shared`](doorbell_alloc::MapReport::shared)), also while a handler borrows it.
    /// Otherwise the device's refusal.
    pub fn new(nic: &P, memory: Mapping, config: &Config) -> Result<Self, SetupError> {
        config.check()?;
        check_memory("receive", &memory, config.recv_bytes())?;
        let region = nic.register(memory, Access::LOCAL_WRITE)?;
        let srq = nic.create_srq(config.recv_blocks)?;
        let blocks = config.recv_blocks;
        let places = Blocks {
            start: NonNull::new(region.as_ptr()).unwrap_or(NonNull::dangling()),
            stride: NonZero::new(config.stride()).unwrap_or(NonZero::<usize>::MIN),
            count: blocks,
            bytes: config.block_bytes,
            lkey: region.lkey(),
        };
        let inner = Inner {
            srq,
            _region: region,
            promises: Promises::new(config),
            overcommit: config.overcommit,
        };
        let shared = SharedRecv::<P> { inner: Arc::new(inner), blocks: places };
        let list: Vec<RecvWr> = (0..blocks).map(|block| shared.request(block)).collect();
        for part in list.chunks(256) {
            // SAFETY: the blocks lie in the region, which outlives the queue. Nobody touches one
            // before its completion was polled.
            unsafe { shared.srq().post(part) }.map_err(|error| {
                let asked = format!("post {blocks} receives to a shared queue");
                SetupError::new(Code::Errno(error.cause.errno()), asked, format!("{error}"))
            })?;
        }
        Ok(shared)
    }

    /// What is promised of them to peers.
    pub(super) fn promises(&self) -> &Promises {
        &self.inner.promises
    }

    /// For an error: how many blocks are neither set aside nor lent.
    pub(super) fn unpromised(&self, spare: u32) -> String {
        let blocks = self.blocks();
        match self.inner.overcommit {
            1 => format!("of {blocks} blocks {spare} are not promised to others"),
            often => format!("of {blocks} blocks, promised {often} times each, {spare} are left"),
        }
    }

    pub(super) fn srq(&self) -> &P::Srq {
        &self.inner.srq
    }

    /// The receive request of a block.
    #[inline(always)]
    pub(super) fn request(&self, block: u32) -> RecvWr {
        RecvWr { wr_id: wr_id::recv(block), sge: self.sge(block, self.blocks.bytes) }
    }

    /// The first `length` bytes of a block.
    #[inline(always)]
    pub(super) fn sge(&self, block: u32, length: u32) -> Sge {
        let addr = self.start(block) as u64;
        Sge { addr, length, lkey: self.blocks.lkey }
    }

    /// First byte of a block.
    #[inline(always)]
    pub(super) fn start(&self, block: u32) -> *mut u8 {
        debug_assert!(block < self.blocks.count);
        // SAFETY: block < blocks, and the region holds blocks * stride.
        unsafe { self.blocks.start.as_ptr().add(block as usize * self.blocks.stride.get()) }
    }

    /// The block that begins at that address.
    pub(super) fn block_at(&self, start: *const u8) -> Option<u32> {
        let offset = (start as usize).checked_sub(self.blocks.start.as_ptr() as usize)?;
        let block = u32::try_from(offset / self.blocks.stride).ok()?;
        (offset % self.blocks.stride == 0 && block < self.blocks.count).then_some(block)
    }

    #[inline(always)]
    pub(super) fn block_bytes(&self) -> u32 {
        self.blocks.bytes
    }

    #[inline(always)]
    pub(super) fn blocks(&self) -> u32 {
        self.blocks.count
    }
}

/// The memory must hold what the configuration requires, and nobody else may write to it, because
/// its bytes are lent as slices.
pub(super) fn check_memory(what: &str, memory: &Mapping, need: usize) -> Result<(), SetupError> {
    let (answer, cure) = if memory.report().shared() {
        let answer = String::from("other processes may write to it");
        (answer, "map it private, without MapRequest::shared or FileUse::Shared")
    } else if memory.len() < need {
        let answer = format!("the configuration needs {need}");
        (answer, "map Config::recv_bytes() and Config::send_bytes()")
    } else {
        return Ok(());
    };
    let asked = format!("{what} memory of {} bytes", memory.len());
    Err(SetupError::new(Code::Invalid, asked, answer).cure(cure))
}
