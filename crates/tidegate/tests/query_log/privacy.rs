//! Parameters, literals and passwords that must not be in the log.

use tidegate_testkit::{Frames, on_each_postgres};

use crate::logging_gateway::{LoggingGateway, queries};

const SECRET: &str = "5ecret";

/// Runs two statements with a secret in a parameter, one of which fails with the secret in its error.
fn bind_secrets(logged: &LoggingGateway) {
    let mut client = logged.gateway.client("postgres");
    client.send(&Frames::new().parse("s", "select $1::text, $2::text").bind("s", &[SECRET, "b"]).execute().sync());
    client.expect("1 2 D C:SELECT_1 Z:I");
    client.send(&Frames::new().parse("", "select $1::int").bind("", &[SECRET]).execute().sync());
    client.expect("1 E:22P02 Z:I");
}

fn bytes_of(folder: &std::path::Path) -> Vec<u8> {
    let files = std::fs::read_dir(folder).expect("the folder exists").flatten();
    files.flat_map(|file| std::fs::read(file.path()).unwrap_or_default()).collect()
}

fn contains(folder: &std::path::Path, secret: &str) -> bool {
    bytes_of(folder).windows(secret.len()).any(|window| window == secret.as_bytes())
}

on_each_postgres! {
    fn parameters_are_not_logged_by_default(fixture) {
        for keys in ["", "parameters = \"redacted\""] {
            let logged = LoggingGateway::new(fixture, "size = 1\n", keys);
            bind_secrets(&logged);
            logged.wait_for("both are logged", |entries| queries(entries).len() == 2);
            assert!(!contains(&logged.path(), SECRET));
            let entries = logged.end();
            let redacted = (!keys.is_empty()).then(|| vec![Some("***".to_owned()), Some("***".to_owned())]);
            assert_eq!(queries(&entries)[0].parameters, redacted);
            let message = queries(&entries)[1].message.clone().unwrap_or_default();
            assert!(message.contains("\"***\""), "{message}");
        }
    }

    fn parameters_are_logged_when_enabled(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "parameters = \"on\"");
        bind_secrets(&logged);
        let entries = logged.end();
        assert_eq!(queries(&entries)[0].parameters, Some(vec![Some(SECRET.to_owned()), Some("b".to_owned())]));
        assert!(queries(&entries)[1].message.clone().unwrap_or_default().contains(SECRET));
    }

    /// The rule also applies to errors, although the matching rule is found only later.
    fn rule_can_disable_parameters(fixture) {
        for form in ["off", "redacted"] {
            let rule = format!("[[journal.rules]]\nusers = \"ann\"\nparameters = \"{form}\"\n");
            let keys = format!("statement = \"text\"\nparameters = \"on\"\n{rule}");
            let logged = LoggingGateway::new(fixture, "size = 1\nuser = \"postgres\"\n", &keys);
            for user in ["ann", "bob"] {
                let mut client = logged.gateway.startup("postgres").user(user).connect();
                client.send(&Frames::new().parse("", "select $1::int").bind("", &[SECRET]).execute().sync());
                client.expect("1 E:22P02 Z:I");
            }
            let entries = logged.end();
            let shows_secret: Vec<_> = queries(&entries)
                .iter()
                .map(|entry| entry.message.as_ref().is_some_and(|message| message.contains(SECRET)))
                .collect();
            assert_eq!(shows_secret, [false, true], "{form}: {entries:?}");
        }
    }

    /// Neither the data of COPY nor a value bound earlier in the transaction is logged.
    fn copy_data_and_late_errors_are_redacted(fixture) {
        let table = fixture.create_table("n int");
        let logged = LoggingGateway::new(fixture, "size = 1\n", "statement = \"text\"");
        let mut client = logged.gateway.client("postgres");
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
        logged.wait_for("all are logged", |entries| queries(entries).len() == 5);
        assert!(!contains(&logged.path(), SECRET));
        let entries = logged.end();
        let messages = queries(&entries).iter().filter_map(|entry| entry.message.clone()).collect::<Vec<_>>();
        assert_eq!(messages, ["invalid input syntax for type integer: \"***\""; 2]);
    }

    fn normalised_statements_contain_no_literals(fixture) {
        for form in ["normalised", "fingerprint", "off"] {
            let logged = LoggingGateway::new(fixture, "size = 1\n", &format!("statement = \"{form}\""));
            let mut client = logged.gateway.client("postgres");
            client.ok(&format!("select '{SECRET}' as a  /* {SECRET} */"));
            assert_eq!(client.query(&format!("select '{SECRET}'::int")).code(), "22P02");
            drop(client);
            logged.wait_for("both are logged", |entries| queries(entries).len() == 2);
            assert!(!contains(&logged.path(), SECRET), "{form}");
            let entries = logged.end();
            let statement = (form == "normalised").then_some("select ? as a");
            assert_eq!(queries(&entries)[0].statement.as_deref(), statement);
            assert_eq!(queries(&entries)[0].fingerprint.is_some(), form != "off");
        }
    }

    /// An unbalanced quote leaves text outside of the quotes that was meant as a literal.
    fn unparsable_statement_is_cut_at_its_first_quote(fixture) {
        for keys in ["", "per = \"transaction\""] {
            let logged = LoggingGateway::new(fixture, "size = 1\n", &format!("statement = \"normalised\"\n{keys}"));
            let mut client = logged.gateway.client("postgres");
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
            // The error comes before the later quotes.
            assert_eq!(client.query(&format!("select E'\\u1', 'O'Brien {SECRET} O'Hara'")).code(), "22025");
            drop(client);
            let entries = logged.end();
            let statements: Vec<_> = entries.iter().filter_map(|entry| entry.statement.as_deref()).collect();
            let expected =
                ["select ? + ?,…", "select…", "select…", "selekt ? from a_table", "select ?,…", "select…"];
            assert_eq!(statements, expected, "{keys}");
        }
    }

    /// Errors of the server quote statements that it could not parse and values that it rejected.
    fn errors_contain_no_literals(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "statement = \"normalised\"");
        let mut client = logged.gateway.client("postgres");
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
        logged.wait_for("all are logged", |entries| queries(entries).len() == 11);
        let leaks = contains(&logged.path(), SECRET) || contains(&logged.path(), "1999-02");
        let entries = logged.end();
        assert!(!leaks, "{:?}", queries(&entries));
        let message = queries(&entries)[0].message.clone().unwrap_or_default();
        assert_eq!(message, "syntax error at or near \"***\"");
    }

    fn long_statement_of_a_transaction_is_truncated(fixture) {
        let keys = "per = \"transaction\"\nstatement_bytes = 64";
        let logged = LoggingGateway::new(fixture, "size = 1\n", keys);
        let mut client = logged.gateway.client("postgres");
        client.ok(&format!("select '{}'", "é".repeat(5000)));
        client.send(&Frames::new().parse("", &format!("select '{}'", "é".repeat(5000))).bind("", &[]).execute().sync());
        client.expect("1 2 D C:SELECT_1 Z:I");
        client.ok("begin");
        client.ok(&format!("select '{}'", "é".repeat(5000)));
        client.ok("commit");
        drop(client);
        let entries = logged.end();
        let statements: Vec<_> = entries.iter().filter_map(|entry| entry.statement.as_deref()).collect();
        let [simple, extended, block] = statements[..] else { panic!("three transactions: {statements:?}") };
        for statement in [simple, extended] {
            let is_cut = statement.ends_with("é…") && statement.len() <= 64 + 3;
            assert!(statement.starts_with("select 'é") && is_cut, "{statement}");
        }
        assert_eq!(block, "begin; …; commit");
    }

    /// Passwords are redacted under every setting, in statements and in errors.
    fn passwords_are_not_logged(fixture) {
        for per in ["query", "transaction"] {
            let keys = format!("statement = \"text\"\nparameters = \"on\"\nper = \"{per}\"");
            let logged = LoggingGateway::new(fixture, "size = 1\n", &keys);
            let mut client = logged.gateway.client("postgres");
            client.ok(&format!("create role keeper password '{SECRET}'"));
            client.ok(&format!("select 1; alter role keeper password '{SECRET}'"));
            let set = format!("alter user keeper with encrypted password '{SECRET}'");
            client.send(&Frames::new().parse("", &set).bind("", &[]).execute().sync());
            client.expect("1 2 C:ALTER_ROLE Z:I");
            assert_eq!(client.query(&format!("alter role keeper password '{SECRET}")).code(), "42601");
            client.ok("drop role keeper");
            client.ok("select 'the end'");
            logged.wait_for("the last is logged", |_| contains(&logged.path(), "select 'the end'"));
            assert!(!contains(&logged.path(), SECRET));
            let entries = logged.end();
            let first = queries(&entries)[0].statement.clone().unwrap_or_default();
            assert_eq!(first, "create role keeper password ***");
        }
    }

    /// Each case is a syntax error or a valid statement; its error may quote the password.
    fn passwords_in_unusual_statements_are_not_logged(fixture) {
        for per in ["query", "transaction"] {
            let keys = format!("statement = \"text\"\nparameters = \"on\"\nper = \"{per}\"\nstatement_bytes = 256");
            let logged = LoggingGateway::new(fixture, "size = 1\n", &keys);
            let mut client = logged.gateway.client("postgres");
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
            client.ok("select 'the end'");
            logged.wait_for("the last is logged", |_| contains(&logged.path(), "select 'the end'"));
            let leaks = contains(&logged.path(), SECRET);
            let entries = logged.end();
            let found = queries(&entries).into_iter().find(|entry| format!("{entry:?}").contains(SECRET)).cloned();
            assert!(!leaks, "{found:?}");
        }
    }

    fn long_statement_is_truncated(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "statement_bytes = 64");
        let mut client = logged.gateway.client("postgres");
        client.ok(&format!("select '{}'", "é".repeat(5000)));
        drop(client);
        let entries = logged.end();
        let statement = queries(&entries)[0].statement.clone().unwrap_or_default();
        assert!(statement.ends_with("é…") && statement.len() <= 64 + 3, "{statement}");
        // Normalisation adds blanks, so that the text is longer than the one of the client.
        let logged = LoggingGateway::new(fixture, "size = 1\n", "statement = \"normalised\"\nstatement_bytes = 64");
        let mut client = logged.gateway.client("postgres");
        client.ok(&format!("select {} from pg_class", ["oid"; 11].join(",")));
        drop(client);
        let entries = logged.end();
        let statement = queries(&entries)[0].statement.clone().unwrap_or_default();
        assert!(statement.ends_with('…') && statement.len() <= 64 + 3, "{statement}");
    }

    /// The gateway learns of prepared statements in session mode only from the messages of the client.
    fn long_prepared_statement_of_a_session_is_truncated(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\nmode = \"session\"\n", "statement_bytes = 64");
        let mut client = logged.gateway.client("postgres");
        client.send(&Frames::new().parse("a", &format!("select '{}'", "é".repeat(5000))).sync());
        client.expect("1 Z:I");
        client.send(&Frames::new().bind("a", &[]).execute().sync());
        client.expect("2 D C:SELECT_1 Z:I");
        drop(client);
        let entries = logged.end();
        let statement = queries(&entries)[0].statement.clone().unwrap_or_default();
        assert!(statement.ends_with("é…") && statement.len() <= 64 + 3, "{statement}");
    }
}
