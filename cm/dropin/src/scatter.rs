//! Receives of several pieces. The device fills one piece; such a receive gets memory of its own,
//! and its completion spreads the bytes over the pieces.
#![expect(unsafe_code, reason = "writes where the program said")]

use std::alloc::{Layout, alloc_zeroed};
use std::collections::HashMap;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use doorbell_alloc::{Mapping, Pages};
use doorbell_seam::provider::{Access, Provider, Region};
use doorbell_seam::wr::{RecvWr, Sge};
use doorbell_soft::{SoftDevice, SoftRegion};

use crate::border::{Errno, INVALID, lock};

/// Pieces that a receive may have.
pub(crate) const PIECES_MAX: u32 = 8;

/// Numbers of such receives begin here: programs count from 0, or give addresses.
const FIRST: u64 = 0xd00b_e11d_0000_0000;

/// False: that is not the number of a receive of several pieces.
#[inline(always)]
pub(crate) fn may_be_one(wr_id: u64) -> bool {
    wr_id >= FIRST
}

/// The queue that a receive was posted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Qp(u32),
    Srq(u64),
}

/// A receive that has not completed.
struct Waiting {
    owner: Owner,
    wr_id: u64,
    pieces: Vec<Sge>,
    /// Deregistered before its memory is freed, because it owns it.
    region: SoftRegion,
}

/// The receives of a process that have several pieces, by the number that the device knows.
#[derive(Default)]
pub(crate) struct Scatter {
    waiting: Mutex<(u64, HashMap<u64, Waiting>)>,
    count: AtomicUsize,
    /// Receives that ended without a completion. The device says so while it is locked, and their
    /// regions cannot go then.
    lost: Arc<Mutex<Vec<u64>>>,
}

/// Memory for a receive of that length, which is not zero.
fn room(length: usize) -> Result<Mapping, Errno> {
    let layout = Layout::array::<u8>(length).map_err(|_| INVALID)?;
    // SAFETY: the length is not zero.
    let at = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(Errno(libc::ENOMEM))?;
    // SAFETY: new memory of that length, which `free` frees.
    Ok(unsafe { Mapping::from_raw_parts(at, length, Pages::Plain, ptr::null_mut(), free) })
}

/// Frees the memory of a receive.
///
/// # Safety
/// It is from [`room`], with that length.
unsafe fn free(_owner: *mut (), at: NonNull<u8>, length: usize) {
    // SAFETY: as the caller says.
    drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(at.as_ptr(), length)) });
}

impl Scatter {
    /// The receive to post in place of one with those pieces.
    pub(crate) fn begin(
        &self,
        device: &SoftDevice,
        owner: Owner,
        wr_id: u64,
        pieces: &[Sge],
    ) -> Result<RecvWr, Errno> {
        let length = pieces.iter().map(|piece| u64::from(piece.length)).sum::<u64>();
        let length = u32::try_from(length).map_err(|_| INVALID)?;
        let region = device.register(room(length.max(1) as usize)?, Access::LOCAL_WRITE)?;
        let addr = region.as_ptr() as u64;
        let sge = Sge { addr, length, lkey: region.lkey() };
        let mut waiting = lock(&self.waiting);
        let (made, list) = &mut *waiting;
        let number = FIRST.wrapping_add(*made);
        *made = made.wrapping_add(1);
        list.insert(number, Waiting { owner, wr_id, pieces: pieces.to_vec(), region });
        self.count.store(list.len(), Ordering::Release);
        Ok(RecvWr { wr_id: number, sge })
    }

    /// Forgets a receive that the device has not taken.
    pub(crate) fn cancel(&self, number: u64) {
        let mut waiting = lock(&self.waiting);
        waiting.1.remove(&number);
        self.count.store(waiting.1.len(), Ordering::Release);
    }

    /// Listens to the device for receives that end without a completion.
    pub(crate) fn listen(&self, device: &SoftDevice) {
        let lost = self.lost.clone();
        device.tell_lost_receives(move |number| {
            if number >= FIRST {
                lock(&lost).push(number);
            }
        });
    }

