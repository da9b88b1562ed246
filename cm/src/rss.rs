//! Receive side scaling (RSS): work queues, and tables of them, over which the frames of one queue
//! pair are spread (QX-8).
#![expect(unsafe_code, reason = "posts buffers that it then owns")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbell_fabric::{CmError, Fabric};
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Wq, WqFlags, WqState};

use crate::buffer::Buffer;
use crate::completion::{Completion, completion, wait_for};
use crate::cq::CompletionQueue;
use crate::error::PostFailed;
use crate::posted::{Posted, lock};

/// A receive work queue (`ibv_create_wq`) with the buffers posted to it, made in RESET. Frames
/// reach it through an [`IndirectionTable`].
pub struct WorkQueue<F: Fabric>(Arc<Queue<F>>);

struct Queue<F: Fabric> {
    // Before the buffers: the device lets go of them first.
    wq: F::Wq,
    posted: Mutex<Posted<F>>,
    state: Mutex<WqState>,
    /// Number of tables it is in.
    tables: AtomicUsize,
    cq: CompletionQueue<F>,
}

impl<F: Fabric> Drop for Queue<F> {
    fn drop(&mut self) {
        self.cq.serve(self.wq.num(), false);
    }
}

impl<F: Fabric> WorkQueue<F> {
    /// Makes a queue for at least `depth` receives, which complete in `cq`.
    ///
    /// # Errors
    /// `Invalid`: `depth` 0 or over the device's limit, flags that do not exist; `NotSupported`:
    /// the device has none.
    pub fn new(
        fabric: &F,
        cq: &CompletionQueue<F>,
        depth: u32,
        flags: WqFlags,
    ) -> Result<WorkQueue<F>, CmError> {
        let wq = fabric.create_wq(cq.raw(), depth, flags)?;
        cq.serve(wq.num(), true);
        Ok(WorkQueue(Arc::new(Queue {
            wq,
            posted: Mutex::new(Posted::new()),
            state: Mutex::default(),
            tables: AtomicUsize::new(0),
            cq: cq.clone(),
        })))
    }

    /// Its number, unlike that of any queue pair.
    pub fn num(&self) -> u32 {
        self.0.wq.num()
    }

    /// The granted depth.
    pub fn depth(&self) -> u32 {
        self.0.wq.depth()
    }

    /// The state it was moved to.
    pub fn state(&self) -> WqState {
        *lock(&self.0.state)
    }

    /// Moves it to another state (`ibv_modify_wq`). In RESET it forgets posted receives, and their
    /// buffers are free.
    ///
    /// # Errors
    /// `Invalid`: there is no such transition. Otherwise the device's error.
    pub fn modify(&mut self, to: WqState) -> Result<(), CmError> {
        let mut state = lock(&self.0.state);
        self.0.wq.modify(to)?;
        *state = to;
        if to == WqState::Reset {
            let num = self.0.wq.num();
            self.0.cq.serve(num, false);
            self.0.cq.serve(num, true);
            *lock(&self.0.posted) = Posted::new();
        }
        Ok(())
    }

    /// Posts receives in order (`ibv_post_wq_recv`). Accepted receives leave `list`; on an error
    /// the rest stays in it (PL-1).
    ///
    /// # Errors
    /// `State` in RESET; the queue is full.
    pub fn post(&mut self, list: &mut Vec<Buffer<F>>) -> Result<(), PostFailed> {
        if self.state() == WqState::Reset && !list.is_empty() {
            return Err(PostFailed::state());
        }
        // SAFETY: the buffers stay in `posted`, registered and out of reach, until the device
        // gave each back, has forgotten them, or this queue is gone; tables that name it keep it,
        // and queue pairs keep those.
        lock(&self.0.posted).post(list, |wrs| unsafe { self.0.wq.post(wrs) })
    }

