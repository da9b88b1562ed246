//! The states of a queue pair, and the fields of each transition (SM-6). One table serves every
//! device, so that a mistake which one device would forgive, and another answer with a crash, is
//! the same error on all.

use bitflags::bitflags;
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, AddressVector, QpType};

use crate::error::CmError;

/// States of a queue pair (`enum ibv_qp_state`, numbers as there).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum QpState {
    /// New: it accepts nothing.
    Reset = 0,
    /// It accepts receives.
    Init = 1,
    /// It answers the peer.
    Rtr = 2,
    /// Sends run.
    Rts = 3,
    /// It accepts sends and does not begin them.
    Sqd = 4,
    /// The send queue has failed; receives continue (not with reliable connections).
    Sqe = 5,
    /// Everything is flushed.
    Err = 6,
}

impl QpState {
    /// The state for a device's number.
    pub fn from_raw(raw: u32) -> Option<QpState> {
        use QpState::*;
        [Reset, Init, Rtr, Rts, Sqd, Sqe, Err].get(raw as usize).copied()
    }
}

/// Maximum bytes of a packet's payload (`enum ibv_mtu`, numbers as there).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mtu {
    /// 256 bytes.
    Bytes256 = 1,
    /// 512 bytes.
    Bytes512 = 2,
    /// 1024 bytes.
    Bytes1024 = 3,
    /// 2048 bytes.
    Bytes2048 = 4,
    /// 4096 bytes.
    Bytes4096 = 5,
}

impl Mtu {
    /// The size for a device's number.
    pub fn from_raw(raw: u32) -> Option<Mtu> {
        use Mtu::*;
        [Bytes256, Bytes512, Bytes1024, Bytes2048, Bytes4096]
            .into_iter()
            .find(|mtu| *mtu as u32 == raw)
    }
}

bitflags! {
    /// Which fields of [`QpFields`] are present (`enum ibv_qp_attr_mask`, numbers as there).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Mask: u32 {
        /// [`QpFields::state`].
        const STATE = 1;
        /// [`QpFields::sqd_notify`].
        const SQD_NOTIFY = 1 << 2;
        /// [`QpFields::access`].
        const ACCESS = 1 << 3;
        /// [`QpFields::pkey_index`].
        const PKEY_INDEX = 1 << 4;
        /// [`QpFields::port`].
        const PORT = 1 << 5;
        /// [`QpFields::qkey`].
        const QKEY = 1 << 6;
        /// [`QpFields::av`].
        const AV = 1 << 7;
        /// [`QpFields::path_mtu`].
        const PATH_MTU = 1 << 8;
        /// [`QpFields::timeout`].
        const TIMEOUT = 1 << 9;
        /// [`QpFields::retry_cnt`].
        const RETRY_CNT = 1 << 10;
        /// [`QpFields::rnr_retry`].
        const RNR_RETRY = 1 << 11;
        /// [`QpFields::rq_psn`].
        const RQ_PSN = 1 << 12;
        /// [`QpFields::max_rd_atomic`].
        const MAX_RD_ATOMIC = 1 << 13;
        /// [`QpFields::min_rnr_timer`].
        const MIN_RNR_TIMER = 1 << 15;
        /// [`QpFields::sq_psn`].
        const SQ_PSN = 1 << 16;
        /// [`QpFields::max_dest_rd_atomic`].
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// [`QpFields::dest_qp`].
        const DEST_QP = 1 << 20;
    }
}

impl Mask {
    fn names(self) -> String {
        let names: Vec<&str> = self.iter_names().map(|(name, _)| name).collect();
        names.join(", ")
    }
}

/// Fields of a queue pair (`struct ibv_qp_attr` with its mask): those to set, those the connection
/// manager wants set, or those that a device reports. A field that is `None` is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpFields {
    /// The state to go to, or the current one.
    pub state: Option<QpState>,
    /// On the way to SQD: an asynchronous event, SQ_DRAINED, reports when the sends that have begun
    /// are over (`en_sqd_async_notify`).
    pub sqd_notify: Option<bool>,
    /// What the peer may do to memory by itself (`qp_access_flags`).
    pub access: Option<Access>,
    /// Index of the partition key.
    pub pkey_index: Option<u16>,
    /// The own port, from 1.
    pub port: Option<u8>,
    /// The key that senders of datagrams must give.
    pub qkey: Option<u32>,
    /// The path to the peer.
    pub av: Option<AddressVector>,
    /// Payload of a packet.
    pub path_mtu: Option<Mtu>,
    /// The peer's queue pair number.
    pub dest_qp: Option<u32>,
    /// Number of the first incoming packet; 24 bits.
    pub rq_psn: Option<u32>,
    /// READs and atomics of the peer that are served at a time.
    pub max_dest_rd_atomic: Option<u8>,
    /// The peer's wait while there is no receive here; codes of RC-1.
    pub min_rnr_timer: Option<u8>,
    /// Number of the first outgoing packet; 24 bits.
    pub sq_psn: Option<u32>,
    /// READs and atomics in flight at a time.
    pub max_rd_atomic: Option<u8>,
    /// Time until a packet is sent again; codes of RC-2.
    pub timeout: Option<u8>,
    /// Retries after a lost packet, 0 to 7.
    pub retry_cnt: Option<u8>,
    /// Retries without a receive at the peer, 0 to 7; 7 is for ever.
    pub rnr_retry: Option<u8>,
}

