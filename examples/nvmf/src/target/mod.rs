//! The target: a thread that listens, and workers that each poll some of the queue pairs.

mod backing;
mod pool;
mod queue;
mod worker;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use doorbell::error::Code;
use doorbell::{Channel, CmError, Event, EventKind, Fabric, Id, IdKey, PortSpace};

use self::backing::Backing;
use self::worker::{Common, News, Worker};
use crate::subsystem::Subsystem;

/// How long the listening thread waits between two looks at the end.
const WAIT: Duration = Duration::from_millis(20);

/// Empty turns before a poll loop sleeps, at most, unless the caller says otherwise: about a
/// millisecond.
pub const SPINS: u32 = 1 << 13;

/// A running target. Dropping it ends it.
pub struct Target {
    addr: SocketAddr,
    common: Arc<Common>,
    threads: Vec<JoinHandle<()>>,
    failure: Arc<Mutex<Option<CmError>>>,
}

/// A worker as the listening thread sees it.
struct Line<F: Fabric> {
    news: Sender<News<F>>,
    load: Arc<AtomicUsize>,
}

impl Target {
    /// Starts a target with `workers` poll loops. Each of them sleeps after at most `spins` empty
    /// turns; see [`SPINS`].
    ///
    /// # Errors
    /// The address is not this device's or is in use; memory or threads are short.
    pub fn start<F: Fabric>(
        fabric: &F,
        addr: SocketAddr,
        subsystem: Arc<Subsystem>,
        workers: usize,
        spins: u32,
    ) -> Result<Target, CmError> {
        let channel_of_events = fabric.open_channel()?;
        let mut listener = Id::create(fabric, Some(&channel_of_events), PortSpace::Tcp)?;
        listener.bind(addr)?;
        listener.listen(0)?;
        let addr = listener.local_addr().unwrap_or(addr);
        let common = Arc::new(Common { subsystem, spins, stop: AtomicBool::new(false) });
        let failure = Arc::new(Mutex::new(None));
        let mut target = Target { addr, common, threads: Vec::new(), failure };
        let mut lines = Vec::new();
        for index in 0..workers.max(1) {
            let (news, heard) = channel();
            let load = Arc::new(AtomicUsize::new(0));
            let backing = Backing::new(&target.common.subsystem, index == 0)?;
            let common = target.common.clone();
            let worker = Worker::new(fabric, common, heard, load.clone(), backing)?;
            target.spawn(format!("nvmf-{index}"), move || worker.run())?;
            lines.push(Line { news, load });
        }
        let common = target.common.clone();
        target.spawn("nvmf-listen".to_owned(), move || {
            listen(&channel_of_events, listener, &lines, &common.stop)
        })?;
        Ok(target)
    }

    fn spawn(
        &mut self,
        name: String,
        run: impl FnOnce() -> Result<(), CmError> + Send + 'static,
    ) -> Result<(), CmError> {
        let (common, failure) = (self.common.clone(), self.failure.clone());
        let thread = thread::Builder::new().name(name).spawn(move || {
            if let Err(error) = run() {
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            // The first thread that ends takes the others along.
            common.stop.store(true, Ordering::Relaxed);
        });
        let started = thread.map_err(|error| CmError::from_io("start a thread", &error))?;
        self.threads.push(started);
        Ok(())
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The subsystem that it serves.
    pub fn subsystem(&self) -> &Subsystem {
        &self.common.subsystem
    }

    /// True if a thread has ended, by a failure or because the target was stopped.
    pub fn is_stopped(&self) -> bool {
        self.common.stop.load(Ordering::Relaxed)
    }

    /// Ends it, and waits for its threads.
    ///
    /// # Errors
    /// The first failure of a thread.
    pub fn stop(mut self) -> Result<(), CmError> {
        self.end();
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map_or(Ok(()), Err)
    }

    fn end(&mut self) {
        self.common.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                let error = CmError::new(Code::Invalid, "run the target", "a thread panicked");
                self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
    }
}

/// Hands connection requests to workers, and events to the workers that they concern.
fn listen<F: Fabric>(
    events: &F::Channel,
    listener: Id<F>,
    lines: &[Line<F>],
    stop: &AtomicBool,
) -> Result<(), CmError> {
    let mut owners: HashMap<IdKey, usize> = HashMap::new();
    while !stop.load(Ordering::Relaxed) {
        let Some(event) = events.next(WAIT)? else { continue };
        let Event { kind, key, request, private_data, .. } = event;
        match (kind, request) {
            (EventKind::ConnectRequest, Some(request)) => {
                let load = |index: &usize| lines[*index].load.load(Ordering::Relaxed);
                let Some(index) = (0..lines.len()).min_by_key(load) else { continue };
                owners.insert(doorbell::CmId::key(&request), index);
                tell(lines, index, News::Request(request, private_data));
            }
            (EventKind::Established, _) => {
                if let Some(index) = owners.get(&key) {
                    tell(lines, *index, News::Established(key));
                }
            }
            (EventKind::DeviceRemoval, _) => {
                let answer = "the device is being removed";
                return Err(CmError::new(Code::NoDevice, "serve", answer));
            }
            (EventKind::TimewaitExit | EventKind::AddrChange, _) => {}
            _ => {
                if let Some(index) = owners.remove(&key) {
                    tell(lines, index, News::Ended(key));
                }
            }
        }
    }
    drop(listener);
    Ok(())
}

/// A worker that has ended hears nothing, and the target is about to stop.
fn tell<F: Fabric>(lines: &[Line<F>], index: usize, news: News<F>) {
    if let Some(line) = lines.get(index) {
        let _ = line.news.send(news);
    }
}
