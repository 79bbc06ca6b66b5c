//! The command line.
//!
//! Parses all commands and executes `check` and `convert`. The module [`run`](crate::run) executes the commands that need a
//! gateway; `tidegate-query-log` executes `journal`.

mod backfill;
mod container;
mod documents;
mod healthcheck;
mod shapes;
mod slots;
mod stream;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, CommandFactory, Parser, Subcommand};

pub use backfill::BackfillArgs;
pub use container::{MemoryFiles, arguments as container_arguments};
pub use documents::{CompletionsArgs, ManArgs};
pub use healthcheck::HealthcheckArgs;
pub use shapes::ShapesArgs;
pub(crate) use shapes::slot_suffix;
pub use slots::{SlotCommand, SlotsArgs};
pub use stream::{SelectedStreams, StreamArgs};

use tidegate_config as config;
use tidegate_config::environment::{self as variables, ConfigBase};
use tidegate_config::{
    Config, ConfigErrors, Diagnostic, DiagnosticSeverity, IoBackend, ListenAddresses, LogFormat, LogLevel,
    escape::{escaped, escaped_json},
    pgbouncer, pgpass,
};
use tidegate_query_log::options::JournalArgs;
use tidegate_top::MonitorArgs;

/// The file of `run` if none is named.
const DEFAULT_FILE: &str = "tidegate.toml";

const EXAMPLES: &str = "\
One minute (a password on a command line is visible to all users of the
machine; the environment is not):
  export PGPASSWORD=secret                      or a line in ~/.pgpass
  tidegate run --database postgres://app@127.0.0.1:5432/shop
  psql postgres://app@127.0.0.1:6432/shop       the same login, by the gateway
  psql postgres://app@127.0.0.1:6432/tidegate   the console: SHOW HELP
  TIDEGATE_DATABASE=postgres://app@127.0.0.1/shop TIDEGATE_POOL_SIZE=40 \\
    tidegate run

With a file:
  tidegate check tidegate.toml                  all errors, by line
  tidegate run -c tidegate.toml

In place of PgBouncer, with its files and its options -d, -R, -q, -v and -u:
  tidegate pgbouncer.ini
  tidegate convert pgbouncer.ini                the same as a tidegate.toml

Streams of records, in order per key, from Kafka or a file to a sink:
  tidegate stream --from orders.ndjson --key /customer \\
    --to 'command:./handle.py'
  tidegate stream --help

Live queries over HTTP, for Electric's clients and curl:
  tidegate shapes --database postgres://app@127.0.0.1:5432/shop
  curl 'http://127.0.0.1:3000/v1/shape?table=items&offset=-1'

Changes of a Postgres database as a stream:
  tidegate slots postgres://cdc@localhost/shop \\
    create orders --publication orders
  tidegate stream --to - \\
    --from 'postgres://cdc@localhost/shop?publication=orders&slot=orders'

Demo (downloads Postgres if none is installed):
  tidegate demo

A running gateway in the terminal:
  tidegate top postgres://app@127.0.0.1:6432/tidegate

Query log, if [journal] has a folder:
  tidegate journal tail -f                      current queries
  tidegate journal top --since 1h               queries by total time

Signals:
  HUP   reload the configuration; an invalid file changes nothing
  TERM  stop when the last client has disconnected, or timeouts.shutdown ends
  INT   stop when running transactions have ended; a second one stops now
  QUIT  stop now
  USR1  PAUSE, and USR2 RESUME, as in the admin console

`tidegate man .` writes manual pages; tidegate.toml(5) describes every key.
tidegate.example.toml is a starting point.";

/// A Postgres gateway: many clients on few server connections, without changes to the application.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, after_help = EXAMPLES, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands of `tidegate`.
#[derive(Debug, Subcommand)]
#[non_exhaustive]
pub enum Command {
    /// Run the gateway until a signal stops it.
    Run(RunArgs),
    /// Report all errors of a configuration file; exit status 1 if it is invalid.
    Check(CheckArgs),
    /// Convert a pgbouncer.ini to an equivalent tidegate.toml.
    Convert(ConvertArgs),
    /// Run with a pgbouncer.ini: the long form of `tidegate FILE.ini`.
    #[command(hide = true)]
    Pgbouncer(PgbouncerArgs),
    /// Deliver records from Kafka, Postgres or a file to HTTP, Postgres, Kafka or a command, in order per key.
    Stream(Box<StreamArgs>),
    /// Serve live queries of a database over HTTP: Electric's shape protocol.
    Shapes(Box<ShapesArgs>),
    /// List, create, advance and drop replication slots.
    Slots(SlotsArgs),
    /// Copy a table again in a running stream of Postgres changes.
    Backfill(BackfillArgs),
    /// Start a Postgres and a gateway, run a short workload through both, and show the difference.
    Demo(DemoArgs),
    /// Read the query log: cat, tail, top, stats, verify, repair, merge, export.
    Journal(Box<JournalArgs>),
    /// Show a running gateway in the terminal: load, pools, clients, servers, hosts, slow queries.
    Top(MonitorArgs),
    /// Check that a running gateway answers; exit status 1 if it does not.
    Healthcheck(HealthcheckArgs),
    /// Run in a container: with mounted files, or with variables of the environment, also those of PgBouncer's images.
    Container,
    /// Print the completions of a shell.
    Completions(CompletionsArgs),
    /// Write the manual pages to a folder.
    Man(ManArgs),
}

