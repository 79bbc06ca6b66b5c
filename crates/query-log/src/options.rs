//! Arguments of `tidegate journal`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use tidegate_config as config;

const EXAMPLES: &str = "\
Examples, with the folder of [journal] in ./tidegate.toml:
  tidegate journal tail -f                       queries as they complete
  tidegate journal cat --since 10m --min-duration 500ms
                                                 slow queries of ten minutes
  tidegate journal cat --user ann --errors       errors of one user
  tidegate journal top --since 1h --by p99       slow statements
  tidegate journal export --csv --since yesterday -o y.csv

With folders or single files:
  tidegate journal cat /var/lib/tidegate/journal
  tidegate journal merge /mnt/a /mnt/b           logs of two gateways, by time
  tidegate journal verify /mnt/a                 check that none is missing

All views show lost records. Reading needs no connection to the gateway and does
not block it. The keys of a record: docs/src/guide/query-log.md in the
repository.";

const TAIL_EXAMPLES: &str = "\
Examples:
  tidegate journal tail                            the last 10 records
  tidegate journal tail -n 0 -f --errors           new errors, until Ctrl-C
  tidegate journal tail -f --json | jq .statement  for other programs";

const TOP_EXAMPLES: &str = "\
Examples:
  tidegate journal top --since 1h         statements by time in the last hour
  tidegate journal top --by calls -n 5    the five most frequent statements
  tidegate journal top --by errors --database shop

Prints one line per fingerprint: statements that differ only in literals, whitespace and comments have the same one.
Percentiles are accurate to 1 %. Statements that are not recorded are grouped by their command tag.";

const CAT_EXAMPLES: &str = "\
Examples:
  tidegate journal cat --since '2026-03-01 12:00' --until '2026-03-01 12:05'
  tidegate journal cat --grep 'from orders.*for update' -n 20
  tidegate journal cat --sqlstate 40 --sqlstate 57014   codes, or first digits
  tidegate journal cat --client 10.1. --kind login_failed
  tidegate journal cat --session 4711 --long            all keys of a session";

/// Arguments of `tidegate journal`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct JournalArgs {
    /// The command.
    #[command(subcommand)]
    pub command: JournalCommand,
}

/// Commands of `tidegate journal`.
#[derive(Debug, Clone, Subcommand)]
pub enum JournalCommand {
    /// Print records, oldest first.
    Cat(CatArgs),
    /// Print the last records, and new ones with -f.
    Tail(TailArgs),
    /// Print the statements with the most time, calls or errors.
    Top(TopArgs),
    /// Print numbers of records, bytes, losses and segments.
    Stats(ReportArgs),
    /// Check every record; exit status 1 if records are damaged or missing.
    Verify(ReportArgs),
    /// Rewrite damaged segments without the damage. Only prints what it would do, unless --yes is given.
    Repair(RepairArgs),
    /// Merge the records of several folders into one file, by time.
    Merge(MergeArgs),
    /// Write records as JSON lines or CSV.
    Export(ExportArgs),
}

/// Logs to read.
#[derive(Debug, Clone, Args, Default)]
pub struct SourceArgs {
    /// Folders of query logs, or single segments [default: journal.folder of the configuration].
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,

    /// Configuration file with the folder [default: tidegate.toml].
    #[arg(short, long, value_name = "FILE", conflicts_with = "paths")]
    pub config: Option<PathBuf>,
}

/// Filters of records. All options must match; of an option that is repeated, any value.
#[derive(Debug, Clone, PartialEq, Eq, Args, Default)]
#[command(next_help_heading = "Filters (all must match; of a repeated option, any value)")]
pub struct FilterArgs {
    /// User; `*` matches any text.
    #[arg(short, long, value_name = "NAME")]
    pub user: Vec<String>,

    /// Database, as the client names it; `*` matches any text.
    #[arg(short, long, value_name = "NAME")]
    pub database: Vec<String>,

    /// Prefix of the client address: 10.1.2.3, 10.1., unix.
    #[arg(long, value_name = "ADDRESS")]
    pub client: Vec<String>,

    /// application_name; `*` matches any text.
    #[arg(long, value_name = "NAME")]
    pub application: Vec<String>,

    /// Prefix of the server address.
    #[arg(long, value_name = "ADDRESS")]
    pub server: Vec<String>,

    /// Session, the `id` of SHOW CLIENTS.
    #[arg(long, value_name = "N")]
    pub session: Vec<u64>,

    /// Number of the transaction in its session.
    #[arg(long, value_name = "N")]
    pub transaction: Vec<u64>,

    /// Kind of record.
    #[arg(long, value_name = "KIND", value_parser = ["query", "transaction", "login", "login_failed", "disconnect"])]
    pub kind: Vec<String>,

    /// Only errors.
    #[arg(long)]
    pub errors: bool,

    /// SQLSTATE or its prefix: 23505, 40.
    #[arg(long, value_name = "CODE")]
    pub sqlstate: Vec<String>,

    /// Minimum duration: 250ms, 2s, 1min. Sessions match only with --kind disconnect.
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration)]
    pub min_duration: Option<Duration>,

    /// Regular expression that the statement matches.
    #[arg(short, long, value_name = "REGEX")]
    pub grep: Vec<String>,

    /// Text that the statement contains.
    #[arg(long, value_name = "TEXT")]
    pub contains: Vec<String>,

    /// Ignore case in --grep and --contains.
    #[arg(short, long)]
    pub ignore_case: bool,

    /// Fingerprint or its prefix, as `top` prints it.
    #[arg(long, value_name = "DIGITS")]
    pub fingerprint: Vec<String>,

    /// Start of the time range: 10m, 2h, 1d (ago), 12:30, today, yesterday, '2026-03-01 12:00', 2026-03-01T12:00:00Z.
    #[arg(short, long, value_name = "WHEN")]
    pub since: Option<String>,

    /// End of the time range, in the forms of --since.
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
}

