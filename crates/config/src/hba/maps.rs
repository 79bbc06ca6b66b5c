//! User name maps: who, by the system or by a certificate, may come as which user of Postgres.

use std::collections::HashMap;

use regex::Regex;

use super::{
    Wrong,
    words::{Word, lines},
};

/// A line of a map.
#[derive(Debug, Clone)]
pub(super) struct Mapping {
    system: Name,
    user: User,
}

/// A name, or what it looks like.
#[derive(Debug, Clone)]
enum Name {
    Exact(String),
    Like(Regex),
}

/// As whom somebody may come.
#[derive(Debug, Clone)]
enum User {
    Anybody,
    Named(Name),
    /// What the system's name was found to hold, between these two.
    Captured(String, String),
}

impl Mapping {
    /// Whether `system` may come as `user`.
    pub(super) fn lets(&self, system: &str, user: &str) -> bool {
        let captured = match &self.system {
            Name::Exact(name) if name == system => None,
            Name::Exact(_) => return false,
            Name::Like(regex) => match regex.captures(system) {
                Some(found) => found.get(1).map(|group| group.as_str()),
                None => return false,
            },
        };
        match &self.user {
            User::Anybody => true,
            User::Named(Name::Exact(name)) => name == user,
            User::Named(Name::Like(regex)) => regex.is_match(user),
            User::Captured(before, after) => captured.is_some_and(|middle| {
                let rest = user.strip_prefix(before.as_str()).and_then(|rest| rest.strip_prefix(middle));
                rest == Some(after.as_str())
            }),
        }
    }
}

/// Reads a file of maps.
pub(super) fn parse(text: &str) -> Result<HashMap<String, Vec<Mapping>>, Wrong> {
    let mut maps: HashMap<String, Vec<Mapping>> = HashMap::new();
    for (number, words) in lines(text)? {
        let [map, system, user] = &words.iter().filter_map(|words| words.first()).collect::<Vec<_>>()[..] else {
            return Err((number, "a line is: map, user of the machine, user of Postgres".to_owned()));
        };
        let mapping = mapping(system, user).map_err(|reason| (number, reason))?;
        maps.entry(map.text.clone()).or_default().push(mapping);
    }
    Ok(maps)
}

fn mapping(system: &Word, user: &Word) -> Result<Mapping, String> {
    let system = name(&system.text)?;
    let user = match (&system, user.text.split_once("\\1")) {
        _ if user.text == "all" && !user.quoted => User::Anybody,
        _ if user.text.starts_with('+') && !user.quoted => {
            return Err(format!("`{}`: groups are not supported", user.text));
        }
        _ if user.text.starts_with('/') => User::Named(name(&user.text)?),
        (Name::Like(regex), Some((before, after))) => {
            if regex.captures_len() < 2 {
                return Err(format!("`{}` needs a part in parentheses in `/{regex}`", user.text));
            }
            User::Captured(before.to_owned(), after.to_owned())
        }
        _ => User::Named(Name::Exact(user.text.clone())),
    };
    Ok(Mapping { system, user })
}

/// What begins with a slash is a regular expression.
fn name(text: &str) -> Result<Name, String> {
    match text.strip_prefix('/') {
        None => Ok(Name::Exact(text.to_owned())),
        Some(pattern) => {
            let regex = Regex::new(pattern).map_err(|error| {
                let reason = error.to_string();
                format!("`{pattern}` is no regular expression: {}", reason.lines().last().unwrap_or_default().trim())
            })?;
            Ok(Name::Like(regex))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lets(line: &str, system: &str, user: &str) -> bool {
        let maps = parse(line).unwrap_or_else(|wrong| panic!("{line}: {wrong:?}"));
        maps["m"].iter().any(|mapping| mapping.lets(system, user))
    }

    #[test]
    fn names_are_the_same_or_look_alike() {
        assert!(lets("m root app", "root", "app") && !lets("m root app", "root", "other"));
        assert!(lets("m /^web[0-9]+$ app", "web12", "app") && !lets("m /^web[0-9]+$ app", "web", "app"));
        assert!(lets("m root /^app_", "root", "app_1") && !lets("m root /^app_", "root", "my_app_1"));
        assert!(lets("m root \"all\"", "root", "all") && !lets("m root \"all\"", "root", "other"));
        // An expression is found anywhere in a name, as in Postgres.
        assert!(lets("m /web app", "my web server", "app"));
    }

    #[test]
    fn a_part_of_one_name_is_a_part_of_the_other() {
        let line = r"m /^(.*)@example\.com$ \1_app";
        assert!(lets(line, "alice@example.com", "alice_app"));
        for (system, user) in
            [("alice@example.com", "bob_app"), ("alice@example.com", "alice"), ("alice@example.org", "alice_app")]
        {
            assert!(!lets(line, system, user), "{system} {user}");
        }
        assert!(lets(r"m /^(x)?y$ \1", "xy", "x") && !lets(r"m /^(x)?y$ \1", "y", ""));
    }

    #[test]
    fn what_cannot_be_meant_is_told_with_its_line() {
        for line in ["m root", r"m /^(x app", r"m /^x$ \1", "m root +staff"] {
            assert_eq!(parse(&format!("\n{line}\n")).expect_err(line).0, 2, "{line}");
        }
    }
}
