//! The protection domain on which a worker's queue pairs are made.
#![expect(unsafe_code, reason = "a thread domain is a promise")]

use doorbell_cm::Fabric;
use doorbell_engine::worker::{
    Config, DownReason, Handler, Intake, Message, Outbox, PeerId, Verdict,
};
use doorbell_seam::provider::Provider;

use crate::bed::{CONFIG, Pair, Side, cases};

cases! {
    a_worker_has_a_thread_domain_where_there_are_any_and_gives_it_back
}

/// Replies to everything.
#[derive(Default)]
struct Echo {
    up: Vec<PeerId>,
    got: usize,
    down: usize,
}

impl<P: Provider> Handler<P> for Echo {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        self.got += 1;
        Verdict::Reply { len: message.len() }
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_peer_down(&mut self, _: PeerId, _: DownReason, _: &mut Outbox<'_, P>) {
        self.down += 1;
    }
}

/// The number of handles on the domain of a worker's queue pairs, and on things made there.
fn users<F: Fabric>(intake: &Intake<F>) -> usize {
    // SAFETY: nothing is made on it here.
    unsafe { intake.nic() }.pd_users()
}

/// With a thread domain, queue pairs are made on it; receives and memory are not. Each object is
/// released when its last user is gone, in whatever order the sides are dropped.
fn a_worker_has_a_thread_domain_where_there_are_any_and_gives_it_back<F: Fabric>(nic: &F) {
    let offered = nic.caps().thread_domains && nic.caps().parent_domains;
    for wanted in [true, false] {
        let base = nic.alloc_pd().expect("a protection domain");
        let config = Config { thread_domain: wanted, ..CONFIG };
        let mut pair = Pair::new(&base, &config, (Echo::default(), Echo::default()), 2);
        for side in [&pair.one, &pair.two] {
            assert_eq!(side.intake.has_thread_domain(), wanted && offered);
        }
        for peer in pair.one.worker.handler().up.clone() {
            pair.one.worker.outbox().send(peer, &[7; 300]).expect("sent");
        }
        pair.until("replies to replies", |pair| pair.one.worker.handler().got >= 20);
        // One peer goes away while the other continues.
        let gone = pair.one.worker.handler().up[0];
        pair.one.worker.outbox().close(gone);
        pair.until("its end", |pair| {
            pair.tend();
            pair.one.worker.handler().down == 1 && pair.two.worker.handler().down == 1
        });
        let got = pair.one.worker.handler().got;
        pair.until("the other's replies", |pair| pair.one.worker.handler().got >= got + 20);
        let (one, two) = pair.part();
        for side in [one, two] {
            let Side { worker, intake } = side;
            let own = intake.has_thread_domain();
            assert!(!own || users(&intake) > 1, "its queue pair is elsewhere");
            drop(worker);
            assert!(!own || users(&intake) == 1, "something is left there");
        }
        assert!(base.dealloc_pd().is_ok(), "something is left over");
    }
}
