//! SHOW TASKS: the tree of tasks, with the ends by cause.

use tidegate_supervise::{Exit, Scope};

use super::super::table::{TableCell, TableColumn, int8, row, text};

pub(super) const COLUMNS: &[TableColumn] = &[
    text("path"),
    int8("live"),
    int8("started"),
    int8("restarts"),
    int8("returned"),
    int8("failed"),
    int8("panicked"),
    int8("aborted"),
    int8("dropped"),
];

pub(super) fn rows(scope: &Scope) -> Vec<Vec<TableCell>> {
    let tree = scope.tree();
    tree.iter()
        .map(|(path, counts)| {
            let ended = |exit: Exit| counts.exits[exit];
            row![
                path,
                counts.live,
                counts.started,
                counts.restarts,
                ended(Exit::Returned),
                ended(Exit::Failed),
                ended(Exit::Panicked),
                ended(Exit::Aborted),
                ended(Exit::Dropped),
            ]
        })
        .collect()
}
