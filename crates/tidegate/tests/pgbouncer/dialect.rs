//! PgBouncer's words and codes where Tidegate has others by itself: applications and alerts match them.

use tidegate_testkit::{ErrorFields, Frames, Signal};

use crate::ini_gateway::{IniGateway, Setup, server};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres\n";

/// A role of this test.
fn role(stem: &str, options: &str) -> String {
    let name = format!("{stem}_{}", std::process::id());
    server().sql(&format!("create role {name} login {options}"));
    name
}

fn code_and_message(error: &ErrorFields) -> (&str, &str) {
    (&error.code, &error.message)
}

#[test]
fn unknown_user_of_auth_query_is_named_only_for_trust() {
    let auth = role("dialect_auth", "superuser");
    let ini = |method: &str| {
        format!(
            "[databases]\nshop = $PG dbname=postgres auth_user={auth}\n[pgbouncer]\nauth_type = {method}\n\
             auth_file = $DIR/users\n"
        )
    };
    for (method, message) in [
        ("trust", "no such user"),
        ("md5", "password authentication failed for user \"unknown_user\""),
        ("scram-sha-256", "SASL authentication failed for user \"unknown_user\""),
    ] {
        let users = &[("users", "\"postgres\" \"md5abcdefabcdefabcdefabcdefabcdefab\"\n")];
        let gateway = IniGateway::with(&Setup { ini: &ini(method), files: users, ..Setup::default() });
        let refused = gateway.startup("shop").user("unknown_user").password("x").refused();
        assert_eq!(refused.message, message, "{method}");
        gateway.wait_for_log(&format!("closing because: {message} (age="));
    }
}

/// The console has no users, and the look-up would connect to the gateway itself.
#[test]
fn console_is_not_used_for_auth_query() {
    let gateway = IniGateway::with(&Setup {
        ini: "[databases]\nshop = $PG dbname=postgres auth_dbname=pgbouncer\n* = $PG\n[pgbouncer]\nauth_type = md5\n\
              auth_user = postgres\nauth_file = $DIR/users\n",
        files: &[("users", "\"postgres\" \"pw\"\n")],
        ..Setup::default()
    });
    for database in ["shop", "pgbouncer"] {
        let refused = gateway.startup(database).user("guest").password("x").refused();
        assert_eq!(code_and_message(&refused), ("08P01", "bouncer config error"), "{database}");
        gateway.wait_for_log("cannot use the reserved \"pgbouncer\" database as an auth_dbname");
    }
}

#[test]
fn error_of_auth_query_is_logged_as_it_is() {
    let auth = role("dialect_query", "superuser");
    let gateway = IniGateway::with(&Setup {
        ini: &format!(
            "{SHOP}[pgbouncer]\nauth_type = md5\nauth_user = {auth}\nauth_file = $DIR/users\n\
             auth_query = SELECT usename, passwd FROM no_such_shadow WHERE usename = $1\n"
        ),
        files: &[("users", "\"postgres\" \"pw\"\n")],
        ..Setup::default()
    });
    let refused = gateway.startup("shop").user("guest").password("x").refused();
    assert_eq!(refused.message, "bouncer config error");
    gateway.wait_for_log("relation \"no_such_shadow\" does not exist");
}

#[test]
fn begin_in_statement_mode_has_the_code_of_pgbouncer() {
    let gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\npool_mode = statement\n"));
    let mut client = gateway.client("shop");
    let error = client.query("begin").error.expect("a transaction is refused");
    assert_eq!(code_and_message(&error), ("08P01", "transaction blocks not allowed in statement pooling mode"));
    assert_eq!(client.value("select 7"), "7", "the client stays");
}

#[test]
fn refused_replication_reports_login_failed() {
    let user = role("dialect_walsender", "");
    let gateway = IniGateway::start(SHOP);
    let refused = gateway.startup("shop").user(&user).parameter("replication", "database").refused();
    assert_eq!(code_and_message(&refused), ("08P01", "login failed"));
    let reason = refused.detail;
    assert!(reason.contains("permission denied") || reason.contains("must be superuser"), "{reason}");
    gateway.wait_for_log(&format!("server login failed: FATAL {reason}"));
    gateway.wait_for_log("closing because: login failed (age=");
}

#[test]
fn invalid_options_are_refused_in_pgbouncers_words() {
    let gateway = IniGateway::start(SHOP);
    let refused = gateway.startup("shop").parameter("options", "-d").refused();
    let message = "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed";
    assert_eq!(code_and_message(&refused), ("08P01", message));
}

/// PgBouncer closes the connection; here the client keeps it, and gets the error of Postgres.
#[test]
fn unknown_statement_names_are_logged() {
    let gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\npool_mode = transaction\n"));
    let mut client = gateway.client("shop");
    client.send(&Frames::new().bind("absent", &[]).execute().sync());
    let error = client.until_ready().error.expect("the statement is unknown");
    assert_eq!(error.code, "26000");
    gateway.wait_for_log("prepared statement did not exist");
    client.send(&Frames::new().parse("twice", "select 1").sync());
    assert!(client.until_ready().error.is_none());
    client.send(&Frames::new().parse("twice", "select 2").sync());
    let error = client.until_ready().error.expect("the name is taken");
    assert_eq!(error.code, "42P05");
    gateway.wait_for_log("prepared statement 'twice' was already prepared");
    client.ok("select 1");
}

/// PgBouncer takes the rule, and rejects its clients: they have no certificate.
#[test]
fn cert_rule_without_authorities_rejects_its_clients() {
    let gateway = IniGateway::with(&Setup {
        ini: &format!("{SHOP}[pgbouncer]\nauth_type = hba\nauth_hba_file = $DIR/hba\nauth_file = $DIR/users\n"),
        files: &[("hba", "host all strict all cert\nhost all all all trust\n"), ("users", "\"postgres\" \"\"\n")],
        ..Setup::default()
    });
    gateway.client("shop").ok("select 1");
    assert_eq!(gateway.startup("shop").user("strict").refused().message, "certificate authentication failed");
}

/// PgBouncer's second signal ends the process immediately, without an error for clients.
#[test]
fn fast_exit_closes_without_an_error() {
    let mut gateway = IniGateway::start(SHOP);
    let mut client = gateway.client("shop");
    client.ok("select 1");
    gateway.signal(Signal::TERM);
    gateway.wait_for_log("got SIGTERM");
    client.ok("select 1");
    gateway.signal(Signal::TERM);
    client.expect_eof();
    assert!(gateway.wait().success());
}
