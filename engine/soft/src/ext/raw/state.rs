//! The state of a RAW_PACKET queue pair.

use std_alloc::boxed::Box;
use std_alloc::sync::Arc;

use super::frame::{FCS, FRAME_MAX, FRAME_MIN};
use super::switch::Switch;
use super::work_queue::Spread;
use crate::device::host::Member;
use crate::device::path::Groups;
use crate::provider::CreateFlags;

/// What a RAW_PACKET queue pair has besides its inbox.
pub(crate) struct Raw {
    pub(crate) flags: CreateFlags,
    pub(crate) max_tso_header: u16,
    /// The identity of this queue pair, as other devices know it.
    pub(crate) member: Option<Member>,
    /// Its flow rules.
    pub(crate) groups: Arc<Groups>,
    pub(super) switch: Switch,
    /// The work queues that its frames go to; `None` if it has a receive queue of its own.
    pub(crate) spread: Option<Spread>,
    /// A private copy of the frame being sent or inspected. Other processes can write to an inbox,
    /// but not here.
    pub(crate) frame: Box<[u8; FRAME_MAX + FCS]>,
}

impl Raw {
    pub(crate) fn new(
        switch: Switch,
        member: Option<Member>,
        groups: &Arc<Groups>,
        (flags, max_tso_header): (CreateFlags, u16),
        spread: Option<Spread>,
    ) -> Raw {
        Raw {
            flags,
            max_tso_header,
            member,
            groups: groups.clone(),
            switch,
            spread,
            frame: Box::new([0; FRAME_MAX + FCS]),
        }
    }

    /// The first `length` bytes of the current frame, padded to the minimum frame length.
    pub(super) fn padded(&mut self, length: usize) -> &[u8] {
        if let Some(padding) = self.frame.get_mut(length..FRAME_MIN) {
            padding.fill(0);
        }
        self.frame.get(..length.max(FRAME_MIN)).unwrap_or_default()
    }
}
