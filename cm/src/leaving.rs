//! Ids whose connection this side has ended, until the peer has answered.
//!
//! The network may lose the request to disconnect. The kernel repeats it, but only while the id
//! lives. A peer whose connection is idle would not learn of the end otherwise.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use doorbell_fabric::{Fabric, IdKey};

/// How long an id waits for the peer's answer. The kernel repeats the request every 4.1 to 6.1 s,
/// so there is room for three repetitions.
const LIMIT: Duration = Duration::from_secs(20);

/// The most ids that wait, so that a program that ends many connections to peers that do not answer
/// runs out of neither memory nor ports: an id that has dialed keeps its local port, and by default
/// there are 28232.
const MOST: usize = 1024;

/// The ids of a listener or a dialer that wait for an answer. Each is destroyed when it leaves
/// this list. Its queue pair is the worker's, which destroys it meanwhile.
pub(crate) struct Leaving<I> {
    /// In the order in which they began to wait, and so in the order of their deadlines.
    waiting: VecDeque<Waiting<I>>,
    /// `None`: no id waits, because nothing is lost between the device and its peers.
    limit: Option<Duration>,
}

struct Waiting<I> {
    key: IdKey,
    until: Instant,
    /// Kept only so that it is not destroyed.
    _id: I,
}

impl<I> Leaving<I> {
    /// For the ids of that device.
    pub(crate) fn of<F: Fabric>() -> Leaving<I> {
        Leaving { waiting: VecDeque::new(), limit: F::OVER_NETWORK.then_some(LIMIT) }
    }

    /// Takes an id that has asked its peer to disconnect. If too many wait, the oldest is
    /// destroyed.
    pub(crate) fn add(&mut self, key: IdKey, id: I) {
        let until = self.limit.and_then(|limit| Instant::now().checked_add(limit));
        let Some(until) = until else { return };
        if self.waiting.len() >= MOST {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Waiting { key, until, _id: id });
    }

    /// Nothing more comes for that id: it is destroyed, if it waits here.
    pub(crate) fn remove(&mut self, key: IdKey) {
        // Answers come in about the order of the requests, so it stands near the front.
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.key == key) {
            self.waiting.remove(at);
        }
    }

    /// Destroys the ids that have waited for long enough.
    pub(crate) fn expire(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let now = Instant::now();
        while self.waiting.front().is_some_and(|waiting| waiting.until <= now) {
            self.waiting.pop_front();
        }
    }

    /// When to call [`Leaving::expire`].
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|waiting| waiting.until)
    }
}

#[cfg(test)]
impl<I> Leaving<I> {
    /// From now on ids wait for that long.
    pub(crate) fn wait_for(&mut self, limit: Duration) {
        self.limit = Some(limit);
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use doorbell_soft::SoftDevice;

    use super::*;

    /// It counts the ids that are not destroyed.
    fn ids() -> (Rc<()>, impl Fn(&Rc<()>) -> usize) {
        (Rc::new(()), |id| Rc::strong_count(id) - 1)
    }

    fn waiting(limit: Duration) -> Leaving<Rc<()>> {
        Leaving { waiting: VecDeque::new(), limit: Some(limit) }
    }

    #[test]
    fn an_id_is_destroyed_when_its_answer_has_come() {
        let (id, alive) = ids();
        let mut leaving = waiting(LIMIT);
        (1..=3).for_each(|key| leaving.add(IdKey(key), id.clone()));
        assert_eq!((alive(&id), leaving.next_deadline().is_some()), (3, true));
        leaving.expire();
        leaving.remove(IdKey(2));
        leaving.remove(IdKey(2));
        assert_eq!(alive(&id), 2);
        leaving.remove(IdKey(1));
        leaving.remove(IdKey(3));
        assert_eq!((alive(&id), leaving.next_deadline()), (0, None));
    }

    #[test]
    fn an_id_without_an_answer_is_destroyed_at_its_deadline() {
        let (id, alive) = ids();
        let mut leaving = waiting(Duration::ZERO);
        leaving.add(IdKey(1), id.clone());
        leaving.wait_for(LIMIT);
        leaving.add(IdKey(2), id.clone());
        assert_eq!(alive(&id), 2);
        leaving.expire();
        assert_eq!(alive(&id), 1);
        assert!(leaving.next_deadline().is_some_and(|at| at > Instant::now()));
        drop(leaving);
        assert_eq!(alive(&id), 0);
    }

    #[test]
    fn too_many_push_out_the_oldest() {
        let (oldest, alive) = ids();
        let (id, _) = ids();
        let mut leaving = waiting(LIMIT);
        leaving.add(IdKey(0), oldest.clone());
        (1..MOST as u64).for_each(|key| leaving.add(IdKey(key), id.clone()));
        assert_eq!((alive(&oldest), alive(&id)), (1, MOST - 1));
        leaving.add(IdKey(MOST as u64), id.clone());
        assert_eq!((alive(&oldest), alive(&id), leaving.len()), (0, MOST, MOST));
    }

    #[test]
    fn no_id_waits_on_a_device_without_a_network() {
        let (id, alive) = ids();
        let mut leaving = Leaving::of::<SoftDevice>();
        leaving.add(IdKey(1), id.clone());
        assert_eq!((alive(&id), leaving.next_deadline()), (0, None));
    }
}
