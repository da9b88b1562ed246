//! How a worker is made, and its owner's view of it between turns.

use std_alloc::format;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use doorbell_alloc::{BlockPool, Mapping};

use super::accounts::{Accounts, Broken};
use super::config::{Config, SENDS_LEAST};
use super::core::Core;
use super::credit_rest::CreditRest;
use super::datagrams::Datagrams;
use super::handler::Handler;
use super::in_flight::InFlight;
use super::mailbox::{Intake, Mailbox};
use super::outbox::Outbox;
use super::peer_resources::CreditWords;
use super::piece::{OwnRegion, RegionId};
use super::qp_domain::QpDomain;
use super::recv_blocks::RecvBlocks;
use super::requests::Requests;
use super::send_blocks::SendBlocks;
use super::shared_recv::{self, SharedRecv};
use super::shared_state::{Handle, Waker};
use super::stats::Stats;
use super::turn::{LOOK_TURNS, PUBLISH_TURNS, Worker};
use super::watch::Closings;
use crate::error::{Code, SetupError};
use crate::provider::wake::WakeFds;
use crate::provider::{Access, Caps, Poller, Provider, Qp, QpCaps, Sharing};

/// Checks that the device can make this worker's queue pairs, so that it fails here and not at each
/// connection.
pub(super) fn check_caps(caps: &Caps, config: &Config) -> Result<(), SetupError> {
    let want = config.qp_caps();
    let over = if want.inline > caps.inline_max {
        ("inline_bytes", config.inline_bytes, caps.inline_max)
    } else if want.send_wr > caps.qp_wr_max {
        // A power of two, and the two slots more that `Config::qp_caps` asks for.
        let log = caps.qp_wr_max.saturating_sub(2).checked_ilog2();
        ("send_queue", config.send_queue, log.map_or(0, |log| 1 << log))
    } else {
        return Ok(());
    };
    let (name, value, max) = over;
    let asked = format!("a worker with {name} = {value} on {}", caps.device);
    let answer = format!("the device allows {max}");
    Err(SetupError::new(Code::Invalid, asked, answer)
        .cure(format!("lower Config::{name} to {max}")))
}

/// The depth of the completion queue, and the requests in flight that it has room for, beside the
/// receives of the shared queue: they are fewer than [`Config::sends`] if the device has no longer
/// queues.
pub(super) fn completions(
    caps: &Caps,
    config: &Config,
    shared_receives: u32,
) -> Result<(u32, u32), SetupError> {
    let (others, most) = (config.other_completions(shared_receives), config.sends_most());
    let left = caps.cqe_max.saturating_sub(others);
    if left < most.min(SENDS_LEAST) {
        let asked = format!(
            "a worker with peers = {} on {shared_receives} shared receives of {}",
            config.peers, caps.device
        );
        let answer =
            format!("the device's completion queues have {} entries at most", caps.cqe_max);
        return Err(SetupError::new(Code::Invalid, asked, answer)
            .cure("lower Config::recv_blocks or Config::peers: each takes one entry"));
    }
    Ok((others.saturating_add(most.min(left)), config.sends.min(left)))
}

impl<P: Provider, H: Handler<P>> Worker<P, H> {
    /// Makes a worker on a shared receive queue. `memory`, at least [`Config::send_bytes`], is for
    /// sends that are not inline. The returned intake lets the control plane give it peers. The
    /// worker allocates everything it will ever need here.
    ///
    /// # Errors
    /// `Invalid`: the configuration, or memory that is too short or that another process may write.
    /// Otherwise the device's refusal.
    pub fn new(
        nic: &P,
        shared: &SharedRecv<P>,
        memory: Mapping,
        handler: H,
        config: &Config,
    ) -> Result<(Self, Intake<P>), SetupError> {
        config.check()?;
        if shared.block_bytes() != config.block_bytes {
            return Err(SetupError::new(
                Code::Invalid,
                format!("a worker with blocks of {} bytes", config.block_bytes),
                format!("the shared receive queue has blocks of {} bytes", shared.block_bytes()),
            )
            .cure("use one Config for SharedRecv::new and Worker::new"));
        }
        shared_recv::check_memory("send", &memory, config.send_bytes())?;
        check_caps(nic.caps(), config)?;
        let pool = BlockPool::new(config.send_blocks, config.stride())
            .map_err(|error| SetupError::new(Code::Invalid, "a pool", format!("{error}")))?;
        // On a device in software the peer's processor reads the blocks: half a round trip of 16
        // KiB takes 0.8 of the time, and of 64 KiB 0.65 on near cores and 0.8 on far ones.
        let pool = if P::Qp::POSTS_INLINE { pool.in_turn() } else { pool };
        let region = nic.register(memory, Access::LOCAL_WRITE)?;
        let words = Arc::new(CreditWords::new(nic, shared, config)?);
        let (depth, sends) = completions(nic.caps(), config, shared.blocks())?;
        let (cq, poller) = nic.create_cq(depth, Sharing::Exclusive)?;
        let domain = QpDomain::new(nic, config)?;
        let mailbox = Arc::new(Mailbox::new(config.peers, config.work, poller.notifier()));
        let datagrams = Datagrams::new(nic, config);
        let accounts = Accounts {
            in_flight: InFlight::new(sends),
            recv: RecvBlocks::new(shared.clone(), config)?,
            send: SendBlocks::new(region, pool),
            requests: Requests::new(config.requests),
            credit_due: Vec::with_capacity(config.peers as usize),
            uncounted_singles: 0,
            broken: Broken::new(config.peers),
            stats: Stats::default(),
        };
        let core = Core::new(mailbox.clone(), poller, accounts, datagrams, nic.caps(), config);
        let inline = config.inline_on::<P>(nic.caps());
        let with_inline = |caps: QpCaps| QpCaps { inline: caps.inline.max(inline), ..caps };
        let caps = [with_inline(config.qp_caps()), config.datagram_caps()];
        let intake = Intake {
            mailbox,
            cq,
            shared: shared.clone(),
            words,
            caps,
            inline_bytes: config.qp_caps().inline,
            retry: config.retry,
            domain,
            closings: Arc::new(Closings::new(config.peers)),
        };
        let (idle, uncounted, alone, settled) = (0, 0, 0, false);
        let worker = Worker {
            core,
            idle,
            uncounted,
            alone,
            settled,
            publish_at: PUBLISH_TURNS,
            look_at: LOOK_TURNS,
            credit_rest: CreditRest::new(),
            handler,
        };
        Ok((worker, intake))
    }

