//! Pointers of rdma-core that are sure to be alive: the contexts of devices, which are never
//! closed, and the objects that this crate owns. Whoever has one may call functions on it.
#![expect(unsafe_code, reason = "these types keep raw pointers alive, and read what they point to")]

use core::ffi::{CStr, c_int};
use core::mem::{self, MaybeUninit, offset_of, zeroed};
use core::ptr::NonNull;
use core::slice;
use std_alloc::boxed::Box;
use std_alloc::string::String;
use std_alloc::vec::Vec;

use spin::Mutex;

use crate::event::{AsyncEvent, AsyncKind, Object};
use crate::provider::{GRH_BYTES, Gid};
use crate::rdma_core::*;
use crate::shim::{from_c, to_c};
use crate::sys::errno;

/// A context of librdmacm: an open device. librdmacm keeps it open as long as the process lives
/// (G-4), because [`Devices::keep`] holds it for ever.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Context(NonNull<ibv_context>);

// SAFETY: the calls of libibverbs on a context may be made from any thread at the same time (its
// man pages call the library thread-safe), and the fields that are read here never change.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The driver's functions for the hot path, looked up once.
#[derive(Clone, Copy)]
pub(crate) struct Ops {
    pub(crate) poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    pub(crate) post_send: PostSend,
    pub(crate) post_recv: PostRecv,
    pub(crate) post_srq_recv: PostSrqRecv,
}

/// The driver's function that posts sends.
pub(crate) type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
/// The driver's function that posts receives.
pub(crate) type PostRecv =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
/// The driver's function that posts to a shared receive queue.
pub(crate) type PostSrqRecv =
    unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// librdmacm's list of the devices, each with an open context. While it is there, librdmacm closes
/// none of them, even if its device goes away. Dropping it gives it back.
pub(crate) struct Devices {
    list: NonNull<*mut ibv_context>,
    count: usize,
}

impl Devices {
    /// All devices. librdmacm must be loaded. An errno if there are none.
    pub(crate) fn list() -> Result<Devices, i32> {
        let mut count = 0;
        // SAFETY: the call writes a count and gives back an array of that length or NULL.
        let list = unsafe { rdma_get_devices(&raw mut count) };
        let list = NonNull::new(list).ok_or_else(errno)?;
        Ok(Devices { list, count: from_c(count) as usize })
    }

    /// Their names, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        // SAFETY: the contexts are open as long as this value.
        self.raw().iter().map(|raw| unsafe { name_of(*raw) }).collect()
    }

    /// The context at that index, which stays open from now on. For that, the first list with it
    /// is never given back.
    pub(crate) fn keep(self, index: usize) -> Option<Context> {
        static KEPT: Mutex<Vec<Context>> = Mutex::new(Vec::new());
        // SAFETY: an open context. Either its list is forgotten below, or an earlier one was.
        let context = unsafe { Context::new(*self.raw().get(index)?) }?;
        let mut kept = KEPT.lock();
        if !kept.contains(&context) {
            kept.push(context);
            mem::forget(self);
        }
        Some(context)
    }

    fn raw(&self) -> &[*mut ibv_context] {
        // SAFETY: an array of that many contexts, which only `drop` frees.
        unsafe { slice::from_raw_parts(self.list.as_ptr(), self.count) }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: the list that the call gave, once.
        unsafe { rdma_free_devices(self.list.as_ptr()) };
    }
}

/// The name of a device.
///
/// # Safety
/// The context is open.
unsafe fn name_of(context: *mut ibv_context) -> String {
    // SAFETY: the caller vouches for the context; the name lies in the device it points to.
    let name = unsafe { CStr::from_ptr(ibv_get_device_name((*context).device)) };
    name.to_string_lossy().into_owned()
}

impl Context {
    /// # Safety
    /// `raw` is NULL or an open context, and stays so as long as the process lives.
    pub(crate) unsafe fn new(raw: *mut ibv_context) -> Option<Context> {
        NonNull::new(raw).map(Context)
    }

