//! The command line.
//!
//! This room parses, and carries out `check`; `run` and `demo` are carried out by whoever has a gateway to run, `journal` by
//! the room of that name.

mod stream;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand};

pub use stream::{Stream, Streams};

use tidegate_config as config;
use tidegate_config::{
    Config, ConfigErrors, Finding, Io, LogFormat, LogLevel, Severity,
    escape::{escaped, escaped_json},
    pgbouncer, pgpass,
};
use tidegate_query_log::options::Journal;

const EXAMPLES: &str = "\
One minute (a password on a command line is visible to everybody on the machine; the environment is not):
  export PGPASSWORD=secret                           or a line in ~/.pgpass
  tidegate run --database postgres://app@127.0.0.1:5432/shop
  psql postgres://app@127.0.0.1:6432/shop            the same login, through the gateway
  psql postgres://app@127.0.0.1:6432/tidegate        the admin console: SHOW HELP, SHOW POOLS
  TIDEGATE_DATABASE=postgres://app:secret@127.0.0.1:5432/shop tidegate run

With a file:
  tidegate check tidegate.toml                       everything that is wrong with it, by line
  tidegate run -c tidegate.toml

In place of PgBouncer, with its files:
  tidegate pgbouncer.ini                             -d, -R, -q, -v and -u as PgBouncer has them
  tidegate convert pgbouncer.ini                     the same as a tidegate.toml

Records in order per key, from Kafka or a file to whatever takes them:
  tidegate stream --from orders.ndjson --key /customer --to 'command:./handle.py'
  tidegate stream --help

See it at work (fetches a Postgres if none is at hand):
  tidegate demo

Who ran what, once [journal] names a folder:
  tidegate journal tail -f                           what runs now
  tidegate journal top --since 1h                    where the time went

Signals:
  HUP    read the configuration again; a bad file changes nothing, and the log says why
  TERM   stop when the last client has left (timeouts.shutdown bounds it)
  INT    stop when the transactions under way have ended; a second one stops now
  QUIT   stop now
  USR1   PAUSE, and USR2 RESUME, as in the admin console

Every key is described in docs/src/reference/configuration.md; tidegate.example.toml is a file to begin with.";

/// A Postgres gateway: many clients on few server connections, and nothing to change in the application.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, after_help = EXAMPLES, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
#[non_exhaustive]
pub enum Command {
    /// Run the gateway until a signal stops it.
    Run(Run),
    /// Say everything that is wrong with a configuration file; exit status 1 if it cannot be used.
    Check(Check),
    /// Print a pgbouncer.ini as the tidegate.toml that means the same.
    Convert(Convert),
    /// Run with a pgbouncer.ini: what `tidegate FILE.ini` stands for.
    #[command(hide = true)]
    Pgbouncer(Bouncer),
    /// Take records from Kafka or from a file to a web service, a Postgres, a topic or a command: in order per key.
    Stream(Box<Stream>),
    /// Start a Postgres and a gateway, run a short workload through both, and show the difference.
    Demo(Demo),
    /// Read the query journal: cat, tail, top, stats, verify, repair, merge, export.
    Journal(Box<Journal>),
}

/// `tidegate run`.
#[derive(Debug, Clone, Args, Default)]
pub struct Run {
    /// Configuration file [default: tidegate.toml].
    #[arg(short, long, value_name = "FILE", conflicts_with = "database")]
    pub config: Option<PathBuf>,

    /// Run without a file, for this Postgres [env: TIDEGATE_DATABASE]. Clients log in with the URL's user and password. The
    /// password of a user may be left to PGPASSWORD or to ~/.pgpass (PGPASSFILE), which other users of the machine cannot see.
    /// Without a password, whoever reaches the address is let in.
    #[arg(short, long, value_name = "URL")]
    pub database: Option<String>,

    /// Address to listen on instead of the configured ones; may be repeated.
    #[arg(short, long, value_name = "IP:PORT", value_parser = config::parse_listen_address)]
    pub listen: Vec<SocketAddr>,

