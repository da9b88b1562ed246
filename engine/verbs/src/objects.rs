//! The objects of libibverbs: how each is made, and what can be asked of it. Queue pairs are in
//! `qp_calls.rs`, regions in `region.rs`. Each object keeps those that it uses. A call that fails
//! gives an errno; so does one whose objects are of two devices, because no driver expects that.
#![expect(unsafe_code, reason = "objects are made and asked through raw pointers")]

use core::mem::zeroed;
use core::ptr;
use std_alloc::sync::Arc;
use std_alloc::vec;
use std_alloc::vec::Vec;

use crate::access::access_flags;
use crate::front::{self, FlowCalls, TableCalls, TdCalls, WqCalls, XrcCalls};
use crate::handles::{Context, Owned};
use crate::provider::{Access, CqInit, FlowRule, ReregFlags, WindowKind, WqFlags, WqState};
use crate::rdma_core::*;
use crate::shim::{from_c, to_c};

/// A protection domain, or a parent domain over one.
pub(crate) type Pd = Arc<Owned<ibv_pd>>;
/// A completion channel.
pub(crate) type Channel = Arc<Owned<ibv_comp_channel>>;
/// A completion queue.
pub(crate) type Cq = Arc<Owned<ibv_cq>>;
/// A completion queue that the extended call made: an `ibv_cq_ex`, which begins with an `ibv_cq`.
/// Only its reader has one.
pub(crate) struct CqEx(Cq);
/// A shared receive queue.
pub(crate) type Srq = Arc<Owned<ibv_srq>>;
/// A domain of extended reliable connections.
pub(crate) type Xrcd = Arc<Owned<ibv_xrcd>>;
/// A work queue.
pub(crate) type Wq = Arc<Owned<ibv_wq>>;
/// A table of work queues.
pub(crate) type Table = Arc<Owned<ibv_rwq_ind_table>>;

/// A call that the driver lacks.
const LACKS: i32 = libc::EOPNOTSUPP;

/// Whether objects of two devices meet.
fn same(one: Context, other: Context) -> Result<(), i32> {
    if one == other { Ok(()) } else { Err(libc::EINVAL) }
}

/// `ibv_alloc_pd`.
pub(crate) fn alloc_pd(context: Context) -> Result<Owned<ibv_pd>, i32> {
    // SAFETY: the context is open. The domain uses nothing else.
    unsafe {
        let pd = ibv_alloc_pd(context.as_ptr());
        Owned::new(context, pd, ibv_dealloc_pd, ())
    }
}

/// `ibv_alloc_td`.
///
/// # Safety
/// As for `ThreadDomains::alloc_td`.
pub(crate) unsafe fn alloc_td(context: Context) -> Result<Owned<ibv_td>, i32> {
    let calls = TdCalls::of(context).ok_or(LACKS)?;
    let mut init = ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: the context is open. The domain uses nothing else.
    unsafe {
        let td = (calls.alloc_td)(context.as_ptr(), &raw mut init);
        Owned::new(context, td, calls.dealloc_td, ())
    }
}

/// Whether a device has thread domains. No call tells, so one is made.
pub(crate) fn has_thread_domains(context: Context) -> bool {
    // SAFETY: it is freed before anything is made on it.
    unsafe { alloc_td(context) }.is_ok_and(Owned::destroy)
}

/// `ibv_alloc_parent_domain`, over a domain that is no parent domain itself.
pub(crate) fn alloc_parent_domain(
    pd: &Pd,
    td: Option<&Arc<Owned<ibv_td>>>,
) -> Result<Owned<ibv_pd>, i32> {
    let context = pd.context();
    let calls = TdCalls::of(context).ok_or(LACKS)?;
    // SAFETY: zero is a valid value of each field.
    let mut attr: ibv_parent_domain_init_attr = unsafe { zeroed() };
    attr.pd = pd.as_ptr();
    if let Some(td) = td {
        same(td.context(), context)?;
        attr.td = td.as_ptr();
    }
    // SAFETY: both domains are alive, and the new one keeps them.
    unsafe {
        let new = (calls.alloc_parent_domain)(context.as_ptr(), &raw mut attr);
        Owned::new(context, new, ibv_dealloc_pd, (pd.clone(), td.cloned()))
    }
}

/// `ibv_create_ah`.
pub(crate) fn create_ah(pd: &Pd, mut to: ibv_ah_attr) -> Result<Owned<ibv_ah>, i32> {
    // SAFETY: the domain is alive, and the handle keeps it; the call reads the attributes.
    unsafe {
        let ah = ibv_create_ah(pd.as_ptr(), &raw mut to);
        Owned::new(pd.context(), ah, ibv_destroy_ah, pd.clone())
    }
}