/// Use of colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ColorChoice {
    /// Colours on a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always use colours.
    Always,
    /// Never use colours.
    Never,
}

/// Format of the output.
#[derive(Debug, Clone, Args, Default)]
#[command(next_help_heading = "Output")]
pub struct DisplayArgs {
    /// Print one JSON object per line.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,

    /// Print comma-separated values, with a heading.
    #[arg(long)]
    pub csv: bool,

    /// Use UTC instead of the local time zone, also for --since and --until. JSON and CSV are always in UTC.
    #[arg(long)]
    pub utc: bool,

    /// Do not truncate statements on a terminal.
    #[arg(long)]
    pub full: bool,

    /// Use of colours.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub color: ColorChoice,
}

/// Arguments of `tidegate journal cat`.
#[derive(Debug, Clone, Args, Default)]
#[command(after_help = CAT_EXAMPLES)]
pub struct CatArgs {
    /// Logs to read.
    #[command(flatten)]
    pub source: SourceArgs,

    /// Maximum number of records.
    #[arg(short = 'n', long, value_name = "N")]
    pub lines: Option<u64>,

    /// Print each key on its own line.
    #[arg(short, long, conflicts_with_all = ["json", "csv"])]
    pub long: bool,

    /// Filters.
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Output.
    #[command(flatten)]
    pub display: DisplayArgs,
}

/// Arguments of `tidegate journal tail`.
#[derive(Debug, Clone, Args)]
#[command(after_help = TAIL_EXAMPLES)]
pub struct TailArgs {
    /// Logs to read.
    #[command(flatten)]
    pub source: SourceArgs,

    /// Number of records.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub lines: u64,

    /// Follow the log until Ctrl-C, also into new segments. Waits for paths that do not exist yet.
    #[arg(short, long, visible_short_alias = 'F')]
    pub follow: bool,

    /// Print each key on its own line.
    #[arg(short, long, conflicts_with_all = ["json", "csv"])]
    pub long: bool,

    /// Filters.
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Output.
    #[command(flatten)]
    pub display: DisplayArgs,
}

/// Sort order of `tidegate journal top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum TopOrder {
    /// Total time.
    #[default]
    Time,
    /// Number of calls.
    Calls,
    /// Mean time per call.
    Mean,
    /// 99th percentile of the time.
    P99,
    /// Number of errors.
    Errors,
    /// Number of rows returned or changed.
    Rows,
    /// Total wait for a server connection.
    Wait,
}

/// Arguments of `tidegate journal top`.
#[derive(Debug, Clone, Args, Default)]
#[command(after_help = TOP_EXAMPLES)]
pub struct TopArgs {
    /// Logs to read.
    #[command(flatten)]
    pub source: SourceArgs,

    /// Sort order.
    #[arg(long, value_enum, default_value_t)]
    pub by: TopOrder,

    /// Number of fingerprints.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub lines: usize,

    /// Filters.
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Output.
    #[command(flatten)]
    pub display: DisplayArgs,
}

/// Arguments of `tidegate journal stats` and `tidegate journal verify`.
#[derive(Debug, Clone, Args, Default)]
pub struct ReportArgs {
    /// Logs to read.
    #[command(flatten)]
    pub source: SourceArgs,

    /// Print a JSON object.
    #[arg(long)]
    pub json: bool,

    /// Use UTC instead of the local time zone.
    #[arg(long)]
    pub utc: bool,
}

/// Arguments of `tidegate journal repair`.
#[derive(Debug, Clone, Args, Default)]
pub struct RepairArgs {
    /// Logs to repair. No gateway may have the folder open.
    #[command(flatten)]
    pub source: SourceArgs,

    /// Repair the files. Damaged files are kept, with `.damaged` added to their names.
    #[arg(short, long)]
    pub yes: bool,
}

/// Arguments of `tidegate journal merge`.
#[derive(Debug, Clone, Args, Default)]
pub struct MergeArgs {
    /// Logs to read.
    #[command(flatten)]
    pub source: SourceArgs,

    /// Write to this file instead of standard output; it is created when it is complete.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Write text lines instead of JSON.
    #[arg(long, conflicts_with = "csv")]
    pub text: bool,

    /// Write comma-separated values instead of JSON.
    #[arg(long)]
    pub csv: bool,

    /// Filters.
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Use UTC instead of the local time zone for --text, --since and --until.
    #[arg(long)]
    pub utc: bool,
}

/// Arguments of `tidegate journal export`.
#[derive(Debug, Clone, Args, Default)]
pub struct ExportArgs {
    /// Logs to read.
    #[command(flatten)]
    pub source: SourceArgs,

    /// Write JSON lines, as in the log (the default).
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,

    /// Write comma-separated values, with a heading.
    #[arg(long)]
    pub csv: bool,

    /// Write to this file instead of standard output; it is created when it is complete.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Filters.
    #[command(flatten)]
    pub filter: FilterArgs,

    /// Use UTC instead of the local time zone for --since and --until.
    #[arg(long)]
    pub utc: bool,
}
