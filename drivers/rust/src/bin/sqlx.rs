//! sqlx: URL MODE.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::{TryStreamExt, future};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolCopyExt, PgPoolOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection, Executor, Row};
use tidegate_drivers::{check, equal, fails};

#[tokio::main]
async fn main() {
    let url = std::env::args().nth(1).unwrap_or_default();
    check("connect", connects(&url)).await;
    check("simple", simple(&url)).await;
    check("prepared", prepared(&url)).await;
    println!("pipeline\tskip\tthe driver has none");
    check("copy", copy(&url)).await;
    check("cancel", cancel(&url)).await;
    check("errors", errors(&url)).await;
    check("transaction", transaction(&url)).await;
    check("tls", tls(&url)).await;
    check("large", large(&url)).await;
    check("parameters", parameters(&url)).await;
}

fn table() -> String {
    format!("sqlx_{}", std::process::id())
}

fn options(url: &str) -> Result<PgConnectOptions> {
    Ok(PgConnectOptions::from_str(url)?.ssl_mode(PgSslMode::Disable))
}

async fn open(url: &str) -> Result<PgConnection> {
    Ok(options(url)?.connect().await?)
}

async fn int(connection: &mut PgConnection, sql: &str) -> Result<i32> {
    Ok(sqlx::query_scalar(sql).fetch_one(connection).await?)
}

async fn text(connection: &mut PgConnection, sql: &str) -> Result<String> {
    Ok(sqlx::query_scalar(sql).fetch_one(connection).await?)
}

async fn connects(url: &str) -> Result<()> {
    for _ in 0..5 {
        let mut connection = open(url).await?;
        equal(int(&mut connection, "SELECT 1").await?, 1)?;
        connection.close().await?;
    }
    Ok(())
}

async fn simple(url: &str) -> Result<()> {
    let mut connection = open(url).await?;
    let rows: Vec<_> = connection.fetch(sqlx::raw_sql("SELECT 1; SELECT 2")).try_collect().await?;
    equal(rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>(), vec![1, 2])
}

async fn prepared(url: &str) -> Result<()> {
    let pool = PgPoolOptions::new().max_connections(8).connect_with(options(url)?.statement_cache_capacity(5)).await?;
    let turns = (0..400).map(|turn| {
        let pool = pool.clone();
        async move {
            let mut transaction = pool.begin().await?;
            let plus = format!("SELECT $1::int + {}", turn % 10);
            let sum: i32 = sqlx::query_scalar(&plus).bind(turn).fetch_one(&mut *transaction).await?;
            equal(sum, turn + turn % 10)?;
            let text: String =
                sqlx::query_scalar("SELECT $1::text || 'x'").bind("x").fetch_one(&mut *transaction).await?;
            equal(text.as_str(), "xx")?;
            transaction.commit().await?;
            anyhow::Ok(())
        }
    });
    future::try_join_all(turns).await?;
    pool.close().await;
    Ok(())
}

async fn copy(url: &str) -> Result<()> {
    let pool = PgPoolOptions::new().max_connections(2).connect_with(options(url)?).await?;
    let table = table();
    pool.execute(format!("CREATE TABLE {table} (n int, t text)").as_str()).await?;
    let lines: String = (0..1000).map(|number| format!("{number}\trow {number}\n")).collect();
    let mut copy = pool.copy_in_raw(&format!("COPY {table} FROM STDIN")).await?;
    copy.send(lines.as_bytes()).await?;
    equal(copy.finish().await?, 1000)?;
    let out = pool.copy_out_raw(&format!("COPY (SELECT * FROM {table} ORDER BY n) TO STDOUT")).await?;
    let chunks: Vec<_> = out.map_ok(|chunk| chunk.to_vec()).try_collect().await?;
    equal(String::from_utf8(chunks.concat())?, lines)?;
    pool.execute(format!("DROP TABLE {table}").as_str()).await?;
    pool.close().await;
    Ok(())
}

