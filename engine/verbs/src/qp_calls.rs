//! Queue pairs of libibverbs: how they are made, and what can be asked of them.
#![expect(unsafe_code, reason = "queue pairs are made and asked through raw pointers")]

use core::mem::zeroed;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::front;
use crate::handles::{Context, Owned};
use crate::objects::{Cq, Pd, Srq, Table, Xrcd};
use crate::provider::{
    AttrMask, CreateFlags, Gid, HASH_KEY_BYTES, QpCaps, QpType, RxHash, SendOps,
};
use crate::rdma_core::*;

/// What a queue pair is made with (`struct ibv_qp_init_attr_ex`). A field that is `None` does not
/// count.
#[derive(Clone, Copy)]
pub(crate) struct NewQp<'a> {
    pub(crate) kind: QpType,
    /// The capacities that are asked for.
    pub(crate) caps: QpCaps,
    pub(crate) signal_all: bool,
    pub(crate) pd: Option<&'a Pd>,
    pub(crate) send_cq: Option<&'a Cq>,
    /// Without one it has no receives of its own.
    pub(crate) recv_cq: Option<&'a Cq>,
    pub(crate) srq: Option<&'a Srq>,
    pub(crate) xrcd: Option<&'a Xrcd>,
    pub(crate) create_flags: Option<CreateFlags>,
    pub(crate) max_tso_header: Option<u16>,
    pub(crate) rwq_ind_tbl: Option<&'a Table>,
    pub(crate) rx_hash_conf: Option<&'a RxHash>,
    pub(crate) send_ops_flags: Option<SendOps>,
}

