//! `cargo xtask differ`: the gateway and a PgBouncer that is installed here, with the same files, side by side. Not a part of
//! CI, where there is no PgBouncer.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::repository::{cargo, run as run_command};
use crate::tests::fetch_postgres;

/// Where PgBouncer is looked for.
const PLACES: &[&str] = &["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The PgBouncer to compare with; the one that is installed unless told
    #[arg(long, value_name = "PATH")]
    pgbouncer: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let installed = || PLACES.iter().map(PathBuf::from).find(|place| place.exists());
    let Some(program) = arguments.pgbouncer.clone().or_else(installed) else {
        bail!("there is no PgBouncer here; install one, or name it with --pgbouncer");
    };
    fetch_postgres()?;
    let mut command = cargo();
    command.args(["test", "-p", "tidegate", "--test", "pgbouncer", "--", "differ::", "--nocapture"]);
    run_command(command.env("TIDEGATE_PGBOUNCER", program))
}
