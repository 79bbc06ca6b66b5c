//! The two ends of a stream, each in one text.

use std::path::PathBuf;

use crate::{
    raw::Value,
    secret::Secret,
    setting::{Holds, Setting, Wrong, nearest, text},
    url::PgUrl,
};

/// Topics of a Kafka.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topics {
    /// As in `bootstrap.servers`.
    pub brokers: String,
    /// At least one.
    pub topics: Vec<String>,
}

/// Where records come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Origin {
    /// Nobody said.
    #[default]
    Unset,
    /// Standard input, a JSON value per line.
    Stdin,
    /// A file, a JSON value per line.
    File(PathBuf),
    /// Topics of a Kafka.
    Kafka(Topics),
}

/// Where records go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Target {
    /// Nobody said.
    #[default]
    Unset,
    /// Standard output, a line per record.
    Stdout,
    /// A POST to this URL.
    Http(HttpTarget),
    /// A statement, straight to this Postgres.
    Postgres(PgUrl),
    /// A statement, through the gateway of this configuration.
    Gateway(GatewayTarget),
    /// A topic.
    Kafka(Topics),
    /// A command's standard input.
    Command(String),
}

/// A URL that may hold a password.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpTarget {
    /// The whole URL.
    pub url: String,
}

impl HttpTarget {
    /// Without what stands before an `@`, and without the query: either may be a secret.
    pub fn shown(&self) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("http", &self.url));
        let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        format!("{scheme}://{host}{path}")
    }
}

impl std::fmt::Debug for HttpTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

/// A login at the gateway itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayTarget {
    /// The user.
    pub user: String,
    /// Empty for the one in `[users]`.
    pub password: Secret,
    /// The database, as clients name it.
    pub database: String,
}

/// Where records go that cannot be done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Letters {
    /// Nowhere.
    #[default]
    None,
    /// To the end of this file, a JSON object per line.
    File(PathBuf),
    /// To a topic.
    Kafka(Topics),
}

const KAFKA: &str = "write kafka://BROKER:9092/TOPIC; several brokers, and several topics, are separated by commas";

fn topics(rest: &str, only_one: bool) -> Result<Topics, Wrong> {
    let wrong = |reason: &str| Wrong::new(reason, KAFKA);
    let (brokers, topics) = rest.split_once('/').ok_or_else(|| wrong("the URL names no topic"))?;
    if brokers.is_empty() {
        return Err(wrong("the URL names no broker"));
    }
    if brokers.contains('@') || topics.contains('?') {
        let help = "a login and other settings go into kafka_properties = { \"sasl.username\" = \"...\" }";
        return Err(Wrong::new("a Kafka URL holds brokers and topics only", help));
    }
    let topics: Vec<String> = topics.split(',').filter(|topic| !topic.is_empty()).map(str::to_owned).collect();
    match topics.len() {
        0 => Err(wrong("the URL names no topic")),
        1 => Ok(Topics { brokers: brokers.to_owned(), topics }),
        _ if only_one => Err(Wrong::new("records can go to one topic only", "write kafka://BROKER:9092/TOPIC")),
        _ => Ok(Topics { brokers: brokers.to_owned(), topics }),
    }
}

impl Topics {
    fn shown(&self) -> String {
        format!("kafka://{}/{}", self.brokers, self.topics.join(","))
    }
}

/// What stands before `://`.
fn scheme(written: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = written.split_once("://")?;
    scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()).then_some((scheme, rest))
}

impl Setting for Origin {
    const HOLDS: Holds = Holds::File;

    fn read(value: &Value) -> Result<Self, Wrong> {
        let written = text(value, "\"orders.ndjson\"")?;
        match scheme(written) {
            _ if written.is_empty() => Ok(Self::Unset),
            _ if written == "-" => Ok(Self::Stdin),
            None => Ok(Self::File(written.into())),
            Some(("kafka", rest)) => topics(rest, false).map(Self::Kafka),
            Some((other, _)) => Err(Wrong::new(
                format!("records cannot come from {other}://"),
                "write kafka://BROKER:9092/TOPIC, the path of a file, or - for standard input",
            )),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Unset => String::new(),
            Self::Stdin => "-".to_owned(),
            Self::File(path) => path.display().to_string(),
            Self::Kafka(topics) => topics.shown(),
        }
    }
}

