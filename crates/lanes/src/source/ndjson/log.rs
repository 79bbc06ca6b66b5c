//! Log messages about rotated files; no-ops without the feature `tracing`.

use std::path::Path;

#[cfg(feature = "tracing")]
pub(super) fn rotated(path: &Path) {
    tracing::info!(file = %path.display(), "file was rotated; reading goes on with the file that has replaced it");
}

#[cfg(feature = "tracing")]
pub(super) fn truncated(path: &Path) {
    tracing::warn!(file = %path.display(), "file was truncated; reading goes on at its beginning");
}

#[cfg(feature = "tracing")]
pub(super) fn rotated_file_is_gone(path: &Path) {
    tracing::warn!(
        file = %path.display(),
        "the file of the checkpoint was replaced and is not beside the new one; lines that were not read from it are missing"
    );
}

#[cfg(not(feature = "tracing"))]
pub(super) fn rotated(_: &Path) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn truncated(_: &Path) {}

#[cfg(not(feature = "tracing"))]
pub(super) fn rotated_file_is_gone(_: &Path) {}
