//! `tidegate journal`: what may be asked of a query journal.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use tidegate_config as config;

const EXAMPLES: &str = "\
Examples, with the folder of [journal] in ./tidegate.toml:
  tidegate journal tail -f                                  what runs now
  tidegate journal cat --since 10m --min-duration 500ms     what was slow in the last ten minutes
  tidegate journal cat --user ann --errors --since today    ann's errors of today
  tidegate journal top --since 1h --by p99                  which statements are slow
  tidegate journal export --csv --since yesterday -o y.csv  for a spreadsheet

With folders or single files:
  tidegate journal cat /var/lib/tidegate/journal
  tidegate journal merge /mnt/a/journal /mnt/b/journal      of two gateways, in one order
  tidegate journal verify /mnt/a/journal                    whether every record is whole and there

Records that were lost are shown in every view. Reading needs no leave of the gateway, and does not hold it up.
docs/src/guide/query-log.md says what stands in a record.";

const TAIL_EXAMPLES: &str = "\
Examples:
  tidegate journal tail                            the last 10 records
  tidegate journal tail -n 0 -f --errors           errors from now on, until Ctrl-C
  tidegate journal tail -f --json | jq .statement  for other programs; ends when they do";

const TOP_EXAMPLES: &str = "\
Examples:
  tidegate journal top --since 1h                  where the time of the last hour went
  tidegate journal top --by calls -n 5             the five most frequent statements
  tidegate journal top --by errors --database shop

One line for each fingerprint: statements that differ in literals, blanks and comments only are one. Percentiles are
exact to 1 %. A statement that is journalled as off has no fingerprint, and goes by its command tag.";

const CAT_EXAMPLES: &str = "\
Examples:
  tidegate journal cat --since '2026-03-01 12:00' --until '2026-03-01 12:05'
  tidegate journal cat --grep 'from orders.*for update' -n 20
  tidegate journal cat --sqlstate 40 --sqlstate 57014      by the first digits of a code, or all of them
  tidegate journal cat --client 10.1. --kind login_failed
  tidegate journal cat --session 4711 --long               every key of all records of one session";

/// `tidegate journal`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Journal {
    /// What to do.
    #[command(subcommand)]
    pub command: JournalCommand,
}

/// The commands of `tidegate journal`.
#[derive(Debug, Clone, Subcommand)]
pub enum JournalCommand {
    /// Print records, oldest first.
    Cat(Cat),
    /// Print the last records, and with -f those to come.
    Tail(Tail),
    /// Print which statements took the most time, were the most frequent, or failed most.
    Top(Top),
    /// Print how much there is: records, bytes, losses, times, segments.
    Stats(Report),
    /// Check every record; exit status 1 if something is damaged or missing.
    Verify(Report),
    /// Write damaged segments again without the damage. Says what it would do; does it with --yes.
    Repair(Repair),
    /// Write the records of several folders into one file, in the order of their times.
    Merge(Merge),
    /// Write records as JSON lines or CSV.
    Export(Export),
}

/// Where records are read.
#[derive(Debug, Clone, Args, Default)]
pub struct Places {
    /// Folders of journals, or single segments [default: the journal's folder in the configuration].
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,

    /// Configuration file that names the folder [default: tidegate.toml].
    #[arg(short, long, value_name = "FILE", conflicts_with = "paths")]
    pub config: Option<PathBuf>,
}

/// Which records. All that are given must hold; of one that is given several times, any.
#[derive(Debug, Clone, PartialEq, Eq, Args, Default)]
#[command(next_help_heading = "Which records")]
pub struct Sieve {
    /// Of this user; `*` stands for anything.
    #[arg(short, long, value_name = "NAME")]
    pub user: Vec<String>,

    /// Of this database, as the client names it.
    #[arg(short, long, value_name = "NAME")]
    pub database: Vec<String>,

    /// From a client whose address begins with this: 10.1.2.3, 10.1., unix.
    #[arg(long, value_name = "ADDRESS")]
    pub client: Vec<String>,

    /// Of this application_name.
    #[arg(long, value_name = "NAME")]
    pub application: Vec<String>,

    /// Run by a server whose address begins with this.
    #[arg(long, value_name = "ADDRESS")]
    pub server: Vec<String>,

    /// Of this session, the `id` of SHOW CLIENTS.
    #[arg(long, value_name = "N")]
    pub session: Vec<u64>,

    /// Of this transaction of its session.
    #[arg(long, value_name = "N")]
    pub transaction: Vec<u64>,

    /// Of this kind.
    #[arg(long, value_name = "KIND", value_parser = ["query", "transaction", "login", "login_failed", "disconnect"])]
    pub kind: Vec<String>,

    /// What failed.
    #[arg(long)]
    pub errors: bool,

    /// What failed with this SQLSTATE, or one that begins with it: 23505, 40.
    #[arg(long, value_name = "CODE")]
    pub sqlstate: Vec<String>,

    /// What took at least this long: 250ms, 2s, 1min.
    #[arg(long, value_name = "TIME", value_parser = config::parse_duration)]
    pub min_duration: Option<Duration>,

    /// Whose statement matches this regular expression.
    #[arg(short, long, value_name = "REGEX")]
    pub grep: Vec<String>,

    /// Whose statement contains this text.
    #[arg(long, value_name = "TEXT")]
    pub contains: Vec<String>,

