//! tokio-postgres: URL MODE.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::{SinkExt, StreamExt, TryStreamExt, future};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tidegate_drivers::{check, equal, fails};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

#[tokio::main]
async fn main() {
    let url = std::env::args().nth(1).unwrap_or_default();
    check("connect", connects(&url)).await;
    check("simple", simple(&url)).await;
    check("prepared", prepared(&url)).await;
    check("pipeline", pipeline(&url)).await;
    check("copy", copy(&url)).await;
    check("cancel", cancel(&url)).await;
    check("errors", errors(&url)).await;
    check("transaction", transaction(&url)).await;
    check("tls", tls(&url)).await;
    check("large", large(&url)).await;
    check("parameters", parameters(&url)).await;
}

fn table() -> String {
    format!("tokio_postgres_{}", std::process::id())
}

async fn open(url: &str, more: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(&format!("{url}?sslmode=disable{more}"), NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn int(client: &Client, sql: &str) -> Result<i32> {
    Ok(client.query_one(sql, &[]).await?.try_get(0)?)
}

async fn text(client: &Client, sql: &str) -> Result<String> {
    Ok(client.query_one(sql, &[]).await?.try_get(0)?)
}

async fn connects(url: &str) -> Result<()> {
    for _ in 0..5 {
        equal(int(&open(url, "").await?, "SELECT 1").await?, 1)?;
    }
    Ok(())
}

async fn simple(url: &str) -> Result<()> {
    let client = open(url, "").await?;
    let messages = client.simple_query("SELECT 1; SELECT 2").await?;
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    equal(rows.collect::<Vec<_>>(), vec!["1", "2"])
}

async fn prepared(url: &str) -> Result<()> {
    future::try_join_all((0..8).map(|number| prepared_session(url, number))).await?;
    Ok(())
}

async fn prepared_session(url: &str, number: i32) -> Result<()> {
    let mut client = open(url, "").await?;
    // s0 and s1 have another text in each session.
    let own = client.prepare(&format!("SELECT $1::text || '-{number}'")).await?;
    let plus = client.prepare("SELECT $1::int + 1").await?;
    for turn in 0..50 {
        let transaction = client.transaction().await?;
        equal(transaction.query_one(&own, &[&"x"]).await?.try_get(0)?, format!("x-{number}"))?;
        equal(transaction.query_one(&plus, &[&turn]).await?.try_get(0)?, turn + 1)?;
        transaction.commit().await?;
        // Prepared, executed once and closed.
        equal(int(&client, &format!("SELECT {turn}")).await?, turn)?;
    }
    Ok(())
}

async fn pipeline(url: &str) -> Result<()> {
    let client = open(url, "").await?;
    let statement = client.prepare("SELECT $1::int").await?;
    let queries = (0..100).map(|number| {
        let (client, statement) = (&client, &statement);
        async move { client.query_one(statement, &[&number]).await?.try_get::<_, i32>(0) }
    });
    equal(future::try_join_all(queries).await?, (0..100).collect())?;
    let inverse = client.prepare("SELECT 1 / $1::int").await?;
    let (one, zero, other) =
        tokio::join!(client.query(&inverse, &[&1]), client.query(&inverse, &[&0]), client.query(&inverse, &[&1]));
    ensure!(one.is_ok() && other.is_ok(), "an error reached its neighbours in the pipeline");
    fails(zero.map_err(Into::into), "22012")
}

async fn copy(url: &str) -> Result<()> {
    let (client, table) = (open(url, "").await?, table());
    client.batch_execute(&format!("CREATE TABLE {table} (n int, t text)")).await?;
    let lines: String = (0..1000).map(|number| format!("{number}\trow {number}\n")).collect();
    let mut sink = pin!(client.copy_in(&format!("COPY {table} FROM STDIN")).await?);
    sink.send(std::io::Cursor::new(lines.clone().into_bytes())).await?;
    equal(sink.finish().await?, 1000)?;
    let out = client.copy_out(&format!("COPY (SELECT * FROM {table} ORDER BY n) TO STDOUT")).await?;
    let chunks: Vec<_> = out.map(|chunk| chunk.map(|bytes| bytes.to_vec())).try_collect().await?;
    equal(String::from_utf8(chunks.concat())?, lines)?;
    client.batch_execute(&format!("DROP TABLE {table}")).await?;
    Ok(())
}

async fn cancel(url: &str) -> Result<()> {
    let client = open(url, "").await?;
    let token = client.cancel_token();
    let canceller = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        token.cancel_query(NoTls).await
    };
    let (slept, cancelled) = tokio::join!(client.query("SELECT pg_sleep(30)", &[]), canceller);
    cancelled.context("cancel")?;
    fails(slept.map_err(Into::into), "57014")?;
    equal(int(&client, "SELECT 1").await?, 1)
}

async fn errors(url: &str) -> Result<()> {
    let client = open(url, "").await?;
    for (sql, sqlstate) in [("SELECT * FROM no_such_table", "42P01"), ("SELECT 1/0", "22012")] {
        fails(int(&client, sql).await, sqlstate)?;
        fails(client.batch_execute(sql).await.map_err(Into::into), sqlstate)?;
        equal(int(&client, "SELECT 7").await?, 7)?;
    }
    Ok(())
}

async fn transaction(url: &str) -> Result<()> {
    let (mut client, table) = (open(url, "").await?, table());
    let count = format!("SELECT count(*)::int FROM {table}");
    let insert = format!("INSERT INTO {table} VALUES (1)");
    client.batch_execute(&format!("CREATE TABLE {table} (n int)")).await?;
    let transaction = client.transaction().await?;
    transaction.execute(&insert, &[]).await?;
    transaction.rollback().await?;
    equal(int(&client, &count).await?, 0)?;
    let mut transaction = client.transaction().await?;
    transaction.execute(&insert, &[]).await?;
    let savepoint = transaction.savepoint("before").await?;
    fails(savepoint.query("SELECT 1/0", &[]).await.map_err(Into::into), "22012")?;
    savepoint.rollback().await?;
    let portal = transaction.bind("SELECT generate_series(1, 500)", &[]).await?;
    for expected in [200, 200, 100] {
        equal(transaction.query_portal(&portal, 200).await?.len(), expected)?;
    }
    transaction.commit().await?;
    equal(int(&client, &count).await?, 1)?;
    client.batch_execute(&format!("DROP TABLE {table}")).await?;
    Ok(())
}

async fn tls(url: &str) -> Result<()> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    let connector = MakeRustlsConnect::new(config);
    let (client, connection) = tokio_postgres::connect(&format!("{url}?sslmode=require"), connector).await?;
    tokio::spawn(connection);
    equal(int(&client, "SELECT 1").await?, 1)
}

