//! Sources and sinks of a stream.

use std::path::PathBuf;

use crate::{
    raw::RawValue,
    secret::Secret,
    setting::{Setting, ValueClass, ValueError, nearest, text},
    stream::SnapshotMode,
    url::{PgUrl, decode},
};

/// Topics of a Kafka cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaTopics {
    /// Addresses of brokers, as in `bootstrap.servers`.
    pub brokers: String,
    /// Names or patterns; at least one.
    pub topics: Vec<String>,
}

/// The changes of a Postgres database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangesOrigin {
    /// Servers, login and database.
    pub url: PgUrl,
    /// The URL as text, without publication and slot.
    pub location: Secret,
    /// Publication in the URL; empty if it has none.
    pub publication: String,
    /// Slot in the URL; empty if it has none.
    pub slot: String,
    /// Mode of the snapshot in the URL.
    pub snapshot: Option<SnapshotMode>,
}

/// Source of records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StreamSource {
    /// Not set.
    #[default]
    Unset,
    /// Standard input, one JSON value per line.
    Stdin,
    /// A file, one JSON value per line.
    File(PathBuf),
    /// Kafka topics.
    Kafka(KafkaTopics),
    /// Changes of a Postgres database.
    Postgres(Box<ChangesOrigin>),
}

/// Sink of records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StreamSink {
    /// Not set.
    #[default]
    Unset,
    /// Standard output, one line per record.
    Stdout,
    /// POST requests to a URL.
    Http(HttpTarget),
    /// A statement on a Postgres server.
    Postgres(PgUrl),
    /// A statement through this gateway.
    Gateway(GatewayTarget),
    /// A Kafka topic.
    Kafka(KafkaTopics),
    /// Standard input of a command.
    Command(String),
}

/// A URL that may contain a password.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpTarget {
    /// The whole URL.
    pub url: String,
}

impl HttpTarget {
    /// The URL without login and query, which may be secrets.
    pub fn redacted_url(&self) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("http", &self.url));
        let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        format!("{scheme}://{host}{path}")
    }
}

impl std::fmt::Debug for HttpTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.redacted_url())
    }
}

/// A login at this gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayTarget {
    /// The user.
    pub user: String,
    /// Password; empty for the one in `[users]`.
    pub password: Secret,
    /// Database, as clients name it.
    pub database: String,
}

impl GatewayTarget {
    /// Parses `gateway://USER@DATABASE`, with a password after the user if it is not in `[users]`.
    ///
    /// # Errors
    /// If the text has another form.
    pub fn from_url(url: &str) -> Result<Self, ValueError> {
        let help = "write gateway://USER@DATABASE";
        gateway(url.strip_prefix("gateway://").ok_or_else(|| ValueError::new("it is no login at this gateway", help))?)
    }
}

/// Destination of records that cannot be delivered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeadLetterSink {
    /// None.
    #[default]
    None,
    /// The end of a file, one JSON object per line.
    File(PathBuf),
    /// A Kafka topic.
    Kafka(KafkaTopics),
}

const KAFKA: &str = "write kafka://BROKER:9092/TOPIC; several brokers, and several topics, are separated by commas";

fn topics(rest: &str, only_one: bool) -> Result<KafkaTopics, ValueError> {
    let error = |reason: &str| ValueError::new(reason, KAFKA);
    let (brokers, topics) = rest.split_once('/').ok_or_else(|| error("the URL names no topic"))?;
    if brokers.is_empty() {
        return Err(error("the URL names no broker"));
    }
    if brokers.contains('@') || topics.contains('?') {
        let help = "a login and other settings go into kafka_properties = { \"sasl.username\" = \"...\" }";
        return Err(ValueError::new("a Kafka URL contains brokers and topics only", help));
    }
    let topics: Vec<String> = topics.split(',').filter(|topic| !topic.is_empty()).map(str::to_owned).collect();
    match topics.len() {
        0 => Err(error("the URL names no topic")),
        1 => Ok(KafkaTopics { brokers: brokers.to_owned(), topics }),
        _ if only_one => Err(ValueError::new("a sink has one topic only", "write kafka://BROKER:9092/TOPIC")),
        _ => Ok(KafkaTopics { brokers: brokers.to_owned(), topics }),
    }
}

impl KafkaTopics {
    fn url(&self) -> String {
        format!("kafka://{}/{}", self.brokers, self.topics.join(","))
    }
}

/// Splits at `://`.
fn scheme(written: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = written.split_once("://")?;
    scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()).then_some((scheme, rest))
}

