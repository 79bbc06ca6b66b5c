//! Passwords in every position that a statement allows.

use proptest::prelude::*;

use super::*;
use crate::{normalize::normalize, normalized::Normalized};

fn hidden(text: &str) -> String {
    String::from_utf8(without_passwords(text.as_bytes()).into_owned()).expect("text")
}

#[test]
fn strings_after_password_are_hidden() {
    for (text, expected) in [
        ("ALTER ROLE ann PASSWORD 'geheim'", "ALTER ROLE ann PASSWORD ***"),
        (
            "alter user ann with encrypted password E'ge\\'heim' valid until 'x'",
            "alter user ann with encrypted password *** valid until 'x'",
        ),
        ("/* a */ create role ann login password $a$geheim$a$;", "/* a */ create role ann login password ***;"),
        ("create role ann password -- '\n 'geheim'", "create role ann password -- '\n ***"),
        ("alter role ann password U&'geheim'", "alter role ann password ***"),
        ("alter role ann password U&'ge!0041' UESCAPE '!'", "alter role ann password *** UESCAPE '!'"),
        ("select 1; alter role ann password 'geheim'; select 'b'", "select 1; alter role ann password ***; select 'b'"),
        ("alter role ann password 'geheim", "alter role ann password ***"),
        ("alter role ann set app.password = 'geheim'", "alter role ann set app.password = ***"),
        ("alter system set ssl_passphrase to 'geheim'", "alter system set ssl_passphrase to ***"),
        ("alter role ann password 4711", "alter role ann password ***"),
        ("create user ann identified by 'geheim'", "create user ann identified by ***"),
        ("ALTR USER ann PASSWORD 'geheim'", "ALTR USER ann PASSWORD ***"),
        ("set password for ann = 'geheim'", "set password ***"),
    ] {
        assert_eq!(hidden(text), expected, "{text}");
    }
}

/// Postgres continues a string on the next line (`quotecontinue` in scan.l).
#[test]
fn continued_strings_are_hidden() {
    for (text, expected) in [
        ("create role a password 'sec'\n'ret' login", "create role a password *** login"),
        ("create role a password 'sec' -- x\n 'r' \r\n'et'", "create role a password ***"),
        ("create role a password E'sec'\n'ret'", "create role a password ***"),
        ("create role a password U&'sec'\n'ret'", "create role a password ***"),
        ("create role a password 'sec' 'ret'", "create role a password ***"),
        ("create role a password $$sec$$\n$$ret$$", "create role a password ***"),
        (
            "create user mapping for a server s options (password 'sec'\n'ret', user 'ann')",
            "create user mapping for a server s options (password ***, user 'ann')",
        ),
    ] {
        assert_eq!(hidden(text), expected, "{text}");
    }
}

#[test]
fn malformed_strings_are_hidden_to_the_end() {
    for (text, expected) in [
        ("alter user a password \"secret\"", "alter user a password ***"),
        ("alter user a password U&\"secret\" login", "alter user a password ***"),
        ("alter user a password secret; select 1", "alter user a password ***"),
        ("alter user a password p@ss,w(rd 'x'", "alter user a password ***"),
        ("alter user a password('secret')", "alter user a password***"),
        ("alter user a password = secret", "alter user a password = ***"),
        ("alter user a password 'it's secret' valid until 'x'", "alter user a password ***"),
        ("alter user a password 'secret'too", "alter user a password ***"),
        ("creat role a password secret", "creat role a password ***"),
        ("create usr a password secret", "create usr a password ***"),
        ("alter role a password NULL", "alter role a password NULL"),
        ("alter role a password", "alter role a password"),
    ] {
        assert_eq!(hidden(text), expected, "{text}");
    }
}

#[test]
fn options_and_connections_are_hidden() {
    for (text, expected) in [
        (
            "create user mapping for ann server s options (user 'ann', password 'geheim')",
            "create user mapping for ann server s options (user 'ann', password ***)",
        ),
        (
            "alter user mapping for ann server s options (set \"password\" 'geheim')",
            "alter user mapping for ann server s options (set \"password\" ***)",
        ),
        (
            "create user mapping if not exists for a server s options (user 'a', sslpassword 'x', pin 'y')",
            "create user mapping if not exists for a server s options (user 'a', sslpassword ***, pin ***)",
        ),
        (
            "create server s foreign data wrapper w options (host 'a', aws_secret_key 'x', connstr 'a password=b')",
            "create server s foreign data wrapper w options (host 'a', aws_secret_key ***, connstr ***)",
        ),
        (
            "create foreign table t (password text) server s options (uri 'x://a:b@c', schema_name 'p')",
            "create foreign table t (password text) server s options (uri ***, schema_name 'p')",
        ),
        (
            "create subscription s connection 'host=a password=geheim' publication p",
            "create subscription s connection *** publication p",
        ),
        ("alter subscription s connection 'host=a'\n' password=b'", "alter subscription s connection ***"),
        ("create role a connection limit 5 password 'x'", "create role a connection limit 5 password ***"),
        ("alter system set primary_conninfo = 'host=a password=x'", "alter system set primary_conninfo = ***"),
        ("select * from dblink('host=a password=x', 'select 1')", "select * from dblink(***, 'select 1')"),
        ("select dblink_connect('c', 'postgres://a:x@h/d')", "select dblink_connect('c', ***)"),
        ("select dblink_exec('c', 'alter role a password ''x''')", "select dblink_exec('c', ***)"),
        ("copy t from program 'PGPASSWORD=x psql -c y'", "copy t from program ***"),
        ("copy t from program 'curl https://a:x@h/f'", "copy t from program ***"),
        ("copy t from program 'cat f'", "copy t from program 'cat f'"),
    ] {
        assert_eq!(hidden(text), expected, "{text}");
    }
}