    pub(crate) fn as_ptr(self) -> *mut ibv_context {
        self.0.as_ptr()
    }

    /// The device's name.
    pub(crate) fn name(self) -> String {
        // SAFETY: the context is open.
        unsafe { name_of(self.as_ptr()) }
    }

    /// The driver's functions; `None` if it lacks one.
    pub(crate) fn ops(self) -> Option<Ops> {
        // SAFETY: the context is open, and its table is filled before it is handed out.
        let ops = unsafe { &(*self.as_ptr()).ops };
        Some(Ops {
            poll_cq: ops.poll_cq?,
            post_send: ops.post_send?,
            post_recv: ops.post_recv?,
            post_srq_recv: ops.post_srq_recv?,
        })
    }

    /// The descriptor of asynchronous events.
    pub(crate) fn async_fd(self) -> i32 {
        // SAFETY: the context is open; the descriptor never changes.
        unsafe { (*self.as_ptr()).async_fd }
    }

    pub(crate) fn comp_vectors(self) -> u32 {
        // SAFETY: the context is open; the number never changes.
        from_c(unsafe { (*self.as_ptr()).num_comp_vectors })
    }

    /// `ibv_query_device`, or an errno.
    pub(crate) fn query_device(self) -> Result<ibv_device_attr, i32> {
        let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the call fills the structure it is given; one of zeros is valid.
        let (answer, attr) =
            unsafe { (ibv_query_device(self.as_ptr(), attr.as_mut_ptr()), attr.assume_init()) };
        if answer == 0 { Ok(attr) } else { Err(answer) }
    }

    /// `ibv_query_port`, or an errno.
    pub(crate) fn query_port(self, port: u8) -> Result<ibv_port_attr, i32> {
        let mut attr = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context is open. The exported call fills the older front part of the
        // structure; the rest stays zero, which is valid.
        let (answer, attr) = unsafe {
            let filled = ibv_query_port(self.as_ptr(), port, attr.as_mut_ptr().cast());
            (filled, attr.assume_init())
        };
        if answer == 0 { Ok(attr) } else { Err(answer) }
    }

    /// `ibv_query_gid`, or an errno.
    pub(crate) fn query_gid(self, port: u8, index: u32) -> Result<Gid, i32> {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open; the call fills the GID.
        match unsafe { ibv_query_gid(self.as_ptr(), port, to_c(index), &raw mut gid) } {
            0 => Ok(gid_of(&gid)),
            _ => Err(errno()),
        }
    }

    /// `ibv_query_pkey`, or an errno.
    pub(crate) fn query_pkey(self, port: u8, index: u32) -> Result<u16, i32> {
        let mut key = 0;
        // SAFETY: the context is open; the call fills the key.
        match unsafe { ibv_query_pkey(self.as_ptr(), port, to_c(index), &raw mut key) } {
            0 => Ok(u16::from_be(key)),
            _ => Err(errno()),
        }
    }

    /// `ibv_init_ah_from_wc` for a datagram that came from that queue pair with that header, or an
    /// errno.
    pub(crate) fn address_of_sender(
        self,
        port: u8,
        src_qp: u32,
        header: &[u8; GRH_BYTES],
    ) -> Result<ibv_ah_attr, i32> {
        // SAFETY: zero is a valid value of each field of all three, and any bytes are a header.
        let (mut wc, mut grh, mut attr): (ibv_wc, ibv_grh, ibv_ah_attr) =
            unsafe { (zeroed(), header.as_ptr().cast::<ibv_grh>().read_unaligned(), zeroed()) };
        wc.src_qp = src_qp;
        wc.wc_flags = ibv_wc_flags::IBV_WC_GRH.0;
        let (wc, grh, out) = (&raw mut wc, &raw mut grh, &raw mut attr);
        // SAFETY: the context is open, and all three are alive during the call.
        match unsafe { ibv_init_ah_from_wc(self.as_ptr(), port, wc, grh, out) } {
            0 => Ok(attr),
            _ => Err(errno()),
        }
    }

