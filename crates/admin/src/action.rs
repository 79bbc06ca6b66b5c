//! Commands that change the gateway.

mod stream;

use std::{fmt, rc::Rc, sync::Arc, time::Duration};

use tidegate_wire::sqlstate;

use super::error::ConsoleError;
use tidegate_config as config;
use tidegate_config::{
    AdminConfig, ChangeError, Dialect, ValueClass,
    pgbouncer::{self, CONFIG_FILE, RelatedError, alias},
};
use tidegate_proxy::plane::{
    ClientInfo, Configuration, Gateway, Lifecycle, OLD_TLS, Phase, Pools, Setup, SetupError, SharedPool, Signal,
    Worker, Workers,
};

use crate::context::AdminContext;

pub(super) use stream::StreamAction;

/// A change requested by an operator. Without the name of a database it applies to all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AdminAction {
    Pause(Option<String>),
    Resume(Option<String>),
    Reconnect(Option<String>),
    WaitClose(Option<String>),
    Kill(Option<String>),
    KillClient(u64),
    Disable(String),
    Enable(String),
    Reload,
    /// Setting and value.
    Set(String, String),
    /// A command for streams.
    Stream(StreamAction),
    Suspend,
    /// Stops the gateway after the wait that the phase describes.
    Shutdown(Phase),
}

/// The command in the syntax of the console, without secrets.
impl fmt::Display for AdminAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(key, value) => write!(f, "SET {key} = '{}'", config::loggable(value_class(key), value)),
            Self::KillClient(id) => write!(f, "KILL_CLIENT {id}"),
            Self::Stream(action) => action.fmt(f),
            Self::Shutdown(Phase::WaitingForClients) => f.write_str("SHUTDOWN WAIT_FOR_CLIENTS"),
            Self::Shutdown(Phase::WaitingForTransactions) => f.write_str("SHUTDOWN WAIT_FOR_SERVERS"),
            _ => match self.database() {
                Some(database) => write!(f, "{} {database}", self.tag()),
                None => f.write_str(self.tag()),
            },
        }
    }
}

/// Interval at which waiting commands check their condition; the pool does not notify them.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

impl AdminAction {
    /// The tag of CommandComplete.
    pub(super) const fn tag(&self) -> &'static str {
        match self {
            Self::Pause(_) => "PAUSE",
            Self::Resume(_) => "RESUME",
            Self::Reconnect(_) => "RECONNECT",
            Self::WaitClose(_) => "WAIT_CLOSE",
            Self::Kill(_) => "KILL",
            Self::KillClient(_) => "KILL_CLIENT",
            Self::Disable(_) => "DISABLE",
            Self::Enable(_) => "ENABLE",
            Self::Reload => "RELOAD",
            Self::Set(..) => "SET",
            Self::Stream(_) => "STREAM",
            Self::Suspend => "SUSPEND",
            Self::Shutdown(_) => "SHUTDOWN",
        }
    }

    /// A notice if the command has no effect, with the reason.
    pub(super) fn notice(&self) -> Option<String> {
        let Self::Set(key, _) = self else { return None };
        alias::without_effect(key).map(|reason| format!("{key} has no effect: {reason}"))
    }

    /// Undoes a pause of all databases after the client has cancelled it, as PgBouncer's operators expect of Ctrl-C. Returns
    /// whether anything was undone.
    pub(super) fn undo_on_cancel(&self, gateway: &Gateway) -> bool {
        let holds_all = matches!(self, Self::Pause(None) | Self::Suspend);
        let is_pgbouncer = gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer;
        holds_all && is_pgbouncer && gateway.lift()
    }

    /// Undoes a SUSPEND when its console session ends, like PgBouncer.
    pub(super) fn undo_on_disconnect(&self, gateway: &Gateway) {
        let is_pgbouncer = gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer;
        if *self == Self::Suspend && is_pgbouncer && gateway.lifecycle.phase() == Phase::Suspended {
            tracing::info!("admin disappeared when suspended, doing RESUME");
            gateway.lift();
        }
    }

    /// The database to which the command applies, if it names one.
    fn database(&self) -> Option<&str> {
        match self {
            Self::Pause(database)
            | Self::Resume(database)
            | Self::Reconnect(database)
            | Self::WaitClose(database)
            | Self::Kill(database) => database.as_deref(),
            Self::Disable(database) | Self::Enable(database) => Some(database),
            _ => None,
        }
    }

    /// Logs the command; commands of PgBouncer in its wording if the dialect is `pgbouncer`.
    fn log(&self, dialect: Dialect, user: &str) {
        let is_own = matches!(self, Self::Set(..) | Self::KillClient(_) | Self::Stream(_));
        if is_own || dialect != Dialect::Pgbouncer {
            return tracing::info!(user, command = %self, "console command");
        }
        match self.database() {
            Some(name) => tracing::info!(user, "{} '{name}' command issued", self.tag()),
            None => tracing::info!(user, "{} command issued", self.tag()),
        }
    }

    /// Executes the command on this thread. Returns a notice for the operator.
    ///
    /// # Errors
    /// Why the command cannot be executed or was not completed.
    ///
    /// # Cancel safety
    /// Dropping the future undoes nothing: a pause stays, unless [`AdminAction::undo_on_cancel`] is called.
    pub(super) async fn execute(
        self,
        context: Arc<AdminContext>,
        worker: Rc<Worker>,
        user: String,
    ) -> Result<Option<&'static str>, ConsoleError> {
        let AdminContext { gateway, workers, .. } = &*context;
        self.log(gateway.config.setup().config.listen.dialect, &user);
        let pools_of = |database: Option<&str>| pools_of(&gateway.pools, &gateway.config, database);
        let executed = match &self {
            Self::Reload => return gateway.config.reload().await.map_err(|reason| bad_configuration(&reason)),
            Self::Set(key, value) => return set(&context, key, value).await,
            Self::Pause(database) => pause(&worker, database.as_deref()).await,
            Self::Resume(database) => resume(gateway, database.as_deref()),
            Self::Reconnect(database) => {
                gateway.reconnect(&pools_of(database.as_deref())?);
                Ok(())
            }
            Self::WaitClose(database) => wait_close(&worker, database.as_deref()).await,
            Self::Kill(database) => kill(gateway, workers, database.as_deref()).await,
            Self::KillClient(id) => kill_client(workers, *id).await,
            Self::Disable(database) => pools_of(Some(database)).map(|_| gateway.lifecycle.disable(database)),
            Self::Enable(database) => pools_of(Some(database)).map(|_| gateway.lifecycle.enable(database)),
            Self::Stream(action) => action.execute(context.streams(), &worker).await,
            Self::Suspend => suspend(&worker).await,
            Self::Shutdown(phase) => shut_down(gateway, *phase),
        };
        executed.map(|()| None)
    }
}