impl<'a> NewQp<'a> {
    /// One of that kind without anything.
    pub(crate) fn of(kind: QpType) -> NewQp<'a> {
        NewQp {
            kind,
            caps: QpCaps::default(),
            signal_all: false,
            pd: None,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: None,
            create_flags: None,
            max_tso_header: None,
            rwq_ind_tbl: None,
            rx_hash_conf: None,
            send_ops_flags: None,
        }
    }

    /// Which fields of the extended call are valid.
    pub(crate) fn comp_mask(&self) -> AttrMask {
        let mut mask = AttrMask::empty();
        mask.set(AttrMask::PD, self.pd.is_some());
        mask.set(AttrMask::XRCD, self.xrcd.is_some());
        mask.set(AttrMask::CREATE_FLAGS, self.create_flags.is_some());
        mask.set(AttrMask::MAX_TSO_HEADER, self.max_tso_header.is_some());
        mask.set(AttrMask::IND_TABLE, self.rwq_ind_tbl.is_some());
        mask.set(AttrMask::RX_HASH, self.rx_hash_conf.is_some());
        mask.set(AttrMask::SEND_OPS_FLAGS, self.send_ops_flags.is_some());
        mask
    }

    /// The protection domain, if the plain call can make it (QX-3).
    pub(crate) fn plain_pd(&self) -> Option<&'a Pd> {
        self.pd.filter(|_| self.comp_mask() == AttrMask::PD)
    }

    /// True if all that is named is of that device.
    fn is_of(&self, context: Context) -> bool {
        let is = |other: Context| other == context;
        self.pd.is_none_or(|pd| is(pd.context()))
            && self.send_cq.is_none_or(|cq| is(cq.context()))
            && self.recv_cq.is_none_or(|cq| is(cq.context()))
            && self.srq.is_none_or(|srq| is(srq.context()))
            && self.xrcd.is_none_or(|xrcd| is(xrcd.context()))
            && self.rwq_ind_tbl.is_none_or(|table| is(table.context()))
    }

    /// The attributes in C's form, for a call during which `self` lives, on that device. They begin
    /// with the plain ones. EINVAL if something is of another device.
    pub(crate) fn raw(&self, context: Context) -> Result<ibv_qp_init_attr_ex, i32> {
        if !self.is_of(context) {
            return Err(libc::EINVAL);
        }
        let want = self.caps;
        // SAFETY: zero is a valid value of each field.
        let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
        init.qp_type = self.kind as ibv_qp_type::Type;
        init.sq_sig_all = self.signal_all.into();
        init.comp_mask = self.comp_mask().bits();
        init.pd = self.pd.map_or(ptr::null_mut(), |pd| pd.as_ptr());
        init.xrcd = self.xrcd.map_or(ptr::null_mut(), |xrcd| xrcd.as_ptr());
        if let Some(cq) = self.send_cq {
            init.send_cq = cq.as_ptr();
            init.cap.max_send_wr = want.send_wr;
            init.cap.max_send_sge = want.send_sge.max(1);
            init.cap.max_inline_data = want.inline;
        }
        if let Some(cq) = self.recv_cq {
            init.recv_cq = cq.as_ptr();
        }
        match (self.srq, self.recv_cq) {
            (Some(srq), _) => init.srq = srq.as_ptr(),
            (None, Some(_)) => {
                init.cap.max_recv_wr = want.recv_wr;
                init.cap.max_recv_sge = want.recv_sge.max(1);
            }
            (None, None) => {}
        }
        init.rwq_ind_tbl = self.rwq_ind_tbl.map_or(ptr::null_mut(), |table| table.as_ptr());
        if let Some(by) = self.rx_hash_conf {
            init.rx_hash_conf = ibv_rx_hash_conf {
                rx_hash_function: by.function as u8,
                rx_hash_key_len: HASH_KEY_BYTES as u8,
                rx_hash_key: by.key.as_ptr().cast_mut(),
                rx_hash_fields_mask: by.fields.bits(),
            };
        }
        init.create_flags = self.create_flags.unwrap_or_default().bits();
        init.max_tso_header = self.max_tso_header.unwrap_or_default();
        init.send_ops_flags = self.send_ops_flags.unwrap_or_default().bits();
        Ok(init)
    }

    /// The capacities that came back (QP-10).
    pub(crate) fn granted(&self, init: &ibv_qp_init_attr_ex) -> QpCaps {
        let receives = self.srq.is_none() && !self.kind.is_xrc();
        QpCaps {
            send_wr: init.cap.max_send_wr,
            recv_wr: if receives { init.cap.max_recv_wr } else { 0 },
            send_sge: init.cap.max_send_sge,
            recv_sge: init.cap.max_recv_sge,
            inline: init.cap.max_inline_data,
        }
    }

    /// What the queue pair uses, to be kept as long as it.
    pub(crate) fn uses(&self) -> impl Send + Sync + 'static + use<> {
        let (send_cq, recv_cq) = (self.send_cq.cloned(), self.recv_cq.cloned());
        let (srq, xrcd) = (self.srq.cloned(), self.xrcd.cloned());
        (self.pd.cloned(), send_cq, recv_cq, srq, xrcd, self.rwq_ind_tbl.cloned())
    }

    /// `ibv_create_qp` if that can make it, otherwise `ibv_create_qp_ex`. Returns the granted
    /// capacities too, or an errno.
    pub(crate) fn create(&self, context: Context) -> Result<(Owned<ibv_qp>, QpCaps), i32> {
        let mut init = self.raw(context)?;
        let raw = &raw mut init;
        // SAFETY: all that is named is alive and of one device, and the queue pair keeps it; the
        // call fills in real figures. The extended attributes begin with the plain ones.
        let qp = unsafe {
            let qp = match self.plain_pd() {
                Some(pd) => ibv_create_qp(pd.as_ptr(), raw.cast()),
                None => {
                    let create = front::create_qp_ex(context).ok_or(libc::EOPNOTSUPP)?;
                    create(context.as_ptr(), raw)
                }
            };
            Owned::new(context, qp, ibv_destroy_qp, self.uses())?
        };
        Ok((qp, self.granted(&init)))
    }
}

impl Owned<ibv_qp> {
    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive; the number never changes.
        unsafe { (*self.as_ptr()).qp_num }
    }

    /// Its state, which libibverbs notes at each `ibv_modify_qp`.
    pub(crate) fn state(&self) -> ibv_qp_state::Type {
        // SAFETY: the queue pair is alive, the field is aligned, and libibverbs writes it as a
        // whole. The load is atomic so that it is read as a whole too. Acquire: what is posted
        // comes after the calls that brought the queue pair there.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.as_ptr()).state).load(Ordering::Acquire) }
    }

    /// `ibv_modify_qp`: sets what the mask names. 0, or an errno.
    pub(crate) fn modify(&self, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> i32 {
        // SAFETY: the queue pair is alive.
        unsafe { ibv_modify_qp(self.as_ptr(), &raw mut attr, mask.0.cast_signed()) }
    }

    /// `ibv_query_qp`, of what the mask names.
    pub(crate) fn query(&self, mask: ibv_qp_attr_mask) -> Result<ibv_qp_attr, i32> {
        // SAFETY: the queue pair is alive.
        unsafe { query(self.as_ptr(), mask) }
    }

    /// `ibv_attach_mcast`: 0, or an errno.
    pub(crate) fn attach_mcast(&self, group: Gid) -> i32 {
        let gid = ibv_gid { raw: group.0 };
        // SAFETY: queue pair and GID are alive.
        unsafe { ibv_attach_mcast(self.as_ptr(), &raw const gid, 0) }
    }

    /// `ibv_detach_mcast`: 0, or an errno.
    pub(crate) fn detach_mcast(&self, group: Gid) -> i32 {
        let gid = ibv_gid { raw: group.0 };
        // SAFETY: queue pair and GID are alive.
        unsafe { ibv_detach_mcast(self.as_ptr(), &raw const gid, 0) }
    }
}

