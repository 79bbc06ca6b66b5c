//! The state of a server and of its shapes, for operators.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::SystemTime;

use crate::counters::ShapeTotals;
use crate::parameters::LogMode;
use crate::server::{ServerStatus, ShapeServer};
use crate::shape::{Shape, ShapePhase};

/// The state of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShapesSnapshot {
    /// Whether changes arrive.
    pub status: ServerStatus,
    /// Number of shapes.
    pub shapes: usize,
    /// Bytes of the logs on disk.
    pub disk_bytes: u64,
    /// Counters.
    pub totals: ShapeTotals,
}

/// The state of a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShapeRow {
    /// `starting`, `snapshot`, `active`, `failed`, or `waiting` while no changes arrive.
    pub state: &'static str,
    /// The table; its schema is omitted if it is `public`.
    pub table: String,
    /// The predicate in its canonical text; empty for all rows.
    pub predicate: String,
    /// Identifies the log for clients.
    pub handle: String,
    /// Requests that wait for a change.
    pub waiting: u32,
    /// Bytes of the log on disk and not yet written.
    pub log_bytes: u64,
    /// Number of rows. Unknown without a snapshot, and for a shape of an earlier process.
    pub rows: Option<u64>,
    /// Time of the last change since the start of the server.
    pub changed_at: Option<SystemTime>,
}

impl ShapeServer {
    /// The state of the server.
    #[must_use]
    pub fn snapshot(&self) -> ShapesSnapshot {
        ShapesSnapshot {
            status: self.status(),
            shapes: self.index.len(),
            disk_bytes: self.store.used_bytes(),
            totals: self.counters.values(),
        }
    }

    /// Up to `rows_max` shapes whose table, predicate or handle contains `filter`, first those with most waiting requests, then
    /// those that were read last; and the number of all shapes that match.
    #[must_use]
    pub fn shape_rows(&self, filter: &str, rows_max: usize) -> (Vec<ShapeRow>, usize) {
        let mut shapes = self.index.all();
        shapes.retain(|shape| matches(shape, filter));
        let count = shapes.len();
        let rank = |shape: &Arc<Shape>| (Reverse(shape.waiting()), Reverse(shape.last_read()), shape.id);
        if count > rows_max {
            shapes.select_nth_unstable_by_key(rows_max, rank);
            shapes.truncate(rows_max);
        }
        shapes.sort_by_key(rank);
        let is_active = self.status() == ServerStatus::Active;
        (shapes.iter().map(|shape| row(shape, is_active)).collect(), count)
    }
}

fn table_name(shape: &Shape) -> String {
    let name = &shape.definition.form.table.name;
    if name.schema == "public" { name.table.clone() } else { format!("{}.{}", name.schema, name.table) }
}

fn matches(shape: &Shape, filter: &str) -> bool {
    filter.is_empty()
        || shape.definition.predicate.as_ref().is_some_and(|predicate| predicate.contains(filter))
        || table_name(shape).contains(filter)
        || shape.handle.to_string().contains(filter)
}

fn row(shape: &Shape, is_active: bool) -> ShapeRow {
    let log = shape.log();
    let extents = log.pieces.iter().chain(&log.runs).filter(|extent| extent.place.is_none());
    let unwritten_bytes: u64 = extents.filter_map(|extent| extent.bytes.as_ref()).map(|bytes| bytes.len() as u64).sum();
    let is_counted = log.phase == ShapePhase::Complete && shape.definition.log == LogMode::Full;
    let state = match log.phase {
        ShapePhase::Starting => "starting",
        ShapePhase::Snapshotting => "snapshot",
        ShapePhase::Complete if is_active => "active",
        ShapePhase::Complete => "waiting",
        ShapePhase::Failed | ShapePhase::Removed => "failed",
    };
    ShapeRow {
        state,
        table: table_name(shape),
        predicate: shape.definition.predicate.as_deref().unwrap_or_default().to_owned(),
        handle: shape.handle.to_string(),
        waiting: shape.waiting(),
        log_bytes: log.stored_bytes() + unwritten_bytes,
        rows: if is_counted { shape.rows() } else { None },
        changed_at: shape.changed_at(),
    }
}
