//! Identities of peers, and reasons for refusals.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_cm::{
    AddrInfo, Answer, Backoff, CmError, ConnParam, Dialer, Endpoint, Fabric, Hints, Listener,
    PeerHandle, PeerState, QpInit,
};
use doorbell_engine::worker::{
    Config, DownReason, Greeting, HANDSHAKE_BYTES, Handler, Message, Outbox, PeerData, PeerId,
    PeerInfo, Refusal, RefusalReason, SendError, Verdict,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Provider;

use crate::bed::{CONFIG, LIMIT, Pair, Side, address, cases};

cases! {
    a_refusal_says_what_is_missing
    a_refused_version_says_so_and_damage_too
    peers_that_cannot_take_what_is_sent_inline_are_refused
    blocks_of_different_lengths_carry_what_both_hold
    a_reply_too_long_for_the_peer_ends_it_by_name
    a_program_decides_who_connects_and_to_which_worker
    a_handle_names_its_peer_until_the_end
    a_dial_without_a_dialer_has_ended
    a_kept_connection_is_named_anew_and_can_be_ended
    peers_can_be_gone_through
}

/// Records who comes and goes; replies with the given number of bytes.
#[derive(Default)]
struct Who {
    reply: Option<usize>,
    up: Vec<(PeerId, PeerInfo)>,
    down: Vec<(PeerId, DownReason)>,
    got: Vec<Vec<u8>>,
}

impl<P: Provider> Handler<P> for Who {
    fn on_message(&mut self, message: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        self.got.push(message.bytes().to_vec());
        self.reply.map_or(Verdict::Done, |len| Verdict::Reply { len })
    }
    fn on_peer_up(&mut self, peer: PeerId, out: &mut Outbox<'_, P>) {
        let info = out.peer_info(peer).expect("it is here");
        self.up.push((peer, info));
    }
    fn on_peer_down(&mut self, peer: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
        self.down.push((peer, why));
    }
}

fn listener<F: Fabric>(nic: &F) -> (Listener<F>, SocketAddr) {
    let listener = Listener::bind(nic, SocketAddr::new(address(), 0)).expect("a listener");
    let addr = listener.local_addr().expect("bound");
    (listener, addr)
}

/// Does something while the listener runs.
fn beside<F: Fabric, T>(listener: &mut Listener<F>, act: impl FnOnce() -> T) -> T {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        // Without a worker a step is an error; the peer is told nevertheless.
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let _ = listener.step(Duration::from_millis(5));
            }
        });
        let result = catch_unwind(AssertUnwindSafe(act));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Dials until it fails; returns what the error, the dialer and the listener report.
fn refused<F: Fabric>(
    nic: &F,
    server: Option<&Config>,
    client: &Config,
) -> (u32, CmError, Refusal) {
    let (mut listener, addr) = listener(nic);
    let serving = server.map(|config| Side::new(nic, config, Who::default()));
    serving.iter().for_each(|side| listener.feed(side.intake.clone()));
    let dialing = Side::new(nic, client, Who::default());
    let mut dialer = Dialer::new(nic).expect("a dialer");
    let mut connected = 0;
    let error = beside(&mut listener, || {
        loop {
            match dialer.dial(addr, &dialing.intake, LIMIT) {
                Ok(_) => connected += 1,
                Err(error) => break error,
            }
        }
    });
    let told = *dialer.last_refusal().expect("a reason");
    let last = listener.last_refusal().expect("it has refused").clone();
    assert_eq!((last.refusal, listener.refused()), (told, 1));
    assert_eq!(listener.refused_for(told.reason()), 1);
    assert_eq!(last.addr.map(|addr| addr.ip()), Some(address()));
    (connected, error, told)
}

fn a_refusal_says_what_is_missing<F: Fabric>(nic: &F) {
    let roomy = Config { recv_blocks: 1024, peers: 64, ..CONFIG };
    let few_slots = Config { peers: 2, ..CONFIG };
    let cases = [
        (None, RefusalReason::NoWorker, 0, "its listener has no worker; feed()"),
        (Some(&few_slots), RefusalReason::NoSlot, 2, "slots for 2 peers, and all are taken; raise"),
    ];
    for (server, reason, room, text) in cases {
        let (connected, error, told) = refused(nic, server, &roomy);
        assert_eq!((told.reason(), error.code()), (reason, Code::Refused), "{error}");
        assert!(error.to_string().contains(text), "{error}");
        assert!(connected <= room, "{connected}");
    }
}

