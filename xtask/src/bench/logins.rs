//! Raw logins: sends the startup message and reads up to ReadyForQuery.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::subject::USER;

/// The end of a login: ReadyForQuery with status idle.
const READY: &[u8] = b"Z\0\0\0\x05I";

/// Logs in an idle client.
pub(crate) fn log_in(port: u16) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).context("connect")?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).context("set a timeout")?;
    stream.write_all(&startup()).context("send the startup message")?;
    let mut received = Vec::new();
    let mut chunk = [0; 4096];
    while !received.ends_with(READY) {
        let count = stream.read(&mut chunk).context("read the reply to a login")?;
        ensure!(count > 0, "login refused: {}", String::from_utf8_lossy(&received));
        received.extend_from_slice(&chunk[..count]);
    }
    Ok(stream)
}

/// Sequential logins per second, measured for `time`.
pub(crate) fn rate(port: u16, time: Duration) -> Result<f64> {
    let start = Instant::now();
    let mut logins = 0_u32;
    while start.elapsed() < time {
        let mut stream = log_in(port)?;
        stream.write_all(b"X\0\0\0\x04").context("send Terminate")?;
        logins += 1;
    }
    Ok(f64::from(logins) / start.elapsed().as_secs_f64())
}

fn startup() -> Vec<u8> {
    let version_3_0 = 196_608_u32.to_be_bytes();
    let parameters = format!("user\0{USER}\0database\0{USER}\0application_name\0bench\0\0");
    let length = u32::try_from(8 + parameters.len()).expect("a startup message is short");
    [&length.to_be_bytes()[..], &version_3_0, parameters.as_bytes()].concat()
}
