//! The cache of downloads.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::Error;

/// `$XDG_CACHE_HOME/tidegate` or `~/.cache/tidegate`; for root `/var/cache/tidegate`, because Postgres then runs as
/// another user.
pub(crate) fn cache_dir() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/cache/tidegate");
    }
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    base.unwrap_or_else(std::env::temp_dir).join("tidegate")
}

pub(crate) fn create_readable(dir: &Path) -> Result<(), Error> {
    fs::create_dir_all(dir).map_err(Error::path("create", dir))?;
    make_readable(dir)
}

/// The server may run as another user than the process that downloaded it.
pub(crate) fn make_readable(dir: &Path) -> Result<(), Error> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).map_err(Error::path("set mode of", dir))
}
