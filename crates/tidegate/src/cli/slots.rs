//! `tidegate slots`: replication slots of a server.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use clap::{Args, Subcommand};
use tidegate_changes::{
    ConnectOptions, Lsn, PgConnection, ReplicationMode, SlotState,
    slots::{self, NewSlot},
};
use tidegate_config::{
    escape::{escaped, escaped_json},
    pgpass,
};

const EXAMPLES: &str = "\
Examples:
  export PGPASSWORD=secret                           or a line in ~/.pgpass
  tidegate slots postgres://cdc@10.0.0.5/shop      list: lag is not confirmed,
                                                   held is kept on the disk
  tidegate slots postgres://cdc@10.0.0.5/shop \\
    create tidegate_orders --publication orders
  tidegate slots postgres://cdc@10.0.0.5/shop \\
    advance tidegate_orders 0/16B3748 --force
  tidegate slots postgres://cdc@10.0.0.5/shop drop tidegate_orders

A slot that nothing reads makes Postgres keep all WAL from then on, until its disk is full or
max_slot_wal_keep_size is reached.

Exit status: 0 done, 1 an error or a refusal, 2 an invalid command line.";

/// `tidegate slots`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct SlotsArgs {
    /// The database: postgres://USER@HOST/DATABASE. The user needs the attribute REPLICATION.
    pub url: String,

    /// Print JSON, one object per slot.
    #[arg(long)]
    pub json: bool,

    /// Command [default: list].
    #[command(subcommand)]
    pub command: Option<SlotCommand>,
}

/// Commands of `tidegate slots`.
#[derive(Debug, Clone, Subcommand)]
pub enum SlotCommand {
    /// Create a slot for a publication that exists.
    Create {
        /// Name: lower-case letters, digits and underscores.
        name: String,
        /// The publication that will be read. It has to exist before the slot.
        #[arg(long, value_name = "NAME")]
        publication: String,
        /// Synchronise the slot to standbys (Postgres 17 and newer).
        #[arg(long)]
        failover: bool,
        /// Time to wait for transactions that are older than the slot [default: 60].
        #[arg(long, value_name = "SECONDS", default_value_t = 60, hide_default_value = true)]
        wait: u64,
    },
    /// Move a slot forward without reading it: the changes between are never delivered.
    Advance {
        /// Name of the slot.
        name: String,
        /// Position such as 0/16B3748.
        lsn: Lsn,
        /// Do it. Without, the number of skipped bytes is shown.
        #[arg(long)]
        force: bool,
    },
    /// Drop a slot. Refused if a process reads it, or if its name does not begin with `tidegate_`.
    Drop {
        /// Name of the slot.
        name: String,
        /// Drop a slot of another program, and terminate the process that reads it.
        #[arg(long)]
        force: bool,
    },
}

/// Slots whose names begin so are those of `tidegate stream`.
const OWN_PREFIX: &str = "tidegate_";

impl SlotsArgs {
    /// Executes the command.
    ///
    /// # Errors
    /// If the server cannot be reached, or the command is refused.
    pub fn run(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.execute(out))
    }

    async fn execute(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let options = ConnectOptions::from_url(&pgpass::with_password(&self.url, &super::environment))?;
        let mut connection = PgConnection::connect(&options, ReplicationMode::Database).await?;
        match &self.command {
            None => {
                let found = slots::list_slots(&mut connection, None).await?;
                if self.json { write_json(&found, out)? } else { out.write_all(table(&found).as_bytes())? }
            }
            Some(SlotCommand::Create { name, publication, failover, wait }) => {
                check_publication(&mut connection, publication).await?;
                let slot = NewSlot { failover: *failover, wait_max: Duration::from_secs(*wait), ..NewSlot::new(name) };
                let created = slots::create_slot(&mut connection, &slot).await?;
                writeln!(out, "created {name}: transactions after {} are kept for it", created.consistent_point)?;
                writeln!(out, "Postgres keeps WAL until the slot is read or dropped")?;
            }
            Some(SlotCommand::Advance { name, lsn, force }) => {
                advance(&mut connection, name, *lsn, *force, out).await?;
            }
            Some(SlotCommand::Drop { name, force }) => {
                if slots::list_slots(&mut connection, Some(name)).await?.is_empty() {
                    anyhow::bail!("slot {name} does not exist");
                }
                if !force && !name.starts_with(OWN_PREFIX) {
                    anyhow::bail!(
                        "slot {name} may belong to another program, as its name does not begin with {OWN_PREFIX}: add --force to \
                         drop it"
                    );
                }
                slots::drop_slot(&mut connection, name, *force).await?;
                writeln!(out, "dropped {name}: changes that were not read are lost to its reader")?;
            }
        }
        Ok(())
    }
}

async fn check_publication(connection: &mut PgConnection, name: &str) -> anyhow::Result<()> {
    let literal = tidegate_wire::replication::quote_literal(name);
    let rows = connection.query(&format!("select 1 from pg_catalog.pg_publication where pubname = {literal}")).await?;
    if rows.is_empty() {
        anyhow::bail!(
            "publication {name} does not exist in this database, and a slot does not deliver what was written before its \
             publication: run CREATE PUBLICATION {name} FOR TABLE ... first"
        );
    }
    Ok(())
}

