//! The handler of each worker: it acts at random, and records everything in the book.

use std::cell::RefCell;
use std::rc::Rc;

use doorbell::provider::Provider;
use doorbell::remote::RequestOp;
use doorbell::wc::Status;
use doorbell::worker::{
    DownReason, Handler, Message, Outbox, PeerId, Piece, Request, SendError, Token, Verdict,
};
use doorbell::wr::SendOp;

use super::book::{Book, End, Errand, Happening, SHELF, State};
use super::text::Stream;

/// The handler.
pub struct Clerk {
    /// The book that all share.
    pub book: Rc<RefCell<Book>>,
    /// The number of its worker, over both sides.
    pub desk: usize,
    /// Its side.
    pub side: usize,
    /// Messages it keeps, with their connections.
    pub kept: Vec<(usize, Token)>,
}

/// Sends the next message of a side. `Some(length)` if the worker accepted it.
pub fn send<P: Provider>(
    book: &mut Book,
    out: &mut Outbox<'_, P>,
    (conn, side): (usize, usize),
) -> Option<usize> {
    let end = &book.conns[conn].ends[side];
    let (Some(peer), State::Up) = (end.peer, end.state) else { return None };
    let number = end.sent[Stream::Send as usize];
    let text = book.text(conn, side, Stream::Send, number);
    let mut bytes = vec![0; text.length];
    text.write(&mut bytes);
    let result = match text.imm {
        _ if book.prng.chance(200) => request(book, out, (conn, side), &bytes, text.imm),
        Some(imm) => out.send_imm(peer, &bytes, imm),
        None if book.prng.chance(128) => out.send_now(peer, &bytes),
        None => out.send(peer, &bytes),
    };
    match result {
        Ok(()) => {
            book.conns[conn].ends[side].sent[Stream::Send as usize] += 1;
            book.note(Happening::Send { conn, from: side, number, length: text.length });
            return Some(text.length);
        }
        Err(error) => refused(book, (conn, side), error),
    }
    None
}

/// A message was refused: because of back-pressure, or something is wrong.
fn refused(book: &mut Book, (conn, side): (usize, usize), error: SendError) {
    match error {
        error if error.is_back_pressure() || error == SendError::NotConnected => {
            book.note(Happening::Back { conn, from: side });
        }
        error => book.fail(format!("connection {conn}: side {side} cannot send: {error}")),
    }
}

/// Sends the next few messages of a side as one list, up to the first with immediate data.
pub fn send_list<P: Provider>(
    book: &mut Book,
    out: &mut Outbox<'_, P>,
    (conn, side): (usize, usize),
    most: u32,
) {
    let end = &book.conns[conn].ends[side];
    let (Some(peer), State::Up) = (end.peer, end.state) else { return };
    let first = end.sent[Stream::Send as usize];
    let texts = (first..first + most).map(|number| book.text(conn, side, Stream::Send, number));
    let messages = texts.take_while(|text| text.imm.is_none()).map(|text| {
        let mut bytes = vec![0; text.length];
        text.write(&mut bytes);
        bytes
    });
    let messages: Vec<Vec<u8>> = messages.collect();
    let list: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
    let result = out.send_list(peer, &list);
    let taken = result.map_or_else(|error| error.accepted, |()| list.len());
    book.conns[conn].ends[side].sent[Stream::Send as usize] += taken as u32;
    for (number, bytes) in (first..).zip(list.iter().take(taken)) {
        book.note(Happening::Send { conn, from: side, number, length: bytes.len() });
    }
    if let Err(error) = result {
        refused(book, (conn, side), error.cause);
    }
}

/// Sends a message from the desk's memory, in one piece or two, if a place there is free.
fn request<P: Provider>(
    book: &mut Book,
    out: &mut Outbox<'_, P>,
    (conn, side): (usize, usize),
    bytes: &[u8],
    imm: Option<u32>,
) -> Result<(), SendError> {
    let End { desk, peer, .. } = book.conns[conn].ends[side];
    let cut = book.prng.below(bytes.len() as u64 + 1) as usize;
    let whole = book.prng.chance(512);
    let places = &mut book.places[desk];
    let (Some(peer), Some(region)) = (peer, places.region) else {
        return Err(SendError::NotConnected);
    };
    let token = places.free.pop().ok_or(SendError::TooMany)?;
    let offset = token as usize * book.plan.sides[side].config.block_bytes as usize;
    out.copy_in(region, offset, bytes)?;
    let piece = |from: usize, to: usize| Piece {
        region,
        offset: offset + from,
        length: (to - from) as u32,
    };
    let (one, two) = ([piece(0, bytes.len())], [piece(0, cut), piece(cut, bytes.len())]);
    let pieces = if whole { &one[..] } else { &two[..] };
    let op = imm.map_or(RequestOp::SEND, RequestOp::send_with_imm);
    let result = out.request(peer, &Request { op, pieces, fence: whole, token });
    let places = &mut book.places[desk];
    match result {
        Ok(()) => drop(places.busy.insert(token, (conn, Errand::Message))),
        Err(_) => places.free.push(token),
    }
    result
}