/// The reject that an endpoint gets for this private data.
fn reject_of<F: Fabric>(nic: &F, addr: SocketAddr, private_data: &[u8]) -> CmError {
    let to = AddrInfo::of(addr, &Hints::active());
    let mut id = Endpoint::create(nic, &to, Some(&QpInit::rc())).expect("an endpoint");
    id.connect(&ConnParam { private_data, ..ConnParam::default() }).expect_err("rejected")
}

fn a_refused_version_says_so_and_damage_too<F: Fabric>(nic: &F) {
    let (mut listener, addr) = listener(nic);
    let side = Side::new(nic, &CONFIG, Who::default());
    listener.feed(side.intake.clone());
    let data = PeerData::default();
    let mut bytes = [0; HANDSHAKE_BYTES];
    bytes.copy_from_slice(side.intake.reserve().expect("a place").handshake(&data).bytes());
    // A handshake of a future version, with a valid checksum.
    bytes[3] = 9;
    let said = |bytes: &[u8]| Greeting::parse(bytes).err().map(|refusal| refusal.reason());
    bytes[5] = (0..=255)
        .find(|check| {
            bytes[5] = *check;
            said(&bytes) == Some(RefusalReason::Version)
        })
        .expect("one fits");
    let mut damaged = bytes;
    damaged[10] ^= 4;
    for (data, reason) in [(bytes, RefusalReason::Version), (damaged, RefusalReason::Malformed)] {
        let error = beside(&mut listener, || reject_of(nic, addr, &data));
        assert_eq!(error.code(), Code::Refused, "{error}");
        assert_eq!(listener.refused_for(reason), 1);
        let last = listener.last_refusal().expect("it has refused").refusal;
        assert_eq!(last.reason(), reason);
        assert_eq!(last.to_string().contains("version 3 of the handshake, not 9"), data == bytes);
    }
}

fn peers_that_cannot_take_what_is_sent_inline_are_refused<F: Fabric>(nic: &F) {
    let long = Config { inline_bytes: 128, ..CONFIG };
    let short = Config { block_bytes: 64, inline_bytes: 32, ..CONFIG };
    let (connected, error, told) = refused(nic, Some(&long), &short);
    assert_eq!((connected, told.reason()), (0, RefusalReason::Blocks));
    assert!(error.to_string().contains("128 bytes inline, and the other side's blocks hold 64"));
    // Here the dialing side notices, from the answer.
    let (mut listener, addr) = listener(nic);
    let serving = Side::new(nic, &short, Who::default());
    listener.feed(serving.intake.clone());
    let dialing = Side::new(nic, &long, Who::default());
    let mut dialer = Dialer::new(nic).expect("a dialer");
    let dialed = beside(&mut listener, || dialer.dial(addr, &dialing.intake, LIMIT));
    let error = dialed.err().expect("this side sends too much");
    assert_eq!((error.code(), dialer.connections()), (Code::Refused, 0), "{error}");
    assert!(error.to_string().contains("this side refused the peer's answer"), "{error}");
}

type Whos<F> = Pair<F, Who, Who>;

/// A pair whose first side has shorter blocks than the second.
fn uneven<F: Fabric>(nic: &F, reply: Option<usize>) -> Whos<F> {
    let long = Config { block_bytes: 2048, ..CONFIG };
    let mut pair =
        Pair::of(nic, [&CONFIG, &long], (Who::default(), Who { reply, ..Who::default() }), 1);
    pair.until("both are told", |pair| {
        pair.tend();
        pair.two.worker.handler().up.len() == 1
    });
    pair
}

