//! Runs checks and prints their results: name, tab, ok, FAIL or skip, and the reason.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

/// Time limit of a check.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Runs a check and prints its line.
pub async fn check(name: &str, work: impl Future<Output = Result<()>>) {
    match tokio::time::timeout(LIMIT, work).await {
        Ok(Ok(())) => println!("{name}\tok"),
        Ok(Err(error)) => println!("{name}\tFAIL\t{}", format!("{error:#}").replace(['\n', '\t'], " ")),
        Err(_) => println!("{name}\tFAIL\tnot done after {LIMIT:?}"),
    }
}

/// Compares two values and reports the difference.
pub fn equal<T: PartialEq + Debug>(actual: T, expected: T) -> Result<()> {
    ensure!(actual == expected, "{actual:?} instead of {expected:?}");
    Ok(())
}

/// Expects a failure with this SQLSTATE.
pub fn fails<T>(result: Result<T>, sqlstate: &str) -> Result<()> {
    let Err(error) = result else { bail!("no error where {sqlstate} was due") };
    let ours =
        error.downcast_ref::<tokio_postgres::Error>().and_then(|error| error.code().map(|code| code.code().to_owned()));
    let theirs =
        error.downcast_ref::<sqlx::Error>().and_then(|error| Some(error.as_database_error()?.code()?.into_owned()));
    match ours.or(theirs) {
        Some(code) => equal(code.as_str(), sqlstate),
        None => Err(error),
    }
}