/// `ibv_create_comp_channel`.
pub(crate) fn create_comp_channel(context: Context) -> Result<Owned<ibv_comp_channel>, i32> {
    // SAFETY: the context is open. The channel uses nothing else.
    unsafe {
        let channel = ibv_create_comp_channel(context.as_ptr());
        Owned::new(context, channel, ibv_destroy_comp_channel, ())
    }
}

impl Owned<ibv_comp_channel> {
    /// Its descriptor.
    pub(crate) fn fd(&self) -> i32 {
        // SAFETY: the channel is alive; the descriptor never changes.
        unsafe { (*self.as_ptr()).fd }
    }
}

/// `ibv_create_cq`. Its events go to the channel.
pub(crate) fn create_cq(
    context: Context,
    init: &CqInit,
    channel: Option<&Channel>,
) -> Result<Owned<ibv_cq>, i32> {
    let (depth, vector) = (to_c(init.depth), to_c(init.comp_vector));
    let none = ptr::null_mut();
    let events = channel_of(context, channel)?;
    // SAFETY: context and channel are alive, and the queue keeps the channel.
    unsafe {
        let cq = ibv_create_cq(context.as_ptr(), depth, none, events, vector);
        Owned::new(context, cq, ibv_destroy_cq, channel.cloned())
    }
}

fn channel_of(context: Context, channel: Option<&Channel>) -> Result<*mut ibv_comp_channel, i32> {
    let Some(channel) = channel else { return Ok(ptr::null_mut()) };
    same(channel.context(), context)?;
    Ok(channel.as_ptr())
}

/// `ibv_create_cq_ex`, in a parent domain if one is given.
pub(crate) fn create_cq_ex(
    context: Context,
    init: &CqInit,
    channel: Option<&Channel>,
    parent: Option<&Pd>,
) -> Result<CqEx, i32> {
    let create = front::create_cq_ex(context).ok_or(LACKS)?;
    // SAFETY: zero is a valid value of each field.
    let mut attr: ibv_cq_init_attr_ex = unsafe { zeroed() };
    attr.cqe = init.depth;
    attr.channel = channel_of(context, channel)?;
    attr.comp_vector = init.comp_vector;
    attr.wc_flags = init.fields.bits().into();
    attr.flags = init.flags.bits();
    if !init.flags.is_empty() {
        attr.comp_mask = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
    }
    if let Some(parent) = parent {
        same(parent.context(), context)?;
        attr.comp_mask |= ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_PD.0;
        attr.parent_domain = parent.as_ptr();
    }
    // SAFETY: the mask names what is set; all that is named is alive, and the queue keeps it.
    unsafe {
        let cq = create(context.as_ptr(), &raw mut attr);
        let uses = (channel.cloned(), parent.cloned());
        Ok(CqEx(Arc::new(Owned::new(context, cq.cast(), ibv_destroy_cq, uses)?)))
    }
}

impl CqEx {
    pub(crate) fn as_ptr(&self) -> *mut ibv_cq_ex {
        self.0.as_ptr().cast()
    }

    /// The queue for everything but its reader.
    pub(crate) fn plain(&self) -> &Cq {
        &self.0
    }

    /// Destroys it, if nobody else has it. True if the driver did.
    pub(crate) fn destroy(self) -> bool {
        Arc::into_inner(self.0).is_some_and(Owned::destroy)
    }
}

impl Owned<ibv_cq> {
    /// `ibv_resize_cq`. Returns the real depth.
    pub(crate) fn resize(&self, depth: u32) -> Result<u32, i32> {
        // SAFETY: the queue is alive; the driver keeps polls out meanwhile.
        match unsafe { ibv_resize_cq(self.as_ptr(), to_c(depth)) } {
            // SAFETY: the call has written the real figure.
            0 => Ok(from_c(unsafe { (*self.as_ptr()).cqe })),
            errno => Err(errno),
        }
    }

    /// `ibv_req_notify_cq`: 0, or an errno.
    pub(crate) fn arm(&self, solicited: bool) -> i32 {
        // SAFETY: the queue is alive. All drivers have the function.
        unsafe { ibv_req_notify_cq(self.as_ptr(), solicited.into()) }
    }