/// `ibv_query_qp`, of what the mask names.
///
/// # Safety
/// The queue pair is alive during the call.
pub(crate) unsafe fn query(qp: *mut ibv_qp, mask: ibv_qp_attr_mask) -> Result<ibv_qp_attr, i32> {
    // SAFETY: zero is a valid value of each field of both.
    let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { (zeroed(), zeroed()) };
    // SAFETY: the caller vouches for the queue pair; both structures are alive.
    match unsafe { ibv_query_qp(qp, &raw mut attr, mask.0.cast_signed(), &raw mut init) } {
        0 => Ok(attr),
        errno => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std_alloc::sync::Arc;

    unsafe extern "C" fn gone<T>(_: *mut T) -> i32 {
        0
    }

    /// A device and an object on it; no call is made on either.
    fn device<T>(number: usize) -> (Context, Arc<Owned<T>>) {
        // SAFETY: no call is made on the context.
        let context = unsafe { Context::new(ptr::without_provenance_mut(number)) };
        let context = context.expect("it is not null");
        // SAFETY: as above; `gone` does nothing.
        let object = unsafe { Owned::new(context, ptr::without_provenance_mut(8), gone, ()) };
        (context, Arc::new(object.expect("it is not null")))
    }

    #[test]
    fn objects_of_two_devices_do_not_meet() {
        let (one, pd) = device(8);
        let (other, cq) = device(16);
        let (_, xrcd) = device(16);
        let new = NewQp { pd: Some(&pd), ..NewQp::of(QpType::Rc) };
        assert!(new.raw(one).is_ok());
        assert_eq!(new.raw(other).err(), Some(libc::EINVAL));
        for mixed in [
            NewQp { send_cq: Some(&cq), ..new },
            NewQp { recv_cq: Some(&cq), ..new },
            NewQp { xrcd: Some(&xrcd), ..new },
        ] {
            assert_eq!(mixed.raw(one).err(), Some(libc::EINVAL));
        }
    }

    #[test]
    fn only_a_queue_pair_with_queues_of_its_own_has_receives() {
        let (context, pd) = device(8);
        let ((_, cq), (_, srq)) = (device(8), device(8));
        let caps = QpCaps { send_wr: 3, recv_wr: 5, send_sge: 0, recv_sge: 2, inline: 7 };
        let new = NewQp { caps, pd: Some(&pd), send_cq: Some(&cq), ..NewQp::of(QpType::Rc) };
        let raw = |new: NewQp<'_>| new.raw(context).expect("all is of one device");
        let own = raw(NewQp { recv_cq: Some(&cq), ..new });
        assert_eq!((own.cap.max_send_wr, own.cap.max_send_sge, own.cap.max_inline_data), (3, 1, 7));
        assert_eq!((own.cap.max_recv_wr, own.cap.max_recv_sge), (5, 2));
        let shared = NewQp { recv_cq: Some(&cq), srq: Some(&srq), ..new };
        assert_eq!((raw(shared).cap.max_recv_wr, raw(shared).srq), (0, srq.as_ptr()));
        assert_eq!((raw(new).cap.max_recv_wr, raw(new).recv_cq), (0, ptr::null_mut()));
        assert_eq!((shared.granted(&own).recv_wr, new.granted(&own).recv_wr), (0, 5));
    }

    #[test]
    fn the_plain_call_makes_what_has_a_domain_and_nothing_more() {
        let (_, pd) = device(8);
        let plain = NewQp { pd: Some(&pd), ..NewQp::of(QpType::Rc) };
        assert!(plain.plain_pd().is_some());
        assert!(NewQp { max_tso_header: Some(1), ..plain }.plain_pd().is_none());
        assert!(NewQp::of(QpType::XrcRecv).plain_pd().is_none());
    }
}
