//! Electric's TypeScript client against `tidegate shapes`, on a private Postgres.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use tidegate_sandbox::{Major, Postgres};

use super::suite::{self, ScriptResult};
use crate::gateway::{RunningProgram, free_port};

/// The name of the driver.
pub(super) const NAME: &str = "electric";

/// The checks of the script.
pub(super) const CHECKS: &[&str] =
    &["empty", "follow", "events", "resume", "columns", "where", "full", "truncate", "snapshot", "types"];

/// Runs the script and returns its results.
pub(super) fn run(binary: &Path, major: u8) -> Result<ScriptResult> {
    let command = match suite::prepare_electric() {
        Ok(command) => command,
        Err(error) => return Ok(ScriptResult::Missing(format!("{error:#}"))),
    };
    let postgres = Postgres::builder().version(Major(major)).setting("wal_level", "logical").start()?;
    let dir = tempfile::tempdir_in(postgres.socket_dir()).context("create a folder")?;
    let port = free_port()?;
    let mut program = Command::new(binary);
    program.args(["shapes", "--database", &postgres.url(), "--listen", &format!("127.0.0.1:{port}"), "--storage"]);
    program.arg(dir.path().join("logs"));
    let server = RunningProgram::start(&mut program, dir.path(), "shapes", port)?;
    // If this process is killed, the sandbox also kills the server.
    postgres.register_process(server.pid())?;
    Ok(suite::run(NAME, &command, &postgres.url(), &format!("http://127.0.0.1:{port}")))
}
