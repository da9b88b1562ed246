//! The queue pairs of a domain, by number.

use std_alloc::boxed::Box;

use crate::model::limits::QPS;
use crate::prefetch::fetch_line;
use crate::state::place::Place;
use crate::state::qp::QpContext;

/// The queue pairs of a domain. The low bits of a number are the index in the table.
pub(crate) struct QpTable {
    places: Box<[Option<Place<QpContext>>; QPS]>,
}

impl QpTable {
    pub(crate) fn new() -> QpTable {
        // Not by way of the stack, which may be short.
        let places: Box<[_]> = (0..QPS).map(|_| None).collect();
        QpTable { places: places.try_into().unwrap_or_else(|_| QpTable::empty()) }
    }

    #[cold]
    #[inline(never)]
    fn empty() -> Box<[Option<Place<QpContext>>; QPS]> {
        Box::new([const { None }; QPS])
    }

    /// The queue pair with that number, if it is alive. No step looks up the queue pair that it was
    /// given.
    #[inline(always)]
    pub(crate) fn get(&self, num: u32) -> Option<&QpContext> {
        let qp = self.places[num as usize % QPS].as_deref()?;
        if qp.num == num { Some(qp) } else { None }
    }

    /// As [`QpTable::get`].
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, num: u32) -> Option<&mut QpContext> {
        let qp = self.places[num as usize % QPS].as_deref_mut()?;
        if qp.num == num { Some(qp) } else { None }
    }

    /// Prefetches the place of the queue pair with that number.
    #[inline(always)]
    pub(crate) fn fetch_ahead(&self, num: u32) {
        fetch_line(core::ptr::from_ref(&self.places[num as usize % QPS]).cast());
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
        self.places.iter_mut().flatten().map(|place| &mut **place)
    }

    /// Takes a queue pair in.
    pub(crate) fn insert(&mut self, qp: Place<QpContext>) {
        let place = &mut self.places[qp.num as usize % QPS];
        debug_assert!(place.is_none());
        *place = Some(qp);
    }

    /// Takes the queue pair with that number out.
    pub(crate) fn remove(&mut self, num: u32) -> Option<Place<QpContext>> {
        self.get(num)?;
        self.places.get_mut(num as usize % QPS)?.take()
    }

    /// The number of some queue pair, if there is one.
    pub(crate) fn any(&mut self) -> Option<u32> {
        self.iter_mut().next().map(|qp| qp.num)
    }
}
