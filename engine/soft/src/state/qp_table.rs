//! The queue pairs of a domain, by number.
#![expect(unsafe_code, reason = "owns the queue pairs, which their handles point to as well")]

use core::ptr::NonNull;

use std_alloc::boxed::Box;

use crate::model::limits::QPS;
use crate::state::qp::QpContext;

/// A queue pair on its way into or out of a domain: a leaked box, which the domain frees.
pub(crate) struct Owned(pub(crate) NonNull<QpContext>);

// SAFETY: nobody uses a queue pair that is in no table; one in a table is used only by the thread
// inside its domain.
unsafe impl Send for Owned {}

/// The queue pairs of a domain. The low bits of a number are the index in the table.
pub(crate) struct QpTable {
    places: Box<[Option<NonNull<QpContext>>; QPS]>,
}

impl QpTable {
    pub(crate) fn new() -> QpTable {
        QpTable { places: Box::new([None; QPS]) }
    }

    /// The queue pair with that number, if it is alive.
    #[inline(always)]
    pub(crate) fn get(&self, num: u32) -> Option<&QpContext> {
        let place = self.places[num as usize % QPS]?;
        // SAFETY: the table owns its queue pairs. Their handles use them only inside the domain,
        // where one thread does one thing at a time, and no step looks up the queue pair that it
        // was given.
        let qp = unsafe { place.as_ref() };
        if qp.num == num { Some(qp) } else { None }
    }

    /// As [`QpTable::get`].
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, num: u32) -> Option<&mut QpContext> {
        let mut place = self.places[num as usize % QPS]?;
        // SAFETY: as in `get`; `&mut self` is the only way to it.
        let qp = unsafe { place.as_mut() };
        if qp.num == num { Some(qp) } else { None }
    }

    /// The completion queue for receives of the queue pair with that number, if it is open on that
    /// link: then whole messages may be taken for it without further checks.
    #[inline(always)]
    pub(crate) fn open_on(&self, num: u32, link: usize) -> Option<usize> {
        let qp = self.get(num)?;
        if qp.open_on == link { Some(qp.recv_cq) } else { None }
    }

    /// All of them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut QpContext> {
        // SAFETY: as in `get_mut`; each is in one place.
        self.places.iter_mut().flatten().map(|place| unsafe { place.as_mut() })
    }

    /// Takes a queue pair in.
    pub(crate) fn insert(&mut self, Owned(pointer): Owned) {
        // SAFETY: nobody uses a queue pair that is in no table.
        let num = unsafe { pointer.as_ref() }.num;
        let place = &mut self.places[num as usize % QPS];
        debug_assert!(place.is_none());
        *place = Some(pointer);
    }

    /// Takes the queue pair with that number out.
    pub(crate) fn remove(&mut self, num: u32) -> Option<Owned> {
        self.get(num)?;
        self.places.get_mut(num as usize % QPS)?.take().map(Owned)
    }

    /// The number of some queue pair, if there is one.
    pub(crate) fn any(&mut self) -> Option<u32> {
        self.iter_mut().next().map(|qp| qp.num)
    }
}

impl Owned {
    /// The queue pair.
    pub(crate) fn get_mut(&mut self) -> &mut QpContext {
        // SAFETY: nobody else uses a queue pair that is in no table.
        unsafe { self.0.as_mut() }
    }

    /// The box.
    pub(crate) fn into_box(self) -> Box<QpContext> {
        // SAFETY: `Owned` holds a leaked box that is in no table.
        unsafe { Box::from_raw(self.0.as_ptr()) }
    }
}