impl QpFields {
    /// Only a state.
    pub fn to(state: QpState) -> QpFields {
        QpFields { state: Some(state), ..QpFields::default() }
    }

    /// These fields, and those of `other` that are missing here.
    #[must_use]
    pub fn or(self, other: QpFields) -> QpFields {
        QpFields {
            state: self.state.or(other.state),
            sqd_notify: self.sqd_notify.or(other.sqd_notify),
            access: self.access.or(other.access),
            pkey_index: self.pkey_index.or(other.pkey_index),
            port: self.port.or(other.port),
            qkey: self.qkey.or(other.qkey),
            av: self.av.or(other.av),
            path_mtu: self.path_mtu.or(other.path_mtu),
            dest_qp: self.dest_qp.or(other.dest_qp),
            rq_psn: self.rq_psn.or(other.rq_psn),
            max_dest_rd_atomic: self.max_dest_rd_atomic.or(other.max_dest_rd_atomic),
            min_rnr_timer: self.min_rnr_timer.or(other.min_rnr_timer),
            sq_psn: self.sq_psn.or(other.sq_psn),
            max_rd_atomic: self.max_rd_atomic.or(other.max_rd_atomic),
            timeout: self.timeout.or(other.timeout),
            retry_cnt: self.retry_cnt.or(other.retry_cnt),
            rnr_retry: self.rnr_retry.or(other.rnr_retry),
        }
    }

    /// The fields that are present.
    pub fn mask(&self) -> Mask {
        let there = [
            (self.state.is_some(), Mask::STATE),
            (self.sqd_notify.is_some(), Mask::SQD_NOTIFY),
            (self.access.is_some(), Mask::ACCESS),
            (self.pkey_index.is_some(), Mask::PKEY_INDEX),
            (self.port.is_some(), Mask::PORT),
            (self.qkey.is_some(), Mask::QKEY),
            (self.av.is_some(), Mask::AV),
            (self.path_mtu.is_some(), Mask::PATH_MTU),
            (self.dest_qp.is_some(), Mask::DEST_QP),
            (self.rq_psn.is_some(), Mask::RQ_PSN),
            (self.max_dest_rd_atomic.is_some(), Mask::MAX_DEST_RD_ATOMIC),
            (self.min_rnr_timer.is_some(), Mask::MIN_RNR_TIMER),
            (self.sq_psn.is_some(), Mask::SQ_PSN),
            (self.max_rd_atomic.is_some(), Mask::MAX_RD_ATOMIC),
            (self.timeout.is_some(), Mask::TIMEOUT),
            (self.retry_cnt.is_some(), Mask::RETRY_CNT),
            (self.rnr_retry.is_some(), Mask::RNR_RETRY),
        ];
        let set = there.into_iter().filter(|(set, _)| *set);
        set.fold(Mask::empty(), |mask, (_, bit)| mask | bit)
    }

