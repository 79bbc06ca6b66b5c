//! `auth_file`, `[users]` and `[peers]`.

use super::*;
use crate::{
    UserSecret,
    pgbouncer::{UNREAD_USERS, userlist},
    toml::read_up_to,
};

/// Maximum size of a user list, enough for more than a million users.
const USERS_BYTES_MAX: u64 = 256 << 20;

impl Mapper<'_> {
    /// Users of `userlist.txt`.
    pub(super) fn auth_file(&mut self) {
        let given = self.value_of("auth_file");
        let Some(path) = file(&given) else { return };
        match read_up_to(&path, USERS_BYTES_MAX) {
            // Users in another encoding get unusable names or passwords; the others work.
            Ok(bytes) => self.listed(&path, &String::from_utf8_lossy(&bytes)),
            Err(reason) => {
                let reason = format!("auth_file: cannot read {}: {reason}", path.display());
                // PgBouncer starts without the file: users may be looked up on the server, or the file may be created
                // later.
                let help =
                    "a relative path starts at the working directory of the process; a reload reads the file again";
                self.warning(&given.at, UNREAD_USERS, reason, help);
            }
        }
    }

    fn listed(&mut self, path: &Path, text: &str) {
        let start = self.ini.append(path, text);
        let (users, broken) = userlist::users(text);
        for at in broken {
            let nowhere = start + at..start + at;
            self.error(
                &nowhere,
                "auth_file",
                "this is not a user",
                "write \"name\" \"password\", both in double quotes",
            );
        }
        let scram = self.value_of("auth_type").text == "scram-sha-256";
        for user in users {
            let name_at = user.name_at.start + start..user.name_at.end + start;
            // The position of a password is never shown.
            let nowhere = user.password_at.start + start..user.password_at.start + start;
            let section = ["users", user.name.as_str()];
            self.table(&section, &name_at);
            let is_md5 = matches!(UserSecret::parse(&user.password), Ok(UserSecret::Md5(_)));
            if scram && is_md5 {
                let reason = format!("\"{}\" cannot log in: an md5 hash cannot be used for scram-sha-256", user.name);
                self.warning(
                    &nowhere,
                    "auth_file",
                    reason,
                    "write the password or its SCRAM verifier, or auth_type = md5",
                );
                self.put_text(&section, "password", "", &nowhere);
            } else {
                self.put_text(&section, "password", user.password, &nowhere);
            }
        }
    }

    /// `[peers]`: other processes behind the same address.
    pub(super) fn peers(&mut self, lines: &[IniLine]) {
        for line in lines.iter().filter(|line| line.section == "peers") {
            let pairs = self.known_pairs(line, keys::PEER);
            let path = ["peers", line.key.as_str()];
            self.reset_table(&path, &line.key_at, &[]);
            for (key, given) in &pairs {
                self.put_key(&path, key, given);
            }
            let own = pairs.iter().rev().find(|(key, _)| key.name == "pool_size").map(|(_, given)| given.clone());
            let given = own.unwrap_or_else(|| self.value_of("default_pool_size"));
            match size(&given.text) {
                Ok(Some(size)) => self.put(&path, "size", RawValue::Integer(size), &given.at),
                Ok(None) => {}
                Err((reason, help)) => self.error(&given.at, "pool_size", format!("pool_size: {reason}"), help),
            }
        }
    }

    /// `[users]`: settings of users, whether they are in `auth_file` or not.
    pub(super) fn user_lines(&mut self, lines: &[IniLine]) {
        for line in lines.iter().filter(|line| line.section == "users") {
            let pairs = self.known_pairs(line, keys::USER);
            let path = ["users", line.key.as_str()];
            self.reset_table(&path, &line.key_at, &["password"]);
            for (key, given) in &pairs {
                // A duration of 0 means "not set", except for `query_wait_timeout`, where it means no limit.
                let unset = key.kind == IniValueKind::Seconds && given.text == "0" && key.name != "query_wait_timeout";
                if !unset {
                    self.put_key(&path, key, given);
                }
            }
            let size = pairs.iter().rev().find(|(key, _)| key.name == "pool_size").map(|(_, given)| given);
            self.pool_sizes(&path, size, None);
        }
        self.drop_empty_users();
    }

    /// A line of `[users]` does not declare a user, but an empty table would.
    fn drop_empty_users(&mut self) {
        let Some(users) = self.root.entries.iter_mut().find(|entry| entry.key == "users") else { return };
        as_table(users).entries.retain(|entry| !is_empty_table(&entry.node.value));
        self.table_index.retain(|(section, _), _| section != "users");
    }
}

fn is_empty_table(value: &RawValue) -> bool {
    matches!(value, RawValue::Table(table) if table.entries.is_empty())
}
