//! What all threads have to say at one moment, asked for once however many tables are made of it.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    rc::Rc,
    sync::Arc,
    time::Instant,
};

use rustc_hash::FxHashMap;
use tokio::sync::OnceCell;

use super::{clients, clients::Client, databases};
use tidegate_proxy::{
    plane::{ClientState, Gateway, PoolKey, Worker},
    stats::Sample,
};

/// The figures of one command, or of one scrape: each is gathered when it is first asked for, and kept.
pub(crate) struct Figures {
    gateway: Arc<Gateway>,
    clients: OnceCell<Vec<Client>>,
    crowd: OnceCell<Crowd>,
    sample: OnceCell<Sample>,
    unchecked: OnceCell<HashMap<u64, PoolKey>>,
}

/// In what clients are alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Kin {
    pub(crate) application_name: String,
    /// The pool that they use.
    pub(crate) key: PoolKey,
    /// PgBouncer's word for what they do.
    pub(crate) state: &'static str,
    /// Whether they wait for a server.
    pub(super) waits: bool,
    /// Who they are, which may be somebody else than the user of the pool.
    pub(crate) user: Arc<str>,
}

/// How many clients are alike: counted on their threads, so that nothing is made of each of them.
#[derive(Debug, Default)]
pub(crate) struct Crowd(pub(crate) BTreeMap<Kin, usize>);

impl Crowd {
    /// All of them.
    pub(super) fn len(&self) -> usize {
        self.0.values().sum()
    }

    /// How many there are of each kind that `kind` tells apart; those without one are left out.
    pub(super) fn by<K: Eq + Hash>(&self, kind: impl Fn(&Kin) -> Option<K>) -> HashMap<K, usize> {
        let mut counts = HashMap::new();
        for (kin, count) in &self.0 {
            if let Some(kind) = kind(kin) {
                *counts.entry(kind).or_default() += count;
            }
        }
        counts
    }
}

impl Figures {
    /// Of a gateway, from now on.
    pub(crate) fn of(gateway: &Arc<Gateway>) -> Self {
        Self {
            gateway: gateway.clone(),
            clients: OnceCell::new(),
            crowd: OnceCell::new(),
            sample: OnceCell::new(),
            unchecked: OnceCell::new(),
        }
    }

    /// The gateway that they are of.
    pub(crate) fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Each client, in the order they came.
    pub(super) async fn clients(&self) -> &[Client] {
        self.clients.get_or_init(|| clients::all(&self.gateway)).await
    }

    /// How many clients are alike.
    pub(crate) async fn crowd(&self) -> &Crowd {
        let gather = || async {
            let mut crowd = Crowd::default();
            for (kin, count) in self.gateway.ask_all(alike).await.into_iter().flatten() {
                *crowd.0.entry(kin).or_default() += count;
            }
            crowd
        };
        self.crowd.get_or_init(gather).await
    }

    /// The free servers that will be checked before they are used, by id, and the pools they are of.
    pub(super) async fn unchecked(&self) -> &HashMap<u64, PoolKey> {
        let gather = || async {
            let found = self.gateway.ask_all(|worker| worker.unchecked()).await;
            found.into_iter().flatten().collect()
        };
        self.unchecked.get_or_init(gather).await
    }

    /// What was counted for each database, with zeros for those that nobody has used.
    pub(super) async fn sample(&self) -> &Sample {
        let gather = || async {
            let mut totals = self.gateway.totals().await;
            for name in databases::names(&self.gateway) {
                totals.entry(name.into()).or_default();
            }
            Sample { at: Instant::now(), totals }
        };
        self.sample.get_or_init(gather).await
    }
}

fn alike(worker: &Rc<Worker>) -> FxHashMap<Kin, usize> {
    let mut alike = FxHashMap::default();
    for client_info in worker.registry.client_infos() {
        let state = client_info.state.get();
        let kin = Kin {
            application_name: client_info.application_name().unwrap_or_default(),
            key: client_info.key(),
            state: state.as_str(),
            waits: matches!(state, ClientState::Waiting(_)),
            user: client_info.user.clone(),
        };
        *alike.entry(kin).or_default() += 1;
    }
    alike
}