    /// Checks a transition from `from` of a queue pair of that type with these fields (SM-6), and
    /// their ranges; returns the new state.
    pub fn check(&self, kind: QpType, from: QpState) -> Result<QpState, CmError> {
        let to = self.state.unwrap_or(from);
        let asked = || format!("take a queue pair from {from:?} to {to:?}");
        let invalid = |answer: String| Err(CmError::new(Code::Invalid, asked(), answer));
        let Some((needed, allowed)) = transition(kind, from, to) else {
            let answer = "there is no such transition (SM-6)";
            return Err(CmError::new(Code::Invalid, asked(), answer)
                .cure("take it through RESET, INIT, RTR and RTS, one after the other"));
        };
        let given = self.mask() - Mask::STATE;
        let (missing, beyond) = (needed - given, given - needed - allowed);
        if !missing.is_empty() || !beyond.is_empty() {
            let name = |what, mask: Mask| match mask.is_empty() {
                true => String::new(),
                false => format!("{what} {}; ", mask.names()),
            };
            let text = name("it lacks", missing) + &name("it may not set", beyond);
            return invalid(format!("{text}(SM-6)"));
        }
        let ranges = [
            ("rq_psn", self.rq_psn, 0x00ff_ffff),
            ("sq_psn", self.sq_psn, 0x00ff_ffff),
            ("dest_qp", self.dest_qp, 0x00ff_ffff),
            ("min_rnr_timer", self.min_rnr_timer.map(u32::from), 31),
            ("timeout", self.timeout.map(u32::from), 31),
            ("retry_cnt", self.retry_cnt.map(u32::from), 7),
            ("rnr_retry", self.rnr_retry.map(u32::from), 7),
        ];
        for (name, value, most) in ranges {
            if let Some(value) = value.filter(|value| *value > most) {
                return invalid(format!("{name} {value}, but it goes up to {most}"));
            }
        }
        Ok(to)
    }
}

/// [`transition`] of a RAW_PACKET queue pair, which has only a port.
fn frame_transition(from: QpState, to: QpState) -> Option<(Mask, Mask)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let none = Mask::empty();
    match (from, to) {
        (Reset, Init) => Some((Mask::PORT, none)),
        (Init, Init) => Some((none, Mask::PORT)),
        (_, Reset) | (Init, Rtr) | (Rtr | Rts | Sqd | Sqe, Rts) | (Rts | Sqd, Sqd) => {
            Some((none, none))
        }
        (Reset, Err) => None,
        (_, Err) => Some((none, none)),
        _ => None,
    }
}