    /// Sets what other threads call, besides making the worker's descriptors readable, when they
    /// leave something for an armed worker: for a thread that waits on no descriptor. Only the
    /// first call counts.
    pub fn set_waker(&self, waker: Waker) {
        self.core.mailbox.state.set_waker(waker);
    }

    /// The descriptors that become readable while the worker is armed and has something to do; the
    /// same as long as it lives. `None`: the device cannot wake anybody. See [`Worker::arm`].
    pub fn wake_fds(&self) -> Option<WakeFds> {
        self.core.poller.wake_fds()
    }

    /// A handle for other threads.
    pub fn handle(&self) -> Handle {
        Handle(self.core.mailbox.state.clone())
    }

    /// When the next timer is due, if one is set: the caller may sleep until then.
    pub fn next_timer(&self) -> Option<u64> {
        self.core.timers.next_at()
    }

    /// The outbox, between turns: sends go out with the next turn, or with [`Outbox::flush`].
    pub fn outbox(&mut self) -> Outbox<'_, P> {
        self.settled = false;
        Outbox { core: &mut self.core }
    }

    /// Adds registered memory for requests of this worker, and of its peers as far as it is
    /// registered for them. It stays until the worker is gone, so no device accesses memory that is
    /// unmapped.
    pub fn adopt(&mut self, region: P::Region) -> RegionId {
        self.core.regions.adopt(region)
    }

    /// Registers memory for this worker's requests alone, so that no peer may read or write it.
    /// Requests send and write from there and read into it without a copy, and
    /// [`Outbox::bytes`] and [`Outbox::bytes_mut`] lend its bytes as plain slices. It stays until
    /// the worker is gone.
    ///
    /// On the device in software the peer's core reads long messages from there. A program that
    /// writes many of 4 KiB or more writes to all of that memory in turn, and makes it as large as
    /// a core's own cache, 1 MiB or so: see **Caches** at [`Config`].
    ///
    /// # Errors
    /// `Invalid`: another process may write the memory. Otherwise the device's refusal.
    pub fn adopt_own(&mut self, nic: &P, memory: Mapping) -> Result<OwnRegion, SetupError> {
        self.core.regions.adopt_own(nic, memory)
    }

    /// The handler.
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// The handler, to change it between turns.
    pub fn handler_mut(&mut self) -> &mut H {
        &mut self.handler
    }

    /// The handler together with the outbox, between turns: for what the handler knows and sends.
    /// Sends go out with the next turn, or with [`Outbox::flush`].
    pub fn with<T>(&mut self, call: impl FnOnce(&mut H, &mut Outbox<'_, P>) -> T) -> T {
        self.settled = false;
        call(&mut self.handler, &mut Outbox { core: &mut self.core })
    }

    /// What the worker has done so far.
    pub fn stats(&self) -> Stats {
        let accounts = &self.core.sender.accounts;
        let mut stats = accounts.stats;
        stats.count_singles(accounts.uncounted_singles);
        stats.count_short_turns(self.uncounted, self.alone);
        stats
    }

    /// Its current peers, up or not.
    pub fn peers(&self) -> usize {
        self.core.sender.peers.len()
    }

    /// Free blocks of the shared receive memory in this worker's hands: they are not posted. With
    /// no peer left, and after the shared queue was drained, its workers have all of them.
    pub fn recv_blocks_home(&self) -> usize {
        self.core.sender.accounts.recv.home()
    }

    /// Free blocks of its send memory. With no peer left, all of them are free.
    pub fn send_blocks_home(&self) -> usize {
        self.core.sender.accounts.send.available()
    }

    /// Receives of datagrams that are not posted: a quarter of them at most.
    pub fn datagrams_home(&self) -> usize {
        self.core.datagrams.home()
    }

    /// Requests that have not ended.
    pub fn pending(&self) -> usize {
        self.core.sender.accounts.requests.pending()
    }

    /// Requests that are posted and not over.
    pub fn in_flight(&self) -> usize {
        self.core.sender.in_flight() as usize
    }

    /// Messages the handler keeps now.
    pub fn kept(&self) -> usize {
        self.core.kept.len()
    }
}
