//! One key changed while the gateway runs, for `SET` in the console.

use super::{
    Config, Holds, Reload,
    check::SECTIONS,
    keys::{RawAdmin, RawAuth, RawDns, RawListen, RawLog, RawPool, RawTcp, RawTimeouts},
    path,
    raw::{Node, Value},
    section::Keys as _,
    setting::{Wrong, nearest},
    stream::{RawStream, Stream},
};

/// Why `SET` does not change a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// There is no such setting.
    #[error("{0}")]
    Unknown(String),
    /// It is changed in the file, for a reload or a restart.
    #[error("{0}")]
    Fixed(String),
    /// It names a file, and `admin.set_files` is off.
    #[error("{0} names a file, which SET may not change")]
    NamesFile(String),
    /// The value does not fit.
    #[error("{0}")]
    Invalid(String),
}

/// The sections whose keys `SET` changes, as far as a reload changes them.
const SECTIONS_OF_SET: &[&str] = &["listen", "auth", "pool", "timeouts", "admin", "tcp", "dns", "log"];

impl Config {
    /// This configuration with another value for `path`, such as `pool.size`; only for keys that a reload changes too.
    ///
    /// # Errors
    /// Why it cannot be changed to that.
    pub fn changed(&self, path: &str, text: &str) -> Result<Self, ChangeError> {
        let mut last = None;
        for value in readings(text) {
            match self.with_value(path, &value) {
                Ok(config) => return Ok(config),
                Err(wrong) => last = last.or(Some(wrong)),
            }
        }
        Err(last.unwrap_or_else(|| unknown(path)))
    }

    /// Whether `SET` changes the key of that path.
    #[must_use]
    pub fn is_settable(&self, path: &str) -> bool {
        let Some(found) = path::find(path) else { return false };
        match path.split_once('.') {
            Some(("streams", _)) => Stream::LIMITS.contains(&found.key.name),
            Some((section, _)) => {
                let is_allowed = found.key.holds != Holds::File || self.admin.set_files;
                SECTIONS_OF_SET.contains(&section) && found.key.reload == Reload::Live && is_allowed
            }
            None => false,
        }
    }

