//! The starting point of most cases: a listener, a connected pair, buffers with known contents.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_alloc::{Ask, MapRequest};
use doorbell_cm::{
    AddrInfo, Buffer, Channel, Completion, ConnParam, Endpoint, Event, EventKind, Fabric, Hints,
    Id, QpInit,
};
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{SendFlags, SendOp};

use crate::harness;

/// Longer than any one expected event takes, even on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(240);
/// Long enough to see that nothing happens.
pub(crate) const A_WHILE: Duration = Duration::from_millis(50);

/// The device under test.
pub(crate) struct Bed<F: Fabric> {
    pub(crate) fabric: F,
}

/// A connected pair: active, passive.
pub(crate) type Pair<F> = (Id<F>, Id<F>);

/// Ends a connection as two programs do: the second disconnects when it has heard of it. If it did
/// not, a synchronous id on verbs would wait for it for long.
pub(crate) fn part<F: Fabric>(first: &mut Id<F>, second: &mut Id<F>) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let end = Instant::now() + SOON;
            while !second.peer_left() {
                assert!(Instant::now() < end, "the peer did not leave");
                thread::yield_now();
            }
            second.disconnect().expect("so does the other");
        });
        first.disconnect().expect("disconnect");
    });
}

impl<F: Fabric> Bed<F> {
    pub(crate) fn new(fabric: F) -> Bed<F> {
        Bed { fabric }
    }

    /// True if the device keeps every rule exactly, as hardware does.
    pub(crate) fn is_strict(&self) -> bool {
        harness::on_soft()
    }

    /// True if that is the status of a send whose receive was too short (CK-1).
    pub(crate) fn is_too_long_there(&self, status: Status) -> bool {
        status == Status::RemoteInvalidRequest
            || (!self.is_strict() && status == Status::RemoteOperation)
    }

    /// An address with that port on the device.
    pub(crate) fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(harness::address(), port)
    }

    /// A small queue pair; each send is signalled.
    pub(crate) fn small(&self) -> QpInit<F> {
        QpInit::rc().send_wr(4).recv_wr(4).inline(16).signal_all(true)
    }

    /// As [`Bed::small`], but a send completes only if it asks for that.
    pub(crate) fn quiet(&self) -> QpInit<F> {
        self.small().signal_all(false)
    }

    /// A synchronous listener on a free port.
    pub(crate) fn listener(&self, saved: Option<&QpInit<F>>) -> (Endpoint<F>, SocketAddr) {
        let info = AddrInfo::of(self.at(0), &Hints::passive());
        let mut listener = Endpoint::create(&self.fabric, &info, saved).expect("a listener");
        listener.listen(0).expect("listen");
        let addr = listener.local_addr().expect("a bound listener has an address");
        assert_ne!(addr.port(), 0, "port 0 takes a free one");
        (listener, addr)
    }

    /// An active endpoint towards `addr`.
    pub(crate) fn active(&self, addr: SocketAddr, init: &QpInit<F>) -> Endpoint<F> {
        let info = AddrInfo::of(addr, &Hints::active());
        Endpoint::create(&self.fabric, &info, Some(init)).expect("an active endpoint")
    }

    /// A connected pair with queue pairs of that type.
    pub(crate) fn pair(&self, init: &QpInit<F>) -> Pair<F> {
        self.pair_with(init, init, &ConnParam::default(), &ConnParam::default())
    }

    /// A connected pair; the arguments are the active side's attributes and parameters.
    pub(crate) fn pair_with(
        &self,
        active: &QpInit<F>,
        passive: &QpInit<F>,
        connect: &ConnParam<'_>,
        accept: &ConnParam<'_>,
    ) -> Pair<F> {
        let (mut one, mut two) = self.pair_as_connected(active, passive, connect, accept);
        one.set_rnr_timer(12).expect("connected");
        two.set_rnr_timer(12).expect("connected");
        (one, two)
    }

    /// As [`Bed::pair_with`], in the state in which connecting leaves it.
    pub(crate) fn pair_as_connected(
        &self,
        active: &QpInit<F>,
        passive: &QpInit<F>,
        connect: &ConnParam<'_>,
        accept: &ConnParam<'_>,
    ) -> Pair<F> {
        let (mut listener, addr) = self.listener(Some(passive));
        let mut one = self.active(addr, active).into_id();
        thread::scope(|scope| {
            let connecting = scope.spawn(move || {
                one.connect(connect).expect("connect");
                one
            });
            let mut two = listener.get_request(Some(SOON)).expect("a request");
            two.accept(accept).expect("accept");
            (connecting.join().expect("the connecting side"), two)
        })
    }

    /// A buffer of that length, filled with `byte`.
    pub(crate) fn filled(&self, len: usize, byte: u8) -> Buffer<F> {
        let mut buffer = match self.fabric.caps().lends && len >= 1024 {
            // Memory that peers can read, so that a long message is copied from there.
            true => {
                let memory = MapRequest::new(len).pages(Ask::Plain).readable(true).map();
                let memory = memory.expect("readable memory");
                let one = Buffer::over(&self.fabric, memory, 1, len);
                one.expect("a buffer").pop().expect("one")
            }
            false => Buffer::new(&self.fabric, len).expect("a buffer"),
        };
        buffer.fill(byte);
        buffer
    }

    /// Buffers of one byte each, which holds the buffer's number.
    pub(crate) fn numbered(&self, count: usize) -> Vec<Buffer<F>> {
        let mut buffers = Buffer::many(&self.fabric, count, 1).expect("buffers");
        for (number, buffer) in buffers.iter_mut().enumerate() {
            buffer[0] = number as u8;
        }
        buffers
    }
}

