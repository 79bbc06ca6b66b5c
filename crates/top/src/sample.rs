//! A sample of the gateway: tables of the console, and values derived from them.

use std::time::{Duration, Instant};

use tidegate_changes::{ClientError, PgConnection, QueryTable};
use tidegate_config::AdminConfig;
use tidegate_stats::{LoadSample, PoolTotals};

use crate::screen::Screen;

/// Limit for the answer to one command.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// SQLSTATE of an unknown parameter: Postgres' answer to SHOW POOLS.
const UNDEFINED_OBJECT: &str = "42704";

/// Value of a column in a row.
pub(crate) fn value<'t>(table: &'t QueryTable, row: &'t [Option<String>], column: &str) -> Option<&'t str> {
    let index = table.columns.iter().position(|name| name == column)?;
    row.get(index)?.as_deref()
}

/// A number in a row; 0 if there is none.
pub(crate) fn number(table: &QueryTable, row: &[Option<String>], column: &str) -> u64 {
    value(table, row, column).and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The value beside a key, in a table of two columns.
fn entry<'t>(table: &'t QueryTable, key: &str) -> Option<&'t str> {
    let row = table.rows.iter().find(|row| row.first().and_then(Option::as_deref) == Some(key))?;
    row.get(1)?.as_deref()
}

/// State of the gateway at one moment.
#[derive(Clone, Debug)]
pub(crate) struct GatewaySample {
    pub(crate) at: Instant,
    /// `active`, `paused`, `suspended` or `stopping`.
    pub(crate) phase: &'static str,
    pub(crate) uptime: Option<Duration>,
    pub(crate) load: LoadSample,
    /// Connected clients, those of the console included.
    pub(crate) clients: u64,
    /// SHOW ERRORS; empty if the gateway does not have it.
    pub(crate) errors: QueryTable,
    /// The pools, with the column names of their screen.
    pub(crate) pools: QueryTable,
    /// The table of another screen than the overview and the pools, or why there is none.
    pub(crate) table: Option<(Screen, Result<QueryTable, String>)>,
}

/// Reads what all screens show, and the table of one.
///
/// # Errors
/// The connection is lost, or its far side is no console.
pub(crate) async fn read(
    connection: &mut PgConnection,
    screen: Screen,
    minutes: u16,
    has_fresh_table: bool,
) -> Result<GatewaySample, ClientError> {
    let state = show(connection, "STATE").await.map_err(no_console)?;
    let totals = show(connection, "STATS_TOTALS").await?;
    let lists = show(connection, "LISTS").await?;
    let databases = show(connection, "DATABASES").await?;
    let users = optional(show(connection, "USERS").await)?.unwrap_or_default();
    let hosts = optional(show(connection, "HOSTS").await)?.unwrap_or_default();
    let pools = pools(&show(connection, "POOLS").await?, &PoolSettings { databases, users, hosts });
    // A table that an older gateway does not have is no reason to show nothing.
    let errors = optional(show(connection, "ERRORS").await)?.unwrap_or_default();
    let command = match screen {
        Screen::Overview | Screen::Pools => None,
        Screen::Queries if has_fresh_table => None,
        Screen::Clients => Some("TOP_CLIENTS".to_owned()),
        Screen::Servers => Some("SERVERS".to_owned()),
        Screen::Hosts => Some("HOSTS".to_owned()),
        Screen::Queries => Some(format!("QUERIES {minutes}")),
        Screen::Streams => Some("STREAMS".to_owned()),
    };
    let table = match command {
        None => None,
        Some(command) => Some((screen, optional(show(connection, &command).await)?)),
    };
    Ok(GatewaySample {
        at: Instant::now(),
        phase: phase(&state),
        uptime: entry(&state, "uptime_s").and_then(|text| text.parse().ok()).map(Duration::from_secs),
        load: load(&totals, &errors),
        clients: entry(&lists, "used_clients").and_then(|text| text.parse().ok()).unwrap_or_default(),
        errors,
        pools,
        table,
    })
}

async fn show(connection: &mut PgConnection, table: &str) -> Result<QueryTable, ClientError> {
    connection.query_table(&format!("SHOW {table}"), ANSWER_LIMIT).await
}

/// An error of the console for one table is shown in its place; other errors end the connection.
fn optional(answer: Result<QueryTable, ClientError>) -> Result<Result<QueryTable, String>, ClientError> {
    match answer {
        Ok(table) => Ok(Ok(table)),
        Err(ClientError::Server(report)) if report.severity == "ERROR" => Ok(Err(report.message)),
        Err(error) => Err(error),
    }
}

