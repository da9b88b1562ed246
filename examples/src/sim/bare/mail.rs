//! Datagrams: each arrives whole or not at all, names its sender, and reaches its receivers only.

use std::collections::VecDeque;

use doorbell::error::SetupError;
use doorbell::provider::call::Call;
use doorbell::provider::{
    Access, AddressHandle, AddressVector, Datagrams, GRH_BYTES, Gid, Multicast, Qp, QpCaps, QpType,
};
use doorbell::soft::sim::{Prng, mix};
use doorbell::soft::{SoftAh, SoftQpEx, SoftQpInit, SoftSrq};
use doorbell::wc::{Status, Wc, WcFlags};
use doorbell::wr::{Destination, MULTICAST_QPN, RecvWr, SendFlags, SendOp, SendWr};

use super::super::device::{Device, DeviceCq, DeviceQp, wrapped};
use super::field::{Field, pattern, post_recv, send};

/// In a request's number: it belongs to a UD queue pair.
pub const MAIL: u64 = 1 << 62;
/// In a request's number: it is a receive.
pub const RECV: u64 = 1 << 63;

const QKEY: u32 = 0x0123_4567;
const GROUP: Gid = Gid([0xff, 14, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3]);
/// The most bytes of a datagram.
const LONGEST: usize = 4096;
/// Room for one with its header.
const PLACE: usize = 8192;
/// The most sends of a queue pair at a time; and the most receives.
const DEPTH: usize = 16;

/// A UD queue pair.
struct Mailer {
    /// Side and completion queue.
    at: (usize, usize),
    qp: DeviceQp,
    joined: bool,
    field: Field,
    next: u64,
    /// Sends that are not over, and whether they complete on success.
    queue: VecDeque<(u64, bool)>,
    /// Free receive places.
    free: Vec<usize>,
}

/// A datagram that was sent.
struct Sent {
    from: usize,
    /// To one queue pair, or to the group.
    to: Option<usize>,
    length: usize,
    imm: Option<u32>,
    /// Its key is not the receiver's: it must not arrive.
    lost: bool,
    /// How often it arrived, by receiver.
    seen: Vec<u8>,
}

/// The datagrams of a world.
pub struct Mail {
    // Before the handles that their sends name.
    mailers: Vec<Mailer>,
    /// By side: the address handles of the devices, by side, and of the group.
    ways: Vec<([SoftAh; 2], SoftAh)>,
    sent: Vec<Sent>,
    seed: u64,
    /// How often one may arrive: twice where the network doubles packets. Nobody notices a second
    /// copy, because the devices do not number datagrams.
    most: u8,
    /// Datagrams that have arrived.
    pub arrived: u64,
}