    /// Takes and acknowledges the events of its channel, on which no other queue is, but no more
    /// than `most`. Returns how many.
    pub(crate) fn drain(&self, channel: &Owned<ibv_comp_channel>, most: u32) -> u32 {
        let mut count = 0;
        let (mut which, mut context) = (ptr::null_mut(), ptr::null_mut());
        while count < most {
            // SAFETY: the channel is alive and does not block; the call fills in two pointers.
            let got =
                unsafe { ibv_get_cq_event(channel.as_ptr(), &raw mut which, &raw mut context) };
            if got != 0 {
                break;
            }
            count += 1;
        }
        if count > 0 {
            // SAFETY: the queue is alive, and had that many events.
            unsafe { ibv_ack_cq_events(self.as_ptr(), count) };
        }
        count
    }
}

/// `ibv_create_srq`. Returns the real depth too.
pub(crate) fn create_srq(pd: &Pd, depth: u32) -> Result<(Owned<ibv_srq>, u32), i32> {
    // SAFETY: zero is a valid value of each field.
    let mut init: ibv_srq_init_attr = unsafe { zeroed() };
    init.attr.max_wr = depth;
    init.attr.max_sge = 1;
    // SAFETY: the domain is alive, and the queue keeps it; the call fills in real figures.
    let srq = unsafe {
        let srq = ibv_create_srq(pd.as_ptr(), &raw mut init);
        Owned::new(pd.context(), srq, ibv_destroy_srq, pd.clone())?
    };
    Ok((srq, init.attr.max_wr))
}

/// `ibv_create_srq_ex` of an XRC domain. Returns the real depth and the queue's number too.
pub(crate) fn create_xrc_srq(
    pd: &Pd,
    xrcd: &Xrcd,
    cq: &Cq,
    depth: u32,
) -> Result<(Owned<ibv_srq>, u32, u32), i32> {
    use ibv_srq_init_attr_mask as Has;
    let context = pd.context();
    let calls = XrcCalls::of(context).ok_or(LACKS)?;
    same(xrcd.context(), context)?;
    same(cq.context(), context)?;
    // SAFETY: zero is a valid value of each field.
    let mut init: ibv_srq_init_attr_ex = unsafe { zeroed() };
    init.comp_mask = Has::IBV_SRQ_INIT_ATTR_TYPE.0
        | Has::IBV_SRQ_INIT_ATTR_PD.0
        | Has::IBV_SRQ_INIT_ATTR_XRCD.0
        | Has::IBV_SRQ_INIT_ATTR_CQ.0;
    init.srq_type = ibv_srq_type::IBV_SRQT_XRC;
    (init.pd, init.xrcd, init.cq) = (pd.as_ptr(), xrcd.as_ptr(), cq.as_ptr());
    (init.attr.max_wr, init.attr.max_sge) = (depth, 1);
    // SAFETY: all that is named is alive and of one device, and the queue keeps it; the call fills
    // in real figures.
    let srq = unsafe {
        let srq = (calls.create_srq_ex)(context.as_ptr(), &raw mut init);
        Owned::new(context, srq, ibv_destroy_srq, (pd.clone(), xrcd.clone(), cq.clone()))?
    };
    let mut number = 0;
    // SAFETY: the queue was just made; the call writes its number.
    match unsafe { (calls.get_srq_num)(srq.as_ptr(), &raw mut number) } {
        0 => Ok((srq, init.attr.max_wr, number)),
        errno => Err(errno),
    }
}

impl Owned<ibv_srq> {
    /// `ibv_modify_srq`: sets what the mask names. 0, or an errno.
    pub(crate) fn modify(&self, mut attr: ibv_srq_attr, mask: ibv_srq_attr_mask) -> i32 {
        // SAFETY: the queue is alive.
        unsafe { ibv_modify_srq(self.as_ptr(), &raw mut attr, mask.0.cast_signed()) }
    }

    /// `ibv_query_srq`.
    pub(crate) fn query(&self) -> Result<ibv_srq_attr, i32> {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 };
        // SAFETY: the queue is alive; the call fills the structure.
        match unsafe { ibv_query_srq(self.as_ptr(), &raw mut attr) } {
            0 => Ok(attr),
            errno => Err(errno),
        }
    }
}

/// `ibv_open_xrcd` without a file: a domain of this process.
pub(crate) fn open_xrcd(context: Context) -> Result<Owned<ibv_xrcd>, i32> {
    let calls = XrcCalls::of(context).ok_or(LACKS)?;
    let mask = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD.0
        | ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS.0;
    let mut attr = ibv_xrcd_init_attr { comp_mask: mask, fd: -1, oflags: libc::O_CREAT };
    // SAFETY: the context is open; the call keeps nothing of `attr`.
    unsafe {
        let xrcd = (calls.open_xrcd)(context.as_ptr(), &raw mut attr);
        Owned::new(context, xrcd, calls.close_xrcd, ())
    }
}

