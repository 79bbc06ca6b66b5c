//! Properties of this machine: for the head of a table, and for steps that cannot run here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::repository::output_of;

/// A line with processor, cores and kernel.
pub(crate) fn describe() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{}, {cores} cores, Linux {}", model.map_or("unknown processor", |(_, model)| model), kernel.trim())
}

/// Load average of the last minute. Above the number of cores, other processes disturb the figures.
pub(crate) fn load_average() -> String {
    let averages = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    averages.split(' ').next().unwrap_or("unknown").to_owned()
}

/// Whether io_uring may be used. Kernels since 6.6 report it in a file. On older kernels, only failing tests reveal a
/// seccomp filter that forbids it.
pub(crate) fn allows_io_uring() -> bool {
    let forbidden = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    !matches!(forbidden.trim(), "1" | "2")
}

/// Finds a program on the path, and in the folders of Debian for daemons and for the programs of Postgres.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let elsewhere = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut dirs: Vec<PathBuf> = std::env::split_paths(&path).chain(elsewhere).collect();
    dirs.extend(debian_postgres_dirs());
    dirs.into_iter().map(|dir| dir.join(name)).find(|program| program.is_file())
}

fn debian_postgres_dirs() -> Vec<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut dirs: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    dirs.sort();
    dirs.reverse();
    dirs
}

/// The first line of `PROGRAM --version`.
pub(crate) fn version_of(program: &Path, flag: &str) -> String {
    let output = output_of(Command::new(program).arg(flag)).unwrap_or_default();
    output.lines().next().unwrap_or("unknown version").to_owned()
}

/// Whether a library of this machine can be linked.
pub(crate) fn links(library: &str) -> bool {
    let made = std::env::temp_dir().join(format!("xtask-links-{library}-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-x", "c", "/dev/null", "-shared", "-o"]).arg(&made).arg(format!("-l{library}"));
    let linked = compiler.output().is_ok_and(|output| output.status.success());
    // The file is missing if linking failed.
    let _ = fs::remove_file(made);
    linked
}
