//! Options of a stream.

use std::{fmt, time::Duration};

use tidegate_backoff::Backoff;
use tidegate_config::Route;
use tidegate_wire::replication::{PluginOption, publication_list};

use crate::{
    ack::IdleAck, client::ConnectOptions, position::StreamPosition, relation::Relations, spill::SpillStore,
    wal_bound::WalBound,
};

/// Memory and storage for transactions that the server sends before they commit.
pub struct StreamingOptions {
    /// Where transactions go that do not fit into memory.
    pub store: Box<dyn SpillStore>,
    /// Bytes of unfinished transactions in memory, over all. A transaction of more than a quarter goes to the store.
    pub memory_max: usize,
}

impl fmt::Debug for StreamingOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamingOptions").field("memory_max", &self.memory_max).finish_non_exhaustive()
    }
}

/// Options of a [`ChangeStream`](crate::ChangeStream).
///
/// The slot and the publications must exist: nothing is created or altered unasked, because a slot that is made again
/// after its loss hides a gap (CH-67), and an altered publication takes locks (CH-32).
#[derive(Debug)]
pub struct ChangeOptions {
    /// Servers and login.
    pub connect: ConnectOptions,
    /// Name of the slot.
    pub slot: String,
    /// Names of the publications.
    pub publications: Vec<String>,
    /// The consumer publishes tables itself and copies their rows: a table that is published is no reason for a warning.
    /// Default: false.
    pub publishes_tables: bool,
    /// The position to resume from; `None` to resume from the slot. A position that the slot or the server cannot serve
    /// ends the stream with a [`LostChanges`](crate::LostChanges). Default: `None`.
    pub resume: Option<StreamPosition>,
    /// How positions without a transaction are acknowledged. [`IdleAck::Consumer`] for consumers with `resume`. Default:
    /// [`IdleAck::Automatic`].
    pub idle_ack: IdleAck,
    /// Definitions of tables that are known from before, so that versions go on.
    pub relations: Relations,
    /// Receives large transactions before they commit. `None`: the server keeps them, on its disk if necessary. Default:
    /// `None`.
    pub streaming: Option<StreamingOptions>,
    /// Values in binary form, for types that have one. Default: false.
    pub binary: bool,
    /// Delivers messages of `pg_logical_emit_message`. Default: false.
    pub messages: bool,
    /// Leaves out changes that were replicated from another server (Postgres 16; no effect on older servers). Default: false.
    pub local_origin_only: bool,
    /// Allows reading from a standby (Postgres 16): set if `target_session_attrs` of the URL asks for another server than the
    /// primary.
    pub allow_standby: bool,
    /// Time between status updates. A third of the server's `wal_sender_timeout` if that is shorter. At least 10 ms and
    /// at most a day. Default: 10 s.
    pub status_interval: Duration,
    /// Writes a transactional message at this interval if no transaction came and the server writes WAL (CH-35, CH-36).
    /// `None`: never, for databases whose tables change regularly. Default: `None`.
    pub heartbeat: Option<Duration>,
    /// How often the slot is looked at, by a second connection: for its bound, for [`ChangeStreamStatus::slot`], and for
    /// heartbeats, which may shorten it. Default: 10 s.
    ///
    /// [`ChangeStreamStatus::slot`]: crate::ChangeStreamStatus::slot
    pub watch_interval: Duration,
    /// A bound for the WAL that the slot holds; `None` to leave it to the server's `max_slot_wal_keep_size`.
    /// Default: `None`.
    pub wal_bound: Option<WalBound>,
    /// Delays between attempts to connect. Default: 200 ms, doubled up to 30 s, with [`Jitter::EQUAL`](crate::Jitter::EQUAL).
    pub backoff: Backoff,
    /// Consecutive failed attempts after which the stream ends; `None` for no limit. Default: `None`.
    pub attempts_max: Option<u32>,
    /// How long a slot may be in use by another process before the stream ends (CH-24). Default: 3 minutes.
    pub slot_busy_max: Duration,
    /// Batches that wait for the consumer, at least one. A batch holds what one read of the socket has returned, at most about
    /// 256 KiB. Default: 8.
    pub batches_max: usize,
}

impl ChangeOptions {
    /// Options with the defaults: resume from the slot, no streaming, text values, a status every 10 seconds.
    #[must_use]
    pub fn new(connect: ConnectOptions, slot: impl Into<String>, publication: impl Into<String>) -> Self {
        let allow_standby = connect.server.route() != Route::Primary;
        Self {
            connect,
            slot: slot.into(),
            publications: vec![publication.into()],
            publishes_tables: false,
            resume: None,
            idle_ack: IdleAck::Automatic,
            relations: Relations::default(),
            streaming: None,
            binary: false,
            messages: false,
            local_origin_only: false,
            allow_standby,
            status_interval: Duration::from_secs(10),
            heartbeat: None,
            watch_interval: Duration::from_secs(10),
            wal_bound: None,
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
            attempts_max: None,
            slot_busy_max: Duration::from_secs(180),
            batches_max: 8,
        }
    }

    /// The options of `pgoutput` for a server of this major version.
    pub(crate) fn plugin(&self, major: u32, streaming: bool) -> PluginOptions {
        // The versions add streaming (2), two-phase commits (3) and parallel streaming (4).
        let version = match major {
            ..15 => "2",
            15 => "3",
            _ => "4",
        };
        let mut options = vec![
            ("proto_version", version.to_owned()),
            ("publication_names", publication_list(self.publications.iter().map(String::as_str))),
        ];
        let mut enable = |is_on: bool, name: &'static str, value: &str| {
            if is_on {
                options.push((name, value.to_owned()));
            }
        };
        enable(self.binary, "binary", "true");
        enable(self.messages, "messages", "true");
        enable(streaming, "streaming", "on");
        enable(self.local_origin_only && major >= 16, "origin", "none");
        PluginOptions(options)
    }
}

pub(crate) struct PluginOptions(Vec<(&'static str, String)>);

impl PluginOptions {
    pub(crate) fn pairs(&self) -> Vec<PluginOption<'_>> {
        self.0.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_options_follow_the_server_version() {
        let connect = ConnectOptions::from_url("postgres://u@h/d").unwrap();
        let options =
            ChangeOptions { messages: true, local_origin_only: true, ..ChangeOptions::new(connect, "s", "my \"pub\"") };
        let text = |major, streaming| {
            let plugin = options.plugin(major, streaming);
            plugin.pairs().iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        let names = r#"publication_names="my ""pub""""#;
        assert_eq!(text(14, true), format!("proto_version=2 {names} messages=true streaming=on"));
        assert_eq!(text(15, false), format!("proto_version=3 {names} messages=true"));
        assert_eq!(text(18, true), format!("proto_version=4 {names} messages=true streaming=on origin=none"));
    }
}
