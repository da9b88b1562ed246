//! Responses over the wire: a flow of their own, beside the other records of a connection.

use super::super::mistake::Mistake;
use super::conn::{Conn, Lane, Line, open_to};
use super::{Record, Wire, Word};

impl Wire {
    /// Reads the responses that the domain on that side wrote, as far as the window allows, and
    /// sends them.
    pub(super) fn read_responses(&mut self, line: usize, side: usize) {
        while self.lines[line].ports[side].has_response()
            && self.flying(line, side, |conn| &conn.responses) < self.patience.window
        {
            let Some(record) = self.lines[line].ports[side].next_response() else { return };
            let Some(number) = open_to(&self.conns, &self.open, line, side, record.qp()) else {
                continue;
            };
            let conn = &mut self.conns[number];
            let replayed =
                record.answers() && conn.owed[1 - side].pop_front().is_some_and(|replay| replay);
            let sender = &mut conn.responses.senders[side];
            if sender.dead || replayed {
                continue;
            }
            let psn = sender.push(record.clone(), self.now, &self.patience);
            self.send(number, 1 - side, Lane::Responses, Word::Data { psn, record });
        }
    }

    /// Writes the responses that have arrived to their domain, as far as the ring has space.
    pub(super) fn write_responses(&mut self, number: usize, from: usize) {
        if self.holds_responses(number, from) {
            return;
        }
        let conn = &mut self.conns[number];
        let Line { ports, .. } = &mut self.lines[conn.line];
        let receiver = &mut conn.responses.receivers[from];
        if conn.responses.senders[from].dead && receiver.ready.is_empty() && conn.asks[1 - from] > 0
        {
            // Nothing comes from that side any more.
            receiver.ready.push_back((None, Record::no_answer(conn.nums[1 - from])));
        }
        let mut taken = false;
        while let Some((psn, record)) = receiver.ready.front()
            && ports[1 - from].write_response(record)
        {
            let (psn, last) = (*psn, record.answers());
            receiver.ready.pop_front();
            conn.asks[1 - from] -= i32::from(last);
            // The domain takes it whenever it polls.
            taken |= psn.is_some_and(|psn| receiver.take(psn));
        }
        if taken {
            let ack = receiver.ack(false);
            self.send(number, from, Lane::Responses, Word::Ack(ack));
        }
    }

    /// True if the planted mistake holds the responses back.
    fn holds_responses(&self, number: usize, from: usize) -> bool {
        let line = self.conns[number].line;
        let untaken = |conn: &Conn| conn.line == line && conn.requests.senders[from].has_untaken();
        self.mistake == Some(Mistake::ResponseBehindMessages) && self.conns.iter().any(untaken)
    }
}