    /// Forgets the receives of a queue that goes, or begins anew, and those that ended without a
    /// completion: a queue pair had taken them from a shared queue.
    pub(crate) fn forget(&self, owner: Owner) {
        let lost = std::mem::take(&mut *lock(&self.lost));
        let mut waiting = lock(&self.waiting);
        lost.iter().for_each(|number| drop(waiting.1.remove(number)));
        waiting.1.retain(|_, receive| receive.owner != owner);
        self.count.store(waiting.1.len(), Ordering::Release);
    }

    /// The receives of a shared queue.
    #[cfg(test)]
    pub(crate) fn count_of(&self, srq: u64) -> usize {
        let waiting = lock(&self.waiting);
        waiting.1.values().filter(|receive| receive.owner == Owner::Srq(srq)).count()
    }

    /// True if there are such receives.
    #[inline(always)]
    pub(crate) fn has_some(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// The number by which the program knows the request of a completion. If that is such a
    /// receive, its bytes are spread; `filled` says how many there are, or `None` after an error.
    #[inline]
    pub(crate) fn end(&self, wr_id: u64, filled: Option<u32>) -> u64 {
        let is_one = may_be_one(wr_id) && self.has_some();
        if is_one { self.spread(wr_id, filled) } else { wr_id }
    }

    #[cold]
    #[inline(never)]
    fn spread(&self, number: u64, filled: Option<u32>) -> u64 {
        let mut waiting = lock(&self.waiting);
        let Some(receive) = waiting.1.remove(&number) else { return number };
        self.count.store(waiting.1.len(), Ordering::Release);
        drop(waiting);
        let mut from = receive.region.as_ptr().cast_const();
        let mut left = filled.unwrap_or(0) as usize;
        for piece in &receive.pieces {
            let length = left.min(piece.length as usize);
            // SAFETY: the region has the bytes of all pieces together, of which the device has
            // filled `left`; the program keeps the pieces until this completion.
            unsafe { ptr::copy(from, piece.addr as *mut u8, length) };
            (from, left) = (from.wrapping_add(length), left - length);
        }
        receive.wr_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: &mut [u8]) -> Sge {
        Sge { addr: bytes.as_mut_ptr() as u64, length: bytes.len() as u32, lkey: 0 }
    }

    #[test]
    fn bytes_are_spread_in_order_and_no_further_than_they_go() {
        let device = SoftDevice::open().unwrap();
        let scatter = Scatter::default();
        let (mut one, mut two) = ([0_u8; 3], [0_u8; 4]);
        let pieces = [piece(&mut one), piece(&mut two)];
        let posted = scatter.begin(&device, Owner::Qp(1), 7, &pieces).unwrap();
        assert_eq!(posted.sge.length, 7);
        // SAFETY: the memory of the receive.
        unsafe { ptr::copy(b"abcdefg".as_ptr(), posted.sge.addr as *mut u8, 7) };
        let number = scatter.end(posted.wr_id, Some(5));
        assert_eq!((number, &one, &two), (7, b"abc", b"de\0\0"));
        assert_eq!(scatter.end(posted.wr_id, Some(5)), posted.wr_id, "it has ended");
    }

    #[test]
    fn a_failed_receive_changes_nothing_but_has_its_number() {
        let device = SoftDevice::open().unwrap();
        let scatter = Scatter::default();
        let mut bytes = [1_u8; 2];
        let pieces = [piece(&mut bytes)];
        let posted = scatter.begin(&device, Owner::Srq(1), 9, &pieces).unwrap();
        assert_eq!((scatter.end(posted.wr_id, None), bytes), (9, [1, 1]));
        let gone = scatter.begin(&device, Owner::Srq(1), 9, &pieces).unwrap();
        scatter.forget(Owner::Srq(1));
        assert_eq!(scatter.end(gone.wr_id, None), gone.wr_id);
    }

    #[test]
    fn a_receive_that_no_message_fills_is_refused() {
        let device = SoftDevice::open().unwrap();
        let scatter = Scatter::default();
        let piece = Sge { addr: 0, length: u32::MAX, lkey: 0 };
        for count in [2, PIECES_MAX as usize, 1 << 20] {
            let posted = scatter.begin(&device, Owner::Qp(1), 7, &vec![piece; count]);
            assert_eq!(posted.map(|_| ()), Err(INVALID), "{count}");
        }
    }
}
