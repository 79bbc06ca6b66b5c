//! Finds `java` on this machine.

use std::env;
use std::path::{Path, PathBuf};

use super::Error;

/// `JAVA_HOME/bin/java`, or the first `java` on the `PATH`.
pub(super) fn find() -> Result<PathBuf, Error> {
    let home = env::var_os("JAVA_HOME").map(|home| Path::new(&home).join("bin/java"));
    home.filter(|java| java.is_file()).or_else(|| on_path("java")).ok_or(Error::NoJava)
}

/// The first file of that name on the `PATH`.
pub(super) fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}
