//! Credits: the sums hold, no peer is starved, nothing is stuck. A queue pair here makes no retry
//! when its peer has no receive, so one message too many ends the connection.

use super::*;
use crate::worker::credit_return::CreditReturns;

/// Four peers with a window of 14 each, all the time, and 8 receives for the refill list.
pub(super) const COUNTED: Config = Config { window: 14, window_min: 14, ..CONFIG };

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

pub(super) fn settle_credits<H: Handler<Soft>>(side: &mut Side<H>) {
    let core = &mut side.worker.core;
    let now = core.clock();
    CreditReturns::settle(&mut core.sender, now);
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
        let count = 1 + dice.below(4);
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
                // As after a long time: windows are asked back, and given back.
                if dice.below(16) == 0 {
                    (0..2).for_each(|_| settle_credits(side));
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

/// Keeps the messages that begin with 1 for ever, is done with those that begin with 3, and replies
/// to the others.
#[derive(Default)]
pub(super) struct Hoarder {
    pub(super) up: Vec<PeerId>,
    pub(super) kept: usize,
    pub(super) down: Vec<DownReason>,
}

impl<P: Provider> Handler<P> for Hoarder {
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, P>) -> Verdict {
        if message.bytes().first() == Some(&1)
            && let Some(token) = out.keep(&message)
        {
            self.kept += 1;
            return Verdict::Keep(token);
        }
        match message.bytes().first() {
            Some(&3) => Verdict::Done,
            _ => Verdict::Reply { len: message.len() },
        }
    }
    fn on_peer_up(&mut self, peer: PeerId, _: &mut Outbox<'_, P>) {
        self.up.push(peer);
    }
    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _: &mut Outbox<'_, P>) {
        self.down.push(why);
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
    assert_eq!(server.worker.handler().down, []);
    // Its window, less the credit that a reply would need.
    assert_eq!(server.worker.handler().kept, 14 - 1);
}

/// A worker admits the peers that it names, each with its base window. More are refused with the
/// numbers, and what is given back can be promised again.
#[test]
fn every_peer_that_is_named_has_its_receives() {
    let one = side(&Config::DEFAULT, false);
    let Config { peers, window_min, recv_blocks, refill, .. } = Config::DEFAULT;
    let mut grants: Vec<_> = (0..peers).map(|_| one.intake.reserve().unwrap()).collect();
    assert!(grants.iter().all(|grant| grant.window() >= window_min));
    let spare = || one.intake.shared.promises().spare();
    let lent: u32 = grants.iter().map(|grant| grant.window() - window_min).sum();
    assert_eq!(spare() + lent, recv_blocks - refill - peers * window_min);
    let Err(error) = one.intake.reserve() else { panic!("one more than there are slots") };
    let text = std::string::ToString::to_string(&error);
    assert_eq!(error.code(), Code::NoMemory);
    assert!(text.contains("256") && text.contains("raise Config::peers"), "{text}");
    grants.clear();
    assert_eq!(spare(), recv_blocks - refill - peers * window_min);
    assert_eq!(one.intake.reserve().unwrap().window(), window_min + 120);
    drop(one);
}

/// Workers that share a queue have the named peers together, and more while receives are left. No
/// worker is made whose refill list would not be covered.
#[test]
fn a_promise_beyond_the_sum_is_refused_with_the_numbers() {
    let config = Config { peers: 4, window: 2, window_min: 2, refill: 13, ..CONFIG };
    let nic = Soft::new("soft0", Host::alone(clock), None);
    let memory = shared(&nic, &config);
    let mut workers = Vec::new();
    let refused = loop {
        let own = Mapping::plain(config.send_bytes()).unwrap();
        match Worker::new(&nic, &memory, own, Log::default(), &config) {
            Ok(worker) => workers.push(worker),
            Err(error) => break std::string::ToString::to_string(&error),
        }
    };
    // 64 blocks: 4 * 2 for peers, and 13 for each worker.
    assert_eq!(workers.len(), 4);
    for said in ["refill = 13", "of 64 blocks 4 are", "recv_blocks to 73"] {
        assert!(refused.contains(said), "{said}: {refused}");
    }
    // Four peers have what is set aside, and two more what is left.
    let intake = |n: usize| &workers[n / 4].1;
    let mut grants: Vec<_> = (0..6).map(|n| intake(n).reserve().unwrap()).collect();
    let text = std::string::ToString::to_string(&intake(6).reserve().err().unwrap());
    assert!(text.contains("of 64 blocks 0") && text.contains("Config::recv_blocks"), "{text}");
    assert_eq!(intake(6).no_place().reason(), RefusalReason::NoReceives);
    // Each goes back to where it came from.
    grants.remove(0);
    assert_eq!(memory.promises().spare(), 0);
    grants.push(intake(6).reserve().unwrap());
    drop(grants);
    assert_eq!(memory.promises().spare(), 4);
}

/// A server with a worker of its own, and a client that has `count` connections to it.
fn many(config: &Config, count: usize) -> (Side, Side, Vec<PeerId>) {
    let (mut one, mut two) = (side(config, false), side(config, true));
    for _ in 0..count {
        connect(&mut one, &mut two);
    }
    let peers = one.worker.handler().up.clone();
    (one, two, peers)
}

/// What the server of [`many`] promises to each peer, in the order in which they came.
fn windows(two: &mut Side) -> Vec<u32> {
    let peers = &mut two.worker.core.sender.peers;
    (0..peers.slots()).filter_map(|slot| Some(peers.at(slot)?.grant.as_ref()?.window())).collect()
}

/// Each of those peers sends what it may, in every turn: how many echoes each has got.
fn talk(one: &mut Side, two: &mut Side, peers: &[PeerId], turns: usize) -> Vec<usize> {
    one.worker.handler_mut().got.clear();
    for _ in 0..turns {
        for peer in peers {
            while one.worker.outbox().send(*peer, &[1; 40]).is_ok() {}
        }
        one.worker.turn();
        two.worker.turn();
    }
    let mut got = vec![0; one.worker.peers()];
    one.worker.handler().got.iter().for_each(|(peer, ..)| got[peer.index()] += 1);
    assert_eq!(
        (&one.worker.handler().down[..], &two.worker.handler().down[..]),
        (&[][..], &[][..])
    );
    peers.iter().map(|peer| got[peer.index()]).collect()
}

/// The same, until the windows are those.
fn talk_until(one: &mut Side, two: &mut Side, peers: &[PeerId], want: [u32; 8]) {
    for _ in 0..100 {
        talk(one, two, peers, 4000);
        if windows(two) == want {
            return;
        }
    }
    panic!("{:?} in the end, not {want:?}", windows(two));
}

/// On the defaults two hundred busy peers have the same window and the same rate, whichever came
/// first; and the memory is what the configuration says.
#[test]
fn two_hundred_peers_on_the_defaults_get_the_same() {
    let config = Config::DEFAULT;
    let (mut one, mut two, peers) = many(&config, 200);
    talk(&mut one, &mut two, &peers, 200);
    let rates = talk(&mut one, &mut two, &peers, 2000);
    let (least, most) = (*rates.iter().min().unwrap(), *rates.iter().max().unwrap());
    assert!(least > 500 && (most - least) * 10 <= most, "{least} to {most}");
    let all = windows(&mut two);
    assert!(all.iter().all(|window| *window == all[0]), "{all:?}");
    assert_eq!((config.recv_bytes(), config.send_bytes()), (1024 * 4160, 256 * 4160));
}

/// One busy peer has the longest window, and a few share what there is.
#[test]
fn few_peers_have_long_windows() {
    for (count, window) in [(1, 128), (3, 128), (10, 2 + 48)] {
        let (mut one, mut two, peers) = many(&Config::DEFAULT, count);
        talk(&mut one, &mut two, &peers, 200);
        assert!(windows(&mut two).iter().all(|now| *now == window), "{:?}", windows(&mut two));
    }
}

/// Receives that peers no longer use go to those that do: first by what these are granted less, and
/// what a quiet peer was told of it gives back when it is asked.
#[test]
fn receives_follow_the_load() {
    let config =
        Config { peers: 8, recv_blocks: 64, window: 40, window_min: 4, refill: 8, ..CONFIG };
    let (mut one, mut two, peers) = many(&config, 8);
    let (first, rest) = peers.split_at(2);
    // What the others got for a first burst is asked back, to the last.
    talk_until(&mut one, &mut two, first, [16, 16, 4, 4, 4, 4, 4, 4]);
    // All are busy: those two have less, though they never pause.
    talk(&mut one, &mut two, &peers, 100);
    assert_eq!(windows(&mut two), [7; 8]);
    // Six are quiet for a while, but the two others keep both workers busy.
    talk_until(&mut one, &mut two, first, [16, 16, 4, 4, 4, 4, 4, 4]);
    // And those are quiet in turn.
    talk_until(&mut one, &mut two, rest, [4, 4, 8, 8, 8, 8, 8, 8]);
    // After a quiet time each gets on at once, however short its window is.
    let echoes = talk(&mut one, &mut two, &peers, 50);
    assert!(echoes.iter().all(|echoes| *echoes > 40), "{echoes:?}");
    assert_eq!(windows(&mut two), [7; 8]);
    // When all are quiet each side knows the same: nothing is lost on the way there and back. A
    // review takes 4096 turns for each peer; wait until two reviews of all change nothing.
    let mut last = Vec::new();
    for _ in 0..20 {
        for _ in 0..2 * 8 * 4096 {
            one.worker.turn();
            two.worker.turn();
        }
        if last == windows(&mut two) {
            break;
        }
        last = windows(&mut two);
    }
    let windows = windows(&mut two);
    assert_eq!(last, windows, "they still change");
    for (peer, window) in peers.iter().zip(&windows) {
        assert!(*window >= 4);
        assert_eq!(one.worker.outbox().room(*peer), window - 1, "{windows:?}");
    }
}

/// The only peer of a worker keeps its window, however long it is quiet: nobody else needs it.
#[test]
fn a_quiet_peer_keeps_what_nobody_needs() {
    let config = Config { peers: 1, recv_blocks: 128, refill: 16, window: 128, ..CONFIG };
    let config = Config { send_queue: 256, ..config };
    let (mut one, mut two, peers) = many(&config, 1);
    let room = one.worker.outbox().room(peers[0]);
    assert_eq!(room, 2 + 110 / 4 - 1);
    for _ in 0..4 {
        review(&mut one, &mut two, &[]);
    }
    assert_eq!(one.worker.outbox().room(peers[0]), room);
    assert_eq!((one.worker.stats().credit_returns, two.worker.stats().credit_returns), (0, 0));
}

/// Those peers talk for a while, and then each side reviews all windows.
fn review(one: &mut Side, two: &mut Side, busy: &[PeerId]) {
    talk(one, two, busy, 60);
    for side in [one, two] {
        settle_credits(side);
    }
}

/// A program that waits for as much room as it had in the beginning gets it, although all was asked
/// back while it was quiet and others are busy all the time. It sends nothing before.
#[test]
fn a_peer_that_waits_for_room_gets_its_share() {
    let config =
        Config { peers: 6, recv_blocks: 128, window: 64, window_min: 2, refill: 8, ..CONFIG };
    let config = Config { send_queue: 64, ..config };
    let (mut one, mut two, peers) = many(&config, 6);
    let (waiting, busy) = peers.split_at(2);
    let rooms = |one: &mut Side| [0, 1].map(|n| one.worker.outbox().room(waiting[n]));
    // The surplus is 108: a quarter of it, and of the rest, beside the base window of 2.
    assert_eq!(rooms(&mut one), [27 + 1, 20 + 1]);
    (0..8).for_each(|_| review(&mut one, &mut two, busy));
    assert_eq!(windows(&mut two)[..2], [2, 2]);
    assert_eq!(rooms(&mut one), [1, 1]);
    // As long as four others are busy it is a sixth.
    for _ in 0..8 {
        review(&mut one, &mut two, busy);
        rooms(&mut one);
    }
    assert_eq!(windows(&mut two), [20; 6]);
    // With two others it is all that there was, or more.
    let mut most = [0; 2];
    for _ in 0..8 {
        review(&mut one, &mut two, &busy[..2]);
        let now = rooms(&mut one);
        most = [0, 1].map(|n| most[n].max(now[n]));
    }
    assert_eq!(most, [27 + 1; 2]);
}

/// The base window comes back too, if a peer gave back more than the others need by now.
#[test]
fn a_peer_that_waits_for_its_base_window_gets_it() {
    let config = Config { peers: 3, recv_blocks: 60, window: 14, window_min: 10, ..CONFIG };
    let config = Config { send_queue: 32, ..config };
    for rounds in 0..8 {
        let (mut one, mut two, peers) = many(&config, 3);
        (0..rounds).for_each(|_| review(&mut one, &mut two, &peers[1..]));
        one.worker.outbox().room(peers[0]);
        for wait in 0..6 {
            review(&mut one, &mut two, &[]);
            let room = one.worker.outbox().room(peers[0]);
            assert!(wait < 3 || room >= 9, "{rounds}, {wait}: {room} {:?}", windows(&mut two));
        }
    }
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

/// A peer's first messages may come before its handshake. They wait for it, so that a handler that
/// is told of a peer may send to it.
#[test]
fn messages_before_the_handshake_wait() {
    let (mut one, mut two) = (side(&COUNTED, true), side(&COUNTED, false));
    let nums = admit(&mut one, &mut two);
    assert!(two.intake.up(nums.two, Greeting::default()));
    two.worker.turn();
    let back = two.only_peer();
    for n in 0..3 {
        two.worker.outbox().send(back, &payload(n, 5)).unwrap();
    }
    settle(&mut [&mut one, &mut two]);
    assert!(one.worker.handler().up.is_empty() && one.worker.handler().got.is_empty());
    assert!(one.intake.up(nums.one, nums.greeting));
    one.worker.turn();
    let peer = one.only_peer();
    assert_in_order(one.worker.handler(), 3, 5);
    settle(&mut [&mut one, &mut two]);
    assert_eq!(two.worker.handler().got.len(), 3);
    assert_eq!(one.worker.outbox().room(peer), 14 - 1 - 3);
    assert_eq!(one.worker.stats().strays, 0);
}

/// If the peer fails before its handshake has come, the blocks of those messages come home.
#[test]
fn early_messages_of_a_peer_that_fails_are_dropped() {
    let (mut one, mut two) = (side(&COUNTED, true), side(&COUNTED, false));
    for round in 0..20 {
        let nums = admit(&mut one, &mut two);
        assert!(two.intake.up(nums.two, Greeting::default()));
        two.worker.turn();
        let back = two.only_peer();
        while two.worker.outbox().send(back, &payload(round, 5)).is_ok() {}
        settle(&mut [&mut one, &mut two]);
        assert!(one.intake.gone(nums.one) && two.intake.gone(nums.two));
        settle(&mut [&mut one, &mut two]);
        assert_eq!(two.worker.handler().down.len(), round + 1);
    }
    let log = one.worker.handler();
    assert!(log.up.is_empty() && log.got.is_empty() && log.down.is_empty());
    // If the messages of earlier rounds still had their receives, later ones would find none.
    let whys = two.worker.handler().down.iter().map(|(_, why)| *why);
    assert!(whys.into_iter().all(|why| why == DownReason::Disconnected));
}

/// The longest sleep of a worker that waits for credit.
const CREDIT_REST: Duration = Duration::from_millis(1);

/// Arms a worker until it has nothing to do. Returns whether its sleep ends by itself, so soon that
/// credit is seen in time.
fn looks_again<H: Handler<Soft>>(one: &mut Side<H>) -> bool {
    for _ in 0..100 {
        if let Ok(armed) = one.worker.arm() {
            return armed.look_again().is_some_and(|rest| rest <= CREDIT_REST);
        }
    }
    panic!("it stays awake");
}

/// Credit comes without a completion and wakes nobody, so a worker that was told of little room, or
/// of none, looks for it again. It does not stay awake.
#[test]
fn a_worker_told_of_little_room_looks_again() {
    for left in [0, 1, 5] {
        let (mut one, mut two) = (side_of(&COUNTED, Asker::default()), side(&COUNTED, false));
        connect(&mut one, &mut two);
        assert!(!looks_again(&mut one));
        one.worker.handler().asks.set(true);
        assert!(!looks_again(&mut one), "there is room");
        one.worker.handler().asks.set(false);
        let peer = one.worker.handler().peer.unwrap();
        while one.worker.outbox().room(peer) > left {
            one.worker.outbox().send(peer, &[1; 8]).unwrap();
        }
        for _ in 0..10 {
            one.worker.turn();
        }
        assert!(!looks_again(&mut one), "nobody asks");
        one.worker.handler().asks.set(true);
        assert!(looks_again(&mut one), "room for {left}");
        // It goes on until there is credit, and each sleep is as long as the last or longer.
        let rests: Vec<_> =
            (0..10).map(|_| one.worker.arm().unwrap().look_again().unwrap()).collect();
        assert!(rests.is_sorted() && rests[9] == CREDIT_REST, "{rests:?}");
        settle(&mut [&mut two]);
        settle_credits(&mut two);
        settle(&mut [&mut two]);
        assert!(!looks_again(&mut one), "it has credit");
    }
}

/// The same with replies that wait for credit: they leave soon after it has come.
#[test]
fn a_worker_whose_replies_wait_looks_again() {
    let (mut one, mut two) = (side(&COUNTED, true), side(&COUNTED, false));
    connect(&mut one, &mut two);
    let (peer, back) = (one.only_peer(), two.only_peer());
    // All credit but the last goes to messages, the last to a reply, and the next reply waits.
    while one.worker.outbox().send(peer, &[1; 8]).is_ok() {}
    for _ in 0..3 {
        two.worker.outbox().send(back, &[2; 8]).unwrap();
    }
    two.worker.outbox().flush();
    while one.worker.turn() > 0 {}
    assert!(!one.worker.core.replies.is_empty(), "a reply waits");
    assert!(looks_again(&mut one));
    settle(&mut [&mut one, &mut two]);
    assert!(one.worker.core.replies.is_empty() && !looks_again(&mut one));
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
