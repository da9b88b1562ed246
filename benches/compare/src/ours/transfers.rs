//! Messages larger than a block (`doorbell::large`), one way or both ways at once, several under
//! way in each direction. Neither side writes or reads more of one than its first and its last
//! word, as memcpy beside it does not either.

use doorbell::alloc::{Ask, MapRequest};
use doorbell::large::{Arrived, Large, Received};
use doorbell::prelude::*;
use doorbell::wc::Status;
use doorbell::worker::{OwnPiece, OwnRegion, Piece, RegionId};

use crate::error::Failure;
use crate::ours::session::{Link, Linked, Session};
use crate::ours::{Side, SideArgs, Task};
use crate::peer::Figure;
use crate::timing::{self, Stream};

/// Messages under way in each direction.
const UNDER_WAY: usize = 4;

/// Bytes of the word at each end of a message.
const WORD: usize = 8;

/// Runs one side; the client returns its figure.
pub(crate) fn run(args: &SideArgs) -> Result<Option<Figure>, Failure> {
    let config =
        Config { peers: 1, recv_blocks: 64, refill: 8, send_blocks: 16, ..Config::DEFAULT };
    let offers = args.side == Side::Client || args.task == Task::LargeBoth;
    let mut session = Session::new(&config, Transfers::new(args.size as usize))?;
    let (size, bytes) = (args.size as usize, args.size as usize * UNDER_WAY);
    let memory = MapRequest::new(bytes).pages(Ask::Huge2M).shared(true).map();
    let memory = memory.map_err(Failure::at("memory"))?;
    let region = session.nic.register(memory, Access::REMOTE_READ);
    let from = session.worker.adopt(region.map_err(Failure::at("a region"))?);
    for slot in 0..UNDER_WAY {
        for at in [slot * size, (slot + 1) * size - WORD] {
            let word = (slot as u64 + 1).to_ne_bytes();
            let written = session.worker.outbox().copy_in(from, at, &word);
            written.map_err(Failure::at("write our own memory"))?;
        }
    }
    let memory = message_memory(&session.nic, bytes).map_err(Failure::at("memory"))?;
    let to = session.worker.adopt_own(&session.nic, memory).map_err(Failure::at("memory"))?;
    session.worker.handler_mut().memory = Some((from, to));
    session.connect(args)?;
    let peer = session.peer()?;
    session.worker.with(|handler, out| {
        if offers {
            handler.idle_slots = (0..UNDER_WAY).collect();
        }
        handler.offer(out, peer);
    });
    if args.side == Side::Server {
        session.serve()?;
        return Ok(None);
    }
    let mut client = Client { session, counted: 0 };
    let figure = timing::rate(&mut client, size, args.time())?;
    client.session.check()?;
    client.session.leave()?;
    Ok(Some(figure))
}

/// The handler of both sides.
struct Transfers {
    link: Link,
    large: Large,
    size: usize,
    /// What is offered lies in the first region, what is taken goes to the second.
    memory: Option<(RegionId, OwnRegion)>,
    /// Slots of the first region that are not offered at the moment.
    idle_slots: Vec<usize>,
    /// Messages that the other side has taken, and that this side has.
    over: u64,
}

impl Transfers {
    fn new(size: usize) -> Transfers {
        let (link, large) = (Link::default(), Large::new(4 * UNDER_WAY as u32, 0));
        Transfers { link, large, size, memory: None, idle_slots: Vec::new(), over: 0 }
    }

    fn fail(&mut self, why: impl Into<String>) {
        self.link.failed.get_or_insert(why.into());
    }

    /// Offers what is not offered, as far as there is room.
    fn offer(&mut self, out: &mut Outbox<'_, SoftDevice>, peer: PeerId) {
        let Some((region, _)) = self.memory else { return };
        while let Some(slot) = self.idle_slots.pop() {
            let (offset, length) = (slot * self.size, self.size as u32);
            let piece = Piece { region, offset, length };
            match self.large.offer(out, peer, piece, slot as u64, slot as u64) {
                Ok(()) => {}
                Err(error) => {
                    self.idle_slots.push(slot);
                    if !error.is_back_pressure() {
                        self.fail(error.to_string());
                    }
                    return;
                }
            }
        }
    }

    /// Checks both ends of a message that has arrived.
    fn arrived(&mut self, arrived: &Arrived, out: &Outbox<'_, SoftDevice>) {
        let slot = arrived.offer.tag();
        let right = |piece: OwnPiece| {
            let bytes = out.bytes(piece).unwrap_or_default();
            bytes.first_chunk() == Some(&(slot + 1).to_ne_bytes())
        };
        let is_right = self.memory.is_some_and(|(_, to)| {
            let start = slot as usize % UNDER_WAY * self.size;
            right(to.piece(start, 8)) && right(to.piece(start + self.size - WORD, 8))
        });
        if arrived.result.is_err() || !is_right {
            self.fail(format!("a large message came wrong: {:?}", arrived.result));
        }
        self.over += 1;
    }
}

impl Handler<SoftDevice> for Transfers {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, SoftDevice>) -> Verdict {
        match self.large.received(&message) {
            Received::Offered(offer) => {
                let start = offer.tag() as usize % UNDER_WAY * self.size;
                let room = self.memory.map(|(_, to)| to.piece(start, self.size as u32));
                let taken = room.map(|to| self.large.take(out, offer, to.into(), 0));
                if !matches!(taken, Some(Ok(()))) {
                    self.fail(format!("an offer was not taken: {taken:?}"));
                }
            }
            Received::Done { key, taken } => {
                self.over += 1;
                self.idle_slots.push(key as usize);
                if !taken {
                    self.fail("an offer was declined");
                }
                self.offer(out, message.peer());
            }
            Received::Foreign => self.fail("a message of another kind came"),
        }
        Verdict::Done
    }

    fn on_send_done(
        &mut self,
        _peer: PeerId,
        token: u64,
        result: Result<(), Status>,
        out: &mut Outbox<'_, SoftDevice>,
    ) {
        if let Some(arrived) = self.large.read(out, token, result) {
            self.arrived(&arrived, out);
        }
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, SoftDevice>) {
        while let Some(arrived) = self.large.progress(out) {
            self.arrived(&arrived, out);
        }
        if let Some(peer) = self.link.peer
            && !self.idle_slots.is_empty()
        {
            self.offer(out, peer);
        }
    }

    fn on_peer_up(&mut self, peer: PeerId, _out: &mut Outbox<'_, SoftDevice>) {
        self.link.peer = Some(peer);
    }

    fn on_peer_down(&mut self, peer: PeerId, why: DownReason, _: &mut Outbox<'_, SoftDevice>) {
        while self.large.lost(peer).is_some() {}
        self.link.down = Some(why);
    }
}

impl Linked for Transfers {
    fn link(&self) -> &Link {
        &self.link
    }
}

struct Client {
    session: Session<Transfers>,
    /// Messages in both directions that were counted.
    counted: u64,
}

impl Stream for Client {
    /// The handlers offer without end; this waits for the next messages that are over.
    fn send(&mut self) -> Result<u64, Failure> {
        loop {
            self.session.turn()?;
            let over = self.session.worker.handler().over;
            if over > self.counted {
                return Ok(over - std::mem::replace(&mut self.counted, over));
            }
        }
    }

    /// Only what is over was counted.
    fn settle(&mut self) -> Result<(), Failure> {
        self.session.check()
    }
}
