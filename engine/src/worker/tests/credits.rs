//! Credits: the sums hold, no peer is starved, nothing is stuck. A queue pair here makes no retry
//! when its peer has no receive, so one message too many ends the connection.

use super::*;

const COUNTED: Config = Config { window: 24, window_min: 4, ..CONFIG };

/// A random number for each call, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }
    fn pick(&mut self, from: &[u32]) -> u32 {
        from[self.below(from.len() as u64) as usize]
    }
}

fn any_config(dice: &mut Dice) -> Config {
    let recv_blocks = dice.pick(&[12, 40, 80, 160]);
    Config {
        send_queue: dice.pick(&[4, 8, 32]),
        signal_every: 2,
        recv_blocks,
        refill: dice.pick(&[1, 3, recv_blocks / 4]),
        window: dice.pick(&[2, 3, 9, 30]),
        window_min: 2,
        inline_bytes: dice.pick(&[0, 64]),
        send_blocks: dice.pick(&[1, 4, 16]),
        ..CONFIG
    }
}

/// Two workers reply to everything, and send messages of their own until they are refused. Both are
/// full and still go on, whatever their numbers are. Neither is ever sent a message without a
/// receive.
#[test]
fn two_sides_that_reply_to_each_other_never_stop() {
    let mut dice = Dice(1);
    for round in 0..150 {
        let configs = [any_config(&mut dice), any_config(&mut dice)];
        let (mut one, mut two) = (side(&configs[0], true), side(&configs[1], true));
        let count = 1 + dice.below(2);
        for _ in 0..count {
            connect(&mut one, &mut two);
        }
        let mut refused = 0;
        for _ in 0..200 {
            for side in [&mut one, &mut two] {
                let peers = side.worker.handler().up.clone();
                let peer = peers[dice.below(peers.len() as u64) as usize];
                let length = [8, 300][dice.below(2) as usize];
                for _ in 0..dice.below(4) {
                    let result = side.worker.outbox().send(peer, &vec![1; length]);
                    refused += u32::from(result.is_err());
                }
                // Now and then one is slower than the other for a while.
                if dice.below(4) != 0 {
                    side.worker.turn();
                }
            }
        }
        assert!(refused > 10, "round {round}: never full, {configs:?}");
        for _ in 0..3 {
            let before = [&mut one, &mut two].map(|side| side.worker.handler().got.len());
            settle(&mut [&mut one, &mut two]);
            let after = [&mut one, &mut two].map(|side| side.worker.handler().got.len());
            assert!(after[0] > before[0] && after[1] > before[1], "round {round}: {configs:?}");
        }
        for side in [&mut one, &mut two] {
            assert_eq!(side.worker.handler().down, [], "round {round}: {configs:?}");
        }
    }
}

/// A receiver to which nothing comes any more grants the last part of a window too: a peer that
/// waits for room for many messages gets it.
#[test]
fn a_quiet_receiver_leaves_nothing_untold() {
    let config = Config { send_queue: 64, ..COUNTED };
    let (mut one, mut two) = (side(&config, false), side(&config, false));
    connect(&mut one, &mut two);
    let peer = one.only_peer();
    let all = one.worker.outbox().room(peer);
    assert!(all > 6);
    for n in 0..5 {
        one.worker.outbox().send(peer, &payload(n * 2, 40)).unwrap();
    }
    for _ in 0..17_000 {
        one.worker.turn();
        two.worker.turn();
    }
    assert_eq!(one.worker.outbox().room(peer), all);
}

/// Keeps the messages that begin with 1 for ever, and replies to the others.
#[derive(Default)]
struct Hoarder {
    up: Vec<PeerId>,
    kept: usize,
    down: usize,
}

impl<P: Provider> Handler<P> for Hoarder {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        if message.bytes().first() == Some(&1) && out.keep(&message).is_some() {
            self.kept += 1;
            return Verdict::Keep;
        }
        Verdict::Reply { len: message.len() }
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_peer_down(&mut self, _: PeerId, _: DownReason, _: &mut Outbox<'_, P>) {
        self.down += 1;
    }
}

/// A peer that floods a server which is slow with it uses its own window and no more: another peer
/// is served as usual.
#[test]
fn a_peer_that_floods_starves_nobody() {
    let config = Config { keeps: 64, ..COUNTED };
    let mut server = side_of(&config, Hoarder::default());
    let (mut flood, mut other) = (side(&COUNTED, false), side(&COUNTED, false));
    connect(&mut flood, &mut server);
    connect(&mut other, &mut server);
    let (flooding, calm) = (flood.only_peer(), other.only_peer());
    let mut last = Ok(());
    for n in 0..400 {
        for _ in 0..20 {
            last = flood.worker.outbox().send(flooding, &[1; 40]);
        }
        let asked = other.worker.outbox().send(calm, &payload(n * 2, 40));
        assert_eq!(asked, Ok(()), "message {n}");
        for _ in 0..30 {
            flood.worker.turn();
            server.worker.turn();
            other.worker.turn();
        }
        assert_eq!(other.worker.handler().got.len(), n + 1);
    }
    assert_eq!(last, Err(SendError::NoCredit));
    assert!(flood.worker.stats().credit_stalls > 1000);
    assert_eq!(server.worker.handler().down, 0);
    // Its window, less the credit that a reply would need.
    assert_eq!(server.worker.handler().kept, 14 - 1);
}

