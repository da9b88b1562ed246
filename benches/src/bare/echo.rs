//! Echoes of the device alone: both sides of `latency --bare`.

use std::net::{IpAddr, SocketAddr};

use doorbell::Fabric;

use crate::ask::request::Request;
use crate::bare::device::{Bare, Message, Shape, Verdict};
use crate::bare::open::{self, Door};
use crate::error::Failure;
use crate::meet::echoes::Echoes;
use crate::meet::line::{Answer, Line};
use crate::meet::tally::Tally;
use crate::meet::wire;

/// The serving side: sends every message back, for as many pieces as the request asks.
pub(crate) fn serve<F: Fabric>(
    fabric: &F,
    ip: IpAddr,
    request: &Request,
    line: &mut Line,
) -> Result<Vec<Tally>, Failure> {
    let door = Door::open(fabric, ip, request.transport)?;
    line.say(&Answer::Ready(vec![door.addr()?]));
    match request.is_other() {
        true => answers::<F, true>(fabric, door, request),
        false => answers::<F, false>(fabric, door, request),
    }
}

fn answers<F: Fabric, const OTHER: bool>(
    fabric: &F,
    door: Door<F>,
    request: &Request,
) -> Result<Vec<Tally>, Failure> {
    let mut bare: Bare<F, OTHER> = door.take(fabric, &Shape::echoes(request))?;
    let mut tallies = Vec::new();
    while tallies.len() < request.pieces as usize {
        match answer(&mut bare)? {
            Some(wire::MARK) => bare.mark(),
            Some(_) => {
                let mut tally = bare.tally();
                // The word that marks the end, and its answer, do not count.
                tally.completions = tally.completions.saturating_sub(1);
                tally.doorbells = tally.doorbells.saturating_sub(1);
                tallies.push(tally);
            }
            None => {}
        }
    }
    bare.part();
    Ok(tallies)
}

/// Polls once and sends every message back. Returns the immediate data of a word, if one came.
#[inline(always)]
pub(crate) fn answer<F: Fabric, const OTHER: bool>(
    bare: &mut Bare<F, OTHER>,
) -> Result<Option<u32>, Failure> {
    let mut word = None;
    bare.poll(|message| {
        if message.imm.is_none() {
            return Verdict::Back;
        }
        word = message.imm;
        Verdict::Say(wire::words(0, 0), wire::ACK)
    })?;
    Ok(word)
}

/// The connecting side.
pub(crate) struct Caller<F: Fabric, const OTHER: bool = false> {
    pub(crate) bare: Bare<F, OTHER>,
    size: usize,
    pub(crate) echoes: u64,
    pub(crate) wrong: u64,
}

impl<F: Fabric, const OTHER: bool> Caller<F, OTHER> {
    pub(crate) fn dial(
        fabric: &F,
        request: &Request,
        addr: SocketAddr,
    ) -> Result<Caller<F, OTHER>, Failure> {
        Ok(Caller::over(open::dial(fabric, addr, &Shape::echoes(request))?, request))
    }

    pub(crate) fn over(bare: Bare<F, OTHER>, request: &Request) -> Caller<F, OTHER> {
        Caller { bare, size: request.size as usize, echoes: 0, wrong: 0 }
    }

    /// Polls once and takes the echoes.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Result<(), Failure> {
        let Caller { bare, size, echoes, wrong } = self;
        bare.poll(|message: Message<'_>| {
            if !wire::is_stamped(message.bytes, *size, *echoes) {
                *wrong += 1;
            }
            *echoes += 1;
            Verdict::Done
        })?;
        Ok(())
    }
}

impl<F: Fabric, const OTHER: bool> Echoes for Caller<F, OTHER> {
    #[inline(always)]
    fn echoes(&mut self) -> u64 {
        self.echoes
    }

    fn wrong(&mut self) -> u64 {
        self.wrong
    }

    #[inline(always)]
    fn round(&mut self, payload: &[u8], number: u64) -> Result<(), Failure> {
        self.bare.send(payload, doorbell::wr::SendOp::Send)?;
        while self.echoes == number {
            self.take()?;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Failure> {
        self.bare.ask((0, 0), wire::MARK)?;
        self.bare.mark();
        Ok(())
    }

    fn end(&mut self) -> Result<Tally, Failure> {
        let tally = self.bare.tally();
        self.bare.ask((0, 0), wire::END)?;
        Ok(tally)
    }
}
