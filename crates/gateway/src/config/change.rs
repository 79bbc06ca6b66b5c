//! One key changed while the gateway runs, for `SET` in the console.

use super::{
    Config, Reload,
    check::SECTIONS,
    keys::{RawAdmin, RawAuth, RawDns, RawListen, RawLog, RawPool, RawTcp, RawTimeouts},
    raw::{Node, Value},
    section::Keys as _,
    setting::{Wrong, nearest},
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
            "log" if name != "level" => change!(log, RawLog),
            _ => return Err(format!("{path} is changed in the file; RELOAD puts it in force")),
        };
        match set {
            Some(Ok(())) => Ok(config),
            Some(Err(Wrong { reason, help, .. })) => Err(format!("{path}: {reason}; {help}")),
            None => Err(unknown(path)),
        }
    }
}

fn unknown(path: &str) -> String {
    let known: Vec<_> = SECTIONS
        .iter()
        .filter(|(section, _)| !section.contains('.'))
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
}
