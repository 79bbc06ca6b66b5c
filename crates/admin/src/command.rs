//! Parses statements of the console.

mod stream;

use std::borrow::Cow;

use strsim::damerau_levenshtein;

use super::{
    action::AdminAction,
    error::ConsoleError,
    lexer::{CommandWord, statements},
    parameters, queries,
    show::ShowTopic,
    table::{TableColumn, int4, text},
};
use tidegate_proxy::plane::Phase;

/// A statement of the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConsoleCommand {
    /// Returns a table.
    Show(ShowTopic),
    /// Returns the slow queries of the last minutes.
    SlowQueries(u64),
    /// Returns the live queries whose table, predicate or handle contains a text.
    Shapes(String),
    /// Lists all commands in a notice.
    Help,
    /// Returns one value, for drivers that query the settings of a server.
    Value { name: &'static str, value: ConstantValue, tag: &'static str },
    /// Looks for types of a server: an empty table with these columns, whatever the values of so many parameters are.
    NoTypes(Vec<&'static str>, usize),
    /// A statement that drivers send by default. Affects at most the transaction or prepared statements.
    Compat(CompatEffect, &'static str),
    /// Changes the gateway; requires an admin user.
    Action(AdminAction),
}

/// The answer to a driver's query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConstantValue {
    Text(&'static str),
    Number(u64),
    /// The name of the user.
    User,
    /// The process id for cancel requests.
    ProcessId,
}

/// Effect of a driver's statement on the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CompatEffect {
    Nothing,
    Begin,
    End,
    /// Closes this prepared statement, or all of them without a name.
    Deallocate(Option<String>),
}

impl ConsoleCommand {
    /// The columns of the result; empty without rows.
    pub(super) fn columns(&self) -> Cow<'static, [TableColumn]> {
        match self {
            Self::Show(topic) => topic.columns().into(),
            Self::SlowQueries(_) => queries::COLUMNS.into(),
            Self::Shapes(_) => ShowTopic::Shapes.columns().into(),
            Self::Value { name, value: ConstantValue::Text(_) | ConstantValue::User, .. } => vec![text(name)].into(),
            Self::Value { name, value: ConstantValue::Number(_) | ConstantValue::ProcessId, .. } => {
                vec![int4(name)].into()
            }
            Self::NoTypes(names, _) => names.iter().map(|name| int4(name)).collect::<Vec<_>>().into(),
            Self::Help | Self::Compat(..) | Self::Action(_) => Cow::default(),
        }
    }

    /// The number of parameters of a prepared statement.
    pub(super) const fn parameters(&self) -> usize {
        match self {
            Self::NoTypes(_, parameters) => *parameters,
            _ => 0,
        }
    }

    /// The tag of CommandComplete.
    pub(super) const fn tag(&self) -> &'static str {
        match self {
            Self::Show(_) | Self::SlowQueries(_) | Self::Shapes(_) | Self::Help => "SHOW",
            Self::NoTypes(..) => "SELECT 0",
            Self::Value { tag, .. } | Self::Compat(_, tag) => tag,
            Self::Action(action) => action.tag(),
        }
    }
}

/// Parses a text into statements.
///
/// # Errors
/// If one of them is invalid; then none may be executed.
pub(super) fn parse(text: &str) -> Result<Vec<ConsoleCommand>, ConsoleError> {
    statements(text)?.iter().map(|words| parse_statement(words)).collect()
}

