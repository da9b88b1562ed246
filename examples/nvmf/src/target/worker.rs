//! One poll loop: its queues, and the shared receive queue that their capsules arrive in.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use doorbell::error::Code;
use doorbell::wr::PostCause;
use doorbell::{
    Buffer, CmError, CompletionQueue, ConnParam, Fabric, Id, IdKey, QpInit, SharedReceive,
    message_memory,
};

use super::backing::Backing;
use super::queue::{End, Queue};
use crate::rest::Rest;
use crate::session::Session;
use crate::subsystem::{Counters, Subsystem};
use crate::wire::CAPSULE_BYTES;
use crate::wire::cm::{QueueRequest, Reject, accept_bytes};
use crate::wire::response::RESPONSE_BYTES;

/// Receives of a worker: the depths of its queues together do not exceed them.
const RECEIVES: usize = 2048;
/// How long the loop sleeps: until it has to look at other things, at what wakes nobody, or again
/// on a device that cannot wake it.
const SLEEP: Duration = Duration::from_millis(20);
const NAP: Duration = Duration::from_micros(50);
/// Turns between two looks at the clock, which is a system call on some machines. A sleep counts
/// as some of them.
const CLOCK: u32 = 1 << 10;
const SLEPT: u32 = CLOCK / 4;
/// Completions that may wait for the loop: of a receive, and of four requests, for each command.
const COMPLETIONS: usize = RECEIVES * 5;
/// The peer's wait while no receive is posted: code 12 is 0.64 ms.
const RNR_TIMER: u8 = 12;
/// Time between two looks at limits of time.
const TICK: Duration = Duration::from_millis(50);

/// News from the thread that listens.
pub(super) enum News<F: Fabric> {
    /// A host wants to connect a queue.
    Request(F::Id, Vec<u8>),
    /// A connection is up.
    Established(IdKey),
    /// A connection has ended.
    Ended(IdKey),
}

/// What a worker shares with the other threads.
pub(super) struct Common {
    pub(super) subsystem: Arc<Subsystem>,
    /// Empty turns of a poll loop before it sleeps, at most.
    pub(super) spins: u32,
    pub(super) stop: AtomicBool,
}

pub(super) struct Worker<F: Fabric> {
    fabric: F,
    common: Arc<Common>,
    news: Receiver<News<F>>,
    load: Arc<AtomicUsize>,
    cq: CompletionQueue<F>,
    srq: SharedReceive<F>,
    queues: HashMap<IdKey, Queue<F>>,
    refill: Vec<Buffer<F>>,
    /// Receives that no queue has claimed.
    free: usize,
    backing: Backing<F>,
}

impl<F: Fabric> Worker<F> {
    pub(super) fn new(
        fabric: &F,
        common: Arc<Common>,
        news: Receiver<News<F>>,
        load: Arc<AtomicUsize>,
        backing: Backing<F>,
    ) -> Result<Worker<F>, CmError> {
        let most = fabric.caps().cqe_max.min(COMPLETIONS as u32);
        let cq = CompletionQueue::new(fabric, most)?;
        let srq = SharedReceive::new(fabric, RECEIVES as u32)?;
        let asked = || format!("{RECEIVES} receives of {CAPSULE_BYTES} bytes");
        let memory = message_memory(fabric, RECEIVES * CAPSULE_BYTES).map_err(|error| {
            CmError::new(Code::from_errno(error.errno()), asked(), error.to_string())
        })?;
        let refill = Buffer::over(fabric, memory, RECEIVES, CAPSULE_BYTES)?;
        // Queues may have as many commands as there are completions for.
        let free = RECEIVES.min(most as usize / 5);
        let (fabric, queues) = (fabric.clone(), HashMap::new());
        Ok(Worker { fabric, common, news, load, cq, srq, queues, refill, free, backing })
    }

