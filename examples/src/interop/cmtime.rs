//! The server of `cmtime` of rdmacm-utils: takes many connections at once, without a message,
//! until the client has ended them all.

use std::collections::HashMap;

use doorbell::error::Code;
use doorbell::{
    Channel, CmError, ConnParam, Event, EventKind, Fabric, Id, IdKey, PortSpace, Program, QpInit,
};

use super::{Plan, announce, differs};

/// The other side of `cmtime -s`.
#[derive(Clone, Copy, Debug)]
pub struct CmtimeServer {
    /// Where to listen.
    pub plan: Plan,
    /// Connections the client makes (`-c`).
    pub connections: usize,
}

/// What has come and gone.
struct Book<F: Fabric> {
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
        let mut book = Book { fabric, live: HashMap::new(), established: 0, ended: 0 };
        while book.ended < self.connections {
            let Some(event) = channel.next(self.plan.rest())? else {
                let (came, ended, all) = (book.established, book.ended, self.connections);
                let asked = format!("serve {all} connections");
                let answer = format!("{came} came up and {ended} ended in time");
                return Err(CmError::new(Code::TimedOut, asked, answer));
            };
            book.handle(event)?;
        }
        // Only what is connected ends so. That a connection is up may never have been said: the
        // client's last word of the handshake is not repeated when its end overtakes it.
        Ok(())
    }
}

impl<F: Fabric> Book<F> {
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