fn no_console(error: ClientError) -> ClientError {
    if error.code() != Some(UNDEFINED_OBJECT) {
        return error;
    }
    let database = AdminConfig::CONSOLE_DATABASES[0];
    ClientError::Option(format!("the URL names a database, not the admin console: its name is {database}"))
}

fn phase(state: &QueryTable) -> &'static str {
    let is_yes = |key| entry(state, key) == Some("yes");
    let is_stopping = entry(state, "stopping").is_some_and(|stopping| stopping != "no");
    match () {
        () if is_stopping => "stopping",
        () if is_yes("suspended") => "suspended",
        () if is_yes("paused") => "paused",
        () => "active",
    }
}

fn load(totals: &QueryTable, errors: &QueryTable) -> LoadSample {
    let mut sum = PoolTotals::default();
    for row in &totals.rows {
        if value(totals, row, "database") == Some(AdminConfig::DISPLAY_NAME) {
            continue;
        }
        let of = |column| number(totals, row, column);
        sum.add(&PoolTotals {
            server_assignment_count: of("server_assignment_count"),
            xact_count: of("xact_count"),
            query_count: of("query_count"),
            query_time: of("query_time"),
            wait_time: of("wait_time"),
            received_bytes: of("bytes_received"),
            sent_bytes: of("bytes_sent"),
            ..PoolTotals::default()
        });
    }
    let count = |event: &str| -> u64 {
        let rows = errors.rows.iter().filter(|row| value(errors, row, "event") == Some(event));
        rows.map(|row| number(errors, row, "count")).sum()
    };
    sum.checkout_timeout_count = count("checkout timeout");
    LoadSample { totals: sum, refused: count("refused login") }
}

/// Tables with the settings of pools.
struct PoolSettings {
    databases: QueryTable,
    users: QueryTable,
    hosts: QueryTable,
}

impl PoolSettings {
    /// Server connections that a pool may have: the size of the user or the database, for each server in use.
    fn size(&self, database: &str, user: &str) -> Option<u64> {
        let size = |table: &QueryTable, name| {
            let row = table.rows.iter().find(|row| value(table, row, "name") == Some(name))?;
            value(table, row, "pool_size")?.parse::<u64>().ok()
        };
        let is_used = |row: &&Vec<Option<String>>| {
            value(&self.hosts, row, "database") == Some(database) && number(&self.hosts, row, "servers") > 0
        };
        let servers = self.hosts.rows.iter().filter(is_used).count().max(1);
        let size = size(&self.users, user).or_else(|| size(&self.databases, database))?;
        Some(size.saturating_mul(servers as u64))
    }

    fn is_paused(&self, database: &str) -> bool {
        let row = self.databases.rows.iter().find(|row| value(&self.databases, row, "name") == Some(database));
        row.is_some_and(|row| value(&self.databases, row, "paused") == Some("1"))
    }
}

