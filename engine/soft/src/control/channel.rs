//! Event channels: epoll over the sockets of their ids, and a queue of events. A channel has no
//! thread: the caller that asks for the next event does the work.
//!
//! A synchronous id has a private channel, as in librdmacm (ID-4).

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use doorbell_fabric::CmError;
use doorbell_fabric::EventKind;

use super::conn::BACKLOG_PAUSE;
use super::deadlines::Deadlines;
use super::end::{Core, End, Raised, State};
use super::sys::{self, Epoll, READY_MAX, Timer, Waker};

#[cfg(test)]
mod tests;

/// The key of the waker; ids count from 1.
const WAKE: u64 = 0;
/// The key of the timer.
const TIME: u64 = u64::MAX;

/// An event channel of the soft device.
pub struct SoftChannel(pub(super) Arc<Inner>);

impl AsFd for SoftChannel {
    /// Readable while there is work, including work whose time has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A channel, shared by its handle and its ids. The queue holds ends and no ids, because an id
/// would keep the channel alive.
pub(super) struct Inner {
    /// Shared with the ends that it has.
    epoll: Arc<Epoll>,
    /// They make the descriptor readable when an event is queued or due. A channel of one
    /// synchronous id has none: only its own caller queues events and waits.
    wakers: Option<(Waker, Timer)>,
    /// Held from the moment an end is found until its event is queued, and while an end joins or
    /// leaves. So an event of an end that moves is either queued here and moved along, or read on
    /// the new channel; never both or neither. Taken before all other locks.
    work: Mutex<()>,
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    queue: VecDeque<(u64, Raised)>,
    members: HashMap<u64, Weak<End>>,
    /// Ends of peers that have not sent their request, with the key of their listener.
    incoming: HashMap<u64, (Arc<End>, u64)>,
    deadlines: Deadlines,
    /// The time that the timer is set to.
    timer_at: Option<Instant>,
}

/// What an id takes along to another channel.
struct TakenOut {
    events: Vec<Raised>,
    incoming: Vec<Arc<End>>,
}

impl Inner {
    /// A channel for one synchronous id, or one that several threads may use.
    pub(super) fn new(many: bool) -> Result<Inner, CmError> {
        let failed = |error| CmError::from_io("open an event channel", &error);
        let epoll = Epoll::new().map_err(failed)?;
        let wakers = match many {
            true => Some((Waker::new().map_err(failed)?, Timer::new().map_err(failed)?)),
            false => None,
        };
        if let Some((waker, timer)) = &wakers {
            epoll.add(waker.fd(), WAKE).map_err(failed)?;
            epoll.add(timer.fd(), TIME).map_err(failed)?;
        }
        Ok(Inner {
            epoll: Arc::new(epoll),
            wakers,
            work: Mutex::default(),
            lists: Mutex::default(),
        })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Poisoning says that another thread panicked between two whole steps: still in order.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) -> MutexGuard<'_, ()> {
        // As in `lists`.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an id.
    pub(super) fn join(&self, end: &Arc<End>) -> Result<(), CmError> {
        self.lists().members.insert(end.key, Arc::downgrade(end));
        self.adopt(end)
    }

    /// Takes an end from the channel that has it, and watches it.
    fn adopt(&self, end: &Arc<End>) -> Result<(), CmError> {
        {
            let mut core = end.lock();
            if !self.has(&core) {
                core.unwatch();
                core.channel = Some(self.epoll.clone());
            }
        }
        self.watch(end)
    }

    /// True if this channel has the end. An end whose move has failed belongs to no channel.
    fn has(&self, core: &Core) -> bool {
        core.channel.as_ref().is_some_and(|epoll| Arc::ptr_eq(epoll, &self.epoll))
    }

    /// Removes an id, and those of its events that nobody has taken (ID-8, ID-9), with the ends of
    /// its requests.
    pub(super) fn leave(&self, end: &End) {
        let _work = self.work();
        // Dropped outside the lock of the lists: an end says goodbye to its peer.
        let taken = self.take_out(end);
        for request in taken.events.iter().filter_map(|raised| raised.request.as_ref()) {
            drop(self.take_out(request));
        }
    }

