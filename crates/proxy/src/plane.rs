//! The data plane: state shared by all threads, and the threads.
//!
//! No query touches shared state while it runs. A thread owns its clients, server connections and counters; other threads
//! send it functions through its mailbox.

mod client_registry;
mod console;
mod gateway;
mod refresh;
mod replica_set;
mod within;
mod worker;

pub use client_registry::{
    ClientInfo, ClientRegistry, ClientState, Entry, NewClient, PROCESS_ID_MAX, Replication, Signal, place_of,
};
pub use console::{Console, ConsoleClient};
pub use gateway::lock;
pub use gateway::{
    CancelStage, CertificateExpiry, ClientOutcomes, Clients, Configuration, ConnectionUse, ConsoleCounts, CountGuard,
    CountedCancel, FailedLoginCounts, FailedLoginRules, FailedLoginSource, FailedLogins, FileReader, Gateway,
    Lifecycle, Network, OLD_TLS, PeerCounts, PeerQueue, PeerRequest, Peers, Phase, PoolKey, Pools, QuotaExceeded,
    QuotaGuard, ReloadAnswer, ReloadOutcome, ReloadReply, Replicating, ServerEntry, Setup, SetupError, SharedPool,
    Statistics, Unused,
};
pub use refresh::{is_refresh_due, refresh};
pub use replica_set::{Placed, ReplicaSet};
pub use tidegate_handover::{SessionMoves, THREAD_NUMBERS};
pub use tidegate_session_state::greetings::{Greeting, Greetings, ReportedParams};
pub use tidegate_wire::peer_key;
pub use within::within;
pub(crate) use worker::log_failed;
pub use worker::{CancelAsker, Mailbox, Worker, WorkerPool};
