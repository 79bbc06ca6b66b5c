//! Commands that change what the gateway does.

mod stream;

use std::{fmt, rc::Rc, sync::Arc, time::Duration};

use tidegate_wire::sqlstate;

use super::fault::Fault;
use tidegate_config as config;
use tidegate_config::{
    Admin, ChangeError, Dialect, Holds,
    pgbouncer::{CONFIG_FILE, alias},
};
use tidegate_proxy::plane::{ClientInfo, Gateway, Phase, Setup, SharedPool, Signal, Worker};

pub(super) use stream::StreamOrder;

/// A change that an operator wants. Without the name of a database it is for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Pause(Option<String>),
    Resume(Option<String>),
    Reconnect(Option<String>),
    WaitClose(Option<String>),
    Kill(Option<String>),
    KillClient(u64),
    Disable(String),
    Enable(String),
    Reload,
    /// A setting and its value.
    Set(String, String),
    /// What is to become of streams.
    Stream(StreamOrder),
    Suspend,
    /// The gateway ends, after what the phase waits for.
    Shutdown(Phase),
}

/// As an operator would write it, without secrets.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(key, value) => write!(f, "SET {key} = '{}'", config::loggable(holds(key), value)),
            Self::KillClient(id) => write!(f, "KILL_CLIENT {id}"),
            Self::Stream(order) => order.fmt(f),
            Self::Shutdown(Phase::WaitingForClients) => f.write_str("SHUTDOWN WAIT_FOR_CLIENTS"),
            Self::Shutdown(Phase::WaitingForTransactions) => f.write_str("SHUTDOWN WAIT_FOR_SERVERS"),
            _ => match self.database() {
                Some(database) => write!(f, "{} {database}", self.tag()),
                None => f.write_str(self.tag()),
            },
        }
    }
}

/// How often a command that waits looks whether it is over. The pool tells nobody, and operators are patient.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Order {
    /// The tag of its CommandComplete.
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

    /// What is to be said besides: that it changes nothing, and why.
    pub(super) fn remark(&self) -> Option<String> {
        let Self::Set(key, _) = self else { return None };
        alias::without_effect(key).map(|reason| format!("{key} has no effect: {reason}"))
    }

    /// Undoes what holds all databases, when whoever ordered it has cancelled: PgBouncer's operators expect that of Ctrl-C.
    /// Whether there was anything to undo.
    pub(super) fn take_back(&self, gateway: &Gateway) -> bool {
        let holds_all = matches!(self, Self::Pause(None) | Self::Suspend);
        let is_expected = gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer;
        holds_all && is_expected && gateway.lift()
    }

    /// Undoes what lasts no longer than the console that it came from: a SUSPEND, as PgBouncer has it.
    pub(super) fn expire(&self, gateway: &Gateway) {
        let is_expected = gateway.config.setup().config.listen.dialect == Dialect::Pgbouncer;
        if *self == Self::Suspend && is_expected && gateway.lifecycle.phase() == Phase::Suspended {
            tracing::info!("admin disappeared when suspended, doing RESUME");
            gateway.lift();
        }
    }

    /// The database that it is for, if it is for one by name.
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

    /// Tells the log of it; of what PgBouncer has, in its words if they are wanted.
    fn log(&self, gateway: &Gateway, user: &str) {
        let is_ours = matches!(self, Self::Set(..) | Self::KillClient(_) | Self::Stream(_));
        if is_ours || gateway.config.setup().config.listen.dialect != Dialect::Pgbouncer {
            return tracing::info!(user, order = %self, "order of the console");
        }
        match self.database() {
            Some(name) => tracing::info!(user, "{} '{name}' command issued", self.tag()),
            None => tracing::info!(user, "{} command issued", self.tag()),
        }
    }

    /// Does it.
    ///
    /// # Errors
    /// Why it cannot be done, or what kept it from being completed.
    ///
    /// # Cancel safety
    /// Dropped, it takes nothing back: what is paused stays paused, unless [`Order::take_back`] is called.
    pub(super) async fn carry_out(self, worker: Rc<Worker>, user: String) -> Result<(), Fault> {
        let gateway = &worker.gateway;
        self.log(gateway, &user);
        match &self {
            Self::Pause(database) => pause(&worker, database.as_deref()).await,
            Self::Resume(database) => resume(gateway, database.as_deref()),
            Self::Reconnect(database) => {
                gateway.reconnect(&pools_of(gateway, database.as_deref())?);
                Ok(())
            }
            Self::WaitClose(database) => wait_close(&worker, database.as_deref()).await,
            Self::Kill(database) => kill(gateway, database.as_deref()).await,
            Self::KillClient(id) => kill_client(gateway, *id).await,
            Self::Disable(database) => pools_of(gateway, Some(database)).map(|_| gateway.lifecycle.disable(database)),
            Self::Enable(database) => pools_of(gateway, Some(database)).map(|_| gateway.lifecycle.enable(database)),
            Self::Reload => gateway.config.reload().await.map_err(|reason| bad_configuration(&reason)),
            Self::Set(key, value) => set(gateway, key, value).await,
            Self::Stream(order) => order.carry_out(&worker).await,
            Self::Suspend => suspend(&worker).await,
            Self::Shutdown(phase) => shut_down(gateway, *phase),
        }
    }
}

