//! `cargo xtask differ`: compares the gateway with an installed PgBouncer, with the same files. Not a part of CI, where
//! PgBouncer is missing.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::repository::{cargo, run as run_command};
use crate::tests::fetch_postgres;

/// Paths to search for PgBouncer.
const PLACES: &[&str] = &["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The PgBouncer to compare with [default: the installed one]
    #[arg(long, value_name = "PATH")]
    pgbouncer: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let installed = || PLACES.iter().map(PathBuf::from).find(|place| place.exists());
    let Some(program) = arguments.pgbouncer.clone().or_else(installed) else {
        bail!("PgBouncer is not installed; install it, or pass its path with --pgbouncer");
    };
    fetch_postgres()?;
    let mut command = cargo();
    command.args(["test", "-p", "tidegate", "--test", "pgbouncer", "--", "differ::", "--nocapture"]);
    run_command(command.env("TIDEGATE_PGBOUNCER", program))
}