    /// Runs until the target stops.
    pub(super) fn run(mut self) -> Result<(), CmError> {
        let (mut rest, mut tick, mut turns) = (Rest::new(self.common.spins), Instant::now(), 0_u32);
        // Relaxed: the flag guards no other memory.
        while !self.common.stop.load(Ordering::Relaxed) {
            turns += 1;
            if turns >= CLOCK {
                turns = 0;
                if tick.elapsed() >= TICK {
                    tick = Instant::now();
                    self.tick(tick);
                }
            }
            if self.turn()? {
                rest.worked();
                continue;
            }
            if rest.after_empty(|| self.sleep())? {
                turns += SLEPT;
            }
        }
        let keys: Vec<IdKey> = self.queues.keys().copied().collect();
        keys.into_iter().for_each(|key| self.remove(key, &End::Gone));
        Ok(())
    }

    /// Sleeps until there may be something to do: arms, looks again, and then waits. True if that
    /// look has found something.
    fn sleep(&mut self) -> Result<bool, CmError> {
        if self.cq.arm(false).is_err() {
            thread::sleep(NAP);
            return Ok(false);
        }
        let busy = self.turn()?;
        let limit = if busy {
            Duration::ZERO // The wait only ends what arming has begun.
        } else if self.backing.has_threads_busy() || self.queues.values().any(Queue::is_waiting) {
            NAP
        } else {
            SLEEP
        };
        self.cq.wait_beside(self.backing.wakes(), Some(limit))?;
        Ok(busy)
    }

    fn turn(&mut self) -> Result<bool, CmError> {
        let mut busy = self.refill()?;
        while let Ok(news) = self.news.try_recv() {
            busy = true;
            self.hear(news);
        }
        while let Some(job) = self.backing.take() {
            busy = true;
            if let Some(queue) = self.queues.get_mut(&job.queue) {
                // A failure shows in the queue's own turn.
                let _ = queue.finish(job);
            }
        }
        let mut ended = Vec::new();
        for (key, queue) in &mut self.queues {
            match queue.turn(&mut self.backing, &mut self.refill) {
                Ok(some) => busy |= some,
                Err(end) => ended.push((*key, end)),
            }
        }
        for (key, end) in ended {
            self.remove(key, &end);
        }
        self.backing.submit()?;
        Ok(busy)
    }

    /// Posts the buffers of capsules again.
    fn refill(&mut self) -> Result<bool, CmError> {
        if self.refill.is_empty() {
            return Ok(false);
        }
        match self.srq.post(&mut self.refill) {
            Ok(()) => Ok(true),
            // A queue that was just destroyed may still hold slots.
            Err(failed) if failed.cause == PostCause::Full => Ok(true),
            Err(failed) => Err(failed.into()),
        }
    }

    fn tick(&mut self, now: Instant) {
        let due = |(key, queue): (&IdKey, &Queue<F>)| Some((*key, queue.tick(now).err()?));
        let ended: Vec<(IdKey, End)> = self.queues.iter().filter_map(due).collect();
        for (key, end) in ended {
            self.remove(key, &end);
        }
    }

    fn hear(&mut self, news: News<F>) {
        match news {
            News::Request(request, data) => {
                self.admit(Id::of_request(&self.fabric, request), &data)
            }
            News::Established(key) => {
                if let Some(queue) = self.queues.get_mut(&key) {
                    // Without it retries only take longer.
                    let _ = queue.id().set_rnr_timer(RNR_TIMER);
                }
            }
            News::Ended(key) => self.remove(key, &End::Gone),
        }
    }

    /// Answers a connection request.
    fn admit(&mut self, mut id: Id<F>, data: &[u8]) {
        let admitted = QueueRequest::read(data).and_then(|request| {
            let depth = usize::from(request.depth);
            if depth > self.free {
                return Err(Reject::NoResources);
            }
            Ok(request)
        });
        let request = match admitted {
            Ok(request) => request,
            Err(reason) => {
                Counters::add(&self.common.subsystem.counters.breaches, 1);
                // The host may have left meanwhile.
                let _ = id.reject(&reason.bytes());
                return;
            }
        };
        let key = id.key();
        if let Ok(queue) = self.connect(id, &request) {
            self.free -= queue.depth();
            self.load.fetch_add(1, Ordering::Relaxed);
            self.queues.insert(key, queue);
        }
    }

