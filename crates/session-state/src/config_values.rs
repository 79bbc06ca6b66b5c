//! Values of `set_config` that are statement parameters: Bind supplies them.

use tidegate_sql::classify::{ConfigValue, SessionChange, is_temporary_path};
use tidegate_wire::frontend::{Bind, Parse};

/// Fills a setting change with the values of this Bind. `parse` is the Parse message of the statement, if kept.
pub fn bind_values(change: &mut SessionChange, bind: &Bind<'_>, parse: Option<&Parse<'_>>) {
    match change {
        SessionChange::Sets(sets) => sets.iter_mut().for_each(|set| bind_values(set, bind, parse)),
        SessionChange::SetConfig { name, value: value @ ConfigValue::Parameter { .. } } => {
            let text = text_of(value, bind, parse);
            let is_path = name.eq_ignore_ascii_case("search_path");
            // Objects created under such a path are temporary, which pins the client to its server.
            let text = text.filter(|text| !(is_path && is_temporary_path(text.as_bytes())));
            *value = text.map_or(ConfigValue::Unknown, |text| ConfigValue::Text(text.to_owned()));
        }
        _ => {}
    }
}

/// Text of a parameter; `None` for NULL and for parameters that may not be text.
fn text_of<'a>(value: &ConfigValue, bind: &Bind<'a>, parse: Option<&Parse<'_>>) -> Option<&'a str> {
    /// Type OIDs "unspecified", text and varchar.
    const TEXTS: [u32; 3] = [0, 25, 1043];
    let ConfigValue::Parameter { number, is_cast } = value else { return None };
    let at = number.checked_sub(1)?;
    if *is_cast {
        // If the SQL has no cast, any type that Postgres accepts has the same bytes as its text.
        let declared = parse?.types().nth(at).unwrap_or(0);
        TEXTS.contains(&declared).then_some(())?;
    }
    str::from_utf8(bind.values().ok()?.nth(at)??).ok()
}

#[cfg(test)]
mod tests {
    use tidegate_wire::{
        frame::HEADER,
        frontend::{self, BindMessage},
    };

    use super::*;

    fn bound(is_cast: bool, types: &[u32], formats: &[u16], value: Option<&[u8]>) -> ConfigValue {
        let (mut parse, mut bind) = (Vec::new(), Vec::new());
        frontend::parse(b"", b"select", types, &mut parse);
        frontend::bind(&BindMessage { formats, values: &[Some(b"first"), value], ..BindMessage::default() }, &mut bind);
        let value = ConfigValue::Parameter { number: 2, is_cast };
        let mut change = SessionChange::Sets(vec![SessionChange::SetConfig { name: "search_path".to_owned(), value }]);
        let parse = Parse::decode(&parse[HEADER..]).unwrap();
        bind_values(&mut change, &Bind::decode(&bind[HEADER..]).unwrap(), Some(&parse));
        match change {
            SessionChange::Sets(mut sets) => match sets.pop() {
                Some(SessionChange::SetConfig { value, .. }) => value,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn set_config_parameter_is_read_from_bind() {
        let text = |text: &str| ConfigValue::Text(text.to_owned());
        for formats in [&[][..], &[0], &[1], &[0, 1]] {
            assert_eq!(bound(false, &[], formats, Some(b"a, b")), text("a, b"));
            assert_eq!(bound(true, &[23, 25], formats, Some(b"")), text(""));
        }
        assert_eq!(bound(true, &[], &[1], Some(b"a")), text("a"));
        assert_eq!(bound(true, &[25, 23], &[1], Some(&[0, 0, 0, 7])), ConfigValue::Unknown, "a number");
        assert_eq!(bound(false, &[], &[], None), ConfigValue::Unknown, "NULL is the default");
        assert_eq!(bound(false, &[], &[], Some(b"\xff")), ConfigValue::Unknown);
        assert_eq!(bound(false, &[], &[], Some(b"pg_temp, a")), ConfigValue::Unknown);
    }
}
