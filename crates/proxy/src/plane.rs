//! The data plane: what all its threads share, and each of the threads.
//!
//! Nothing shared is touched while a query is under way. A thread owns its clients, its servers, its counters; others
//! ask it questions by its mailbox.

mod console;
mod fleet;
mod gateway;
mod greetings;
pub mod peer_key;
mod refresh;
mod roster;
mod within;
mod worker;

pub use console::{Console, ConsoleClient};
pub use fleet::{Fleet, Placed};
pub use gateway::lock;
pub use gateway::{
    CancelStage, Clients, Configuration, ConsoleCounts, CountedCancel, FailedLoginCounts, FailedLoginRules,
    FailedLogins, Full, Gateway, Lifecycle, Network, Offender, OnTheWay, PeerCounts, PeerLine, Peers, Phase, PoolKey,
    Pools, Quota, ReloadReply, Replicating, Room, ServerEntry, Setup, SetupError, Share, SharedPool, Statistics,
    Unused,
};
pub use greetings::{Announced, Greeting, Greetings};
pub use refresh::{is_refresh_due, refresh};
pub use roster::{Card, ClientState, Entry, NewCard, PROCESS_ID_MAX, Replication, Roster, Signal, place_of};
pub use within::within;
pub use worker::{CancelAsker, Mailbox, Worker, WorkerPool};
