//! Which links a poll serves.
//!
//! A poll serves the busy links ([`crate::state::policy::idle`]). It looks at the resting ones, and
//! at some of the idle ones, for a new tail in the mailbox slot or the ring. It checks one resting
//! link and a few idle ones also for refusals and responses. The sender is not told that a link
//! rests: any announcement would cost it what the receiver saves.
//!
//! A link becomes busy again when something has come, when something is posted on it (an idle link
//! is on the slow path, so that no fast path takes it), after every command, and before the domain
//! sleeps.
#![expect(unsafe_code, reason = "uses an object of the domain by its pointer")]

use arrayvec::ArrayVec;
use core::ptr::NonNull;
use std_alloc::boxed::Box;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use crate::room::{Grow, Room};
use crate::state::link::Link;
use crate::state::link_shared::LinkShared;
use crate::state::place::{Place, Pointer};
use crate::state::policy::idle::{IDLE_AFTER, IDLE_CHECKS, IDLE_GLANCES, IdlePolicy, RESTING_MAX};
use crate::state::qp::QpContext;
use crate::sync::{AtomicU64, Ordering};

/// The links of a domain, and which of them a poll serves.
pub(crate) struct Links {
    /// By index; free places are reused.
    pub(crate) table: Vec<Option<Place<Link>>>,
    pub(crate) scheduler: LinkScheduler,
    /// The domain also has inboxes. A short poll checks them when it checks idle links.
    has_inboxes: bool,
    /// There are idle links, or inboxes.
    has_background: bool,
}

/// The indexes of a domain's links in the table, by how a poll treats them.
pub(crate) struct LinkScheduler {
    busy: Vec<u32>,
    pub(crate) resting: ArrayVec<Quiet, RESTING_MAX>,
    idle: Vec<Quiet>,
    /// Where the next round begins, and the idle link that is checked next.
    first: usize,
    next: usize,
    /// The resting link and the idle link that are looked at next.
    looked: usize,
    glanced: usize,
    policy: IdlePolicy,
    /// The busy one, if there is only one.
    only: Option<Pointer<Link>>,
}

/// A link that rests or is idle, since that many looks.
#[derive(Clone, Copy)]
pub(crate) struct Quiet {
    watch: Watch,
    pub(crate) index: u32,
    since: u32,
}

/// Where the sender of a quiet link publishes, and what it had published before. The scheduler
/// keeps these of all quiet links side by side, so a look at many reads the shared words and little
/// else.
#[derive(Clone, Copy)]
struct Watch {
    words: [NonNull<AtomicU64>; 2],
    seen: [u64; 2],
}

// SAFETY: it belongs to the domain, as the link does.
unsafe impl Send for Watch {}

impl Watch {
    fn of(link: &Link) -> Watch {
        let watched = link.rx.watched();
        Watch {
            words: watched.map(|(word, _)| NonNull::from(word)),
            seen: watched.map(|(_, seen)| seen),
        }
    }

    /// True if the sender has published something. The poll serves a link for which this is true,
    /// and reads the words again with the right order. So these loads may be relaxed.
    #[inline(always)]
    fn has_changed(&self) -> bool {
        // SAFETY: the words are in the memory of a link in the table. Only commands take links out,
        // and `Domain::attend` makes all links busy after commands, so no poll finds a link resting
        // that has gone.
        let words = self.words.map(|word| unsafe { word.as_ref() }.load(Ordering::Relaxed));
        words != self.seen
    }
}

impl LinkScheduler {
    pub(crate) fn new(links: usize) -> LinkScheduler {
        LinkScheduler {
            busy: Vec::with_capacity(links),
            resting: ArrayVec::new(),
            idle: Vec::with_capacity(links),
            first: 0,
            next: 0,
            looked: 0,
            glanced: 0,
            policy: IdlePolicy::new(),
            only: None,
        }
    }

    /// Makes room for that many links. False: there is no memory for them.
    #[must_use]
    pub(crate) fn make_room(&mut self, links: usize) -> bool {
        self.busy.make_room(links) && self.idle.make_room(links)
    }

    /// Commands and full polls drop the prediction before this changes, so no message is predicted
    /// on the previous link.
    fn set_only(&mut self, links: &[Option<Place<Link>>]) {
        let index = if let [index] = *self.busy { Some(index) } else { None };
        let place = index.and_then(|index| links.get(index as usize)?.as_ref());
        self.only = place.map(Place::pointer);
    }
}