fn blocks_of_different_lengths_carry_what_both_hold<F: Fabric>(nic: &F) {
    let mut pair = uneven(nic, None);
    let (here, info) = pair.one.worker.handler().up[0];
    let (there, back) = pair.two.worker.handler().up[0];
    assert_eq!((info.message_max(), back.message_max()), (512, 512));
    let text = [7; 2049];
    let two = &mut pair.two.worker.outbox();
    let too_long = Err(SendError::TooLongForPeer);
    assert_eq!(two.send(there, &text[..513]), too_long);
    assert_eq!(two.send_imm(there, &text[..2048], 1), too_long);
    assert_eq!(two.send_now(there, &text[..513]), too_long);
    assert_eq!(two.send_list(there, &[&text[..600]]).map_err(|error| error.cause), too_long);
    let list = two.send_list(there, &[&text[..100], &text[..513]]);
    assert_eq!(
        list.map_err(|error| (error.accepted, error.cause)),
        Err((1, SendError::TooLongForPeer))
    );
    assert_eq!(two.send(there, &text), Err(SendError::TooLong));
    two.send(there, &text[..512]).expect("as long as the peer's blocks");
    let one = &mut pair.one.worker.outbox();
    assert_eq!(one.send(here, &text[..513]), Err(SendError::TooLong));
    one.send(here, &text[..512]).expect("as long as its own blocks");
    pair.until("both have come", |pair| {
        pair.one.worker.handler().got.len() + pair.two.worker.handler().got.len() == 3
    });
    assert_eq!(pair.one.worker.handler().got, [&text[..100], &text[..512]]);
    assert!(pair.one.worker.handler().down.is_empty() && pair.two.worker.handler().down.is_empty());
}

fn a_reply_too_long_for_the_peer_ends_it_by_name<F: Fabric>(nic: &F) {
    let mut pair = uneven(nic, Some(512));
    let here = pair.one.worker.handler().up[0].0;
    pair.one.worker.outbox().send(here, b"as long as it takes").expect("sent");
    pair.until("the reply is here", |pair| pair.one.worker.handler().got.len() == 1);
    pair.two.worker.handler_mut().reply = Some(513);
    pair.one.worker.outbox().send(here, b"longer").expect("sent");
    pair.until("both hear of the end", |pair| {
        pair.tend();
        pair.one.worker.handler().down.len() + pair.two.worker.handler().down.len() == 2
    });
    assert_eq!(pair.two.worker.handler().down[0].1, DownReason::ReplyTooLong);
    assert_eq!(pair.one.worker.handler().got.len(), 1);
    assert_eq!(pair.two.worker.send_blocks_home(), CONFIG.send_blocks as usize);
}

fn a_program_decides_who_connects_and_to_which_worker<F: Fabric>(nic: &F) {
    let (mut listener, addr) = listener(nic);
    let mut sides = [(); 2].map(|()| Side::new(nic, &CONFIG, Who::default()));
    listener.feed(sides[0].intake.clone());
    let (second, (asked, asks)) = (sides[1].intake.clone(), mpsc::channel());
    listener.on_request(move |request| {
        let soft = request.credentials().map(|of| of.pid);
        let of_a_worker = (request.is_worker(), request.block_bytes());
        let _ = asked.send((request.addr(), request.data().to_vec(), of_a_worker, soft));
        match request.data() {
            b"secret" => Answer::accept(),
            b"secret two" => {
                let back = PeerData::new(b"welcome").unwrap_or_default();
                Answer::accept().to_worker(&second).with_data(back)
            }
            _ => Answer::refuse("who are you? I do not know your name at all"),
        }
    });
    let roomy = Config { peers: 7, ..CONFIG };
    let mut dialing = Side::new(nic, &roomy, Who::default());
    let mut dialer = Dialer::new(nic).expect("a dialer");
    let results = beside(&mut listener, || {
        [&b"stranger"[..], b"secret two", b"secret", b"secret", b""]
            .map(|data| dialer.dial_with(addr, data, &dialing.intake, LIMIT))
    });
    let refusal = dialer.last_refusal().expect("the last was refused");
    assert_eq!(refusal.data(), b"who are you? I do not know your ");
    let texts = results.each_ref().map(|result| result.as_ref().err().map(CmError::to_string));
    assert!(texts[0].as_ref().is_some_and(|text| text.contains("its program said: who are you?")));
    assert_eq!(texts.map(|text| text.is_some()), [true, false, false, false, true]);
    assert_eq!(listener.refused_for(RefusalReason::Program), 2);
    let long = dialer.dial_with(addr, &[1; 33], &dialing.intake, LIMIT).err();
    assert_eq!(long.map(|error| error.code()), Some(Code::Invalid));
    let seen: Vec<_> = asks.try_iter().collect();
    let ours = (nic.caps().device == "soft0").then(|| std::process::id() as i32);
    for (from, _, of_a_worker, pid) in &seen {
        assert_eq!((from.map(|from| from.ip()), *pid), (Some(address()), ours));
        assert_eq!(*of_a_worker, (true, Some(512)));
    }
    let data: Vec<&[u8]> = seen.iter().map(|(_, data, ..)| data.as_slice()).collect();
    assert_eq!(data, [&b"stranger"[..], b"secret two", b"secret", b"secret", b""]);
    // The same again, with its new peer.
    let start = Instant::now();
    // The chosen worker takes no turns with the one that was fed.
    while sides.each_mut().map(|side| side.worker.handler().up.len()) != [2, 1] {
        assert!(start.elapsed() < LIMIT, "they do not come up");
        listener.step(Duration::ZERO).expect("a step");
        sides.iter_mut().for_each(|side| {
            side.worker.turn();
        });
    }
    for (side, data) in sides.iter_mut().zip([&b"secret"[..], b"secret two"]) {
        let info = side.worker.handler().up[0].1;
        assert_eq!((info.data(), info.is_worker(), info.is_dialed()), (data, true, false));
        assert_eq!(info.addr().map(|addr| addr.ip()), Some(address()));
    }
    dialing.worker.turn();
    let up = &dialing.worker.handler().up;
    assert_eq!([up[0].1.data(), up[1].1.data()], [&b"welcome"[..], b""]);
    assert_eq!([up[0].1.addr(), up[1].1.addr()], [Some(addr); 2]);
    assert_eq!([up[0].1.is_dialed(), up[1].1.is_dialed()], [true; 2]);
}