/// The fields that a transition requires and allows; `None` if it does not exist.
fn transition(kind: QpType, from: QpState, to: QpState) -> Option<(Mask, Mask)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let none = Mask::empty();
    let (unreliable, datagrams) = (kind.is_unreliable(), kind == QpType::Ud);
    // The key or the rights that senders need, which may change at any time.
    let right = if datagrams { Mask::QKEY } else { Mask::ACCESS };
    let init = Mask::PKEY_INDEX | Mask::PORT | right;
    if kind == QpType::RawPacket {
        return frame_transition(from, to);
    }
    // The sending end of XRC serves no requests, the receiving end makes none.
    let (serves, requests) = (kind != QpType::XrcSend, kind != QpType::XrcRecv);
    let live = if unreliable || !serves { right } else { right | Mask::MIN_RNR_TIMER };
    let peer = Mask::AV | Mask::PATH_MTU | Mask::DEST_QP | Mask::RQ_PSN;
    let served = Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
    let tries = match requests {
        true => Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY,
        false => Mask::TIMEOUT,
    };
    let asks = if requests { Mask::MAX_RD_ATOMIC } else { none };
    let answers = if serves { Mask::MAX_DEST_RD_ATOMIC } else { none };
    match (from, to) {
        (_, Reset) => Some((none, none)),
        (Reset, Init) => Some((init, none)),
        (Init, Init) => Some((none, init)),
        (Init, Rtr) => {
            let needed = match kind {
                QpType::Ud => none,
                QpType::Uc | QpType::XrcSend => peer,
                _ => peer | served,
            };
            Some((needed, right | Mask::PKEY_INDEX))
        }
        (Rtr, Rts) if unreliable => Some((Mask::SQ_PSN, right)),
        (Rtr, Rts) => Some((tries | Mask::SQ_PSN | asks, live)),
        (Rts, Rts) | (Sqd, Rts) => Some((none, live)),
        (Sqe, Rts) if unreliable => Some((none, right)),
        (Rts, Sqd) => Some((none, Mask::SQD_NOTIFY)),
        (Sqd, Sqd) if datagrams => Some((none, right | Mask::PKEY_INDEX)),
        (Sqd, Sqd) if unreliable => Some((none, right | Mask::PKEY_INDEX | Mask::AV)),
        (Sqd, Sqd) => {
            let more = asks | answers | Mask::AV | Mask::PKEY_INDEX | Mask::PORT;
            Some((none, live | tries | more))
        }
        (Reset, Err) => None,
        (_, Err) => Some((none, none)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [QpState; 7] = [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Sqe,
        QpState::Err,
    ];

    const KINDS: [QpType; 6] =
        [QpType::Rc, QpType::Uc, QpType::Ud, QpType::RawPacket, QpType::XrcSend, QpType::XrcRecv];

    /// Fields that are all present.
    fn full(state: QpState) -> QpFields {
        QpFields {
            state: Some(state),
            sqd_notify: Some(true),
            access: Some(Access::empty()),
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(1),
            av: Some(AddressVector::default()),
            path_mtu: Some(Mtu::Bytes1024),
            dest_qp: Some(17),
            rq_psn: Some(1),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(12),
            sq_psn: Some(1),
            max_rd_atomic: Some(1),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
        }
    }

    #[test]
    fn the_ways_are_those_of_the_table() {
        use QpState::*;
        let ways = [
            (Reset, Init),
            (Init, Init),
            (Init, Rtr),
            (Rtr, Rts),
            (Rts, Rts),
            (Rts, Sqd),
            (Sqd, Rts),
            (Sqd, Sqd),
        ];
        for from in ALL {
            for to in ALL {
                let known =
                    ways.contains(&(from, to)) || to == Reset || (to == Err && from != Reset);
                for kind in KINDS {
                    let known = known || (kind.is_unreliable() && (from, to) == (Sqe, Rts));
                    assert_eq!(
                        transition(kind, from, to).is_some(),
                        known,
                        "{kind:?} {from:?} to {to:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn each_transition_needs_all_its_required_fields() {
        for kind in KINDS {
            check_ways(kind);
        }
    }

    fn check_ways(kind: QpType) {
        for from in ALL {
            for to in ALL {
                let Some((needed, allowed)) = transition(kind, from, to) else { continue };
                assert!((needed & allowed).is_empty());
                let fields = |mask: Mask| {
                    let all = full(to);
                    QpFields {
                        sqd_notify: all.sqd_notify.filter(|_| mask.contains(Mask::SQD_NOTIFY)),
                        access: all.access.filter(|_| mask.contains(Mask::ACCESS)),
                        pkey_index: all.pkey_index.filter(|_| mask.contains(Mask::PKEY_INDEX)),
                        port: all.port.filter(|_| mask.contains(Mask::PORT)),
                        qkey: all.qkey.filter(|_| mask.contains(Mask::QKEY)),
                        av: all.av.filter(|_| mask.contains(Mask::AV)),
                        path_mtu: all.path_mtu.filter(|_| mask.contains(Mask::PATH_MTU)),
                        dest_qp: all.dest_qp.filter(|_| mask.contains(Mask::DEST_QP)),
                        rq_psn: all.rq_psn.filter(|_| mask.contains(Mask::RQ_PSN)),
                        max_dest_rd_atomic: all
                            .max_dest_rd_atomic
                            .filter(|_| mask.contains(Mask::MAX_DEST_RD_ATOMIC)),
                        min_rnr_timer: all
                            .min_rnr_timer
                            .filter(|_| mask.contains(Mask::MIN_RNR_TIMER)),
                        sq_psn: all.sq_psn.filter(|_| mask.contains(Mask::SQ_PSN)),
                        max_rd_atomic: all
                            .max_rd_atomic
                            .filter(|_| mask.contains(Mask::MAX_RD_ATOMIC)),
                        timeout: all.timeout.filter(|_| mask.contains(Mask::TIMEOUT)),
                        retry_cnt: all.retry_cnt.filter(|_| mask.contains(Mask::RETRY_CNT)),
                        rnr_retry: all.rnr_retry.filter(|_| mask.contains(Mask::RNR_RETRY)),
                        state: all.state,
                    }
                };
                assert_eq!(fields(needed).mask(), needed | Mask::STATE);
                assert_eq!(fields(needed).check(kind, from), Ok(to));
                assert_eq!(fields(needed | allowed).check(kind, from), Ok(to));
                for bit in needed.iter() {
                    let error = fields(needed - bit).check(kind, from).unwrap_err();
                    assert_eq!(error.code(), Code::Invalid);
                    let name = bit.names();
                    assert!(error.to_string().contains(&name), "{error}");
                }
                for bit in (Mask::all() - Mask::STATE - needed - allowed).iter() {
                    assert!(
                        fields(needed | bit).check(kind, from).is_err(),
                        "{from:?} {to:?} {bit:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn ranges_are_checked() {
        let good = QpFields { min_rnr_timer: Some(31), ..QpFields::to(QpState::Rts) };
        assert_eq!(good.check(QpType::Rc, QpState::Rts), Ok(QpState::Rts));
        let bad = QpFields { min_rnr_timer: Some(32), ..good };
        assert_eq!(bad.check(QpType::Rc, QpState::Rts).unwrap_err().code(), Code::Invalid);
        assert_eq!(Mtu::from_raw(3), Some(Mtu::Bytes1024));
        assert_eq!(Mtu::from_raw(6), None);
    }
}