/// The kind of values of a setting, by our name or by PgBouncer's.
fn holds(key: &str) -> Option<Holds> {
    alias::holds(key).or_else(|| config::holds(key))
}

/// Changes one setting, by our name or by PgBouncer's, until the file is read again.
async fn set(gateway: &Arc<Gateway>, key: &str, value: &str) -> Result<(), Fault> {
    if key.eq_ignore_ascii_case(CONFIG_FILE) {
        return set_config_file(gateway, value);
    }
    if alias::without_effect(key).is_some() {
        return Ok(());
    }
    let (owner, key, value) = (gateway.clone(), key.to_owned(), value.to_owned());
    // Certificates are read again, on a thread that may wait.
    let changed =
        gateway.pools.connector.resolver.offload("the files of a setting", move || change(&owner, &key, &value)).await;
    changed.ok_or_else(|| not_now("the gateway is stopping"))??;
    for worker in gateway.workers() {
        worker.visit(|worker| worker.refresh_plans());
    }
    if let Some(streams) = gateway.streams.get() {
        streams.limit(&gateway.config.setup().config.streams);
    }
    Ok(())
}

/// Names the file that the next reload reads.
fn set_config_file(gateway: &Gateway, value: &str) -> Result<(), Fault> {
    let wrong = |reason: String| Fault::new(sqlstate::INVALID_PARAMETER_VALUE, reason);
    if !gateway.config.setup().config.admin.set_files {
        return Err(refused(&ChangeError::NamesFile(CONFIG_FILE.to_owned())));
    }
    if gateway.config.file().is_none() {
        return Err(wrong("the configuration did not come from a file".to_owned()));
    }
    let file = std::path::absolute(value).map_err(|error| wrong(format!("{CONFIG_FILE}: {error}")))?;
    gateway.config.set_file(Some(file));
    Ok(())
}

/// Puts the configuration in force with one setting changed.
fn change(gateway: &Arc<Gateway>, key: &str, value: &str) -> Result<(), Fault> {
    let _alone = gateway.config.edit();
    let setup = gateway.config.setup();
    let changed = alias::changed(&setup.config, key, value).unwrap_or_else(|| setup.config.changed(key, value));
    let setup = Setup::new(changed.map_err(|error| refused(&error))?).map_err(|error| {
        tracing::warn!(%error, setting = key, "SET changed nothing: a file of the configuration cannot be used");
        Fault::new(sqlstate::INVALID_PARAMETER_VALUE, error.outline()).hint("The log of the gateway says more.")
    })?;
    gateway.replace_setup(setup);
    Ok(())
}