impl Links {
    pub(crate) fn new(links: usize) -> Links {
        Links {
            table: Vec::with_capacity(links),
            scheduler: LinkScheduler::new(links),
            has_inboxes: false,
            has_background: false,
        }
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Link> {
        match self.table.get_mut(index) {
            Some(Some(link)) => Some(link),
            _ => None,
        }
    }

    /// The index of the link with that shared part.
    pub(crate) fn index_of(&self, shared: &Arc<LinkShared>) -> Option<usize> {
        let is_it = |link: &Place<Link>| Arc::ptr_eq(&link.shared, shared);
        self.table.iter().position(|link| link.as_ref().is_some_and(is_it))
    }

    /// Adds a link. Without memory the link is dropped, and no queue pair connects over it.
    pub(crate) fn add(&mut self, mut link: Box<Link>) {
        self.drop_unused();
        let free = self.table.iter().position(Option::is_none);
        link.index = free.unwrap_or(self.table.len());
        if self.scheduler.make_room(link.index + 1) {
            let _ = self.table.place(link.index, Some(link.into()));
        }
    }

    /// Frees links that nobody uses on either side. Which link is the only busy one is known again
    /// after the next full poll. Only commands may call this: see [`Watch`].
    pub(crate) fn drop_unused(&mut self) {
        self.scheduler.only = None;
        for place in &mut self.table {
            if place.as_ref().is_some_and(|link| link.users == 0 && link.shared.is_unused()) {
                *place = None;
            }
        }
    }

    /// Tells every peer how far this domain has read. Called before a silence that may be long.
    pub(crate) fn ack_all(&mut self) {
        for link in self.table.iter_mut().flatten() {
            link.ack_now();
        }
    }

    /// Ring position up to which the requests of a queue pair are known to have succeeded.
    pub(crate) fn acked_position(&mut self, qp: &QpContext) -> u64 {
        self.get_mut(qp.link).map_or(0, Link::acked)
    }

    /// The busy link, if there is only one.
    #[inline(always)]
    pub(crate) fn only(&mut self) -> Option<&mut Link> {
        // SAFETY: the table owns the link, and is borrowed. `drop_unused`, which alone takes links
        // out of the table, forgets this one first.
        self.scheduler.only.map(|link| unsafe { link.get(&mut self.table) })
    }

    /// Makes every link busy: a command may have changed any of them.
    pub(crate) fn activate_all(&mut self) {
        self.scheduler.busy.clear();
        self.scheduler.resting.clear();
        self.scheduler.idle.clear();
        for link in self.table.iter_mut().flatten() {
            link.set_idle(false);
            self.scheduler.busy.put(link.index as u32);
        }
        self.update();
    }

    /// Makes that link busy if it is resting or idle: something is about to be posted on it.
    #[inline(always)]
    pub(crate) fn activate(&mut self, index: usize) {
        if let Some(Some(link)) = self.table.get(index)
            && link.is_idle()
        {
            self.end_idle(index);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_idle(&mut self, index: usize) {
        let scheduler = &mut self.scheduler;
        let rests = scheduler.resting.iter().position(|link| link.index as usize == index);
        if let Some(at) = rests {
            scheduler.resting.swap_pop(at);
        } else {
            // Usually it is the one checked last, or the one looked at last.
            let is_it = |idle: &Quiet| idle.index as usize == index;
            let mut last = [scheduler.next, scheduler.glanced].into_iter();
            let last = last.find(|at| scheduler.idle.get(*at).is_some_and(is_it));
            if let Some(at) = last.or_else(|| scheduler.idle.iter().position(is_it)) {
                scheduler.idle.swap_remove(at);
            }
        }
        self.set_busy(index);
    }

    /// Makes a link busy. It is in no list before.
    fn set_busy(&mut self, index: usize) {
        if let Some(Some(link)) = self.table.get_mut(index) {
            link.set_idle(false);
            self.scheduler.busy.put(index as u32);
        }
        self.update();
    }

    /// True if a short poll must sometimes check more than the one busy link.
    #[inline(always)]
    pub(crate) fn has_background(&self) -> bool {
        self.has_background
    }

    /// Notes whether the domain has inboxes; after every command.
    pub(crate) fn set_inboxes(&mut self, has_inboxes: bool) {
        self.has_inboxes = has_inboxes;
        self.update();
    }

    /// Recomputes the state that depends on which links are busy and which are idle.
    fn update(&mut self) {
        self.scheduler.set_only(&self.table);
        let others = !self.scheduler.idle.is_empty() || !self.scheduler.resting.is_empty();
        self.has_background = self.has_inboxes || others;
    }

    /// Begins a poll of the busy links and returns their number.
    pub(crate) fn begin_round(&mut self) -> usize {
        let busy = self.scheduler.busy.len();
        // There may be fewer links than last time.
        if self.scheduler.first >= busy {
            self.scheduler.first = 0;
        }
        busy
    }

    /// The link to serve in this step of a round over `busy` links.
    pub(crate) fn busy_at(&self, step: usize, busy: usize) -> Option<usize> {
        let at = self.scheduler.first + step;
        let at = if at < busy { at } else { at - busy };
        self.scheduler.busy.get(at).map(|index| *index as usize)
    }

    /// The number of idle links to check in this round.
    pub(crate) fn idle_checks(&self) -> usize {
        IDLE_CHECKS.min(self.scheduler.idle.len())
    }

    /// Ends a round that served that many of the `busy` links. The next one begins with the first
    /// that was not served, or with another than this one did.
    pub(crate) fn end_round(&mut self, busy: usize, served: usize) {
        let scheduler = &mut self.scheduler;
        let first = scheduler.first + if served < busy { served } else { 1 };
        scheduler.first = if first < busy { first } else { first.saturating_sub(busy) };
        if scheduler.policy.is_due() {
            self.rest_quiet_links();
        }
    }

    /// The number of resting links.
    #[inline(always)]
    pub(crate) fn resting(&self) -> usize {
        self.scheduler.resting.len()
    }

    /// Looks at up to `looks` resting links, beginning behind the last one that was looked at. If
    /// something has come on one, makes it busy and returns its index and the looks that are left.
    #[inline(never)]
    pub(crate) fn check_resting(&mut self, looks: usize) -> Option<(usize, usize)> {
        let scheduler = &mut self.scheduler;
        let first = scheduler.looked.min(scheduler.resting.len());
        let (before, behind) = scheduler.resting.split_at(first);
        let changed = |rests: &Quiet| rests.watch.has_changed();
        let (at, looked) = match behind.iter().take(looks).position(changed) {
            Some(n) => (first + n, n),
            None => {
                let rest = looks.saturating_sub(behind.len());
                let at = before.iter().take(rest).position(changed)?;
                (at, behind.len() + at)
            }
        };
        scheduler.looked = at;
        let Quiet { index, .. } = scheduler.resting.swap_pop(at)?;
        let index = index as usize;
        self.set_busy(index);
        Some((index, looks.saturating_sub(looked + 1)))
    }

    /// Checks one resting link, each time another, for everything that can come. If something has,
    /// makes it busy and returns its index. If the link has rested for long, it becomes idle.
    #[inline(never)]
    pub(crate) fn check_one_resting(&mut self) -> Option<usize> {
        let scheduler = &mut self.scheduler;
        let looks = scheduler.policy.note_look();
        let at = looks as usize % scheduler.resting.len().max(1);
        let Quiet { index, since, .. } = scheduler.resting.get(at).copied()?;
        let link = self.table.get(index as usize)?.as_ref()?;
        if link.has_news() {
            self.end_idle(index as usize);
            return Some(index as usize);
        }
        if looks.wrapping_sub(since) >= IDLE_AFTER
            && let Some(quiet) = scheduler.resting.swap_pop(at)
        {
            scheduler.idle.put(quiet);
        }
        None
    }

    /// Looks whether something has come on a few idle links, each time on others. If so, makes that
    /// link busy and returns its index. It leaves a link alone that has just become idle: its peer
    /// may be about to write, see [`Links::rest_quiet_links`].
    #[inline(never)]
    pub(crate) fn glance_at_idle(&mut self) -> Option<usize> {
        let scheduler = &mut self.scheduler;
        let now = scheduler.policy.looks();
        for _ in 0..IDLE_GLANCES.min(scheduler.idle.len()) {
            let next = scheduler.glanced + 1;
            scheduler.glanced = if next < scheduler.idle.len() { next } else { 0 };
            let Quiet { watch, index, since } = scheduler.idle.get(scheduler.glanced).copied()?;
            if now.wrapping_sub(since) >= IDLE_AFTER && watch.has_changed() {
                self.end_idle(index as usize);
                return Some(index as usize);
            }
        }
        None
    }

    /// Checks the next idle link. If something has come, makes it busy and returns its index.
    #[inline(never)]
    pub(crate) fn check_idle(&mut self) -> Option<usize> {
        let scheduler = &mut self.scheduler;
        scheduler.next =
            if scheduler.next + 1 < scheduler.idle.len() { scheduler.next + 1 } else { 0 };
        let index = scheduler.idle.get(scheduler.next)?.index as usize;
        let link = self.table.get(index)?.as_ref()?;
        if !link.has_news() {
            return None;
        }
        self.end_idle(index);
        Some(index)
    }

    /// The busy link in that step of a round, if there is one.
    #[inline(always)]
    pub(crate) fn busy_link(&self, step: usize, busy: usize) -> Option<&Link> {
        let index = if step < busy { self.busy_at(step, busy)? } else { return None };
        self.table.get(index)?.as_deref()
    }

    /// Lets inactive links rest, or makes them idle if too many rest. One stays busy: it costs next
    /// to nothing.
    #[cold]
    #[inline(never)]
    fn rest_quiet_links(&mut self) {
        let scheduler = &mut self.scheduler;
        let mut at = scheduler.busy.len();
        while at > 0 && scheduler.busy.len() > 1 {
            at -= 1;
            let Some(index) = scheduler.busy.get(at).copied() else { break };
            let Some(Some(link)) = self.table.get_mut(index as usize) else { continue };
            if IdlePolicy::is_quiet(link.empty_polls) && link.may_idle() {
                link.set_idle(true);
                scheduler.busy.swap_remove(at);
                let (since, watch) = (scheduler.policy.looks(), Watch::of(link));
                // A reply may still be unacknowledged. A far peer writes its next message sooner if
                // nobody looks at the line meanwhile; a near one is seen sooner by many looks.
                let quiet = Quiet { watch, index, since };
                match (!link.rx.is_near && link.has_unacked()) || scheduler.resting.is_full() {
                    true => scheduler.idle.put(quiet),
                    false => scheduler.resting.put(quiet),
                }
            }
        }
        self.update();
    }
}