    /// The next asynchronous event, if the descriptor does not block. It is acknowledged. Events of
    /// kinds that this crate does not know are skipped.
    pub(crate) fn next_event(self) -> Option<AsyncEvent> {
        loop {
            let mut event = MaybeUninit::<ibv_async_event>::zeroed();
            // SAFETY: the context is open; the call fills the structure it is given.
            if unsafe { ibv_get_async_event(self.as_ptr(), event.as_mut_ptr()) } != 0 {
                return None;
            }
            // Read as numbers: a kind newer than the bindings is no value of their type.
            let raw = event.as_ptr().cast::<u8>();
            // SAFETY: both fields lie in the structure; the element is a pointer or a port number
            // in its first bytes, the rest of which are zero.
            let (kind, element) = unsafe {
                let kind = raw.add(offset_of!(ibv_async_event, event_type)).cast::<u32>();
                (kind.read(), raw.cast::<u64>().read())
            };
            let kind = AsyncKind::from_raw(kind);
            // SAFETY: the event was just taken, and is acknowledged below.
            let object = kind.map(|kind| unsafe { object(kind, element) });
            // SAFETY: the event that was just taken, once. After this what it names may go.
            unsafe { ibv_ack_async_event(event.as_mut_ptr()) };
            if let (Some(kind), Some(object)) = (kind, object) {
                return Some(AsyncEvent { kind, object });
            }
        }
    }
}

/// What an event happened to.
///
/// # Safety
/// Kind and element are those of an event that is not yet acknowledged.
unsafe fn object(kind: AsyncKind, element: u64) -> Object {
    use AsyncKind::*;
    match kind {
        CqError => Object::Cq(element),
        SrqError | SrqLimitReached => Object::Srq(element),
        QpFatal | QpRequestError | QpAccessError | CommEstablished | SqDrained | PathMigrated
        | PathMigrationError | LastWqeReached => {
            // SAFETY: for these kinds it is a queue pair, which lives until the event is
            // acknowledged; its number never changes.
            Object::Qp(unsafe { (*(element as *const ibv_qp)).qp_num })
        }
        PortActive | PortError | LidChange | PkeyChange | SmChange | ClientReregister
        | GidChange | SpeedChange => Object::Port(element as u8),
        // The device itself, and a work queue, which has no name among the objects.
        _ => Object::Device,
    }
}

/// A function that destroys an object. It answers 0, or an errno if the object stays.
pub(crate) type Destroy<T> = unsafe extern "C" fn(*mut T) -> c_int;

/// An object of rdma-core that this crate has made. Dropping it destroys it, and then lets go of
/// what it uses. If the driver refuses, the object stays and nothing dangles.
pub(crate) struct Owned<T> {
    raw: NonNull<T>,
    context: Context,
    destroy: Destroy<T>,
    // Dropped after the object was destroyed.
    _uses: Box<dyn Send + Sync>,
}

// SAFETY: libibverbs' calls on an object, that which destroys it too, may be made from any thread
// (`new` asks for that); what the object uses is itself of that kind.
unsafe impl<T> Send for Owned<T> {}
// SAFETY: as above; a shared reference gives out the pointer only.
unsafe impl<T> Sync for Owned<T> {}

impl<T> Owned<T> {
    /// Takes charge of what a call on the device has made just now. An errno if that is NULL.
    ///
    /// # Safety
    /// `raw` is NULL, or alive until `destroy` is called on it, which nobody else does. Whatever it
    /// uses beside its context lives as long as `uses`. Any thread may make calls on it.
    pub(crate) unsafe fn new(
        context: Context,
        raw: *mut T,
        destroy: Destroy<T>,
        uses: impl Send + Sync + 'static,
    ) -> Result<Owned<T>, i32> {
        let raw = NonNull::new(raw).ok_or_else(errno)?;
        Ok(Owned { raw, context, destroy, _uses: Box::new(uses) })
    }

