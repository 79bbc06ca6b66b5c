//! What must not stand in the journal does not.

use tidegate_testkit::Frames;

use crate::kept::{Kept, queries};

const SECRET: &str = "5ecret";

/// Runs a few statements with a secret in a parameter, one of which fails with it in the error.
fn bind_secrets(kept: &Kept) {
    let mut client = kept.gateway.client("postgres");
    client.send(&Frames::new().parse("s", "select $1::text, $2::text").bind("s", &[SECRET, "b"]).execute().sync());
    client.expect("1 2 D C:SELECT_1 Z:I");
    client.send(&Frames::new().parse("", "select $1::int").bind("", &[SECRET]).execute().sync());
    client.expect("1 E:22P02 Z:I");
}

fn bytes_of(folder: &std::path::Path) -> Vec<u8> {
    let files = std::fs::read_dir(folder).expect("the folder is there").flatten();
    files.flat_map(|file| std::fs::read(file.path()).unwrap_or_default()).collect()
}

fn holds(folder: &std::path::Path, secret: &str) -> bool {
    bytes_of(folder).windows(secret.len()).any(|window| window == secret.as_bytes())
}

on_each_postgres! {
    fn parameters_are_off_and_then_appear_nowhere(fixture) {
        for keys in ["", "parameters = \"redacted\""] {
            let kept = Kept::new(fixture, "size = 1\n", keys);
            bind_secrets(&kept);
            kept.when("both stand there", |entries| queries(entries).len() == 2);
            assert!(!holds(&kept.path(), SECRET));
            let entries = kept.end();
            let redacted = (!keys.is_empty()).then(|| vec![Some("***".to_owned()), Some("***".to_owned())]);
            assert_eq!(queries(&entries)[0].parameters, redacted);
            let message = queries(&entries)[1].message.clone().unwrap_or_default();
            assert!(message.contains("\"***\""), "{message}");
        }
    }

    fn parameters_that_are_on_stand_there(fixture) {
        let kept = Kept::new(fixture, "size = 1\n", "parameters = \"on\"");
        bind_secrets(&kept);
        let entries = kept.end();
        assert_eq!(queries(&entries)[0].parameters, Some(vec![Some(SECRET.to_owned()), Some("b".to_owned())]));
        assert!(queries(&entries)[1].message.clone().unwrap_or_default().contains(SECRET));
    }

    /// Of an error, too: it is known only later which rule holds.
    fn a_rule_may_say_that_parameters_are_off(fixture) {
        for form in ["off", "redacted"] {
            let rule = format!("[[journal.rules]]\nusers = \"ann\"\nparameters = \"{form}\"\n");
            let keys = format!("statement = \"text\"\nparameters = \"on\"\n{rule}");
            let kept = Kept::new(fixture, "size = 1\nuser = \"postgres\"\n", &keys);
            for user in ["ann", "bob"] {
                let mut client = kept.gateway.startup("postgres").user(user).connect();
                client.send(&Frames::new().parse("", "select $1::int").bind("", &[SECRET]).execute().sync());
                client.expect("1 E:22P02 Z:I");
            }
            let entries = kept.end();
            let tells: Vec<_> = queries(&entries)
                .iter()
                .map(|entry| entry.message.as_ref().is_some_and(|message| message.contains(SECRET)))
                .collect();
            assert_eq!(tells, [false, true], "{form}: {entries:?}");
        }
    }

    /// Neither what COPY brings nor what was bound earlier in the transaction is in the text.
    fn what_a_later_error_or_the_data_of_a_copy_tells_is_hidden(fixture) {
        let table = fixture.own_table("n int");
        let kept = Kept::new(fixture, "size = 1\n", "statement = \"text\"");
        let mut client = kept.gateway.client("postgres");
        client.send(&Frames::new().query(&format!("copy {table} from stdin")));
        client.expect("G");
        client.send(&Frames::new().copy_data(SECRET.as_bytes()).copy_done());
        client.expect("E:22P02 Z:I");
        client.ok("begin");
        let declare = "declare c cursor for select ($1::text || n)::int from generate_series(1, 2) n";
        client.send(&Frames::new().parse("", declare).bind("", &[SECRET]).execute().sync());
        client.expect("1 2 C:DECLARE_CURSOR Z:T");
        assert_eq!(client.query("fetch c").code(), "22P02");
        client.ok("rollback");
        drop(client);
        kept.when("all stand there", |entries| queries(entries).len() == 5);
        assert!(!holds(&kept.path(), SECRET));
        let entries = kept.end();
        let messages = queries(&entries).iter().filter_map(|entry| entry.message.clone()).collect::<Vec<_>>();
        assert_eq!(messages, ["invalid input syntax for type integer: \"***\""; 2]);
    }

    fn literals_stand_in_no_normalised_statement(fixture) {
        for form in ["normalised", "fingerprint", "off"] {
            let kept = Kept::new(fixture, "size = 1\n", &format!("statement = \"{form}\""));
            let mut client = kept.gateway.client("postgres");
            client.ok(&format!("select '{SECRET}' as a  /* {SECRET} */"));
            assert_eq!(client.query(&format!("select '{SECRET}'::int")).code(), "22P02");
            drop(client);
            kept.when("both stand there", |entries| queries(entries).len() == 2);
            assert!(!holds(&kept.path(), SECRET), "{form}");
            let entries = kept.end();
            let statement = (form == "normalised").then_some("select ? as a");
            assert_eq!(queries(&entries)[0].statement.as_deref(), statement);
            assert_eq!(queries(&entries)[0].fingerprint.is_some(), form != "off");
        }
    }

    /// With a quote too many, what is meant as a literal stands outside of them.
    fn a_statement_that_cannot_be_read_is_shown_up_to_its_first_quote(fixture) {
        for keys in ["", "per = \"transaction\""] {
            let kept = Kept::new(fixture, "size = 1\n", &format!("statement = \"normalised\"\n{keys}"));
            let mut client = kept.gateway.client("postgres");
            for text in [
                format!("select 1 + 2, 'O'Brien {SECRET}'"),
                format!("select \"O'Brien {SECRET}"),
                format!("select E'a', 'O'Brien {SECRET}'"),
                "selekt 1 from a_table".to_owned(),
            ] {
                assert_eq!(client.query(&text).code(), "42601", "{text}");
            }
            client.send(&Frames::new().parse("", &format!("select $1, 'O'Brien {SECRET}'")).sync());
            client.expect("E:42601 Z:I");
            // It does not get as far as the quotes behind.
            assert_eq!(client.query(&format!("select E'\\u1', 'O'Brien {SECRET} O'Hara'")).code(), "22025");
            drop(client);
            let entries = kept.end();
            let statements: Vec<_> = entries.iter().filter_map(|entry| entry.statement.as_deref()).collect();
            let expected =
                ["select ? + ?,…", "select…", "select…", "selekt ? from a_table", "select ?,…", "select…"];
            assert_eq!(statements, expected, "{keys}");
        }
    }

    /// What a server says of a statement that it could not read, or of a value that it could not take, whatever is in
    /// it.
    fn literals_stand_in_no_error(fixture) {
        let kept = Kept::new(fixture, "size = 1\n", "statement = \"normalised\"");
        let mut client = kept.gateway.client("postgres");
        let raised = format!("do $a1$ begin raise exception 'no {SECRET}' using errcode = '23505'; end $a1$");
        for (text, code) in [
            (format!("select 1 '{SECRET}'"), "42601"),
            (format!("select 'O'{SECRET} Brien'"), "42601"),
            (format!("select 'open {SECRET}"), "42601"),
            (format!("select '{{\"password\":\"{SECRET}\"}}'::int"), "22P02"),
            (format!("select '{}\"{SECRET}'::int", "x".repeat(2000)), "22P02"),
            (format!("select '\"{}{SECRET}'::int", "x".repeat(900)), "22P02"),
            (format!("select $q1${SECRET}$q1$::int"), "22P02"),
            (format!("select E'a'\n'\\'{SECRET}'::int"), "22P02"),
            (raised, "23505"),
            ("select make_date(1999, 2, 30)".to_owned(), "22008"),
            (format!("select '{SECRET}'::regclass"), "42P01"),
        ] {
            assert_eq!(client.query(&text).code(), code, "{text}");
        }
        drop(client);
        kept.when("all stand there", |entries| queries(entries).len() == 11);
        let leaks = holds(&kept.path(), SECRET) || holds(&kept.path(), "1999-02");
        let entries = kept.end();
        assert!(!leaks, "{:?}", queries(&entries));
        let message = queries(&entries)[0].message.clone().unwrap_or_default();
        assert_eq!(message, "syntax error at or near \"***\"");
    }

    fn a_long_statement_of_a_transaction_is_cut(fixture) {
        let keys = "per = \"transaction\"\nstatement_bytes = 64";
        let kept = Kept::new(fixture, "size = 1\n", keys);
        let mut client = kept.gateway.client("postgres");
        client.ok(&format!("select '{}'", "é".repeat(5000)));
        client.send(&Frames::new().parse("", &format!("select '{}'", "é".repeat(5000))).bind("", &[]).execute().sync());
        client.expect("1 2 D C:SELECT_1 Z:I");
        client.ok("begin");
        client.ok(&format!("select '{}'", "é".repeat(5000)));
        client.ok("commit");
        drop(client);
        let entries = kept.end();
        let statements: Vec<_> = entries.iter().filter_map(|entry| entry.statement.as_deref()).collect();
        let [simple, extended, block] = statements[..] else { panic!("three transactions: {statements:?}") };
        for statement in [simple, extended] {
            let is_cut = statement.ends_with("é…") && statement.len() <= 64 + 3;
            assert!(statement.starts_with("select 'é") && is_cut, "{statement}");
        }
        assert_eq!(block, "begin; …; commit");
    }

    /// Whatever else of a statement is written down. As parameters are, whatever errors say.
    fn a_password_stands_in_no_record(fixture) {
        for per in ["query", "transaction"] {
            let keys = format!("statement = \"text\"\nparameters = \"on\"\nper = \"{per}\"");
            let kept = Kept::new(fixture, "size = 1\n", &keys);
            let mut client = kept.gateway.client("postgres");
            client.ok(&format!("create role keeper password '{SECRET}'"));
            client.ok(&format!("select 1; alter role keeper password '{SECRET}'"));
            let set = format!("alter user keeper with encrypted password '{SECRET}'");
            client.send(&Frames::new().parse("", &set).bind("", &[]).execute().sync());
            client.expect("1 2 C:ALTER_ROLE Z:I");
            assert_eq!(client.query(&format!("alter role keeper password '{SECRET}")).code(), "42601");
            client.ok("drop role keeper");
            client.ok("select 'as it is'");
            kept.when("the last stands there", |_| holds(&kept.path(), "select 'as it is'"));
            assert!(!holds(&kept.path(), SECRET));
            let entries = kept.end();
            let first = queries(&entries)[0].statement.clone().unwrap_or_default();
            assert_eq!(first, "create role keeper password ***");
        }
    }

    /// Each is a syntax error or a statement that Postgres takes; its error may quote the password.
    fn a_password_in_an_odd_form_stands_in_no_record(fixture) {
        for per in ["query", "transaction"] {
            let keys = format!("statement = \"text\"\nparameters = \"on\"\nper = \"{per}\"\nstatement_bytes = 256");
            let kept = Kept::new(fixture, "size = 1\n", &keys);
            let mut client = kept.gateway.client("postgres");
            client.ok("create role odd_keeper");
            for text in [
                format!("alter role odd_keeper password '5'\n'{SECRET}'"),
                format!("alter role odd_keeper password '5' -- x\n '{SECRET}'"),
                format!("alter role odd_keeper password U&'{SECRET}'"),
                format!("alter role odd_keeper password $x${SECRET}$x$"),
                format!("alter user odd_keeper password \"{SECRET}\""),
                format!("alter user odd_keeper password {SECRET}"),
                format!("alter user odd_keeper password x{SECRET} valid until 'infinity'"),
                format!("alter user odd_keeper password 'it's {SECRET}'"),
                format!("altre user odd_keeper password {SECRET}"),
                format!("create user odd_{{}} identified by '{SECRET}'"),
                format!("alter role odd_keeper {} password {SECRET}", "login ".repeat(60)),
                format!("create server s foreign data wrapper none options (sslpassword '{SECRET}')"),
                format!("create user mapping for odd_keeper server none options (user 'x', pin '{SECRET}')"),
                format!("create subscription s connection 'host=x password={SECRET}' publication p with (connect = false)"),
                format!("select dblink_connect('host=x password={SECRET}')"),
                format!("do $$ begin execute $q$alter role odd_keeper password '{SECRET}'$q$; end $$"),
            ] {
                client.query(&text);
                client.send(&Frames::new().parse("", &text).sync());
                client.until_ready();
            }
            client.query("drop subscription if exists s");
            client.query("alter subscription s set (slot_name = none); drop subscription s");
            client.ok("drop role odd_keeper");
            client.ok("select 'as it is'");
            kept.when("the last stands there", |_| holds(&kept.path(), "select 'as it is'"));
            let leaks = holds(&kept.path(), SECRET);
            let entries = kept.end();
            let found = queries(&entries).into_iter().find(|entry| format!("{entry:?}").contains(SECRET)).cloned();
            assert!(!leaks, "{found:?}");
        }
    }

    fn a_long_statement_is_cut(fixture) {
        let kept = Kept::new(fixture, "size = 1\n", "statement_bytes = 64");
        let mut client = kept.gateway.client("postgres");
        client.ok(&format!("select '{}'", "é".repeat(5000)));
        drop(client);
        let entries = kept.end();
        let statement = queries(&entries)[0].statement.clone().unwrap_or_default();
        assert!(statement.ends_with("é…") && statement.len() <= 64 + 3, "{statement}");
        // Blanks are put in, so that it is longer than what the client said.
        let kept = Kept::new(fixture, "size = 1\n", "statement = \"normalised\"\nstatement_bytes = 64");
        let mut client = kept.gateway.client("postgres");
        client.ok(&format!("select {} from pg_class", ["oid"; 11].join(",")));
        drop(client);
        let entries = kept.end();
        let statement = queries(&entries)[0].statement.clone().unwrap_or_default();
        assert!(statement.ends_with('…') && statement.len() <= 64 + 3, "{statement}");
    }

    /// The gateway knows what is prepared in session mode by what it has heard only.
    fn a_long_prepared_statement_of_a_session_is_cut(fixture) {
        let kept = Kept::new(fixture, "size = 1\nmode = \"session\"\n", "statement_bytes = 64");
        let mut client = kept.gateway.client("postgres");
        client.send(&Frames::new().parse("a", &format!("select '{}'", "é".repeat(5000))).sync());
        client.expect("1 Z:I");
        client.send(&Frames::new().bind("a", &[]).execute().sync());
        client.expect("2 D C:SELECT_1 Z:I");
        drop(client);
        let entries = kept.end();
        let statement = queries(&entries)[0].statement.clone().unwrap_or_default();
        assert!(statement.ends_with("é…") && statement.len() <= 64 + 3, "{statement}");
    }
}