/// All commands with a description, for SHOW HELP and hints.
pub(super) const HELP: &[(&str, &str)] = &[
    ("SHOW CLIENTS", "clients: address, state, server"),
    ("SHOW PINS", "clients that keep their server, and the reason"),
    ("SHOW TOP_CLIENTS", "the 500 clients that wait longest or are active"),
    ("SHOW SERVERS", "server connections and their clients"),
    ("SHOW POOLS", "connections by database and user"),
    ("SHOW DATABASES", "databases with their servers and limits"),
    ("SHOW HOSTS", "servers of each database: role, state, lag"),
    ("SHOW USERS", "users with their limits"),
    ("SHOW STATS", "counters by database: totals, last averages"),
    ("SHOW STATS_TOTALS", "only the totals"),
    ("SHOW STATS_AVERAGES", "only the averages"),
    ("SHOW STATS_LOGINS", "logins of clients, and failed logins to servers"),
    ("SHOW TOTALS", "totals and averages of all databases together"),
    ("SHOW LISTS", "numbers of databases, users, pools, and so on"),
    ("SHOW CONFIG", "current settings and their defaults"),
    ("SHOW JOURNAL", "query log: disk usage, queued and lost records"),
    ("SHOW QUERIES [minutes]", "slow queries of the query log; 15 minutes"),
    ("SHOW ERRORS", "failures and ends of sessions by reason"),
    ("SHOW SOCKETS", "clients and servers in one table"),
    ("SHOW ACTIVE_SOCKETS", "only the active ones"),
    ("SHOW MEM", "memory of the process"),
    ("SHOW FDS", "empty: sockets are not handed over in this way"),
    ("SHOW PEERS", "other gateways behind the same address"),
    ("SHOW PEER_POOLS", "cancel requests forwarded to them"),
    ("SHOW DNS_HOSTS", "cached host names and their remaining time"),
    ("SHOW DNS_ZONES", "empty: zone serials are not monitored"),
    ("SHOW STREAMS", "streams: state, lag, errors"),
    ("SHOW SLOTS", "replication slots of streams: held WAL, lag, spool"),
    ("SHOW SHAPES [text]", "live queries; text is in table, where or handle"),
    ("SHOW STATE", "whether it is active, paused, or shutting down"),
    ("SHOW LOGINS", "failed logins by address and user, and delays"),
    ("SHOW TASKS", "tree of tasks: running, started, ended"),
    ("SHOW VERSION", "the version"),
    ("SHOW HELP", "this list"),
    ("PAUSE [db]", "assign no servers; returns when all are closed"),
    ("RESUME [db]", "undo PAUSE and KILL"),
    ("RECONNECT [db]", "replace server connections when released"),
    ("WAIT_CLOSE [db]", "wait until RECONNECT is done"),
    ("KILL [db]", "disconnect all clients and servers, then pause"),
    ("KILL_CLIENT id", "disconnect one client; SHOW CLIENTS has the id"),
    ("DISABLE db", "reject new clients"),
    ("ENABLE db", "undo DISABLE"),
    ("RELOAD", "reload the configuration"),
    ("SET key = value", "change a setting of SHOW CONFIG until RELOAD"),
    ("STREAM PAUSE [name]", "stop deliveries; returns when none is in flight"),
    ("STREAM RESUME [name]", "undo STREAM PAUSE"),
    ("STREAM STOP [name]", "drain and stop; returns when it has ended"),
    ("STREAM START [name]", "start after a stop, a failure or an end"),
    ("STREAM UNPARK name [key]", "release parked records, of all keys or of one"),
    ("STREAM BACKFILL name table", "copy a table again, beside its changes"),
    ("SUSPEND", "stop all traffic, in transactions too"),
    ("SHUTDOWN [mode]", "stop; WAIT_FOR_TRANSACTIONS or WAIT_FOR_CLIENTS"),
];