    /// Threads of the data plane; 0 is half the cores.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub workers: Option<u16>,

    /// How to talk to the kernel.
    #[arg(long, value_name = "KIND", env = "TIDEGATE_IO", value_parser = words::<Io>(Io::WORDS))]
    pub io: Option<Io>,

    /// Form of log lines; auto is text, with colour on a terminal.
    #[arg(long, value_name = "FORM", value_parser = words::<LogFormat>(LogFormat::WORDS))]
    pub log_format: Option<LogFormat>,

    /// Least important event that is logged.
    #[arg(long, value_name = "LEVEL", value_parser = words::<LogLevel>(LogLevel::WORDS))]
    pub log_level: Option<LogLevel>,

    /// Take the listening sockets over from the gateway that runs with this configuration; it ends when its clients have
    /// left. Without one, start as usual. Needs unix_socket_dir.
    #[arg(long)]
    pub take_over: bool,

    /// The command line was PgBouncer's.
    #[arg(skip)]
    pub bouncer: Option<Bouncer>,
}

/// `tidegate pgbouncer.ini`, with PgBouncer's options.
#[derive(Debug, Clone, Args, Default)]
pub struct Bouncer {
    /// The pgbouncer.ini.
    pub file: PathBuf,

    /// Run in the background; needs `pidfile`, and `logfile` for a log.
    #[arg(short, long)]
    pub daemon: bool,

    /// Log to the file only, not to standard error.
    #[arg(short, long)]
    pub quiet: bool,

    /// Log more; twice for every message.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Take the listening sockets over from the process that runs with this file; it ends when its clients have left.
    #[arg(short = 'R', long)]
    pub reboot: bool,

    /// Become that user; has to be started as root.
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,

    /// Threads of the data plane; 0 is half the cores.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub workers: Option<u16>,

    /// How to talk to the kernel.
    #[arg(long, value_name = "KIND", env = "TIDEGATE_IO", value_parser = words::<Io>(Io::WORDS))]
    pub io: Option<Io>,

    /// Address that answers GET /metrics; may be repeated.
    #[arg(long, value_name = "IP:PORT", value_parser = config::parse_listen_address)]
    pub metrics: Vec<SocketAddr>,
}

impl From<Bouncer> for Run {
    fn from(bouncer: Bouncer) -> Self {
        Self { workers: bouncer.workers, io: bouncer.io, bouncer: Some(bouncer), ..Self::default() }
    }
}

/// `tidegate convert`.
#[derive(Debug, Clone, Args)]
pub struct Convert {
    /// The pgbouncer.ini.
    #[arg(default_value = "pgbouncer.ini")]
    pub file: PathBuf,
}

/// `tidegate check`.
#[derive(Debug, Clone, Args)]
pub struct Check {
    /// Configuration file.
    #[arg(default_value = "tidegate.toml")]
    pub file: PathBuf,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `tidegate demo`.
#[derive(Debug, Clone, Args)]
pub struct Demo {
    /// Leave Postgres and the gateway running, until Ctrl-C.
    #[arg(long)]
    pub keep: bool,

    /// Seconds of each measurement.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,

    /// Clients at a time.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub clients: u32,
}

/// A parser for the words of a configuration key; the help lists them.
fn words<T>(words: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words.iter().copied()).try_map(|word| word.parse::<T>())
}

impl Cli {
    /// Reads a command line. `tidegate [OPTIONS] FILE.ini` and `tidegate run FILE.ini` are PgBouncer's.
    pub fn read(arguments: impl Iterator<Item = OsString>) -> Self {
        let mut cli = Self::parse_from(with_command(arguments.collect()));
        if let Command::Run(run) = &mut cli.command {
            run.take_environment(&environment);
        }
        cli
    }
}

