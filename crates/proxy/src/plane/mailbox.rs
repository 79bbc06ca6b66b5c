//! Messages to the threads of the data plane.

use std::{
    collections::VecDeque,
    rc::Rc,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use tidegate_link::{AcceptedSocket, ReactorWaker};

use super::{lock, pool_key::PoolKey};

/// A function to run on another thread, between two of its tasks. `W` is what the thread owns.
type Visit<W> = Box<dyn FnOnce(&Rc<W>) + Send>;

/// A message to another thread.
pub(super) enum Mail<W> {
    Client(AcceptedSocket),
    Pool(PoolKey),
    Visit(Visit<W>),
}

/// The queue of messages to a thread.
pub struct Mailbox<W> {
    /// `None` once the thread has ended.
    queue: Mutex<Option<VecDeque<Mail<W>>>>,
    any: AtomicBool,
    remote: ReactorWaker,
}

impl<W: 'static> Mailbox<W> {
    /// The queue of the thread that `remote` wakes.
    #[must_use]
    pub fn new(remote: ReactorWaker) -> Self {
        Self { queue: Mutex::new(Some(VecDeque::new())), any: AtomicBool::new(false), remote }
    }

    fn post(&self, mail: Mail<W>) {
        // Bounded by its contents: accepted sockets, pools, and requests of the control plane.
        match &mut *lock(&self.queue) {
            Some(queue) => queue.push_back(mail),
            None => return,
        }
        if !self.any.swap(true, Ordering::AcqRel) {
            self.remote.wake();
        }
    }

    /// Hands an accepted client to the thread.
    pub fn client(&self, accepted: AcceptedSocket) {
        self.post(Mail::Client(accepted));
    }

    /// Makes the thread process the messages of a pool.
    pub fn pool_mail(&self, key: PoolKey) {
        self.post(Mail::Pool(key));
    }

    /// Runs a function on the thread, between two tasks. It must not block.
    pub fn visit(&self, call: impl FnOnce(&Rc<W>) + Send + 'static) {
        self.post(Mail::Visit(Box::new(call)));
    }

    /// Runs a function on the thread and returns its result; `None` if the thread has ended. The message is queued before
    /// the first poll.
    pub fn ask<T, Q>(&self, question: Q) -> impl Future<Output = Option<T>> + use<T, Q, W>
    where
        T: Send + 'static,
        Q: FnOnce(&Rc<W>) -> T + Send + 'static,
    {
        let (send, receive) = tokio::sync::oneshot::channel();
        self.visit(move |worker| {
            let _ = send.send(question(worker));
        });
        async { receive.await.ok() }
    }

    /// Whether messages have arrived since the last call.
    #[inline]
    pub(super) fn has_new(&self) -> bool {
        self.any.swap(false, Ordering::AcqRel)
    }

    /// Takes all messages.
    pub(super) fn take(&self) -> VecDeque<Mail<W>> {
        lock(&self.queue).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops all messages, and accepts no further ones.
    pub(super) fn close(&self) {
        let unread = lock(&self.queue).take();
        // Outside of the lock: destructors may wake any task.
        drop(unread);
    }
}

/// The mailboxes of all threads of a gateway.
pub struct Mailboxes<W> {
    count: usize,
    mailboxes: OnceLock<Vec<Arc<Mailbox<W>>>>,
}

impl<W: 'static> Mailboxes<W> {
    /// Mailboxes for `count` threads that are to be started.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { count, mailboxes: OnceLock::new() }
    }

    /// Sets the mailboxes, once.
    ///
    /// # Panics
    /// On a second call, which would mean two sets of threads.
    pub fn set(&self, mailboxes: Vec<Arc<Mailbox<W>>>) {
        debug_assert_eq!(mailboxes.len(), self.count, "one mailbox per thread");
        assert!(self.mailboxes.set(mailboxes).is_ok(), "the mailboxes of a gateway are set once");
    }

    /// Number of threads, also before they are started.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The mailboxes by number of the thread; none before the threads are started.
    #[must_use]
    pub fn all(&self) -> &[Arc<Mailbox<W>>] {
        self.mailboxes.get().map_or(&[], Vec::as_slice)
    }

    /// Runs a function on every thread between two of its tasks. It must not block.
    pub fn visit_all(&self, call: impl FnOnce(&Rc<W>) + Clone + Send + 'static) {
        self.all().iter().for_each(|mailbox| mailbox.visit(call.clone()));
    }

    /// Runs a function on every thread between two of its tasks, and returns the results. Threads that have ended are left out.
    ///
    /// # Cancel safety
    /// Safe: results are dropped.
    pub async fn ask_all<T: Send + 'static>(&self, question: impl Fn(&Rc<W>) -> T + Clone + Send + 'static) -> Vec<T> {
        let asked: Vec<_> = self.all().iter().map(|mailbox| mailbox.ask(question.clone())).collect();
        let mut answers = Vec::with_capacity(asked.len());
        for answer in asked {
            answers.extend(answer.await);
        }
        answers
    }
}
