//! Connections that workers own: the ids that stay with the control plane, and what the control
//! plane owes the worker for each. Shared by [`crate::Listener`] and [`crate::Dialer`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use doorbell_engine::worker::{Greeting, Intake, PeerData, Refusal, Retry};
use doorbell_fabric::{
    Channel, CmError, CmId, ConnParam, Event, EventKind, Fabric, IdKey, IdOption, QpFields,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Qp, QpType};

use crate::peer_handle::PeerHandle;
use crate::worker_qp;

/// A notice for a worker whose mailbox had no room for it yet.
enum Word {
    /// With what the peer said.
    Up(Greeting),
    Gone,
}

struct Connection<F: Fabric> {
    id: F::Id,
    qp_num: u32,
    intake: Intake<F>,
    /// If this side dialed.
    handle: Option<PeerHandle>,
}

/// What became of a connection.
pub(crate) enum Outcome {
    /// It is up.
    Up,
    /// It never came up: status and kind of the event, and the peer's reason if it gave one.
    Failed(EventKind, i32, Option<Refusal>),
    /// This side does not want it.
    Refused(Refusal),
}

/// A connection that was not handed over: its id, what to tell the peer, what to tell the caller.
pub(crate) struct NotHandedOver<F: Fabric> {
    pub(crate) id: F::Id,
    pub(crate) refusal: Refusal,
    pub(crate) error: CmError,
}

pub(crate) struct Connections<F: Fabric> {
    pub(crate) channel: F::Channel,
    live: HashMap<IdKey, Connection<F>>,
    unsaid: Vec<(Intake<F>, u32, Word)>,
    ended: u64,
    /// A handle has asked for the end of its connection.
    pub(crate) called: Arc<AtomicBool>,
}

impl<F: Fabric> Connections<F> {
    pub(crate) fn new(fabric: &F) -> Result<Self, CmError> {
        Ok(Connections {
            channel: fabric.open_channel()?,
            live: HashMap::new(),
            unsaid: Vec::new(),
            ended: 0,
            called: Arc::default(),
        })
    }