impl Mail {
    /// UD queue pairs on those devices and completion queues. Each device knows the others.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(
        seed: u64,
        most: u8,
        prng: &mut Prng,
        at: &[(usize, usize, &Device, &DeviceCq)],
        devices: [&Device; 2],
    ) -> Result<Mail, SetupError> {
        let mut mailers = Vec::new();
        for (side, desk, device, cq) in at {
            let nic = device.inner().inner();
            let caps = QpCaps {
                send_wr: DEPTH as u32,
                recv_wr: DEPTH as u32,
                send_sge: 1,
                recv_sge: 1,
                inline: 64,
            };
            let qp = nic.create_qp(&SoftQpInit {
                kind: QpType::Ud,
                send_cq: cq.inner().inner(),
                recv_cq: cq.inner().inner(),
                srq: None,
                caps,
                signal_all: false,
                ex: SoftQpEx::default(),
            })?;
            qp.control().set_qkey(QKEY);
            qp.control().open();
            let mut qp = wrapped(device, qp, cq);
            // The device may refuse.
            let joined = prng.chance(700) && qp.attach_mcast(GROUP).is_ok();
            mailers.push(Mailer {
                at: (*side, *desk),
                qp,
                joined,
                field: Field::new(nic, 2 * DEPTH * PLACE, Access::LOCAL_WRITE)?,
                next: 0,
                queue: VecDeque::new(),
                free: (0..DEPTH).collect(),
            });
        }
        // From now on the group has all its members.
        let gids = devices.map(|device| device.inner().inner().gid());
        let ways = devices.iter().map(|device| {
            let way = |gid| device.create_ah(&AddressVector::to(gid));
            Ok(([way(gids[0])?, way(gids[1])?], way(GROUP)?))
        });
        let ways = ways.collect::<Result<_, SetupError>>()?;
        Ok(Mail { mailers, ways, sent: Vec::new(), seed, most, arrived: 0 })
    }

    /// The number of queue pairs.
    pub fn count_mailers(&self) -> usize {
        self.mailers.len()
    }

    /// Posts as many receives as there is room for.
    ///
    /// # Errors
    /// The device refuses one.
    pub fn stock(&mut self, who: usize) -> Result<(), String> {
        let mailer = &mut self.mailers[who];
        while let Some(place) = mailer.free.pop() {
            let sge = mailer.field.sge((DEPTH + place) * PLACE, GRH_BYTES + LONGEST);
            let wr = RecvWr { wr_id: RECV | MAIL | place as u64, sge };
            if let Err(error) = post_recv::<_, SoftSrq>(&mut mailer.qp, None, wr) {
                return Err(format!("mailer {who}: a receive is refused: {error:?}"));
            }
        }
        Ok(())
    }

    /// Sends a datagram somewhere, if there is room; returns it for the history.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn send(
        &mut self,
        prng: &mut Prng,
        from: usize,
        to: Option<usize>,
    ) -> Result<Option<usize>, String> {
        let mailer = &self.mailers[from];
        if mailer.queue.len() >= DEPTH {
            return Ok(None);
        }
        let last = mailer.queue.len() + 1 == DEPTH;
        let number = mailer.next;
        let length = 4 + match prng.below(4) {
            0 => prng.below((LONGEST - 4) as u64) as usize,
            _ => prng.below(200) as usize,
        };
        let lost = prng.chance(40);
        let imm = prng.chance(300).then(|| prng.word() as u32);
        let index = self.sent.len();
        let at = number as usize % DEPTH * PLACE;
        mailer.field.fill(at, &text(self.seed, index, length));
        let (ways, group) = &self.ways[mailer.at.0];
        let (ah, qpn) = match to.map(|to| &self.mailers[to]) {
            Some(to) => (&ways[to.at.0], to.qp.num()),
            None => (group, MULTICAST_QPN),
        };
        let qkey = if lost { QKEY ^ 1 } else { QKEY };
        let to_whom = Destination { ah: ah.name(), qpn, qkey };
        let signaled = last || prng.chance(300);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        let wr = SendWr {
            wr_id: MAIL | number,
            op: imm.map_or(SendOp::SendTo(to_whom), |imm| SendOp::SendToWithImm(to_whom, imm)),
            flags,
            sge: mailer.field.sge(at, length),
            more: &[],
        };
        let mailer = &mut self.mailers[from];
        if let Err(error) = send(&mut mailer.qp, Call::Post(&[wr])) {
            return Err(format!("mailer {from}: datagram {number} is refused: {error:?}"));
        }
        mailer.next += 1;
        mailer.queue.push_back((number, signaled));
        let seen = vec![0; self.mailers.len()];
        self.sent.push(Sent { from, to, length, imm, lost, seen });
        Ok(Some(length))
    }

    /// Handles a completion of one of these queue pairs.
    ///
    /// # Errors
    /// It breaks a rule.
    pub fn completed(&mut self, side: usize, devices: [&Device; 2], wc: &Wc) -> Result<(), String> {
        let who = self.mailers.iter().position(|m| m.at.0 == side && m.qp.num() == wc.qp_num);
        let Some(who) = who else {
            return Err(format!("a datagram for queue pair {}, which is none", wc.qp_num));
        };
        if wc.status != Status::Success {
            return Err(format!("mailer {who}: {:?}", wc.status));
        }
        if wc.wr_id & RECV != 0 {
            return self.came(who, devices, wc);
        }
        let number = wc.wr_id & !MAIL;
        let mailer = &mut self.mailers[who];
        while let Some((first, signaled)) = mailer.queue.pop_front() {
            match (first == number, signaled) {
                (true, true) => return Ok(()),
                (false, false) => {}
                _ => break,
            }
        }
        Err(format!("mailer {who}: datagram {number} completes out of turn"))
    }

    fn came(&mut self, who: usize, devices: [&Device; 2], wc: &Wc) -> Result<(), String> {
        let wrong = |what: String| Err(format!("mailer {who}: {what}"));
        let mailer = &mut self.mailers[who];
        let place = (wc.wr_id & !(RECV | MAIL)) as usize;
        if mailer.free.contains(&place) {
            return wrong(format!("the receive at place {place} completes twice"));
        }
        mailer.free.push(place);
        let at = (DEPTH + place) * PLACE;
        let length = (wc.byte_len as usize).saturating_sub(GRH_BYTES);
        let bytes = mailer.field.bytes(at + GRH_BYTES, length.min(LONGEST));
        let index = bytes.iter().take(4).rev().fold(0, |n, byte| n << 8 | usize::from(*byte));
        let (side, joined) = (mailer.at.0, mailer.joined);
        let header = mailer.field.bytes(at, GRH_BYTES);
        let header = std::array::from_fn(|n| header[n]);
        let Some(sent) = self.sent.get_mut(index).filter(|_| length >= 4) else {
            return wrong(format!("{length} bytes that nobody sent"));
        };
        let from = &self.mailers[sent.from];
        if bytes != text(self.seed, index, sent.length) {
            return wrong(format!("{length} bytes of a datagram of {}", sent.length));
        }
        let gid = devices[side].sender_of(wc, &header).map(|way| way.route.map(|route| route.gid));
        let sender = devices[from.at.0].inner().inner().gid();
        if wc.src_qp != from.qp.num() || gid != Ok(Some(sender)) {
            return wrong(format!("datagram {index} says that it is from {}, {gid:?}", wc.src_qp));
        }
        let flag = if sent.imm.is_some() { WcFlags::WITH_IMM } else { WcFlags::empty() };
        if wc.flags != WcFlags::GRH | flag || wc.imm != sent.imm.unwrap_or(wc.imm) {
            return wrong(format!("datagram {index} comes with {:?}, {:x}", wc.flags, wc.imm));
        }
        if sent.lost || sent.to.map_or(!joined, |to| to != who) {
            return wrong(format!("datagram {index} is not for it"));
        }
        sent.seen[who] += 1;
        if sent.seen[who] > self.most {
            return wrong(format!("datagram {index} comes {} times", sent.seen[who]));
        }
        self.arrived += 1;
        Ok(())
    }

    /// The number sent so far.
    pub fn count(&self) -> usize {
        self.sent.len()
    }

    /// If nothing is lost, each datagram from that one on must have arrived once at all its
    /// receivers.
    ///
    /// # Errors
    /// One has not.
    pub fn all_arrived(&self, first: usize) -> Result<(), String> {
        for (index, sent) in self.sent.iter().enumerate().skip(first) {
            for (who, mailer) in self.mailers.iter().enumerate() {
                let for_it = !sent.lost && sent.to.map_or(mailer.joined, |to| to == who);
                if usize::from(sent.seen[who]) != usize::from(for_it) {
                    return Err(format!(
                        "datagram {index} came {} times to mailer {who}, in fair weather",
                        sent.seen[who]
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The bytes of a datagram: its number, and bytes that belong to it alone.
fn text(seed: u64, index: usize, length: usize) -> Vec<u8> {
    let mut bytes = (index as u32).to_le_bytes().to_vec();
    bytes.extend(pattern(mix(seed ^ mix(index as u64)), length - 4));
    bytes
}