    /// Upper and lower case are the same to --grep and --contains.
    #[arg(short, long)]
    pub ignore_case: bool,

    /// Of this fingerprint, as `top` prints it.
    #[arg(long, value_name = "DIGITS")]
    pub fingerprint: Vec<String>,

    /// Not before: 10m, 2h, 1d (ago), 12:30, today, yesterday, '2026-03-01 12:00', 2026-03-01T12:00:00Z.
    #[arg(short, long, value_name = "WHEN")]
    pub since: Option<String>,

    /// Not after; in the forms of --since.
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How output looks.
#[derive(Debug, Clone, Args, Default)]
#[command(next_help_heading = "How it looks")]
pub struct Look {
    /// A JSON object per line.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,

    /// Comma-separated values, with a heading.
    #[arg(long)]
    pub csv: bool,

    /// Times in UTC instead of the local zone; also those of --since and --until. JSON and CSV are always in UTC.
    #[arg(long)]
    pub utc: bool,

    /// Statements in full; on a terminal they are cut otherwise.
    #[arg(long)]
    pub full: bool,

    /// When to colour.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub color: Colour,
}

/// `tidegate journal cat`.
#[derive(Debug, Clone, Args, Default)]
#[command(after_help = CAT_EXAMPLES)]
pub struct Cat {
    /// Where.
    #[command(flatten)]
    pub places: Places,

    /// Stop after so many records.
    #[arg(short = 'n', long, value_name = "N")]
    pub lines: Option<u64>,

    /// Every key on a line of its own.
    #[arg(short, long, conflicts_with_all = ["json", "csv"])]
    pub long: bool,

    /// Which.
    #[command(flatten)]
    pub sieve: Sieve,

    /// How.
    #[command(flatten)]
    pub look: Look,
}

/// `tidegate journal tail`.
#[derive(Debug, Clone, Args)]
#[command(after_help = TAIL_EXAMPLES)]
pub struct Tail {
    /// Where.
    #[command(flatten)]
    pub places: Places,

    /// How many of the last records.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub lines: u64,

    /// Go on with those to come, also into new segments, until Ctrl-C. What is not there yet is waited for.
    #[arg(short, long, visible_short_alias = 'F')]
    pub follow: bool,

    /// Every key on a line of its own.
    #[arg(short, long, conflicts_with_all = ["json", "csv"])]
    pub long: bool,

    /// Which.
    #[command(flatten)]
    pub sieve: Sieve,

    /// How.
    #[command(flatten)]
    pub look: Look,
}

/// What `tidegate journal top` sorts by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum By {
    /// Time in all.
    #[default]
    Time,
    /// How often it ran.
    Calls,
    /// Time per call.
    Mean,
    /// The time that 99 of 100 calls did not exceed.
    P99,
    /// How often it failed.
    Errors,
    /// Rows given back or changed.
    Rows,
    /// Time that clients waited for a server.
    Wait,
}

/// `tidegate journal top`.
#[derive(Debug, Clone, Args, Default)]
#[command(after_help = TOP_EXAMPLES)]
pub struct Top {
    /// Where.
    #[command(flatten)]
    pub places: Places,

    /// Sort by.
    #[arg(long, value_enum, default_value_t)]
    pub by: By,

    /// How many fingerprints.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    pub lines: usize,

    /// Which.
    #[command(flatten)]
    pub sieve: Sieve,

    /// How.
    #[command(flatten)]
    pub look: Look,
}

/// `tidegate journal stats` and `tidegate journal verify`.
#[derive(Debug, Clone, Args, Default)]
pub struct Report {
    /// Where.
    #[command(flatten)]
    pub places: Places,

    /// One JSON object.
    #[arg(long)]
    pub json: bool,

    /// Times in UTC instead of the local zone.
    #[arg(long)]
    pub utc: bool,
}

/// `tidegate journal repair`.
#[derive(Debug, Clone, Args, Default)]
pub struct Repair {
    /// Where. No gateway may have the folder open.
    #[command(flatten)]
    pub places: Places,

    /// Do it. Damaged files are kept beside the new ones, with `.damaged` added to their names.
    #[arg(short, long)]
    pub yes: bool,
}

/// `tidegate journal merge`.
#[derive(Debug, Clone, Args, Default)]
pub struct Merge {
    /// Where.
    #[command(flatten)]
    pub places: Places,

    /// Write to this file instead of standard output; it appears when it is complete.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Write lines for people instead of JSON.
    #[arg(long, conflicts_with = "csv")]
    pub text: bool,

    /// Write comma-separated values instead of JSON.
    #[arg(long)]
    pub csv: bool,

    /// Which.
    #[command(flatten)]
    pub sieve: Sieve,

    /// Times of --text, --since and --until in UTC instead of the local zone.
    #[arg(long)]
    pub utc: bool,
}

/// `tidegate journal export`.
#[derive(Debug, Clone, Args, Default)]
pub struct Export {
    /// Where.
    #[command(flatten)]
    pub places: Places,

    /// JSON lines, as the records stand in the journal; this is the default.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,

    /// Comma-separated values, with a heading.
    #[arg(long)]
    pub csv: bool,

    /// Write to this file instead of standard output; it appears when it is complete.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Which.
    #[command(flatten)]
    pub sieve: Sieve,

    /// Times of --since and --until are in UTC instead of the local zone.
    #[arg(long)]
    pub utc: bool,
}
