//! What a statement of the console means.

mod stream;

use std::borrow::Cow;

use strsim::damerau_levenshtein;

use super::{
    fault::Fault,
    order::Order,
    parameters,
    show::Topic,
    table::{Column, int4, text},
    words::{Word, statements},
};
use tidegate_proxy::plane::Phase;

/// A statement that the console understands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// A table.
    Show(Topic),
    /// All commands, as a notice.
    Help,
    /// One value under a name, for drivers that ask how the server is set up.
    Value { name: &'static str, value: Known, tag: &'static str },
    /// What a driver says as a matter of course; nothing comes of it but the end of a transaction or of statements.
    Courtesy(Courtesy, &'static str),
    /// Something is to be changed, which takes an admin user.
    Order(Order),
}

/// The answer to a driver's question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Text(&'static str),
    Number(u64),
    /// Who asks.
    User,
    /// The number that a cancel request names.
    ProcessId,
}

/// What a driver's matter of course does to the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Courtesy {
    Nothing,
    Begin,
    End,
    /// Forget this prepared statement; all of them without a name.
    Deallocate(Option<String>),
}

impl Command {
    /// The columns of its rows; none if it has no rows.
    pub(super) fn columns(&self) -> Cow<'static, [Column]> {
        match self {
            Self::Show(topic) => topic.columns().into(),
            Self::Value { name, value: Known::Text(_) | Known::User, .. } => vec![text(name)].into(),
            Self::Value { name, value: Known::Number(_) | Known::ProcessId, .. } => vec![int4(name)].into(),
            Self::Help | Self::Courtesy(..) | Self::Order(_) => Cow::default(),
        }
    }

    /// The tag of its CommandComplete.
    pub(super) const fn tag(&self) -> &'static str {
        match self {
            Self::Show(_) | Self::Help => "SHOW",
            Self::Value { tag, .. } | Self::Courtesy(_, tag) => tag,
            Self::Order(order) => order.tag(),
        }
    }
}

/// What a text says, statement by statement.
///
/// # Errors
/// One of them is no command; then none is to be carried out.
pub(super) fn parse(text: &str) -> Result<Vec<Command>, Fault> {
    statements(text)?.iter().map(|words| read(words)).collect()
}

/// All commands and what they do, for SHOW HELP and for hints.
pub(super) const HELP: &[(&str, &str)] = &[
    ("SHOW CLIENTS", "clients: where from, what they do, why they stay on a server"),
    ("SHOW SERVERS", "server connections, and who has them"),
    ("SHOW POOLS", "connections by database and user"),
    ("SHOW DATABASES", "databases with their servers and limits"),
    ("SHOW HOSTS", "servers of each database: primary or replica, how far behind, in use or not"),
    ("SHOW USERS", "users with their limits"),
    ("SHOW STATS", "what was done by database: totals, and averages of the last minute"),
    ("SHOW STATS_TOTALS", "the totals alone"),
    ("SHOW STATS_AVERAGES", "the averages alone"),
    ("SHOW TOTALS", "the same of all databases together"),
    ("SHOW LISTS", "how many there are of what"),
    ("SHOW CONFIG", "settings in force, and their defaults"),
    ("SHOW JOURNAL", "the query journal: its disk, what waits to be written, what was lost"),
    ("SHOW SOCKETS", "clients and servers in one table"),
    ("SHOW ACTIVE_SOCKETS", "those of them that are at work"),
    ("SHOW MEM", "memory of the process"),
    ("SHOW FDS", "empty: there are no sockets to be handed over"),
    ("SHOW PEERS", "other gateways behind the same address"),
    ("SHOW PEER_POOLS", "cancel requests on their way to them"),
    ("SHOW DNS_HOSTS", "host names of servers, and for how long they hold"),
    ("SHOW DNS_ZONES", "empty: names are looked up again, not the serials of zones"),
    ("SHOW STREAMS", "streams of records: what they do, how far they are behind, what failed"),
    ("SHOW STATE", "whether the gateway works, is paused, or is shutting down"),
    ("SHOW LOGINS", "addresses and users with failed logins, and the delays of their next ones"),
    ("SHOW TASKS", "the tree of tasks: living, started, ended how"),
    ("SHOW VERSION", "the version"),
    ("SHOW HELP", "this list"),
    ("PAUSE [db]", "give no server out any more; returns when all servers are released and closed"),
    ("RESUME [db]", "undo PAUSE and KILL"),
    ("RECONNECT [db]", "replace every server connection as soon as it is released"),
    ("WAIT_CLOSE [db]", "wait until RECONNECT is done"),
    ("KILL [db]", "disconnect all clients and servers, and pause"),
    ("KILL_CLIENT id", "disconnect one client; SHOW CLIENTS has the id"),
    ("DISABLE db", "let no new client in"),
    ("ENABLE db", "undo DISABLE"),
    ("RELOAD", "read the configuration again"),
    ("SET key = value", "change a setting until the next RELOAD; SHOW CONFIG tells which can be changed"),
    ("STREAM PAUSE [name]", "begin no delivery of a stream any more; returns when none is under way"),
    ("STREAM RESUME [name]", "undo STREAM PAUSE"),
    ("STREAM STOP [name]", "end a stream: what was read is delivered and committed; returns when it has ended"),
    ("STREAM START [name]", "start a stream that was stopped, has failed or has ended"),
    ("STREAM UNPARK name [key]", "let the parked records of a stream go on, of all keys or of one"),
    ("SUSPEND", "let clients and servers stand still where they are, within transactions too; RESUME ends it"),
    ("SHUTDOWN [WAIT_FOR_TRANSACTIONS | WAIT_FOR_CLIENTS]", "end the gateway"),
];

