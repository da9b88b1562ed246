//! A call and its answer, one at a time.

use doorbell::prelude::*;
use doorbell::rpc::{self, Calls, Incoming};

use crate::error::Failure;
use crate::ours::session::{Link, Linked, Session};
use crate::ours::{Side, SideArgs};
use crate::payload;
use crate::peer::Figure;
use crate::timing::{self, Trips};

/// Runs one side; the client returns its figure.
pub(crate) fn run(args: &SideArgs) -> Result<Option<Figure>, Failure> {
    let size = args.size as usize;
    // A call has a header before its payload.
    let block_bytes = (args.size + 64).next_multiple_of(64);
    let config = Config {
        peers: 1,
        recv_blocks: 64,
        refill: 8,
        send_blocks: 16,
        block_bytes,
        ..Config::DEFAULT
    };
    let mut session = Session::new(&config, Caller::new(size))?;
    session.connect(args)?;
    if args.side == Side::Server {
        session.serve()?;
        return Ok(None);
    }
    let mut client = Client { session, payload: vec![0; size] };
    let figure = timing::half_trips(&mut client, args.time())?;
    let Caller { wrong, .. } = client.session.worker.handler();
    if *wrong > 0 {
        return Err(Failure::new(format!("{wrong} answers were wrong")));
    }
    client.session.leave()?;
    Ok(Some(figure))
}

/// The handler of both sides.
struct Caller {
    link: Link,
    calls: Calls,
    size: usize,
    /// Calls taken, or answers that came; the next one has this number.
    came: u64,
    wrong: u64,
}

impl Caller {
    fn new(size: usize) -> Caller {
        Caller { link: Link::default(), calls: Calls::new(4, size, 0), size, came: 0, wrong: 0 }
    }

    fn take(&mut self, bytes: &[u8]) {
        let number = payload::number(0, self.came);
        let right = payload::is_filled(bytes, number) && bytes.len() == self.size;
        self.wrong += u64::from(!right);
        self.came += 1;
    }
}

impl Handler<SoftDevice> for Caller {
    #[inline(always)]
    fn on_message(
        &mut self,
        mut message: Message<'_>,
        out: &mut Outbox<'_, SoftDevice>,
    ) -> Verdict {
        let is_call = match self.calls.incoming(out, &message) {
            Incoming::Call(bytes) => {
                self.take(bytes);
                true
            }
            Incoming::Answer { bytes, .. } => {
                self.take(bytes);
                false
            }
            _ => {
                self.wrong += 1;
                false
            }
        };
        if !is_call {
            return Verdict::Done;
        }
        // A wrong call is answered wrong, so that the caller counts it.
        let (size, wrong) = (self.size, self.wrong);
        let answer = |room: &mut [u8]| {
            if wrong > 0 {
                room.fill(0);
            }
            size
        };
        rpc::answer(&mut message, answer).map_or(Verdict::Done, |len| Verdict::Reply { len })
    }

    fn on_peer_up(&mut self, peer: PeerId, _out: &mut Outbox<'_, SoftDevice>) {
        self.link.peer = Some(peer);
    }

    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _out: &mut Outbox<'_, SoftDevice>) {
        self.link.down = Some(why);
    }
}

impl Linked for Caller {
    fn link(&self) -> &Link {
        &self.link
    }
}

struct Client {
    session: Session<Caller>,
    payload: Vec<u8>,
}

impl Trips for Client {
    #[inline(always)]
    fn prepare(&mut self, number: u64) -> Result<(), Failure> {
        payload::fill(&mut self.payload, payload::number(0, number));
        Ok(())
    }

    #[inline(always)]
    fn trip(&mut self, number: u64) -> Result<(), Failure> {
        let (peer, payload) = (self.session.peer()?, &self.payload[..]);
        self.session.when_room(|handler, out| {
            handler.calls.call(out, peer, payload, number, None).map(drop)
        })?;
        self.session.worker.outbox().flush();
        while self.session.worker.handler().came == number {
            self.session.turn()?;
        }
        Ok(())
    }
}
