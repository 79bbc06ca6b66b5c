//! Prepared statements and portals of a console client.

use std::{borrow::Cow, collections::HashMap, rc::Rc, vec};

use tidegate_wire::{
    backend,
    frontend::{Bind, ObjectKind, ObjectName, Parse},
    sqlstate::{self, SqlState},
};

use super::{
    command::{self, ConsoleCommand},
    error::ConsoleError,
    table::{Formats, TableColumn, TableRow, describe},
};

/// A prepared statement; `None` for an empty query.
type PreparedCommand = Rc<Option<ConsoleCommand>>;

/// A statement with its result formats and its progress.
pub(super) struct Portal {
    pub(super) statement: PreparedCommand,
    pub(super) formats: Formats,
    pub(super) progress: PortalProgress,
}

/// Progress of a portal.
pub(super) enum PortalProgress {
    /// Not executed.
    Fresh,
    /// Executed; these rows are left.
    Reading(Cow<'static, [TableColumn]>, vec::IntoIter<TableRow>),
    /// Completed.
    Over,
}

/// The prepared statements and portals of one client.
#[derive(Default)]
pub(super) struct PortalStore {
    statements: HashMap<Vec<u8>, PreparedCommand>,
    portals: HashMap<Vec<u8>, Portal>,
}

/// `pg_type.oid` of `text`.
const TEXT_OID: u32 = 25;
/// Limit of prepared statements; drivers need a few.
const STATEMENTS_MAX: usize = 1000;
/// Limit of portals, each of which may hold a table.
const PORTALS_MAX: usize = 100;

impl PortalStore {
    /// Stores a prepared statement.
    ///
    /// # Errors
    /// If the text is invalid or the name is in use.
    pub(super) fn parse(&mut self, parse: &Parse<'_>) -> Result<(), ConsoleError> {
        let mut commands = command::parse(&String::from_utf8_lossy(parse.query))?;
        if commands.len() > 1 {
            return Err(ConsoleError::syntax("cannot insert multiple commands into a prepared statement"));
        }
        if !parse.name.is_empty() && self.statements.contains_key(parse.name) {
            let message = format!("prepared statement {} already exists", quoted(parse.name));
            return Err(ConsoleError::new(sqlstate::DUPLICATE_PREPARED_STATEMENT, message));
        }
        check_limit(&self.statements, parse.name, STATEMENTS_MAX)?;
        self.statements.insert(parse.name.to_vec(), Rc::new(commands.pop()));
        Ok(())
    }

    /// Creates a portal.
    ///
    /// # Errors
    /// If the statement does not exist, the number of values is wrong, or a format is invalid.
    pub(super) fn bind(&mut self, bind: &Bind<'_>) -> Result<(), ConsoleError> {
        let statement = self.statement(bind.statement)?.clone();
        let values = bind.values().map_err(|error| protocol(error.to_string()))?;
        let count = values.clone().count();
        let required = statement.as_ref().as_ref().map_or(0, ConsoleCommand::parameters);
        if count != required {
            let name = quoted(bind.statement);
            let message =
                format!("bind message supplies {count} parameters, but prepared statement {name} requires {required}");
            return Err(protocol(message));
        }
        if !bind.portal.is_empty() && self.portals.contains_key(bind.portal) {
            return Err(ConsoleError::new(
                duplicate_cursor(),
                format!("cursor {} already exists", quoted(bind.portal)),
            ));
        }
        check_limit(&self.portals, bind.portal, PORTALS_MAX)?;
        let columns = statement.as_ref().as_ref().map_or(0, |command| command.columns().len());
        let formats = Formats::decode(values.result_formats(), columns)?;
        self.portals.insert(bind.portal.to_vec(), Portal { statement, formats, progress: PortalProgress::Fresh });
        Ok(())
    }