/// A variable of the environment.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The arguments, with the command that PgBouncer's command line leaves out.
fn with_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let first = arguments.get(1).and_then(|first| first.to_str()).unwrap_or_default();
    let is_command = first == "help" || Cli::command().find_subcommand(first).is_some();
    let named = |argument: &OsString| argument == "-c" || argument == "--config";
    let is_ini = |argument: &OsString| is_ini(Path::new(argument));
    let rest = arguments.get(1..).unwrap_or_default();
    if first == "run" && rest.iter().any(is_ini) && !rest.iter().any(named) {
        arguments[1] = "pgbouncer".into();
    } else if !is_command && rest.iter().any(|argument| is_ini(argument) || Path::new(argument).is_file()) {
        arguments.insert(1, "pgbouncer".into());
    }
    arguments
}

/// Reads a configuration: a `pgbouncer.ini` by the end of its name or by the section that makes it one, any other file as
/// TOML.
fn load(file: &Path) -> Result<Config, ConfigErrors> {
    if is_ini(file) { pgbouncer::load(file) } else { config::toml::load(file) }
}

fn is_ini(file: &Path) -> bool {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("ini") => true,
        Some("toml") => false,
        // What is read from a pipe cannot be read again.
        _ => {
            let begins_section = |line: &[u8]| line.trim_ascii_start().starts_with(b"[pgbouncer]");
            let bytes = if file.is_file() { config::toml::read_bytes(file).unwrap_or_default() } else { Vec::new() };
            bytes.split(|byte| *byte == b'\n').any(begins_section)
        }
    }
}

impl Bouncer {
    fn config(&self) -> Result<Config, ConfigErrors> {
        let mut config = pgbouncer::load(&self.file)?;
        let Config { log, metrics, runtime, .. } = &mut config;
        log.stderr &= !(self.quiet || self.daemon);
        match self.verbose {
            0 => {}
            1 => log.level = LogLevel::Debug,
            _ => log.level = LogLevel::Trace,
        }
        if let Some(user) = &self.user {
            runtime.user.clone_from(user);
        }
        if !self.metrics.is_empty() {
            metrics.addresses.clone_from(&self.metrics);
        }
        Ok(config)
    }
}

impl Convert {
    /// Prints the file as TOML.
    ///
    /// # Errors
    /// Everything that is wrong with the file.
    pub fn run(&self, out: &mut impl Write) -> Result<io::Result<()>, ConfigErrors> {
        pgbouncer::convert(&self.file).map(|text| out.write_all(text.as_bytes()))
    }
}

impl Run {
    /// Takes the URL from `TIDEGATE_DATABASE` if the command line names neither a URL nor a file.
    fn take_environment(&mut self, env: &dyn Fn(&str) -> Option<String>) {
        if self.database.is_none() && self.config.is_none() && self.bouncer.is_none() {
            self.database = env("TIDEGATE_DATABASE").filter(|url| !url.is_empty());
        }
    }

    /// The file that is read, or `None` when a URL stands for it. A reload reads it again.
    pub fn file(&self) -> Option<&Path> {
        if let Some(bouncer) = &self.bouncer {
            return Some(&bouncer.file);
        }
        let named = || self.config.as_deref().unwrap_or(Path::new("tidegate.toml"));
        self.database.is_none().then(named)
    }

    /// The same with another file, where there is one.
    #[must_use]
    pub fn reading(&self, file: Option<PathBuf>) -> Self {
        let mut run = self.clone();
        match (file, &mut run.bouncer) {
            (Some(file), Some(bouncer)) => bouncer.file = file,
            (Some(file), None) if run.database.is_none() => run.config = Some(file),
            _ => {}
        }
        run
    }

    /// Whether another process is to be replaced.
    pub fn takes_over(&self) -> bool {
        self.take_over || self.bouncer.as_ref().is_some_and(|bouncer| bouncer.reboot)
    }