/// The kind of values of a setting, by our name or by PgBouncer's.
fn value_class(key: &str) -> Option<ValueClass> {
    alias::value_class(key).or_else(|| config::value_class(key))
}

/// Changes one setting, by our name or by PgBouncer's, until the next reload. Returns a notice for the operator.
async fn set(context: &AdminContext, key: &str, value: &str) -> Result<Option<&'static str>, ConsoleError> {
    let gateway = &context.gateway;
    if key.eq_ignore_ascii_case(CONFIG_FILE) {
        return set_config_file(&gateway.config, value).map(|()| None);
    }
    if alias::without_effect(key).is_some() {
        return Ok(None);
    }
    let (owner, key, value) = (gateway.clone(), key.to_owned(), value.to_owned());
    // Certificates are read again, on a thread that may block.
    let changed =
        gateway.pools.connector.resolver.offload("the files of a setting", move || change(&owner, &key, &value)).await;
    let notice = changed.ok_or_else(|| not_ready("the gateway is stopping"))??;
    context.workers.visit_all(|worker| worker.refresh_plans());
    if let Some(streams) = context.streams() {
        streams.set_limits(&gateway.config.setup().config.streams);
    }
    Ok(notice)
}

/// Sets the file for the next reload.
fn set_config_file(config: &Configuration, value: &str) -> Result<(), ConsoleError> {
    let wrong = |reason: String| ConsoleError::new(sqlstate::INVALID_PARAMETER_VALUE, reason);
    if !config.setup().config.admin.set_files {
        return Err(rejected_change(&ChangeError::NamesFile(CONFIG_FILE.to_owned())));
    }
    if config.file().is_none() {
        return Err(wrong("the configuration did not come from a file".to_owned()));
    }
    let file = std::path::absolute(value).map_err(|error| wrong(format!("{CONFIG_FILE}: {error}")))?;
    config.set_file(Some(file));
    Ok(())
}

/// Applies the configuration with one setting changed. Returns a notice if the value is stored and not in force yet.
fn change(gateway: &Arc<Gateway>, key: &str, value: &str) -> Result<Option<&'static str>, ConsoleError> {
    let _alone = gateway.config.edit();
    let setup = gateway.config.setup();
    let mut values = gateway.config.related();
    let name = key.to_ascii_lowercase();
    values.retain(|(known, _)| *known != name);
    values.push((name, value.to_owned()));
    let related = pgbouncer::with_related(&setup.config, &values);
    let is_related = related.is_some();
    let changed = related.unwrap_or_else(|| {
        let changed = alias::with_setting(&setup.config, key, value);
        changed.unwrap_or_else(|| setup.config.with_setting(key, value)).map_err(RelatedError::Refused)
    });
    let not_yet = match changed {
        Ok(config) => match Setup::new(config) {
            Ok(setup) => {
                gateway.replace_setup(setup);
                None
            }
            Err(SetupError::Tls(error)) if is_related => Some(error.to_string()),
            Err(error) => {
                tracing::warn!(%error, setting = key, "SET has no effect: a file of the configuration cannot be used");
                return Err(ConsoleError::new(sqlstate::INVALID_PARAMETER_VALUE, error.outline())
                    .hint("See the log of the gateway."));
            }
        },
        Err(RelatedError::Incomplete(reason)) => Some(reason),
        Err(RelatedError::Refused(error)) => return Err(rejected_change(&error)),
    };
    if is_related {
        gateway.config.set_related(values);
    }
    Ok(not_yet.map(|reason| {
        tracing::warn!(setting = key, reason, "{OLD_TLS}");
        OLD_TLS
    }))
}

