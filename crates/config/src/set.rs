//! Changes of single keys while the gateway runs, for `SET` in the console.

use super::{
    Config, Reload, ValueClass,
    key_path::{self, SECTIONS},
    keys::{RawAdmin, RawAuth, RawDns, RawListen, RawLog, RawPool, RawTcp, RawTimeouts},
    raw::{RawValue, SpannedValue},
    section::RawSection as _,
    setting::{ValueError, nearest},
    stream::{RawStream, StreamConfig},
};

/// Reason for refusing `SET`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The setting does not exist.
    #[error("{0}")]
    Unknown(String),
    /// The setting is changed in the file, with a reload or a restart.
    #[error("{0}")]
    Fixed(String),
    /// The setting names a file, and `admin.set_files` is off.
    #[error("{0} names a file; SET cannot change it unless admin.set_files is true")]
    NamesFile(String),
    /// The value is invalid.
    #[error("{0}")]
    Invalid(String),
}

/// Sections whose keys `SET` changes, unless they need a restart.
const SECTIONS_OF_SET: &[&str] = &["listen", "auth", "pool", "timeouts", "admin", "tcp", "dns", "log"];

impl Config {
    /// Returns the configuration with another value for `path`, such as `pool.size`.
    ///
    /// # Errors
    /// If the setting does not exist, cannot be changed while the gateway runs, or has another type.
    pub fn with_setting(&self, path: &str, text: &str) -> Result<Self, ChangeError> {
        let mut last = None;
        for value in candidate_values(text) {
            match self.with_value(path, &value) {
                Ok(config) => return Ok(config),
                Err(error) => last = last.or(Some(error)),
            }
        }
        Err(last.unwrap_or_else(|| unknown(path)))
    }

    /// Whether `SET` changes the key.
    #[must_use]
    pub fn is_settable(&self, path: &str) -> bool {
        let Some(found) = key_path::find(path) else { return false };
        match path.split_once('.') {
            Some(("streams", _)) => StreamConfig::LIMITS.contains(&found.key.name),
            Some((section, name)) => {
                let is_allowed = found.key.class != ValueClass::File || self.admin.set_files;
                SECTIONS_OF_SET.contains(&section)
                    && !name.contains('.')
                    && found.key.reload == Reload::Live
                    && is_allowed
            }
            None => false,
        }
    }

    /// Returns the configuration with a parsed value.
    pub(crate) fn with_value(&self, path: &str, value: &RawValue) -> Result<Self, ChangeError> {
        if let Some(rest) = path.strip_prefix("streams.") {
            return self.with_stream(path, rest, value);
        }
        let (section, name) = path.split_once('.').ok_or_else(|| unknown(path))?;
        let found = key_path::find(path).filter(|_| !name.contains('.')).ok_or_else(|| unknown(path))?;
        if found.key.reload == Reload::Restart {
            return Err(ChangeError::Fixed(format!("{path} cannot be changed without a restart")));
        }
        let mut config = self.clone();
        macro_rules! change {
            ($field:ident, $raw:ty) => {{
                let mut raw = <$raw>::default();
                let set = raw.set(name, value);
                config.$field = raw.over(&config.$field);
                set
            }};
        }
        let set = match section {
            "listen" => change!(listen, RawListen),
            "auth" => change!(auth, RawAuth),
            "pool" => change!(pool, RawPool),
            "timeouts" => change!(timeouts, RawTimeouts),
            "admin" => change!(admin, RawAdmin),
            "tcp" => change!(tcp, RawTcp),
            "dns" => change!(dns, RawDns),
            "log" => change!(log, RawLog),
            _ => return Err(ChangeError::Fixed(format!("{path} can only be changed in the file, followed by RELOAD"))),
        };
        match set {
            // A setting of PgBouncer may stand for several keys, of which some keep their values.
            Some(Ok(())) if self.is_settable(path) || config == *self => Ok(config),
            Some(Ok(())) => Err(ChangeError::NamesFile(path.to_owned())),
            Some(Err(ValueError { reason, help, .. })) => {
                Err(ChangeError::Invalid(format!("{path}: {reason}; {help}")))
            }
            None => Err(unknown(path)),
        }
    }

    /// Returns the configuration with a limit of a stream; `rest` is `NAME.KEY`.
    fn with_stream(&self, path: &str, rest: &str, value: &RawValue) -> Result<Self, ChangeError> {
        let Some((name, key)) = rest.rsplit_once('.') else { return Err(unknown(path)) };
        let mut config = self.clone();
        let Some(stream) = config.streams.iter_mut().find(|stream| stream.keys.name == name) else {
            return Err(ChangeError::Unknown(format!("there is no stream {name}; SHOW STREAMS lists them")));
        };
        if !StreamConfig::LIMITS.contains(&key) {
            let limits = StreamConfig::LIMITS.join(", ");
            let reason =
                format!("SET changes only {limits} of a stream; change other keys in the file, followed by RELOAD");
            return Err(ChangeError::Fixed(reason));
        }
        let mut raw = RawStream::default();
        match raw.set(key, value) {
            Some(Ok(())) => {
                stream.keys = raw.over(&stream.keys);
                // Some limits have another default if they are not written.
                drop(stream.written.set(key, value));
                Ok(config)
            }
            Some(Err(ValueError { reason, help, .. })) => {
                Err(ChangeError::Invalid(format!("{path}: {reason}; {help}")))
            }
            None => Err(unknown(path)),
        }
    }
}