impl Setting for StreamSource {
    const CLASS: ValueClass = ValueClass::Secret;

    fn read(value: &RawValue) -> Result<Self, ValueError> {
        let written = text(value, "\"orders.ndjson\"")?;
        match scheme(written) {
            _ if written.is_empty() => Ok(Self::Unset),
            _ if written == "-" => Ok(Self::Stdin),
            None => Ok(Self::File(written.into())),
            Some(("kafka", rest)) => topics(rest, false).map(Self::Kafka),
            Some(("postgres" | "postgresql", _)) => changes(written).map(Box::new).map(Self::Postgres),
            Some((other, _)) => Err(ValueError::new(
                format!("{other}:// is not a source"),
                "write kafka://BROKER:9092/TOPIC, postgres://USER@HOST/DATABASE?publication=NAME, the path of a file, or - \
                 for standard input",
            )),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Unset => String::new(),
            Self::Stdin => "-".to_owned(),
            Self::File(path) => path.display().to_string(),
            Self::Kafka(topics) => topics.url(),
            Self::Postgres(origin) => without_password(&origin.url),
        }
    }
}

/// The URL without password and parameters.
fn without_password(url: &PgUrl) -> String {
    let hosts: Vec<_> = url.hosts.iter().map(ToString::to_string).collect();
    format!("postgres://{}@{}/{}", url.user, hosts.join(","), url.dbname)
}

/// Takes `publication`, `slot` and `snapshot`, which libpq does not know, out of the parameters of a URL.
fn changes(written: &str) -> Result<ChangesOrigin, ValueError> {
    let (head, query) = written.split_once('?').unwrap_or((written, ""));
    let (mut publication, mut slot, mut snapshot) = (String::new(), String::new(), None);
    let mut others = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("publication", name)) => publication = decode(name)?,
            Some(("slot", name)) => slot = decode(name)?,
            Some(("snapshot", mode)) => snapshot = Some(SnapshotMode::read(&RawValue::Text(decode(mode)?))?),
            _ => others.push(pair),
        }
    }
    let url = if others.is_empty() { head.to_owned() } else { format!("{head}?{}", others.join("&")) };
    let location = Secret::new(&url);
    Ok(ChangesOrigin { url: PgUrl::read(&RawValue::Text(url))?, location, publication, slot, snapshot })
}

const TARGETS: &str = "write - (standard output), command:PROGRAM ARGUMENTS, http://..., https://..., postgres://..., \
                       gateway://USER@DATABASE or kafka://BROKER:9092/TOPIC";

impl Setting for StreamSink {
    const CLASS: ValueClass = ValueClass::Secret;

    fn read(value: &RawValue) -> Result<Self, ValueError> {
        let written = text(value, "\"http://localhost:8080/orders\"")?;
        if let Some(command) = written.strip_prefix("command:") {
            let command = command.trim();
            let error = || ValueError::new("the command is missing", "write command:PROGRAM ARGUMENTS");
            return (!command.is_empty()).then(|| Self::Command(command.to_owned())).ok_or_else(error);
        }
        match scheme(written) {
            _ if written.is_empty() => Ok(Self::Unset),
            _ if written == "-" => Ok(Self::Stdout),
            Some(("http" | "https", rest)) if !rest.is_empty() && !rest.starts_with('/') => {
                Ok(Self::Http(HttpTarget { url: written.to_owned() }))
            }
            Some(("postgres" | "postgresql", _)) => PgUrl::read(value).map(Self::Postgres),
            Some(("gateway", rest)) => gateway(rest).map(Self::Gateway),
            Some(("kafka", rest)) => topics(rest, true).map(Self::Kafka),
            Some((other, _)) => {
                let known = ["http", "https", "postgres", "gateway", "kafka"];
                let near = nearest(other, known.into_iter());
                let near = near.map_or_else(String::new, |near| format!("did you mean {near}://? "));
                Err(ValueError::new(format!("{other}:// is not a sink"), format!("{near}{TARGETS}")))
            }
            None => Err(ValueError::new("this is not a sink", TARGETS)),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Unset => String::new(),
            Self::Stdout => "-".to_owned(),
            Self::Http(target) => target.redacted_url(),
            Self::Postgres(url) => without_password(url),
            Self::Gateway(target) => format!("gateway://{}@{}", target.user, target.database),
            Self::Kafka(topics) => topics.url(),
            Self::Command(command) => format!("command:{}", program(command)),
        }
    }
}

