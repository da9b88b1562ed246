//! Which links a poll serves.
//!
//! A poll serves the busy links ([`crate::state::policy::idle`]). It looks at the resting ones, and
//! at some of the idle ones, for a new tail in the mailbox slot or the ring. It checks one resting
//! link also for refusals and responses, and an idle one seldom. The sender is not told that a link
//! rests: any announcement would cost it what the receiver saves.
//!
//! A poll takes a message that has come alone on a quiet link there, or the first of two. If that
//! leaves nothing, the link rests. Anything else makes a quiet link busy. So does a post (a quiet
//! link is on the slow path; only a reply for which space was reserved needs nothing of the poll),
//! every command, and the step before the domain sleeps.
#![expect(unsafe_code, reason = "uses an object of the domain by its pointer")]

use std_alloc::boxed::Box;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use crate::room::{FixedCapacity, TryGrow};
use crate::state::link::Link;
use crate::state::link_shared::LinkShared;
use crate::state::place::{Place, Pointer};
use crate::state::policy::idle::{
    ANSWERS_EVERY, IDLE_AFTER, IDLE_CHECKS, IDLE_GLANCES, IdlePolicy, TAKEN_MAX,
};
use crate::state::qp::QpContext;
use crate::state::quiet::{Quiet, Resting, first};

/// The links of a domain, and which of them a poll serves.
// The fields that each message uses come first, so that they share cache lines.
#[repr(C)]
pub(crate) struct Links {
    /// A quiet link on which something has come.
    found: Option<Found>,
    /// There are resting or idle links, or inboxes.
    has_background: bool,
    /// The domain also has inboxes. A short poll checks them when it checks idle links.
    has_inboxes: bool,
    /// A message was taken on the busy link, and the others were not looked at since.
    pub(crate) look_due: bool,
    /// Messages on quiet links since everything else was checked.
    taken: u32,
    /// By index; free places are reused.
    pub(crate) table: Vec<Option<Place<Link>>>,
    pub(crate) scheduler: LinkScheduler,
}

/// The place of a quiet link among those of its kind.
#[derive(Clone, Copy)]
pub(crate) enum Found {
    Resting(usize),
    Idle(usize),
}

/// The indexes of a domain's links in the table, by how a poll treats them.
// The fields that each message uses come first, so that they share cache lines.
#[repr(C)]
pub(crate) struct LinkScheduler {
    /// The busy one, if there is only one.
    only: Option<Pointer<Link>>,
    busy: Vec<u32>,
    /// Where the next round begins, and the idle link that is checked next.
    first: usize,
    next: usize,
    /// The idle link that was glanced at last.
    glanced: usize,
    /// How often all idle links were checked.
    rounds: u32,
    pub(crate) resting: Resting,
    idle: Vec<Quiet>,
    policy: IdlePolicy,
}