fn unknown(path: &str) -> ChangeError {
    let known: Vec<_> = SECTIONS
        .iter()
        .filter(|(section, _)| !section.contains('.') && *section != "streams")
        .flat_map(|(section, keys)| keys.iter().map(move |key| format!("{section}.{}", key.name)))
        .collect();
    ChangeError::Unknown(match nearest(path, known.iter().map(String::as_str)) {
        Some(near) => format!("there is no setting {path}; did you mean {near}?"),
        None => format!("there is no setting {path}; SHOW CONFIG lists them"),
    })
}

/// Possible values of a text, because `SET` has no types.
fn candidate_values(text: &str) -> Vec<RawValue> {
    let mut candidates = Vec::new();
    candidates.extend(text.parse().ok().map(RawValue::Boolean));
    candidates.extend(text.parse().ok().map(RawValue::Integer));
    candidates.push(RawValue::Text(text.to_owned()));
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    candidates.push(RawValue::List(
        names.map(|name| SpannedValue { value: RawValue::Text(name.to_owned()), at: 0..0 }).collect(),
    ));
    candidates
}

#[cfg(test)]
mod tests {
    use super::{super::toml, *};

    #[test]
    fn live_keys_can_be_changed_one_by_one() {
        let config = toml::parse("[databases.shop]\nhost = \"db\"\n", "t").expect("a configuration");
        assert_eq!(config.with_setting("pool.size", "3").expect("a size").pool.size, 3);
        assert_eq!(config.with_setting("admin.users", "a, b").expect("users").admin.users, ["a", "b"]);
        assert_eq!(config.with_setting("timeouts.query", "5s").expect("a time").timeouts.query.as_secs(), 5);
        assert!(!config.with_setting("log.connections", "false").expect("a flag").log.connections);
        for (path, text) in [("pool.size", "0"), ("pool.sice", "1"), ("runtime.workers", "2"), ("nothing", "1")] {
            config.with_setting(path, text).expect_err(path);
        }
        assert!(config.with_setting("pool.sice", "1").expect_err("no key").to_string().contains("pool.size"));
    }

    #[test]
    fn limits_of_a_stream_can_be_changed() {
        let text = "[[streams]]\nname = \"a.b\"\nfrom = \"in\"\nto = \"-\"\nbatch = 7\n";
        let config = toml::parse(text, "t").expect("a configuration");
        let changed = config.with_setting("streams.a.b.rate", "50").expect("a rate");
        assert_eq!((changed.streams[0].keys.rate, changed.streams[0].keys.batch), (50, 7));
        assert!(changed.setting_rows().iter().any(|row| row.key == "streams.a.b.rate" && row.value == "50"));
        let error = |path: &str, text: &str| config.with_setting(path, text).expect_err(path).to_string();
        assert!(error("streams.a.b.concurrency", "0").contains("write a number from 1"));
        assert!(error("streams.a.b.to", "http://x").contains("SET changes only rate, concurrency"));
        assert!(error("streams.b.rate", "1").contains("there is no stream b"));
    }

    /// A settable key may refuse the value; other keys refuse every value.
    #[test]
    fn settable_keys_are_those_that_set_changes() {
        for set_files in [false, true] {
            let text = format!("[databases.shop]\nhost = \"db\"\n[admin]\nset_files = {set_files}\n");
            let config = toml::parse(&text, "t").expect("a configuration");
            for row in config.setting_rows() {
                let outcome = config.with_setting(&row.key, "/x");
                let takes = matches!(outcome, Ok(_) | Err(ChangeError::Invalid(_)));
                assert_eq!(row.settable, takes, "{}: {outcome:?}", row.key);
                assert!(row.reloadable || !row.settable, "{}", row.key);
            }
            let is_file_settable = config.with_setting("log.file", "/etc/passwd").is_ok();
            assert_eq!(is_file_settable, set_files);
        }
    }

    /// Otherwise a user of `SET` could enable `admin.set_files`.
    #[test]
    fn set_does_not_allow_files() {
        let config = toml::parse("[databases.shop]\nhost = \"db\"\n", "t").expect("a configuration");
        let refused = config.with_setting("admin.set_files", "true");
        assert!(matches!(refused, Err(ChangeError::Fixed(_))), "{refused:?}");
    }
}
