//! Queue pairs: making, changing, querying and destroying them.
#![expect(unsafe_code, reason = "the C interface")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_fabric::{CmError, Fabric, QpAttr, QpAttrEx, QpFields, QpState};
use doorbell_seam::provider::{Gid, Multicast, Qp as _, QpCaps, QpType};
use doorbell_soft::{Attempt, Biased, Flushes, SharedReceives, SharedSends, SoftDevice, SoftQp};
use libc::c_int;

use crate::abi::*;
use crate::abi_context::*;
use crate::ah::gid_at;
use crate::attr;
use crate::border::{
    ABSENT, Errno, INVALID, Noun, Object, code, given, lock, object, pointer, quick_tag, take,
    zeroed,
};
use crate::building::ExtendedPost;
use crate::cq::{self, cq_at};
use crate::memory::Pd;
use crate::progress::{Listed, News, Progress};
use crate::requests::Queue;
use crate::scatter::{Owner, PIECES_MAX};
use crate::srq::Srq;
use crate::xrc::Xrcd;

/// A queue pair.
pub(crate) struct Qp {
    /// Sends need no more than this: they change nothing in `inner`.
    pub(crate) sends: SharedSends,
    /// The state in `inner` takes sends. [`Qp::set_state`] sets both.
    takes_sends: AtomicBool,
    /// As `sends`, until it is reset. `None`: it has no receive queue of its own.
    pub(crate) receives: Option<SharedReceives>,
    /// The state in `inner` takes receives, and they may go by `receives`. False while the state
    /// changes. [`Qp::set_state`] sets it.
    takes_receives: AtomicBool,
    pub(crate) inner: Biased<Inner>,
    pub(crate) extended: ExtendedPost,
    num: u32,
    kind: QpType,
    signal_all: bool,
    /// Pieces that a receive may have; 0 with a shared queue.
    recv_sge: u32,
    progress: &'static Progress,
    /// The address of its queue for sends, which outlives it.
    send_cq: usize,
    /// The peer of a connection by number has left.
    lost: AtomicBool,
    /// The XRC domain that it receives for.
    _xrcd: Option<Arc<Xrcd>>,
    /// The receiver of a datagram has had no room for it for long.
    pub(crate) deaf: AtomicBool,
}

/// What changes about a queue pair.
pub(crate) struct Inner {
    pub(crate) qp: SoftQp,
    /// [`Qp::set_state`] changes it.
    pub(crate) state: QpState,
    /// The fields set last, for queries.
    set: QpFields,
    /// The groups that the program has attached it to.
    groups: Vec<Gid>,
}

impl Noun for Qp {
    type C = ibv_qp_ex;
    const TAG: u64 = quick_tag(0x7170_0006);
}

/// The queue pair at an address that the program gave.
///
/// # Safety
/// As for [`object`].
pub(crate) unsafe fn qp_at<'a>(at: *mut ibv_qp) -> Result<&'a Object<Qp>, Errno> {
    // SAFETY: as the caller says. The plain structure is the first field of the extended one,
    // which the program was given.
    unsafe { object::<Qp>(at.cast()) }
}

/// True if sends may be posted in that state.
fn takes_sends(state: QpState) -> bool {
    !matches!(state, QpState::Reset | QpState::Init | QpState::Rtr)
}

/// True if receives may be posted in that state, and need nothing else.
pub(crate) fn takes_receives(state: QpState) -> bool {
    !matches!(state, QpState::Reset | QpState::Err)
}

impl Qp {
    /// True if sends may be posted. The device refuses those that come while this changes.
    #[inline(always)]
    pub(crate) fn takes_sends(&self) -> bool {
        self.takes_sends.load(Ordering::Relaxed)
    }

    /// True if receives may be posted by `receives`. Ask it while their queue is locked: a change
    /// of the state first makes it false, and then locks the queue.
    #[inline(always)]
    pub(crate) fn takes_receives(&self) -> bool {
        self.takes_receives.load(Ordering::Relaxed)
    }

    fn set_state(&self, inner: &mut Inner, state: QpState) {
        inner.state = state;
        self.takes_sends.store(takes_sends(state), Ordering::Relaxed);
        let takes = takes_receives(state)
            && self.receives.as_ref().is_some_and(|receives| receives.are_of(&inner.qp));
        self.takes_receives.store(takes, Ordering::Release);
    }

    /// Something may have failed, now or before the program changed the state. Not all that fails
    /// has a completion.
    fn has_failed(&self) {
        let mut inner = self.inner.lock();
        let state = match inner.qp.flushes() {
            Some(Flushes::Sends) => QpState::Sqe,
            Some(Flushes::Everything) => QpState::Err,
            None => return,
        };
        self.set_state(&mut inner, state);
    }

