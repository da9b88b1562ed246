//! Connections that workers own: the ids that stay with the control plane, and what the control
//! plane owes the worker for each. Shared by [`crate::Listener`] and [`crate::Dialer`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use doorbell_engine::worker::{Intake, Retry};
use doorbell_fabric::{
    Channel, CmError, CmId, ConnParam, Event, EventKind, Fabric, IdKey, IdOption, QpFields,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Qp, QpType};

use crate::worker_qp;

/// A notice for a worker whose mailbox had no room for it yet.
enum Word {
    /// With the private data of the peer.
    Up(Vec<u8>),
    Gone,
}

struct Connection<F: Fabric> {
    id: F::Id,
    qp_num: u32,
    intake: Intake<F>,
}

/// What became of a connection.
pub(crate) enum Outcome {
    /// It is up.
    Up,
    /// It never came up: status and kind of the event.
    Failed(EventKind, i32),
}

pub(crate) struct Connections<F: Fabric> {
    pub(crate) channel: F::Channel,
    live: HashMap<IdKey, Connection<F>>,
    unsaid: Vec<(Intake<F>, u32, Word)>,
    ended: u64,
}

impl<F: Fabric> Connections<F> {
    pub(crate) fn new(fabric: &F) -> Result<Self, CmError> {
        Ok(Connections {
            channel: fabric.open_channel()?,
            live: HashMap::new(),
            unsaid: Vec::new(),
            ended: 0,
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
    pub(crate) fn hand_over(
        &mut self,
        mut id: F::Id,
        intake: &Intake<F>,
        go: impl FnOnce(&mut F::Id, &ConnParam<'_>) -> Result<(), CmError>,
    ) -> Result<IdKey, (F::Id, CmError)> {
        let grant = match intake.reserve() {
            Ok(grant) => grant,
            Err(error) => return Err((id, error.into())),
        };
        let handshake = grant.handshake();
        let qp = match worker_qp::create(&mut id, intake, QpType::Rc) {
            Ok(qp) => qp,
            Err(error) => return Err((id, error)),
        };
        let qp_num = qp.num();
        // The private data of a request; a connect has had no answer yet.
        let data = Some(id.private_data()).filter(|data| !data.is_empty());
        if let Err(qp) = intake.admit(qp, grant, data) {
            drop(qp);
            let asked = "hand a connection to a worker";
            let error = CmError::new(Code::Busy, asked, "its mailbox is full")
                .cure("let the worker turn, or raise Config::peers");
            return Err((id, error));
        }
        // Every resource the device has.
        let Retry { rnr_retry, ack_timeout, retry_count, .. } = intake.retry();
        let param =
            ConnParam { private_data: &handshake, rnr_retry, retry_count, ..ConnParam::default() };
        let went = id.set_option(IdOption::AckTimeout(ack_timeout));
        if let Err(error) = went.and_then(|()| go(&mut id, &param)) {
            self.say(intake.clone(), qp_num, Word::Gone);
            return Err((id, error));
        }
        let key = id.key();
        self.live.insert(key, Connection { id, qp_num, intake: intake.clone() });
        Ok(key)
    }

    /// Handles an event of a connection. Returns the outcome, if the event decides whether the
    /// connection comes up.
    pub(crate) fn handle(&mut self, event: &Event<F>) -> Option<Outcome> {
        match event.kind {
            EventKind::Established => {
                let connection = self.live.get_mut(&event.key)?;
                // It fails only if the worker has already given the queue pair up.
                let _ = connection.id.set_rnr_timer(connection.intake.retry().rnr_timer);
                let (intake, qp_num) = (connection.intake.clone(), connection.qp_num);
                let data = connection.id.private_data().to_vec();
                self.say(intake, qp_num, Word::Up(data));
                Some(Outcome::Up)
            }
            EventKind::Disconnected | EventKind::DeviceRemoval => {
                self.end(event.key);
                None
            }
            kind @ (EventKind::Rejected
            | EventKind::Unreachable
            | EventKind::ConnectError
            | EventKind::AddrError
            | EventKind::RouteError) => {
                self.end(event.key);
                Some(Outcome::Failed(kind, event.status))
            }
            _ => None,
        }
    }

    /// Ends a connection: tells the worker and the peer, and drops the id.
    fn end(&mut self, key: IdKey) {
        if let Some(mut connection) = self.live.remove(&key) {
            self.ended += 1;
            // Both ends disconnect (CM-10); one that never was connected cannot, which is fine.
            let _ = connection.id.disconnect();
            self.say(connection.intake, connection.qp_num, Word::Gone);
        }
    }

    /// Nobody waits for this connection any more.
    pub(crate) fn give_up(&mut self, key: IdKey) {
        self.end(key);
    }

    fn say(&mut self, intake: Intake<F>, qp_num: u32, word: Word) {
        let said = match &word {
            Word::Up(data) => intake.up(qp_num, data),
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
                    self.end(key);
                }
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
