//! Prints the changes of the published tables.
//!
//! ```text
//! psql -c "create publication p for all tables" -c "select pg_create_logical_replication_slot('s', 'pgoutput')"
//! cargo run -p tidegate-changes --example print -- postgres://postgres@127.0.0.1/postgres s p
//! ```

use std::error::Error;

use tidegate_changes::{ChangeEvent, ChangeKind, ChangeOptions, ChangeStream, ColumnValue, ConnectOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, slot, publication] = arguments.as_slice() else {
        return Err("usage: print URL SLOT PUBLICATION".into());
    };
    let options = ChangeOptions::new(ConnectOptions::from_url(url)?, slot, publication);
    let mut stream = ChangeStream::start(options);
    while let Some(event) = stream.next().await? {
        match event {
            ChangeEvent::Begin(begin) => println!("begin {} xid {}", begin.commit_lsn, begin.xid),
            ChangeEvent::Schema(change) => println!("table {} version {}", change.after.name, change.after.version),
            ChangeEvent::Change(change) => match &change.kind {
                ChangeKind::Row(row) => {
                    println!("{} {:?} {}", change.id, row.operation(), row.relation().name);
                    row.before().for_each(|(column, value)| println!("  - {} = {}", column.name, text(value)));
                    row.after().for_each(|(column, value)| println!("  + {} = {}", column.name, text(value)));
                }
                ChangeKind::Truncate(truncate) => {
                    truncate.relations.iter().for_each(|table| println!("{} truncate {}", change.id, table.name));
                }
                ChangeKind::Message(message) => println!("{} message {:?}", change.id, message.content),
            },
            ChangeEvent::Commit(commit) => {
                println!("commit, {} changes", commit.changes);
                stream.acknowledge(commit.end_lsn);
            }
            ChangeEvent::Message(message) => {
                println!("message {:?}", message.content);
                stream.acknowledge(message.end_lsn);
            }
            _ => {}
        }
    }
    Ok(())
}

fn text(value: ColumnValue<'_>) -> String {
    match value {
        ColumnValue::Null => "NULL".to_owned(),
        ColumnValue::Unchanged => "(unchanged)".to_owned(),
        ColumnValue::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        ColumnValue::Binary(bytes) => format!("{} bytes", bytes.len()),
    }
}