/// Why `SET` does not change a setting, for the client that asked for it.
fn refused(error: &ChangeError) -> Fault {
    match error {
        ChangeError::NamesFile(_) => Fault::new(sqlstate::INSUFFICIENT_PRIVILEGE, error.to_string())
            .hint("Change it in the file and RELOAD, or set set_files = true in [admin] and restart."),
        _ => Fault::new(sqlstate::INVALID_PARAMETER_VALUE, error.to_string()),
    }
}

/// Holds everybody where they are, be it in the middle of a transaction: what they and their servers have said is sent on, and
/// nothing more is read. Who does not take in time (`timeouts.suspend`) what is sent to it is sent away.
async fn suspend(worker: &Worker) -> Result<(), Fault> {
    let gateway = &worker.gateway;
    must_not_be_stopping(gateway)?;
    gateway.suspend();
    let limit = gateway.config.setup().config.timeouts.suspend;
    let since = worker.reactor.now();
    loop {
        must_not_be_stopping(gateway)?;
        if gateway.lifecycle.phase() != Phase::Suspended {
            return Err(not_now("resumed before all connections were held"));
        }
        if all_are_held(gateway).await {
            return Ok(());
        }
        if !limit.is_zero() && worker.reactor.now() - since >= limit {
            tracing::info!("suspend_timeout");
            let send_away = |worker: &Rc<Worker>| {
                worker.held_and_others().1.iter().for_each(|client_info| client_info.signal(Signal::SuspendTimeout));
            };
            gateway.ask_all(send_away).await;
        }
        worker.reactor.sleep(LOOK_EVERY).await;
    }
}

/// Whether no server is in use but by clients that are held.
async fn all_are_held(gateway: &Gateway) -> bool {
    let held = gateway.ask_all(|worker| worker.held_and_others().0.len());
    let held: usize = held.await.iter().sum();
    let in_use = |shared: &Arc<SharedPool>| {
        let counts = shared.pool.counts();
        counts.active + counts.cleaning + shared.replicating()
    };
    gateway.pools.all().iter().map(in_use).sum::<usize>() <= held
}

/// The pools of a database that there is, or all.
fn pools_of(gateway: &Gateway, database: Option<&str>) -> Result<Vec<Arc<SharedPool>>, Fault> {
    let mut pools = gateway.pools.all();
    let Some(name) = database else { return Ok(pools) };
    if Admin::DATABASES.contains(&name) {
        return Err(not_now(format!("\"{name}\" is the console, and has no servers")));
    }
    pools.retain(|shared| *shared.key.database == *name);
    if pools.is_empty() && gateway.config.setup().config.database(name).is_none() {
        let fault = Fault::new(sqlstate::INVALID_CATALOG_NAME, format!("database \"{name}\" does not exist"));
        return Err(fault.hint("SHOW DATABASES lists those there are."));
    }
    Ok(pools)
}