    /// The next completed receive, within `limit`.
    ///
    /// # Errors
    /// `TimedOut`. The completion says how the receive ended.
    pub fn next(&mut self, limit: Duration) -> Result<Completion<F>, CmError> {
        let asked = || "wait for the completion of a receive of a work queue".to_owned();
        wait_for(limit, asked, || {
            loop {
                let polled = self.0.cq.take(self.num(), true)?;
                // Ignore a device that names a buffer it does not have.
                if let Some(buffer) = lock(&self.0.posted).take(&polled.wc) {
                    return Some(completion(polled, Some(buffer)));
                }
            }
        })
    }

    /// Destroys it now (`ibv_destroy_wq`). Dropped instead, it goes with the last table it is in.
    ///
    /// # Errors
    /// `Busy`: it is in a table. It comes back.
    pub fn destroy(self) -> Result<(), (Self, CmError)> {
        let asked = "destroy a work queue";
        busy(&self.0.tables, asked, "tables have it").map_err(|error| (self, error))
    }
}

/// Fails while there are users.
fn busy(users: &AtomicUsize, asked: &str, who: &str) -> Result<(), CmError> {
    match users.load(Ordering::Relaxed) {
        0 => Ok(()),
        users => Err(CmError::new(Code::Busy, asked, format!("{users} {who} (QX-8)"))
            .cure("destroy those first")),
    }
}

/// A table of work queues (`ibv_create_rwq_ind_table`): the hash of a frame, cut to the table's
/// size, selects the queue.
pub struct IndirectionTable<F: Fabric>(Arc<Table<F>>);

pub(crate) struct Table<F: Fabric> {
    // Before the queues that are in it.
    raw: F::RwqIndTable,
    queues: Vec<Arc<Queue<F>>>,
    /// Queue pairs that use it.
    users: AtomicUsize,
}

impl<F: Fabric> Drop for Table<F> {
    fn drop(&mut self) {
        for queue in &self.queues {
            queue.tables.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<F: Fabric> IndirectionTable<F> {
    /// Makes a table; the same queue may appear several times.
    ///
    /// # Errors
    /// `Invalid`: their number is not a power of two, or over the device's limit; `NotSupported`.
    pub fn new(fabric: &F, queues: &[&WorkQueue<F>]) -> Result<IndirectionTable<F>, CmError> {
        if !queues.len().is_power_of_two() {
            let asked = format!("a table of {} work queues", queues.len());
            return Err(CmError::new(Code::Invalid, asked, "it takes a power of two (QX-8)")
                .cure("name some queues several times"));
        }
        let raws: Vec<&F::Wq> = queues.iter().map(|queue| &queue.0.wq).collect();
        let raw = fabric.create_rwq_ind_table(&raws)?;
        let queues: Vec<_> = queues.iter().map(|queue| queue.0.clone()).collect();
        for queue in &queues {
            queue.tables.fetch_add(1, Ordering::Relaxed);
        }
        Ok(IndirectionTable(Arc::new(Table { raw, queues, users: AtomicUsize::new(0) })))
    }

    /// Number of entries: a power of two.
    pub fn size(&self) -> usize {
        self.0.queues.len()
    }

    /// Destroys it now (`ibv_destroy_rwq_ind_table`). Dropped instead, it goes with the last queue
    /// pair that uses it.
    ///
    /// # Errors
    /// `Busy`: a queue pair uses it. It comes back.
    pub fn destroy(self) -> Result<(), (Self, CmError)> {
        let asked = "destroy a table of work queues";
        busy(&self.0.users, asked, "queue pairs use it").map_err(|error| (self, error))
    }

    pub(crate) fn inner(&self) -> &Arc<Table<F>> {
        &self.0
    }
}

impl<F: Fabric> Table<F> {
    pub(crate) fn raw(&self) -> &F::RwqIndTable {
        &self.raw
    }
}

/// A queue pair's use of a table.
pub(crate) struct TableUse<F: Fabric>(Arc<Table<F>>);

impl<F: Fabric> TableUse<F> {
    pub(crate) fn new(table: &Arc<Table<F>>) -> TableUse<F> {
        table.users.fetch_add(1, Ordering::Relaxed);
        TableUse(table.clone())
    }
}

impl<F: Fabric> Drop for TableUse<F> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Relaxed);
    }
}