async fn large(url: &str) -> Result<()> {
    let client = open(url, "").await?;
    equal(text(&client, "SELECT repeat('x', 5000000)").await?.len(), 5_000_000)?;
    let long = "y".repeat(3_000_000);
    equal(client.query_one("SELECT length($1)", &[&long]).await?.try_get(0)?, 3_000_000)?;
    equal(client.query("SELECT n, md5(n::text) FROM generate_series(1, 20000) n", &[]).await?.len(), 20_000)
}

async fn parameters(url: &str) -> Result<()> {
    let mut clients = Vec::new();
    for number in 0..6 {
        let client = open(url, &format!("&application_name=at-login-{number}")).await?;
        equal(text(&client, "SHOW application_name").await?, format!("at-login-{number}"))?;
        client.batch_execute(&format!("SET application_name = 'set-{number}'")).await?;
        clients.push(client);
    }
    for _ in 0..5 {
        for (number, client) in clients.iter_mut().enumerate() {
            equal(text(client, "SHOW application_name").await?, format!("set-{number}"))?;
            let transaction = client.transaction().await?;
            transaction.batch_execute("SET LOCAL search_path = pg_catalog").await?;
            let path: String = transaction.query_one("SHOW search_path", &[]).await?.try_get(0)?;
            equal(path.as_str(), "pg_catalog")?;
            transaction.commit().await?;
        }
    }
    Ok(())
}

/// `sslmode=require` does not verify the certificate.
#[derive(Debug)]
struct AnyServer(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
