//! Datagrams: a sender is killed while it resolves its receiver or writes to it. Nobody is told,
//! and other senders to the same receiver are not held up.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{Buffer, ConnParam, Endpoint, Hints, Id, PortSpace, QpInit, Target};
use doorbell_seam::provider::GRH_BYTES;
use doorbell_seam::wr::SendFlags;
use doorbell_soft::SoftDevice;

use crate::belongings::{assert_nothing_left, belongings};
use crate::kill::{Doom, Killer, Stage, peer};
use crate::{Dice, LIFE, LOOK, SOON, alone, anywhere, endpoint, kills, number_of, text};

/// The most bytes of a datagram.
const DATAGRAM: usize = 4096;
/// Number of receives that are kept posted.
const RECEIVES: usize = 16;
/// Number of senders that are killed on one receiver. A sender that dies while it writes costs its
/// receiver one of its 64 slots.
const KILLS_EACH: u32 = 20;

fn mailers() -> QpInit<SoftDevice> {
    QpInit::ud().send_wr(8).recv_wr(RECEIVES as u32).inline(64)
}

fn hints(of: Hints) -> Hints {
    Hints { space: PortSpace::Udp, ..of }
}

/// Resolves the receiver, then sends datagrams until it is killed.
pub(crate) fn mails(addr: SocketAddr) {
    let device = SoftDevice::open().unwrap();
    let init = mailers();
    let mut id = endpoint(&device, (addr, hints(Hints::active())), Some(&init)).into_id();
    id.connect(&ConnParam::default()).unwrap();
    let target = Target::new(&device, &id.ud().unwrap()).unwrap();
    let mut buffer = Buffer::new(&device, DATAGRAM).unwrap();
    let end = Instant::now() + LIFE;
    for number in 0.. {
        assert!(Instant::now() < end, "nobody kills it");
        let message = text(number, DATAGRAM);
        buffer[..message.len()].copy_from_slice(&message);
        id.queues()
            .post_send_to(&target, buffer, message.len(), None, SendFlags::SIGNALED)
            .unwrap();
        buffer = id.queues().next_send(SOON).unwrap().ok().unwrap().buffer.unwrap();
    }
}

/// The receiver of datagrams: an id that senders resolve, and a second sender in this process.
struct Receiver {
    listener: Endpoint<SoftDevice>,
    addr: SocketAddr,
    id: Id<SoftDevice>,
    friend: Id<SoftDevice>,
    target: Target<SoftDevice>,
}

impl Receiver {
    fn new() -> Receiver {
        let device = SoftDevice::open().unwrap();
        let mut listener = endpoint(&device, (anywhere(), hints(Hints::passive())), None);
        listener.listen(0).unwrap();
        let addr = listener.local_addr().unwrap();
        let bound = || {
            let mut id = Id::create(&device, None, PortSpace::Udp).unwrap();
            id.bind(anywhere()).unwrap();
            id.create_qp(&mailers()).unwrap();
            id
        };
        let (mut id, friend) = (bound(), bound());
        let size = GRH_BYTES + DATAGRAM;
        id.queues().post_recvs(&mut Buffer::many(&device, RECEIVES, size).unwrap()).unwrap();
        // The second sender resolves the receiver as any process would.
        let mut finder = endpoint(&device, (addr, hints(Hints::active())), Some(&mailers()));
        let finder = thread::scope(|scope| {
            let found = scope.spawn(move || {
                finder.connect(&ConnParam::default()).unwrap();
                finder.into_id()
            });
            let mut request = listener.get_request(Some(SOON)).unwrap();
            let (qp_num, _) = id.qp().unwrap();
            request.accept(&ConnParam { qp_num, ..ConnParam::default() }).unwrap();
            found.join().unwrap()
        });
        let target = Target::new(&device, &finder.ud().unwrap()).unwrap();
        Receiver { listener, addr, id, friend, target }
    }

    /// Lets one sender be killed, before or after this many datagrams have arrived.
    fn survive(&mut self, doom: Doom, datagrams: u32) {
        let killer = Killer::of(peer("mails", 0, self.addr), doom);
        let (mut met, mut last, mut came) = (false, None, 0);
        loop {
            // Read this before looking for a request: what a dead sender requested is already
            // there.
            let dead = killer.is_done();
            if !met && let Ok(mut request) = self.listener.get_request(Some(Duration::ZERO)) {
                met = true;
                killer.note(Stage::Met);
                let (qp_num, _) = self.id.qp().unwrap();
                // The sender may be dead already; then the answer fails.
                let _ = request.accept(&ConnParam { qp_num, ..ConnParam::default() });
            }
            match self.take(LOOK, last) {
                Some(number) => {
                    (last, came) = (Some(number), came + 1);
                    if came == datagrams {
                        killer.note(Stage::Heard);
                    }
                }
                // Everything that it had sent has arrived, and is complete.
                None if dead => break,
                None => {}
            }
        }
        killer.wait();
        self.hear_a_friend();
    }

    /// A dead sender holds up nobody else.
    fn hear_a_friend(&mut self) {
        for number in 0..3 {
            let message = &text(number, 64)[..];
            self.friend
                .queues()
                .post_inline_to(&self.target, message, Some(number), SendFlags::SIGNALED)
                .unwrap();
            self.friend.queues().next_send(SOON).unwrap().ok().unwrap();
            let came = self.id.queues().next_recv(SOON).unwrap();
            assert_eq!(came.imm, Some(number));
            assert_eq!(came.datagram().unwrap().1, message);
            self.id.queues().post_recv(came.buffer.unwrap()).unwrap();
        }
    }

    /// Takes the next datagram of the killed sender, which must be complete and later than the
    /// last; returns its number.
    fn take(&mut self, limit: Duration, last: Option<u32>) -> Option<u32> {
        let came = self.id.queues().next_recv(limit).ok()?.ok().unwrap();
        let number = number_of(came.datagram().unwrap().1, DATAGRAM);
        assert!(last.is_none_or(|last| last < number), "{number} after {last:?}");
        self.id.queues().post_recv(came.buffer.unwrap()).unwrap();
        Some(number)
    }
}

#[test]
fn a_killed_sender_of_datagrams_holds_up_nobody_and_leaves_nothing() {
    let _alone = alone();
    let mut dice = Dice(11);
    Receiver::new().survive(Doom::late(), 1);
    let before = belongings();
    let mut left = kills();
    while left > 0 {
        let some = left.min(KILLS_EACH);
        let mut receiver = Receiver::new();
        for _ in 0..some {
            receiver.survive(Doom::roll(&mut dice), 1 + dice.below(200) as u32);
        }
        left -= some;
    }
    assert_nothing_left(&before);
}
