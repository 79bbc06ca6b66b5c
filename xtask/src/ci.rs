//! `cargo xtask ci`: every check that a change must pass. All steps run, then a table shows their results.

use std::thread::{self, JoinHandle};

use anyhow::Result;
use rustix::process::nice;

use crate::repository::{cargo, run as run_command};
use crate::step::Steps;
use crate::tests::{Io, features_to_check, fetch_axe, fetch_postgres, tests, tests_of_kafka_tls, tests_of_pam};
use crate::{deny, dist, docs, drivers, models, tidy};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this step (repeatable): format, tidy, clippy, rustdoc, postgres, axe, tests-io_uring, tests-epoll, pam, kafka-tls,
    /// models, drivers, deny, docs, dist
    #[arg(long)]
    only: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut steps = Steps::only(&arguments.only);
    steps.run("format", format);
    steps.run("tidy", tidy::run);
    steps.run("clippy", clippy);
    steps.run("rustdoc", rustdoc);
    steps.run("postgres", fetch_postgres);
    steps.run("axe", fetch_axe);
    let ahead = build_ahead(&steps);
    steps.run("tests-io_uring", || tests(Io::Uring, &[]));
    steps.run("tests-epoll", || tests(Io::Epoll, &[]));
    steps.run("pam", tests_of_pam);
    steps.run("kafka-tls", tests_of_kafka_tls);
    if let Some(ahead) = ahead {
        // The thread does not panic, and later steps build what is missing.
        drop(ahead.join());
    }
    steps.run("models", models::run);
    steps.run("drivers", drivers::run_for_ci);
    steps.run("deny", deny::run);
    steps.run("docs", docs::run_for_ci);
    steps.run("dist", dist::run_for_ci);
    steps.finish()
}

/// Builds the inputs of later steps while the tests run, which leave half of the CPU time idle. The lowest priority
/// keeps the tests undisturbed. The step itself reports a failed build.
fn build_ahead(steps: &Steps) -> Option<JoinHandle<()>> {
    let (models, drivers) = (steps.selects("models"), steps.selects("drivers"));
    let (deny, docs) = (steps.selects("deny"), steps.selects("docs"));
    let work = move || {
        // The priority of this thread and of its child processes.
        if nice(19).is_err() {
            return;
        }
        if models {
            drop(models::build());
        }
        if drivers {
            drivers::prepare();
        }
        if deny {
            drop(deny::prepare());
        }
        if docs {
            drop(docs::prepare());
        }
    };
    (steps.selects("tests-io_uring") && (models || drivers || deny || docs)).then(|| thread::spawn(work))
}

/// Checks the workspace, and the package outside of it.
fn format() -> Result<()> {
    for manifest in ["Cargo.toml", "drivers/rust/Cargo.toml"] {
        run_command(cargo().args(["fmt", "--all", "--check", "--manifest-path", manifest]))?;
    }
    Ok(())
}

fn clippy() -> Result<()> {
    let mut command = cargo();
    command.args(["clippy", "--quiet", "--workspace", "--all-targets"]).args(features_to_check());
    run_command(command.args(["--", "-D", "warnings"]))
}

fn rustdoc() -> Result<()> {
    let mut command = cargo();
    command.args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]).args(features_to_check());
    run_command(command.env("RUSTDOCFLAGS", "-D warnings"))
}
