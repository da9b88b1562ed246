//! `rping` of rdmacm-utils: the client exposes memory, the server reads it and writes it back.
//!
//! One round: the client says where its source is, the server READs it and says go on; the client
//! says where its sink is, the server WRITEs the same bytes there and says done. All messages
//! have 16 bytes: address, key, size, big-endian; the server's say nothing.

use doorbell::error::Code;
use doorbell::provider::Access;
use doorbell::wr::{Remote, SendFlags, SendOp};
use doorbell::{Buffer, CmError, ConnParam, Exposed, Fabric, Id, Program, QpInit};

use super::{Plan, arrived, carry_out, differs, expect_message};

/// Bytes of a message.
const LENGTH: usize = 16;

/// What both sides' queue pairs are made with: as the C program does.
fn queue_pair<F: Fabric>() -> QpInit<F> {
    QpInit::rc().send_wr(16).recv_wr(2)
}

/// Memory of the client, as it says it.
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

/// The text of a round: its number, then letters from one that moves on, then a zero.
fn text(round: usize, size: usize) -> Vec<u8> {
    let letters: Vec<u8> = (b'A'..=b'z').collect();
    let mut text = format!("rdma-ping-{round}: ").into_bytes();
    // Whole runs: a text may have many thousands of them.
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
    /// The next message; a further receive is posted in its place.
    fn take(&mut self) -> Result<Buffer<F>, CmError> {
        let message = expect_message(self.id.next_recv(self.plan.rest())?, LENGTH)?;
        self.id.post_recv(Buffer::new(self.fabric, LENGTH)?)?;
        message.buffer.ok_or_else(|| differs("a message", "its buffer", "none"))
    }

    fn say(&mut self, bytes: &[u8; LENGTH]) -> Result<(), CmError> {
        let mut buffer = Buffer::new(self.fabric, LENGTH)?;
        buffer.copy_from_slice(bytes);
        self.id.post_send(buffer, LENGTH, SendOp::Send, SendFlags::SIGNALED)?;
        arrived(self.id, &self.plan)
    }

    /// The client's next word, of which no more than `most` bytes are believed; none if it has
    /// left instead.
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

/// The other side of `rping -c`.
#[derive(Clone, Copy, Debug)]
pub struct RpingServer {
    /// Where to listen.
    pub plan: Plan,
    /// Bytes of a round at most.
    pub size: usize,
}

impl Program for RpingServer {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let mut listener = self.plan.listen(&fabric, Some(&queue_pair()))?;
        let mut id = listener.get_request(Some(self.plan.rest()))?;
        id.post_recv(Buffer::new(&fabric, LENGTH)?)?;
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
            side.say(&[0; LENGTH])?;
            let Some(sink) = side.advert(self.size)? else {
                return Err(differs("the client", "in the middle of a round", "gone"));
            };
            if sink.size != source.size {
                return Err(differs("the client's second size", source.size, sink.size));
            }
            carry_out(side.id, &self.plan, buffer, SendOp::Write(sink.at))?;
            side.say(&[0; LENGTH])?;
            rounds += 1;
        }
        if rounds == 0 {
            return Err(differs("the client", "at least one round", "gone before"));
        }
        id.disconnect()
    }
}

/// The other side of `rping -s`.
#[derive(Clone, Copy, Debug)]
pub struct RpingClient {
    /// Where to connect to.
    pub plan: Plan,
    /// Rounds.
    pub count: usize,
    /// Bytes of a round; the server allows as many as it was told.
    pub size: usize,
}

impl Program for RpingClient {
    type Output = Result<(), CmError>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let mut id = self.plan.active(&fabric, &queue_pair())?;
        id.post_recv(Buffer::new(&fabric, LENGTH)?)?;
        let one = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
        id.connect(&one)?;
        let source = Exposed::new(&fabric, self.size, Access::REMOTE_READ)?;
        let sink = Exposed::new(&fabric, self.size, Access::REMOTE_WRITE)?;
        let mut side = Side { fabric: &fabric, plan: self.plan, id: &mut id };
        for round in 0..self.count {
            source.write(0, &text(round, self.size))?;
            for memory in [&source, &sink] {
                side.say(&Advert { at: memory.remote(0), size: self.size }.encode())?;
                side.take()?;
            }
            let mut came = vec![0; self.size];
            sink.read(0, &mut came)?;
            if came != text(round, self.size) {
                let came = String::from_utf8_lossy(&came);
                return Err(differs("the server's text", format!("that of round {round}"), came));
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
    fn an_advert_comes_back_as_it_went() {
        let at = Remote { addr: 0x0102_0304_0506_0708, rkey: 0x0a0b_0c0d };
        let bytes = Advert { at, size: 65_536 }.encode();
        assert_eq!(bytes[..3], [1, 2, 3], "big-endian");
        let back = Advert::decode(&bytes).expect("it is one");
        assert_eq!((back.at, back.size), (at, 65_536));
        assert!(Advert::decode(&bytes[..15]).is_none());
    }
}