fn read(words: &[Word]) -> Result<Command, Fault> {
    let (head, rest) = words.split_first().expect("a statement has a word");
    let keyword = if head.quoted { String::new() } else { head.text.to_ascii_uppercase() };
    match keyword.as_str() {
        "SHOW" => show(words, rest),
        "SELECT" => select(words, rest),
        "SET" => set(rest),
        "PAUSE" => database(rest, "PAUSE [db]").map(|database| Command::Order(Order::Pause(database))),
        "RESUME" => database(rest, "RESUME [db]").map(|database| Command::Order(Order::Resume(database))),
        "RECONNECT" => database(rest, "RECONNECT [db]").map(|database| Command::Order(Order::Reconnect(database))),
        "WAIT_CLOSE" => database(rest, "WAIT_CLOSE [db]").map(|database| Command::Order(Order::WaitClose(database))),
        "KILL" => database(rest, "KILL [db]").map(|database| Command::Order(Order::Kill(database))),
        "KILL_CLIENT" => client(rest).map(|id| Command::Order(Order::KillClient(id))),
        "DISABLE" => named(rest, "DISABLE db").map(|database| Command::Order(Order::Disable(database))),
        "ENABLE" => named(rest, "ENABLE db").map(|database| Command::Order(Order::Enable(database))),
        "RELOAD" => nothing_more(rest, "RELOAD").map(|()| Command::Order(Order::Reload)),
        "SHUTDOWN" => shutdown(rest).map(|phase| Command::Order(Order::Shutdown(phase))),
        "STREAM" => stream::read(rest).map(|order| Command::Order(Order::Stream(order))),
        "SUSPEND" => nothing_more(rest, "SUSPEND").map(|()| Command::Order(Order::Suspend)),
        _ => courtesy(&keyword, rest).ok_or_else(|| unknown(words)),
    }
}

fn show(words: &[Word], rest: &[Word]) -> Result<Command, Fault> {
    if let [word] = rest {
        if word.is("help") {
            return Ok(Command::Help);
        }
        if let Some(topic) = Topic::named(&word.text) {
            return Ok(Command::Show(topic));
        }
    }
    match parameters::answer(rest) {
        Some((name, value)) => Ok(Command::Value { name, value: Known::Text(value), tag: "SHOW" }),
        None => Err(unknown(words)),
    }
}

