//! Periodic checks: tables that changed without a write, and the limits of shapes and disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::database::{Catalogue, Publication, literal};
use crate::routing::RouteCommand;
use crate::server::{ServerStatus, ShapeServer};
use crate::shape::Shape;
use crate::table::TableInfo;

/// How often old answers are dropped.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
/// Above its limit, the store is emptied to this part of it.
const KEEP_PERCENT: u64 = 80;

/// Checks for ever.
pub(crate) async fn run(server: &Arc<ShapeServer>) {
    let mut ticks = tokio::time::interval(server.options.catalogue_interval);
    let mut expiry = tokio::time::interval(EXPIRY_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    expiry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = expiry.tick() => {
                server.answers.expire();
                server.live_answers.clear();
                continue;
            }
        }
        evict(server).await;
        if server.status() != ServerStatus::Active {
            server.counters.set_slot_lag(None);
            continue;
        }
        server.counters.set_slot_lag(slot_lag(server).await);
        if let Err(error) = compare_catalogue(server).await {
            tracing::warn!(error, "cannot compare the shapes with the catalogue");
        }
    }
}

/// Bytes of WAL that the server keeps for the slot; `None` if the database does not answer.
async fn slot_lag(server: &ShapeServer) -> Option<u64> {
    let sql = format!(
        "SELECT pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), confirmed_flush_lsn)::int8 \
         FROM pg_catalog.pg_replication_slots WHERE slot_name = {}",
        literal(&server.options.slot_name())
    );
    let client = server.client().await.ok()?;
    let found = client.simple_query(&sql).await.ok()?;
    client.release();
    found.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
        _ => None,
    })
}

/// Removes shapes of tables that were dropped, created again, renamed or altered without a write (SH-02), or that are not
/// published any more (SH-25).
async fn compare_catalogue(server: &ShapeServer) -> Result<(), String> {
    let mut tables: BTreeMap<u32, Arc<TableInfo>> = BTreeMap::new();
    for shape in server.index.all() {
        for table in shape.definition.tables() {
            tables.entry(table.oid).or_insert_with(|| Arc::clone(table));
        }
    }
    server.memberships().compared.retain(|oid, _| tables.contains_key(oid));
    if tables.is_empty() {
        return Ok(());
    }
    let oids: Vec<u32> = tables.keys().copied().collect();
    let client = server.client().await.map_err(|error| error.to_string())?;
    let found = Catalogue(&client).tables_by_oid(&oids).await.map_err(|error| error.to_string())?;
    let name = server.options.publication_name();
    let publication = Publication::read(&client, &name).await.map_err(|error| error.to_string())?;
    client.release();
    for (oid, table) in tables {
        let now = found.iter().find(|found| found.oid == oid);
        let membership = publication.as_ref().and_then(|found| found.membership(&table));
        let before = {
            let known = server.memberships();
            known.compared.get(&oid).or_else(|| known.settled.get(&oid)).copied()
        };
        let defect = publication.as_ref().and_then(|found| found.defect(&name, &table));
        let reason = if !now.is_some_and(|now| now.is_same_as(&table)) {
            "its definition has changed".to_owned()
        // A table that is being published for its first shape is not there yet.
        } else if membership.is_none() && has_complete_shape(server, oid) {
            "it is not published any more".to_owned()
        } else if membership.is_some() && before.is_some_and(|before| membership != Some(before)) {
            "it was removed from the publication and added again".to_owned()
        } else if let Some(defect) = defect {
            defect
        } else {
            server.memberships().compared.extend(membership.map(|membership| (oid, membership)));
            continue;
        };
        tracing::info!(table = table.name.quoted(), reason, "shapes of the table are removed");
        server.memberships().forget(oid);
        server.published.lock().await.remove(&oid);
        let _ = server.commands.send(RouteCommand::RemoveTable(oid)).await;
        server.resolver.clear();
    }
    Ok(())
}

fn has_complete_shape(server: &ShapeServer, oid: u32) -> bool {
    let is_complete = |shape: &Arc<Shape>| {
        shape.definition.tables().any(|table| table.oid == oid)
            && shape.log().phase == crate::shape::ShapePhase::Complete
    };
    server.index.all().iter().any(is_complete)
}

/// Removes the least recently read shapes above the limits.
async fn evict(server: &ShapeServer) {
    let options = &server.options;
    let is_full = server.store.used_bytes() > options.storage_bytes_max;
    let excess = server.index.len().saturating_sub(options.shapes_max);
    if !is_full && excess == 0 {
        return;
    }
    let mut shapes = server.index.all();
    shapes.sort_by_key(|shape| shape.last_read());
    let mut stored: u64 = shapes.iter().map(|shape| shape.log().stored_bytes()).sum();
    let keep = options.storage_bytes_max / 100 * KEEP_PERCENT;
    let mut removed = 0_usize;
    for shape in shapes {
        let is_over = removed < excess || (is_full && stored > keep);
        if !is_over {
            break;
        }
        stored = stored.saturating_sub(shape.log().stored_bytes());
        removed += 1;
        server.remove(&shape).await;
    }
    if removed > 0 {
        tracing::info!(removed, "least recently read shapes are removed: a limit is reached");
    }
}
