//! The first login of a pool. Until a server of the pool has reported its parameters, one login asks a server, and the logins
//! that arrive meanwhile wait for its end.
//!
//! PgBouncer does the same with `welcome_msg_ready` (`finish_client_login` in `src/client.c`): clients that log in at the same
//! moment share one new server connection, and its error if it cannot be opened.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::watch;

use super::SharedPool;

/// The first logins of one pool.
#[derive(Debug, Default)]
pub(super) struct FirstLogins {
    state: watch::Sender<FirstLoginState>,
    /// Number of logins that wait for another one.
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct FirstLoginState {
    is_running: bool,
    /// Error message for the clients that waited for the last login, if it failed for a reason that applies to all.
    error: Option<Arc<[u8]>>,
}

/// The login that asks a server for all. Its drop lets the others continue.
#[must_use = "dropped, the next login asks a server"]
pub struct FirstLogin {
    pool: Arc<SharedPool>,
    error: Option<Arc<[u8]>>,
}

impl FirstLogin {
    /// The login failed. The logins that wait for it fail with the same error message.
    pub fn fail(mut self, message: &[u8]) {
        self.error = Some(message.into());
    }
}

impl Drop for FirstLogin {
    fn drop(&mut self) {
        let error = self.error.take();
        self.pool.first_logins.state.send_replace(FirstLoginState { is_running: false, error });
    }
}

/// A login that waits for another one. Counts as a waiting client until it is dropped.
#[must_use = "dropped, the login no longer waits"]
pub struct FirstLoginWait {
    pool: Arc<SharedPool>,
    changes: watch::Receiver<FirstLoginState>,
}

impl FirstLoginWait {
    /// Waits until the other login has ended. Returns its error message, if it applies to all clients of the pool.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait.
    pub async fn ended(mut self) -> Option<Arc<[u8]>> {
        // The sender lives as long as the pool.
        let _ = self.changes.changed().await;
        self.changes.borrow().error.clone()
    }
}

impl Drop for FirstLoginWait {
    fn drop(&mut self) {
        self.pool.first_logins.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SharedPool {
    /// Begins the first login of the pool.
    ///
    /// # Errors
    /// The wait for the login that is in progress.
    pub fn begin_first_login(self: &Arc<Self>) -> Result<FirstLogin, FirstLoginWait> {
        // Subscribe before the check, so that no later end is missed.
        let changes = self.first_logins.state.subscribe();
        let mut is_first = false;
        self.first_logins.state.send_if_modified(|state| {
            is_first = !state.is_running;
            if is_first {
                *state = FirstLoginState { is_running: true, error: None };
            }
            // Waiting logins are woken by the end alone.
            false
        });
        if is_first {
            return Ok(FirstLogin { pool: self.clone(), error: None });
        }
        self.first_logins.waiting.fetch_add(1, Ordering::Relaxed);
        Err(FirstLoginWait { pool: self.clone(), changes })
    }

    /// Number of clients that wait for the first login of the pool, which is itself one of the pool's waiting clients.
    #[must_use]
    pub fn waiting_logins(&self) -> usize {
        self.first_logins.waiting.load(Ordering::Relaxed)
    }
}
