use std::collections::BTreeMap;

use super::*;

/// The choice for these variables and files.
fn chosen(variables: &[(&str, &str)], files: &[(&str, &str)]) -> anyhow::Result<Source> {
    let variables: Vec<_> = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let files: BTreeMap<&Path, &str> = files.iter().map(|(path, text)| (Path::new(*path), *text)).collect();
    choose(&Surroundings {
        variable: &|name| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()),
        exists: &|path| files.contains_key(path),
        read: &|path| files.get(path).map(|text| (*text).to_owned()),
        variables: &variables,
    })
}

fn generated(variables: &[(&str, &str)], files: &[(&str, &str)]) -> Generated {
    match chosen(variables, files).expect("a configuration") {
        Source::Generated(made) => made,
        other => panic!("not from variables: {other:?}"),
    }
}

/// The configuration that these variables mean.
fn loaded(variables: &[(&str, &str)]) -> tidegate_config::Config {
    let made = generated(variables, &[]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("userlist.txt"), made.user_list("")).expect("a file");
    let further = [("auth_file", file("userlist.txt").display().to_string())];
    std::fs::write(file("pgbouncer.ini"), made.ini(&further).expect("text")).expect("a file");
    pgbouncer::load(&file("pgbouncer.ini")).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn mounted_files_precede_variables() {
    let url = [("DATABASE_URL", "postgres://app:x@db/shop"), ("TIDEGATE_DATABASE", "postgres://db/shop")];
    let ini = [(INI[0], "")];
    assert_eq!(chosen(&url, &[(TOML, ""), (INI[0], "")]).expect("a file"), Source::Toml(TOML.into()));
    assert_eq!(chosen(&url, &ini).expect("a file"), Source::Ini(INI[0].into()));
    assert_eq!(chosen(&url, &[(INI[1], "")]).expect("a file"), Source::Ini(INI[1].into()));
    assert_eq!(chosen(&url, &[]).expect("variables"), Source::Environment);
    assert_eq!(chosen(&[("TIDEGATE_DATABASES_a__HOST", "x")], &[]).expect("variables"), Source::Environment);
    let error = chosen(&[("PATH", "/bin")], &[]).expect_err("there is no configuration").to_string();
    assert!(error.contains("DATABASE_URL") && error.contains(TOML), "{error}");
}

/// OP-17, OP-18.
#[test]
fn database_url_of_edoburu_is_a_configuration() {
    let config = loaded(&[
        ("DATABASE_URL", "postgres://app:s%27cr%22et@10.0.0.7:7000/shop"),
        ("POOL_MODE", "transaction"),
        ("DEFAULT_POOL_SIZE", "7"),
        ("MAX_CLIENT_CONN", "300"),
        ("AUTH_TYPE", "scram-sha-256"),
        ("USER", "root"),
        ("VERBOSE", ""),
    ]);
    let plan = config.pool_for("shop", "app").expect("a database");
    assert_eq!((plan.hosts[0].to_string().as_str(), plan.pool.size), ("10.0.0.7:7000", 7));
    assert_eq!(plan.pool.mode, tidegate_config::PoolMode::Transaction);
    assert_eq!((config.listen.max_clients, config.listen.addresses[0].to_string()), (300, "0.0.0.0:5432".to_owned()));
    assert_eq!(config.auth.method, tidegate_config::AuthMethod::ScramSha256);
    assert_eq!((config.admin.users.as_slice(), config.runtime.user.as_str()), (&["postgres".to_owned()][..], ""));
    let secret = config.users["app"].secret.as_ref().expect("a password").secret().reveal();
    assert_eq!(secret, "s'cr\"et");
}

/// OP-18.
#[test]
fn companions_of_db_host_are_a_configuration() {
    let made = generated(
        &[
            ("DB_HOST", "a,b"),
            ("DB_PORT", "5433"),
            ("DB_USER", "app"),
            ("DB_PASSWORD", "x"),
            ("ADMIN_USERS", "ops,dba"),
            ("ADMIN_PASSWORDS", "1,2"),
            ("LISTEN_PORT", "6000"),
        ],
        &[(USERLIST, "\"app\" \"other\"\n")],
    );
    assert_eq!(made.databases, ["* = host='a,b' port='5433' auth_user='app'"]);
    assert_eq!(made.users, [("ops".to_owned(), "1".to_owned()), ("dba".to_owned(), "2".to_owned())]);
    assert_eq!(made.user_file.as_deref(), Some(Path::new(USERLIST)));
    let key = |name: &str| made.keys.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    assert_eq!(
        (key("listen_port"), key("auth_type"), key("admin_users")),
        (Some("6000"), Some("md5"), Some("ops,dba"))
    );
}

/// OP-18.
#[test]
fn variables_of_bitnami_are_a_configuration() {
    let config = loaded(&[
        ("POSTGRESQL_HOST", "db"),
        ("POSTGRESQL_USERNAME", "app"),
        ("POSTGRESQL_PASSWORD", "secret"),
        ("POSTGRESQL_DATABASE", "shop"),
        ("PGBOUNCER_DATABASE", "front"),
        ("PGBOUNCER_PORT", "6433"),
        ("PGBOUNCER_POOL_MODE", "transaction"),
        ("PGBOUNCER_SET_DATABASE_USER", "yes"),
        ("PGBOUNCER_SET_DATABASE_PASSWORD", "yes"),
        ("PGBOUNCER_DSN_0", "other=host=db2 port=5433"),
    ]);
    let plan = config.pool_for("front", "app").expect("a database");
    assert_eq!((plan.dbname.as_str(), plan.user.as_str()), ("shop", "app"));
    assert_eq!(config.pool_for("other", "app").expect("a database").hosts[0].to_string(), "db2:5433");
    assert_eq!(config.listen.addresses[0].to_string(), "0.0.0.0:6433");
    assert_eq!(config.auth.method, tidegate_config::AuthMethod::ScramSha256);
}

#[test]
fn passwords_may_be_in_files() {
    let variables = [("POSTGRESQL_HOST", "db"), ("POSTGRESQL_PASSWORD_FILE", "/run/secrets/pg")];
    let made = generated(&variables, &[("/run/secrets/pg", "hunter2\n")]);
    assert_eq!(made.users, [("postgres".to_owned(), "hunter2".to_owned())]);
}

/// OP-27.
#[test]
fn zalando_variables_look_users_up_over_tls() {
    let variables = [
        ("PGHOST", "acid"),
        ("PGPORT", "5432"),
        ("PGUSER", "pooler"),
        ("PGPASSWORD", "x"),
        ("PGSCHEMA", "pooler"),
        ("CONNECTION_POOLER_PORT", "5432"),
        ("CONNECTION_POOLER_MODE", "transaction"),
        ("CONNECTION_POOLER_DEFAULT_SIZE", "8"),
        ("CONNECTION_POOLER_MAX_CLIENT_CONN", "10000"),
        ("CONNECTION_POOLER_MAX_DB_CONN", "30"),
        ("INFRASTRUCTURE_ROLES", "robot_zmon"),
    ];
    let made = generated(&variables, &[]);
    assert!(made.self_signed);
    let text = made.ini(&[]).expect("text");
    for line in [
        "* = host='acid' port='5432' auth_user='pooler'",
        "auth_query = SELECT * FROM pooler.user_lookup($1)",
        "client_tls_sslmode = require",
        "max_db_connections = 30",
        "stats_users = robot_zmon",
    ] {
        assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
    }
    let mounted = generated(
        &[&variables[..], &[("CONNECTION_POOLER_CLIENT_TLS_CRT", "/tls/tls.crt")]].concat(),
        &[(USERLIST, "\"pooler\" \"x\"\n")],
    );
    assert!(!mounted.self_signed && mounted.users.is_empty());
}

#[test]
fn variable_with_a_line_end_is_refused() {
    let made = generated(&[("DB_HOST", "db"), ("AUTH_QUERY", "SELECT 1\nadmin_users = mallory")], &[]);
    let error = made.ini(&[]).expect_err("a line end would set another key").to_string();
    assert!(error.contains("auth_query") && !error.contains("mallory"), "{error}");
}

#[test]
fn database_lines_quote_names_and_values() {
    let line = database("a \"b\"", "h", "1", &[("password", "it's")]);
    assert_eq!(line, "\"a \"\"b\"\"\" = host='h' port='1' password='it''s'");
    let url = PgUrl::parse("postgres://[::1]:5433,db/shop").map(|url| url.hosts.iter().map(host_and_port).collect());
    let expected = [("::1", "5433"), ("db", "5432")].map(|(host, port)| (host.to_owned(), port.to_owned()));
    assert_eq!(url, Ok(Vec::from(expected)));
}
