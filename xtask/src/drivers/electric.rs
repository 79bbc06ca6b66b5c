//! Electric's clients against `tidegate shapes` on a private Postgres: the TypeScript client, TanStack DB, and the example in a
//! browser.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use tidegate_sandbox::{Major, Postgres};

use super::suite::{self, ScriptResult};
use crate::gateway::{RunningProgram, free_port};

/// A script against a server of shapes.
pub(super) struct ShapeSuite {
    /// The name of the driver.
    pub(super) name: &'static str,
    /// The checks of the script.
    pub(super) checks: &'static [&'static str],
    prepare: fn() -> Result<Vec<String>>,
}

/// The scripts, in the order in which they run.
pub(super) const SUITES: &[ShapeSuite] = &[
    ShapeSuite {
        name: "electric",
        checks: &[
            "empty",
            "follow",
            "events",
            "resume",
            "columns",
            "where",
            "moves",
            "moveevents",
            "full",
            "truncate",
            "snapshot",
            "types",
        ],
        prepare: suite::prepare_electric,
    },
    ShapeSuite {
        name: "tanstack",
        checks: &["eager", "events", "rollback", "where", "query", "ondemand", "progressive", "truncate"],
        prepare: suite::prepare_tanstack,
    },
    ShapeSuite {
        name: "shapes-example",
        checks: &["start", "windows", "users", "proxy", "stop"],
        prepare: suite::prepare_example,
    },
];

/// The results of a script.
pub(super) struct ShapeRun {
    pub(super) suite: &'static ShapeSuite,
    pub(super) result: ScriptResult,
}

/// Runs the scripts that `is_selected` selects, each on a server of its own.
pub(super) fn run(binary: &Path, major: u8, is_selected: impl Fn(&str) -> bool) -> Result<Vec<ShapeRun>> {
    let selected = SUITES.iter().filter(|suite| is_selected(suite.name));
    selected.map(|suite| Ok(ShapeRun { suite, result: run_suite(suite, binary, major)? })).collect()
}

fn run_suite(shapes: &ShapeSuite, binary: &Path, major: u8) -> Result<ScriptResult> {
    let command = match (shapes.prepare)() {
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
    Ok(suite::run(shapes.name, &command, &postgres.url(), &format!("http://127.0.0.1:{port}")))
}