    /// The same with a value that was read already.
    pub(crate) fn with_value(&self, path: &str, value: &Value) -> Result<Self, ChangeError> {
        if let Some(rest) = path.strip_prefix("streams.") {
            return self.with_stream(path, rest, value);
        }
        let (section, name) = path.split_once('.').ok_or_else(|| unknown(path))?;
        let found = path::find(path).filter(|_| !name.contains('.')).ok_or_else(|| unknown(path))?;
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
            _ => return Err(ChangeError::Fixed(format!("{path} is changed in the file; RELOAD puts it in force"))),
        };
        match set {
            // PgBouncer's words for a setting may come to several of ours, of which some keep their values.
            Some(Ok(())) if self.is_settable(path) || config == *self => Ok(config),
            Some(Ok(())) => Err(ChangeError::NamesFile(path.to_owned())),
            Some(Err(Wrong { reason, help, .. })) => Err(ChangeError::Invalid(format!("{path}: {reason}; {help}"))),
            None => Err(unknown(path)),
        }
    }

    /// The same with a limit of a stream, written `NAME.KEY`.
    fn with_stream(&self, path: &str, rest: &str, value: &Value) -> Result<Self, ChangeError> {
        let Some((name, key)) = rest.rsplit_once('.') else { return Err(unknown(path)) };
        let mut config = self.clone();
        let Some(stream) = config.streams.iter_mut().find(|stream| stream.keys.name == name) else {
            return Err(ChangeError::Unknown(format!("there is no stream {name}; SHOW STREAMS lists them")));
        };
        if !Stream::LIMITS.contains(&key) {
            let limits = Stream::LIMITS.join(", ");
            let reason = format!("of a stream, SET changes {limits}; the rest is changed in the file, and by RELOAD");
            return Err(ChangeError::Fixed(reason));
        }
        let mut raw = RawStream::default();
        match raw.set(key, value) {
            Some(Ok(())) => {
                stream.keys = raw.over(&stream.keys);
                // For SHOW CONFIG, and because some limits are wider if nobody wrote them.
                drop(stream.written.set(key, value));
                Ok(config)
            }
            Some(Err(Wrong { reason, help, .. })) => Err(ChangeError::Invalid(format!("{path}: {reason}; {help}"))),
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

/// What a text may mean: the console has no types.
fn readings(text: &str) -> Vec<Value> {
    let mut readings = Vec::new();
    readings.extend(text.parse().ok().map(Value::Boolean));
    readings.extend(text.parse().ok().map(Value::Integer));
    readings.push(Value::Text(text.to_owned()));
    let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
    readings.push(Value::List(names.map(|name| Node { value: Value::Text(name.to_owned()), at: 0..0 }).collect()));
    readings
}

#[cfg(test)]
mod tests {
    use super::{super::toml, *};

    #[test]
    fn live_keys_can_be_changed_one_by_one() {
        let config = toml::parse("[databases.shop]\nhost = \"db\"\n", "t").expect("a configuration");
        assert_eq!(config.changed("pool.size", "3").expect("a size").pool.size, 3);
        assert_eq!(config.changed("admin.users", "a, b").expect("users").admin.users, ["a", "b"]);
        assert_eq!(config.changed("timeouts.query", "5s").expect("a time").timeouts.query.as_secs(), 5);
        assert!(!config.changed("log.connections", "false").expect("a flag").log.connections);
        for (path, text) in [("pool.size", "0"), ("pool.sice", "1"), ("runtime.workers", "2"), ("nothing", "1")] {
            config.changed(path, text).expect_err(path);
        }
        assert!(config.changed("pool.sice", "1").expect_err("no key").to_string().contains("pool.size"));
    }

    #[test]
    fn of_a_stream_its_limits_can_be_changed() {
        let text = "[[streams]]\nname = \"a.b\"\nfrom = \"in\"\nto = \"-\"\nbatch = 7\n";
        let config = toml::parse(text, "t").expect("a configuration");
        let changed = config.changed("streams.a.b.rate", "50").expect("a rate");
        assert_eq!((changed.streams[0].keys.rate, changed.streams[0].keys.batch), (50, 7));
        assert!(changed.render().iter().any(|row| row.key == "streams.a.b.rate" && row.value == "50"));
        let wrong = |path: &str, text: &str| config.changed(path, text).expect_err(path).to_string();
        assert!(wrong("streams.a.b.concurrency", "0").contains("write a number from 1"));
        assert!(wrong("streams.a.b.to", "http://x").contains("SET changes rate, concurrency"));
        assert!(wrong("streams.b.rate", "1").contains("there is no stream b"));
    }

    /// Of what is settable some values may not fit; of the rest none is taken.
    #[test]
    fn changeable_keys_are_those_that_set_changes() {
        for set_files in [false, true] {
            let text = format!("[databases.shop]\nhost = \"db\"\n[admin]\nset_files = {set_files}\n");
            let config = toml::parse(&text, "t").expect("a configuration");
            for row in config.render() {
                let outcome = config.changed(&row.key, "/x");
                let takes = matches!(outcome, Ok(_) | Err(ChangeError::Invalid(_)));
                assert_eq!(row.settable, takes, "{}: {outcome:?}", row.key);
                assert!(row.reloadable || !row.settable, "{}", row.key);
            }
            let is_file_settable = config.changed("log.file", "/etc/passwd").is_ok();
            assert_eq!(is_file_settable, set_files);
        }
    }

    /// Else whoever may use SET could allow himself to.
    #[test]
    fn set_does_not_allow_files() {
        let config = toml::parse("[databases.shop]\nhost = \"db\"\n", "t").expect("a configuration");
        let refused = config.changed("admin.set_files", "true");
        assert!(matches!(refused, Err(ChangeError::Fixed(_))), "{refused:?}");
    }
}