    /// Appends the description of a statement or a portal. Executes nothing.
    ///
    /// # Errors
    /// If the name does not exist.
    pub(super) fn describe(&self, target: &ObjectName<'_>, out: &mut Vec<u8>) -> Result<(), ConsoleError> {
        match target.kind {
            ObjectKind::Statement => {
                let statement = self.statement(target.name)?;
                let parameters = statement.as_ref().as_ref().map_or(0, ConsoleCommand::parameters);
                backend::parameter_description(&vec![TEXT_OID; parameters], out);
                describe_rows(statement, &Formats::default(), out);
            }
            ObjectKind::Portal => {
                let portal = self.portals.get(target.name).ok_or_else(|| no_portal(target.name))?;
                describe_rows(&portal.statement, &portal.formats, out);
            }
        }
        Ok(())
    }

    /// Removes a statement or a portal, if it exists.
    pub(super) fn close(&mut self, target: &ObjectName<'_>) {
        match target.kind {
            ObjectKind::Statement => drop(self.statements.remove(target.name)),
            ObjectKind::Portal => drop(self.portals.remove(target.name)),
        }
    }

    /// Removes a statement, or all of them.
    ///
    /// # Errors
    /// If the name does not exist.
    pub(super) fn deallocate(&mut self, name: Option<&str>) -> Result<(), ConsoleError> {
        match name {
            None => self.statements.clear(),
            Some(name) => {
                self.statements.remove(name.as_bytes()).ok_or_else(|| no_statement(name.as_bytes()))?;
            }
        }
        Ok(())
    }

    /// Ends a transaction and with it all portals.
    pub(super) fn end_transaction(&mut self) {
        self.portals.clear();
    }

    /// Takes a portal for execution. [`PortalStore::put_back`] returns it.
    ///
    /// # Errors
    /// If the name does not exist.
    pub(super) fn take(&mut self, name: &[u8]) -> Result<Portal, ConsoleError> {
        self.portals.remove(name).ok_or_else(|| no_portal(name))
    }

    /// Returns a portal after execution.
    pub(super) fn put_back(&mut self, name: &[u8], portal: Portal) {
        self.portals.insert(name.to_vec(), portal);
    }

    fn statement(&self, name: &[u8]) -> Result<&PreparedCommand, ConsoleError> {
        self.statements.get(name).ok_or_else(|| no_statement(name))
    }
}

fn describe_rows(statement: &PreparedCommand, formats: &Formats, out: &mut Vec<u8>) {
    let columns = statement.as_ref().as_ref().map(ConsoleCommand::columns).unwrap_or_default();
    if columns.is_empty() {
        backend::no_data(out);
    } else {
        describe(&columns, formats, out);
    }
}

fn duplicate_cursor() -> SqlState {
    SqlState::from_bytes(b"42P03").expect("digits and capital letters")
}

/// Checks the limit for another entry.
fn check_limit<T>(known: &HashMap<Vec<u8>, T>, name: &[u8], max: usize) -> Result<(), ConsoleError> {
    if known.len() < max || known.contains_key(name) {
        return Ok(());
    }
    Err(ConsoleError::new(
        sqlstate::PROGRAM_LIMIT_EXCEEDED,
        format!("the limit of {max} per console client is reached"),
    ))
}

fn protocol(message: String) -> ConsoleError {
    ConsoleError::new(sqlstate::PROTOCOL_VIOLATION, message)
}

fn no_statement(name: &[u8]) -> ConsoleError {
    let message = match name {
        b"" => "unnamed prepared statement does not exist".to_owned(),
        name => format!("prepared statement {} does not exist", quoted(name)),
    };
    ConsoleError::new(sqlstate::INVALID_SQL_STATEMENT_NAME, message)
}

fn no_portal(name: &[u8]) -> ConsoleError {
    ConsoleError::new(sqlstate::INVALID_CURSOR_NAME, format!("portal {} does not exist", quoted(name)))
}

fn quoted(name: &[u8]) -> String {
    format!("\"{}\"", String::from_utf8_lossy(name))
}

#[cfg(test)]
mod tests {
    use tidegate_wire::{Frames, frontend};