#[test]
fn code_and_keys_are_hidden() {
    for (text, expected) in [
        ("do $$ declare p text := 'geheim'; begin execute format('alter role ann password %L', p); end $$", "do ***"),
        ("DO LANGUAGE plpgsql 'begin alter role ann PassWord ''geheim''; end'", "DO LANGUAGE plpgsql ***"),
        ("begin; /* a */ do $a$ alter role ann password 'geheim' $a$; commit", "begin; /* a */ do ***; commit"),
        (
            "create or replace function f() returns void as $$ alter role a password 'x' $$ language sql",
            "create or replace function f() returns void as *** language sql",
        ),
        ("select pgp_sym_encrypt('data', 'key')", "select pgp_sym_encrypt(***, ***)"),
        (
            "update t set p = crypt('pw', gen_salt('bf')) where a = 'x'",
            "update t set p = crypt(***, gen_salt(***)) where a = 'x'",
        ),
    ] {
        assert_eq!(hidden(text), expected, "{text}");
    }
}

#[test]
fn other_statements_are_unchanged() {
    for text in [
        "do $$ begin perform pass('word'); end $$",
        "select 1; select 'password'",
        "select password from t where password = 'x'",
        "insert into t (password) values ('x')",
        "create table t (password text default 'x')",
        "alter table t add column password text",
        "alter table t rename password to pw",
        "grant select (password) on t to ann",
        "select 'host=a password=b'",
        "create function check_it(p text) returns bool as $$ select p = 'x' $$ language sql",
        "create database d connection limit 5",
        "drop user mapping for ann server s",
        "set search_path to a, b",
        "",
    ] {
        assert_eq!(hidden(text), text);
    }
}

/// Statements with a canary in each position where Postgres, or a typing error, may have a password; `blanks` separate the words.
fn statements_with(canary: &str, blanks: &str) -> Vec<String> {
    let literals = [
        format!("'{canary}'"),
        format!("'a'\n'{canary}'"),
        format!("'a' /* b */ -- c\n '{canary}'"),
        format!("E'\\'{canary}'"),
        format!("U&'{canary}' uescape '!'"),
        format!("$${canary}$$"),
        format!("$p${canary}$p$"),
        format!("'o'{canary}'"),
        format!("'a''{canary}"),
        format!("\"{canary}\""),
        format!("U&\"{canary}\""),
        canary.to_owned(),
        format!("= '{canary}'"),
        format!("({canary})"),
    ];
    let frames = [
        "create role a login password $ valid until 'x'",
        "ALTER USER a WITH ENCRYPTED PASSWORD $",
        "select 1; alter group a password $; select 2",
        "altre user a password $",
        "create user mapping for a server s options (user 'a', password $)",
        "alter server s options (set sslpassword $)",
        "create subscription s connection $ publication p",
        "alter role a set app.password to $",
    ];
    let frames: Vec<_> = frames.iter().map(|frame| frame.replace(' ', blanks)).collect();
    frames.iter().flat_map(|frame| literals.iter().map(|literal| frame.replace('$', literal))).collect()
}

proptest! {
    #[test]
    fn no_canary_remains(canary in "[a-z]{4}[0-9]{2}[a-z]{4}", blanks in "( |\n|/\\* x \\*/|-- y\n){1,3}") {
        for text in statements_with(&canary, &blanks) {
            let hidden = hidden(&text);
            prop_assert!(!hidden.contains(&canary), "{text:?} -> {hidden:?}");
            prop_assert!(sets_password(text.as_bytes(), false), "{text:?}");
        }
    }

    #[test]
    fn normalized_text_shows_possible_secrets(
        text in "(alter role|create user|do| a|select|dblink\\(|options \\(|'|''|'x'|'password=x'|;| |--\n|/\\*|\\*/|password\
                 |\"password\"|\"PASSWORD\"|crypt\\(|\\$\\$|\\(|null|-|1|\"){0,14}"
    ) {
        let mut normalized = Vec::new();
        normalize(text.as_bytes(), &mut normalized);
        let may_hide = Normalized::new(&normalized, 0).may_hide;
        prop_assert!(may_hide || !sets_password(text.as_bytes(), false), "{}", String::from_utf8_lossy(&normalized));
    }

    #[test]
    fn any_bytes_are_redacted(text in any::<Vec<u8>>()) {
        let _ = without_passwords(&text);
    }
}