fn parse_statement(words: &[CommandWord]) -> Result<ConsoleCommand, ConsoleError> {
    let (head, rest) = words.split_first().expect("a statement has a word");
    let keyword = if head.quoted { String::new() } else { head.text.to_ascii_uppercase() };
    match keyword.as_str() {
        "SHOW" => show(words, rest),
        "SELECT" => select(words, rest),
        "SET" => set(rest),
        "PAUSE" => database(rest, "PAUSE [db]").map(|database| ConsoleCommand::Action(AdminAction::Pause(database))),
        "RESUME" => database(rest, "RESUME [db]").map(|database| ConsoleCommand::Action(AdminAction::Resume(database))),
        "RECONNECT" => {
            database(rest, "RECONNECT [db]").map(|database| ConsoleCommand::Action(AdminAction::Reconnect(database)))
        }
        "WAIT_CLOSE" => {
            database(rest, "WAIT_CLOSE [db]").map(|database| ConsoleCommand::Action(AdminAction::WaitClose(database)))
        }
        "KILL" => database(rest, "KILL [db]").map(|database| ConsoleCommand::Action(AdminAction::Kill(database))),
        "KILL_CLIENT" => client(rest).map(|id| ConsoleCommand::Action(AdminAction::KillClient(id))),
        "DISABLE" => {
            required_name(rest, "DISABLE db").map(|database| ConsoleCommand::Action(AdminAction::Disable(database)))
        }
        "ENABLE" => {
            required_name(rest, "ENABLE db").map(|database| ConsoleCommand::Action(AdminAction::Enable(database)))
        }
        "RELOAD" => expect_end(rest, "RELOAD").map(|()| ConsoleCommand::Action(AdminAction::Reload)),
        "SHUTDOWN" => shutdown(rest).map(|phase| ConsoleCommand::Action(AdminAction::Shutdown(phase))),
        "STREAM" => stream::parse(rest).map(|action| ConsoleCommand::Action(AdminAction::Stream(action))),
        "SUSPEND" => expect_end(rest, "SUSPEND").map(|()| ConsoleCommand::Action(AdminAction::Suspend)),
        _ => compat_command(&keyword, rest).ok_or_else(|| unknown(words)),
    }
}

fn show(words: &[CommandWord], rest: &[CommandWord]) -> Result<ConsoleCommand, ConsoleError> {
    if let [word, period @ ..] = rest
        && word.is("queries")
    {
        return slow_queries(period);
    }
    if let [word] = rest {
        if word.is("help") {
            return Ok(ConsoleCommand::Help);
        }
        if let Some(topic) = ShowTopic::named(&word.text) {
            return Ok(ConsoleCommand::Show(topic));
        }
    }
    if let [word, filter] = rest
        && word.is("shapes")
    {
        return Ok(ConsoleCommand::Shapes(filter.text.clone()));
    }
    match parameters::answer(rest) {
        Some((name, value)) => Ok(ConsoleCommand::Value { name, value: ConstantValue::Text(value), tag: "SHOW" }),
        None => Err(unknown(words)),
    }
}

fn slow_queries(period: &[CommandWord]) -> Result<ConsoleCommand, ConsoleError> {
    let usage = "SHOW QUERIES [minutes]";
    let [word, more @ ..] = period else { return Ok(ConsoleCommand::SlowQueries(queries::MINUTES_DEFAULT)) };
    expect_end(more, usage)?;
    let minutes = word.text.parse().ok().filter(|minutes| queries::MINUTES.contains(minutes));
    minutes.map(ConsoleCommand::SlowQueries).ok_or_else(|| {
        let (min, max) = (queries::MINUTES.start(), queries::MINUTES.end());
        ConsoleError::syntax(format!("invalid period \"{}\"", word.text))
            .hint(format!("The command is: {usage}, with {min} to {max} minutes"))
    })
}

