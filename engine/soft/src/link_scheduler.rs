//! Which links a poll looks at.
//!
//! A domain has a link for each domain it talks to, and most of many are idle. One on which nothing
//! has come for a while, and where no completion is waited for, rests: polls do not serve it, but
//! look at a few of those that rest, in turn, for the peer's words in the bell and of the ring, and
//! for a refusal. So what a poll costs depends on the links that are busy, and what comes over one
//! that rests is seen after as many polls as there are such links, divided by so many at a time.
//! Nobody is told that a link rests: its bell is all there is to be seen, and an announcement of
//! any kind would cost a sender what it is to save the receiver.
//!
//! It is busy again when something has come, when something is posted on it (what rests is
//! [`Link::slow_path`], so that no fast path takes it), and after every command; all are before the
//! domain sleeps.

use core::ptr::NonNull;

use std_alloc::vec::Vec;

use super::cq::Sink;
use super::domain::DomainState;
use super::link::{Link, LinkPlace};
use crate::room::{Grow, Room};

/// Polls in which nothing has come after which a link may rest.
const IDLE_AFTER: u32 = 256;

/// Links that rest and are looked at in one poll that serves the others.
pub(super) const IDLE_CHECKS: usize = 8;

/// The links of a domain by what a poll does with them: numbers of their slots.
pub(super) struct LinkScheduler {
    busy: Vec<u32>,
    idle: Vec<u32>,
    /// The one that is served first next time, and the one that is looked at next.
    first: usize,
    next: usize,
    /// Polls since links were last let rest.
    polls: u32,
    /// The busy one, if there is only one.
    only: Option<NonNull<Link>>,
}

impl LinkScheduler {
    pub(super) fn new(links: usize) -> LinkScheduler {
        LinkScheduler {
            busy: Vec::with_capacity(links),
            idle: Vec::with_capacity(links),
            first: 0,
            next: 0,
            polls: 0,
            only: None,
        }
    }

    /// Makes room for that many links. False: there is no memory for them.
    #[must_use]
    pub(super) fn make_room(&mut self, links: usize) -> bool {
        self.busy.make_room(links) && self.idle.make_room(links)
    }

    /// The busy link, if there is only one: it stays where it is until the next command.
    #[inline(always)]
    pub(super) fn only(&self) -> Option<NonNull<Link>> {
        self.only
    }

    /// True if there is a link that is not served.
    #[inline(always)]
    pub(super) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Nothing is expected on the one before when this becomes another: so begin commands, and
    /// polls that serve all.
    fn set_only(&mut self, links: &[Option<LinkPlace>]) {
        let index = if let [index] = *self.busy { Some(index) } else { None };
        let place = index.and_then(|index| links.get(index as usize)?.as_ref());
        self.only = place.map(LinkPlace::pointer);
    }
}

impl DomainState {
    /// Every link is busy: something may have changed about any of them.
    pub(super) fn activate_all(&mut self) {
        self.scheduler.busy.clear();
        self.scheduler.idle.clear();
        for link in self.links.iter_mut().flatten() {
            link.set_idle(false);
            self.scheduler.busy.put(link.index as u32);
        }
        self.scheduler.set_only(&self.links);
    }

    /// Something is about to happen on the link in that slot: it rests no more, if it did.
    #[inline(always)]
    pub(super) fn activate(&mut self, index: usize) {
        if let Some(Some(link)) = self.links.get(index)
            && link.is_idle()
        {
            self.end_idle(index);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_idle(&mut self, index: usize) {
        let Some(Some(link)) = self.links.get_mut(index) else { return };
        link.set_idle(false);
        let scheduler = &mut self.scheduler;
        // Usually it is the one just looked at.
        let is_it = |idle: &u32| *idle as usize == index;
        let looked = Some(scheduler.next).filter(|at| scheduler.idle.get(*at).is_some_and(is_it));
        if let Some(at) = looked.or_else(|| scheduler.idle.iter().position(is_it)) {
            scheduler.idle.swap_remove(at);
        }
        scheduler.busy.put(index as u32);
        scheduler.set_only(&self.links);
    }

    /// Serves the busy links in turn, so that one cannot starve the others, and looks at some of
    /// the rest.
    #[inline(never)]
    pub(super) fn serve_all<S: Sink>(&mut self, sink: &mut S) {
        let busy = self.scheduler.busy.len();
        // There may be fewer than last time.
        let first = if self.scheduler.first < busy { self.scheduler.first } else { 0 };
        for step in 0..busy {
            let at = if first + step < busy { first + step } else { first + step - busy };
            let Some(index) = self.scheduler.busy.get(at).copied() else { break };
            self.serve(index as usize, sink);
        }
        self.scheduler.first = if first + 1 < busy { first + 1 } else { 0 };
        if busy == 0 {
            self.give_back();
        }
        for _ in 0..IDLE_CHECKS.min(self.scheduler.idle.len()) {
            if let Some(index) = self.check_idle() {
                self.serve(index, sink);
            }
        }
        self.scheduler.polls += 1;
        if self.scheduler.polls >= IDLE_AFTER {
            self.idle_quiet_links();
        }
    }

    /// Looks at the next link that rests. If something has come there it is busy: its slot.
    #[inline(never)]
    pub(super) fn check_idle(&mut self) -> Option<usize> {
        let scheduler = &mut self.scheduler;
        scheduler.next =
            if scheduler.next + 1 < scheduler.idle.len() { scheduler.next + 1 } else { 0 };
        let index = scheduler.idle.get(scheduler.next).copied()? as usize;
        let link = self.links.get(index)?.as_ref()?;
        if !link.has_news() {
            return None;
        }
        self.end_idle(index);
        Some(index)
    }

    /// Lets those rest on which nothing is going on, all but one: one costs next to nothing.
    #[cold]
    #[inline(never)]
    fn idle_quiet_links(&mut self) {
        self.scheduler.polls = 0;
        let scheduler = &mut self.scheduler;
        let mut at = scheduler.busy.len();
        while at > 0 && scheduler.busy.len() > 1 {
            at -= 1;
            let Some(index) = scheduler.busy.get(at).copied() else { break };
            let Some(Some(link)) = self.links.get_mut(index as usize) else { continue };
            if link.empty_polls >= IDLE_AFTER && link.may_idle() {
                link.set_idle(true);
                scheduler.busy.swap_remove(at);
                scheduler.idle.put(index);
            }
        }
        scheduler.set_only(&self.links);
    }
}