/// `ibv_alloc_mw`.
pub(crate) fn alloc_mw(pd: &Pd, kind: WindowKind) -> Result<Owned<ibv_mw>, i32> {
    unsafe extern "C" fn dealloc(mw: *mut ibv_mw) -> i32 {
        // SAFETY: the owner of the window calls this.
        unsafe { ibv_dealloc_mw(mw) }
    }
    // SAFETY: the domain is alive, and the window keeps it; the numbers of the kinds are C's.
    unsafe {
        let mw = ibv_alloc_mw(pd.as_ptr(), kind as u32).unwrap_or(ptr::null_mut());
        Owned::new(pd.context(), mw, dealloc, pd.clone())
    }
}

impl Owned<ibv_mw> {
    /// Its key.
    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the window is alive; the field is written in `set_rkey` and inside `ibv_bind_mw`
        // only, for which the window is borrowed as the only one.
        unsafe { (*self.as_ptr()).rkey }
    }

    /// What C leaves to its users for windows of type 2.
    pub(crate) fn set_rkey(&mut self, rkey: u32) {
        // SAFETY: as above.
        unsafe { (*self.as_ptr()).rkey = rkey };
    }
}

/// `ibv_create_wq`, in RESET. Returns the real depth too.
pub(crate) fn create_wq(
    pd: &Pd,
    cq: &Cq,
    depth: u32,
    flags: WqFlags,
) -> Result<(Owned<ibv_wq>, u32), i32> {
    let context = pd.context();
    let calls = WqCalls::of(context).ok_or(LACKS)?;
    same(cq.context(), context)?;
    // SAFETY: zero is a valid value of each field.
    let mut init: ibv_wq_init_attr = unsafe { zeroed() };
    init.wq_type = ibv_wq_type::IBV_WQT_RQ;
    init.max_wr = depth;
    init.max_sge = 1;
    init.pd = pd.as_ptr();
    init.cq = cq.as_ptr();
    if !flags.is_empty() {
        init.comp_mask = ibv_wq_init_attr_mask::IBV_WQ_INIT_ATTR_FLAGS.0;
        init.create_flags = flags.bits();
    }
    // SAFETY: domain and completion queue are alive, and the queue keeps them; the call fills in
    // real figures.
    let wq = unsafe {
        let wq = (calls.create)(context.as_ptr(), &raw mut init);
        Owned::new(context, wq, calls.destroy, (pd.clone(), cq.clone()))?
    };
    let raw = wq.as_ptr();
    // SAFETY: just made. As libibverbs' own wrapper does, what drivers leave to it is set; its lock
    // and condition are for events, none of which is asked for here.
    unsafe {
        (*raw).events_completed = 0;
        libc::pthread_mutex_init((&raw mut (*raw).mutex).cast(), ptr::null());
        libc::pthread_cond_init((&raw mut (*raw).cond).cast(), ptr::null());
    }
    Ok((wq, init.max_wr))
}

impl Owned<ibv_wq> {
    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue is alive; the number never changes.
        unsafe { (*self.as_ptr()).wq_num }
    }

    /// `ibv_modify_wq`: takes it to a state. 0, or an errno.
    pub(crate) fn modify(&self, to: WqState) -> i32 {
        let Some(calls) = WqCalls::of(self.context()) else { return LACKS };
        // SAFETY: zero is a valid value of each field.
        let mut attr: ibv_wq_attr = unsafe { zeroed() };
        attr.attr_mask = ibv_wq_attr_mask::IBV_WQ_ATTR_STATE.0;
        attr.wq_state = to as u32;
        // SAFETY: the queue is alive; the mask names what is set.
        unsafe { (calls.modify)(self.as_ptr(), &raw mut attr) }
    }
}

/// `ibv_create_rwq_ind_table`, of queues whose number is a power of two.
pub(crate) fn create_rwq_ind_table(
    context: Context,
    queues: &[Wq],
) -> Result<Owned<ibv_rwq_ind_table>, i32> {
    let calls = TableCalls::of(context).ok_or(LACKS)?;
    for queue in queues {
        same(queue.context(), context)?;
    }
    let size = queues.len().checked_ilog2().ok_or(libc::EINVAL)?;
    let mut raws: Vec<*mut ibv_wq> = queues.iter().map(|queue| queue.as_ptr()).collect();
    let mut init = ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: size,
        ind_tbl: raws.as_mut_ptr(),
        comp_mask: 0,
    };
    // SAFETY: the queues are alive, and the table keeps them; the array is read during the call.
    unsafe {
        let table = (calls.create)(context.as_ptr(), &raw mut init);
        Owned::new(context, table, calls.destroy, Vec::from(queues))
    }
}

