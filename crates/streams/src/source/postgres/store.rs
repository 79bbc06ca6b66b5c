//! The place where the progress of a copy is stored: with the position of the stream.

use std::path::{Path, PathBuf};

use tidegate_changes::{SnapshotState, TableProgress};
use tidegate_config::stream::StreamKeys;

use crate::{error::StreamError, plan::StreamPlan, sink::CopyTable};

/// The store of a copy's progress.
pub(super) enum CopyStore {
    /// No storage: only the slot shows that the tables were copied.
    Nowhere,
    /// The folder of the spool.
    Folder(PathBuf),
    /// Tables of the sink, which are written in the transactions of the records.
    Sink(Box<CopyTable>),
}

/// The folder of a stream's state.
pub(super) fn folder(keys: &StreamKeys) -> Option<PathBuf> {
    (!keys.state.as_os_str().is_empty()).then(|| keys.state.join(&keys.name))
}

impl CopyStore {
    pub(super) fn of(plan: &StreamPlan) -> Result<Self, StreamError> {
        if let Some(table) = CopyTable::of(plan)? {
            return Ok(Self::Sink(Box::new(table)));
        }
        Ok(folder(&plan.stream.keys).map_or(Self::Nowhere, Self::Folder))
    }

    pub(super) const fn is_nowhere(&self) -> bool {
        matches!(self, Self::Nowhere)
    }

    /// Whether the sink stores the progress itself.
    pub(super) const fn is_sink(&self) -> bool {
        matches!(self, Self::Sink(_))
    }

    /// The stored state; `None` before the first start.
    pub(super) async fn load(&self) -> Result<Option<SnapshotState>, StreamError> {
        match self {
            Self::Nowhere => Ok(None),
            Self::Folder(folder) => blocking(folder, SnapshotState::load).await,
            Self::Sink(table) => {
                let Some((texts, repeats)) = table.load().await? else { return Ok(None) };
                let tables: Result<Vec<TableProgress>, _> =
                    texts.iter().map(|text| serde_json::from_str(text)).collect();
                let tables =
                    tables.map_err(|error| StreamError::Copy(format!("tidegate_copies is damaged: {error}")))?;
                Ok(Some(SnapshotState { tables, repeats }))
            }
        }
    }

    /// Whether the sink has a position of the stream.
    pub(super) async fn has_position(&self) -> Result<bool, StreamError> {
        match self {
            Self::Nowhere | Self::Folder(_) => Ok(false),
            Self::Sink(table) => table.has_position().await,
        }
    }

    /// Stores the whole state.
    pub(super) async fn save(&self, state: &SnapshotState) -> Result<(), StreamError> {
        match self {
            Self::Nowhere => Ok(()),
            Self::Folder(folder) => {
                let state = state.clone();
                blocking(folder, move |folder| state.store(folder)).await
            }
            Self::Sink(table) => {
                let rows =
                    state.tables.iter().filter_map(|table| Some((table.oid, serde_json::to_string(table).ok()?)));
                table.save(&rows.collect::<Vec<_>>(), state.repeats).await
            }
        }
    }

    /// Replaces the copy and the position of the sink by the state of a copy that begins again.
    pub(super) async fn restart_sink(&self, repeats: u32) -> Result<(), StreamError> {
        match self {
            Self::Nowhere | Self::Folder(_) => Ok(()),
            Self::Sink(table) => table.restart(repeats).await,
        }
    }
}

async fn blocking<T: Send + 'static>(
    folder: &Path,
    work: impl FnOnce(&Path) -> std::io::Result<T> + Send + 'static,
) -> Result<T, StreamError> {
    let folder = folder.to_owned();
    let name = folder.display().to_string();
    let done = tokio::task::spawn_blocking(move || work(&folder)).await.map_err(|_| StreamError::Aborted)?;
    done.map_err(|error| StreamError::Copy(format!("the progress of the copy in {name} cannot be used: {error}")))
}
