//! Reads everything that a slot holds, counts it, and prints the rate, the CPU time per change and the peak of memory.
//!
//! ```text
//! cargo run --release -p tidegate-changes --example drain -- postgres://postgres@127.0.0.1/postgres slot publication [spill folder]
//! ```
//! With a folder, large transactions are streamed before they commit, with 16 MiB of memory. The slot is confirmed at the
//! end, so a second run needs a new backlog or a new slot.

use std::{error::Error, time::Instant};

use tidegate_changes::{
    ChangeEvent, ChangeOptions, ChangeStream, ConnectOptions, FileSpill, Lsn, PgConnection, Replication,
    StreamingOptions,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, slot, publication, spill @ ..] = arguments.as_slice() else {
        return Err("usage: drain URL SLOT PUBLICATION [SPILL FOLDER]".into());
    };
    let connect = ConnectOptions::from_url(url)?;
    let mut connection = PgConnection::connect(&connect, Replication::Off).await?;
    let rows = connection.query("select pg_current_wal_lsn()").await?;
    let end: Lsn = rows[0][0].as_deref().unwrap_or_default().parse()?;
    // The walsender arrives at the end of the WAL only if some record follows.
    connection.query("select pg_logical_emit_message(true, 'drain', 'end')").await?;
    let mut options = ChangeOptions::new(connect, slot, publication);
    if let Some(folder) = spill.first() {
        let store = Box::new(FileSpill::new(folder, 16 << 30)?);
        options.streaming = Some(StreamingOptions { store, memory_max: 16 << 20 });
    }
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let mut stream = ChangeStream::start(options);
    let (mut changes, mut bytes, mut transactions) = (0_u64, 0_u64, 0_u64);
    'read: while let Some(batch) = stream.next_batch().await? {
        for event in batch {
            match event {
                ChangeEvent::Change(change) => {
                    changes += 1;
                    bytes += change.frame().len() as u64;
                }
                ChangeEvent::Commit(commit) => {
                    transactions += 1;
                    stream.acknowledge(commit.end_lsn);
                    if commit.end_lsn >= end {
                        break 'read;
                    }
                }
                ChangeEvent::Progress(lsn) if lsn >= end => break 'read,
                _ => {}
            }
        }
    }
    let (seconds, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    stream.stop().await;
    println!("changes {changes} in {transactions} transactions, {:.1} MB, {seconds:.2} s", bytes as f64 / 1e6);
    println!("rate {:.0} changes/s", changes as f64 / seconds);
    println!("cpu {:.3} us/change", cpu * 1e6 / changes.max(1) as f64);
    println!("peak memory {}", status("VmHWM"));
    Ok(())
}

fn status(name: &str) -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or("unknown").trim().to_owned()
}

/// User and system time of the process, in seconds; clock ticks are 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The fields after the name, which may contain spaces: utime and stime are the 12th and 13th.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
