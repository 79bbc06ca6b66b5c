//! `auth_file`, `[users]` and `[peers]`.

use super::*;
use crate::{
    UserSecret,
    pgbouncer::{UNREAD_USERS, userlist},
    toml::read_up_to,
};

/// A list of more than a million users; what is larger is another file.
const USERS_BYTES_MAX: u64 = 256 << 20;

impl Mapper<'_> {
    /// The users of `userlist.txt`.
    pub(super) fn auth_file(&mut self) {
        let given = self.given("auth_file");
        let Some(path) = file(&given) else { return };
        match read_up_to(&path, USERS_BYTES_MAX) {
            // Of whoever is written in another encoding the name or the password is not known; the others are.
            Ok(bytes) => self.listed(&path, &String::from_utf8_lossy(&bytes)),
            Err(reason) => {
                let reason = format!("auth_file: cannot read {}: {reason}", path.display());
                // PgBouncer starts without it: users may be looked up on the server, or the file may come later.
                let help = "a relative path begins where the process is started; a reload reads it again";
                self.warning(&given.at, UNREAD_USERS, reason, help);
            }
        }
    }

    fn listed(&mut self, path: &Path, text: &str) {
        let start = self.ini.append(path, text);
        let (users, broken) = userlist::users(text);
        for at in broken {
            let nowhere = start + at..start + at;
            self.error(&nowhere, "auth_file", "this is no user", "write \"name\" \"password\", both in double quotes");
        }
        let scram = self.given("auth_type").text == "scram-sha-256";
        for user in users {
            let name_at = user.name_at.start + start..user.name_at.end + start;
            // The place of a password is never shown.
            let nowhere = user.password_at.start + start..user.password_at.start + start;
            let section = ["users", user.name.as_str()];
            self.table(&section, &name_at);
            let is_md5 = matches!(UserSecret::parse(&user.password), Ok(UserSecret::Md5(_)));
            if scram && is_md5 {
                let reason = format!("\"{}\" cannot log in: an md5 hash cannot answer scram-sha-256", user.name);
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
    pub(super) fn peers(&mut self, lines: &[Line]) {
        for line in lines.iter().filter(|line| line.section == "peers") {
            let pairs = self.known_pairs(line, keys::PEER);
            let path = ["peers", line.key.as_str()];
            self.begin_anew(&path, &line.key_at, &[]);
            for (key, given) in &pairs {
                self.put_key(&path, key, given);
            }
            let own = pairs.iter().rev().find(|(key, _)| key.name == "pool_size").map(|(_, given)| given.clone());
            let given = own.unwrap_or_else(|| self.given("default_pool_size"));
            match size(&given.text) {
                Ok(Some(size)) => self.put(&path, "size", Value::Integer(size), &given.at),
                Ok(None) => {}
                Err((reason, help)) => self.error(&given.at, "pool_size", format!("pool_size: {reason}"), help),
            }
        }
    }

    /// `[users]`: settings of users, whether `auth_file` has them or not.
    pub(super) fn user_lines(&mut self, lines: &[Line]) {
        for line in lines.iter().filter(|line| line.section == "users") {
            let pairs = self.known_pairs(line, keys::USER);
            let path = ["users", line.key.as_str()];
            self.begin_anew(&path, &line.key_at, &["password"]);
            for (key, given) in &pairs {
                // A time of 0 is no time of one's own, but for the wait, which may be without limit.
                let unset = key.kind == Kind::Seconds && given.text == "0" && key.name != "query_wait_timeout";
                if !unset {
                    self.put_key(&path, key, given);
                }
            }
            let size = pairs.iter().rev().find(|(key, _)| key.name == "pool_size").map(|(_, given)| given);
            self.pool_sizes(&path, size, None);
        }
        self.drop_empty_users();
    }

    /// An empty table would declare its user, which a line of `[users]` does not.
    fn drop_empty_users(&mut self) {
        let Some(users) = self.root.entries.iter_mut().find(|entry| entry.key == "users") else { return };
        inner(users).entries.retain(|entry| !is_empty_table(&entry.node.value));
        self.places.retain(|(section, _), _| section != "users");
    }
}

fn is_empty_table(value: &Value) -> bool {
    matches!(value, Value::Table(table) if table.entries.is_empty())
}