    /// The connection manager has moved it to another state, if one is given, with those fields.
    pub(crate) fn moved(&self, state: Option<QpState>, fields: QpFields) {
        let mut inner = self.inner.lock();
        inner.set = fields.or(inner.set);
        if let Some(state) = state {
            self.set_state(&mut inner, state);
        }
    }

    /// Sets fields. Returns the state that it has then; `None` if a peer must do something first.
    fn modify(
        &self,
        inner: &mut Inner,
        fields: &QpFields,
        attempt: &mut Attempt,
    ) -> Result<Option<QpState>, Errno> {
        let (from, device) = (inner.state, &self.progress.device);
        let to = fields.check(self.kind, from)?;
        self.takes_receives.store(false, Ordering::Relaxed);
        let moved = device.try_modify_qp(&mut inner.qp, from, fields, attempt);
        self.set_state(inner, if matches!(moved, Ok(true)) { to } else { from });
        if !moved? {
            return Ok(None);
        }
        inner.set = match to {
            QpState::Reset => QpFields::default(),
            _ => fields.or(inner.set),
        };
        if to == QpState::Reset {
            self.lost.store(false, Ordering::Relaxed);
            self.progress.scatter.forget(Owner::Qp(self.num));
        }
        Ok(Some(to))
    }

    /// False: after a post, [`Qp::after_post`] has nothing to do.
    #[inline(always)]
    pub(crate) fn may_attend_post(&self) -> bool {
        self.lost.load(Ordering::Relaxed) || self.progress.may_wait()
    }

    /// Sends were posted.
    #[inline(always)]
    pub(crate) fn after_post(&self) {
        if self.lost.load(Ordering::Relaxed) {
            self.inner.lock().qp.fail_lost();
        }
        if self.progress.posted() {
            cq::wake(self.send_cq);
        }
    }

    fn peer_left(&self, key: u32) {
        let mut inner = self.inner.lock();
        if inner.qp.place().1 != key {
            // The program has taken it from that connection meanwhile.
            return;
        }
        self.lost.store(true, Ordering::Relaxed);
        // A post may have come behind the device's look, and before this mark. The command orders
        // them: either the post sees the mark, or the device sees the post.
        inner.qp.peer_left();
    }

    /// Its own receive queue; a shared one takes no receives by this way.
    pub(crate) fn queue(&self, pd: *mut ibv_pd) -> Queue<'_> {
        let (scatter, owner) = (&self.progress.scatter, Owner::Qp(self.num));
        Queue { pd, scatter, owner, pieces_max: self.recv_sge }
    }

    pub(crate) fn progress(&self) -> &'static Progress {
        self.progress
    }

    pub(crate) fn kind(&self) -> QpType {
        self.kind
    }
}

/// The thread, or a poll, has news of a queue pair.
fn tell(at: usize, news: News) {
    // SAFETY: it leaves the list of the thread before it is destroyed.
    let Ok(qp) = (unsafe { qp_at(at as *mut ibv_qp) }) else { return };
    match news {
        News::PeerLeft { key } => qp.own.peer_left(key),
        News::Failed => qp.own.has_failed(),
        News::Rang => {}
    }
}

/// The type of a queue pair that programs can make.
pub(crate) fn kind_of(raw: c_int) -> Result<QpType, Errno> {
    match raw {
        2 => Ok(QpType::Rc),
        3 => Ok(QpType::Uc),
        4 => Ok(QpType::Ud),
        8 => Ok(QpType::RawPacket),
        9 => Ok(QpType::XrcSend),
        10 => Ok(QpType::XrcRecv),
        // A driver's own.
        0xff => Err(ABSENT),
        _ => Err(INVALID),
    }
}

/// Inline bytes that every queue pair has, as with drivers that keep room for the pieces: programs
/// send a few bytes inline without having asked for it.
const INLINE_MIN: u32 = 64;

/// What is asked for; a queue of nothing becomes one of one.
fn caps_of(cap: &ibv_qp_cap) -> QpCaps {
    QpCaps {
        send_wr: cap.max_send_wr.max(1),
        recv_wr: cap.max_recv_wr.max(1),
        send_sge: cap.max_send_sge.max(1),
        // The device fills one; see `scatter`.
        recv_sge: 1,
        inline: cap.max_inline_data.max(INLINE_MIN),
    }
}

