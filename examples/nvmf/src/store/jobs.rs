//! Threads that carry out work which may wait for a device, and give it back when it is done.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A pool of threads. Dropping it ends them once they have done what they were given.
pub struct Jobs<T> {
    work: Sender<T>,
    done: Receiver<T>,
}

impl<T: Send + 'static> Jobs<T> {
    /// A pool of `count` threads that do `run`.
    ///
    /// # Errors
    /// The system's limit on threads.
    pub fn new(count: usize, run: fn(&mut T)) -> std::io::Result<Jobs<T>> {
        let (work, queue) = channel::<T>();
        let (finish, done) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..count {
            let (queue, finish) = (queue.clone(), finish.clone());
            thread::Builder::new().name("nvmf-job".to_owned()).spawn(move || {
                loop {
                    // The lock is held during the wait, and handed on with the next job.
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(mut job) = next else { return };
                    run(&mut job);
                    if finish.send(job).is_err() {
                        return;
                    }
                }
            })?;
        }
        Ok(Jobs { work, done })
    }

    /// Gives a job to the pool. It comes back if no thread is left.
    ///
    /// # Errors
    /// The job.
    pub fn give(&self, job: T) -> Result<(), T> {
        self.work.send(job).map_err(|refused| refused.0)
    }

    /// The next job that is done, if there is one.
    pub fn take(&self) -> Option<T> {
        self.done.try_recv().ok()
    }
}
