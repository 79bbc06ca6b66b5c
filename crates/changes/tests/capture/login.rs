//! Logins: passwords, TLS, and errors that name the fix.

use tidegate_changes::{ChangeOptions, ChangeStream, ConnectOptions, ErrorClass};

use crate::fixture::{Fixture, builder, failure, take};

const HBA: &str = "local all postgres trust\n\
                   hostssl all scram 127.0.0.1/32 scram-sha-256\n\
                   host all md5 127.0.0.1/32 md5\n\
                   host all plain 127.0.0.1/32 password";

fn server_with_roles() -> (Fixture, String) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    let certificate = certified.cert.pem();
    let fixture = Fixture::with(builder(18).hba(HBA).tls(&certificate, &certified.signing_key.serialize_pem()));
    for (role, method) in [("scram", "scram-sha-256"), ("md5", "md5"), ("plain", "scram-sha-256")] {
        fixture.sql(&format!(
            "set password_encryption = '{method}'; create role {role} login replication password 'se''cret'"
        ));
    }
    (fixture, certificate)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_login_method_works() {
    let (fixture, certificate) = server_with_roles();
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("root.pem");
    std::fs::write(&roots, certificate).unwrap();
    let port = fixture.postgres.port();
    let full = format!("sslmode=verify-full&sslrootcert={}&channel_binding=require", roots.display());
    for (number, (role, parameters)) in [
        ("scram", "sslmode=require"),
        ("scram", full.as_str()),
        ("md5", "sslmode=disable"),
        ("plain", "sslmode=prefer"),
    ]
    .into_iter()
    .enumerate()
    {
        let url = format!("postgres://{role}:se%27cret@127.0.0.1:{port}/postgres?{parameters}");
        let options = ChangeOptions::new(ConnectOptions::from_url(&url).unwrap(), "s", "p");
        let mut stream = ChangeStream::start(options);
        fixture.sql(&format!("insert into t values ({number})"));
        assert_eq!(take(&mut stream, 1, true).await[0].changes.len(), 1, "{role}");
        stream.stop().await;
    }
}

/// CH-29: errors that a new attempt cannot solve end the stream immediately, and no error shows the password.
#[tokio::test(flavor = "multi_thread")]
async fn login_errors_end_the_stream_with_a_remedy() {
    let (fixture, _) = server_with_roles();
    let port = fixture.postgres.port();
    fixture.sql("create role weak login password 'secret'");
    fixture.sql("alter role plain noreplication");
    for (login, part) in [
        ("md5:wrong-secret@", "pg_hba.conf"),
        ("md5@", "none is given"),
        ("stranger:wrong-secret@", "pg_hba.conf"),
        ("plain:se%27cret@", "REPLICATION"),
    ] {
        let url = format!("postgres://{login}127.0.0.1:{port}/postgres?sslmode=disable");
        let options = ChangeOptions::new(ConnectOptions::from_url(&url).unwrap(), "s", "p");
        let error = failure(&mut ChangeStream::start(options)).await;
        assert_eq!(error.class(), ErrorClass::Stop, "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert!(!format!("{error} {error:?}").contains("secret@"), "{error}");
    }
}