    /// An object that lives as long as `owner`, which destroys it.
    ///
    /// # Safety
    /// As for [`Owned::new`], but for who destroys it.
    pub(crate) unsafe fn lent(
        context: Context,
        raw: NonNull<T>,
        owner: impl Send + Sync + 'static,
    ) -> Owned<T> {
        Owned { raw, context, destroy: stay, _uses: Box::new(owner) }
    }

    /// The device it is on.
    pub(crate) fn context(&self) -> Context {
        self.context
    }

    /// The object, alive as long as this value.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.raw.as_ptr()
    }

    /// Destroys it. True if the driver did.
    pub(crate) fn destroy(mut self) -> bool {
        let destroy = mem::replace(&mut self.destroy, stay);
        // SAFETY: the object is alive, and this is the only call: `drop` makes none any more.
        unsafe { destroy(self.as_ptr()) == 0 }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the object is alive, and this is the only call. Objects that use it own it
        // together, so they are gone.
        unsafe { (self.destroy)(self.as_ptr()) };
    }
}

unsafe extern "C" fn stay<T>(_: *mut T) -> c_int {
    0
}

/// A C structure for which all zeros are a valid value.
///
/// # Safety
/// It consists of numbers, pointers, functions that may be NULL, and unions of these.
pub(crate) unsafe trait Zero: Sized {}

// SAFETY: so it is, by <infiniband/verbs.h>.
unsafe impl Zero for ibv_qp_attr {}
// SAFETY: as above.
unsafe impl Zero for ibv_send_wr {}

/// A structure of zeros.
pub(crate) const fn zero<T: Zero>() -> T {
    // SAFETY: the trait says so.
    unsafe { zeroed() }
}

/// The bytes of a GID.
pub(crate) fn gid_of(raw: &ibv_gid) -> Gid {
    // SAFETY: every member of the union is the same sixteen bytes, which any value may have.
    Gid(unsafe { raw.raw })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std_alloc::sync::Arc;

    static ENDED: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

    unsafe extern "C" fn end(parent: *mut Arc<()>) -> c_int {
        // SAFETY: the test hands over a handle that lives until the end of the test.
        assert_eq!(Arc::strong_count(unsafe { &*parent }), 2, "what it uses is still there");
        ENDED.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        0
    }

    #[test]
    fn an_object_is_destroyed_once_and_before_what_it_uses() {
        let context = Context(NonNull::dangling());
        let ended = || ENDED.load(core::sync::atomic::Ordering::Relaxed);
        let mut parent = Arc::new(());
        for (number, by_call) in [(1, false), (2, true)] {
            let uses = parent.clone();
            // SAFETY: the function of the test only looks.
            let object = unsafe { Owned::new(context, &raw mut parent, end, uses) };
            let object = object.expect("it is not null");
            assert_eq!(ended(), number - 1);
            if by_call {
                assert!(object.destroy())
            } else {
                drop(object)
            }
            assert_eq!((ended(), Arc::strong_count(&parent)), (number, 1));
        }
        let (uses, raw) = (parent.clone(), NonNull::from(&mut parent));
        // SAFETY: as above.
        drop(unsafe { Owned::lent(context, raw, uses) });
        assert_eq!((ended(), Arc::strong_count(&parent)), (2, 1), "its owner destroys it");
    }

    #[test]
    fn nothing_made_is_an_errno() {
        // SAFETY: there is no object.
        let none = unsafe {
            let context = Context(NonNull::dangling());
            Owned::<u8>::new(context, core::ptr::null_mut(), stay, ())
        };
        assert!(none.is_err());
    }
}
