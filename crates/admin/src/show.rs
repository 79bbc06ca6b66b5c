//! Tables of the console. A table of PgBouncer has exactly the columns of PgBouncer 1.25, because exporters read them by name, by
//! position and by number; further values are in tables of our own.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::table::{ResultTable, TableColumn};

mod clients;
mod compatibility;
mod config;
mod databases;
mod errors;
pub(super) mod hosts;
mod journal;
mod lists;
mod logins;
mod peers;
pub(super) mod pools;
mod servers;
pub(super) mod shapes;
mod slots;
mod snapshot;
mod sockets;
mod state;
mod stats;
mod streams;
mod tasks;
mod top_clients;
mod users;

pub(super) use snapshot::{ClientGroups, MetricsSnapshot};

/// A table of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShowTopic {
    ActiveSockets,
    Clients,
    Config,
    Databases,
    DnsHosts,
    DnsZones,
    Errors,
    Fds,
    Hosts,
    Journal,
    Lists,
    Logins,
    Mem,
    PeerPools,
    Peers,
    Pins,
    Pools,
    Servers,
    Slots,
    Shapes,
    Sockets,
    State,
    Stats,
    StatsAverages,
    StatsLogins,
    StatsTotals,
    Streams,
    Tasks,
    TopClients,
    Totals,
    Users,
    Version,
}

impl ShowTopic {
    /// Names of the tables.
    pub(super) const NAMES: &'static [(&'static str, Self)] = &[
        ("active_sockets", Self::ActiveSockets),
        ("clients", Self::Clients),
        ("config", Self::Config),
        ("databases", Self::Databases),
        ("dns_hosts", Self::DnsHosts),
        ("dns_zones", Self::DnsZones),
        ("errors", Self::Errors),
        ("fds", Self::Fds),
        ("hosts", Self::Hosts),
        ("journal", Self::Journal),
        ("lists", Self::Lists),
        ("logins", Self::Logins),
        ("mem", Self::Mem),
        ("peer_pools", Self::PeerPools),
        ("peers", Self::Peers),
        ("pins", Self::Pins),
        ("pools", Self::Pools),
        ("servers", Self::Servers),
        ("slots", Self::Slots),
        ("shapes", Self::Shapes),
        ("sockets", Self::Sockets),
        ("state", Self::State),
        ("stats", Self::Stats),
        ("stats_averages", Self::StatsAverages),
        ("stats_logins", Self::StatsLogins),
        ("stats_totals", Self::StatsTotals),
        ("streams", Self::Streams),
        ("tasks", Self::Tasks),
        ("top_clients", Self::TopClients),
        ("totals", Self::Totals),
        ("users", Self::Users),
        ("version", Self::Version),
    ];

    /// Finds a table by name, in any case.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, topic)| *topic)
    }

    /// The columns; independent of the state of the gateway.
    pub(super) fn columns(self) -> &'static [TableColumn] {
        match self {
            Self::ActiveSockets | Self::Sockets => sockets::COLUMNS,
            Self::Clients => clients::COLUMNS,
            Self::Config => config::COLUMNS,
            Self::Databases => databases::COLUMNS,
            Self::DnsHosts => compatibility::DNS_HOSTS,
            Self::DnsZones => compatibility::DNS_ZONES,
            Self::Errors => errors::COLUMNS,
            Self::Fds => compatibility::FDS,
            Self::Hosts => hosts::COLUMNS,
            Self::Journal => journal::COLUMNS,
            Self::Lists => lists::COLUMNS,
            Self::Logins => logins::COLUMNS,
            Self::Mem => compatibility::MEM,
            Self::PeerPools => peers::POOLS,
            Self::Peers => peers::COLUMNS,
            Self::Pins => clients::PINS,
            Self::Pools => pools::COLUMNS,
            Self::Servers => servers::COLUMNS,
            Self::Slots => slots::COLUMNS,
            Self::Shapes => shapes::COLUMNS,
            Self::State => state::COLUMNS,
            Self::Stats => stats::ALL,
            Self::StatsAverages => stats::AVERAGES,
            Self::StatsLogins => stats::LOGINS,
            Self::StatsTotals => stats::TOTALS,
            Self::Streams => streams::COLUMNS,
            Self::Tasks => tasks::COLUMNS,
            Self::TopClients => top_clients::COLUMNS,
            Self::Totals => stats::SUMS,
            Self::Users => users::COLUMNS,
            Self::Version => state::VERSION,
        }
    }

    /// Whether the table may have one row per client, server, database or user, or is expensive to compute.
    pub(super) fn is_large(self) -> bool {
        match self {
            Self::ActiveSockets
            | Self::Clients
            | Self::Config
            | Self::Databases
            | Self::Errors
            | Self::Lists
            | Self::Logins
            | Self::Pins
            | Self::Pools
            | Self::Servers
            | Self::Shapes
            | Self::Sockets
            | Self::Stats
            | Self::StatsAverages
            | Self::StatsLogins
            | Self::StatsTotals
            | Self::TopClients
            | Self::Totals
            | Self::Users => true,
            Self::DnsHosts
            | Self::DnsZones
            | Self::Fds
            | Self::Hosts
            | Self::Journal
            | Self::Mem
            | Self::PeerPools
            | Self::Peers
            | Self::Slots
            | Self::State
            | Self::Streams
            | Self::Tasks
            | Self::Version => false,
        }
    }

    /// Builds the table from a snapshot.
    pub(super) async fn table(self, snapshot: &MetricsSnapshot) -> ResultTable {
        let (context, gateway) = (snapshot.context(), snapshot.gateway());
        let (config, pools) = (&gateway.config, &gateway.pools);
        let rows = match self {
            Self::ActiveSockets => sockets::active(snapshot).await,
            Self::Clients => clients::rows(snapshot).await,
            Self::Config => config::rows(config),
            Self::Databases => databases::rows(snapshot).await,
            Self::DnsHosts => compatibility::names(&pools.connector.resolver),
            // Zone serials are not monitored, and sockets are not handed over in this way.
            Self::DnsZones | Self::Fds => Vec::new(),
            Self::Errors => errors::rows(snapshot).await,
            Self::Hosts => hosts::rows(config, pools),
            Self::Journal => journal::rows(gateway.query_log.as_ref()),
            Self::Mem => compatibility::memory(),
            Self::Lists => lists::rows(snapshot).await,
            Self::Logins => logins::rows(config, &gateway.clients),
            Self::PeerPools => peers::pools(config, &gateway.peers),
            Self::Peers => peers::rows(config),
            Self::Pins => clients::pins(snapshot).await,
            Self::Pools => pools::rows(snapshot).await,
            Self::Servers => servers::rows(snapshot).await,
            Self::Slots => slots::rows(context.streams()),
            Self::Shapes => return shapes::table(context.shapes().as_deref(), "").0,
            Self::Sockets => sockets::rows(snapshot).await,
            Self::State => state::rows(&gateway.lifecycle, &gateway.moves),
            Self::Stats => stats::all(snapshot).await,
            Self::StatsAverages => stats::averages(snapshot).await,
            Self::StatsLogins => stats::logins(snapshot).await,
            Self::StatsTotals => stats::totals(snapshot).await,
            Self::Streams => streams::rows(context.streams()),
            Self::Tasks => tasks::rows(&gateway.lifecycle.scope),
            Self::TopClients => top_clients::rows(&context.workers).await,
            Self::Totals => stats::sums(snapshot).await,
            Self::Users => users::rows(snapshot).await,
            Self::Version => state::version(config),
        };
        ResultTable::new(self.columns(), rows)
    }
}