/// A command without its arguments, any of which may be a secret: `exec sh send.sh --token=x` is `sh ...`.
fn program(command: &str) -> String {
    let mut words = command.split_whitespace().skip_while(|word| *word == "exec");
    let first = words.next().unwrap_or_default();
    // Anything else is a variable that is set for the program, or more of the shell's syntax.
    let is_name = first.chars().all(|c| c.is_alphanumeric() || "/._-+~@:".contains(c));
    match (is_name, words.next()) {
        (true, None) => first.to_owned(),
        (true, Some(_)) => format!("{first} ..."),
        (false, _) => "...".to_owned(),
    }
}

fn gateway(rest: &str) -> Result<GatewayTarget, ValueError> {
    let error = || ValueError::new("user and database are missing", "write gateway://USER@DATABASE");
    let (login, database) = rest.rsplit_once('@').ok_or_else(error)?;
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    if user.is_empty() || database.is_empty() || database.contains('/') {
        return Err(error());
    }
    Ok(GatewayTarget { user: user.to_owned(), password: Secret::new(password), database: database.to_owned() })
}

impl Setting for DeadLetterSink {
    const CLASS: ValueClass = ValueClass::File;

    fn read(value: &RawValue) -> Result<Self, ValueError> {
        let written = text(value, "\"dead.ndjson\"")?;
        match scheme(written) {
            _ if written.is_empty() => Ok(Self::None),
            None => Ok(Self::File(written.into())),
            Some(("kafka", rest)) => topics(rest, true).map(Self::Kafka),
            Some((other, _)) => Err(ValueError::new(
                format!("{other}:// is not a dead-letter destination"),
                "write the path of a file, or kafka://BROKER:9092/TOPIC",
            )),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::File(path) => path.display().to_string(),
            Self::Kafka(topics) => topics.url(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: Setting>(written: &str) -> Result<T, ValueError> {
        T::read(&RawValue::Text(written.to_owned()))
    }

    #[test]
    fn endpoints_are_shown_without_secrets() {
        for (written, shown) in [
            ("-", "-"),
            ("command: sh -c 'x'", "command:sh ..."),
            ("command:./handle.py", "command:./handle.py"),
            ("command:exec sh send.sh --token=t", "command:sh ..."),
            ("command:TOKEN='a b' ./handle.py", "command:..."),
            ("command:./handle.py<secret", "command:..."),
            ("https://me:pw@host:1/path?token=t", "https://host:1/path"),
            ("postgres://me:pw@host/db", "postgres://me@host:5432/db"),
            ("gateway://app:pw@shop", "gateway://app@shop"),
            ("kafka://a:1,b:2/t", "kafka://a:1,b:2/t"),
        ] {
            assert_eq!(read::<StreamSink>(written).map(|target| target.show()), Ok(shown.to_owned()), "{written}");
        }
        for written in ["-", "orders.ndjson", "kafka://a/t,u"] {
            assert_eq!(read::<StreamSource>(written).map(|origin| origin.show()), Ok(written.to_owned()), "{written}");
        }
        let origin = read::<StreamSource>("postgres://me:pw@host/db?publication=p%20q&sslmode=require&slot=s");
        let origin = origin.expect("a source");
        assert_eq!(origin.show(), "postgres://me@host:5432/db");
        let StreamSource::Postgres(origin) = origin else { panic!("{origin:?}") };
        assert_eq!((origin.publication.as_str(), origin.slot.as_str()), ("p q", "s"));
        assert_eq!(origin.url.password.reveal(), "pw");
        for written in ["dead.ndjson", "kafka://a/t"] {
            assert_eq!(
                read::<DeadLetterSink>(written).map(|letters| letters.show()),
                Ok(written.to_owned()),
                "{written}"
            );
        }
    }

    #[test]
    fn an_invalid_endpoint_has_help() {
        for written in
            ["out.ndjson", "kafka://a", "kafka://a/t,u", "kafka://u@a/t", "gateway://shop", "command: ", "http://"]
        {
            assert!(read::<StreamSink>(written).is_err(), "{written}");
        }
        let error = read::<StreamSink>("htp://host").expect_err("not a sink");
        assert!(error.help.contains("did you mean http://?"), "{error:?}");
        assert!(read::<StreamSource>("http://host").is_err_and(|error| error.help.contains("kafka://BROKER")));
        assert!(read::<StreamSource>("postgres://host/db?publicaton=p").is_err());
        assert!(read::<StreamSource>("kafka:///t").is_err() && read::<DeadLetterSink>("http://x").is_err());
    }
}