/// Promises add up to no more than there is. A promise that does not fit is refused with the
/// numbers, and what is given back can be promised again.
#[test]
fn a_promise_beyond_the_sum_is_refused_with_the_numbers() {
    let config = Config { peers: 100, ..COUNTED };
    let one = side(&config, false);
    let mut seats = Vec::new();
    let error = loop {
        match one.intake.reserve() {
            Ok(grant) => seats.push(grant),
            Err(error) => break error,
        }
    };
    let windows: Vec<_> = seats.iter().map(CreditGrant::window).collect();
    // 64 blocks, 8 of them set aside for the refill list; each peer gets a quarter of the rest, at
    // least 4.
    assert_eq!(windows[..3], [14, 10, 8]);
    let sum: u32 = windows.iter().sum();
    assert!(sum <= 56 && sum + config.window_min > 56, "{windows:?}");
    let text = std::string::ToString::to_string(&error);
    assert_eq!(error.code(), Code::NoMemory);
    for number in [4, 64, 56 - sum] {
        assert!(text.contains(&std::format!("{number}")), "{number}: {text}");
    }
    seats.remove(0);
    assert_eq!(one.intake.reserve().unwrap().window(), 4);
    drop(seats);
    assert_eq!(one.intake.reserve().unwrap().window(), 14);
    // More workers than there are blocks to set aside.
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let memory = shared(&nic, &COUNTED);
    let mut workers = Vec::new();
    let refused = loop {
        let own = Mapping::plain(COUNTED.send_bytes()).unwrap();
        match Worker::new(&nic, &memory, own, Log::default(), &COUNTED) {
            Ok(worker) => workers.push(worker),
            Err(error) => break std::string::ToString::to_string(&error),
        }
    };
    assert_eq!(workers.len(), 8);
    assert!(refused.contains("refill = 8") && refused.contains("64 blocks"), "{refused}");
}

/// A grant comes back with its peer, however the peer ends.
#[test]
fn a_peer_that_goes_gives_its_promise_back() {
    let (mut one, mut two) = (side(&COUNTED, false), side(&COUNTED, true));
    for round in 0..50 {
        let (a, b) = connect(&mut one, &mut two);
        let peer = one.only_peer();
        for n in 0..round {
            let _ = one.worker.outbox().send(peer, &payload(n, 100 * (n % 4)));
        }
        assert!(one.intake.gone(a) && two.intake.gone(b));
        settle(&mut [&mut one, &mut two]);
        for side in [&one, &two] {
            assert_eq!(side.intake.reserve().unwrap().window(), 14);
        }
    }
}

/// Nothing is sent to a peer before its handshake has come. A message from it may come earlier, and
/// the reply to it waits.
#[test]
fn nothing_is_sent_before_the_hello() {
    let (mut one, mut two) = (side(&COUNTED, true), side(&COUNTED, false));
    let nums = admit(&mut one, &mut two);
    assert!(two.intake.up(nums.two, Greeting::default()));
    two.worker.turn();
    let back = two.only_peer();
    two.worker.outbox().send(back, b"early").unwrap();
    settle(&mut [&mut one, &mut two]);
    let peer = one.only_peer();
    assert_eq!(one.worker.outbox().send(peer, &[]), Err(SendError::Full), "behind the reply");
    assert_eq!((one.worker.outbox().room(peer), two.worker.handler().got.len()), (0, 0));
    assert!(one.intake.up(nums.one, nums.greeting));
    settle(&mut [&mut one, &mut two]);
    assert_eq!(two.worker.handler().got.len(), 1);
    assert_eq!(one.worker.outbox().room(peer), 13 - 1);
}

/// Credit comes without a completion and wakes nobody, so a worker that was told that there is no
/// room stays awake and waits for it.
#[test]
fn a_worker_told_of_no_room_stays_awake() {
    let (mut one, mut two) = (side_of(&COUNTED, Asker::default()), side(&COUNTED, false));
    connect(&mut one, &mut two);
    let rests = |one: &mut Side<Asker>| one.worker.arm().is_ok();
    assert!(rests(&mut one));
    one.worker.handler().asks.set(true);
    assert!(rests(&mut one), "there is room");
    let peer = one.worker.handler().peer.unwrap();
    while one.worker.outbox().send(peer, &[1; 8]).is_ok() {}
    one.worker.turn();
    one.worker.handler().asks.set(false);
    for _ in 0..10 {
        one.worker.turn();
    }
    assert!(rests(&mut one), "nobody asks");
    one.worker.handler().asks.set(true);
    assert!(!rests(&mut one));
}

/// Asks for room when there is nothing else to do.
#[derive(Default)]
struct Asker {
    peer: Option<PeerId>,
    asks: std::cell::Cell<bool>,
}

impl<P: Provider> Handler<P> for Asker {
    fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Done
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.peer = Some(peer);
    }
    fn on_idle(&mut self, out: &mut Outbox<'_, P>) {
        if let (true, Some(peer)) = (self.asks.get(), self.peer) {
            out.room(peer);
        }
    }
}

/// A peer that is no worker is sent as much as the device accepts.
#[test]
fn a_plain_peer_has_no_credits() {
    let (mut one, mut two) = (side(&COUNTED, false), side(&COUNTED, false));
    let nums = admit(&mut one, &mut two);
    assert!(
        one.intake.up(nums.one, Greeting::parse(&[0; 196]).unwrap())
            && two.intake.up(nums.two, Greeting::default())
    );
    one.worker.turn();
    let peer = one.only_peer();
    assert_eq!(one.worker.outbox().room(peer), CONFIG.send_queue);
}