    /// The configuration: the file's or the URL's, with what the command line says over it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn config(&self) -> Result<Config, ConfigErrors> {
        let mut config = match (&self.bouncer, &self.database, self.file()) {
            (Some(bouncer), ..) => bouncer.config()?,
            (None, Some(url), _) => Config::from_url(&pgpass::with_password(url, &environment))?,
            (None, None, file) => load(file.unwrap_or(Path::new("tidegate.toml")))?,
        };
        if !self.listen.is_empty() {
            config.listen_on(self.listen.clone());
        }
        let Config { runtime, log, .. } = &mut config;
        runtime.workers = self.workers.unwrap_or(runtime.workers);
        runtime.io = self.io.unwrap_or(runtime.io);
        log.format = self.log_format.unwrap_or(log.format);
        log.level = self.log_level.unwrap_or(log.level);
        let exposure = config.exposure(self.file());
        config.warnings.extend(exposure);
        Ok(config)
    }
}

impl Check {
    /// Prints what is wrong with the file, or that nothing is; whether it can be used. `refusals` says what keeps a
    /// configuration that is sound in itself from being run.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn run(&self, out: &mut impl Write, refusals: impl Fn(&Config) -> Vec<Finding>) -> io::Result<bool> {
        let checked = load(&self.file).and_then(|mut config| {
            let refusals = refusals(&config);
            if refusals.is_empty() {
                let exposure = config.exposure(Some(&self.file));
                config.warnings.extend(exposure);
                return Ok(config);
            }
            let warnings = std::mem::take(&mut config.warnings);
            Err(ConfigErrors::new(warnings.into_iter().chain(refusals).collect()))
        });
        let findings = match &checked {
            Ok(config) => &config.warnings,
            Err(errors) => errors.findings(),
        };
        if self.json {
            let report = serde_json::json!({ "ok": checked.is_ok(), "findings": findings });
            writeln!(out, "{}", escaped_json(&report.to_string()))?;
            return Ok(checked.is_ok());
        }
        for finding in findings {
            writeln!(out, "{finding}")?;
        }
        writeln!(out, "{}: {}", escaped(&self.file.display().to_string()), verdict(&checked, findings))?;
        Ok(checked.is_ok())
    }
}

/// `good: 2 databases, 1 user, 0 warnings`, or how many errors there are.
fn verdict(checked: &Result<Config, ConfigErrors>, findings: &[Finding]) -> String {
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let warnings = counted(of(Severity::Warning), "warning");
    match checked {
        Err(_) => format!("cannot be used: {}, {warnings}", counted(of(Severity::Error), "error")),
        Ok(config) => {
            let databases = counted(config.databases.len(), "database");
            let streams = match config.streams.len() {
                0 => String::new(),
                some => format!("{}, ", counted(some, "stream")),
            };
            format!("good: {databases}, {}, {streams}{warnings}", counted(config.users.len(), "user"))
        }
    }
}

fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_url_may_come_from_the_environment() {
        let env = |name: &str| (name == "TIDEGATE_DATABASE").then(|| "postgres://env/shop".to_owned());
        for (arguments, database) in [
            (&[][..], Some("postgres://env/shop")),
            (&["-d", "postgres://own/shop"], Some("postgres://own/shop")),
            (&["-c", "tidegate.toml"], None),
        ] {
            let mut run = run(arguments);
            run.take_environment(&env);
            assert_eq!(run.database.as_deref(), database, "{arguments:?}");
        }
    }

    fn run(arguments: &[&str]) -> Run {
        let all = ["tidegate", "run"].iter().chain(arguments);
        match Cli::try_parse_from(all).expect("a command line").command {
            Command::Run(run) => run,
            other => panic!("not run: {other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_teaches() {
        let help = Cli::command().render_help().to_string();
        for word in
            ["run", "check", "stream", "demo", "journal", "One minute", "Signals", "configuration.md", "--version"]
        {
            assert!(help.contains(word), "{word} is not in\n{help}");
        }
    }

    #[test]
    fn the_command_line_goes_before_the_configuration() {
        let url = "postgres://app:secret@db/shop?sslmode=verify-full";
        let run = run(&[
            "-d",
            url,
            "-l",
            "127.0.0.1:0",
            "-l",
            "*:7000",
            "--workers",
            "3",
            "--io",
            "epoll",
            "--log-level",
            "debug",
        ]);
        let config = run.config().expect("a configuration");
        let addresses: Vec<_> = config.listen.addresses.iter().map(SocketAddr::to_string).collect();
        assert_eq!(addresses, ["127.0.0.1:0", "0.0.0.0:7000"]);
        assert_eq!((config.runtime.workers, config.runtime.io, config.log.level), (3, Io::Epoll, LogLevel::Debug));
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    }

    #[test]
    fn a_url_without_a_password_on_an_open_address_is_warned_of() {
        let url = "postgres://db/shop?sslmode=verify-full";
        let config = run(&["-d", url, "-l", "*:7000"]).config().expect("a configuration");
        assert_eq!(config.warnings.len(), 1);
        assert!(config.warnings[0].reason.contains("trust"), "{:?}", config.warnings);
    }

    #[test]
    fn the_command_line_of_pgbouncer_needs_no_command() {
        let given = |arguments: &[&str]| {
            let all = std::iter::once("tidegate").chain(arguments.iter().copied()).map(OsString::from).collect();
            match Cli::try_parse_from(with_command(all)).expect("a command line").command {
                Command::Pgbouncer(bouncer) => bouncer,
                other => panic!("not PgBouncer's: {other:?}"),
            }
        };
        for arguments in [&["a.ini"][..], &["run", "a.ini"], &["-q", "a.ini"]] {
            assert_eq!(given(arguments).file, Path::new("a.ini"), "{arguments:?}");
        }
        let all = given(&["-d", "-q", "-v", "-v", "-u", "pooler", "a.ini"]);
        assert!(all.daemon && all.quiet && all.verbose == 2 && all.user.as_deref() == Some("pooler"));
        assert!(Run::from(given(&["-R", "-d", "a.ini"])).takes_over() && !Run::from(all).takes_over());
        let plain = |arguments: &[&str]| arguments.iter().map(OsString::from).collect::<Vec<_>>();
        for arguments in [&["tidegate", "check", "a.ini"][..], &["tidegate", "run", "-c", "a.ini"], &["tidegate"]] {
            assert_eq!(with_command(plain(arguments)), plain(arguments));
        }
        for command in Cli::command().get_subcommands().filter(|command| command.get_name() != "run") {
            let arguments = ["tidegate", command.get_name(), "a.ini"];
            assert_eq!(with_command(plain(&arguments)), plain(&arguments), "a command of its own");
        }
    }

    #[test]
    fn a_file_and_a_url_are_one_too_many() {
        let both = ["tidegate", "run", "-c", "a.toml", "-d", "postgres://db/shop"];
        assert!(Cli::try_parse_from(both).is_err());
    }

    fn checked(text: &str, json: bool) -> (bool, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tidegate.toml");
        std::fs::write(&file, text).expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("one's own file");
        let mut out = Vec::new();
        let good = Check { file, json }.run(&mut out, |_| Vec::new()).expect("memory can be written");
        (good, String::from_utf8(out).expect("text"))
    }

    #[test]
    fn check_tells_good_from_bad() {
        let (good, text) = checked("[databases.shop]\nhost = \"localhost\"\n[users.app]\npassword = \"x\"\n", false);
        assert!(good && text.ends_with("good: 1 database, 1 user, 0 warnings\n"), "{text}");
        let (good, text) = checked("[databases.shop]\nhost = \"db\"\n[users.app]\npassword = \"x\"\n", false);
        assert!(good && text.contains("sslmode prefer") && text.contains("1 warning"), "{text}");
        let (good, text) = checked("[databases.shop]\nhos = \"db\"\n", false);
        assert!(!good && text.contains("tidegate.toml:2:1") && text.contains("did you mean `host`?"), "{text}");
    }

    #[test]
    fn check_speaks_json() {
        let (good, text) = checked("[users.app]\nhos = 1\npassword = \"x\"\n[databases.shop]\nhost = \"db\"\n", true);
        let report: serde_json::Value = serde_json::from_str(&text).expect("an object");
        assert!(!good);
        assert_eq!((&report["ok"], &report["findings"][0]["line"]), (&false.into(), &2.into()));
        assert_eq!(report["findings"][0]["severity"], "error");
    }
}