/// `SELECT pools` means `SHOW POOLS`. Other queries are connection checks of drivers.
fn select(words: &[CommandWord], rest: &[CommandWord]) -> Result<ConsoleCommand, ConsoleError> {
    if let [word] = rest
        && let Some(topic) = ShowTopic::named(&word.text)
    {
        return Ok(ConsoleCommand::Show(topic));
    }
    let asked = rest.iter().map(|word| word.text.to_ascii_lowercase()).collect::<String>();
    let asked = asked.strip_prefix("pg_catalog.").unwrap_or(&asked);
    let value = |name, value| Ok(ConsoleCommand::Value { name, value, tag: "SELECT 1" });
    if let Some(columns) = type_lookup(rest) {
        // psycopg passes the name of the type as a parameter.
        let number = |word: &CommandWord| word.text.strip_prefix('$')?.split(':').next()?.parse::<u16>().ok();
        return Ok(ConsoleCommand::NoTypes(columns, rest.iter().filter_map(number).max().map_or(0, usize::from)));
    }
    match asked {
        // SQLAlchemy and others search for the name and the number of Postgres, and fail without.
        "version()" => value("version", ConstantValue::Text(POSTGRES_VERSION)),
        "current_database()" => {
            value("current_database", ConstantValue::Text(tidegate_config::AdminConfig::CONSOLE_DATABASES[0]))
        }
        "current_schema()" | "current_schema" => value("current_schema", ConstantValue::Text("public")),
        "current_user" | "session_user" | "user" => value("current_user", ConstantValue::User),
        "pg_is_in_recovery()" => value("pg_is_in_recovery", ConstantValue::Text("f")),
        "pg_backend_pid()" => value("pg_backend_pid", ConstantValue::ProcessId),
        "pg_advisory_unlock_all()" => value("pg_advisory_unlock_all", ConstantValue::Text("")),
        number => match number.parse() {
            Ok(number) => value("?column?", ConstantValue::Number(number)),
            Err(_) => Err(unknown(words)),
        },
    }
}

/// A version that tools accept, and that names this console.
const POSTGRES_VERSION: &str = concat!("PostgreSQL 14.0 (Tidegate ", env!("CARGO_PKG_VERSION"), ", admin console)");

/// The columns of a query of `pg_type`: psqlODBC looks for type `lo` when it connects, SQLAlchemy and psycopg for `hstore`. The
/// console has no types that drivers would not have, so that the result is empty.
fn type_lookup(words: &[CommandWord]) -> Option<Vec<&'static str>> {
    const COLUMNS: [&str; 11] = [
        "oid",
        "typname",
        "typbasetype",
        "typarray",
        "typlen",
        "typtype",
        "typelem",
        "typdelim",
        "name",
        "array_oid",
        "delimiter",
    ];
    let from = words.iter().position(|word| word.is("from"))?;
    let table = words.get(from + 1)?.text.to_ascii_lowercase();
    if !["pg_type", "pg_catalog.pg_type"].contains(&table.as_str()) {
        return None;
    }
    // `t.oid`, or `typname AS name`; other names than these are not sent back, because the text comes from a client.
    let column = |words: &[CommandWord]| {
        let name = words.last().map_or(String::new(), |word| word.text.to_ascii_lowercase());
        let name = name.rsplit('.').next().unwrap_or_default();
        COLUMNS.into_iter().find(|known| *known == name).unwrap_or("?column?")
    };
    Some(words[..from].split(|word| word.is(",")).map(column).collect())
}

fn set(rest: &[CommandWord]) -> Result<ConsoleCommand, ConsoleError> {
    if parameters::is_session_parameter(rest) {
        return Ok(ConsoleCommand::Compat(CompatEffect::Nothing, "SET"));
    }
    match rest {
        [name, is, value @ ..] if (is.is("=") || is.is("to")) && !value.is_empty() => {
            let value = value.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ");
            Ok(ConsoleCommand::Action(AdminAction::Set(name.text.clone(), value)))
        }
        _ => Err(ConsoleError::syntax("a setting and its value are required").hint("The command is: SET key = value")),
    }
}