/// SHOW POOLS with the size of each pool, whether it is paused, and single columns for the wait and for idle servers. The
/// console is left out.
fn pools(pools: &QueryTable, settings: &PoolSettings) -> QueryTable {
    const INT8: u32 = 20;
    const TEXT: u32 = 25;
    let derived = ["maxwait_us", "sv_free", "pool_size", "paused"];
    let kept = |name: &&String| !derived.contains(&name.as_str());
    let mut columns: Vec<String> = pools.columns.iter().filter(kept).cloned().collect();
    columns.extend(derived.map(str::to_owned));
    let typed = pools.columns.iter().zip(&pools.types).filter(|(name, _)| kept(name));
    let types = typed.map(|(_, oid)| *oid).chain([INT8, INT8, INT8, TEXT]).collect();
    let row_of = |row: &Vec<Option<String>>| {
        let of = |column| value(pools, row, column).unwrap_or_default();
        let (database, user) = (of("database"), of("user"));
        let wait = number(pools, row, "maxwait").saturating_mul(1_000_000) + number(pools, row, "maxwait_us");
        let free = number(pools, row, "sv_idle") + number(pools, row, "sv_used") + number(pools, row, "sv_tested");
        let mut cells: Vec<_> =
            pools.columns.iter().zip(row).filter(|(name, _)| kept(name)).map(|(_, cell)| cell.clone()).collect();
        cells.extend([
            (wait > 0).then(|| wait.to_string()),
            Some(free.to_string()),
            settings.size(database, user).map(|size| size.to_string()),
            settings.is_paused(database).then(|| "paused".to_owned()),
        ]);
        cells
    };
    let is_console = |row: &&Vec<Option<String>>| value(pools, row, "database") == Some(AdminConfig::DISPLAY_NAME);
    let rows = pools.rows.iter().filter(|row| !is_console(row)).map(row_of).collect();
    QueryTable { columns, types, rows }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A table from texts: columns, then rows; `-` is NULL.
    pub(crate) fn table(columns: &str, rows: &[&str]) -> QueryTable {
        let cell = |text: &str| (text != "-").then(|| text.to_owned());
        QueryTable {
            columns: columns.split(' ').map(str::to_owned).collect(),
            types: Vec::new(),
            rows: rows.iter().map(|row| row.split(' ').map(cell).collect()).collect(),
        }
    }

    /// A sample of a gateway with two pools.
    pub(crate) fn sample() -> GatewaySample {
        let shown = table(
            "database user cl_active cl_waiting sv_active sv_idle sv_used sv_tested sv_login maxwait maxwait_us pool_mode",
            &[
                "pgbouncer pgbouncer 1 0 0 0 0 0 0 0 0 statement",
                "shop app 40 3 20 0 0 0 1 2 500000 transaction",
                "audit app 2 0 1 4 1 0 0 0 0 session",
            ],
        );
        let settings = PoolSettings {
            databases: table("name pool_size paused", &["shop 20 0", "audit 10 1"]),
            users: QueryTable::default(),
            hosts: QueryTable::default(),
        };
        let errors = table(
            "event reason count",
            &["checkout_timeout - 4", "refused_login too_many_clients 2", "disconnect idle_timeout 7"],
        );
        GatewaySample {
            at: Instant::now(),
            phase: "active",
            uptime: Some(Duration::from_secs(100_000)),
            load: LoadSample::default(),
            clients: 46,
            errors,
            pools: pools(&shown, &settings),
            table: None,
        }
    }

    #[test]
    fn pools_have_size_wait_and_pause() {
        let pools = sample().pools;
        assert_eq!(pools.rows.len(), 2, "the console is no pool");
        let of = |row: usize, column| value(&pools, &pools.rows[row], column);
        assert_eq!((of(0, "maxwait_us"), of(0, "pool_size"), of(0, "paused")), (Some("2500000"), Some("20"), None));
        assert_eq!((of(1, "maxwait_us"), of(1, "sv_free"), of(1, "paused")), (None, Some("5"), Some("paused")));
    }

    /// Each server in use has a pool of its own, and the size of a user takes precedence.
    #[test]
    fn size_covers_all_servers_in_use() {
        let settings = PoolSettings {
            databases: table("name pool_size paused", &["shop 20 0", "audit 10 0"]),
            users: table("name pool_size", &["app -", "report 3"]),
            hosts: table("database servers", &["shop 20", "audit 4", "audit 2", "audit 0"]),
        };
        let sizes = [("shop", "app"), ("audit", "app"), ("audit", "report"), ("none", "app")];
        let found = sizes.map(|(database, user)| settings.size(database, user));
        assert_eq!(found, [Some(20), Some(20), Some(6), None]);
    }

    #[test]
    fn load_leaves_out_the_console() {
        let totals =
            table("database xact_count query_count bytes_sent", &["shop 5 7 100", "pgbouncer 90 90 9", "b 1 1 -"]);
        let mut errors = table("event reason count", &[]);
        for (event, count) in
            [("checkout timeout", "4"), ("refused login", "1"), ("refused login", "2"), ("disconnect", "9")]
        {
            errors.rows.push(vec![Some(event.to_owned()), None, Some(count.to_owned())]);
        }
        let load = load(&totals, &errors);
        assert_eq!((load.totals.xact_count, load.totals.query_count, load.totals.sent_bytes), (6, 8, 100));
        assert_eq!((load.totals.checkout_timeout_count, load.refused), (4, 3));
    }

    #[test]
    fn phases_have_an_order() {
        for (rows, expected) in [
            (&["active yes", "paused no", "suspended no", "stopping no"][..], "active"),
            (&["active no", "paused yes", "suspended no", "stopping no"], "paused"),
            (&["active no", "paused yes", "suspended no", "stopping yes"], "stopping"),
        ] {
            assert_eq!(phase(&table("key value", rows)), expected);
        }
    }
}
