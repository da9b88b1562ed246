//! The posts: any mix of requests, some of which must be refused.

use doorbell::provider::call::Call;
use doorbell::provider::{Access, Doorbell, InlineSend, Qp, Window, WindowKind};
use doorbell::soft::sim::Prng;
use doorbell::wr::{Binding, Remote, SendFlags, SendOp, SendWr, Sge};

use super::super::trace::{Trace, now};
use super::conn::{Conn, End, Path, WindowState, at_end};
use super::direction::{What, Wrong};
use super::field::{bind, send};
use super::plan::Plan;
use super::side::Side;
use super::sizes::{FIRST_SLOT, INLINE, PIECE, SHELF, SLOTS};
use super::world::{Step, World};

/// A request that is about to be posted.
struct Draft {
    what: What,
    op: SendOp,
    /// Bytes, from or to the place of the request.
    length: usize,
    /// An explicit local key.
    lkey: Option<u32>,
}

impl Draft {
    fn new(what: What, op: SendOp, length: usize) -> Draft {
        Draft { what, op, length, lkey: None }
    }
}

/// A request with everything that a device needs.
struct Ready {
    number: u64,
    op: SendOp,
    flags: SendFlags,
    sge: Sge,
    more: Vec<Sge>,
    /// The bytes of a message that may take any path: inline, and without a flag that
    /// [`InlineSend`] lacks.
    plain: Option<Vec<u8>>,
}

impl Ready {
    fn wr(&self) -> SendWr<'_> {
        let Ready { number: wr_id, op, flags, sge, more, .. } = self;
        SendWr { wr_id: *wr_id, op: *op, flags: *flags, sge: *sge, more }
    }

    /// The binding, if the request is one.
    fn binding(&self) -> Option<Binding> {
        match self.op {
            SendOp::Bind(binding) => Some(binding),
            _ => None,
        }
    }

    /// The message, if it may be posted inline.
    fn inline(&self) -> Option<InlineSend> {
        let bytes = self.plain.as_deref()?;
        let signaled = self.flags.contains(SendFlags::SIGNALED);
        Some(InlineSend { wr_id: self.number, sge: Sge::inline(bytes), imm: None, signaled })
    }

    /// Its bytes, if it is an inline message without immediate data and completion.
    fn silent(&self) -> Option<&[u8]> {
        self.plain.as_deref().filter(|_| !self.flags.contains(SendFlags::SIGNALED))
    }
}

/// Posts the first request of a list inline, or more of them; returns how many were taken.
fn post_inline<Q: Qp>(qp: &mut Q, path: Path, list: &[Ready]) -> usize {
    let Some(first) = list.first() else { return 0 };
    let silent: Vec<&[u8]> = list.iter().map_while(Ready::silent).collect();
    let call = match path {
        Path::Now => first.inline().map(|send| Call::Inline(send, Doorbell::Now)),
        Path::Later => first.inline().map(|send| Call::Inline(send, Doorbell::Later)),
        Path::InlineList => Some(Call::InlineList(first.number, &silent)),
        Path::List => None,
    };
    call.map_or(0, |call| send(qp, call).unwrap_or(0))
}

/// One end of a connection, and what its posts need.
pub(super) struct Poster<'a> {
    /// The number of the connection, and this side of it.
    number: usize,
    side: usize,
    conn: &'a mut Conn,
    near: &'a Side,
    far: &'a Side,
    plan: &'a Plan,
    prng: &'a mut Prng,
    trace: &'a mut Trace,
    failure: &'a mut Option<String>,
}

impl World {
    /// One end of a connection, to post at.
    pub(super) fn poster(&mut self, number: usize, side: usize) -> Poster<'_> {
        let World { conns, sides, plan, prng, trace, failure, .. } = self;
        let (conn, near, far) = (&mut conns[number], &sides[side], &sides[1 - side]);
        Poster { number, side, conn, near, far, plan, prng, trace, failure }
    }
}