/// The condition that the test waits for, on both sides.
type So<'a, F> = &'a mut dyn FnMut(&mut Side<F, Who>, &mut Side<F, Who>) -> bool;

fn a_handle_names_its_peer_until_the_end<F: Fabric>(nic: &F) {
    let (mut listener, addr) = listener(nic);
    let mut serving = Side::new(nic, &CONFIG, Who::default());
    listener.feed(serving.intake.clone());
    let mut dialing = Side::new(nic, &CONFIG, Who::default());
    let mut dialer = Dialer::new(nic).expect("a dialer");
    let handles: Vec<PeerHandle> = beside(&mut listener, || {
        let dial = |_| dialer.dial(addr, &dialing.intake, LIMIT).expect("connected");
        (0..3).map(dial).collect()
    });
    assert_eq!(handles[0].peer(), None, "the worker has not turned");
    dialing.worker.turn();
    for (handle, (peer, _)) in handles.iter().zip(&dialing.worker.handler().up) {
        assert_eq!((handle.peer(), handle.addr()), (Some(*peer), addr));
        assert_eq!((handle.state(), handle.last_error()), (PeerState::Up, None));
    }
    let (mine, theirs) = (handles[1].clone(), handles[2].clone());
    let peer = mine.peer();
    thread::spawn(move || mine.end()).join().expect("from any thread");
    while handles[1].state() != PeerState::Ended {
        dialer.step(Duration::ZERO).expect("a step");
    }
    assert_eq!(handles[1].peer(), peer, "the worker has not been told");
    let mut wait = |what: &str, so: So<'_, F>| {
        let start = Instant::now();
        while !so(&mut dialing, &mut serving) {
            assert!(start.elapsed() < LIMIT, "not yet: {what}");
            dialer.step(Duration::ZERO).expect("a step");
            listener.step(Duration::ZERO).expect("a step");
            dialing.worker.turn();
            serving.worker.turn();
        }
    };
    wait("both sides hear of the end", &mut |one, two| {
        one.worker.handler().down.len() == 1 && two.worker.handler().down.len() == 1
    });
    wait("its name is gone", &mut |one, _| {
        assert_eq!(one.worker.handler().down.first().map(|down| down.0), peer);
        handles[1].peer().is_none()
    });
    assert_eq!((handles[1].state(), handles[1].last_error()), (PeerState::Ended, None));
    assert_eq!(handles[0].state(), PeerState::Up, "the others stay");
    // And from the other side.
    wait("the end is known", &mut |_, two| {
        let (up, left) = (two.worker.handler().up.clone(), two.worker.peers());
        if left == 2 {
            two.worker.outbox().close(up[2].0);
        }
        theirs.state() == PeerState::Ended
    });
    let error = theirs.last_error().expect("the peer ended it");
    assert_eq!(error.code(), Code::Reset);
    assert!(error.to_string().contains("the peer ended it"), "{error}");
}