    pub(crate) fn has(&self, key: IdKey) -> bool {
        self.live.contains_key(&key)
    }

    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }

    /// The attributes of their queue pairs, except those that workers have already given up.
    pub(crate) fn query_qps(&self) -> Vec<QpFields> {
        self.live.values().filter_map(|connection| connection.id.query_qp().ok()).collect()
    }

    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    /// Makes the queue pair of an id for a worker and hands it over, before the peer can send.
    /// `greeting`: what the peer said with its request; a connect has had no answer yet. `data`
    /// goes to the peer.
    pub(crate) fn hand_over(
        &mut self,
        mut id: F::Id,
        intake: &Intake<F>,
        greeting: Option<Greeting>,
        data: &PeerData,
        handle: Option<PeerHandle>,
        go: impl FnOnce(&mut F::Id, &ConnParam<'_>) -> Result<(), CmError>,
    ) -> Result<IdKey, NotHandedOver<F>> {
        let mut grant = match intake.reserve() {
            Ok(grant) => grant,
            Err(error) => {
                let refusal = intake.no_place();
                return Err(NotHandedOver { id, refusal, error: error.into() });
            }
        };
        grant.set_addr(id.peer_addr());
        let (handshake, watch) = (grant.handshake(data), grant.watch());
        let qp = match worker_qp::create(&mut id, intake, QpType::Rc) {
            Ok(qp) => qp,
            Err(error) => {
                let refusal = Refusal::resources(error.code().errno());
                return Err(NotHandedOver { id, refusal, error });
            }
        };
        let qp_num = qp.num();
        if let Err(qp) = intake.admit(qp, grant, greeting) {
            drop(qp);
            let asked = "hand a connection to a worker";
            let error = CmError::new(Code::Busy, asked, "its mailbox is full")
                .cure("let the worker turn, or raise Config::peers");
            return Err(NotHandedOver { id, refusal: Refusal::busy(), error });
        }
        if let Some(handle) = &handle {
            handle.watches(watch);
        }
        // Every resource the device has.
        let Retry { rnr_retry, ack_timeout, retry_count, .. } = intake.retry();
        let private_data = handshake.bytes();
        let param = ConnParam { private_data, rnr_retry, retry_count, ..ConnParam::default() };
        let went = id.set_option(IdOption::AckTimeout(ack_timeout));
        if let Err(error) = went.and_then(|()| go(&mut id, &param)) {
            self.say(intake.clone(), qp_num, Word::Gone);
            let refusal = Refusal::resources(error.code().errno());
            return Err(NotHandedOver { id, refusal, error });
        }
        let key = id.key();
        self.live.insert(key, Connection { id, qp_num, intake: intake.clone(), handle });
        Ok(key)
    }

    /// Handles an event of a connection. Returns the outcome, if the event decides whether the
    /// connection comes up.
    pub(crate) fn handle(&mut self, event: &Event<F>) -> Option<Outcome> {
        match event.kind {
            EventKind::Established => {
                let connection = self.live.get_mut(&event.key)?;
                let greeting = connection.intake.check_peer(connection.id.private_data());
                let greeting = match greeting {
                    Ok(greeting) => greeting,
                    Err(refusal) => {
                        self.end(event.key, None);
                        return Some(Outcome::Refused(refusal));
                    }
                };
                // It fails only if the worker has already given the queue pair up.
                let _ = connection.id.set_rnr_timer(connection.intake.retry().rnr_timer);
                let (intake, qp_num) = (connection.intake.clone(), connection.qp_num);
                if let Some(handle) = &connection.handle {
                    handle.is_up();
                }
                self.say(intake, qp_num, Word::Up(greeting));
                Some(Outcome::Up)
            }
            EventKind::Disconnected => {
                self.end(event.key, Some("the peer ended it"));
                None
            }
            EventKind::DeviceRemoval => {
                self.end(event.key, Some("the device was removed"));
                None
            }
            kind @ (EventKind::Rejected
            | EventKind::Unreachable
            | EventKind::ConnectError
            | EventKind::AddrError
            | EventKind::RouteError) => {
                self.end(event.key, None);
                let refusal = Refusal::parse(&event.private_data);
                Some(Outcome::Failed(kind, event.status, refusal))
            }
            _ => None,
        }
    }

    /// Ends a connection: tells the worker and the peer, and drops the id. `why`: if it was up and
    /// this side did not want it.
    fn end(&mut self, key: IdKey, why: Option<&str>) {
        if let Some(mut connection) = self.live.remove(&key) {
            self.ended += 1;
            if let Some(handle) = &connection.handle {
                let asked = || format!("stay connected to {}", handle.addr());
                handle.is_down(why.map(|why| CmError::new(Code::Reset, asked(), why)));
            }
            // Both ends disconnect (CM-10); one that never was connected cannot, which is fine.
            let _ = connection.id.disconnect();
            self.say(connection.intake, connection.qp_num, Word::Gone);
        }
    }

    /// Nobody waits for this connection any more.
    pub(crate) fn give_up(&mut self, key: IdKey) {
        self.end(key, None);
    }

    fn say(&mut self, intake: Intake<F>, qp_num: u32, word: Word) {
        let said = match &word {
            Word::Up(greeting) => intake.up(qp_num, *greeting),
            Word::Gone => intake.gone(qp_num),
        };
        if !said {
            self.unsaid.push((intake, qp_num, word));
        }
    }

    /// Retries notices that mailboxes had no room for, and ends connections that workers want
    /// ended.
    pub(crate) fn tend(&mut self, intakes: &[Intake<F>]) {
        for (intake, qp_num, word) in std::mem::take(&mut self.unsaid) {
            self.say(intake, qp_num, word);
        }
        for intake in intakes {
            while let Some(qp_num) = intake.next_closing() {
                let key = self.live.iter().find(|(_, live)| live.qp_num == qp_num);
                if let Some(key) = key.map(|(key, _)| *key) {
                    self.end(key, None);
                }
            }
        }
        // Acquire pairs with `PeerHandle::end`.
        if self.called.swap(false, Ordering::Acquire) {
            let ends =
                |live: &Connection<F>| live.handle.as_ref().is_some_and(PeerHandle::is_ending);
            let keys = self.live.iter().filter(|(_, live)| ends(live)).map(|(key, _)| *key);
            for key in keys.collect::<Vec<_>>() {
                self.end(key, None);
            }
        }
    }

    pub(crate) fn next(&self, limit: Duration) -> Result<Option<Event<F>>, CmError> {
        self.channel.next(limit)
    }
}

/// How long one wait of the control plane lasts, and so how late it notices that it is to stop.
pub(crate) const STEP: Duration = Duration::from_millis(5);

/// Steps until `stop` is true.
pub(crate) fn run(
    stop: &AtomicBool,
    mut step: impl FnMut(Duration) -> Result<bool, CmError>,
) -> Result<(), CmError> {
    while !stop.load(Ordering::Relaxed) {
        step(STEP)?;
    }
    Ok(())
}