/// Parses statements that drivers and client-side pools send by default.
fn compat_command(keyword: &str, rest: &[CommandWord]) -> Option<ConsoleCommand> {
    let all = rest.first().is_some_and(|word| word.is("all"));
    let (compat_command, tag) = match keyword {
        "BEGIN" => (CompatEffect::Begin, "BEGIN"),
        "START" => (CompatEffect::Begin, "START TRANSACTION"),
        "COMMIT" | "END" => (CompatEffect::End, "COMMIT"),
        "ROLLBACK" if rest.iter().any(|word| word.is("to")) => (CompatEffect::Nothing, "ROLLBACK"),
        "ROLLBACK" | "ABORT" => (CompatEffect::End, "ROLLBACK"),
        "SAVEPOINT" => (CompatEffect::Nothing, "SAVEPOINT"),
        "RELEASE" => (CompatEffect::Nothing, "RELEASE"),
        "DISCARD" => (if all { CompatEffect::Deallocate(None) } else { CompatEffect::Nothing }, "DISCARD ALL"),
        "DEALLOCATE" if all => (CompatEffect::Deallocate(None), "DEALLOCATE ALL"),
        "DEALLOCATE" => (CompatEffect::Deallocate(Some(rest.last()?.text.clone())), "DEALLOCATE"),
        "RESET" => (CompatEffect::Nothing, "RESET"),
        "UNLISTEN" => (CompatEffect::Nothing, "UNLISTEN"),
        "CLOSE" => (CompatEffect::Nothing, "CLOSE CURSOR ALL"),
        _ => return None,
    };
    Some(ConsoleCommand::Compat(compat_command, tag))
}

fn expect_end(rest: &[CommandWord], usage: &str) -> Result<(), ConsoleError> {
    match rest.first() {
        None => Ok(()),
        Some(word) => Err(unexpected(word, usage)),
    }
}

fn unexpected(word: &CommandWord, usage: &str) -> ConsoleError {
    ConsoleError::syntax(format!("syntax error at or near \"{}\"", word.text)).hint(format!("The command is: {usage}"))
}

fn database(rest: &[CommandWord], usage: &str) -> Result<Option<String>, ConsoleError> {
    match rest {
        [] => Ok(None),
        [name] => Ok(Some(name.text.clone())),
        [_, more, ..] => Err(unexpected(more, usage)),
    }
}

fn required_name(rest: &[CommandWord], usage: &str) -> Result<String, ConsoleError> {
    let missing = || ConsoleError::syntax("a database is required").hint(format!("The command is: {usage}"));
    database(rest, usage)?.ok_or_else(missing)
}

fn client(rest: &[CommandWord]) -> Result<u64, ConsoleError> {
    let usage = "KILL_CLIENT id";
    match rest {
        [] => Err(ConsoleError::syntax("a client's id is required").hint("SHOW CLIENTS has it in the column id.")),
        [id] => id.text.parse().map_err(|_| {
            let message = format!("invalid client pointer supplied: \"{}\" is not a number", id.text);
            ConsoleError::syntax(message).hint("SHOW CLIENTS has the number in the column id.")
        }),
        [_, more, ..] => Err(unexpected(more, usage)),
    }
}

fn shutdown(rest: &[CommandWord]) -> Result<Phase, ConsoleError> {
    let usage = "SHUTDOWN [WAIT_FOR_TRANSACTIONS | WAIT_FOR_SERVERS | WAIT_FOR_CLIENTS]";
    let Some(word) = rest.first() else { return Ok(Phase::Stopping) };
    expect_end(&rest[1..], usage)?;
    match word.text.to_ascii_uppercase().as_str() {
        // A server in session mode counts as released while its client has no open transaction.
        "WAIT_FOR_TRANSACTIONS" | "WAIT_FOR_SERVERS" => Ok(Phase::WaitingForTransactions),
        "WAIT_FOR_CLIENTS" => Ok(Phase::WaitingForClients),
        _ => Err(unexpected(word, usage)),
    }
}

fn unknown(words: &[CommandWord]) -> ConsoleError {
    let text = words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ");
    let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let hint = match nearest_command(&text) {
        Some(command) => format!("Did you mean {command}? SHOW HELP lists all commands."),
        None if words.first().is_some_and(|word| word.text.eq_ignore_ascii_case("show")) => {
            "SHOW HELP lists what can be shown; SHOW CONFIG has all settings.".to_owned()
        }
        None => "This is the admin console, not a database. SHOW HELP lists its commands.".to_owned(),
    };
    ConsoleError::syntax(format!("unknown command: {shown}")).hint(hint)
}

/// Limit of the query text in an error.
const SHOWN_CHARS_MAX: usize = 60;

