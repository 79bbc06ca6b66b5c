//! The client side of an exchange in a record for another process.

use std::rc::Rc;

use tidegate_handover::{
    SessionRecord, UnnamedRecord, parameters_of, restore_parameters, restore_statements, statements_of,
};
use tidegate_link::Link;
use tidegate_session_state::{
    params::{RoleOrder, SettingsInterner},
    statements::{StatementCatalog, StatementShape},
    unnamed::{PortalColumns, UnnamedStatement},
};
use tidegate_sql::classify::{Pins, classify};
use tidegate_wire::{frame::HEADER, frontend::Parse};

use super::ClientSide;

impl ClientSide {
    /// Whether nothing but the link, and a server that the client is pinned to, ties the state to this process. Between
    /// transactions, a portal is gone.
    #[must_use]
    pub fn is_portable(&self) -> bool {
        self.unnamed_change.is_none() && self.statement_changes.is_empty() && !self.link.is_tls()
    }

    /// Writes the state into a record.
    pub fn export(&self, catalog: &StatementCatalog, record: &mut SessionRecord) {
        record.settings = parameters_of(&self.settings);
        record.reported = parameters_of(&self.reported);
        record.is_as_at_login = self.settings == self.startup_settings;
        if !record.is_as_at_login {
            record.startup = parameters_of(&self.startup_settings);
        }
        record.is_role_first = self.role_turn == RoleOrder::First;
        record.stamps = self.stamps;
        if let Some(statements) = &self.statements {
            record.statements = statements_of(statements, catalog.changes());
        }
        record.unnamed = self.unnamed.as_ref().map(|unnamed| UnnamedRecord {
            message: unnamed.message.to_vec(),
            stamp: unnamed.stamp,
            shape: unnamed.shape.map_or_else(Vec::new, |shape| shape.to_bytes().to_vec()),
            columns: unnamed.columns.export(),
        });
    }

    /// Creates the state of a client from its record. `pool` identifies the servers of its statements.
    #[must_use]
    pub fn restore(
        link: Link,
        id: u64,
        record: &SessionRecord,
        (catalog, interned): (&StatementCatalog, &SettingsInterner),
        pool: [&str; 3],
    ) -> Self {
        let settings = interned.intern(restore_parameters(&record.settings, id));
        let reported = interned.intern(restore_parameters(&record.reported, id));
        let startup_settings = match record.is_as_at_login {
            true => Rc::clone(&settings),
            false => interned.intern(restore_parameters(&record.startup, id)),
        };
        Self {
            statements: restore_statements(&record.statements, catalog, &settings, pool),
            unnamed: record.unnamed.as_ref().and_then(restore_unnamed),
            role_turn: if record.is_role_first { RoleOrder::First } else { RoleOrder::Last },
            startup_settings,
            stamps: record.stamps,
            pins: Pins::from_bits(u8::try_from(record.pins).unwrap_or_default()),
            ..Self::new(link, id, settings, reported)
        }
    }
}

fn restore_unnamed(record: &UnnamedRecord) -> Option<Box<UnnamedStatement>> {
    let parse = Parse::decode(record.message.get(HEADER..)?).ok()?;
    let shape: Option<[u8; 16]> = record.shape.as_slice().try_into().ok();
    Some(Box::new(UnnamedStatement {
        shape: shape.map(StatementShape::from_bytes),
        columns: PortalColumns::restore(record.columns.as_deref()),
        ..UnnamedStatement::new(&record.message, classify(parse.query), record.stamp)
    }))
}
