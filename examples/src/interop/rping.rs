//! `rping` of rdmacm-utils: the client exposes memory, the server reads it and writes it back.
//!
//! In each round the client advertises its source buffer, and the server READs it and sends a
//! message back. Then the client advertises its sink buffer, and the server WRITEs the same bytes
//! there and sends another message. All messages have 16 bytes: address, key and size, big-endian.
//! Those of the server are empty.

use doorbell::error::Code;
use doorbell::provider::Access;
use doorbell::wr::{Remote, SendFlags, SendOp};
use doorbell::{Buffer, CmError, ConnParam, Exposed, Fabric, Id, Program, QpInit};

use super::common::{Plan, arrived, carry_out, differs, expect_message};

/// Bytes of a message.
const LENGTH: usize = 16;

/// The queue pair of either side, as in the C program.
fn queue_pair<F: Fabric>() -> QpInit<F> {
    QpInit::rc().send_wr(16).recv_wr(2)
}

/// A message of the client: where one of its buffers is.
struct Advert {
    at: Remote,
    size: usize,
}

impl Advert {
    fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(&self.at.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.at.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&(self.size as u32).to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Advert> {
        let (addr, rest) = bytes.split_first_chunk()?;
        let (rkey, rest) = rest.split_first_chunk()?;
        let size = u32::from_be_bytes(rest.try_into().ok()?);
        let at = Remote { addr: u64::from_be_bytes(*addr), rkey: u32::from_be_bytes(*rkey) };
        Some(Advert { at, size: size as usize })
    }
}

/// The text of a round: its number, then letters that start one further each round, then a zero.
fn text(round: usize, size: usize) -> Vec<u8> {
    let letters: Vec<u8> = (b'A'..=b'z').collect();
    let mut text = format!("rdma-ping-{round}: ").into_bytes();
    // By whole alphabets, because a text may have thousands of them.
    text.extend(&letters[round % letters.len()..]);
    text.extend(letters.repeat(size / letters.len() + 1));
    text.truncate(size);
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    text
}

/// One side, connected.
struct Side<'a, F: Fabric> {
    fabric: &'a F,
    plan: Plan,
    id: &'a mut Id<F>,
}

impl<F: Fabric> Side<'_, F> {
    /// Takes the next message, and posts another receive.
    fn take(&mut self) -> Result<Buffer<F>, CmError> {
        let message = expect_message(self.id.queues().next_recv(self.plan.time_left())?, LENGTH)?;
        self.id.queues().post_recv(Buffer::new(self.fabric, LENGTH)?)?;
        message.buffer.ok_or_else(|| differs("a message", "its buffer", "none"))
    }

    fn send(&mut self, bytes: &[u8; LENGTH]) -> Result<(), CmError> {
        let mut buffer = Buffer::new(self.fabric, LENGTH)?;
        buffer.copy_from_slice(bytes);
        self.id.queues().post_send(buffer, LENGTH, SendOp::Send, SendFlags::SIGNALED)?;
        arrived(self.id, &self.plan)
    }

    /// The client's next advert, of at most `most` bytes; `None` if the client has disconnected.
    fn advert(&mut self, most: usize) -> Result<Option<Advert>, CmError> {
        let message = match self.take() {
            Err(error) if error.code() == Code::Reset => return Ok(None),
            message => message?,
        };
        let Some(advert) = Advert::decode(&message) else { return Ok(None) };
        if advert.size == 0 || advert.size > most {
            return Err(differs("the client's size", format!("1 to {most}"), advert.size));
        }
        Ok(Some(advert))
    }
}

/// The counterpart of `rping -c`.
#[derive(Clone, Copy, Debug)]
pub struct RpingServer {
    /// Where to listen.
    pub plan: Plan,
    /// The most bytes that a round may have.
    pub size: usize,
}

impl Program for RpingServer {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let mut listener = self.plan.listen(&fabric, Some(&queue_pair()))?;
        let mut id = listener.get_request(Some(self.plan.time_left()))?;
        id.queues().post_recv(Buffer::new(&fabric, LENGTH)?)?;
        id.accept(&ConnParam::default())?;
        let mut side = Side { fabric: &fabric, plan: self.plan, id: &mut id };
        let mut rounds = 0;
        while let Some(source) = side.advert(self.size)? {
            let buffer = Buffer::new(&fabric, source.size)?;
            let buffer = carry_out(side.id, &self.plan, buffer, SendOp::Read(source.at))?;
            if buffer[..] != text(rounds, source.size) {
                let text = String::from_utf8_lossy(&buffer);
                return Err(differs("the client's text", format!("that of round {rounds}"), text));
            }
            side.send(&[0; LENGTH])?;
            let Some(sink) = side.advert(self.size)? else {
                return Err(differs("the client", "the rest of the round", "gone"));
            };
            if sink.size != source.size {
                return Err(differs("the client's second size", source.size, sink.size));
            }
            carry_out(side.id, &self.plan, buffer, SendOp::Write(sink.at))?;
            side.send(&[0; LENGTH])?;
            rounds += 1;
        }
        if rounds == 0 {
            return Err(differs("the client", "at least one round", "gone before"));
        }
        id.disconnect()
    }
}

/// The counterpart of `rping -s`.
#[derive(Clone, Copy, Debug)]
pub struct RpingClient {
    /// Where to connect to.
    pub plan: Plan,
    /// Number of rounds.
    pub count: usize,
    /// Bytes of a round; the server must allow as many.
    pub size: usize,
}

impl Program for RpingClient {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let mut id = self.plan.active(&fabric, &queue_pair())?;
        id.queues().post_recv(Buffer::new(&fabric, LENGTH)?)?;
        let param =
            ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
        id.connect(&param)?;
        let source = Exposed::new(&fabric, self.size, Access::REMOTE_READ)?;
        let sink = Exposed::new(&fabric, self.size, Access::REMOTE_WRITE)?;
        let mut side = Side { fabric: &fabric, plan: self.plan, id: &mut id };
        for round in 0..self.count {
            source.write(0, &text(round, self.size))?;
            for memory in [&source, &sink] {
                side.send(&Advert { at: memory.remote(0), size: self.size }.encode())?;
                side.take()?;
            }
            let mut received = vec![0; self.size];
            sink.read(0, &mut received)?;
            if received != text(round, self.size) {
                let text = String::from_utf8_lossy(&received);
                return Err(differs("the server's text", format!("that of round {round}"), text));
            }
        }
        id.disconnect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_that_of_rping() {
        assert_eq!(text(0, 20), b"rdma-ping-0: ABCDEF\0");
        assert_eq!(text(12, 18), b"rdma-ping-12: MNO\0");
        assert_eq!(text(57, 18), b"rdma-ping-57: zAB\0");
        assert_eq!(text(58, 18), b"rdma-ping-58: ABC\0");
        assert_eq!(text(3, 4), b"rdm\0");
    }

    #[test]
    fn an_advert_is_decoded_as_it_was_encoded() {
        let at = Remote { addr: 0x0102_0304_0506_0708, rkey: 0x0a0b_0c0d };
        let bytes = Advert { at, size: 65_536 }.encode();
        assert_eq!(bytes[..3], [1, 2, 3], "big-endian");
        let back = Advert::decode(&bytes).expect("an advert");
        assert_eq!((back.at, back.size), (at, 65_536));
        assert!(Advert::decode(&bytes[..15]).is_none());
    }
}