/// `tidegate run`.
#[derive(Debug, Clone, Args, Default)]
pub struct RunArgs {
    /// Configuration file [default: tidegate.toml].
    #[arg(short, long, value_name = "FILE", conflicts_with = "database")]
    pub config: Option<PathBuf>,

    /// Run without a file, for this Postgres [env: TIDEGATE_DATABASE]. Clients log in with the URL's user and password. The
    /// password may come from PGPASSWORD or ~/.pgpass (PGPASSFILE), which other users of the machine cannot see. Without a
    /// password, all clients are accepted.
    #[arg(short, long, value_name = "URL")]
    pub database: Option<String>,

    /// Address to listen on instead of the configured ones; may be repeated.
    #[arg(short, long, value_name = "IP:PORT", value_parser = config::parse_listen_addresses)]
    pub listen: Vec<ListenAddresses>,

    /// Threads of the data plane; 0 is half the cores.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub workers: Option<u16>,

    /// I/O interface of the kernel.
    #[arg(long, value_name = "KIND", env = "TIDEGATE_IO", value_parser = key_values::<IoBackend>(IoBackend::WORDS))]
    pub io: Option<IoBackend>,

    /// Format of log lines; auto is text, with colour on a terminal.
    #[arg(long, value_name = "FORM", value_parser = key_values::<LogFormat>(LogFormat::WORDS))]
    pub log_format: Option<LogFormat>,

    /// Least important event that is logged.
    #[arg(long, value_name = "LEVEL", value_parser = key_values::<LogLevel>(LogLevel::WORDS))]
    pub log_level: Option<LogLevel>,

    /// Take over the listening sockets, and sessions between transactions, of the gateway that runs with this configuration; it
    /// stops when it has no client left. If none is running, start normally.
    #[arg(long)]
    pub take_over: bool,

    /// PgBouncer's command line was used.
    #[arg(skip)]
    pub bouncer: Option<PgbouncerArgs>,

    /// Variables of the environment, which override keys of the file or the URL.
    #[arg(skip)]
    pub variables: Vec<(String, String)>,

    /// The variables are the whole configuration.
    #[arg(skip)]
    pub without_file: bool,
}

/// `tidegate pgbouncer.ini`, with PgBouncer's options.
#[derive(Debug, Clone, Args, Default)]
pub struct PgbouncerArgs {
    /// The pgbouncer.ini. As in PgBouncer, relative paths in it start at the working directory.
    pub file: PathBuf,

    /// Run in the background; requires `pidfile`, and `logfile` for a log.
    #[arg(short, long)]
    pub daemon: bool,

    /// Log to the file only.
    #[arg(short, long)]
    pub quiet: bool,

    /// Log more; repeat to log every message.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Take over the listening sockets, and sessions between transactions, of the process that runs with this file; it stops when
    /// it has no client left.
    #[arg(short = 'R', long)]
    pub reboot: bool,

    /// Change to this user; requires root.
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,

    /// Threads of the data plane; 0 is half the cores.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub workers: Option<u16>,

    /// I/O interface of the kernel.
    #[arg(long, value_name = "KIND", env = "TIDEGATE_IO", value_parser = key_values::<IoBackend>(IoBackend::WORDS))]
    pub io: Option<IoBackend>,

    /// Address that answers GET /metrics; may be repeated.
    #[arg(long, value_name = "IP:PORT", value_parser = config::parse_listen_addresses)]
    pub metrics: Vec<ListenAddresses>,
}

impl From<PgbouncerArgs> for RunArgs {
    fn from(bouncer: PgbouncerArgs) -> Self {
        Self { workers: bouncer.workers, io: bouncer.io, bouncer: Some(bouncer), ..Self::default() }
    }
}