async fn advance(
    connection: &mut PgConnection,
    name: &str,
    lsn: Lsn,
    force: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let found = slots::list_slots(connection, Some(name)).await?;
    let Some(slot) = found.first() else { anyhow::bail!("slot {name} does not exist") };
    if let Some(pid) = slot.active_pid {
        anyhow::bail!("slot {name} is read by process {pid}: stop it first");
    }
    let from = slot.confirmed_flush_lsn.unwrap_or(Lsn::ZERO);
    if lsn == from {
        writeln!(out, "{name} is at {from} already: nothing to do")?;
        return Ok(());
    }
    if lsn < from {
        anyhow::bail!("slot {name} is at {from}, and cannot go back to {lsn}");
    }
    let skipped = size(lsn.bytes_since(from));
    if !force {
        anyhow::bail!("this skips {skipped} of WAL from {from}: its changes are never delivered; add --force to do it");
    }
    let reached = slots::advance_slot(connection, name, lsn).await?;
    writeln!(out, "advanced {name} to {reached}: skipped {skipped} of WAL from {from}")?;
    Ok(())
}

/// The table of slots, at most 80 columns wide for usual names.
fn table(found: &[SlotState]) -> String {
    if found.is_empty() {
        return "no replication slots\n".to_owned();
    }
    let mut rows = vec![["slot", "database", "pid", "lag", "held", "safe", "status"].map(str::to_owned)];
    rows.extend(found.iter().map(|slot| {
        let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), size);
        [
            escaped(&slot.name).to_string(),
            escaped(slot.database.as_deref().unwrap_or("(physical)")).to_string(),
            slot.active_pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            bytes(slot.lag_bytes),
            bytes(slot.held_wal_bytes),
            bytes(slot.safe_wal_size.map(|safe| u64::try_from(safe).unwrap_or(0))),
            status(slot),
        ]
    }));
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (index, (cell, width)) in row.iter().zip(widths).enumerate() {
            let separator = if index == 0 { "" } else { "  " };
            // Numbers are aligned to the right.
            let _ = if (2..=5).contains(&index) {
                write!(line, "{separator}{cell:>width$}")
            } else {
                write!(line, "{separator}{cell:<width$}")
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// The WAL status, and what an operator should know.
fn status(slot: &SlotState) -> String {
    let mut text = escaped(slot.wal_status.as_deref().unwrap_or("-")).to_string();
    if let Some(reason) = &slot.invalidation_reason {
        let _ = write!(text, " ({})", escaped(reason));
    }
    let is_set = |flag: Option<bool>| flag == Some(true);
    for (is_shown, word) in
        [(is_set(slot.synced), "synced"), (is_set(slot.failover), "failover"), (slot.temporary, "temporary")]
    {
        if is_shown {
            let _ = write!(text, " {word}");
        }
    }
    text
}

fn write_json(found: &[SlotState], out: &mut impl Write) -> io::Result<()> {
    for slot in found {
        let lsn = |lsn: Option<Lsn>| lsn.map(|lsn| lsn.to_string());
        let object = serde_json::json!({
            "slot": slot.name,
            "plugin": slot.plugin,
            "database": slot.database,
            "active_pid": slot.active_pid,
            "restart_lsn": lsn(slot.restart_lsn),
            "confirmed_flush_lsn": lsn(slot.confirmed_flush_lsn),
            "lag_bytes": slot.lag_bytes,
            "held_wal_bytes": slot.held_wal_bytes,
            "safe_wal_bytes": slot.safe_wal_size,
            "wal_status": slot.wal_status,
            "inactive_since": slot.inactive_since,
            "failover": slot.failover,
            "synced": slot.synced,
            "temporary": slot.temporary,
            "invalidation_reason": slot.invalidation_reason,
        });
        writeln!(out, "{}", escaped_json(&object.to_string()))?;
    }
    Ok(())
}

/// A size with a binary unit, in at most seven characters.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut rest, mut unit) = (bytes, 0);
    while rest >= 10_000 && unit + 1 < UNITS.len() {
        (rest, unit) = (rest.div_ceil(1024), unit + 1);
    }
    format!("{rest}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_at_most_seven_characters() {
        for (bytes, text) in
            [(0, "0B"), (9_999, "9999B"), (10_000, "10KiB"), (64 << 20, "64MiB"), (u64::MAX, "16384PiB")]
        {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn table_fits_a_terminal_and_escapes_names() {
        let slot = SlotState {
            name: "tidegate_orders".to_owned(),
            database: Some("shop".to_owned()),
            active_pid: Some(1_234_567),
            lag_bytes: Some(5 << 20),
            held_wal_bytes: Some(5 << 30),
            wal_status: Some("extended".to_owned()),
            failover: Some(true),
            ..SlotState::default()
        };
        let hostile = SlotState { name: "a\u{1b}[2J".to_owned(), ..SlotState::default() };
        let text = table(&[slot, hostile]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("extended failover") && text.contains("(physical)"), "{text}");
        assert!(!text.contains('\u{1b}'));
        assert_eq!(table(&[]), "no replication slots\n");
    }
}
