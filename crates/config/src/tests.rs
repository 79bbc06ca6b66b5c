//! Tests of the configuration: accepted and refused texts, and the text of diagnostics.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const FULL: &str = include_str!("../../../tidegate.example.toml");

fn good(text: &str) -> Config {
    toml::parse(text, "tidegate.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

fn diagnostics(text: &str) -> Vec<Diagnostic> {
    let errors = toml::parse(text, "tidegate.toml").expect_err("this must be refused");
    errors.diagnostics().to_vec()
}

/// The errors of a text.
fn bad(text: &str) -> Vec<Diagnostic> {
    diagnostics(text).into_iter().filter(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error).collect()
}

/// A small configuration with these lines at the top.
fn with(lines: &str) -> String {
    format!("{lines}\n[databases.shop]\nhost = \"db\"\n[users.app]\npassword = \"x\"\n")
}

/// The only error of a text.
fn only(text: &str) -> Diagnostic {
    let diagnostics = bad(text);
    assert_eq!(diagnostics.len(), 1, "{diagnostics:#?}");
    diagnostics[0].clone()
}

#[test]
fn one_database_is_enough() {
    let config = good("[databases.shop]\nhost = \"db\"\n");
    assert_eq!(config.listen, ListenConfig::default());
    assert_eq!(config.timeouts.checkout, Duration::from_secs(120));
    let plan = config.pool_for("shop", "app").expect("a pool");
    assert_eq!(plan.hosts, [Host::Tcp { name: "db".to_owned(), port: 5432 }]);
    assert_eq!((plan.dbname.as_str(), plan.user.as_str(), plan.forced_user), ("shop", "app", false));
    assert_eq!((plan.pool, plan.secret), (PoolConfig::default(), None));
    assert_eq!(config.pool_for("other", "app"), None);
}

#[test]
fn the_example_is_valid() {
    let config = good(FULL);
    assert_eq!(config.warnings, []);
    let plan = config.pool_for("postgres", "postgres").expect("a pool");
    assert_eq!(plan.hosts[0].to_string(), "127.0.0.1:5432");
    assert!(matches!(plan.secret, Some(UserSecret::Plain(_))));
}

/// A commented key of the example must be valid without its `# `.
#[test]
fn every_commented_key_of_the_example_is_known() {
    let commented = |line: &str| line.starts_with("# ") && line.contains(" = ") && !line.ends_with('.');
    let sections = |line: &str| line.starts_with("# [");
    let text: Vec<_> =
        FULL.lines().map(|line| if commented(line) || sections(line) { &line[2..] } else { line }).collect();
    let diagnostics = match toml::parse(&text.join("\n"), "tidegate.toml") {
        Ok(config) => config.warnings,
        Err(errors) => errors.diagnostics().to_vec(),
    };
    let unknown: Vec<_> = diagnostics.iter().filter(|diagnostic| diagnostic.reason.contains("unknown")).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
}

#[test]
fn users_override_databases_override_defaults() {
    let config = good(
        "[pool]\nsize = 5\nmode = \"session\"\n[timeouts]\nquery = \"1s\"\nconnect = \"3s\"\n\
         [databases.\"*\"]\nhost = \"db\"\nsize = 6\nquery = \"2s\"\n\
         [users.app]\npassword = \"x\"\nmode = \"statement\"\nquery = 0\n",
    );
    let app = config.pool_for("any", "app").expect("a pool");
    assert_eq!((app.entry.as_str(), app.dbname.as_str()), ("*", "any"));
    assert_eq!((app.pool.mode, app.pool.size), (PoolMode::Statement, 6));
    assert_eq!((app.timeouts.query, app.timeouts.connect), (Duration::ZERO, Duration::from_secs(3)));
    let other = config.pool_for("any", "other").expect("a pool");
    assert_eq!((other.pool.mode, other.timeouts.query), (PoolMode::Session, Duration::from_secs(2)));
}

#[test]
fn min_size_is_at_most_the_size_of_a_user() {
    let config = good("[databases.a]\nhost = \"db\"\nmin_size = 5\n[users.app]\npassword = \"x\"\nsize = 2\n");
    assert_eq!(config.pool_for("a", "app").expect("a pool").pool.min_size, 2);
}

#[test]
fn a_forced_user_logs_in_for_all_clients() {
    let config = good(
        "[databases.a]\nurl = \"postgres://web:pw@db/real\"\n[databases.b]\nhost = \"db\"\nuser = \"app\"\n\
         [users.app]\npassword = \"x\"\n",
    );
    let url = config.pool_for("a", "client").expect("a pool");
    assert_eq!((url.dbname.as_str(), url.user.as_str(), url.forced_user), ("real", "web", true));
    assert_eq!(url.secret, Some(UserSecret::Plain(Secret::new("pw"))));
    let stored = config.pool_for("b", "client").expect("a pool");
    assert_eq!(stored.secret, Some(UserSecret::Plain(Secret::new("x"))));
}

#[test]
fn several_hosts_are_a_choice_and_one_is_not() {
    let config = good(
        "[databases.one]\nhost = \"db\"\n[databases.two]\nurl = \"postgres://a,b:6/shop\"\n\
         [databases.ro]\nhosts = [\"a\", { host = \"b\", port = 6, weight = 3, zone = \"z\" }]\nroute = \"replica\"\n\
         [databases.name]\nhost = \"db\"\nroute = \"any\"\n[databases.srv]\nhosts = [\"srv:_pg._tcp.db\"]\n\
         [databases.libpq]\nurl = \"postgres://a?target_session_attrs=prefer-standby\"\n\
         [users.report]\npassword = \"x\"\nroute = \"prefer-replica\"\n",
    );
    let plan = |database: &str, user: &str| config.pool_for(database, user).expect(database);
    assert!(plan("one", "report").choice.is_none());
    assert_eq!(plan("two", "app").route.route, Route::Primary);
    assert_eq!(plan("two", "report").route.route, Route::PreferReplica);
    let choice = plan("ro", "app").choice.expect("a choice");
    assert_eq!((choice[1].host.to_string().as_str(), choice[1].weight, choice[1].zone.as_str()), ("b:6", 3, "z"));
    assert_eq!(plan("ro", "app").route.route, Route::Replica);
    assert!(plan("name", "app").choice.is_some() && plan("srv", "app").choice.is_some_and(|choice| choice[0].srv));
    let libpq = plan("libpq", "app");
    assert!(libpq.choice.is_some() && libpq.route.route == Route::PreferReplica);
}

#[test]
fn a_misspelled_key_is_reported_like_by_a_compiler() {
    let diagnostic = only(&with("[listen]\nmax_client = 100"));
    let printed = diagnostic.to_string();
    assert_eq!(
        printed,
        "error: unknown key `max_client` in [listen]\n\
         \x20--> tidegate.toml:2:1\n\
         \x20 |\n\
         2 | max_client ***\n\
         \x20 | ^^^^^^^^^^\n\
         \x20 = help: did you mean `max_clients`?\n"
    );
}

#[test]
fn the_mark_is_below_the_value() {
    let marked = |lines: &str| only(&with(lines)).to_string().lines().nth(4).map(str::to_owned);
    assert_eq!(marked("[timeouts]\ncheckout = 5").as_deref(), Some("  |            ^"));
    assert_eq!(marked("[databases.x]\nurl = \"postgres://h:x/\"").as_deref(), Some("  |       ^^^"));
}

#[test]
fn help_names_the_section_of_a_misplaced_key() {
    assert_eq!(only(&with("[pool]\nmax_clients = 100")).help, "it belongs in [listen]");
    assert_eq!(only(&with("[databases.x]\nhost = \"db\"\nshutdown = \"1s\"")).help, "it belongs in [timeouts]");
    assert_eq!(only(&with("[timeout]\ncheckout = \"1s\"")).help, "did you mean [timeouts]?");
    assert_eq!(only(&with("size = 3")).help, "it belongs in [pool]");
}

#[test]
fn every_error_has_a_position_and_help() {
    for (lines, place, reason, help) in [
        ("[pool]\nsize = \"20\"", (2, 8), "expected a number, found a string", "without quotes"),
        ("[pool]\nsize = 0", (2, 8), "0 is out of range", "from 1 to 100000"),
        ("[pool]\nsize = -3", (2, 8), "-3 is out of range", "not below zero"),
        ("[databases.b]\nhost = \"h\"\nport = 470000", (3, 8), "470000 is out of range", "write 65535 at most"),
        ("[listen]\ntls = \"on\"\ntls_cert = \"x\"", (2, 7), "`on` is not a valid value", "off, allow"),
        ("[pool]\nsize = 1.5", (2, 8), "a number with a fraction", "whole number"),
        ("[pool]\npin = \"yes\"", (2, 7), "expected true or false", "without quotes"),
        (
            "[pool]\nmode = \"transactional\"",
            (2, 8),
            "`transactional` is not a valid value",
            "did you mean `transaction`?",
        ),
        ("[timeouts]\nconnect = 5", (2, 11), "5 has no unit", "\"5s\" or \"5ms\""),
        ("[timeouts]\nconnect = \"5 bananas\"", (2, 11), "`bananas` is not a unit", "\"250ms\""),
        ("[listen]\naddresses = [\"a:1\", \"*:2\"]", (2, 14), "`a:1` is not an address", "127.0.0.1:6432"),
        ("[dns]\nservers = [\"10.0.0.2\"]", (2, 12), "not the address of a name server", "10.0.0.2:53"),
        ("[dns]\nttl_min = \"0s\"", (2, 11), "ttl_min cannot be zero", "\"5s\""),
        ("[dns]\nttl_max = \"1s\"", (2, 11), "shorter than ttl_min", "not shorter"),
        (
            "[listen]\naddresses = []",
            (2, 13),
            "there is neither an address nor a socket for clients",
            "unix_socket_dir",
        ),
        ("[listen]\nunix_socket_mode = 777", (2, 20), "a file mode", "\"0777\""),
        ("[pool]\nmin_size = 30", (2, 12), "min_size 30 is larger than size 20", "at most 20"),
        ("[databases.x]\ndbname = \"y\"", (1, 12), "[databases.x] has no host", "host = "),
        ("[databases.x]\nhost = \"a,,b\"", (2, 8), "an empty entry", "first,second"),
        ("[databases.x]\nhosts = []", (2, 9), "list of hosts is empty", "10.0.0.1"),
        ("[databases.x]\nhosts = [\"a:b\"]", (2, 10), "not a port", "10.0.0.1:5432"),
        ("[databases.x]\nhosts = [{ host = \"a\", wieght = 2 }]", (2, 24), "unknown key `wieght`", "`weight`"),
        ("[databases.x]\nhosts = [{ port = 5 }]", (2, 10), "has no `host`", "weight"),
        ("[databases.x]\nhosts = [\"a\"]\nport = 5", (3, 8), "exclude each other", "leave out"),
        ("[databases.x]\nhost = \"a\"\nroute = \"replicas\"", (3, 9), "`replicas` is not a valid value", "`replica`?"),
        ("[databases.x]\nhost = \"a\"\nprobe_interval = 0", (3, 18), "cannot be off", "\"1s\""),
        (
            "[databases.x]\nurl = \"postgres://a?target_session_attrs=any\"\nroute = \"any\"",
            (3, 9),
            "exclude each other",
            "leave out",
        ),
        ("[databases.x]\nurl = \"http://x\"", (2, 7), "not a Postgres URL", "postgres://"),
        ("[databases.tidegate]\nhost = \"x\"", (1, 12), "admin console", "dbname"),
        ("[databases.x]\nhost = \"x\"\npassword = \"y\"", (3, 12), "needs user", "[users.NAME]"),
        ("[databases.x]\nhost = \"x\"\nsslcert = \"y\"", (3, 11), "both needed", "sslkey"),
        ("[databases.x]\nhost = \"x\"\nsslnegotiation = \"direct\"", (3, 18), "sslmode prefer", "require"),
        ("[databases.x]\nurl = \"postgres://h\"\nhost = \"y\"", (3, 8), "`host` is already set", "leave out"),
        (
            "[databases.x]\nhost = \"x\"\nstartup_parameters = { user = \"y\" }",
            (3, 24),
            "`user` cannot be",
            "leave it out",
        ),
        ("[listen]\ntls_ciphers = [\"RC4\"]", (2, 16), "`RC4` is not a valid value", "TLS_AES_256_GCM_SHA384"),
        ("[listen]\ntls_groups = [\"P-521\"]", (2, 15), "`P-521` is not a valid value", "prime256v1"),
        ("[auth]\nmethod = \"cert\"", (2, 10), "needs tls_client_ca", "tls_client_ca"),
        (
            "[databases.x]\nhost = \"x\"\nsslmode = \"disable\"\nchannel_binding = \"require\"",
            (4, 19),
            "channel binding needs TLS",
            "sslmode = \"require\"",
        ),
        ("[users.x]\npassword = 5", (2, 12), "expected a string", "quotes"),
        ("[users.x]\npassword = \"a\"\npassword_file = \"b\"", (3, 17), "given twice", "leave out"),
        ("[users.x]\npassword = \"SCRAM-SHA-256$1:x\"", (2, 12), "SCRAM verifier", "pg_authid"),
        ("[users.x]\npassword = \"md500112233445566778899aabbccddeeff\"", (2, 12), "md5", "method = \"md5\""),
        ("[admin]\nusers = \"postgres\"", (2, 9), "expected a list", "brackets"),
        ("listen = 5", (1, 1), "expected a table", "[listen]"),
        ("[users]\nx = 5", (2, 1), "expected a table", "[users.x]"),
    ] {
        let diagnostic = only(&with(lines));
        assert_eq!((diagnostic.line, diagnostic.column), place, "{diagnostic}");
        assert!(diagnostic.reason.contains(reason) && diagnostic.help.contains(help), "{diagnostic}");
    }
}

#[test]
fn tls_needs_its_files() {
    let diagnostics = bad(&with("[listen]\ntls = \"require\""));
    assert!(diagnostics[0].reason.contains("tls_cert") && diagnostics[1].reason.contains("tls_key"), "{diagnostics:?}");
    let config = good(&with("[listen]\ntls_client_ca = \"a.pem\""));
    assert!(config.warnings[0].reason.contains("tls is off"), "{:?}", config.warnings);
    let config = good(&with("[listen]\ntls_cert = \"a.pem\""));
    assert!(config.warnings[0].reason.contains("tls is off"), "{:?}", config.warnings);
}

#[test]
fn all_errors_are_reported_in_text_order() {
    let diagnostics = bad("[pool]\nsize = 0\nmod = \"session\"\n[runtim]\n[databases.x]\nport = 1\n");
    let lines: Vec<_> = diagnostics.iter().map(|diagnostic| diagnostic.line).collect();
    assert_eq!(lines, [2, 3, 4, 5], "{diagnostics:#?}");
}

#[test]
fn a_syntax_error_has_a_line() {
    let diagnostic = bad("[pool]\nsize = = 3\n").remove(0);
    assert_eq!(diagnostic.line, 2, "{diagnostic}");
}

#[test]
fn an_empty_file_is_refused() {
    let diagnostic = only("");
    assert!(diagnostic.reason.contains("no database"), "{diagnostic}");
}

#[test]
fn questionable_settings_are_warnings() {
    for (text, reason) in [
        ("[databases.a]\nhost = \"db\"\n", "no client can log in"),
        ("[auth]\nmethod = \"trust\"\n[listen]\naddresses = [\"*:1\"]\n[databases.a]\nhost = \"db\"\n", "trust"),
        ("[databases.a]\nhost = \"db\"\nsize = 900\n[users.x]\npassword = \"y\"\n", "900 servers"),
        ("[databases.a]\nhost = \"db\"\n[users.x]\n", "has no password"),
        ("[databases.a]\nurl = \"postgres://db?sslsni=1\"\n[users.x]\npassword = \"y\"\n", "sslsni"),
    ] {
        let warnings = good(text).warnings;
        assert!(warnings.len() == 1 && warnings[0].reason.contains(reason), "{text}: {warnings:?}");
    }
}

#[test]
fn settings_alone_do_not_declare_a_user() {
    let users = "[users.a]\n[users.b]\nsize = 3\n[users.c]\npassword = \"\"\nsize = 3\n[users.d]\npassword = \"x\"\n";
    for (auth, warned) in [
        ("[auth]\nmethod = \"trust\"\n", &[][..]),
        ("[auth]\nmethod = \"trust\"\nstrangers = false\n", &["users.b"]),
        ("[auth]\nlookup_user = \"l\"\n", &[]),
        ("", &["users.a", "users.b"]),
    ] {
        let config = good(&with(&format!("{auth}{users}")));
        let declared: Vec<_> =
            ["a", "b", "c", "d", "e"].into_iter().filter(|name| config.declared_user(name).is_some()).collect();
        assert_eq!(declared, ["a", "c", "d"]);
        assert_eq!(config.pool_for("shop", "b").expect("a plan").pool.size, 3, "settings apply to undeclared users");
        let found: Vec<_> = config.warnings.iter().map(|warning| warning.key.as_str()).collect();
        assert_eq!(found, warned, "{auth}");
    }
    let looked_up = "[databases.y]\nhost = \"db\"\nlookup_user = \"l\"\n[users.b]\nsize = 3\n";
    assert!(good(looked_up).warnings.is_empty(), "a database's own look-up counts");
}

#[test]
fn a_database_password_may_be_a_hash_or_a_verifier() {
    let verifier = format!("SCRAM-SHA-256$4096:c2FsdHNhbHQ=${0}:{0}", "A".repeat(43) + "=");
    let md5 = format!("md5{}", "0f".repeat(16));
    let with_password = |text: &str, users: &str| {
        let database = format!("[databases.x]\nhost = \"db\"\nuser = \"u\"\npassword = \"{text}\"\n");
        good(&format!("[auth]\nmethod = \"trust\"\n{database}{users}"))
    };
    let secret = |text: &str| with_password(text, "").pool_for("x", "c").expect("a plan").secret;
    assert!(matches!(secret(&verifier), Some(UserSecret::Scram(_))));
    assert!(matches!(secret(&md5), Some(UserSecret::Md5(_))));
    assert!(matches!(secret("SCRAM"), Some(UserSecret::Plain(_))));
    let config = with_password(&verifier, "");
    let [warning] = &*config.warnings else { panic!("{:?}", config.warnings) };
    assert!(
        warning.reason.contains("logged in with it as \"u\"") && !warning.to_string().contains("c2Fsd"),
        "{warning}"
    );
    let same = format!("[users.u]\npassword = \"{verifier}\"\n");
    assert!(with_password(&verifier, &same).warnings.is_empty());
    let damaged = "[databases.x]\nhost = \"db\"\nuser = \"u\"\npassword = \"SCRAM-SHA-256$4096:x$y:z\"\n";
    assert!(bad(damaged).iter().any(|diagnostic| diagnostic.reason.contains("not a complete one")));
}

#[test]
fn a_questionable_list_of_hosts_is_a_warning() {
    for (keys, reason, help) in [
        ("hosts = [\"10.0.0.1,10.0.0.2\"]", "it is several", "each as a separate string"),
        ("hosts = [\"10.0.0.1\", \"10.0.0 .2\"]", "neither a name nor an address", "the name or the address"),
        ("hosts = [\"db/5432\", \"10.0.0.2\"]", "neither a name nor an address", "the name or the address"),
        ("hosts = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.1:5432\"]", "`10.0.0.1:5432` is in the list twice", "weight"),
        ("host = \"db,db\"", "`db:5432` is in the list twice", "weight"),
    ] {
        let warnings = good(&with(&format!("[databases.x]\n{keys}"))).warnings;
        let place = (2, keys.find('=').expect("a key") + 3);
        assert!(warnings.len() == 1 && warnings[0].reason.contains(reason), "{keys}: {warnings:?}");
        assert!(warnings[0].help.contains(help) && (warnings[0].line, warnings[0].column) == place, "{warnings:?}");
    }
    let twins = "hosts = [\"db:1\", \"db:2\", \"srv:db\"]";
    assert!(good(&with(&format!("[databases.x]\n{twins}"))).warnings.is_empty());
    let diagnostic = only(&with("[databases.x]\nhosts = [\"srv:_pg._tcp.db:5432\"]"));
    assert!(diagnostic.reason.contains("takes only a name") && diagnostic.help.contains("ports"), "{diagnostic}");
}

#[test]
fn no_diagnostic_shows_a_secret() {
    for lines in [
        "[users.x]\npassword = \"hunter2\"\npassword_file = \"y\"",
        "[users.x]\npasword = \"hunter2\"",
        "[users.x]\npw = \"hunter2\"",
        "[users]\nx = { pw = \"hunter2\", size = 0 }",
        "[users]\nx = { size = 0, password = \"hunter2\" }",
        "[users.x]\npassword = \"hunter2",
        "[users]\nx = \"hunter2\"",
        "[databases.x]\nurl = \"postgres://a:hunter2@h:port/d\"",
        "[databases.x]\nurl = \"postgres://:hunter2@h/d\"",
        "[databases.x]\nurl = \"postgres://a:hunter2@h/d?sslmode=no\"",
        "[databases.x]\nhost = \"h\"\npassword = \"hunter2\"",
        "[databases]\nx = \"postgres://a:hunter2@h/d\"",
        "[users.x]\npassword = \"SCRAM-SHA-256$hunter2\"",
    ] {
        for diagnostic in diagnostics(&with(lines)) {
            let json = serde_json::to_string(&diagnostic).expect("a finding is plain data");
            assert!(!format!("{diagnostic}{diagnostic:?}{json}").contains("hunter2"), "{diagnostic}");
        }
    }
    let config = good(&with("[databases.x]\nurl = \"postgres://a:hunter2@h/d\"\n[users.y]\npassword = \"hunter2\""));
    assert!(!format!("{config:?}{:?}{:?}", config.setting_rows(), config.pool_for("x", "y")).contains("hunter2"));
}

#[test]
fn a_url_is_a_configuration() {
    let config = Config::from_url("postgres://app:s%40cret@db:7000/shop?sslmode=require").expect("a configuration");
    assert_eq!((config.auth.method, config.warnings.len()), (AuthMethod::ScramSha256, 0));
    assert_eq!(config.users["app"].secret, Some(UserSecret::Plain(Secret::new("s@cret"))));
    assert_eq!(config.admin.users, ["app"]);
    let plan = config.pool_for("shop", "app").expect("a pool");
    assert_eq!((plan.hosts[0].to_string(), plan.tls.mode), ("db:7000".to_owned(), SslMode::Require));
    assert_eq!((plan.user.as_str(), plan.secret), ("app", Some(UserSecret::Plain(Secret::new("s@cret")))));
    assert_eq!(config.pool_for("other", "app"), None);

    let bound = Config::from_url("postgres://app:x@db/shop?sslmode=require&channel_binding=require");
    assert_eq!(bound.expect("a configuration").databases["shop"].tls.binding, ChannelBindingMode::Require);

    let open = Config::from_url("postgres://db").expect("a configuration");
    assert_eq!((open.auth.method, open.users.len()), (AuthMethod::Trust, 0));
    assert_eq!(open.pool_for("any", "me").expect("a pool").dbname, "any");

    let errors = Config::from_url("postgres://app:hunter2@db:x/shop").expect_err("a bad port");
    assert!(errors.to_string().contains("--database:1:1") && !errors.to_string().contains("hunter2"), "{errors}");
}

#[test]
fn show_config_hides_secrets_and_keeps_its_order() {
    let config = good(&with("[pool]\nsize = 7\n[databases.a]\nhost = \"b,/run/pg\"\nport = 6\nquery = \"1s\""));
    let rows = config.setting_rows();
    let find = |key: &str| rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("no {key}"));
    assert_eq!((find("pool.size").value.as_str(), find("pool.size").default.as_str()), ("7", "20"));
    assert_eq!(find("databases.a.host").value, "b:6, /run/pg/.s.PGSQL.6");
    assert_eq!((find("databases.a.query").value.as_str(), find("databases.a.query").default.as_str()), ("1s", "0"));
    assert_eq!(find("users.app.password").value, "***");
    assert!(!find("listen.addresses").reloadable && find("listen.max_clients").reloadable);
    assert_eq!(rows, config.setting_rows());
}

#[test]
fn keys_that_need_a_restart_are_listed() {
    let old = good(&with(""));
    let new = good(&with("[listen]\naddresses = [\"*:1\"]\nmax_clients = 5\n[runtime]\nworkers = 3"));
    assert_eq!(Config::diff_needs_restart(&old, &new), ["listen.addresses", "runtime.workers"]);
    assert!(Config::diff_needs_restart(&old, &old).is_empty());
}

#[test]
fn the_unix_socket_is_named_after_its_port() {
    let socket = |lines: &str| good(&with(lines)).listen.unix_socket();
    assert_eq!(socket(""), None);
    let dir = "[listen]\nunix_socket_dir = \"/run\"\n";
    assert_eq!(socket(dir).as_deref(), Some(Path::new("/run/.s.PGSQL.6432")));
    assert_eq!(socket(&format!("{dir}addresses = [\"*:7000\"]")).as_deref(), Some(Path::new("/run/.s.PGSQL.7000")));
    assert_eq!(socket(&format!("{dir}unix_socket_port = 1")).as_deref(), Some(Path::new("/run/.s.PGSQL.1")));
}

fn folder_with(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    folder
}

fn load_with_mode(password: &str, mode: u32) -> Result<Config, ConfigErrors> {
    use std::os::unix::fs::PermissionsExt;
    let config = "[databases.a]\nhost = \"db\"\n[users.app]\npassword_file = \"pw\"\n";
    let folder = folder_with(&[("tidegate.toml", config), ("pw", password)]);
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(folder.path().join("pw"), permissions).expect("one's own file");
    toml::load(&folder.path().join("tidegate.toml"))
}

#[test]
fn a_password_file_is_relative_to_the_configuration() {
    let config = load_with_mode("secret\nnot this\n", 0o600).expect("a configuration");
    assert_eq!(config.users["app"].secret, Some(UserSecret::Plain(Secret::new("secret"))));
    assert_eq!(config.warnings, []);
    let open = load_with_mode("secret\n", 0o644).expect("a configuration");
    assert!(open.warnings[0].help.starts_with("chmod 600"), "{:?}", open.warnings);
    let empty = load_with_mode("\n", 0o600).expect_err("an empty password");
    assert!(empty.to_string().contains("first line is empty"), "{empty}");
}

#[test]
fn missing_files_are_reported() {
    let text = "[listen]\ntls = \"allow\"\ntls_cert = \"no.pem\"\ntls_key = \".\"\n\
                unix_socket_dir = \"tidegate.toml\"\n\
                [databases.a]\nhost = \"db\"\n[users.app]\npassword_file = \"no\"\n";
    let folder = folder_with(&[("tidegate.toml", text)]);
    let errors = toml::load(&folder.path().join("tidegate.toml")).expect_err("missing files");
    let keys: Vec<_> = errors.diagnostics().iter().map(|diagnostic| diagnostic.key.as_str()).collect();
    assert_eq!(keys, ["listen.tls_cert", "listen.tls_key", "listen.unix_socket_dir", "users.app.password_file"]);
    let missing = toml::load(&folder.path().join("none.toml")).expect_err("a missing file");
    assert!(missing.to_string().contains("tidegate.example.toml"), "{missing}");
    let unreadable = toml::load(folder.path()).expect_err("a folder");
    assert!(!unreadable.to_string().contains("tidegate.example.toml"), "{unreadable}");
}

/// Rows of the tables in docs/src/reference/configuration.md: key, default, reload class and description.
fn documented() -> Vec<[String; 4]> {
    let mut section = String::new();
    let mut rows = Vec::new();
    for line in include_str!("../../../docs/src/reference/configuration.md").lines() {
        if let Some(heading) = line.strip_prefix("## `[").and_then(|rest| rest.split_once("]`")) {
            section = heading.0.trim_matches(['[', ']']).to_owned();
        }
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if let [key, default, reload, doc] = cells[..]
            && let Some(key) = key.strip_prefix('`').and_then(|key| key.strip_suffix('`'))
        {
            let default = default.trim_matches(['`', '"', '[', ']', '{', '}']);
            rows.push([format!("{section}.{key}"), default.to_owned(), reload.to_owned(), doc.to_owned()]);
        }
    }
    rows
}

#[test]
fn the_documentation_describes_exactly_the_keys() {
    let mut known = Vec::new();
    for documentation::DocumentedSection { name: section, keys, defaults } in documentation::documented_sections() {
        for (key, default) in keys.iter().zip(defaults) {
            let reload = if key.reload == Reload::Live { "live" } else { "restart" };
            let doc = key.doc.split_whitespace().collect::<Vec<_>>().join(" ");
            known.push([format!("{section}.{}", key.name), default, reload.to_owned(), doc]);
        }
    }
    assert_eq!(documented(), known);
}

/// Position, inserted text and number of removed characters.
fn edit() -> impl Strategy<Value = (prop::sample::Index, String, usize)> {
    (any::<prop::sample::Index>(), ".{0,6}", 0..9usize)
}

proptest! {
    /// An edited file is accepted or refused without a panic, and every position is in the text.
    #[test]
    fn edited_files_never_panic(edits in prop::collection::vec(edit(), 0..12)) {
        let mut text: Vec<char> = FULL.replace("# ", "").chars().collect();
        for (at, put, taken) in edits {
            let at = at.index(text.len() + 1);
            let end = text.len().min(at + taken);
            text.splice(at..end, put.chars());
        }
        let text: String = text.into_iter().collect();
        let diagnostics = match toml::parse(&text, "random") {
            Ok(config) => { config.setting_rows(); config.warnings }
            Err(errors) => errors.diagnostics().to_vec(),
        };
        for diagnostic in diagnostics {
            prop_assert!(diagnostic.line <= text.matches('\n').count() + 1);
            prop_assert!(!diagnostic.to_string().is_empty());
        }
    }

    #[test]
    fn random_text_never_panics(text in "\\PC*|[\\[\\]=\"'a-z.0-9\n]*") {
        let _ = toml::parse(&text, "random");
        let _ = Config::from_url(&text);
        let _ = Config::from_url(&format!("postgres://{text}"));
    }
}

#[test]
fn journal_rules_are_parsed_and_shown_in_order() {
    let text = r#"
        [databases.app]
        host = "127.0.0.1"
        [journal]
        folder = "/tmp/j"
        [[journal.rules]]
        action = "skip"
        users = "monitor"
        statements = ["select", "transaction"]
        [[journal.rules]]
        errors = true
        min_duration = "500ms"
        parameters = "on"
    "#;
    let config = good(text);
    let row = config.setting_rows().into_iter().find(|row| row.key == "journal.rules").unwrap();
    assert_eq!(
        row.value,
        "skip users=monitor statements=select,transaction; record min_duration=500ms errors=true parameters=on"
    );
}

#[test]
fn linger_has_no_effect_with_other_acks() {
    let journal = |keys: &str| good(&with(&format!("[journal]\nfolder = \"/tmp/j\"\n{keys}\n")));
    let config = journal("linger = \"20ms\"");
    assert_eq!(config.journal.linger, Duration::from_millis(20));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    for ack in ["written", "durable"] {
        let config = journal(&format!("ack = \"{ack}\"\nlinger = \"20ms\""));
        let [warning] = &*config.warnings else { panic!("{:?}", config.warnings) };
        assert!(warning.to_string().contains("linger has no effect"), "{warning}");
    }
}

#[test]
fn an_invalid_journal_rule_is_reported() {
    for (rule, reason) in [
        ("user = \"a\"", "unknown key `user`"),
        ("action = \"drop\"", "`drop` is not a valid value"),
        ("statements = [\"select\", \"selekt\"]", "`selekt` is not a valid value"),
    ] {
        let text = format!("[databases.app]\nhost = \"127.0.0.1\"\n[[journal.rules]]\n{rule}\n");
        let errors = toml::parse(&text, "t").expect_err("this must be refused").to_string();
        assert!(errors.contains(reason), "{errors}");
    }
}

#[test]
fn peers_have_numbers_and_addresses() {
    let config =
        good(&with("[listen]\npeer_id = 1\n[peers.1]\nhost = \"a\"\n[peers.2]\nhost = \"/run/b\"\nport = 7\n"));
    assert_eq!((config.listen.peer_id, config.peers.len()), (1, 2));
    assert_eq!(config.peers[&2].host().to_string(), "/run/b/.s.PGSQL.7");
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert!(config.setting_rows().iter().any(|row| row.key == "peers.2.port" && row.value == "7"));
    let without_id = good(&with("[peers.2]\nhost = \"b\"\n"));
    assert!(without_id.warnings.iter().any(|warning| warning.help.contains("peer_id")), "{:?}", without_id.warnings);
    for (lines, reason) in [
        ("[peers.0]\nhost = \"b\"", "`0` is not the number of a peer"),
        ("[peers.b]\nhost = \"b\"", "`b` is not the number of a peer"),
        ("[peers.20000]\nhost = \"b\"", "`20000` is not the number of a peer"),
        ("[peers.1]\nport = 7", "[peers.1] has no host"),
        ("[peers.1]\nhots = \"b\"", "unknown key `hots`"),
        ("[listen]\npeer_id = 16384", "16384"),
    ] {
        let errors = bad(&with(lines));
        assert!(errors.iter().any(|error| error.reason.contains(reason)), "{lines}: {errors:#?}");
    }
}

/// SRV names were accepted in `hosts` only; in `host` they were looked up as host names.
#[test]
fn the_host_can_be_an_srv_name() {
    let config = good("[auth]\nmethod = \"trust\"\n[databases.a]\nhost = \"srv:_pg._tcp.db\"\n");
    let plan = config.pool_for("a", "app").expect("a database");
    assert!(plan.choice.is_some_and(|choice| choice[0].srv));
    let host = config.setting_rows().into_iter().find(|row| row.key == "databases.a.host").expect("a row");
    assert_eq!(host.value, "srv:_pg._tcp.db");
}

#[test]
fn a_url_as_host_is_reported_without_its_password() {
    let url = "postgres://app:hunter2@db/shop";
    let warnings = good(&format!("[auth]\nmethod = \"trust\"\n[databases.a]\nhost = \"{url}\"\n")).warnings;
    let printed = format!("{warnings:?}");
    assert!(warnings[0].reason.contains("it is a URL") && !printed.contains("hunter2"), "{printed}");
}

/// The help once pointed to `[databases.NAME]`, which has a host and a port.
#[test]
fn help_for_a_port_in_listen_names_addresses() {
    for key in ["port = 6432", "host = \"0.0.0.0\"", "address = \"*\""] {
        let found = diagnostics(&format!("[listen]\n{key}\n[auth]\nmethod = \"trust\"\n[databases.a]\nhost = \"x\"\n"));
        assert!(found[0].help.starts_with("write addresses = ["), "{found:?}");
    }
}

/// There may be hundreds of thousands of users, and twice as many during a reload.
#[test]
fn users_without_settings_of_their_own_are_small() {
    assert!(size_of::<super::User>() <= 128, "{} bytes", size_of::<super::User>());
}
