//! Passwords in statements, which no record has, however much of a statement is written down.

use std::borrow::Cow;

use super::shape::{may_set_password, passwords};

const HIDDEN: &[u8] = b"***";

/// The text with `***` for each password that it sets: `CREATE` or `ALTER` of roles, user mappings and servers, and the
/// connection of a subscription. A body of `DO` with the word in it is hidden as a whole. What stands within another literal (the
/// body of a function, an argument of `dblink`) is not looked at.
#[must_use]
pub fn without_passwords(text: &[u8]) -> Cow<'_, [u8]> {
    if !may_set_password(text) {
        return Cow::Borrowed(text);
    }
    let (mut out, mut from) = (Vec::new(), 0);
    for place in passwords(text) {
        out.extend_from_slice(&text[from..place.start]);
        out.extend_from_slice(HIDDEN);
        from = place.end;
    }
    if from == 0 {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(&text[from..]);
    Cow::Owned(out)
}

/// Whether there is one, which an error may quote.
pub(super) fn sets_password(text: &[u8]) -> bool {
    matches!(without_passwords(text), Cow::Owned(_))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::shape::{Shape, reduce};

    proptest! {
        #[test]
        fn a_shape_tells_whether_there_may_be_one(
            text in "(alter role|create user|do| a|select|'|''|'x'|;| |--\n|/\\*|\\*/|password|\\$\\$|\\(|null|-|1|\"){0,14}"
        ) {
            let mut shape = Vec::new();
            reduce(text.as_bytes(), &mut shape);
            let is_told = Shape::new(&shape, 0).may_hide;
            prop_assert!(is_told || !sets_password(text.as_bytes()), "{}", String::from_utf8_lossy(&shape));
        }
    }

    #[test]
    fn a_password_is_hidden_wherever_a_statement_sets_one() {
        for (text, expected) in [
            ("ALTER ROLE ann PASSWORD 'geheim'", "ALTER ROLE ann PASSWORD ***"),
            (
                "alter user ann with encrypted password E'ge\\'heim' valid until 'x'",
                "alter user ann with encrypted password *** valid until 'x'",
            ),
            ("/* a */ create role ann login password $a$geheim$a$;", "/* a */ create role ann login password ***;"),
            ("create role ann password -- '\n 'geheim'", "create role ann password -- '\n ***"),
            ("alter role ann password U&'geheim'", "alter role ann password ***"),
            (
                "select 1; alter role ann password 'geheim'; select 'b'",
                "select 1; alter role ann password ***; select 'b'",
            ),
            (
                "create user mapping for ann server s options (user 'ann', password 'geheim')",
                "create user mapping for ann server s options (user 'ann', password ***)",
            ),
            (
                "alter user mapping for ann server s options (set \"password\" 'geheim')",
                "alter user mapping for ann server s options (set \"password\" ***)",
            ),
            (
                "create subscription s connection 'host=a password=geheim' publication p",
                "create subscription s connection *** publication p",
            ),
            ("alter role ann password 'geheim", "alter role ann password ***"),
            (
                "do $$ declare p text := 'geheim'; begin execute format('alter role ann password %L', p); end $$",
                "do ***",
            ),
            ("DO LANGUAGE plpgsql 'begin alter role ann PassWord ''geheim''; end'", "DO LANGUAGE plpgsql ***"),
            ("begin; /* a */ do $a$ alter role ann password 'geheim' $a$; commit", "begin; /* a */ do ***; commit"),
            // Nothing is set here.
            ("do $$ begin perform pass('word'); end $$", "do $$ begin perform pass('word'); end $$"),
            ("select 1; select 'password'", "select 1; select 'password'"),
            ("alter role ann password null", "alter role ann password null"),
            ("select password from t where password = 'x'", "select password from t where password = 'x'"),
            ("create table t (password text default 'x')", "create table t (password text default 'x')"),
            ("", ""),
        ] {
            assert_eq!(String::from_utf8_lossy(&without_passwords(text.as_bytes())), expected, "{text}");
        }
    }
}
