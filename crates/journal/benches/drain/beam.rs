//! Erlang's `disk_log`, if Erlang is installed.

use std::{path::Path, process::Command};

/// The result of one run of a mode.
pub(crate) struct Run {
    pub(crate) mode: String,
    pub(crate) written_ms: f64,
    pub(crate) durable_ms: f64,
    pub(crate) queue_records: f64,
}

/// Runs all four modes; `None` if `erl` is not installed.
pub(crate) fn run(folder: &Path, records: usize, producers: usize, bytes: usize) -> Option<Vec<Run>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/beam/jb.erl");
    let compiled = Command::new("erlc").arg("-o").arg(folder).arg(source).status().ok()?;
    assert!(compiled.success(), "compile the script");
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let main = format!("jb:main([{records},{producers},{bytes}]).");
    let mut command = Command::new("erl");
    command.args(["-noshell", "+S", &format!("{cores}:{cores}"), "-eval", &main]).current_dir(folder);
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let runs: Vec<Run> = text.lines().filter_map(|line| parse(line, records)).collect();
    assert_eq!(runs.len(), 4, "{text}{}", String::from_utf8_lossy(&output.stderr));
    Some(runs)
}

fn parse(line: &str, records: usize) -> Option<Run> {
    let mut words = line.split(' ');
    let mode = words.next()?.to_owned();
    let mut number = || words.next()?.parse::<f64>().ok();
    let (items, _, drained_us, durable_us, queue_records) = (number()?, number()?, number()?, number()?, number()?);
    assert!((items - records as f64).abs() < 0.5, "{line}");
    Some(Run { mode, written_ms: drained_us / 1000.0, durable_ms: durable_us / 1000.0, queue_records })
}