    use super::*;

    fn parse(store: &mut PortalStore, name: &str, query: &str) -> Result<(), ConsoleError> {
        store.parse(&Parse { name: name.as_bytes(), query: query.as_bytes(), param_types: &[] })
    }

    fn bind(store: &mut PortalStore, portal: &str, statement: &str) -> Result<(), ConsoleError> {
        let tail = [0, 0, 0, 0, 0, 0];
        store.bind(&Bind { portal: portal.as_bytes(), statement: statement.as_bytes(), tail: &tail })
    }

    fn described(store: &PortalStore, kind: frontend::ObjectKind, name: &str) -> Result<Vec<u8>, ConsoleError> {
        let mut out = Vec::new();
        store.describe(&ObjectName { kind, name: name.as_bytes() }, &mut out)?;
        Ok(Frames::new(&out).map(|frame| frame.unwrap().tag).collect())
    }

    #[test]
    fn statements_are_described_without_execution() {
        let mut store = PortalStore::default();
        parse(&mut store, "a", "SHOW POOLS").unwrap();
        parse(&mut store, "b", "RELOAD").unwrap();
        parse(&mut store, "", "").unwrap();
        bind(&mut store, "", "a").unwrap();
        assert_eq!(described(&store, ObjectKind::Statement, "a").unwrap(), b"tT");
        assert_eq!(described(&store, ObjectKind::Statement, "b").unwrap(), b"tn");
        assert_eq!(described(&store, ObjectKind::Statement, "").unwrap(), b"tn");
        assert_eq!(described(&store, ObjectKind::Portal, "").unwrap(), b"T");
    }

    #[test]
    fn names_are_unique_until_closed() {
        let mut store = PortalStore::default();
        parse(&mut store, "a", "SHOW POOLS").unwrap();
        assert_eq!(parse(&mut store, "a", "SHOW POOLS").unwrap_err().sqlstate.as_str(), "42P05");
        store.close(&ObjectName { kind: ObjectKind::Statement, name: b"a" });
        parse(&mut store, "a", "SHOW POOLS").unwrap();
        store.deallocate(None).unwrap();
        assert_eq!(bind(&mut store, "", "a").unwrap_err().sqlstate.as_str(), "26000");
        assert_eq!(store.deallocate(Some("a")).unwrap_err().sqlstate.as_str(), "26000");
        parse(&mut store, "", "SHOW POOLS").unwrap();
        parse(&mut store, "", "SHOW STATS").unwrap();
    }

    #[test]
    fn portals_end_with_the_transaction() {
        let mut store = PortalStore::default();
        parse(&mut store, "a", "SHOW POOLS").unwrap();
        bind(&mut store, "p", "a").unwrap();
        assert_eq!(bind(&mut store, "p", "a").unwrap_err().sqlstate.as_str(), "42P03");
        store.end_transaction();
        assert_eq!(described(&store, ObjectKind::Portal, "p").unwrap_err().sqlstate.as_str(), "34000");
    }

    #[test]
    fn values_are_rejected() {
        let mut store = PortalStore::default();
        parse(&mut store, "a", "SHOW POOLS").unwrap();
        let one_null = [0, 0, 0, 1, 255, 255, 255, 255, 0, 0];
        let error = store.bind(&Bind { portal: b"", statement: b"a", tail: &one_null }).unwrap_err();
        assert_eq!(error.sqlstate.as_str(), "08P01");
    }

    #[test]
    fn number_of_statements_is_limited() {
        let mut store = PortalStore::default();
        let refused =
            (0..=STATEMENTS_MAX).find_map(|number| parse(&mut store, &number.to_string(), "SHOW POOLS").err());
        assert_eq!(refused.unwrap().sqlstate.as_str(), "54000");
    }
}