fn granted(qp: &Qp) -> ibv_qp_cap {
    let caps = qp.inner.lock().qp.caps();
    ibv_qp_cap {
        max_send_wr: caps.send_wr,
        max_recv_wr: caps.recv_wr,
        max_send_sge: caps.send_sge,
        max_recv_sge: qp.recv_sge,
        max_inline_data: caps.inline,
    }
}

/// What a queue pair was granted.
///
/// # Safety
/// It is alive.
pub(crate) unsafe fn cap_of(at: *mut ibv_qp) -> Result<ibv_qp_cap, Errno> {
    // SAFETY: as the caller says.
    Ok(granted(&unsafe { qp_at(at) }?.own))
}

/// Makes a queue pair of the device, in RESET.
///
/// # Safety
/// The domain and what the attributes name are the program's.
pub(crate) unsafe fn create(
    at: *mut ibv_pd,
    attr: &ibv_qp_init_attr,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: as the caller says.
    unsafe { create_by(at, attr, QpFields::to(QpState::Reset), Fabric::create_qp) }
}

/// Makes a queue pair by that call, which sets those fields.
///
/// # Safety
/// The domain and what the attributes name are the program's.
pub(crate) unsafe fn create_by(
    at: *mut ibv_pd,
    attr: &ibv_qp_init_attr,
    set: QpFields,
    make: impl FnOnce(&SoftDevice, &QpAttr<'_, SoftDevice>) -> Result<SoftQp, CmError>,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: as the caller says.
    let (pd, send_cq) = unsafe { (object::<Pd>(at)?, cq_at(attr.send_cq)?) };
    let kind = kind_of(attr.qp_type)?;
    let recv_cq = match kind {
        // It receives nothing, and has no such queue.
        QpType::XrcSend => send_cq,
        // SAFETY: as the caller says.
        _ => unsafe { cq_at(attr.recv_cq) }?,
    };
    let srq = match attr.srq.is_null() {
        true => None,
        // SAFETY: as the caller says.
        false => Some(unsafe { object::<Srq>(attr.srq) }?),
    };
    if attr.srq.is_null() && attr.cap.max_recv_sge > PIECES_MAX {
        return Err(INVALID);
    }
    let recv_sge = if attr.srq.is_null() { attr.cap.max_recv_sge.max(1) } else { 0 };
    let signal_all = attr.sq_sig_all != 0;
    let made = make(
        &pd.own.device,
        &QpAttr {
            kind,
            send_cq: &send_cq.own.cq,
            recv_cq: &recv_cq.own.cq,
            srq: srq.map(|srq| &srq.own.srq),
            caps: caps_of(&attr.cap),
            signal_all,
            ex: QpAttrEx::default(),
        },
    )?;
    let base = ibv_qp {
        // SAFETY: alive.
        context: unsafe { (*at).context },
        qp_context: attr.qp_context,
        pd: at,
        send_cq: attr.send_cq,
        recv_cq: if kind == QpType::XrcSend { std::ptr::null_mut() } else { attr.recv_cq },
        srq: attr.srq,
        qp_type: attr.qp_type,
        ..zeroed()
    };
    for cq in [base.send_cq, base.recv_cq].into_iter().filter(|cq| !cq.is_null()) {
        // SAFETY: as the caller says.
        unsafe { cq_at(cq) }?.own.users.fetch_add(1, Ordering::SeqCst);
    }
    if let Some(srq) = srq {
        srq.own.users.fetch_add(1, Ordering::SeqCst);
    }
    let progress = send_cq.own.progress();
    Ok(give(base, Made { qp: made, kind, set, signal_all, recv_sge, progress, xrcd: None }))
}

/// A new queue pair, and what is kept about it.
pub(crate) struct Made {
    pub(crate) qp: SoftQp,
    pub(crate) kind: QpType,
    pub(crate) set: QpFields,
    pub(crate) signal_all: bool,
    pub(crate) recv_sge: u32,
    pub(crate) progress: &'static Progress,
    pub(crate) xrcd: Option<Arc<Xrcd>>,
}

/// Gives a queue pair to the program, which sees `base`, its number and its state.
pub(crate) fn give(base: ibv_qp, made: Made) -> *mut ibv_qp {
    let Made { qp, kind, set, signal_all, recv_sge, progress, xrcd } = made;
    let (num, state) = (qp.num(), set.state.unwrap_or(QpState::Reset));
    let threads = progress.device.threads();
    let (context, qp_state) = (base.context as usize, state as c_int);
    let c = ibv_qp_ex {
        qp_base: ibv_qp { handle: num, qp_num: num, state: qp_state, ..base },
        ..zeroed()
    };
    let receives = qp.shared_receives();
    let own = Qp {
        sends: qp.shared_sends(),
        takes_receives: AtomicBool::new(takes_receives(state) && receives.is_some()),
        receives,
        takes_sends: AtomicBool::new(takes_sends(state)),
        inner: Biased::new(Inner { qp, state, set, groups: Vec::new() }, threads),
        extended: ExtendedPost::new(threads),
        num,
        kind,
        signal_all,
        recv_sge,
        progress,
        send_cq: c.qp_base.send_cq as usize,
        lost: AtomicBool::new(false),
        deaf: AtomicBool::new(false),
        _xrcd: xrcd,
    };
    let given = Object::give(c, own).cast::<ibv_qp>();
    lock(&progress.qps).insert(num, Listed { at: given as usize, context, tell });
    given
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the program's attributes and what they name.
        unsafe {
            let made = create(pd, given(attr)?)?;
            (*attr).cap = cap_of(made)?;
            Ok(made)
        }
    })
}