/// Posts a signalled send of the whole buffer.
pub(crate) fn send<F: Fabric>(id: &mut Id<F>, buffer: Buffer<F>) {
    let len = buffer.len();
    id.queues().post_send(buffer, len, SendOp::Send, SendFlags::SIGNALED).expect("post a send");
}

/// Posts a signalled inline send.
pub(crate) fn send_inline<F: Fabric>(id: &mut Id<F>, bytes: &[u8]) {
    harness::moves();
    id.queues().post_inline(bytes, SendOp::Send, SendFlags::SIGNALED).expect("post an inline send");
}

/// The next completed send of one side. Meanwhile the other side's device works as well, because on
/// a soft device a poll does the NIC's work.
pub(crate) fn sent<F: Fabric>(id: &mut Id<F>, other: &mut Id<F>) -> Completion<F> {
    let end = Instant::now() + SOON;
    loop {
        if let Ok(completion) = id.queues().next_send(Duration::ZERO) {
            return completion;
        }
        assert!(
            other.queues().next_send(Duration::ZERO).is_err(),
            "the other side has sent nothing"
        );
        assert!(Instant::now() < end, "the send did not complete");
        thread::sleep(Duration::from_micros(50));
    }
}

/// The next completed receive, which must have succeeded.
pub(crate) fn received<F: Fabric>(id: &mut Id<F>) -> Completion<F> {
    let completion = id.queues().next_recv(SOON).expect("a message");
    harness::moves();
    assert_eq!(completion.status, Status::Success);
    completion
}

/// The number of the [`Bed::numbered`] buffer that a completion returns.
pub(crate) fn number<F: Fabric>(completion: &Completion<F>) -> u8 {
    completion.buffer.as_ref().expect("its buffer comes back")[0]
}

/// The next event, which must be of that kind.
pub(crate) fn event<F: Fabric>(channel: &F::Channel, kind: EventKind) -> Event<F> {
    let event = channel.next(SOON).expect("an event").expect("an event in time");
    harness::moves();
    assert_eq!(event.kind, kind, "status {}", event.status);
    event
}

/// Private data as the other side sees it: padded with zeros if the transport does that.
pub(crate) fn assert_padded(seen: &[u8], sent: &[u8], length: usize) {
    assert_eq!(seen.len(), length);
    assert!(seen.starts_with(sent));
    assert!(seen[sent.len()..].iter().all(|byte| *byte == 0), "padding is zero");
}