const TARGETS: &str = "write - (standard output), command:PROGRAM ARGUMENTS, http://..., https://..., postgres://..., \
                       gateway://USER@DATABASE or kafka://BROKER:9092/TOPIC";

impl Setting for Target {
    const HOLDS: Holds = Holds::Secret;

    fn read(value: &Value) -> Result<Self, Wrong> {
        let written = text(value, "\"http://localhost:8080/orders\"")?;
        if let Some(command) = written.strip_prefix("command:") {
            let command = command.trim();
            let wrong = || Wrong::new("no command is named", "write command:PROGRAM ARGUMENTS");
            return (!command.is_empty()).then(|| Self::Command(command.to_owned())).ok_or_else(wrong);
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
                Err(Wrong::new(format!("records cannot go to {other}://"), format!("{near}{TARGETS}")))
            }
            None => Err(Wrong::new("this is nowhere that records can go", TARGETS)),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Unset => String::new(),
            Self::Stdout => "-".to_owned(),
            Self::Http(target) => target.shown(),
            Self::Postgres(url) => {
                let hosts: Vec<_> = url.hosts.iter().map(ToString::to_string).collect();
                format!("postgres://{}@{}/{}", url.user, hosts.join(","), url.dbname)
            }
            Self::Gateway(target) => format!("gateway://{}@{}", target.user, target.database),
            Self::Kafka(topics) => topics.shown(),
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

fn gateway(rest: &str) -> Result<GatewayTarget, Wrong> {
    let wrong = || Wrong::new("this names no user and database of the gateway", "write gateway://USER@DATABASE");
    let (login, database) = rest.rsplit_once('@').ok_or_else(wrong)?;
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    if user.is_empty() || database.is_empty() || database.contains('/') {
        return Err(wrong());
    }
    Ok(GatewayTarget { user: user.to_owned(), password: Secret::new(password), database: database.to_owned() })
}

impl Setting for Letters {
    const HOLDS: Holds = Holds::File;

    fn read(value: &Value) -> Result<Self, Wrong> {
        let written = text(value, "\"dead.ndjson\"")?;
        match scheme(written) {
            _ if written.is_empty() => Ok(Self::None),
            None => Ok(Self::File(written.into())),
            Some(("kafka", rest)) => topics(rest, true).map(Self::Kafka),
            Some((other, _)) => Err(Wrong::new(
                format!("letters cannot go to {other}://"),
                "write the path of a file, or kafka://BROKER:9092/TOPIC",
            )),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::File(path) => path.display().to_string(),
            Self::Kafka(topics) => topics.shown(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: Setting>(written: &str) -> Result<T, Wrong> {
        T::read(&Value::Text(written.to_owned()))
    }

    #[test]
    fn ends_are_read_and_shown_without_their_secrets() {
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
            assert_eq!(read::<Target>(written).map(|target| target.show()), Ok(shown.to_owned()), "{written}");
        }
        for written in ["-", "orders.ndjson", "kafka://a/t,u"] {
            assert_eq!(read::<Origin>(written).map(|origin| origin.show()), Ok(written.to_owned()), "{written}");
        }
        for written in ["dead.ndjson", "kafka://a/t"] {
            assert_eq!(read::<Letters>(written).map(|letters| letters.show()), Ok(written.to_owned()), "{written}");
        }
    }

    #[test]
    fn what_cannot_be_an_end_says_what_can() {
        for written in
            ["out.ndjson", "kafka://a", "kafka://a/t,u", "kafka://u@a/t", "gateway://shop", "command: ", "http://"]
        {
            assert!(read::<Target>(written).is_err(), "{written}");
        }
        let wrong = read::<Target>("htp://host").expect_err("no such end");
        assert!(wrong.help.contains("did you mean http://?"), "{wrong:?}");
        assert!(read::<Origin>("http://host").is_err_and(|wrong| wrong.help.contains("kafka://BROKER")));
        assert!(read::<Origin>("kafka:///t").is_err() && read::<Letters>("http://x").is_err());
    }
}
