//! State of sessions that move between a process, its predecessor and its successor.

use std::{
    convert::Infallible,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use tokio::sync::{mpsc, watch};

use crate::{Departures, ForwardedCancel};

/// Numbers of threads in process ids of clients. A process that takes over numbers its threads behind those of its predecessor,
/// so that the ids of moved clients stay unique.
pub const THREAD_NUMBERS: usize = 511;

/// Sessions that move between processes.
#[derive(Debug, Default)]
pub struct SessionMoves {
    /// Number of the first thread in process ids of clients.
    first_thread: AtomicUsize,
    /// Queue to the process that replaces this one.
    departures: OnceLock<Departures>,
    /// Queue of cancel requests to the process that this one replaces.
    predecessor: Mutex<Option<mpsc::Sender<ForwardedCancel>>>,
    has_predecessor: AtomicBool,
    departed: AtomicU64,
    refused: AtomicU64,
    arrived: AtomicU64,
    /// The streams of this process have ended.
    pub streams_ended: watch::Sender<bool>,
    /// The streams of the previous process have ended, or there is no such process.
    pub streams_may_start: watch::Sender<bool>,
}

impl SessionMoves {
    /// Number of a thread in process ids of clients.
    #[must_use]
    pub fn thread_number(&self, index: usize) -> usize {
        (self.first_thread.load(Ordering::Relaxed) + index) % THREAD_NUMBERS
    }

    /// Sets the number of the first thread, before clients are accepted.
    pub fn set_first_thread(&self, number: usize) {
        self.first_thread.store(number % THREAD_NUMBERS, Ordering::Relaxed);
    }

    /// Index of the thread with this number, if this process has `threads` threads.
    #[must_use]
    pub fn index_of(&self, number: usize, threads: usize) -> Option<usize> {
        let index = (number + THREAD_NUMBERS - self.thread_number(0)) % THREAD_NUMBERS;
        (index < threads).then_some(index)
    }

    /// Where sessions leave; `None` before a hand-over.
    #[must_use]
    pub fn departures(&self) -> Option<&Departures> {
        self.departures.get()
    }

    /// Opens the way to the next process. Returns false if it was open before.
    pub fn open_departures(&self, departures: Departures) -> bool {
        self.departures.set(departures).is_ok()
    }

    /// Begins to adopt the sessions of the previous process.
    pub fn begin_arrivals(&self) {
        self.has_predecessor.store(true, Ordering::SeqCst);
    }

    /// Sessions of the previous process no longer arrive: it has ended, or they stay there. Its streams have ended too, or
    /// their end is not known.
    pub fn end_arrivals(&self) {
        self.set_predecessor(None);
        self.has_predecessor.store(false, Ordering::SeqCst);
        self.streams_may_start.send_replace(true);
    }

    /// Sets or removes the way for cancel requests to the previous process.
    pub fn set_predecessor(&self, cancels: Option<mpsc::Sender<ForwardedCancel>>) {
        *self.predecessor.lock().unwrap_or_else(PoisonError::into_inner) = cancels;
    }

    /// Whether the previous process still has sessions that may arrive.
    #[must_use]
    pub fn is_arriving(&self) -> bool {
        self.has_predecessor.load(Ordering::SeqCst)
    }

    /// Forwards a cancel request to the previous process, which may have the client still.
    pub async fn forward_cancel(&self, pid: u32, key: &[u8], asker: mpsc::Sender<Infallible>) {
        let predecessor = self.predecessor.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(predecessor) = predecessor {
            // The process may have ended meanwhile.
            let _ = predecessor.send(ForwardedCancel { pid, key: key.to_vec(), asker }).await;
        }
    }

    /// Counts a session that has moved to the next process.
    pub fn count_departure(&self) {
        self.departed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a session that the next process has refused.
    pub fn count_refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a session that has moved to this process.
    pub fn count_arrival(&self) {
        self.arrived.fetch_add(1, Ordering::Relaxed);
    }

    /// Sessions that have moved to the next process.
    #[must_use]
    pub fn departed(&self) -> u64 {
        self.departed.load(Ordering::Relaxed)
    }

    /// Sessions that the next process has refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Sessions that have moved to this process.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_successive_processes_have_own_numbers() {
        let moves = SessionMoves::default();
        moves.set_first_thread(THREAD_NUMBERS - 1);
        let numbers: Vec<usize> = (0..3).map(|index| moves.thread_number(index)).collect();
        assert_eq!(numbers, [THREAD_NUMBERS - 1, 0, 1]);
        for (index, number) in numbers.into_iter().enumerate() {
            assert_eq!(moves.index_of(number, 3), Some(index));
        }
        assert_eq!(moves.index_of(2, 3), None);
        assert_eq!(moves.index_of(THREAD_NUMBERS - 2, 3), None);
    }
}