impl Poster<'_> {
    /// Posts a few requests: one by one, or as a list; of any kind, or short messages.
    pub(super) fn burst(&mut self) {
        let (gather, short) = (self.prng.chance(300), self.prng.chance(self.plan.short));
        let mut list = Vec::new();
        for _ in 0..self.prng.range(1, self.plan.burst) {
            let Some((draft, signaled)) = self.any(short) else { break };
            let ready = self.ready(&draft, signaled);
            list.push(ready);
            if !gather && !self.hand(&std::mem::take(&mut list)) {
                return;
            }
        }
        self.hand(&list);
    }

    /// Any request, if there is room, and whether it completes.
    fn any(&mut self, short: bool) -> Option<(Draft, bool)> {
        if !self.has_room() {
            return None;
        }
        let draft = match () {
            () if self.prng.chance(self.plan.wrong) => self.wrong(),
            () if short => {
                // A device prepares for short ones, as far as its queue has room.
                let most = self.prng.pick(&[8, INLINE as u64]);
                let length = self.prng.below(most + 1) as usize;
                Some(Draft::new(What::Send { key: None }, SendOp::Send, length))
            }
            () => self.draw(),
        };
        Some((draft?, self.prng.chance(self.plan.signal)))
    }

    /// Rings for the messages that wait for a doorbell.
    pub(super) fn ring(&mut self) {
        let end = &mut self.conn.ends[self.side];
        if let (Some(qp), true) = (&mut end.qp, end.pending) {
            end.pending = false;
            let _ = send(qp, Call::Doorbell);
        }
    }

    /// Hands requests to the device by any path that they may take. False if it refused one.
    fn hand(&mut self, list: &[Ready]) -> bool {
        let mut rest = list;
        while let Some(first) = rest.first() {
            if let Some(binding) = self.bound_by_call(first) {
                if !self.bind_by_call(first, binding) {
                    return false;
                }
                rest = &rest[1..];
                continue;
            }
            let called = |ready: &Ready| self.bound_by_call(ready).is_some();
            let listed = rest.iter().position(called).unwrap_or(rest.len());
            let path = self.path();
            let end = &mut self.conn.ends[self.side];
            let Some(qp) = &mut end.qp else { return false };
            let mut done = post_inline(qp, path, rest);
            end.pending |= done > 0 && path != Path::Now;
            end.path = path;
            if done == 0 {
                done = if path == Path::List { listed } else { 1 };
                let wrs: Vec<SendWr<'_>> = rest[..done].iter().map(Ready::wr).collect();
                (end.path, end.pending) = (Path::List, false);
                if let Err(error) = send(qp, Call::Post(&wrs)) {
                    let number = rest[0].number;
                    self.fail(&format!("request {number} is refused: {error:?}"));
                    return false;
                }
            }
            rest = &rest[done..];
        }
        true
    }

    /// The binding, if it is of a window of type 1: a call binds that.
    fn bound_by_call(&self, ready: &Ready) -> Option<Binding> {
        let kind = self.conn.ends[self.side].window.kind();
        ready.binding().filter(|_| kind == WindowKind::One)
    }

    /// Binds a window of type 1. False if the device refused it.
    fn bind_by_call(&mut self, ready: &Ready, binding: Binding) -> bool {
        let Conn { ends, directions, .. } = &mut *self.conn;
        let End { qp: Some(qp), window, .. } = &mut ends[self.side] else { return false };
        match bind(window, qp, binding, ready.number, ready.flags) {
            Ok(key) => directions[self.side].bound(ready.number, key),
            Err(error) => {
                let number = ready.number;
                self.fail(&format!("binding {number} is refused: {error:?}"));
                return false;
            }
        }
        true
    }

    /// A rule was broken at this end.
    fn fail(&mut self, what: &str) {
        let (conn, side) = (self.number, self.side);
        self.failure.get_or_insert_with(|| at_end((conn, side), what));
    }

    /// Chooses a path. Consecutive messages usually take the same one, because a device prepares
    /// for that.
    fn path(&mut self) -> Path {
        let again = self.prng.chance(700);
        match self.conn.ends[self.side].path {
            path @ (Path::Now | Path::Later) if again => path,
            _ => self.prng.pick(&[Path::Now, Path::Later, Path::InlineList, Path::List]),
        }
    }

    /// Posts a request that completes, so that all before it are known to be over. False if there
    /// is no room.
    pub(super) fn post_last(&mut self) -> bool {
        let draft = self.add();
        self.has_room() && self.post(&draft, true)
    }

    /// Posts a message that completes.
    pub(super) fn post_message(&mut self) -> bool {
        let draft = Draft::new(What::Send { key: None }, SendOp::Send, 100);
        self.has_room() && self.post(&draft, true)
    }

    fn has_room(&self) -> bool {
        let direction = &self.conn.directions[self.side];
        self.conn.may_post(self.side) && direction.queue.len() < self.plan.sides[self.side].depth
    }

    fn length(&mut self) -> usize {
        let most = match self.prng.below(4) {
            0 => self.plan.longest,
            _ => self.plan.longest.min(100),
        };
        self.prng.below(most as u64 + 1) as usize
    }

    /// Adds one to the peer's word that all add to.
    fn add(&self) -> Draft {
        Draft::new(What::Add, SendOp::FetchAdd { at: self.far.field.remote(0), add: 1 }, 8)
    }

    fn draw(&mut self) -> Option<Draft> {
        let length = self.length();
        let draft = match self.prng.below(16) {
            0..4 => self.message(length),
            4..8 => return self.write(length),
            8..10 => return self.read(),
            10 => {
                let skip = self.prng.below((SHELF - PIECE) as u64) as usize;
                let at = self.far.shelf.remote(skip);
                Draft::new(What::Shelf { skip, length }, SendOp::Read(at), length)
            }
            11..14 => self.add(),
            14 => {
                let direction = &self.conn.directions[self.side];
                let (before, takes) = (direction.word, self.prng.chance(700));
                let at = self.far.field.remote(direction.word_place());
                let compare = if takes { before } else { before + 1000 };
                let op = SendOp::CompareSwap { at, compare, swap: before + 1 };
                Draft::new(What::Swap { before, takes }, op, 8)
            }
            _ => return self.bind(),
        };
        Some(draft)
    }

    fn message(&mut self, length: usize) -> Draft {
        let shuts = self.prng.chance(300);
        let end = &mut self.conn.ends[1 - self.side];
        match end.window_state {
            WindowState::Open(key) if shuts && end.window.kind() == WindowKind::Two => {
                end.window_state = WindowState::Shutting;
                Draft::new(What::Send { key: Some(key) }, SendOp::SendWithInv(key), length)
            }
            _ => Draft::new(What::Send { key: None }, SendOp::Send, length),
        }
    }

    fn write(&mut self, length: usize) -> Option<Draft> {
        let (tells, through) = (self.prng.chance(300), self.prng.chance(512));
        let direction = &self.conn.directions[self.side];
        let slot = direction.slots.iter().position(|slot| !slot.written)?;
        let mut at = self.far.field.remote(direction.place(slot));
        if let (true, WindowState::Open(key)) =
            (through, self.conn.ends[1 - self.side].window_state)
        {
            at.rkey = key;
        }
        let number = direction.next as u32;
        Some(match tells {
            true => Draft::new(What::WriteImm { slot }, SendOp::WriteWithImm(at, number), length),
            false => Draft::new(What::Write { slot }, SendOp::Write(at), length),
        })
    }

    fn read(&mut self) -> Option<Draft> {
        let first = self.prng.below(SLOTS as u64) as usize;
        let direction = &self.conn.directions[self.side];
        let mut slots = (0..SLOTS).map(|n| (first + n) % SLOTS);
        let slot = slots.find(|slot| direction.slots[*slot].written)?;
        let (version, whole) = (direction.slots[slot].version, direction.slots[slot].length);
        let skip = self.prng.below(whole as u64 + 1) as usize;
        let length = self.prng.below((whole - skip) as u64 + 1) as usize;
        let place = self.conn.directions[self.side].place(slot);
        let at = self.far.field.remote(place + skip);
        Some(Draft::new(What::Read { slot, version, skip, length }, SendOp::Read(at), length))
    }

    /// Opens this end's window on the memory that the peer writes to.
    fn bind(&mut self) -> Option<Draft> {
        let place = self.conn.directions[1 - self.side].place(0);
        let field = &self.near.field;
        let end = &mut self.conn.ends[self.side];
        if end.window_state != WindowState::Shut {
            return None;
        }
        end.window_state = WindowState::Opening;
        end.rkey = end.rkey & !0xff | end.rkey.wrapping_add(1) & 0xff;
        let binding = Binding {
            window: end.window.handle(),
            region: field.handle(),
            addr: field.remote(place).addr,
            length: (SLOTS * PIECE) as u64,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            rkey: end.rkey,
        };
        Some(Draft::new(What::Bind { key: end.rkey }, SendOp::Bind(binding), 0))
    }

    /// A request that must be refused; only one for each end.
    fn wrong(&mut self) -> Option<Draft> {
        let all = [
            Wrong::Key,
            Wrong::Bounds,
            Wrong::Right,
            Wrong::Closed,
            Wrong::Odd,
            Wrong::Long,
            Wrong::Local,
        ];
        let old = self.conn.ends[1 - self.side].old_key.is_some() && self.prng.chance(512);
        let any = all[self.prng.below(all.len() as u64) as usize];
        let wrong = if old { Wrong::Closed } else { any };
        let kind = self.prng.below(3);
        if self.conn.directions[self.side].wrong.is_some() {
            return None;
        }
        let peer = self.far;
        let first = peer.field.remote(FIRST_SLOT);
        let any = |at: Remote, length: usize| match kind {
            0 => (SendOp::Write(at), length),
            1 => (SendOp::Read(at), length),
            _ => (SendOp::FetchAdd { at, add: 1 }, 8),
        };
        let (op, length) = match wrong {
            Wrong::Key => any(Remote { rkey: first.rkey ^ 0x10_0100, ..first }, 16),
            Wrong::Bounds => any(peer.field.remote(peer.field.size()), 16),
            Wrong::Right => (SendOp::Write(peer.shelf.remote(0)), 16),
            Wrong::Closed => {
                let rkey = self.conn.ends[1 - self.side].old_key?;
                (SendOp::Write(Remote { rkey, ..first }), 16)
            }
            Wrong::Odd => (SendOp::FetchAdd { at: first.offset(1), add: 1 }, 8),
            Wrong::Long => (SendOp::Send, PIECE + 1),
            Wrong::Local => (SendOp::Send, 100),
        };
        let lkey = (wrong == Wrong::Local).then_some(0xdead_0000);
        Some(Draft { what: What::Wrong(wrong), op, length, lkey })
    }

    /// Posts a request. False if the device refused it.
    fn post(&mut self, draft: &Draft, signaled: bool) -> bool {
        let ready = self.ready(draft, signaled);
        self.hand(&[ready])
    }

    /// Enters a request in the account of its end, and prepares it for posting.
    fn ready(&mut self, draft: &Draft, signaled: bool) -> Ready {
        let Draft { what, op, length, lkey } = *draft;
        let cut = self.prng.below(length as u64 + 1) as usize;
        let (split, inline) = (self.prng.chance(200), self.prng.chance(600));
        let (fence, solicited) = (self.prng.chance(60), self.prng.chance(60));
        let depth = self.plan.sides[self.side].depth;
        let Conn { ends, directions, .. } = &mut *self.conn;
        let (end, direction) = (&ends[self.side], &mut directions[self.side]);
        let (number, local) = (direction.next, &self.near.local);
        let buffer = direction.buffer(number);
        let bytes = match what {
            What::Send { .. } => direction.text(number, length),
            What::Write { slot } | What::WriteImm { slot } => {
                direction.written(direction.slots[slot].version + 1, length)
            }
            _ => Vec::new(),
        };
        local.fill(buffer, &bytes);
        // The last one for which there is room completes, so that there is room again.
        let signaled = signaled || end.signal_all || direction.queue.len() + 1 >= depth;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::FENCE, fence);
        flags.set(SendFlags::SOLICITED, solicited && op.is_send());
        let outward = op.is_outward() && length > 0 && lkey.is_none();
        flags.set(SendFlags::INLINE, inline && outward && length <= INLINE);
        let (mut sge, mut more) = (local.sge(buffer, length), Vec::new());
        sge.lkey = lkey.unwrap_or(sge.lkey);
        if matches!(op, SendOp::Bind(_)) {
            sge = Sge::default();
        } else if split && lkey.is_none() && length > 8 {
            more.push(local.sge(buffer + cut, length - cut));
            sge.length = cut as u32;
        }
        direction.push(what, length, signaled);
        let (conn, side) = (self.number, self.side);
        self.trace.note(now(), &Step::Post { conn, side, number, what, length });
        let bare = flags.difference(SendFlags::SIGNALED) == SendFlags::INLINE && more.is_empty();
        let plain = (op == SendOp::Send && bare).then_some(bytes);
        Ready { number, op, flags, sge, more, plain }
    }
}
