//! `cargo xtask test`: fetches what the tests need, and runs all of them.

use std::process::Command;
use std::sync::LazyLock;

use anyhow::Result;
use indicatif::ProgressBar;
use tidegate_sandbox::{Binaries, Major, StartProgress};

use crate::drivers::install_packages;
use crate::machine;
use crate::repository::{FEATURES, KAFKA_TLS, PAM, cargo, output_of, root, run as run_command};
use crate::retry;
use crate::step::{StepOutcome, Steps};
use crate::test_threads;

/// The oldest and the newest version of Postgres in the tests.
const VERSIONS: [Major; 2] = [Major(14), Major(18)];

/// The I/O mode of the gateway; tests read it from `TIDEGATE_IO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Io {
    /// io_uring.
    #[value(name = "io_uring")]
    Uring,
    /// epoll, for machines that forbid io_uring.
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
    /// A single I/O mode [default: both]
    #[arg(long)]
    io: Option<Io>,
    /// Arguments for `cargo test`, such as `-p tidegate --test protocol`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut steps = Steps::default();
    steps.run("postgres", fetch_postgres);
    steps.run("axe", fetch_axe);
    let selected = |io| arguments.io.is_none_or(|only| only == io);
    if selected(Io::Uring) {
        steps.run("tests io_uring", || tests(Io::Uring, &arguments.rest));
    }
    if selected(Io::Epoll) {
        steps.run("tests epoll", || tests(Io::Epoll, &arguments.rest));
    }
    steps.finish()
}

/// Fetches Postgres 14 and 18 into the cache, with a progress bar on a terminal.
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

/// Installs axe-core, which checks the web console in Chromium.
pub(crate) fn fetch_axe() -> StepOutcome {
    if output_of(Command::new("npm").arg("--version")).is_err() {
        return StepOutcome::Missing("npm (install npm)".to_owned());
    }
    install_packages(&root().join("testkit/chromium")).into()
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

/// Test targets that depend on the I/O mode; all other tests run once. They are selected by target and not by package,
/// because a selection of packages changes features and rebuilds every dependency.
const IO_TARGETS: [&str; 8] =
    ["link", "protocol", "auth", "session_state", "operations", "differential", "chaos", "failover"];

/// All tests with io_uring; with epoll only those that depend on the I/O mode.
pub(crate) fn tests(io: Io, rest: &[String]) -> StepOutcome {
    if io == Io::Uring && !machine::allows_io_uring() {
        return StepOutcome::Missing("this machine forbids io_uring".to_owned());
    }
    if !rest.is_empty() {
        return run_command(&mut command(io, rest)).into();
    }
    let outcome = retry::run(|| selected_tests(io));
    if is_partial(io) || matches!(outcome, StepOutcome::Failed(_)) {
        return outcome;
    }
    match run_command(command(io, &[]).arg("--doc")) {
        Ok(()) => outcome,
        Err(error) => StepOutcome::Failed(format!("{error:#}")),
    }
}

/// Whether the tests that do not depend on the I/O mode run in the other mode.
fn is_partial(io: Io) -> bool {
    io == Io::Epoll && machine::allows_io_uring()
}

/// The tests of a mode but those in documentation, which rustdoc would run in one process if they had a runner.
fn selected_tests(io: Io) -> Command {
    let mut command = command(io, &[]);
    command.args(test_threads::configuration());
    if is_partial(io) {
        command.args(IO_TARGETS.iter().flat_map(|target| ["--test", target]));
    } else {
        command.arg("--tests");
    }
    command
}

static LINKS_PAM: LazyLock<bool> = LazyLock::new(|| machine::links("pam"));
static LINKS_SSL: LazyLock<bool> = LazyLock::new(|| machine::links("ssl"));

/// The optional features, in a single build: PAM where libpam can be linked, and Kafka over TLS where OpenSSL can be
/// linked.
pub(crate) fn features() -> Vec<&'static str> {
    let pam: &[&str] = if *LINKS_PAM { &PAM } else { &[] };
    [&FEATURES, pam, kafka_tls()].concat()
}

/// The features for checks without linking. The Kafka client (C) is built for them in any case, with the features of
/// the tests, so that it is built once.
pub(crate) fn features_to_check() -> Vec<&'static str> {
    [&FEATURES, &PAM, kafka_tls()].concat()
}

fn kafka_tls() -> &'static [&'static str] {
    if *LINKS_SSL { &KAFKA_TLS } else { &[] }
}

/// Whether the tests of PAM logins ran.
pub(crate) fn tests_of_pam() -> StepOutcome {
    report_optional(*LINKS_PAM, "libpam cannot be linked (libpam0g-dev): PAM logins were not tested")
}

/// Whether the tests of Kafka with TLS and authentication ran.
pub(crate) fn tests_of_kafka_tls() -> StepOutcome {
    report_optional(*LINKS_SSL, "OpenSSL cannot be linked (libssl-dev): Kafka over TLS was not tested")
}

fn report_optional(ran: bool, reason: &str) -> StepOutcome {
    if ran { StepOutcome::Passed } else { StepOutcome::Missing(reason.to_owned()) }
}

fn command(io: Io, rest: &[String]) -> Command {
    let mut command = cargo();
    command.arg("test").env("TIDEGATE_IO", io.name());
    let named = rest.iter().any(|argument| argument == "-p" || argument == "--package");
    if !named {
        command.arg("--workspace").args(features());
        if !rest.is_empty() && is_partial(io) {
            command.args(IO_TARGETS.iter().flat_map(|target| ["--test", target]));
        }
    }
    command.args(rest);
    command
}
