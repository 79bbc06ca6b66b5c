//! The data plane: state shared by all threads, and the threads.
//!
//! No query touches shared state while it runs. A thread owns its clients, server connections and counters; other threads
//! send it functions through its mailbox.

mod census;
mod client_registry;
mod console;
mod gateway;
mod idle_pools;
mod locking;
mod mailbox;
mod pool_key;
mod refresh;
mod replica_set;
mod thread_control;
mod worker;
mod worker_pool;

pub use client_registry::{
    ClientInfo, ClientRegistry, ClientState, NewClient, PROCESS_ID_MAX, RegisteredClient, Replication, Signal, place_of,
};
pub use console::{Console, ConsoleClient};
pub use gateway::{
    CancelStage, CertificateExpiry, ClientOutcomes, Clients, Configuration, ConnectionUse, ConsoleCounts, CountGuard,
    CountedCancel, FailedLoginCounts, FailedLoginRules, FailedLoginSource, FailedLogins, FileReader, FirstLogin,
    Gateway, Lifecycle, Network, OLD_TLS, PeerCounts, PeerQueue, PeerRequest, Peers, Phase, Pools, QuotaExceeded,
    QuotaGuard, ReloadAnswer, ReloadOutcome, ReloadReply, Replicating, ServerEntry, Setup, SetupError, SharedPool,
    Statistics, ThreadControl,
};
pub use idle_pools::{Unused, forget_empty, forget_unused};
pub use locking::lock;
pub use mailbox::{Mailbox, Mailboxes};
pub use pool_key::PoolKey;
pub use refresh::{is_refresh_due, refresh};
pub use replica_set::{Placed, ReplicaSet};
pub use tidegate_handover::{SessionMoves, THREAD_NUMBERS};
pub use tidegate_link::within;
pub use tidegate_session_state::greetings::{Greeting, Greetings, ReportedParams};
pub use tidegate_wire::peer_key;
pub(crate) use worker::log_failed;
pub use worker::{CancelAsker, Worker, WorkerMailbox, Workers};
pub use worker_pool::{OpenHostPool, WorkerPool};