/// Returns the command with the most similar spelling, if it is similar enough.
fn nearest_command(text: &str) -> Option<&'static str> {
    let text = text.to_ascii_uppercase();
    let names = HELP.iter().map(|(usage, _)| *usage);
    let (distance, usage, length) = names
        .map(|usage| {
            let keywords = keywords(usage);
            let count = keywords.split(' ').count();
            let prefix = text.split(' ').take(count).collect::<Vec<_>>().join(" ");
            (damerau_levenshtein(&prefix, keywords), usage, keywords.len())
        })
        .min_by_key(|(distance, ..)| *distance)?;
    (distance * 3 <= length).then_some(usage)
}

/// The keywords of a usage text: the words in capitals.
fn keywords(usage: &str) -> &str {
    let end = usage.find(|next: char| next.is_ascii_lowercase() || next == '[').unwrap_or(usage.len());
    usage[..end].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> ConsoleCommand {
        let mut commands = parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
        assert_eq!(commands.len(), 1, "{text}");
        commands.remove(0)
    }

    fn error(text: &str) -> ConsoleError {
        parse(text).expect_err(text)
    }

    #[test]
    fn every_command_of_the_help_is_parsed() {
        for (usage, _) in HELP {
            let usage = usage.replace(" id", " 7").replace("key = value", "pool.size = 5");
            let bare = usage.split('[').next().unwrap().to_owned();
            let full = usage.replace("[db]", "db").replace("[mode]", "WAIT_FOR_CLIENTS");
            let full = full.replace("[minutes]", "60");
            let full = full.replace("[name]", "orders").replace("[key]", "'a key'");
            for text in [bare.to_lowercase(), bare, full] {
                one(&text);
            }
        }
    }

    /// As psql prints it.
    #[test]
    fn help_fits_into_80_columns() {
        let usage_width = HELP.iter().map(|(usage, _)| usage.len()).max().unwrap();
        for (usage, description) in HELP {
            let width = 1 + usage_width + 3 + description.len();
            assert!(width <= 80, "{usage}: {width} columns");
        }
    }

    #[test]
    fn every_topic_is_in_the_help() {
        for (name, _) in ShowTopic::NAMES {
            let command = format!("SHOW {}", name.to_ascii_uppercase());
            assert!(HELP.iter().any(|(usage, _)| usage.split(" [").next() == Some(&*command)), "{name}");
        }
    }

    #[test]
    fn slow_queries_have_a_period() {
        assert_eq!(one("show queries"), ConsoleCommand::SlowQueries(15));
        assert_eq!(one("SHOW QUERIES 60"), ConsoleCommand::SlowQueries(60));
        for text in ["SHOW QUERIES 0", "SHOW QUERIES 1441", "SHOW QUERIES x", "SHOW QUERIES 1 2"] {
            assert_eq!(error(text).sqlstate.as_str(), "42601", "{text}");
        }
    }

    #[test]
    fn show_and_select_mean_the_same() {
        assert_eq!(one("show pools"), ConsoleCommand::Show(ShowTopic::Pools));
        assert_eq!(one("SELECT Pools;"), one("show pools"));
        assert_eq!(one("/* health */ SHOW stats_totals -- now"), ConsoleCommand::Show(ShowTopic::StatsTotals));
        assert_eq!(one("SHOW HELP"), ConsoleCommand::Help);
    }

    #[test]
    fn database_names_keep_their_case() {
        assert_eq!(one("pause Shop"), ConsoleCommand::Action(AdminAction::Pause(Some("Shop".into()))));
        assert_eq!(one("RESUME \"my db\""), ConsoleCommand::Action(AdminAction::Resume(Some("my db".into()))));
        assert_eq!(one("kill"), ConsoleCommand::Action(AdminAction::Kill(None)));
        assert_eq!(one("kill_client 12"), ConsoleCommand::Action(AdminAction::KillClient(12)));
        assert_eq!(one("disable a"), ConsoleCommand::Action(AdminAction::Disable("a".into())));
    }

    /// The log shows commands in the syntax of the console.
    #[test]
    fn actions_are_displayed_as_commands() {
        for text in [
            "PAUSE",
            "PAUSE app",
            "KILL_CLIENT 7",
            "SET query_wait_timeout = '7'",
            "SHUTDOWN WAIT_FOR_CLIENTS",
            "SHUTDOWN WAIT_FOR_SERVERS",
            "SHUTDOWN",
            "STREAM STOP",
            "STREAM UNPARK orders K",
        ] {
            let ConsoleCommand::Action(action) = one(text) else { panic!("{text} is no action") };
            assert_eq!(action.to_string(), text);
        }
    }

    #[test]
    fn shutdown_has_modes() {
        assert_eq!(one("SHUTDOWN"), ConsoleCommand::Action(AdminAction::Shutdown(Phase::Stopping)));
        assert_eq!(
            one("shutdown wait_for_servers"),
            ConsoleCommand::Action(AdminAction::Shutdown(Phase::WaitingForTransactions))
        );
        assert_eq!(
            one("shutdown wait_for_clients"),
            ConsoleCommand::Action(AdminAction::Shutdown(Phase::WaitingForClients))
        );
        assert_eq!(error("shutdown now").sqlstate.as_str(), "42601");
    }

    #[test]
    fn statements_of_drivers_are_parsed() {
        for text in [
            "BEGIN",
            "begin transaction isolation level parse_statement committed",
            "COMMIT",
            "ROLLBACK",
            "DISCARD ALL",
            "DEALLOCATE ALL",
            "DEALLOCATE \"_pg3_0\"",
            "SET extra_float_digits = 3",
            "SET application_name = 'x'",
            "SHOW client_encoding",
            "SHOW TRANSACTION ISOLATION LEVEL",
            "SHOW TIME ZONE",
            "SELECT 1",
            "select pg_catalog.version()",
            "SELECT current_schema()",
            "SELECT current_user",
            "SELECT pg_catalog.pg_is_in_recovery()",
            "RESET ALL",
            "UNLISTEN *",
            "CLOSE ALL",
        ] {
            one(text);
        }
        assert!(parse("").unwrap().is_empty());
        assert_eq!(parse("SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;").unwrap().len(), 4);
    }

    #[test]
    fn misspelled_command_gets_a_hint() {
        for (text, expected) in [
            ("SHOW POOL", "SHOW POOLS"),
            ("show cleints", "SHOW CLIENTS"),
            ("SHWO STATS", "SHOW STATS"),
            ("RELAOD", "RELOAD"),
            ("PAUS shop", "PAUSE [db]"),
            ("show stat_totals", "SHOW STATS_TOTALS"),
            ("KILLCLIENT 7", "KILL_CLIENT id"),
            ("STREM STOP orders", "STREAM STOP [name]"),
        ] {
            let error = error(text);
            assert_eq!(error.sqlstate.as_str(), "42601", "{text}");
            let hint = error.hint.unwrap_or_default();
            assert!(hint.contains(&format!("Did you mean {expected}?")), "{text}: {hint}");
        }
        let hint = error("select * from pg_class where true").hint.unwrap_or_default();
        assert!(hint.contains("SHOW HELP") && !hint.contains("Did you mean"), "{hint}");
    }

    #[test]
    fn extra_words_are_rejected() {
        for text in ["RELOAD now", "PAUSE a b", "KILL_CLIENT", "KILL_CLIENT x", "DISABLE", "SHOW POOLS x", "\"SHOW\" a"]
        {
            assert_eq!(error(text).sqlstate.as_str(), "42601", "{text}");
        }
    }

    #[test]
    fn set_needs_a_name_and_a_value() {
        let set = |key: &str, value: &str| ConsoleCommand::Action(AdminAction::Set(key.into(), value.into()));
        assert_eq!(one("SET pool.size = 3"), set("pool.size", "3"));
        assert_eq!(one("set server_reset_query to 'DISCARD ALL'"), set("server_reset_query", "DISCARD ALL"));
        assert_eq!(error("SET pool.size").sqlstate.as_str(), "42601");
    }
}