/// The error of a rejected `SET`.
fn rejected_change(error: &ChangeError) -> ConsoleError {
    match error {
        ChangeError::NamesFile(_) => ConsoleError::new(sqlstate::INSUFFICIENT_PRIVILEGE, error.to_string())
            .hint("Change it in the file and RELOAD, or set set_files = true in [admin] and restart."),
        _ => ConsoleError::new(sqlstate::INVALID_PARAMETER_VALUE, error.to_string()),
    }
}

/// Stops all traffic, within transactions too: pending data is sent, and nothing more is read. Clients that do not receive their
/// data within `timeouts.suspend` are disconnected.
async fn suspend(worker: &Worker) -> Result<(), ConsoleError> {
    let gateway = &worker.gateway;
    reject_if_stopping(&gateway.lifecycle)?;
    gateway.suspend();
    let limit = gateway.config.setup().config.timeouts.suspend;
    let since = worker.reactor.now();
    loop {
        reject_if_stopping(&gateway.lifecycle)?;
        if gateway.lifecycle.phase() != Phase::Suspended {
            return Err(not_ready("resumed before all connections were suspended"));
        }
        if all_are_suspended(&gateway.pools, &worker.workers).await {
            return Ok(());
        }
        if !limit.is_zero() && worker.reactor.now() - since >= limit {
            tracing::info!("suspend_timeout");
            let disconnect = |worker: &Rc<Worker>| {
                worker.held_and_others().1.iter().for_each(|client_info| client_info.signal(Signal::SuspendTimeout));
            };
            worker.workers.ask_all(disconnect).await;
        }
        worker.reactor.sleep(POLL_INTERVAL).await;
    }
}

/// Whether all servers in use belong to suspended clients.
async fn all_are_suspended(pools: &Pools, workers: &Workers) -> bool {
    let suspended = workers.ask_all(|worker| worker.held_and_others().0.len());
    let suspended: usize = suspended.await.iter().sum();
    let in_use = |shared: &Arc<SharedPool>| {
        let counts = shared.pool.counts();
        counts.active + counts.cleaning + shared.replicating()
    };
    pools.all().iter().map(in_use).sum::<usize>() <= suspended
}

/// Returns the pools of an existing database, or all.
fn pools_of(
    pools: &Pools,
    config: &Configuration,
    database: Option<&str>,
) -> Result<Vec<Arc<SharedPool>>, ConsoleError> {
    let mut pools = pools.all();
    let Some(name) = database else { return Ok(pools) };
    if AdminConfig::CONSOLE_DATABASES.contains(&name) {
        return Err(not_ready(format!("\"{name}\" is the console and has no servers")));
    }
    pools.retain(|shared| *shared.key.database == *name);
    if pools.is_empty() && config.setup().config.database(name).is_none() {
        let error = ConsoleError::new(sqlstate::INVALID_CATALOG_NAME, format!("database \"{name}\" does not exist"));
        return Err(error.hint("SHOW DATABASES lists all databases."));
    }
    Ok(pools)
}