/// `SELECT pools` is `SHOW POOLS`; the rest is what drivers ask to see whether somebody is there.
fn select(words: &[Word], rest: &[Word]) -> Result<Command, Fault> {
    if let [word] = rest
        && let Some(topic) = Topic::named(&word.text)
    {
        return Ok(Command::Show(topic));
    }
    let asked = rest.iter().map(|word| word.text.to_ascii_lowercase()).collect::<String>();
    let asked = asked.strip_prefix("pg_catalog.").unwrap_or(&asked);
    let value = |name, value| Ok(Command::Value { name, value, tag: "SELECT 1" });
    match asked {
        "version()" => value("version", Known::Text(concat!("Tidegate ", env!("CARGO_PKG_VERSION")))),
        "current_database()" => value("current_database", Known::Text(tidegate_config::Admin::DATABASES[0])),
        "current_schema()" | "current_schema" => value("current_schema", Known::Text("public")),
        "current_user" | "session_user" | "user" => value("current_user", Known::User),
        "pg_is_in_recovery()" => value("pg_is_in_recovery", Known::Text("f")),
        "pg_backend_pid()" => value("pg_backend_pid", Known::ProcessId),
        "pg_advisory_unlock_all()" => value("pg_advisory_unlock_all", Known::Text("")),
        number => match number.parse() {
            Ok(number) => value("?column?", Known::Number(number)),
            Err(_) => Err(unknown(words)),
        },
    }
}

fn set(rest: &[Word]) -> Result<Command, Fault> {
    if parameters::is_of_session(rest) {
        return Ok(Command::Courtesy(Courtesy::Nothing, "SET"));
    }
    match rest {
        [name, is, value @ ..] if (is.is("=") || is.is("to")) && !value.is_empty() => {
            let value = value.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ");
            Ok(Command::Order(Order::Set(name.text.clone(), value)))
        }
        _ => Err(Fault::syntax("a setting and its value are required").hint("The command is: SET key = value")),
    }
}

/// What drivers and poolers of clients say as a matter of course.
fn courtesy(keyword: &str, rest: &[Word]) -> Option<Command> {
    let all = rest.first().is_some_and(|word| word.is("all"));
    let (courtesy, tag) = match keyword {
        "BEGIN" => (Courtesy::Begin, "BEGIN"),
        "START" => (Courtesy::Begin, "START TRANSACTION"),
        "COMMIT" | "END" => (Courtesy::End, "COMMIT"),
        "ROLLBACK" if rest.iter().any(|word| word.is("to")) => (Courtesy::Nothing, "ROLLBACK"),
        "ROLLBACK" | "ABORT" => (Courtesy::End, "ROLLBACK"),
        "SAVEPOINT" => (Courtesy::Nothing, "SAVEPOINT"),
        "RELEASE" => (Courtesy::Nothing, "RELEASE"),
        "DISCARD" => (if all { Courtesy::Deallocate(None) } else { Courtesy::Nothing }, "DISCARD ALL"),
        "DEALLOCATE" if all => (Courtesy::Deallocate(None), "DEALLOCATE ALL"),
        "DEALLOCATE" => (Courtesy::Deallocate(Some(rest.last()?.text.clone())), "DEALLOCATE"),
        "RESET" => (Courtesy::Nothing, "RESET"),
        "UNLISTEN" => (Courtesy::Nothing, "UNLISTEN"),
        "CLOSE" => (Courtesy::Nothing, "CLOSE CURSOR ALL"),
        _ => return None,
    };
    Some(Command::Courtesy(courtesy, tag))
}

fn nothing_more(rest: &[Word], usage: &str) -> Result<(), Fault> {
    match rest.first() {
        None => Ok(()),
        Some(word) => Err(unexpected(word, usage)),
    }
}

fn unexpected(word: &Word, usage: &str) -> Fault {
    Fault::syntax(format!("syntax error at or near \"{}\"", word.text)).hint(format!("The command is: {usage}"))
}