/// The driver sends no cancel requests; a server-side timeout and another session cancel statements instead.
async fn cancel(url: &str) -> Result<()> {
    let (mut connection, mut other) = (open(url).await?, open(url).await?);
    let sleep = async { fails(text(&mut connection, "SELECT pg_sleep(30)::text /* sqlx cancel */").await, "57014") };
    let canceller = async {
        let ask = "SELECT bool_or(pg_cancel_backend(pid)) FROM pg_stat_activity \
                   WHERE query LIKE 'SELECT pg_sleep%sqlx cancel%' AND state = 'active'";
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if sqlx::query_scalar::<_, Option<bool>>(ask).fetch_one(&mut other).await? == Some(true) {
                return anyhow::Ok(());
            }
        }
    };
    let (slept, cancelled) = tokio::join!(sleep, canceller);
    slept.and(cancelled)?;
    equal(int(&mut connection, "SELECT 1").await?, 1)
}

async fn errors(url: &str) -> Result<()> {
    let mut connection = open(url).await?;
    for (sql, sqlstate) in [("SELECT * FROM no_such_table", "42P01"), ("SELECT 1/0", "22012")] {
        fails(int(&mut connection, sql).await, sqlstate)?;
        fails(connection.execute(sqlx::raw_sql(sql)).await.map_err(Into::into), sqlstate)?;
        equal(int(&mut connection, "SELECT 7").await?, 7)?;
    }
    Ok(())
}

async fn transaction(url: &str) -> Result<()> {
    let (mut connection, table) = (open(url).await?, table());
    let count = format!("SELECT count(*)::int FROM {table}");
    let insert = format!("INSERT INTO {table} VALUES (1)");
    connection.execute(format!("CREATE TABLE {table} (n int)").as_str()).await?;
    let mut transaction = connection.begin().await?;
    transaction.execute(insert.as_str()).await?;
    transaction.rollback().await?;
    equal(int(&mut connection, &count).await?, 0)?;
    let mut transaction = connection.begin().await?;
    transaction.execute(insert.as_str()).await?;
    let mut savepoint = Connection::begin(&mut *transaction).await?;
    fails(int(&mut savepoint, "SELECT 1/0").await, "22012")?;
    savepoint.rollback().await?;
    transaction.commit().await?;
    // A dropped transaction is rolled back before the next statement.
    let mut dropped = connection.begin().await?;
    dropped.execute(insert.as_str()).await?;
    drop(dropped);
    equal(int(&mut connection, &count).await?, 1)?;
    connection.execute(format!("DROP TABLE {table}").as_str()).await?;
    Ok(())
}

async fn tls(url: &str) -> Result<()> {
    let mut connection = options(url)?.ssl_mode(PgSslMode::Require).connect().await?;
    equal(int(&mut connection, "SELECT 1").await?, 1)
}

async fn large(url: &str) -> Result<()> {
    let mut connection = open(url).await?;
    equal(text(&mut connection, "SELECT repeat('x', 5000000)").await?.len(), 5_000_000)?;
    let length: i32 =
        sqlx::query_scalar("SELECT length($1)").bind("y".repeat(3_000_000)).fetch_one(&mut connection).await?;
    equal(length, 3_000_000)?;
    let rows =
        sqlx::query("SELECT n, md5(n::text) FROM generate_series(1, 20000) n").fetch_all(&mut connection).await?;
    ensure!(rows.len() == 20_000, "{} rows", rows.len());
    Ok(())
}

async fn parameters(url: &str) -> Result<()> {
    let mut connections = Vec::new();
    for number in 0..6 {
        let name = format!("at-login-{number}");
        let mut connection = options(url)?.application_name(&name).connect().await?;
        equal(text(&mut connection, "SHOW application_name").await?, name)?;
        connection.execute(format!("SET application_name = 'set-{number}'").as_str()).await?;
        connections.push(connection);
    }
    for _ in 0..5 {
        for (number, connection) in connections.iter_mut().enumerate() {
            equal(text(connection, "SHOW application_name").await?, format!("set-{number}"))?;
            let mut transaction = connection.begin().await?;
            transaction.execute("SET LOCAL search_path = pg_catalog").await?;
            equal(text(&mut transaction, "SHOW search_path").await?.as_str(), "pg_catalog")?;
            transaction.commit().await?;
        }
    }
    Ok(())
}
