//! `cargo xtask test`: brings what the tests need and runs all of them.

use std::process::Command;
use std::sync::LazyLock;

use anyhow::Result;
use indicatif::ProgressBar;
use tidegate_sandbox::{Binaries, Major, StartProgress};

use crate::machine;
use crate::repository::{FEATURES, KAFKA_TLS, PAM, cargo, run as run_command};
use crate::second;
use crate::step::{Outcome, Steps};

/// The oldest and the newest version that the tests run against.
const VERSIONS: [Major; 2] = [Major(14), Major(18)];

/// Which way the gateway under test does its input and output; `TIDEGATE_IO` tells the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Io {
    /// Completions of io_uring.
    #[value(name = "io_uring")]
    Uring,
    /// Readiness from epoll, as where io_uring is forbidden.
    Epoll,
}

impl Io {
    /// The name in the configuration and in `TIDEGATE_IO`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uring => "io_uring",
            Self::Epoll => "epoll",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// One I/O mode only; both unless told
    #[arg(long)]
    io: Option<Io>,
    /// Passed on to `cargo test`, such as `-p tidegate edge_07`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut steps = Steps::default();
    steps.run("postgres", fetch_postgres);
    let wanted = |io| arguments.io.is_none_or(|only| only == io);
    if wanted(Io::Uring) {
        steps.run("tests io_uring", || tests(Io::Uring, &arguments.rest));
    }
    if wanted(Io::Epoll) {
        steps.run("tests epoll", || tests(Io::Epoll, &arguments.rest));
    }
    steps.finish()
}

/// Brings Postgres 14 and 18 into the cache, with a bar on a terminal.
pub(crate) fn fetch_postgres() -> Result<()> {
    for major in VERSIONS {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(std::time::Duration::from_millis(100));
        let binaries = Binaries::find_or_fetch(major, &mut |progress| bar.set_message(describe(&progress)))?;
        bar.finish_and_clear();
        println!("Postgres {major}: {}", binaries.dir().display());
    }
    Ok(())
}

fn describe(progress: &StartProgress) -> String {
    match progress {
        StartProgress::Downloading { major } => format!("fetching Postgres {major}"),
        StartProgress::Unpacking { version, bytes } => {
            format!("unpacking Postgres {version} ({} MB)", bytes / 1_000_000)
        }
        other => format!("{other:?}"),
    }
}

/// The test targets that know of the I/O mode: the rest of the workspace is tested once. They are chosen by name and not
/// by package, which would build every dependency anew with other features.
const DOES_IO: [&str; 6] = ["link", "edges", "differential", "wrong_client", "unrest", "hosts"];

/// All tests of the workspace with io_uring; with epoll those that can tell the difference.
pub(crate) fn tests(io: Io, rest: &[String]) -> Outcome {
    if io == Io::Uring && !machine::allows_io_uring() {
        return Outcome::Missing("this machine forbids io_uring".to_owned());
    }
    if rest.is_empty() {
        return second::run(|| command(io, rest));
    }
    run_command(&mut command(io, rest)).into()
}

static LINKS_PAM: LazyLock<bool> = LazyLock::new(|| machine::links("pam"));
static LINKS_SSL: LazyLock<bool> = LazyLock::new(|| machine::links("ssl"));

/// The optional parts that are built and tested with the rest: one build for all. Logins by PAM are among them where libpam
/// can be linked, and Kafka over TLS where OpenSSL can.
pub(crate) fn features() -> Vec<&'static str> {
    let pam: &[&str] = if *LINKS_PAM { &PAM } else { &[] };
    [&FEATURES, pam, kafka_tls()].concat()
}

/// The same for what is checked and not linked. The Kafka client, which is C, is built for it all the same: as for the tests,
/// so that it is built once.
pub(crate) fn features_to_check() -> Vec<&'static str> {
    [&FEATURES, &PAM, kafka_tls()].concat()
}

fn kafka_tls() -> &'static [&'static str] {
    if *LINKS_SSL { &KAFKA_TLS } else { &[] }
}

/// Whether logins by PAM are tested with the rest.
pub(crate) fn tests_of_pam() -> Outcome {
    tested_with_the_rest(*LINKS_PAM, "libpam cannot be linked here (libpam0g-dev): logins by PAM were not tested")
}

/// Whether streams from brokers that ask for TLS and for logins are tested with the rest.
pub(crate) fn tests_of_kafka_tls() -> Outcome {
    tested_with_the_rest(*LINKS_SSL, "OpenSSL cannot be linked here (libssl-dev): Kafka over TLS was not tested")
}

fn tested_with_the_rest(is_so: bool, why_not: &str) -> Outcome {
    if is_so { Outcome::Passed } else { Outcome::Missing(why_not.to_owned()) }
}

fn command(io: Io, rest: &[String]) -> Command {
    let mut command = cargo();
    command.arg("test").env("TIDEGATE_IO", io.name());
    let named = rest.iter().any(|argument| argument == "-p" || argument == "--package");
    match io {
        _ if named => {}
        _ => {
            command.arg("--workspace").args(features());
            if io == Io::Epoll && machine::allows_io_uring() {
                command.args(DOES_IO.iter().flat_map(|target| ["--test", target]));
            }
        }
    }
    command.args(rest);
    command
}