fn not_now(message: impl Into<String>) -> Fault {
    Fault::new(sqlstate::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
}

/// Nothing is paused that is about to end.
fn must_not_be_stopping(gateway: &Gateway) -> Result<(), Fault> {
    match gateway.lifecycle.phase() {
        Phase::Active | Phase::Paused | Phase::Suspended => Ok(()),
        _ => Err(not_now("the gateway is shutting down")),
    }
}

async fn pause(worker: &Worker, database: Option<&str>) -> Result<(), Fault> {
    let gateway = &worker.gateway;
    pools_of(gateway, database)?;
    must_not_be_stopping(gateway)?;
    if database.is_some() && gateway.lifecycle.phase() == Phase::Suspended {
        // It would wait for transactions that stand still.
        return Err(not_now("all databases are suspended").hint("RESUME ends that."));
    }
    gateway.pause(database);
    loop {
        let pools = pools_of(gateway, database)?;
        let all_paused = || gateway.lifecycle.holds_all() && gateway.lifecycle.phase() != Phase::Suspended;
        if !database.map_or_else(all_paused, |name| gateway.lifecycle.is_paused(name)) {
            return Err(not_now("resumed before all servers were released"));
        }
        // Every pool is looked at, whatever the others say: each may have a server to close.
        let released = pools.iter().map(|shared| is_released(shared)).filter(|released| *released).count();
        if released == pools.len() {
            return Ok(());
        }
        worker.reactor.sleep(LOOK_EVERY).await;
    }
}

/// Whether no client has a server of a paused pool, and all of them are closed.
fn is_released(shared: &SharedPool) -> bool {
    let counts = shared.pool.counts();
    let quiet = shared.pool.is_quiescent();
    if quiet && counts.idle > 0 {
        // It was being connected when the pool was paused.
        shared.close_for_pause();
    }
    quiet && shared.open() == 0
}

fn resume(gateway: &Gateway, database: Option<&str>) -> Result<(), Fault> {
    pools_of(gateway, database)?;
    if database.is_some() && gateway.lifecycle.holds_all() {
        return Err(not_now("all databases are paused").hint("RESUME without a name ends that."));
    }
    gateway.resume(database);
    Ok(())
}

async fn wait_close(worker: &Worker, database: Option<&str>) -> Result<(), Fault> {
    let gateway = &worker.gateway;
    pools_of(gateway, database)?;
    let is_awaited = |server: &tidegate_proxy::plane::ServerEntry| {
        server.outdated && database.is_none_or(|name| *server.key.database == *name)
    };
    while gateway.pools.servers().iter().any(is_awaited) {
        worker.reactor.sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// Disconnects everybody, and pauses, so that those who come back wait.
async fn kill(gateway: &Gateway, database: Option<&str>) -> Result<(), Fault> {
    pools_of(gateway, database)?;
    must_not_be_stopping(gateway)?;
    gateway.pause(database);
    let name: Option<Arc<str>> = database.map(Into::into);
    send_away(gateway, move |client_info| match &name {
        Some(name) => client_info.database == *name,
        None => !Admin::DATABASES.contains(&&*client_info.database),
    })
    .await;
    Ok(())
}

async fn kill_client(gateway: &Gateway, id: u64) -> Result<(), Fault> {
    if send_away(gateway, move |client_info| client_info.id == id).await == 0 {
        let fault = Fault::new(sqlstate::UNDEFINED_OBJECT, format!("there is no client {id}"));
        return Err(fault.hint("SHOW CLIENTS has the ids in its last but one column."));
    }
    Ok(())
}

/// Tells the clients that are meant to leave, and says how many they are.
async fn send_away(gateway: &Gateway, is_meant: impl Fn(&ClientInfo) -> bool + Clone + Send + 'static) -> usize {
    let told = gateway.ask_all(move |worker| {
        let mut client_infos = worker.registry.client_infos();
        client_infos.retain(|client_info| is_meant(client_info));
        client_infos.iter().for_each(|client_info| client_info.signal(Signal::Kill));
        client_infos.len()
    });
    told.await.iter().sum()
}

/// `outline` repeats nothing of the files: who may use the console may not be who may read them.
fn bad_configuration(outline: &str) -> Fault {
    Fault::new(sqlstate::CONFIG_FILE_ERROR, format!("the configuration was not reloaded: {}", outline.trim()))
        .hint("The old one stays in force. The log and `tidegate check` say more.")
}

fn shut_down(gateway: &Gateway, wanted: Phase) -> Result<(), Fault> {
    let haste = |phase: Phase| match phase {
        Phase::Active | Phase::Paused | Phase::Suspended => 0,
        Phase::WaitingForClients => 1,
        Phase::WaitingForTransactions => 2,
        Phase::Stopping => 3,
    };
    let now = gateway.change_phase(|phase| if haste(phase) > haste(wanted) { phase } else { wanted });
    if now != wanted {
        return Err(not_now("the gateway is shutting down faster than that already"));
    }
    Ok(())
}