/// Adds to the far desk's word, or reads from its shelf, if a place for the result is free.
fn ask<P: Provider>(book: &mut Book, out: &mut Outbox<'_, P>, (conn, side): (usize, usize)) {
    let ends = &book.conns[conn].ends;
    let (far, End { desk, peer, .. }) = (ends[1 - side].desk, &ends[side]);
    let (desk, Some(peer), Some(remote)) = (*desk, *peer, book.places[far].remote) else {
        return;
    };
    let block = book.plan.sides[side].config.block_bytes as usize;
    let length = book.prng.below(block.min(SHELF) as u64 + 1) as usize;
    let (op, errand, length) = match book.prng.chance(512) {
        true => (SendOp::FetchAdd { at: remote, add: 1 }, Errand::Add(far), 8),
        false => (SendOp::Read(remote.offset(8)), Errand::Read(far, length), length),
    };
    let places = &mut book.places[desk];
    let Some(region) = places.region else { return };
    let Some(token) = places.free.pop() else { return };
    let offset = token as usize * block;
    let pieces = [Piece { region, offset, length: length as u32 }];
    let fence = token % 2 == 0;
    if out
        .request(peer, &Request { op: RequestOp::unchecked(op), pieces: &pieces, fence, token })
        .is_err()
    {
        return places.free.push(token);
    }
    places.busy.insert(token, (conn, errand));
    book.note(Happening::Ask { conn, from: side, errand });
}

impl Clerk {
    /// Writes the next reply to a connection over a message; returns its length.
    fn write(&self, book: &mut Book, conn: usize, message: &mut Message<'_>) -> usize {
        let end = &mut book.conns[conn].ends[self.side];
        let number = end.sent[Stream::Reply as usize];
        end.sent[Stream::Reply as usize] += 1;
        let text = book.text(conn, self.side, Stream::Reply, number);
        text.write(message.block());
        book.note(Happening::Reply { conn, from: self.side, number, length: text.length });
        text.length
    }

    /// Answers a kept message, or gives it back; all of them when nothing new is sent any more.
    fn tidy<P: Provider>(&mut self, book: &mut Book, out: &mut Outbox<'_, P>) {
        while !self.kept.is_empty() && (book.still || book.prng.chance(300)) {
            let any = book.prng.below(self.kept.len() as u64) as usize;
            let (conn, token) = self.kept.swap_remove(any);
            let up = book.conns[conn].ends[self.side].state == State::Up;
            let Some(mut message) = out.kept(token) else {
                if up {
                    book.fail(format!("connection {conn} is up, and a message kept is lost"));
                }
                continue;
            };
            if up && !book.still && !book.replies_out(self.side) {
                let length = self.write(book, conn, &mut message);
                if out.reply(token, length).is_err() {
                    // Its peer is failing, which the handler has not been told yet.
                    book.conns[conn].ends[self.side].sent[Stream::Reply as usize] -= 1;
                }
            } else {
                out.give_back(token);
            }
        }
    }

    fn burst<P: Provider>(&self, book: &mut Book, out: &mut Outbox<'_, P>) {
        let up = book.up_at(self.side, self.desk);
        if up.is_empty() {
            return;
        }
        let conn = book.prng.pick(&up);
        while book.prng.chance(book.plan.habits.ask) {
            ask(book, out, (conn, self.side));
        }
        let most = book.prng.range(1, book.plan.habits.burst);
        if book.prng.chance(300) {
            send_list(book, out, (conn, self.side), most as u32);
        }
        for _ in 0..most {
            if send(book, out, (conn, self.side)).is_none() {
                break;
            }
        }
        if book.prng.chance(100) {
            out.flush();
        }
    }
}

impl<P: Provider> Handler<P> for Clerk {
    fn on_message(&mut self, mut message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        let book = self.book.clone();
        let mut book = book.borrow_mut();
        let (peer, imm) = (message.peer(), message.imm());
        let at = (self.side, self.desk);
        let Some((conn, stream)) = book.got(at, peer, message.bytes(), imm) else {
            return Verdict::Done;
        };
        if book.still {
            return Verdict::Done;
        }
        let habits = book.plan.habits;
        if book.prng.chance(habits.send_more) {
            self.burst(&mut book, out);
        }
        let odds = if stream == Stream::Send { habits.reply } else { habits.reply_again };
        if book.prng.chance(habits.keep)
            && let Some(token) = out.keep(&message)
        {
            self.kept.push((conn, token));
            return Verdict::Keep(token);
        }
        let end = &book.conns[conn].ends[self.side];
        if end.quiet || !book.prng.chance(odds) || book.replies_out(self.side) {
            return Verdict::Done;
        }
        Verdict::Reply { len: self.write(&mut book, conn, &mut message) }
    }

    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let mut book = self.book.borrow_mut();
        let Some(conn) = book.up(self.side, self.desk, peer) else { return };
        if !book.still && book.prng.chance(512) {
            send(&mut book, out, (conn, self.side));
        }
    }

    fn on_peer_down(&mut self, peer: PeerId, why: DownReason, out: &mut Outbox<'_, P>) {
        let mut book = self.book.borrow_mut();
        book.down(self.side, self.desk, peer, why);
        if out.send(peer, &[]) != Err(SendError::NotConnected) || out.room(peer) != 0 {
            book.fail(format!("desk {}: {peer:?} is down and takes messages", self.desk));
        }
    }

    fn on_send_done(
        &mut self,
        _: PeerId,
        token: u64,
        result: Result<(), Status>,
        out: &mut Outbox<'_, P>,
    ) {
        let mut book = self.book.borrow_mut();
        let block = book.plan.sides[self.side].config.block_bytes as usize;
        let region = book.places[self.desk].region;
        book.answered(self.desk, token, result, |length| {
            let mut bytes = vec![0; length];
            let copied = region.map(|from| out.copy_out(from, token as usize * block, &mut bytes));
            // A region that cannot be read fails every comparison.
            if let Some(Ok(())) = copied { bytes } else { Vec::new() }
        });
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        let book = self.book.clone();
        let mut book = book.borrow_mut();
        self.tidy(&mut book, out);
        let odds = book.plan.habits.send;
        if !book.still && book.prng.chance(odds) {
            self.burst(&mut book, out);
        }
    }
}
