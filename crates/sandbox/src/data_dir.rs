//! Files of a data directory.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    Error,
    account::{Account, set_owner},
};

/// Writes a file that only the server can read; Postgres refuses a key with wider permissions.
pub(crate) fn write(path: &PathBuf, content: &str, account: Option<Account>) -> Result<(), Error> {
    fs::write(path, content).map_err(Error::path("write", path))?;
    set_owner(path, account, 0o600)
}

/// Copies the data directory of a server that does not run.
pub(crate) fn copy(from: &Path, to: &Path, account: Option<Account>) -> Result<(), Error> {
    fs::create_dir(to).map_err(Error::path("create", to))?;
    for entry in fs::read_dir(from).map_err(Error::path("read", from))? {
        let path = entry.map_err(Error::path("read", from))?.path();
        let Some(name) = path.file_name() else { continue };
        let lsn = to.join(name);
        if path.is_dir() {
            copy(&path, &lsn, account)?;
        } else {
            fs::copy(&path, &lsn).map_err(Error::path("copy", &path))?;
            set_owner(&lsn, account, 0o600)?;
        }
    }
    set_owner(to, account, 0o700)
}
