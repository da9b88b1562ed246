//! Messages that came before their peer's handshake.
//!
//! The side that asked for a connection learns the peer's credit from the answer, which its control
//! plane reads. The peer may send as soon as it has answered, so its first messages may come
//! earlier. Until the handshake is here the program could send nothing, so the handler is not told
//! of the peer, and the messages wait.

use std_alloc::vec::Vec;

use crate::room::FixedCapacity;
use crate::wc::Wc;

/// The completions of those messages, in the order in which they came.
pub(super) struct Early {
    wcs: Vec<Wc>,
}

impl Early {
    /// Room for a message in each of `blocks` blocks: there are no more.
    pub(super) fn new(blocks: u32) -> Early {
        Early { wcs: Vec::with_capacity(blocks as usize) }
    }

    /// Lets a message wait. False: there is no place, so a device has reported a block twice.
    pub(super) fn put(&mut self, wc: Wc) -> bool {
        self.wcs.offer(wc).is_ok()
    }

    /// Takes out the oldest message of a queue pair.
    pub(super) fn take_of(&mut self, num: u32) -> Option<Wc> {
        let index = self.wcs.iter().position(|wc| wc.qp_num == num)?;
        let mut behind = self.wcs.pop()?;
        // Each of the later ones moves one place forward.
        for place in self.wcs.get_mut(index..)?.iter_mut().rev() {
            core::mem::swap(place, &mut behind);
        }
        Some(behind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each queue pair gets its messages in order, wherever they are, and no others.
    #[test]
    fn messages_come_out_in_the_order_of_their_queue_pair() {
        let wc = |wr_id, qp_num| Wc { wr_id, qp_num, ..Wc::default() };
        for other in 0..5 {
            let mut early = Early::new(5);
            for n in 0..5 {
                assert!(early.put(wc(n, if n == other { 7 } else { 6 })));
            }
            assert!(!early.put(wc(5, 6)), "there is no place");
            let mut of = |num| -> std::vec::Vec<u64> {
                core::iter::from_fn(|| early.take_of(num)).map(|wc| wc.wr_id).collect()
            };
            let rest: std::vec::Vec<u64> = (0..5).filter(|n| *n != other).collect();
            assert_eq!((of(6), of(7), of(6)), (rest, [other].to_vec(), [].to_vec()));
        }
    }
}