fn database(rest: &[Word], usage: &str) -> Result<Option<String>, Fault> {
    match rest {
        [] => Ok(None),
        [name] => Ok(Some(name.text.clone())),
        [_, more, ..] => Err(unexpected(more, usage)),
    }
}

fn named(rest: &[Word], usage: &str) -> Result<String, Fault> {
    let missing = || Fault::syntax("a database is required").hint(format!("The command is: {usage}"));
    database(rest, usage)?.ok_or_else(missing)
}

fn client(rest: &[Word]) -> Result<u64, Fault> {
    let usage = "KILL_CLIENT id";
    match rest {
        [] => Err(Fault::syntax("a client's id is required").hint("SHOW CLIENTS has it in the column id.")),
        [id] => id.text.parse().map_err(|_| unexpected(id, usage)),
        [_, more, ..] => Err(unexpected(more, usage)),
    }
}

fn shutdown(rest: &[Word]) -> Result<Phase, Fault> {
    let usage = "SHUTDOWN [WAIT_FOR_TRANSACTIONS | WAIT_FOR_CLIENTS]";
    let Some(word) = rest.first() else { return Ok(Phase::Stopping) };
    nothing_more(&rest[1..], usage)?;
    match word.text.to_ascii_uppercase().as_str() {
        // A server is released when its transaction ends; in session mode, when its client has none open.
        "WAIT_FOR_TRANSACTIONS" | "WAIT_FOR_SERVERS" => Ok(Phase::WaitingForTransactions),
        "WAIT_FOR_CLIENTS" => Ok(Phase::WaitingForClients),
        _ => Err(unexpected(word, usage)),
    }
}

fn unknown(words: &[Word]) -> Fault {
    let said = words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ");
    let shown: String = said.chars().take(SHOWN_CHARS_MAX).collect();
    let hint = match nearest(&said) {
        Some(command) => format!("Did you mean {command}? SHOW HELP lists all commands."),
        None if words.first().is_some_and(|word| word.text.eq_ignore_ascii_case("show")) => {
            "SHOW HELP lists what can be shown; SHOW CONFIG has all settings.".to_owned()
        }
        None => "This is the admin console, not a database. SHOW HELP lists its commands.".to_owned(),
    };
    Fault::syntax(format!("unknown command: {shown}")).hint(hint)
}

/// An error does not repeat a whole query.
const SHOWN_CHARS_MAX: usize = 60;

/// The command that is spelled most like `said`, if one is like it at all.
fn nearest(said: &str) -> Option<&'static str> {
    let said = said.to_ascii_uppercase();
    let names = HELP.iter().map(|(usage, _)| *usage);
    let (distance, usage, length) = names
        .map(|usage| {
            let keywords = keywords(usage);
            let count = keywords.split(' ').count();
            let spoken = said.split(' ').take(count).collect::<Vec<_>>().join(" ");
            (damerau_levenshtein(&spoken, keywords), usage, keywords.len())
        })
        .min_by_key(|(distance, ..)| *distance)?;
    (distance * 3 <= length).then_some(usage)
}