    /// Moves an id to another channel, with those of its events that nobody has taken (MG-3).
    pub(super) fn hand_over(&self, end: &Arc<End>, to: &Inner) -> Result<(), CmError> {
        // Always in the same order: another id may move the other way.
        let (first, second) = if std::ptr::from_ref(self) < to { (self, to) } else { (to, self) };
        let _work = (first.work(), second.work());
        let TakenOut { events, incoming } = self.take_out(end);
        to.join(end)?;
        for incoming in incoming {
            to.lists().incoming.insert(incoming.key, (incoming.clone(), end.key));
            to.adopt(&incoming)?;
        }
        for raised in events {
            if let Some(request) = &raised.request {
                // Its own events come after the request.
                let since = self.take_out(request);
                to.join(request)?;
                to.raise(end.key, raised.clone());
                for raised in since.events {
                    to.raise(request.key, raised);
                }
            } else {
                to.raise(end.key, raised);
            }
        }
        Ok(())
    }

    /// Removes an id, and returns those of its events that nobody has taken.
    fn take_out(&self, end: &End) -> TakenOut {
        let mut taken = TakenOut { events: Vec::new(), incoming: Vec::new() };
        {
            let mut lists = self.lists();
            lists.members.remove(&end.key);
            let incoming = std::mem::take(&mut lists.incoming);
            for (key, (incoming, of)) in incoming {
                if of == end.key {
                    lists.deadlines.set(key, None);
                    taken.incoming.push(incoming);
                } else {
                    lists.incoming.insert(key, (incoming, of));
                }
            }
            let queue = std::mem::take(&mut lists.queue);
            for (key, raised) in queue {
                if key == end.key {
                    taken.events.push(raised);
                } else {
                    lists.queue.push_back((key, raised));
                }
            }
            self.note_taken(&lists);
        }
        let mut core = end.lock();
        if self.has(&core) {
            core.unwatch();
            core.channel = None;
        }
        // A deadline without an end would make the descriptor readable, and no event would come.
        self.look_at(&core, end.key);
        taken
    }

    /// Watches what an end of this channel waits for now: its socket and its deadline, if any.
    pub(super) fn watch(&self, end: &Arc<End>) -> Result<(), CmError> {
        let key = end.key;
        let mut core = end.lock();
        if !self.has(&core) {
            return Ok(());
        }
        if let Some(fd) = core.watchable() {
            if !core.watched {
                self.epoll
                    .add(fd, key)
                    .map_err(|error| CmError::from_io("watch a connection", &error))?;
                core.watched = true;
            }
            // Anew at each call: a report that came in an earlier state had no effect.
            if let (State::Replied | State::Established, Some(rendezvous)) =
                (core.state, core.device.rendezvous.get())
            {
                let end: Weak<End> = Arc::downgrade(end);
                rendezvous.watch_end(fd, key, end);
            }
        }
        self.look_at(&core, key);
        Ok(())
    }

    /// Looks at an end when its deadline comes; never, if it has none or is not of this channel.
    fn look_at(&self, core: &Core, key: u64) {
        let deadline = core.deadline.filter(|_| self.has(core));
        self.lists().deadlines.set(key, deadline);
        self.set_timer();
    }

    /// Queues an event. If others are queued the waker is set already: it is cleared only when the
    /// queue is empty.
    pub(super) fn raise(&self, key: u64, raised: Raised) {
        let mut lists = self.lists();
        lists.queue.push_back((key, raised));
        if lists.queue.len() == 1 {
            self.wake();
        }
    }

    /// The next event in the queue.
    fn take(&self) -> Option<(u64, Raised)> {
        let mut lists = self.lists();
        let next = lists.queue.pop_front()?;
        self.note_taken(&lists);
        Some(next)
    }

    /// Makes the descriptor unreadable if no event is left: a program that polls it must not block
    /// when it then asks for one. Not before, or it would miss the rest.
    fn note_taken(&self, lists: &Lists) {
        if let Some((waker, _)) = self.wakers.as_ref().filter(|_| lists.queue.is_empty()) {
            waker.clear();
        }
    }

    fn wake(&self) {
        if let Some((waker, _)) = &self.wakers {
            waker.wake();
        }
    }

    /// Sets the timer to the next deadline.
    fn set_timer(&self) {
        if let Some((_, timer)) = &self.wakers {
            let mut lists = self.lists();
            let next = lists.deadlines.first();
            if lists.timer_at != next {
                lists.timer_at = next;
                timer.set(next);
            }
        }
    }

