//! Threads of the test executables. Tests that wait for servers, brokers and deadlines leave most of the CPU time idle with
//! a thread per core, so their executables get more. Cargo starts each executable by this program (`target.runner`).

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::{Context, Result};

/// Test targets whose tests wait, and their threads per core.
const WAITING: [(&str, usize); 4] = [("streams", 4), ("server", 3), ("capture", 3), ("kafka", 2)];

/// Set by the user for all executables.
const THREADS: &str = "RUST_TEST_THREADS";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    executable: OsString,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// The arguments with which cargo starts test executables by this program.
pub(crate) fn configuration() -> Vec<String> {
    let Ok(program) = std::env::current_exe() else { return Vec::new() };
    let runner = serde_json::json!([program.to_string_lossy(), "run-tests"]);
    vec!["--config".to_owned(), format!("target.\"cfg(all())\".runner = {runner}")]
}

/// Replaces this program by the test executable.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut command = Command::new(&arguments.executable);
    command.args(&arguments.rest);
    if std::env::var_os(THREADS).is_none()
        && let Some(threads) = threads(Path::new(&arguments.executable))
    {
        command.env(THREADS, threads.to_string());
    }
    Err(command.exec()).with_context(|| format!("start {}", arguments.executable.display()))
}

/// The threads of an executable, which is named after its target; `None` for a thread per core.
fn threads(executable: &Path) -> Option<usize> {
    let name = executable.file_name()?.to_str()?;
    let target = name.rsplit_once('-').map_or(name, |(target, _)| target);
    let (_, per_core) = WAITING.iter().find(|(waiting, _)| *waiting == target)?;
    Some(per_core * available_parallelism().map_or(1, usize::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_that_wait_get_more_threads() {
        let cores = available_parallelism().map_or(1, usize::from);
        assert_eq!(threads(Path::new("/target/debug/deps/streams-901e7150a34bbf35")), Some(4 * cores));
        assert_eq!(threads(Path::new("/target/debug/deps/tidegate_streams-901e7150a34bbf35")), None);
        assert_eq!(threads(Path::new("rust_out")), None);
    }
}
