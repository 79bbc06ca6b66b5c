//! Work that a data-plane thread must not wait for: name look-ups and key derivations, done on the control plane.

mod names;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::runtime::Handle;

use names::{Found, Names};

pub use names::{ChangedName, KnownName};

/// Hands work to the control plane, and brings the result back.
#[derive(Clone, Debug)]
pub struct Resolver {
    control: Handle,
    names: Arc<Mutex<Names>>,
}

impl Resolver {
    /// Works on this tokio runtime.
    #[must_use]
    pub fn new(control: Handle) -> Self {
        Self { control, names: Arc::default() }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        // Whoever panicked here has changed nothing by halves.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long look-ups hold, and those that found nothing; zero for not at all.
    pub fn set_ttl(&self, ttl: Duration, failure_ttl: Duration) {
        self.names().set_ttl(ttl, failure_ttl);
    }

    /// Runs a task of the control plane, which somebody supervises.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.control.spawn(task);
    }

    /// The addresses of a name, as they were found a while ago if that holds still.
    ///
    /// # Errors
    /// What the system's resolver says.
    ///
    /// # Cancel safety
    /// Safe: the look-up ends by itself, its result is dropped.
    pub async fn resolve(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let known = self.names().get(name, Instant::now());
        let found = match known {
            Some(found) => found,
            None => self.look_up(name).await,
        };
        let mut addresses = found?;
        addresses.iter_mut().for_each(|address| address.set_port(port));
        Ok(addresses)
    }

    async fn look_up(&self, name: &str) -> Found {
        let asked = name.to_owned();
        let found = self.offload(move || {
            use std::net::ToSocketAddrs;
            (asked.as_str(), 0).to_socket_addrs().map(Iterator::collect::<Vec<_>>)
        });
        let found = match found.await {
            Some(Ok(addresses)) if addresses.is_empty() => Err("it has no address".into()),
            Some(found) => found.map_err(|error| error.to_string()),
            None => return Err("the gateway is stopping".into()),
        };
        self.names().learn(name, &found, Instant::now());
        found
    }

    /// Looks up again what was looked up before.
    ///
    /// # Cancel safety
    /// Safe: the others are looked up when they are needed.
    pub async fn refresh(&self) {
        for known in self.known_names() {
            // What is wrong with it is told to whoever needs it.
            drop(self.look_up(&known.name).await);
        }
    }

    /// The names that are kept, in order.
    #[must_use]
    pub fn known_names(&self) -> Vec<KnownName> {
        self.names().known(Instant::now())
    }

    /// The names that were found to mean other addresses since this was asked last.
    #[must_use]
    pub fn take_changed_names(&self) -> Vec<ChangedName> {
        self.names().take_changed()
    }

    /// Runs `work` on a thread that may block. `None` if the process is stopping, or if `work` panicked.
    ///
    /// # Cancel safety
    /// Safe: the work ends by itself, its result is dropped.
    pub async fn offload<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (send, receive) = tokio::sync::oneshot::channel();
        self.control.spawn_blocking(move || {
            // The asker may have gone.
            let _ = send.send(work());
        });
        receive.await.ok()
    }
}
