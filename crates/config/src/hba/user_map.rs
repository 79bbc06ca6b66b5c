//! User name maps: which user of the system or name in a certificate may log in as which Postgres user.

use std::collections::HashMap;

use regex::Regex;

use super::{
    HbaLineError,
    tokens::{HbaToken, lines},
};

/// A line of a map.
#[derive(Debug, Clone)]
pub(super) struct UserMapping {
    system: MapPattern,
    user: MapTarget,
}

/// Pattern of a name.
#[derive(Debug, Clone)]
enum MapPattern {
    Exact(String),
    Regex(Regex),
}

/// Postgres users of a mapping.
#[derive(Debug, Clone)]
enum MapTarget {
    Any,
    Named(MapPattern),
    /// Text before and after the captured group of the system name.
    Captured(String, String),
}

impl UserMapping {
    /// Whether `system` may log in as `user`.
    pub(super) fn allows(&self, system: &str, user: &str) -> bool {
        let captured = match &self.system {
            MapPattern::Exact(name) if name == system => None,
            MapPattern::Exact(_) => return false,
            MapPattern::Regex(regex) => match regex.captures(system) {
                Some(found) => found.get(1).map(|group| group.as_str()),
                None => return false,
            },
        };
        match &self.user {
            MapTarget::Any => true,
            MapTarget::Named(MapPattern::Exact(name)) => name == user,
            MapTarget::Named(MapPattern::Regex(regex)) => regex.is_match(user),
            MapTarget::Captured(before, after) => captured.is_some_and(|middle| {
                let rest = user.strip_prefix(before.as_str()).and_then(|rest| rest.strip_prefix(middle));
                rest == Some(after.as_str())
            }),
        }
    }
}

/// Parses a file of maps.
pub(super) fn parse(text: &str) -> Result<HashMap<String, Vec<UserMapping>>, HbaLineError> {
    let mut maps: HashMap<String, Vec<UserMapping>> = HashMap::new();
    for (number, words) in lines(text)? {
        let [map, system, user] = &words.iter().filter_map(|words| words.first()).collect::<Vec<_>>()[..] else {
            return Err((number, "write map name, system user and Postgres user".to_owned()));
        };
        let mapping = mapping(system, user).map_err(|reason| (number, reason))?;
        maps.entry(map.text.clone()).or_default().push(mapping);
    }
    Ok(maps)
}

fn mapping(system: &HbaToken, user: &HbaToken) -> Result<UserMapping, String> {
    let system = name(&system.text)?;
    let user = match (&system, user.text.split_once("\\1")) {
        _ if user.text == "all" && !user.quoted => MapTarget::Any,
        _ if user.text.starts_with('+') && !user.quoted => {
            return Err(format!("`{}`: groups are not supported", user.text));
        }
        _ if user.text.starts_with('/') => MapTarget::Named(name(&user.text)?),
        (MapPattern::Regex(regex), Some((before, after))) => {
            if regex.captures_len() < 2 {
                return Err(format!("`{}` needs a group in parentheses in `/{regex}`", user.text));
            }
            MapTarget::Captured(before.to_owned(), after.to_owned())
        }
        _ => MapTarget::Named(MapPattern::Exact(user.text.clone())),
    };
    Ok(UserMapping { system, user })
}

/// A text that starts with a slash is a regular expression.
fn name(text: &str) -> Result<MapPattern, String> {
    match text.strip_prefix('/') {
        None => Ok(MapPattern::Exact(text.to_owned())),
        Some(pattern) => {
            let regex = Regex::new(pattern).map_err(|error| {
                let reason = error.to_string();
                format!("`{pattern}` is not a regular expression: {}", reason.lines().last().unwrap_or_default().trim())
            })?;
            Ok(MapPattern::Regex(regex))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(line: &str, system: &str, user: &str) -> bool {
        let maps = parse(line).unwrap_or_else(|wrong| panic!("{line}: {wrong:?}"));
        maps["m"].iter().any(|mapping| mapping.allows(system, user))
    }

    #[test]
    fn names_are_compared_or_matched() {
        assert!(allows("m root app", "root", "app") && !allows("m root app", "root", "other"));
        assert!(allows("m /^web[0-9]+$ app", "web12", "app") && !allows("m /^web[0-9]+$ app", "web", "app"));
        assert!(allows("m root /^app_", "root", "app_1") && !allows("m root /^app_", "root", "my_app_1"));
        assert!(allows("m root \"all\"", "root", "all") && !allows("m root \"all\"", "root", "other"));
        // As in Postgres, an expression is not anchored.
        assert!(allows("m /web app", "my web server", "app"));
    }

    #[test]
    fn a_captured_group_is_inserted() {
        let line = r"m /^(.*)@example\.com$ \1_app";
        assert!(allows(line, "alice@example.com", "alice_app"));
        for (system, user) in
            [("alice@example.com", "bob_app"), ("alice@example.com", "alice"), ("alice@example.org", "alice_app")]
        {
            assert!(!allows(line, system, user), "{system} {user}");
        }
        assert!(allows(r"m /^(x)?y$ \1", "xy", "x") && !allows(r"m /^(x)?y$ \1", "y", ""));
    }

    #[test]
    fn an_invalid_line_is_reported_with_its_number() {
        for line in ["m root", r"m /^(x app", r"m /^x$ \1", "m root +staff"] {
            assert_eq!(parse(&format!("\n{line}\n")).expect_err(line).0, 2, "{line}");
        }
    }
}
