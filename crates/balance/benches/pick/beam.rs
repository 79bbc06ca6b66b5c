//! The same on the BEAM, if it is installed.

use std::path::Path;
use std::process::Command;

/// Nanoseconds of a pick: the median over short slices of the fastest process.
pub(crate) struct Run {
    pub(crate) backends: usize,
    pub(crate) processes: usize,
    pub(crate) ns: f64,
}

/// `None` if `escript` is not installed.
pub(crate) fn run(backends: &[usize]) -> Option<Vec<Run>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/beam/pick.erl");
    let output = Command::new("escript").arg(script).args(backends.iter().map(usize::to_string)).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<Run> {
    let mut words = line.split(' ');
    let backends = words.next()?.parse().ok()?;
    let processes = words.next()?.parse().ok()?;
    let ns = words.next()?.parse().ok()?;
    Some(Run { backends, processes, ns })
}
