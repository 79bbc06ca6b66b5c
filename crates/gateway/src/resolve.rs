//! Work that a data-plane thread must not wait for: name look-ups and key derivations, done on the control plane.

use std::net::SocketAddr;

use tokio::runtime::Handle;

/// Hands work to the control plane, and brings the result back.
#[derive(Clone, Debug)]
pub struct Resolver {
    control: Handle,
}

impl Resolver {
    /// Works on this tokio runtime.
    #[must_use]
    pub const fn new(control: Handle) -> Self {
        Self { control }
    }

    /// Runs a task of the control plane, which somebody supervises.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.control.spawn(task);
    }

    /// The addresses of a name.
    ///
    /// # Errors
    /// What the system's resolver says.
    ///
    /// # Cancel safety
    /// Safe: the look-up ends by itself, its result is dropped.
    pub async fn resolve(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
        let name = name.to_owned();
        let found = self.offload(move || {
            use std::net::ToSocketAddrs;
            (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>)
        });
        match found.await {
            Some(Ok(addresses)) if addresses.is_empty() => Err("it has no address".into()),
            Some(found) => found.map_err(|error| error.to_string()),
            None => Err("the gateway is stopping".into()),
        }
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
