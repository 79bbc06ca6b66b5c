//! The cost of group commit without a journal: tasks, a buffer under a lock, and a thread that writes, syncs and wakes. A
//! lower bound for any journal whose producers are tasks of this runtime on the same cores.

use std::{
    fs::File,
    future::Future,
    io::Write,
    path::Path,
    pin::Pin,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use crate::special::{PAYLOAD, sync_seconds};

#[derive(Default)]
struct Log {
    state: Mutex<State>,
    some: Condvar,
    /// The number of durable batches.
    done: AtomicU64,
    producers: usize,
}

#[derive(Default)]
struct State {
    batch: Vec<u8>,
    wakers: Vec<Waker>,
    /// The number of batches taken.
    taken: u64,
    stop: bool,
}

struct Commit<'a> {
    log: &'a Log,
    batch: Option<u64>,
}

impl Future for Commit<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(batch) = self.batch {
            return if self.log.done.load(Ordering::Acquire) > batch { Poll::Ready(()) } else { Poll::Pending };
        }
        let mut state = self.log.state.lock().expect("no thread panics");
        state.batch.extend_from_slice(&[0; 24]);
        state.batch.extend_from_slice(&PAYLOAD);
        state.wakers.push(context.waker().clone());
        let is_due = [1, self.log.producers].contains(&state.wakers.len());
        self.batch = Some(state.taken);
        drop(state);
        if is_due {
            self.log.some.notify_one();
        }
        Poll::Pending
    }
}

/// Like [`special::durable`](crate::special::durable). Without a file, nothing is written or synced, and all producers
/// are woken together: only the wake-ups remain, in the largest batches.
pub(crate) fn durable(folder: &Path, has_file: bool, producers: usize, each: usize) -> (f64, f64, f64) {
    let before = sync_seconds(folder, producers, Duration::ZERO);
    let log = Arc::new(Log { producers, ..Log::default() });
    let (writing, mut file) = (Arc::clone(&log), File::create(folder.join("log")).expect("create the file"));
    let writer = thread::spawn(move || {
        let (mut batch, mut wakers) = (Vec::new(), Vec::new());
        loop {
            let state = writing.state.lock().expect("no thread panics");
            let least = if has_file { 1 } else { producers };
            let waits = |state: &mut State| state.wakers.len() < least && !state.stop;
            let mut state = writing.some.wait_while(state, waits).expect("no thread panics");
            if state.wakers.is_empty() {
                return state.taken;
            }
            std::mem::swap(&mut state.batch, &mut batch);
            std::mem::swap(&mut state.wakers, &mut wakers);
            state.taken += 1;
            let taken = state.taken;
            drop(state);
            if has_file {
                file.write_all(&batch).and_then(|()| file.sync_data()).expect("write and sync the file");
            }
            batch.clear();
            writing.done.store(taken, Ordering::Release);
            wakers.drain(..).for_each(Waker::wake);
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("a runtime");
    let begun = Instant::now();
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..producers {
            let log = Arc::clone(&log);
            tasks.push(tokio::spawn(async move {
                for _ in 0..each {
                    Commit { log: &log, batch: None }.await;
                }
            }));
        }
        for task in tasks {
            task.await.expect("no task panics");
        }
    });
    let rate = (producers * each) as f64 / begun.elapsed().as_secs_f64();
    log.state.lock().expect("no thread panics").stop = true;
    log.some.notify_one();
    let batches = writer.join().expect("no thread panics");
    let sync = f64::midpoint(before, sync_seconds(folder, producers, Duration::ZERO));
    (rate, sync, (producers * each) as f64 / batches as f64)
}