/// A rule of steering with one specification, side by side as the driver reads them.
#[repr(C)]
struct Rule {
    attr: ibv_flow_attr,
    ethernet: ibv_flow_spec_eth,
}

const _: () = assert!(size_of::<Rule>() == 60);

/// The rule in C's form; `None` for one that C does not have.
fn raw_rule(port: u8, rule: FlowRule) -> Option<Rule> {
    // SAFETY: zero is a valid value of each field.
    let mut raw: Rule = unsafe { zeroed() };
    raw.attr.size = size_of::<Rule>() as u16;
    raw.attr.port = port;
    raw.ethernet.type_ = ibv_flow_spec_type::IBV_FLOW_SPEC_ETH;
    raw.ethernet.size = size_of::<ibv_flow_spec_eth>() as u16;
    match rule {
        FlowRule::All => raw.attr.type_ = ibv_flow_attr_type::IBV_FLOW_ATTR_SNIFFER,
        FlowRule::To(mac) => {
            raw.attr.type_ = ibv_flow_attr_type::IBV_FLOW_ATTR_NORMAL;
            raw.attr.num_of_specs = 1;
            raw.ethernet.val.dst_mac = mac.0;
            raw.ethernet.mask.dst_mac = [0xff; 6];
        }
        _ => return None,
    }
    Some(raw)
}

/// `ibv_create_flow`. `None` if the driver or C has no such rules. The system destroys no queue
/// pair that has a rule.
pub(crate) fn create_flow(
    qp: &Owned<ibv_qp>,
    port: u8,
    rule: FlowRule,
) -> Option<Result<Owned<ibv_flow>, i32>> {
    let calls = FlowCalls::of(qp.context())?;
    let mut raw = raw_rule(port, rule)?;
    // SAFETY: the queue pair is alive; the rule is read during the call, and says how long it is.
    let flow = unsafe {
        let flow = (calls.create)(qp.as_ptr(), (&raw mut raw).cast());
        Owned::new(qp.context(), flow, calls.destroy, ())
    };
    Some(flow)
}

/// The changes of a region that the device can make. No call tells. Each is tried on a small region
/// of its own, because by the man page a region is lost once a change of it has failed.
pub(crate) fn rereg_offered(pd: &Pd) -> ReregFlags {
    const PIECE: usize = 64;
    let mut bytes = vec![0_u8; 2 * PIECE];
    let (first, second) = (bytes.as_mut_ptr(), bytes[PIECE..].as_mut_ptr());
    let (few, more) = (Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let works = |change: &ReregFlags| {
        let moves = *change == ReregFlags::CHANGE_TRANSLATION;
        let (start, length) = if moves { (second, PIECE) } else { (ptr::null_mut(), 0) };
        let access = if *change == ReregFlags::CHANGE_ACCESS { access_flags(more) } else { 0 };
        let what = change.bits().into();
        // SAFETY: the domain is alive, and so are the bytes until the region is destroyed below;
        // nobody has its keys.
        unsafe {
            let mr = ibv_reg_mr(pd.as_ptr(), first.cast(), PIECE, access_flags(few));
            if mr.is_null() {
                return false;
            }
            let answer = ibv_rereg_mr(mr, what, pd.as_ptr(), start.cast(), length, access);
            ibv_dereg_mr(mr) == 0 && answer == 0
        }
    };
    ReregFlags::all().iter().filter(works).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::Mac;

    #[test]
    fn a_rule_for_an_address_names_all_of_it() {
        let one = raw_rule(1, FlowRule::To(Mac([1, 2, 3, 4, 5, 6]))).expect("C has it");
        assert_eq!((one.attr.num_of_specs, one.attr.size, one.attr.port), (1, 60, 1));
        assert_eq!(one.ethernet.val.dst_mac, [1, 2, 3, 4, 5, 6]);
        assert_eq!(one.ethernet.mask.dst_mac, [0xff; 6]);
        let all = raw_rule(1, FlowRule::All).expect("C has it");
        assert_eq!((all.attr.num_of_specs, all.attr.type_), (0, 3));
    }
}
