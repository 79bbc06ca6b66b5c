//! The same benchmark on the BEAM, if it is installed: the published two-tier design, and the fastest known design.

use std::path::Path;
use std::process::Command;

/// Start and stop time of one variant, in milliseconds.
pub(crate) struct Run {
    pub(crate) variant: String,
    pub(crate) children: u64,
    pub(crate) start_ms: f64,
    pub(crate) stop_ms: f64,
}

/// Runs every variant for each number of children; `None` if `elixir` is not installed.
pub(crate) fn run(children: &[u64]) -> Option<Vec<Run>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/stop/beam.exs");
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let mut command = Command::new("elixir");
    command.args(["--erl", &format!("+P 5000000 +S {cores}:{cores}")]).arg(script);
    let output = command.args(children.iter().map(u64::to_string)).output().ok()?;
    if !output.status.success() {
        println!("missing: elixir exited with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Run> {
    let mut words = line.split(' ');
    let variant = words.next()?.to_owned();
    let children = words.next()?.parse().ok()?;
    let start_ms = words.next()?.parse().ok()?;
    let stop_ms = words.next()?.parse().ok()?;
    Some(Run { variant, children, start_ms, stop_ms })
}