    /// Waits for the next event, at most `limit` (`None`: for ever), and does all work meanwhile.
    pub(super) fn next(&self, limit: Option<Duration>) -> Result<Option<(u64, Raised)>, CmError> {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut keys = [0; READY_MAX];
        loop {
            self.expire()?;
            if let Some(next) = self.take() {
                return Ok(Some(next));
            }
            let timer = self.lists().deadlines.first();
            let now = Instant::now();
            let until = match (end, timer) {
                (Some(end), Some(timer)) => Some(end.min(timer)),
                (end, timer) => end.or(timer),
            };
            let pause = until.map(|until| until.saturating_duration_since(now));
            let keys = self
                .epoll
                .wait(pause, &mut keys)
                .map_err(|error| CmError::from_io("wait for events", &error))?;
            for key in keys {
                self.handle(*key)?;
            }
            // Sockets may become ready all the time and bring no event.
            if keys.len() < READY_MAX && end.is_some_and(|end| Instant::now() >= end) {
                self.expire()?;
                return Ok(self.take());
            }
        }
    }

    /// The end with that key; for one that has not sent its request yet, its listener too.
    pub(super) fn find(&self, key: u64) -> Option<(Arc<End>, Option<u64>)> {
        let lists = self.lists();
        if let Some((end, listener)) = lists.incoming.get(&key) {
            return Some((end.clone(), Some(*listener)));
        }
        Some((lists.members.get(&key)?.upgrade()?, None))
    }

    /// Handles a descriptor that has become readable.
    fn handle(&self, key: u64) -> Result<(), CmError> {
        if key == WAKE || key == TIME {
            // `take` clears the waker with the last event. `next` calls `expire` before it takes
            // one, and that sets the timer anew.
            return Ok(());
        }
        let _work = self.work();
        let Some((end, listener)) = self.find(key) else { return Ok(()) };
        if end.lock().state == State::Listening {
            return self.admit(&end);
        }
        let raised = end.read();
        self.arrived(&end, listener, raised)
    }

    /// A peer has connected to a listener.
    fn admit(&self, listener: &End) -> Result<(), CmError> {
        let mut core = listener.lock();
        let Some(socket) = &core.socket else { return Ok(()) };
        let accepted = match core.device.spare.accept(socket) {
            Err(error) if sys::is_out_of_files(&error) => {
                // The listener stays readable until there is a descriptor for its peer.
                if self.wakers.is_none() {
                    // Without a timer, nothing would make this channel readable again.
                    drop(core);
                    thread::sleep(BACKLOG_PAUSE);
                    return Ok(());
                }
                let again = Instant::now() + BACKLOG_PAUSE;
                core.unwatch();
                core.deadline = Some(again);
                self.look_at(&core, listener.key);
                return Ok(());
            }
            other => other,
        };
        let accepted =
            accepted.map_err(|error| CmError::from_io("take a connection request", &error))?;
        let Some(end) = accepted.and_then(|accepted| End::incoming(&core, accepted)) else {
            return Ok(());
        };
        drop(core);
        let end = Arc::new(end);
        self.lists().incoming.insert(end.key, (end.clone(), listener.key));
        self.adopt(&end)?;
        // Most often it has sent its request already.
        let raised = end.read();
        self.arrived(&end, Some(listener.key), raised)
    }

    /// Passes on the event of an end. An end that has sent its request becomes one of its
    /// listener's requests.
    fn arrived(
        &self,
        end: &Arc<End>,
        listener: Option<u64>,
        raised: Option<Raised>,
    ) -> Result<(), CmError> {
        let Some(listener) = listener else {
            if let Some(raised) = raised {
                self.raise(end.key, raised);
            }
            return self.watch(end);
        };
        match raised {
            Some(raised) if raised.kind == EventKind::ConnectRequest => {
                self.lists().incoming.remove(&end.key);
                self.join(end)?;
                self.raise(listener, Raised { request: Some(end.clone()), ..raised });
            }
            _ => {
                let core = end.lock();
                if core.state != State::Incoming {
                    self.lists().incoming.remove(&end.key);
                }
                self.look_at(&core, end.key);
            }
        }
        Ok(())
    }

    /// Expires the ends whose deadline has passed.
    fn expire(&self) -> Result<(), CmError> {
        let now = Instant::now();
        let mut any = false;
        loop {
            let Some(key) = self.lists().deadlines.take_due(now) else { break };
            any = true;
            let _work = self.work();
            let Some((end, listener)) = self.find(key) else { continue };
            let raised = end.expire(now);
            self.arrived(&end, listener, raised)?;
        }
        if any {
            self.set_timer();
        }
        Ok(())
    }
}
