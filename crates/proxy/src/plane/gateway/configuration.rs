//! The configuration in force, and the requests to reload it.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::SystemTime,
};

use arc_swap::ArcSwap;
use tidegate_config::Config;
use tidegate_logging as log;
use tokio::sync::{mpsc, oneshot};

use super::{Setup, lock};

/// Answer to the request of a reload: a notice for the operator, or if it failed, the reason; both without content of files.
pub type ReloadAnswer = Result<Option<&'static str>, String>;

/// Where the answer is sent.
pub type ReloadReply = oneshot::Sender<ReloadAnswer>;

/// Notice that certificates, keys or modes of TLS cannot be used, in PgBouncer's words.
pub const OLD_TLS: &str = "TLS settings could not be applied, still using old configuration";

/// Reads the configuration again. The error has no content of files.
pub type FileReader = Box<dyn Fn() -> Result<Config, String> + Send + Sync>;

/// How the last reload ended. The start counts as a successful one.
#[derive(Clone, Copy, Debug)]
pub struct ReloadOutcome {
    /// Whether the last reload succeeded.
    pub is_success: bool,
    /// Time of the last successful reload.
    pub succeeded_at: SystemTime,
    /// Failed reloads since the start.
    pub failures: u64,
}

/// Reload requests that may wait in the queue; further requests wait for a place in it.
const RELOADS_MAX: usize = 16;

/// The configuration in force.
pub struct Configuration {
    setup: ArcSwap<Setup>,
    /// Held from reading a configuration until it is in force.
    editing: Mutex<()>,
    file: Mutex<Option<PathBuf>>,
    /// Values that `SET` has given to related keys of PgBouncer since the last reload. They may not be in force yet.
    related: Mutex<Vec<(String, String)>>,
    reloads: mpsc::Sender<ReloadReply>,
    reload_requests: Mutex<Option<mpsc::Receiver<ReloadReply>>>,
    last_reload: Mutex<ReloadOutcome>,
    reader: OnceLock<FileReader>,
    /// The log, whose level and target the configuration sets.
    pub log: Option<log::LogHandle>,
}

impl Configuration {
    pub(super) fn new(setup: Setup) -> Self {
        let (reloads, reload_requests) = mpsc::channel(RELOADS_MAX);
        Self {
            setup: ArcSwap::from_pointee(setup),
            editing: Mutex::default(),
            file: Mutex::default(),
            related: Mutex::default(),
            reloads,
            reload_requests: Mutex::new(Some(reload_requests)),
            reader: OnceLock::new(),
            last_reload: Mutex::new(ReloadOutcome { is_success: true, succeeded_at: SystemTime::now(), failures: 0 }),
            log: None,
        }
    }

    /// The configuration in force.
    #[must_use]
    pub fn setup(&self) -> Arc<Setup> {
        self.setup.load_full()
    }

    /// Puts a configuration in force for this owner and the log. The pools follow in [`Gateway::replace_setup`].
    ///
    /// [`Gateway::replace_setup`]: super::Gateway::replace_setup
    pub(super) fn store(&self, setup: Setup) {
        if let Some(log) = &self.log {
            log.set_level(setup.config.log.level);
            log.reopen(&setup.config.log);
        }
        self.setup.store(Arc::new(setup));
    }

    /// Serialises changes of the configuration. The caller holds the guard from reading the configuration until the new one is in
    /// force, so that of two concurrent changes neither undoes the other. This may take as long as reading files takes.
    pub fn edit(&self) -> MutexGuard<'_, ()> {
        lock(&self.editing)
    }

    /// The file that a reload reads; `None` if the configuration was built without a file.
    #[must_use]
    pub fn file(&self) -> Option<PathBuf> {
        lock(&self.file).clone()
    }

    /// Sets the file that the next reload reads.
    pub fn set_file(&self, file: Option<PathBuf>) {
        *lock(&self.file) = file;
    }

    /// Sets the function that reads the configuration, once.
    pub fn set_reader(&self, reader: FileReader) {
        // A second call would mean two processes in one.
        let _ = self.reader.set(reader);
    }

    /// Reads the configuration that a reload would put in force. This may take as long as reading files takes.
    #[must_use]
    pub fn read_file(&self) -> Option<Result<Config, String>> {
        self.reader.get().map(|reader| reader())
    }

    /// Records how a reload ended.
    pub fn note_reload(&self, is_success: bool) {
        let mut last = lock(&self.last_reload);
        last.is_success = is_success;
        if is_success {
            last.succeeded_at = SystemTime::now();
        } else {
            last.failures += 1;
        }
    }

    /// How the last reload ended.
    #[must_use]
    pub fn last_reload(&self) -> ReloadOutcome {
        *lock(&self.last_reload)
    }

    /// The values of related keys since the last reload.
    #[must_use]
    pub fn related(&self) -> Vec<(String, String)> {
        lock(&self.related).clone()
    }

    /// Stores the values of related keys; a reload stores none.
    pub fn set_related(&self, values: Vec<(String, String)>) {
        *lock(&self.related) = values;
    }

    /// Requests a reload, and waits for its outcome.
    ///
    /// # Errors
    /// The reason why the old configuration stays in force.
    ///
    /// # Cancel safety
    /// The reload may still happen when the future is dropped.
    pub async fn reload(&self) -> ReloadAnswer {
        let stopping = || "the gateway is stopping".to_owned();
        let (reply, outcome) = oneshot::channel();
        self.reloads.send(reply).await.map_err(|_| stopping())?;
        outcome.await.unwrap_or_else(|_| Err(stopping()))
    }

    /// The queue of reload requests. The first caller gets it.
    #[must_use]
    pub fn take_reloads(&self) -> Option<mpsc::Receiver<ReloadReply>> {
        lock(&self.reload_requests).take()
    }
}