/// The attributes without their extensions.
pub(crate) fn plain(attr: &ibv_qp_init_attr_ex) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_qp(at: *mut ibv_qp) -> c_int {
    code(|| {
        // SAFETY: the program's queue pair, which it no longer uses, and what it was made of.
        unsafe {
            let qp = qp_at(at)?;
            let (num, progress) = (qp.own.num, qp.own.progress);
            if !qp.own.inner.lock().groups.is_empty() {
                return Err(Errno(libc::EBUSY));
            }
            progress.settle();
            progress.unlist(&progress.qps, &num);
            let (send_cq, recv_cq, srq) = ((*at).send_cq, (*at).recv_cq, (*at).srq);
            let parting = progress.device.part(num);
            drop(take::<Qp>(at.cast())?);
            progress.scatter.forget(Owner::Qp(num));
            drop(parting);
            for cq in [send_cq, recv_cq].into_iter().filter(|cq| !cq.is_null()) {
                cq_at(cq)?.own.users.fetch_sub(1, Ordering::SeqCst);
            }
            if !srq.is_null() {
                object::<Srq>(srq)?.own.users.fetch_sub(1, Ordering::SeqCst);
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_modify_qp(
    at: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    code(|| {
        // SAFETY: the program's queue pair and attributes.
        let (qp, attr) = unsafe { (qp_at(at)?, given(attr)?) };
        let fields = attr::fields(attr, mask.cast_unsigned(), qp.own.kind)?;
        qp.own.has_failed();
        let mut attempt = Attempt::default();
        loop {
            let mut inner = qp.own.inner.lock();
            if let Some(to) = qp.own.modify(&mut inner, &fields, &mut attempt)? {
                // SAFETY: alive.
                unsafe { (*at).state = to as c_int };
                return Ok(());
            }
            // Waits with nothing locked: posts go on, and another thread may change the state.
            drop(inner);
            attempt.pause();
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_qp(
    at: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    code(|| {
        // SAFETY: the program's queue pair, and room for the answers.
        unsafe {
            let qp = qp_at(at)?;
            if attr.is_null() || init.is_null() {
                return Err(INVALID);
            }
            let cap = granted(&qp.own);
            qp.own.has_failed();
            let inner = qp.own.inner.lock();
            let mut answer = attr::attributes(&QpFields { state: Some(inner.state), ..inner.set });
            answer.cap = cap;
            attr.write(answer);
            (*at).state = inner.state as c_int;
            init.write(ibv_qp_init_attr {
                qp_context: (*at).qp_context,
                send_cq: (*at).send_cq,
                recv_cq: (*at).recv_cq,
                srq: (*at).srq,
                cap,
                qp_type: (*at).qp_type,
                sq_sig_all: qp.own.signal_all.into(),
            });
        }
        Ok(())
    })
}

/// Changes the groups of a queue pair.
unsafe fn change_group(
    at: *mut ibv_qp,
    gid: *const ibv_gid,
    change: impl FnOnce(&mut Inner, Gid) -> Result<(), Errno>,
) -> c_int {
    code(|| {
        // SAFETY: the program's queue pair and GID.
        let (qp, gid) = unsafe { (qp_at(at)?, gid_at(gid)?) };
        change(&mut qp.own.inner.lock(), gid)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    at: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: as the program vouches.
    unsafe {
        change_group(at, gid, |inner, gid| {
            inner.qp.attach_mcast(gid)?;
            if !inner.groups.contains(&gid) {
                inner.groups.push(gid);
            }
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    at: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: as the program vouches.
    unsafe {
        change_group(at, gid, |inner, gid| {
            inner.qp.detach_mcast(gid)?;
            inner.groups.retain(|group| *group != gid);
            Ok(())
        })
    }
}
