//! The server of `cmtime` of rdmacm-utils: accepts many connections at once, without any message,
//! until the client has disconnected all of them.

use std::collections::HashMap;

use doorbell::error::Code;
use doorbell::{
    Channel, CmError, ConnParam, Event, EventKind, Fabric, Id, IdKey, PortSpace, Program, QpInit,
};

use super::common::{Plan, announce, differs};

/// The counterpart of `cmtime -s`.
#[derive(Clone, Copy, Debug)]
pub struct CmtimeServer {
    /// Where to listen.
    pub plan: Plan,
    /// Number of connections that the client makes (`-c`).
    pub connections: usize,
}

/// The connections so far.
struct Connections<F: Fabric> {
    fabric: F,
    live: HashMap<IdKey, Id<F>>,
    established: usize,
    ended: usize,
}

impl Program for CmtimeServer {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let channel = fabric.open_channel()?;
        let mut listener = Id::create(&fabric, Some(&channel), PortSpace::Tcp)?;
        listener.bind(self.plan.addr)?;
        listener.listen(0)?;
        announce(listener.local_addr(), &fabric);
        let mut connections =
            Connections { fabric, live: HashMap::new(), established: 0, ended: 0 };
        while connections.ended < self.connections {
            let Some(event) = channel.next(self.plan.time_left())? else {
                let (came, ended, all) =
                    (connections.established, connections.ended, self.connections);
                let asked = format!("serve {all} connections");
                let answer = format!("{came} came up and {ended} ended in time");
                return Err(CmError::new(Code::TimedOut, asked, answer));
            };
            connections.handle(event)?;
        }
        // `established` is not checked: if a disconnect overtakes the last message of the
        // handshake, the client does not repeat that message, and the connection is never reported
        // as up.
        Ok(())
    }
}

impl<F: Fabric> Connections<F> {
    fn handle(&mut self, event: Event<F>) -> Result<(), CmError> {
        match (event.kind, event.request) {
            (EventKind::ConnectRequest, Some(request)) => {
                let mut id = Id::of_request(&self.fabric, request);
                id.create_qp(&QpInit::rc())?;
                id.accept(&ConnParam::default())?;
                self.live.insert(id.key(), id);
            }
            (EventKind::Established, _) => self.established += 1,
            (EventKind::Disconnected, _) => {
                if let Some(mut id) = self.live.remove(&event.key) {
                    id.disconnect()?;
                    self.ended += 1;
                }
            }
            (EventKind::TimewaitExit, _) => {}
            (kind, _) => {
                let got = format!("{kind:?}, status {}", event.status);
                return Err(differs("an event", "a request, a connection, its end", got));
            }
        }
        Ok(())
    }
}