impl LinkScheduler {
    pub(crate) fn new(links: usize) -> LinkScheduler {
        LinkScheduler {
            busy: Vec::with_capacity(links),
            resting: Resting::new(),
            idle: Vec::with_capacity(links),
            first: 0,
            next: 0,
            rounds: 0,
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

    /// The index in the table of the quiet link at that place.
    #[inline(always)]
    fn index_of(&self, found: Found) -> Option<usize> {
        match found {
            Found::Resting(at) => self.resting.index_at(at),
            Found::Idle(at) => self.idle.get(at).map(|quiet| quiet.index),
        }
    }

    /// Lets the idle link at that place rest again. There is room.
    fn rest_again(&mut self, at: usize, quiet: Quiet) {
        if self.idle.get(at).is_some() {
            self.idle.swap_remove(at);
            self.resting.put(quiet);
        }
    }

    /// Looks whether something has come on a few idle links, each time on others. Returns the place
    /// of the first. It leaves a link alone that has just become idle: its peer may be about to
    /// write, see [`Links::rest_quiet_links`].
    #[inline(never)]
    fn glance_at_idle(&mut self) -> Option<usize> {
        let (idle, now) = (self.idle.as_slice(), self.policy.looks());
        let begin = if self.glanced + 1 < idle.len() { self.glanced + 1 } else { 0 };
        let changed = |quiet: &Quiet| quiet.has_rested(now) && quiet.has_changed();
        if let Some((at, _)) = first(idle, begin, IDLE_GLANCES, changed) {
            self.glanced = at;
            return Some(at);
        }
        let last = begin + IDLE_GLANCES.min(idle.len()).saturating_sub(1);
        self.glanced = if last < idle.len() { last } else { last.saturating_sub(idle.len()) };
        None
    }

    /// Checks the next idle link for a message, and now and then for an answer. Returns its place
    /// if something has come.
    #[inline(never)]
    fn check_idle(&mut self, links: &[Option<Place<Link>>]) -> Option<usize> {
        self.next += 1;
        if self.next >= self.idle.len() {
            self.next = 0;
            self.rounds = self.rounds.wrapping_add(1);
        }
        let quiet = self.idle.get(self.next)?;
        let asks = (self.rounds as usize + self.next).is_multiple_of(ANSWERS_EVERY);
        let came = quiet.has_changed() || asks && links.get(quiet.index)?.as_ref()?.has_answers();
        if came { Some(self.next) } else { None }
    }

    /// A post or a short poll can only set this to `None`. Only a full poll or a command sets it to
    /// a link, and both drop the prediction first; so no prediction made for one link is used on
    /// another.
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
            look_due: false,
            found: None,
            taken: 0,
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
    /// after the next full poll. Only commands may call this: see [`crate::state::quiet`].
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

    /// Changes whenever this side takes a record of that link, also one without a completion.
    pub(crate) fn progress_of(&self, index: usize) -> u64 {
        let link = self.table.get(index).and_then(Option::as_ref);
        link.map_or(0, |link| link.rx.at.wrapping_add(link.responses.rx.at))
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

    /// The link that the queue pair has reserved or remembered.
    #[inline(always)]
    pub(crate) fn reserved(&mut self, qp: &QpContext) -> Option<&mut Link> {
        // SAFETY: the table owns the link, and is borrowed. The queue pair is a user of the link,
        // which stays until its last user is gone.
        qp.reserved.link.map(|link| unsafe { link.get(&mut self.table) })
    }

    /// Makes every link busy: a command may have changed any of them.
    pub(crate) fn activate_all(&mut self) {
        self.forget_found();
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
        if let Some(at) = scheduler.resting.place_of(index) {
            scheduler.resting.take(at);
        } else {
            // Usually it is the one checked last, or the one looked at last.
            let is_it = |idle: &Quiet| idle.index == index;
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

    /// True if the poll is to look at the other links before it takes a message on the only busy
    /// one: it has taken one there and not looked since, and no look has found anything.
    #[inline(always)]
    pub(crate) fn is_look_due(&mut self) -> bool {
        core::mem::take(&mut self.look_due) && self.found.is_none()
    }

    /// True if a short poll is to check everything else before it takes a message on a quiet
    /// link. It is so after [`TAKEN_MAX`] of them, so that lively links cannot starve the others.
    #[inline(always)]
    pub(crate) fn is_check_due(&mut self) -> bool {
        let is_due = self.taken >= TAKEN_MAX;
        if is_due {
            self.taken = 0;
        }
        is_due
    }

    /// Notes whether the domain has inboxes; after every command.
    pub(crate) fn set_inboxes(&mut self, has_inboxes: bool) {
        self.has_inboxes = has_inboxes;
        self.update();
    }

    /// Recomputes the state that depends on which links are busy and which are idle.
    fn update(&mut self) {
        self.scheduler.set_only(&self.table);
        let others = !self.scheduler.idle.is_empty() || self.scheduler.resting.len() > 0;
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

    /// Looks at up to `looks` resting links, beginning behind the last one on which something had
    /// come, and at the tails of up to `tails`. If something has come on one, makes it busy and
    /// returns its index and the looks that are left.
    #[inline(never)]
    pub(crate) fn check_resting(&mut self, looks: usize, tails: usize) -> Option<(usize, usize)> {
        let (at, left) = self.scheduler.resting.find(looks, tails)?;
        let Quiet { index, .. } = self.scheduler.resting.take(at)?;
        self.set_busy(index);
        Some((index, left))
    }

    /// Looks whether something has come on a resting link, in up to `slots` slots and `tails`
    /// tails. [`Links::found`] gives it.
    #[inline(always)]
    pub(crate) fn find_message(&mut self, slots: usize, tails: usize) -> bool {
        let found = self.scheduler.resting.find(slots, tails);
        self.found = found.map(|(at, _)| Found::Resting(at));
        self.found.is_some()
    }

    /// Looks whether something has come on a few idle links. [`Links::found`] gives it.
    #[inline(always)]
    pub(crate) fn find_on_idle(&mut self) -> bool {
        let scheduler = &mut self.scheduler;
        let at = match scheduler.idle.is_empty() {
            true => None,
            false => scheduler.check_idle(&self.table).or_else(|| scheduler.glance_at_idle()),
        };
        self.found = at.map(Found::Idle);
        self.found.is_some()
    }

    /// The quiet link that the last look has found, unless another step came between: its place,
    /// and the link.
    #[inline(always)]
    pub(crate) fn found(&mut self) -> Option<(Found, &mut Link)> {
        let found = self.found?;
        let index = self.scheduler.index_of(found)?;
        Some((found, self.table.get_mut(index)?.as_deref_mut()?))
    }

    /// Forgets the link that the last look has found.
    #[inline(always)]
    pub(crate) fn forget_found(&mut self) {
        self.found = None;
    }

    /// The quiet link that was found, at that place, was served, and counts as found no longer. If
    /// that took one message, the only one, and leaves no work, the link rests, provided there is
    /// room. Else it becomes busy.
    #[inline(always)]
    pub(crate) fn served_quiet(&mut self, found: Found, took: bool) {
        self.forget_found();
        let scheduler = &mut self.scheduler;
        let Some(index) = scheduler.index_of(found) else { return };
        let Some(Some(link)) = self.table.get(index) else { return };
        self.taken += 1;
        let no_room = matches!(found, Found::Idle(_)) && scheduler.resting.is_full();
        if !took || no_room || link.rx.ack_is_due() {
            return self.end_idle(index);
        }
        let now = scheduler.policy.looks();
        match found {
            Found::Resting(at) => scheduler.resting.renew(at, link, now),
            Found::Idle(at) => scheduler.rest_again(at, Quiet::new(link, now)),
        }
    }

    /// Checks one resting link for a refusal or a response, each time another link. If one has
    /// come, makes the link busy and returns its index. A link that has rested for long becomes
    /// idle.
    #[inline(never)]
    pub(crate) fn check_one_resting(&mut self) -> Option<usize> {
        let scheduler = &mut self.scheduler;
        let looks = scheduler.policy.note_look();
        let at = looks as usize % scheduler.resting.len().max(1);
        let Quiet { index, since, .. } = scheduler.resting.get(at)?;
        let link = self.table.get(index)?.as_ref()?;
        if link.has_answers() {
            self.end_idle(index);
            return Some(index);
        }
        if looks.wrapping_sub(since) >= IDLE_AFTER
            && let Some(quiet) = scheduler.resting.take(at)
        {
            scheduler.idle.put(quiet);
        }
        None
    }

    /// Checks a few idle links. If something has come on one, makes it busy and returns its index.
    #[inline(always)]
    pub(crate) fn check_idle(&mut self) -> Option<usize> {
        let at = self.scheduler.check_idle(&self.table)?;
        self.end_idle_at(at)
    }

    /// Glances at a few idle links. If something has come on one, makes it busy and returns its
    /// index.
    #[inline(always)]
    pub(crate) fn glance_at_idle(&mut self) -> Option<usize> {
        let at = self.scheduler.glance_at_idle()?;
        self.end_idle_at(at)
    }

    #[cold]
    #[inline(never)]
    fn end_idle_at(&mut self, at: usize) -> Option<usize> {
        let index = self.scheduler.idle.get(at)?.index;
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
            let no_room = scheduler.resting.is_full();
            if IdlePolicy::is_quiet(link.empty_polls, no_room) && link.may_idle() {
                link.set_idle(true);
                scheduler.busy.swap_remove(at);
                let quiet = Quiet::new(link, scheduler.policy.looks());
                match no_room {
                    true => scheduler.idle.put(quiet),
                    false => scheduler.resting.put(quiet),
                }
            }
        }
        self.update();
    }
}
