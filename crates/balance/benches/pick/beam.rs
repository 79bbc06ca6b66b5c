//! The same pick on the BEAM, if Erlang is installed.

use std::path::Path;
use std::process::Command;

/// Nanoseconds per pick: the median over short slices of the fastest process.
pub(crate) struct BeamRun {
    pub(crate) backends: usize,
    pub(crate) processes: usize,
    pub(crate) ns: f64,
}

/// `None` if `escript` is not installed.
pub(crate) fn run(backends: &[usize]) -> Option<Vec<BeamRun>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/beam/pick.erl");
    let output = Command::new("escript").arg(script).args(backends.iter().map(usize::to_string)).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.lines().filter_map(parse).collect())
}

fn parse(line: &str) -> Option<BeamRun> {
    let mut words = line.split(' ');
    let backends = words.next()?.parse().ok()?;
    let processes = words.next()?.parse().ok()?;
    let ns = words.next()?.parse().ok()?;
    Some(BeamRun { backends, processes, ns })
}