/// Formats a time as `2026-01-31 12:00:00 UTC`.
fn timestamp(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Year, month and day of a day since 1970, by Howard Hinnant's `civil_from_days`: years begin in March, so that the leap day is
/// the last day of a year and the months before it have a regular length.
/// <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>
const fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_since_march + 2) / 5 + 1;
    let month = if months_since_march < 10 { months_since_march + 3 } else { months_since_march - 9 };
    let year = year_of_era + era * 400 + (month <= 2) as u64;
    (year, month, day)
}

/// Converts a monotonic time to wall-clock time.
fn wall_clock(at: Instant) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(at.elapsed()).unwrap_or(now)
}

/// The time since `since`: whole seconds, and microseconds.
fn wait(since: Option<Instant>) -> (u64, u32) {
    let waited = since.map(|since| since.elapsed()).unwrap_or_default();
    (waited.as_secs(), waited.subsec_micros())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timestamps_have_correct_dates() {
        for (seconds, shown) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_827_696, "2000-02-29 12:34:56 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC"),
            (4_102_444_799, "2099-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), shown);
        }
    }

    fn names(topic: ShowTopic) -> Vec<&'static str> {
        topic.columns().iter().map(|column| column.name).collect()
    }

    #[test]
    fn tables_have_exactly_the_columns_of_pgbouncer() {
        let words = |text: &'static str| text.split(' ').collect::<Vec<_>>();
        let expected = words(
            "database user cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req \
             sv_active sv_active_cancel sv_being_canceled sv_idle sv_used sv_tested sv_login \
             maxwait maxwait_us pool_mode load_balance_hosts",
        );
        assert_eq!(names(ShowTopic::Pools), expected);
        let expected = words(
            "database total_server_assignment_count total_xact_count total_query_count \
             total_received total_sent total_xact_time total_query_time total_wait_time \
             total_client_parse_count total_server_parse_count total_bind_count \
             avg_server_assignment_count avg_xact_count avg_query_count \
             avg_recv avg_sent avg_xact_time avg_query_time avg_wait_time avg_client_parse_count \
             avg_server_parse_count avg_bind_count",
        );
        assert_eq!(names(ShowTopic::Stats), expected);
        let expected = words(
            "type user database replication state addr port local_addr local_port connect_time \
             request_time wait wait_us close_needed ptr link remote_pid tls application_name \
             prepared_statements id",
        );
        assert_eq!(names(ShowTopic::Servers), expected);
        assert_eq!(names(ShowTopic::Clients), names(ShowTopic::Servers));
        assert_eq!(names(ShowTopic::StatsTotals).len(), 12);
        assert_eq!(names(ShowTopic::StatsAverages).len(), 12);
    }

    #[test]
    fn column_names_are_unique() {
        for (name, topic) in ShowTopic::NAMES {
            let mut columns = names(*topic);
            columns.sort_unstable();
            let count = columns.len();
            columns.dedup();
            assert_eq!(columns.len(), count, "{name}");
        }
    }
}
