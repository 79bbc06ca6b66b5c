//! Values of all threads at one moment, collected once for any number of tables.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    rc::Rc,
    sync::Arc,
    time::Instant,
};

use rustc_hash::FxHashMap;
use tokio::sync::OnceCell;

use super::{clients, clients::ClientEntry};
use tidegate_config::AdminConfig;
use tidegate_proxy::plane::{ClientState, Configuration, Gateway, PoolKey, Pools, Worker};
use tidegate_stats::Sample;

use crate::context::AdminContext;

/// Snapshot for one command or one scrape. Each part is collected at its first use and cached.
pub(crate) struct MetricsSnapshot {
    context: Arc<AdminContext>,
    clients: OnceCell<Vec<ClientEntry>>,
    client_groups: OnceCell<ClientGroups>,
    sample: OnceCell<Sample>,
    unchecked: OnceCell<HashMap<u64, PoolKey>>,
}

/// Properties that clients have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClientGroup {
    pub(crate) application_name: String,
    /// The pool of the clients.
    pub(crate) key: PoolKey,
    /// The state in PgBouncer's terms.
    pub(crate) state: &'static str,
    /// Whether the clients wait for a server.
    pub(super) is_waiting: bool,
    /// The user of the clients, which may differ from the user of the pool.
    pub(crate) user: Arc<str>,
}

/// Numbers of clients with equal properties, counted on their threads without a copy of each client.
#[derive(Debug, Default)]
pub(crate) struct ClientGroups(pub(crate) BTreeMap<ClientGroup, usize>);

impl ClientGroups {
    /// The number of all clients.
    pub(crate) fn len(&self) -> usize {
        self.0.values().sum()
    }

    /// Counts clients by a key; clients without a key are left out.
    pub(super) fn count_by<K: Eq + Hash>(&self, key_of: impl Fn(&ClientGroup) -> Option<K>) -> HashMap<K, usize> {
        let mut counts = HashMap::new();
        for (group, count) in &self.0 {
            if let Some(key) = key_of(group) {
                *counts.entry(key).or_default() += count;
            }
        }
        counts
    }
}

impl MetricsSnapshot {
    /// Creates an empty snapshot of a gateway.
    pub(crate) fn new(context: &Arc<AdminContext>) -> Self {
        Self {
            context: context.clone(),
            clients: OnceCell::new(),
            client_groups: OnceCell::new(),
            sample: OnceCell::new(),
            unchecked: OnceCell::new(),
        }
    }

    /// The subject of the snapshot.
    pub(crate) fn context(&self) -> &AdminContext {
        &self.context
    }

    /// The gateway of the snapshot.
    pub(crate) fn gateway(&self) -> &Gateway {
        &self.context.gateway
    }

    /// All clients, in the order of their connections.
    pub(super) async fn clients(&self) -> &[ClientEntry] {
        self.clients.get_or_init(|| clients::all(&self.context.workers)).await
    }

    /// The numbers of clients by their properties.
    pub(crate) async fn client_groups(&self) -> &ClientGroups {
        let gather = || async {
            let mut client_groups = ClientGroups::default();
            for (group, count) in self.context.workers.ask_all(group_clients).await.into_iter().flatten() {
                *client_groups.0.entry(group).or_default() += count;
            }
            client_groups
        };
        self.client_groups.get_or_init(gather).await
    }

    /// Idle servers that need a check before use, by id, with their pools.
    pub(super) async fn unchecked(&self) -> &HashMap<u64, PoolKey> {
        let gather = || async {
            let found = self.context.workers.ask_all(|worker| worker.unchecked()).await;
            found.into_iter().flatten().collect()
        };
        self.unchecked.get_or_init(gather).await
    }

    /// The counters of each database; zero for unused ones.
    pub(crate) async fn sample(&self) -> &Sample {
        let gather = || async {
            let gateway = self.gateway();
            let mut totals = self.context.workers.totals(&gateway.statistics.console).await;
            for name in database_names(&gateway.config, &gateway.pools) {
                totals.entry(name.into()).or_default();
            }
            Sample { at: Instant::now(), totals }
        };
        self.sample.get_or_init(gather).await
    }
}

/// The configured databases, those that clients have used under `*`, and the console. `*` itself is not a database.
pub(super) fn database_names(config: &Configuration, pools: &Pools) -> BTreeSet<String> {
    let setup = config.setup();
    let configured = setup.config.databases.keys().cloned();
    let found = pools.all().into_iter().map(|pool| pool.key.database.to_string());
    let all = configured.chain(found).chain([AdminConfig::DISPLAY_NAME.to_owned()]);
    all.filter(|name| name != "*").collect()
}

fn group_clients(worker: &Rc<Worker>) -> FxHashMap<ClientGroup, usize> {
    let mut counts = FxHashMap::default();
    for client_info in worker.registry.client_infos() {
        let state = client_info.state.get();
        let group = ClientGroup {
            application_name: client_info.application_name().unwrap_or_default(),
            key: client_info.key(),
            state: state.as_str(),
            is_waiting: matches!(state, ClientState::Waiting(_)),
            user: client_info.user.clone(),
        };
        *counts.entry(group).or_default() += 1;
    }
    counts
}