/// `tidegate convert`.
#[derive(Debug, Clone, Args)]
pub struct ConvertArgs {
    /// The pgbouncer.ini. As in PgBouncer, relative paths in it start at the working directory.
    #[arg(default_value = "pgbouncer.ini")]
    pub file: PathBuf,
}

/// `tidegate check`.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// Configuration file.
    #[arg(default_value = "tidegate.toml")]
    pub file: PathBuf,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `tidegate demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Keep Postgres and the gateway running until Ctrl-C.
    #[arg(long)]
    pub keep: bool,

    /// Duration of each measurement in seconds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,

    /// Number of concurrent clients.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub clients: u32,
}

/// Parser for the values of a configuration key; the help lists them.
fn key_values<T>(key_values: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(key_values.iter().copied()).try_map(|word| word.parse::<T>())
}

impl Cli {
    /// Parses a command line. `tidegate [OPTIONS] FILE.ini` and `tidegate run FILE.ini` are PgBouncer's.
    pub fn read(arguments: impl Iterator<Item = OsString>) -> Self {
        let arguments: Vec<OsString> = arguments.collect();
        if asks_for_pgbouncer(&arguments) {
            println!("{}", pgbouncer::FULL_VERSION);
            std::process::exit(0);
        }
        let mut cli = Self::parse_from(with_command(arguments));
        if let Command::Run(run) = &mut cli.command {
            run.take_environment(&environment, &environment_variables());
        }
        cli
    }
}

/// Whether the binary was started as `pgbouncer` for its version, which scripts compare.
fn asks_for_pgbouncer(arguments: &[OsString]) -> bool {
    let is_named =
        arguments.first().and_then(|name| Path::new(name).file_name()).is_some_and(|name| name == "pgbouncer");
    is_named && arguments[1..].iter().any(|argument| argument == "--version" || argument == "-V")
}

fn flat(addresses: &[ListenAddresses]) -> Vec<SocketAddr> {
    addresses.iter().flat_map(|addresses| addresses.0.iter().copied()).collect()
}

/// Returns a variable of the environment.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// All variables of the environment that are text.
pub(crate) fn environment_variables() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Adds the command that PgBouncer's command line lacks.
fn with_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let first = arguments.get(1).and_then(|first| first.to_str()).unwrap_or_default();
    let is_command = first == "help" || Cli::command().find_subcommand(first).is_some();
    let default_file = |argument: &OsString| argument == "-c" || argument == "--config";
    let is_ini = |argument: &OsString| is_ini(Path::new(argument));
    let rest = arguments.get(1..).unwrap_or_default();
    if first == "run" && rest.iter().any(is_ini) && !rest.iter().any(default_file) {
        arguments[1] = "pgbouncer".into();
    } else if !is_command && rest.iter().any(|argument| is_ini(argument) || Path::new(argument).is_file()) {
        arguments.insert(1, "pgbouncer".into());
    }
    arguments
}

/// Loads a configuration file. A `pgbouncer.ini` is recognised by its extension or its section `[pgbouncer]`; any other file is
/// TOML, whose keys the environment overrides.
fn load(file: &Path, environment: &[(String, String)]) -> Result<Config, ConfigErrors> {
    if is_ini(file) { pgbouncer::load(file) } else { variables::load(ConfigBase::File(file), environment) }
}

fn is_ini(file: &Path) -> bool {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("ini") => true,
        Some("toml") => false,
        // Input from a pipe cannot be read twice.
        _ => {
            let begins_section = |line: &[u8]| line.trim_ascii_start().starts_with(b"[pgbouncer]");
            let bytes = if file.is_file() { config::toml::read_bytes(file).unwrap_or_default() } else { Vec::new() };
            bytes.split(|byte| *byte == b'\n').any(begins_section)
        }
    }
}

impl PgbouncerArgs {
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
            metrics.addresses = flat(&self.metrics);
        }
        Ok(config)
    }
}

impl ConvertArgs {
    /// Prints the file as TOML.
    ///
    /// # Errors
    /// All errors of the file.
    pub fn run(&self, out: &mut impl Write) -> Result<io::Result<()>, ConfigErrors> {
        pgbouncer::convert(&self.file).map(|text| out.write_all(text.as_bytes()))
    }
}

impl RunArgs {
    /// Uses the URL of `TIDEGATE_DATABASE` if the command line has neither a URL nor a file. If there is no file either and the
    /// variables declare a database, they are the configuration.
    fn take_environment(&mut self, env: &dyn Fn(&str) -> Option<String>, all: &[(String, String)]) {
        all.clone_into(&mut self.variables);
        if self.database.is_none() && self.config.is_none() && self.bouncer.is_none() {
            self.database = env("TIDEGATE_DATABASE").filter(|url| !url.is_empty());
            let has_file = self.database.is_some() || Path::new(DEFAULT_FILE).exists();
            self.without_file = !has_file && variables::declares_database(all);
        }
    }

    /// The configuration file; `None` if a URL replaces it.
    pub fn file(&self) -> Option<&Path> {
        if let Some(bouncer) = &self.bouncer {
            return Some(&bouncer.file);
        }
        let default_file = || self.config.as_deref().unwrap_or(Path::new(DEFAULT_FILE));
        (self.database.is_none() && !self.without_file).then(default_file)
    }

    /// Returns the arguments with another configuration file, if there is one.
    #[must_use]
    pub fn with_file(&self, file: Option<PathBuf>) -> Self {
        let mut run = self.clone();
        match (file, &mut run.bouncer) {
            (Some(file), Some(bouncer)) => bouncer.file = file,
            (Some(file), None) if run.database.is_none() => run.config = Some(file),
            _ => {}
        }
        run
    }

    /// The arguments of a gateway that `healthcheck` looks for.
    ///
    /// # Errors
    /// If a container has no configuration, or the configuration is invalid.
    pub fn of_running_gateway(file: Option<PathBuf>) -> anyhow::Result<(Self, MemoryFiles)> {
        if file.is_none() && !Path::new(DEFAULT_FILE).exists() {
            return container_arguments().with_context(|| {
                format!("there is no {DEFAULT_FILE} here: name a file with --config, or use --address")
            });
        }
        let variables = environment_variables();
        Ok((Self { config: file, variables, ..Self::default() }, MemoryFiles::default()))
    }

    /// Whether another process is replaced.
    pub fn takes_over(&self) -> bool {
        self.take_over || self.bouncer.as_ref().is_some_and(|bouncer| bouncer.reboot)
    }

    /// Loads the configuration and applies the command line to it.
    ///
    /// # Errors
    /// All errors of the configuration.
    pub fn config(&self) -> Result<Config, ConfigErrors> {
        let mut config = match (&self.bouncer, &self.database, self.file()) {
            (Some(bouncer), ..) => bouncer.config()?,
            (None, Some(url), _) => {
                let url = pgpass::with_password(url, &environment);
                variables::load(ConfigBase::Url(&url), &self.variables)?
            }
            (None, None, Some(file)) => load(file, &self.variables)?,
            (None, None, None) => variables::load(ConfigBase::Defaults, &self.variables)?,
        };
        if !self.listen.is_empty() {
            config.set_listen_addresses(flat(&self.listen));
        }
        let Config { runtime, log, .. } = &mut config;
        runtime.workers = self.workers.unwrap_or(runtime.workers);
        runtime.io = self.io.unwrap_or(runtime.io);
        log.format = self.log_format.unwrap_or(log.format);
        log.level = self.log_level.unwrap_or(log.level);
        let exposure = config.exposure_warnings(self.file());
        config.warnings.extend(exposure);
        Ok(config)
    }
}

impl CheckArgs {
    /// Prints the errors and warnings of the file. Returns whether the file is valid. `startup_errors` finds the errors that
    /// depend on this machine.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn run(&self, out: &mut impl Write, startup_errors: impl Fn(&Config) -> Vec<Diagnostic>) -> io::Result<bool> {
        let checked = load(&self.file, &environment_variables()).and_then(|mut config| {
            let startup_errors = startup_errors(&config);
            if startup_errors.is_empty() {
                let exposure = config.exposure_warnings(Some(&self.file));
                let unwritable = config.unwritable_files(Some(&self.file));
                config.warnings.extend(exposure.into_iter().chain(unwritable));
                return Ok(config);
            }
            let warnings = std::mem::take(&mut config.warnings);
            Err(ConfigErrors::new(warnings.into_iter().chain(startup_errors).collect()))
        });
        let findings = match &checked {
            Ok(config) => &config.warnings,
            Err(errors) => errors.diagnostics(),
        };
        if self.json {
            let report = serde_json::json!({ "ok": checked.is_ok(), "findings": findings });
            writeln!(out, "{}", escaped_json(&report.to_string()))?;
            return Ok(checked.is_ok());
        }
        for finding in findings {
            writeln!(out, "{finding}")?;
        }
        writeln!(out, "{}: {}", escaped(&self.file.display().to_string()), summary(&checked, findings))?;
        Ok(checked.is_ok())
    }
}

/// `good: 2 databases, 1 user, 0 warnings`, or the number of errors.
fn summary(checked: &Result<Config, ConfigErrors>, findings: &[Diagnostic]) -> String {
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let warnings = counted(of(DiagnosticSeverity::Warning), "warning");
    match checked {
        Err(_) => format!("cannot be used: {}, {warnings}", counted(of(DiagnosticSeverity::Error), "error")),
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
    fn url_from_the_environment() {
        let env = |name: &str| (name == "TIDEGATE_DATABASE").then(|| "postgres://env/shop".to_owned());
        for (arguments, database) in [
            (&[][..], Some("postgres://env/shop")),
            (&["-d", "postgres://own/shop"], Some("postgres://own/shop")),
            (&["-c", "tidegate.toml"], None),
        ] {
            let mut run = run(arguments);
            run.take_environment(&env, &[]);
            assert_eq!(run.database.as_deref(), database, "{arguments:?}");
        }
    }

    fn run(arguments: &[&str]) -> RunArgs {
        let all = ["tidegate", "run"].iter().chain(arguments);
        match Cli::try_parse_from(all).expect("a command line").command {
            Command::Run(run) => run,
            other => panic!("not run: {other:?}"),
        }
    }

    #[test]
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_lists_commands_and_signals() {
        let help = Cli::command().render_help().to_string();
        for word in
            ["run", "check", "stream", "demo", "journal", "One minute", "Signals", "tidegate.toml(5)", "--version"]
        {
            assert!(help.contains(word), "{word} is not in\n{help}");
        }
    }

    /// A command in a wrapped line cannot be copied.
    #[test]
    fn examples_fit_80_columns() {
        let mut cli = Cli::command();
        cli.build();
        let commands = std::iter::once(&cli).chain(cli.get_subcommands());
        let texts = commands.filter_map(|command| command.get_after_help()).map(ToString::to_string);
        for line in texts.collect::<Vec<_>>().iter().flat_map(|text| text.lines()) {
            // Other lines are wrapped by words.
            assert!(!line.starts_with(' ') || line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn command_line_overrides_the_configuration() {
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
        // A third is the same port over IPv6, if the machine has it.
        assert_eq!(addresses[..2], ["127.0.0.1:0", "0.0.0.0:7000"]);
        assert_eq!(
            (config.runtime.workers, config.runtime.io, config.log.level),
            (3, IoBackend::Epoll, LogLevel::Debug)
        );
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    }

    #[test]
    fn open_address_without_password_gets_a_warning() {
        let url = "postgres://db/shop?sslmode=verify-full";
        let config = run(&["-d", url, "-l", "*:7000"]).config().expect("a configuration");
        assert_eq!(config.warnings.len(), 1);
        assert!(config.warnings[0].reason.contains("trust"), "{:?}", config.warnings);
    }

    #[test]
    fn pgbouncer_command_line_needs_no_command() {
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
        assert!(RunArgs::from(given(&["-R", "-d", "a.ini"])).takes_over() && !RunArgs::from(all).takes_over());
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
    fn file_and_url_are_exclusive() {
        let both = ["tidegate", "run", "-c", "a.toml", "-d", "postgres://db/shop"];
        assert!(Cli::try_parse_from(both).is_err());
    }

    fn checked(text: &str, json: bool) -> (bool, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tidegate.toml");
        std::fs::write(&file, text).expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("one's own file");
        let mut out = Vec::new();
        let good = CheckArgs { file, json }.run(&mut out, |_| Vec::new()).expect("memory can be written");
        (good, String::from_utf8(out).expect("text"))
    }

    #[test]
    fn check_reports_errors_and_warnings() {
        let (good, text) = checked("[databases.shop]\nhost = \"localhost\"\n[users.app]\npassword = \"x\"\n", false);
        assert!(good && text.ends_with("good: 1 database, 1 user, 0 warnings\n"), "{text}");
        let (good, text) = checked("[databases.shop]\nhost = \"db\"\n[users.app]\npassword = \"x\"\n", false);
        assert!(good && text.contains("sslmode prefer") && text.contains("1 warning"), "{text}");
        let (good, text) = checked("[databases.shop]\nhos = \"db\"\n", false);
        assert!(!good && text.contains("tidegate.toml:2:1") && text.contains("did you mean `host`?"), "{text}");
    }

    #[test]
    fn check_prints_json() {
        let (good, text) = checked("[users.app]\nhos = 1\npassword = \"x\"\n[databases.shop]\nhost = \"db\"\n", true);
        let report: serde_json::Value = serde_json::from_str(&text).expect("an object");
        assert!(!good);
        assert_eq!((&report["ok"], &report["findings"][0]["line"]), (&false.into(), &2.into()));
        assert_eq!(report["findings"][0]["severity"], "error");
    }
}