fn not_ready(message: impl Into<String>) -> ConsoleError {
    ConsoleError::new(sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
}

/// Rejects a pause while the gateway stops.
fn reject_if_stopping(lifecycle: &Lifecycle) -> Result<(), ConsoleError> {
    match lifecycle.phase() {
        Phase::Active | Phase::Paused | Phase::Suspended => Ok(()),
        _ => Err(not_ready("the gateway is shutting down")),
    }
}

/// Rejects a pause of one database while all are suspended, also by another console during the pause: the pause would
/// wait for transactions that are not read.
fn reject_if_suspended(lifecycle: &Lifecycle, database: Option<&str>) -> Result<(), ConsoleError> {
    if database.is_some() && lifecycle.phase() == Phase::Suspended {
        return Err(not_ready("all databases are suspended").hint("RESUME ends that."));
    }
    Ok(())
}

async fn pause(worker: &Worker, database: Option<&str>) -> Result<(), ConsoleError> {
    let gateway = &worker.gateway;
    pools_of(&gateway.pools, &gateway.config, database)?;
    reject_if_stopping(&gateway.lifecycle)?;
    reject_if_suspended(&gateway.lifecycle, database)?;
    gateway.pause(database);
    loop {
        let pools = pools_of(&gateway.pools, &gateway.config, database)?;
        reject_if_suspended(&gateway.lifecycle, database)?;
        let all_paused = || gateway.lifecycle.holds_all() && gateway.lifecycle.phase() != Phase::Suspended;
        if !database.map_or_else(all_paused, |name| gateway.lifecycle.is_paused(name)) {
            return Err(not_ready("resumed before all servers were released"));
        }
        // Check every pool, because each may have a server to close.
        let released = pools.iter().map(|shared| is_released(shared)).filter(|released| *released).count();
        if released == pools.len() {
            return Ok(());
        }
        worker.reactor.sleep(POLL_INTERVAL).await;
    }
}

/// Whether a paused pool has no server in use, and all its servers are closed.
fn is_released(shared: &SharedPool) -> bool {
    let counts = shared.pool.counts();
    let quiet = shared.pool.is_quiescent();
    if quiet && counts.idle > 0 {
        // The server was connecting when the pool was paused.
        shared.close_for_pause();
    }
    quiet && shared.open() == 0
}

fn resume(gateway: &Gateway, database: Option<&str>) -> Result<(), ConsoleError> {
    pools_of(&gateway.pools, &gateway.config, database)?;
    let is_pgbouncer = gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer;
    if gateway.lifecycle.is_draining() || is_pgbouncer && !gateway.lifecycle.phase().goes_on() {
        return Err(not_ready("pooler is shutting down"));
    }
    if database.is_some() && gateway.lifecycle.holds_all() {
        return Err(not_ready("all databases are paused").hint("RESUME without a name ends that."));
    }
    gateway.resume(database);
    Ok(())
}

async fn wait_close(worker: &Worker, database: Option<&str>) -> Result<(), ConsoleError> {
    let gateway = &worker.gateway;
    pools_of(&gateway.pools, &gateway.config, database)?;
    let is_outdated = |server: &tidegate_proxy::plane::ServerEntry| {
        server.outdated && database.is_none_or(|name| *server.key.database == *name)
    };
    while gateway.pools.servers().iter().any(is_outdated) {
        worker.reactor.sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Disconnects all clients and pauses, so that reconnecting clients wait.
async fn kill(gateway: &Gateway, workers: &Workers, database: Option<&str>) -> Result<(), ConsoleError> {
    pools_of(&gateway.pools, &gateway.config, database)?;
    reject_if_stopping(&gateway.lifecycle)?;
    gateway.pause(database);
    let name: Option<Arc<str>> = database.map(Into::into);
    disconnect(workers, move |client_info| match &name {
        Some(name) => client_info.database == *name,
        None => !AdminConfig::CONSOLE_DATABASES.contains(&&*client_info.database),
    })
    .await;
    Ok(())
}

async fn kill_client(workers: &Workers, id: u64) -> Result<(), ConsoleError> {
    if disconnect(workers, move |client_info| client_info.id == id).await == 0 {
        let error = ConsoleError::new(sqlstate::UNDEFINED_OBJECT, format!("client not found: {id}"));
        return Err(error.hint("SHOW CLIENTS lists the ids in the column id."));
    }
    Ok(())
}

/// Disconnects the clients that match. Returns their number.
async fn disconnect(workers: &Workers, matches: impl Fn(&ClientInfo) -> bool + Clone + Send + 'static) -> usize {
    let counts = workers.ask_all(move |worker| {
        let mut client_infos = worker.registry.client_infos();
        client_infos.retain(|client_info| matches(client_info));
        client_infos.iter().for_each(|client_info| client_info.signal(Signal::Kill));
        client_infos.len()
    });
    counts.await.iter().sum()
}

/// `outline` contains nothing from the files, because console users may not be permitted to read them.
fn bad_configuration(outline: &str) -> ConsoleError {
    ConsoleError::new(sqlstate::CONFIG_FILE_ERROR, format!("the configuration was not reloaded: {}", outline.trim()))
        .hint("The previous configuration stays in force. See the log and `tidegate check`.")
}

fn shut_down(gateway: &Gateway, target: Phase) -> Result<(), ConsoleError> {
    let urgency = |phase: Phase| match phase {
        Phase::Active | Phase::Paused | Phase::Suspended => 0,
        Phase::WaitingForClients => 1,
        Phase::WaitingForTransactions => 2,
        Phase::Stopping => 3,
    };
    let now = gateway.change_phase(|phase| if urgency(phase) > urgency(target) { phase } else { target });
    if now != target {
        return Err(not_ready("the gateway is already shutting down faster"));
    }
    Ok(())
}