    fn connect(&mut self, mut id: Id<F>, request: &QueueRequest) -> Result<Queue<F>, CmError> {
        let depth = u32::from(request.depth);
        let inline = self.fabric.caps().inline_max.min(RESPONSE_BYTES as u32);
        // READs, WRITEs and responses, and those that have not completed yet.
        let sends = (depth * 4).min(self.fabric.caps().qp_wr_max);
        let init = QpInit::rc().send_wr(sends).recv_wr(depth).inline(inline).srq(&self.srq);
        let init = init.send_cq(&self.cq).recv_cq(&self.cq);
        let made = id.create_qp(&init);
        if let Err(error) = made {
            let _ = id.reject(&Reject::NoResources.bytes());
            return Err(error);
        }
        let addr = id.local_addr().ok_or_else(|| {
            CmError::new(Code::Invalid, "accept a queue", "its id has no local address")
        })?;
        let subsystem = self.common.subsystem.clone();
        let session = Session::new(subsystem, request.queue, request.depth, addr);
        let backing = &mut self.backing;
        let mut queue = Queue::new(&self.fabric, id, session, usize::from(request.depth), backing)?;
        let answer = accept_bytes(request.depth);
        let accepted =
            queue.id().accept(&ConnParam { private_data: &answer, ..ConnParam::default() });
        if let Err(error) = accepted {
            // Its buffers are registered with the backing.
            queue.close(&End::Gone, &mut self.refill, &mut self.backing);
            return Err(error);
        }
        Ok(queue)
    }

    fn remove(&mut self, key: IdKey, end: &End) {
        let Some(queue) = self.queues.remove(&key) else { return };
        self.free += queue.depth();
        self.load.fetch_sub(1, Ordering::Relaxed);
        queue.close(end, &mut self.refill, &mut self.backing);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::channel;

    use doorbell::soft::SoftDevice;
    use doorbell::{Channel, EventKind, PortSpace};

    use super::*;
    use crate::initiator;
    use crate::store::Store;

    /// A store that a ring serves.
    struct Slow;

    impl Store for Slow {
        fn len(&self) -> u64 {
            1 << 20
        }
        fn is_quick(&self) -> bool {
            false
        }
        fn read(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Ok(())
        }
        fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
            Ok(())
        }
        fn zero(&self, _: u64, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn discard(&self, _: u64, _: u64) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn worker(device: &SoftDevice) -> Worker<SoftDevice> {
        let subsystem = Arc::new(Subsystem::new("nqn.test", vec![Arc::new(Slow)], 8));
        let backing = Backing::new(&subsystem, true).unwrap();
        let common = Arc::new(Common { subsystem, spins: 0, stop: AtomicBool::new(false) });
        Worker::new(device, common, channel().1, Arc::default(), backing).unwrap()
    }

    /// A host whose request is rejected behind the worker's back: the worker's accept fails.
    #[test]
    fn a_failed_accept_leaves_nothing_registered() {
        let device = SoftDevice::open().unwrap();
        let mut worker = worker(&device);
        let sets = worker.backing.free_sets();
        if sets == 0 {
            println!("skipped: io_uring registers no buffers here");
            return;
        }
        let events = device.open_channel().unwrap();
        let mut listener = Id::create(&device, Some(&events), PortSpace::Tcp).unwrap();
        listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.listen(0).unwrap();
        let addr = listener.local_addr().unwrap();
        let host = device.clone();
        let host = thread::spawn(move || {
            let request = QueueRequest { queue: 0, receives: 32, depth: 32, controller: 0 };
            initiator::Queue::connect(&host, addr, &request, 4096).map(drop)
        });
        let event = events.next(Duration::from_secs(60)).unwrap().unwrap();
        assert_eq!(event.kind, EventKind::ConnectRequest);
        let mut id = Id::of_request(&device, event.request.unwrap());
        id.reject(&Reject::NoResources.bytes()).unwrap();
        let request = QueueRequest::read(&event.private_data).unwrap();
        assert!(worker.connect(id, &request).is_err());
        assert_eq!(worker.backing.free_sets(), sets);
        assert!(host.join().unwrap().is_err());
    }
}
