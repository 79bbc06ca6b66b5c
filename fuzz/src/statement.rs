//! Statements: their effect on the session, and their normalised text.

use tidegate_sql::{
    classify::{SessionChange, StatementEffects, classify},
    normalize,
    redact::without_passwords,
};

/// The effect of a statement on the session: a preceding comment changes nothing, a preceding statement hides nothing,
/// and a repeated SET has the same value.
pub fn classified(data: &[u8]) {
    let data = until_zero(data);
    let alone = classify(data);
    let commented = classify(&[b"/* a */ ", data].concat());
    assert!(has(&commented, &alone) && commented.change == alone.change, "{alone:?} {commented:?}");
    let behind = classify(&[b"select 1; ", data].concat());
    assert!(has(&behind, &alone), "{alone:?} {behind:?}");
    match alone.change.as_deref() {
        Some(SessionChange::Set { name, value: Some(value) }) => repeat_set(name, value, &alone),
        Some(SessionChange::Sets(changes)) => {
            assert!(changes.iter().all(|change| matches!(change, SessionChange::Set { .. })));
        }
        _ => {}
    }
}

/// The text of a message ends at the first zero byte.
fn until_zero(data: &[u8]) -> &[u8] {
    data.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn has(all: &StatementEffects, some: &StatementEffects) -> bool {
    let mut both = all.pins;
    both.add(some.pins);
    both == all.pins || all.pins.to_string().contains("setting")
}

fn repeat_set(name: &str, value: &str, before: &StatementEffects) {
    let again = classify(format!("set \"{name}\" to {value}").as_bytes());
    let Some(SessionChange::Set { name: same, value: Some(kept) }) = again.change.as_deref() else {
        panic!("{name} = {value} is {again:?} when it is repeated");
    };
    assert_eq!((&**same, &**kept), (name, value));
    assert!(has(before, &again), "{before:?} {again:?}");
}

/// The normalised text of a statement does not depend on its literals, and contains neither a literal nor a password.
///
/// `\x01` stands for a literal.
pub fn shapes(data: &[u8]) {
    let data = until_zero(data);
    let _ = (shape_of(data), without_passwords(data));
    if data.iter().any(|byte| matches!(byte, b'\'' | b'"' | b'$' | b'\\')) {
        return;
    }
    let with = |literal: &[u8]| shape_of(&filled(data, literal)).escape_ascii().to_string();
    assert_eq!(with(b"5"), with(b"77.5e3"));
    assert_eq!(with(b"'a'"), with(b"$x$it's$x$"));
    if !data.windows(2).any(|two| matches!(two, b"--" | b"/*")) {
        let secret = b"'hunter2'";
        assert!(!has_secret(&shape_of(&filled(data, secret))));
        let text = [b"alter role ann ", data, b" password 'hunter2'"].concat();
        assert!(!has_secret(&without_passwords(&text)), "{}", text.escape_ascii());
    }
}

fn shape_of(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    normalize::normalize(text, &mut out);
    out
}

fn filled(data: &[u8], literal: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for (index, part) in data.split(|byte| *byte == 1).enumerate() {
        if index > 0 {
            text.extend_from_slice(&[b" ", literal, b" "].concat());
        }
        text.extend_from_slice(part);
    }
    text
}

fn has_secret(text: &[u8]) -> bool {
    text.windows(b"hunter2".len()).any(|part| part == b"hunter2")
}
