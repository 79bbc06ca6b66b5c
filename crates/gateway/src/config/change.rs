//! One key changed while the gateway runs, for `SET` in the console.

use super::{
    Config, Reload,
    check::SECTIONS,
    keys::{RawAdmin, RawAuth, RawDns, RawListen, RawLog, RawPool, RawTcp, RawTimeouts},
    raw::{Node, Value},
    section::Keys as _,
    setting::{Wrong, nearest},
    stream::{RawStream, Stream},
};

impl Config {
    /// This configuration with another value for `path`, such as `pool.size`; only for keys that a reload changes too.
    ///
    /// # Errors
    /// Why it cannot be changed to that.
    pub fn changed(&self, path: &str, text: &str) -> Result<Self, String> {
        let mut last = None;
        for value in readings(text) {
            match self.with_value(path, &value) {
                Ok(config) => return Ok(config),
                Err(wrong) => last = last.or(Some(wrong)),
            }
        }
        Err(last.unwrap_or_default())
    }

    /// The same with a value that was read already.
    pub(crate) fn with_value(&self, path: &str, value: &Value) -> Result<Self, String> {
        if let Some(rest) = path.strip_prefix("streams.") {
            return self.with_stream(path, rest, value);
        }
        let Some((section, name)) = path.split_once('.') else { return Err(unknown(path)) };
        let keys = SECTIONS.iter().find(|(known, _)| *known == section).map_or(&[][..], |(_, keys)| keys);
        let Some(key) = keys.iter().find(|key| key.name == name) else { return Err(unknown(path)) };
        if key.reload == Reload::Restart {
            return Err(format!("{path} cannot be changed without a restart"));
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
            _ => return Err(format!("{path} is changed in the file; RELOAD puts it in force")),
        };
        match set {
            Some(Ok(())) => Ok(config),
            Some(Err(Wrong { reason, help, .. })) => Err(format!("{path}: {reason}; {help}")),
            None => Err(unknown(path)),
        }
    }

    /// The same with a limit of a stream, written `NAME.KEY`.
    fn with_stream(&self, path: &str, rest: &str, value: &Value) -> Result<Self, String> {
        let Some((name, key)) = rest.rsplit_once('.') else { return Err(unknown(path)) };
        let mut config = self.clone();
        let Some(stream) = config.streams.iter_mut().find(|stream| stream.keys.name == name) else {
            return Err(format!("there is no stream {name}; SHOW STREAMS lists them"));
        };
        if !Stream::LIMITS.contains(&key) {
            let limits = Stream::LIMITS.join(", ");
            return Err(format!("of a stream, SET changes {limits}; the rest is changed in the file, and by RELOAD"));
        }
        let mut raw = RawStream::default();
        match raw.set(key, value) {
            Some(Ok(())) => {
                stream.keys = raw.over(&stream.keys);
                // For SHOW CONFIG, and because some limits are wider if nobody wrote them.
                drop(stream.written.set(key, value));
                Ok(config)
            }
            Some(Err(Wrong { reason, help, .. })) => Err(format!("{path}: {reason}; {help}")),
            None => Err(unknown(path)),
        }
    }
}

fn unknown(path: &str) -> String {
    let known: Vec<_> = SECTIONS
        .iter()
        .filter(|(section, _)| !section.contains('.') && *section != "streams")
        .flat_map(|(section, keys)| keys.iter().map(move |key| format!("{section}.{}", key.name)))
        .collect();
    match nearest(path, known.iter().map(String::as_str)) {
        Some(near) => format!("there is no setting {path}; did you mean {near}?"),
        None => format!("there is no setting {path}; SHOW CONFIG lists them"),
    }
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
    use super::super::toml;

    #[test]
    fn live_keys_can_be_changed_one_by_one() {
        let config = toml::parse("[databases.shop]\nhost = \"db\"\n", "t").expect("a configuration");
        assert_eq!(config.changed("pool.size", "3").expect("a size").pool.size, 3);
        assert_eq!(config.changed("admin.users", "a, b").expect("users").admin.users, ["a", "b"]);
        assert_eq!(config.changed("timeouts.query", "5s").expect("a time").timeouts.query.as_secs(), 5);
        assert!(!config.changed("log.connections", "false").expect("a flag").log.connections);
        for (path, text) in [("pool.size", "0"), ("pool.sice", "1"), ("runtime.workers", "2"), ("nothing", "1")] {
            let wrong = config.changed(path, text).expect_err(path);
            assert!(!wrong.is_empty(), "{path}");
        }
        assert!(config.changed("pool.sice", "1").expect_err("no key").contains("pool.size"));
    }

    #[test]
    fn of_a_stream_its_limits_can_be_changed() {
        let text = "[[streams]]\nname = \"a.b\"\nfrom = \"in\"\nto = \"-\"\nbatch = 7\n";
        let config = toml::parse(text, "t").expect("a configuration");
        let changed = config.changed("streams.a.b.rate", "50").expect("a rate");
        assert_eq!((changed.streams[0].keys.rate, changed.streams[0].keys.batch), (50, 7));
        assert!(changed.render().iter().any(|row| row.key == "streams.a.b.rate" && row.value == "50"));
        let wrong = |path: &str, text: &str| config.changed(path, text).expect_err(path);
        assert!(wrong("streams.a.b.concurrency", "0").contains("write a number from 1"));
        assert!(wrong("streams.a.b.to", "http://x").contains("SET changes rate, concurrency"));
        assert!(wrong("streams.b.rate", "1").contains("there is no stream b"));
    }
}