/// The words of a usage that are said as they stand: those in capitals.
fn keywords(usage: &str) -> &str {
    let end = usage.find(|next: char| next.is_ascii_lowercase() || next == '[').unwrap_or(usage.len());
    usage[..end].trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Command {
        let mut commands = parse(text).unwrap_or_else(|fault| panic!("{text}: {fault:?}"));
        assert_eq!(commands.len(), 1, "{text}");
        commands.remove(0)
    }

    fn fault(text: &str) -> Fault {
        parse(text).expect_err(text)
    }

    #[test]
    fn every_command_of_the_help_is_understood() {
        for (usage, _) in HELP {
            let usage = usage.replace(" id", " 7").replace("key = value", "pool.size = 5");
            let bare = usage.split('[').next().unwrap().to_owned();
            let full = usage.replace("[db]", "db").replace("[WAIT_FOR_TRANSACTIONS | WAIT_FOR_CLIENTS]", "");
            let full = full.replace("[name]", "orders").replace("[key]", "'a key'");
            for said in [bare.to_lowercase(), bare, full] {
                one(&said);
            }
        }
    }

    #[test]
    fn every_topic_is_in_the_help() {
        for (name, _) in Topic::NAMES {
            assert!(HELP.iter().any(|(usage, _)| *usage == format!("SHOW {}", name.to_ascii_uppercase())), "{name}");
        }
    }

    #[test]
    fn show_and_select_mean_the_same() {
        assert_eq!(one("show pools"), Command::Show(Topic::Pools));
        assert_eq!(one("SELECT Pools;"), one("show pools"));
        assert_eq!(one("/* health */ SHOW stats_totals -- now"), Command::Show(Topic::StatsTotals));
        assert_eq!(one("SHOW HELP"), Command::Help);
    }

    #[test]
    fn a_database_is_named_as_it_is_written() {
        assert_eq!(one("pause Shop"), Command::Order(Order::Pause(Some("Shop".into()))));
        assert_eq!(one("RESUME \"my db\""), Command::Order(Order::Resume(Some("my db".into()))));
        assert_eq!(one("kill"), Command::Order(Order::Kill(None)));
        assert_eq!(one("kill_client 12"), Command::Order(Order::KillClient(12)));
        assert_eq!(one("disable a"), Command::Order(Order::Disable("a".into())));
    }

    /// The log names orders in the words of the console.
    #[test]
    fn an_order_is_shown_as_it_is_given() {
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
            let Command::Order(order) = one(text) else { panic!("{text} is no order") };
            assert_eq!(order.to_string(), text);
        }
    }

    #[test]
    fn shutdown_says_what_it_waits_for() {
        assert_eq!(one("SHUTDOWN"), Command::Order(Order::Shutdown(Phase::Stopping)));
        assert_eq!(one("shutdown wait_for_servers"), Command::Order(Order::Shutdown(Phase::WaitingForTransactions)));
        assert_eq!(one("shutdown wait_for_clients"), Command::Order(Order::Shutdown(Phase::WaitingForClients)));
        assert_eq!(fault("shutdown now").sqlstate.as_str(), "42601");
    }

    #[test]
    fn drivers_are_answered() {
        for text in [
            "BEGIN",
            "begin transaction isolation level read committed",
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
    fn a_misspelled_command_is_guessed() {
        for (said, meant) in [
            ("SHOW POOL", "SHOW POOLS"),
            ("show cleints", "SHOW CLIENTS"),
            ("SHWO STATS", "SHOW STATS"),
            ("RELAOD", "RELOAD"),
            ("PAUS shop", "PAUSE [db]"),
            ("show stat_totals", "SHOW STATS_TOTALS"),
            ("KILLCLIENT 7", "KILL_CLIENT id"),
            ("STREM STOP orders", "STREAM STOP [name]"),
        ] {
            let fault = fault(said);
            assert_eq!(fault.sqlstate.as_str(), "42601", "{said}");
            let hint = fault.hint.unwrap_or_default();
            assert!(hint.contains(&format!("Did you mean {meant}?")), "{said}: {hint}");
        }
        let hint = fault("select * from pg_class where true").hint.unwrap_or_default();
        assert!(hint.contains("SHOW HELP") && !hint.contains("Did you mean"), "{hint}");
    }

    #[test]
    fn nothing_is_understood_that_says_too_much() {
        for text in ["RELOAD now", "PAUSE a b", "KILL_CLIENT", "KILL_CLIENT x", "DISABLE", "SHOW POOLS x", "\"SHOW\" a"]
        {
            assert_eq!(fault(text).sqlstate.as_str(), "42601", "{text}");
        }
    }

    #[test]
    fn a_setting_has_a_name_and_a_value() {
        let set = |key: &str, value: &str| Command::Order(Order::Set(key.into(), value.into()));
        assert_eq!(one("SET pool.size = 3"), set("pool.size", "3"));
        assert_eq!(one("set server_reset_query to 'DISCARD ALL'"), set("server_reset_query", "DISCARD ALL"));
        assert_eq!(fault("SET pool.size").sqlstate.as_str(), "42601");
    }
}
