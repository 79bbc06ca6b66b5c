//! Arguments of `tidegate top`.

use std::str::FromStr as _;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use tidegate_changes::ConnectOptions;
use tidegate_config::{AdminConfig, PgUrl, pgpass};

use crate::screen::Screen;

const EXAMPLES: &str = "\
Examples:
  export PGPASSWORD=secret                       or a line in ~/.pgpass
  tidegate top postgres://ann@127.0.0.1:6432/tidegate
  tidegate top -H 10.0.0.5 -U ann                port 6432, or PGPORT
  tidegate top -H /var/run/tidegate -U tidegate  over the Unix socket
  tidegate top --once --screen pools             one table as text, for scripts
  tidegate top --json | jq '.load.transactions'  everything as one JSON object

Keys: 1 to 7 screens, arrows, < > column to sort by, r reverse, / filter, space pause, Enter details,
K disconnect a client, ? all keys, q quit.

The user is one of admin.users or admin.stats_users. The latter see no texts of statements and cannot disconnect clients.";

/// Reads a variable of the environment.
pub type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Default port of the gateway.
const PORT: u16 = 6432;
/// Bounds of the interval, in seconds.
const INTERVAL_SECONDS: std::ops::RangeInclusive<f64> = 0.2..=3600.0;

/// `tidegate top`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct MonitorArgs {
    /// The admin console: postgres://USER@HOST:PORT/tidegate.
    #[arg(conflicts_with_all = ["host", "port", "user"])]
    pub url: Option<String>,

    /// Host, or folder of the Unix socket [env: PGHOST] [default: 127.0.0.1].
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: Option<String>,

    /// Port [env: PGPORT] [default: 6432].
    #[arg(short, long, value_name = "PORT")]
    pub port: Option<u16>,

    /// User of the console [env: PGUSER] [default: USER or LOGNAME].
    #[arg(short = 'U', long, value_name = "USER")]
    pub user: Option<String>,

    /// Seconds between two updates.
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = parse_interval)]
    pub interval: Duration,

    /// First screen; with --json, the only one.
    #[arg(short, long, value_name = "SCREEN", value_enum)]
    pub screen: Option<Screen>,

    /// Show only rows that contain this text.
    #[arg(short, long, value_name = "TEXT")]
    pub filter: Option<String>,

    /// Column to sort by, as its title; with a minus, in the other direction.
    #[arg(long, value_name = "[-]COLUMN", requires = "screen", allow_hyphen_values = true)]
    pub sort: Option<String>,

    /// Period of slow queries, in minutes.
    #[arg(short, long, value_name = "MINUTES", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1440))]
    pub minutes: u16,

    /// Print one screen as text, and exit.
    #[arg(long)]
    pub once: bool,

    /// Print one JSON object, and exit.
    #[arg(long)]
    pub json: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let (min, max) = (INTERVAL_SECONDS.start(), INTERVAL_SECONDS.end());
    let seconds: f64 = text.parse().map_err(|_| format!("write a number of seconds, from {min} to {max}"))?;
    if !INTERVAL_SECONDS.contains(&seconds) {
        return Err(format!("the interval is {min} to {max} seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Encodes a text for a URL.
fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

impl MonitorArgs {
    /// The URL of the console, without a password that is not in it.
    fn url(&self, env: Environment<'_>) -> anyhow::Result<String> {
        let console = AdminConfig::CONSOLE_DATABASES[0];
        let variable = |name: &str| env(name).filter(|value| !value.is_empty());
        if let Some(url) = &self.url {
            let parsed = PgUrl::from_str(url).map_err(|error| anyhow::anyhow!("invalid URL: {error}"))?;
            if !parsed.dbname.is_empty() {
                return Ok(url.clone());
            }
            return Ok(format!("{url}{}dbname={console}", if url.contains('?') { '&' } else { '?' }));
        }
        let host = self.host.clone().or_else(|| variable("PGHOST")).unwrap_or_else(|| "127.0.0.1".to_owned());
        if let Some((name, port)) =
            host.split_once(':').filter(|(_, port)| !host.starts_with('/') && !port.contains(':'))
        {
            bail!("\"{host}\" is not a host: write --host {name} --port {port}");
        }
        let port = match (self.port, variable("PGPORT")) {
            (Some(port), _) => port,
            (None, Some(text)) => text.parse().with_context(|| format!("PGPORT is \"{text}\", not a port"))?,
            (None, None) => PORT,
        };
        let system_user = || variable("USER").or_else(|| variable("LOGNAME"));
        let Some(user) = self.user.clone().or_else(|| variable("PGUSER")).or_else(system_user) else {
            bail!("no user: neither PGUSER nor USER is set; add --user");
        };
        Ok(format!("postgres://{}@/{console}?host={}&port={port}", encoded(&user), encoded(&host)))
    }

    /// How to connect to the console.
    ///
    /// # Errors
    /// The URL or a variable is invalid.
    pub(crate) fn connect_options(&self, env: Environment<'_>) -> anyhow::Result<ConnectOptions> {
        let url = pgpass::with_password(&self.url(env)?, env);
        Ok(ConnectOptions::from_url(&url)?.for_console("tidegate top"))
    }

    /// Checks the name of the column to sort by.
    ///
    /// # Errors
    /// The screen has no such column; the error lists its columns.
    pub(crate) fn check_sort(&self) -> anyhow::Result<()> {
        let (Some(sort), Some(screen)) = (&self.sort, self.screen) else { return Ok(()) };
        if screen.column_named(sort.trim_start_matches('-')).is_some() {
            return Ok(());
        }
        let titles: Vec<&str> = screen.columns().iter().map(|column| column.title).collect();
        if titles.is_empty() {
            bail!("the overview cannot be sorted");
        }
        bail!("screen {} has no column \"{sort}\"; its columns are {}", screen.name(), titles.join(", "));
    }
}

/// Whether the user expects colours (<https://no-color.org>) and the terminal has some.
pub(crate) fn has_colour(env: Environment<'_>) -> bool {
    let is_set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && env("TERM").is_none_or(|term| term != "dumb" && !term.starts_with("vt"))
}

/// Whether the locale has characters beyond ASCII.
pub(crate) fn is_utf8(env: Environment<'_>) -> bool {
    let names = ["LC_ALL", "LC_CTYPE", "LANG"];
    let locale = names.iter().find_map(|name| env(name).filter(|value| !value.is_empty())).unwrap_or_default();
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestCli {
        #[command(flatten)]
        top: MonitorArgs,
    }

    fn url(arguments: &[&str], env: &[(&str, &str)]) -> anyhow::Result<String> {
        let cli = TestCli::try_parse_from([&["top"], arguments].concat())?;
        let env = |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        cli.top.connect_options(&env)?;
        cli.top.url(&env)
    }

    #[test]
    fn address_comes_from_url_options_or_environment() {
        let env = [("PGHOST", "db"), ("PGPORT", "7000"), ("PGUSER", "bob"), ("USER", "root")];
        for (arguments, env, expected) in [
            (&["postgres://ann@h:1/pgbouncer"][..], &env[..], "postgres://ann@h:1/pgbouncer"),
            (&["postgres://ann@h:1"], &env, "postgres://ann@h:1?dbname=tidegate"),
            (&["postgres://ann@h:1?sslmode=require"], &env, "postgres://ann@h:1?sslmode=require&dbname=tidegate"),
            (&[], &env, "postgres://bob@/tidegate?host=db&port=7000"),
            (&[], &env[3..], "postgres://root@/tidegate?host=127.0.0.1&port=6432"),
            (&["-H", "/run/t", "-p", "1", "-U", "a@b"], &env, "postgres://a%40b@/tidegate?host=%2Frun%2Ft&port=1"),
        ] {
            assert_eq!(url(arguments, env).expect("valid"), expected);
        }
        let error = url(&["-H", "db:6432"], &env).expect_err("a port in the host").to_string();
        assert_eq!(error, "\"db:6432\" is not a host: write --host db --port 6432");
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for (arguments, env, expected) in [
            (&[][..], &[][..], "--user"),
            (&[], &[("PGUSER", "a"), ("PGPORT", "x")], "PGPORT"),
            (&["http://a"], &[], "invalid URL"),
            (&["postgres://a@h", "-p", "1"], &[], "cannot be used"),
            (&["-i", "0"], &[], "interval"),
        ] {
            let error = url(arguments, env).expect_err("invalid").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn unknown_sort_column_lists_the_columns() {
        let sort = |column: &str| {
            TestCli::parse_from(["top", "--screen", "pools", "--sort", column, "postgres://a@h"]).top.check_sort()
        };
        assert!(sort("waiting").is_ok() && sort("-maxwait").is_ok());
        let error = sort("size_of").expect_err("unknown").to_string();
        assert!(error.contains("waiting") && error.contains("size_of"), "{error}");
    }
}