fn a_dial_without_a_dialer_has_ended<F: Fabric>(nic: &F) {
    let (_listener, addr) = listener(nic);
    let dialing = Side::new(nic, &CONFIG, Who::default());
    for steps in 0..4 {
        let mut dialer = Dialer::new(nic).expect("a dialer");
        let handle = dialer.start(addr, &[], &dialing.intake, LIMIT).expect("begun");
        for _ in 0..steps {
            dialer.step(Duration::from_millis(5)).expect("a step");
        }
        assert_eq!(handle.state(), PeerState::Connecting, "nobody answers");
        drop(dialer);
        assert_eq!(handle.state(), PeerState::Ended);
    }
}

fn a_kept_connection_is_named_anew_and_can_be_ended<F: Fabric>(nic: &F) {
    let (mut listener, addr) = listener(nic);
    let mut serving = Side::new(nic, &CONFIG, Who::default());
    listener.feed(serving.intake.clone());
    listener.on_request(|request| match request.data() {
        b"kept" => Answer::accept(),
        _ => Answer::refuse("no"),
    });
    let mut dialing = Side::new(nic, &CONFIG, Who::default());
    let mut dialer = Dialer::new(nic).expect("a dialer");
    let short = Duration::from_millis(2);
    let backoff = Backoff { first: short, most: 4 * short, limit: LIMIT, ..Backoff::DEFAULT };
    let handle = dialer.keep_with(addr, b"kept", &dialing.intake, backoff).expect("short");
    let once = Backoff { tries: 2, ..backoff };
    let stranger = dialer.keep(addr, &dialing.intake, once);
    assert_eq!(handle.state(), PeerState::Connecting);
    beside(&mut listener, || {
        let mut names: Vec<PeerId> = Vec::new();
        let start = Instant::now();
        while names.len() < 3 || stranger.state() != PeerState::Ended {
            assert!(start.elapsed() < LIMIT, "it does not come back: {names:?}");
            dialer.step(short).expect("a step");
            assert_ne!(handle.state(), PeerState::Ended, "it will be dialed again");
            dialing.worker.turn();
            serving.worker.turn();
            if let Some(peer) = handle.peer().filter(|peer| !names.contains(peer)) {
                names.push(peer);
                if names.len() != 2 {
                    dialing.worker.outbox().close(peer);
                }
            }
            // The second time the other side ends it.
            let theirs: Vec<PeerId> = serving.worker.outbox().peers().collect();
            let ended = theirs.into_iter().filter(|_| names.len() == 2);
            ended.for_each(|peer| serving.worker.outbox().close(peer));
        }
        handle.end();
        while handle.state() != PeerState::Ended || dialing.worker.peers() > 0 {
            assert!(start.elapsed() < LIMIT, "it does not end");
            dialer.step(short).expect("a step");
            dialing.worker.turn();
            serving.worker.turn();
        }
        for _ in 0..20 {
            dialer.step(short).expect("a step");
        }
        assert_eq!((dialer.connections(), handle.peer()), (0, None), "it is dialed again");
    });
    assert_eq!(stranger.refusal().map(|refusal| refusal.reason()), Some(RefusalReason::Program));
    let error = stranger.last_error().expect("refused");
    assert!(error.to_string().contains("its program said: no"), "{error}");
    let given_up: Vec<SocketAddr> = dialer.given_up().map(|(addr, _)| addr).collect();
    assert_eq!(given_up, [addr]);
}

fn peers_can_be_gone_through<F: Fabric>(nic: &F) {
    let mut pair = Whos::new(nic, &CONFIG, (Who::default(), Who::default()), 4);
    let mut all: Vec<PeerId> = pair.one.worker.handler().up.iter().map(|up| up.0).collect();
    all.sort_by_key(|peer| peer.index());
    assert_eq!(pair.one.worker.outbox().peers().collect::<Vec<_>>(), all);
    pair.one.worker.outbox().close(all[1]);
    let left = [all[0], all[2], all[3]];
    assert_eq!(pair.one.worker.outbox().peers().collect::<Vec<_>>(), left);
    let (mut out, mut at) = (pair.one.worker.outbox(), None);
    while let Some(peer) = out.next_peer(at) {
        out.send(peer, b"to all").expect("room");
        at = Some(peer);
    }
    pair.until("all have it", |pair| {
        pair.tend();
        pair.two.worker.handler().got.len() == 3 && pair.one.worker.peers() == 3
    });
    assert_eq!(pair.one.worker.outbox().peer_info(all[1]), None);
}
