//! The account that Postgres runs as: Postgres refuses to run as root, so root switches to an unprivileged account.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::Error;

/// A user and group to switch to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// The account to switch to; `None` unless the caller is root.
    pub(crate) fn unprivileged() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let named = ["postgres", "nobody"].into_iter().find_map(|name| parse_passwd(&passwd, name));
        // 65534 is `nobody` by kernel convention (overflowuid), with or without a line in the file.
        Some(named.unwrap_or(Self { uid: 65534, gid: 65534 }))
    }

    /// Runs `command` as this account.
    pub(crate) fn apply(self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }
}

/// Changes the owner of `path` to the account, and its mode.
pub(crate) fn set_owner(path: &Path, account: Option<Account>, mode: u32) -> Result<(), Error> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(Error::path("set mode of", path))?;
    match account {
        Some(Account { uid, gid }) => {
            chown(path, Some(uid), Some(gid)).map_err(Error::path("change the owner of", path))
        }
        None => Ok(()),
    }
}

fn parse_passwd(passwd: &str, name: &str) -> Option<Account> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(Account { uid, gid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwd_line_is_found_by_its_full_name() {
        let passwd = "postgresql:x:1:2::/:\npostgres:x:101:104:PostgreSQL:/var/lib/postgresql:/bin/bash\n";
        assert_eq!(parse_passwd(passwd, "postgres"), Some(Account { uid: 101, gid: 104 }));
        assert_eq!(parse_passwd(passwd, "nobody"), None);
    }
}
