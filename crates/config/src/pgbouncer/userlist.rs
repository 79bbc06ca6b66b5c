//! Reader of `userlist.txt`: a line is `"name" "password"`.

use super::ini::unquote;
use crate::raw::SourceSpan;

/// A user of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UserlistEntry {
    pub(super) name: String,
    pub(super) name_at: SourceSpan,
    pub(super) password: String,
    pub(super) password_at: SourceSpan,
}

/// The users, and the starts of invalid lines.
pub(super) fn users(text: &str) -> (Vec<UserlistEntry>, Vec<usize>) {
    let (mut users, mut broken) = (Vec::new(), Vec::new());
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        let from = start + line.len() - line.trim_start().len();
        start += line.len();
        if trimmed.is_empty() || trimmed.starts_with([';', '#']) {
            continue;
        }
        match listed(trimmed, from) {
            Some(listed) => users.push(listed),
            None => broken.push(from),
        }
    }
    (users, broken)
}

fn listed(line: &str, from: usize) -> Option<UserlistEntry> {
    let (name, length) = unquote(line.strip_prefix('"')?, '"')?;
    let name_end = length + 1;
    let password_start = name_end + line[name_end..].find('"')?;
    let (password, length) = unquote(&line[password_start + 1..], '"')?;
    Some(UserlistEntry {
        name,
        name_at: from..from + name_end,
        password,
        password_at: from + password_start..from + password_start + 1 + length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_passwords_are_unquoted() {
        let text =
            "; comment\n\"app\" \"sec\"\"ret\"\n\n  \"a b\"\t\"\" ignored\n# x\nbroken\n\"half\n\"no password\"\n";
        let (users, broken) = users(text);
        let found: Vec<_> = users.iter().map(|user| (&*user.name, &*user.password)).collect();
        assert_eq!(found, [("app", "sec\"ret"), ("a b", "")]);
        assert_eq!(broken.len(), 3);
        assert_eq!(&text[users[0].password_at.clone()], "\"sec\"\"ret\"");
    }
}
