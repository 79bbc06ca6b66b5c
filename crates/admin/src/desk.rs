//! What a client of the extended protocol has prepared, and which results it is reading.

use std::{borrow::Cow, collections::HashMap, rc::Rc, vec};

use tidegate_wire::{
    backend,
    frontend::{Bind, ObjectKind, ObjectName, Parse},
    sqlstate::{self, SqlState},
};

use super::{
    command::{self, Command},
    fault::Fault,
    table::{Column, Formats, Row, describe},
};

/// A prepared statement; the empty one is no command.
type Statement = Rc<Option<Command>>;

/// A statement with the formats of its result, carried out or not.
pub(super) struct Portal {
    pub(super) statement: Statement,
    pub(super) formats: Formats,
    pub(super) progress: Progress,
}

/// How much of a portal's result was sent.
pub(super) enum Progress {
    /// It was not carried out.
    Fresh,
    /// These rows are left.
    Reading(Cow<'static, [Column]>, vec::IntoIter<Row>),
    /// All of it.
    Over,
}

/// The statements and portals of one client.
#[derive(Default)]
pub(super) struct Desk {
    statements: HashMap<Vec<u8>, Statement>,
    portals: HashMap<Vec<u8>, Portal>,
}

/// A driver prepares a handful of statements here; whoever prepares more has lost count.
const STATEMENTS_MAX: usize = 1000;
/// A portal may hold a table.
const PORTALS_MAX: usize = 100;

impl Desk {
    /// Keeps a statement.
    ///
    /// # Errors
    /// It is no command, or it has the name of another.
    pub(super) fn parse(&mut self, parse: &Parse<'_>) -> Result<(), Fault> {
        let mut commands = command::parse(&String::from_utf8_lossy(parse.query))?;
        if commands.len() > 1 {
            return Err(Fault::syntax("cannot insert multiple commands into a prepared statement"));
        }
        if !parse.name.is_empty() && self.statements.contains_key(parse.name) {
            let message = format!("prepared statement {} already exists", quoted(parse.name));
            return Err(Fault::new(sqlstate::DUPLICATE_PREPARED_STATEMENT, message));
        }
        room(&self.statements, parse.name, STATEMENTS_MAX)?;
        self.statements.insert(parse.name.to_vec(), Rc::new(commands.pop()));
        Ok(())
    }

    /// Makes a portal.
    ///
    /// # Errors
    /// There is no such statement, it takes no values, or its columns cannot be had in these formats.
    pub(super) fn bind(&mut self, bind: &Bind<'_>) -> Result<(), Fault> {
        let statement = self.statement(bind.statement)?.clone();
        let values = bind.values().map_err(|error| protocol(error.to_string()))?;
        let count = values.clone().count();
        if count > 0 {
            let name = quoted(bind.statement);
            let message = format!("bind message supplies {count} parameters, but prepared statement {name} requires 0");
            return Err(protocol(message));
        }
        if !bind.portal.is_empty() && self.portals.contains_key(bind.portal) {
            return Err(Fault::new(duplicate_cursor(), format!("cursor {} already exists", quoted(bind.portal))));
        }
        room(&self.portals, bind.portal, PORTALS_MAX)?;
        let columns = statement.as_ref().as_ref().map_or(0, |command| command.columns().len());
        let formats = Formats::read(values.result_formats(), columns)?;
        self.portals.insert(bind.portal.to_vec(), Portal { statement, formats, progress: Progress::Fresh });
        Ok(())
    }

    /// Appends what a statement or a portal returns. Nothing is carried out.
    ///
    /// # Errors
    /// There is none of that name.
    pub(super) fn describe(&self, target: &ObjectName<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        match target.kind {
            ObjectKind::Statement => {
                let statement = self.statement(target.name)?;
                backend::parameter_description(&[], out);
                describe_rows(statement, &Formats::default(), out);
            }
            ObjectKind::Portal => {
                let portal = self.portals.get(target.name).ok_or_else(|| no_portal(target.name))?;
                describe_rows(&portal.statement, &portal.formats, out);
            }
        }
        Ok(())
    }

    /// Forgets a statement or a portal, if there is one.
    pub(super) fn close(&mut self, target: &ObjectName<'_>) {
        match target.kind {
            ObjectKind::Statement => drop(self.statements.remove(target.name)),
            ObjectKind::Portal => drop(self.portals.remove(target.name)),
        }
    }

    /// Forgets a statement by its name in SQL, or all of them.
    ///
    /// # Errors
    /// There is none of that name.
    pub(super) fn deallocate(&mut self, name: Option<&str>) -> Result<(), Fault> {
        match name {
            None => self.statements.clear(),
            Some(name) => {
                self.statements.remove(name.as_bytes()).ok_or_else(|| no_statement(name.as_bytes()))?;
            }
        }
        Ok(())
    }

    /// A transaction has ended, and its portals with it.
    pub(super) fn end_transaction(&mut self) {
        self.portals.clear();
    }

    /// Takes a portal out, to be put back by [`Desk::keep`].
    ///
    /// # Errors
    /// There is none of that name.
    pub(super) fn take(&mut self, name: &[u8]) -> Result<Portal, Fault> {
        self.portals.remove(name).ok_or_else(|| no_portal(name))
    }

    /// Puts a portal back.
    pub(super) fn keep(&mut self, name: &[u8], portal: Portal) {
        self.portals.insert(name.to_vec(), portal);
    }

    fn statement(&self, name: &[u8]) -> Result<&Statement, Fault> {
        self.statements.get(name).ok_or_else(|| no_statement(name))
    }
}

fn describe_rows(statement: &Statement, formats: &Formats, out: &mut Vec<u8>) {
    let columns = statement.as_ref().as_ref().map(Command::columns).unwrap_or_default();
    if columns.is_empty() {
        backend::no_data(out);
    } else {
        describe(&columns, formats, out);
    }
}

fn duplicate_cursor() -> SqlState {
    SqlState::from_bytes(b"42P03").expect("digits and capital letters")
}

/// Whether there is room for one more of that name.
fn room<T>(known: &HashMap<Vec<u8>, T>, name: &[u8], max: usize) -> Result<(), Fault> {
    if known.len() < max || known.contains_key(name) {
        return Ok(());
    }
    Err(Fault::new(sqlstate::PROGRAM_LIMIT_EXCEEDED, format!("the console keeps no more than {max} of these")))
}

fn protocol(message: String) -> Fault {
    Fault::new(sqlstate::PROTOCOL_VIOLATION, message)
}

fn no_statement(name: &[u8]) -> Fault {
    let message = match name {
        b"" => "unnamed prepared statement does not exist".to_owned(),
        name => format!("prepared statement {} does not exist", quoted(name)),
    };
    Fault::new(sqlstate::INVALID_SQL_STATEMENT_NAME, message)
}

fn no_portal(name: &[u8]) -> Fault {
    Fault::new(sqlstate::INVALID_CURSOR_NAME, format!("portal {} does not exist", quoted(name)))
}

fn quoted(name: &[u8]) -> String {
    format!("\"{}\"", String::from_utf8_lossy(name))
}

#[cfg(test)]
mod tests {
    use tidegate_wire::{Frames, frontend};

    use super::*;

    fn parse(desk: &mut Desk, name: &str, query: &str) -> Result<(), Fault> {
        desk.parse(&Parse { name: name.as_bytes(), query: query.as_bytes(), param_types: &[] })
    }

    fn bind(desk: &mut Desk, portal: &str, statement: &str) -> Result<(), Fault> {
        let tail = [0, 0, 0, 0, 0, 0];
        desk.bind(&Bind { portal: portal.as_bytes(), statement: statement.as_bytes(), tail: &tail })
    }

    fn described(desk: &Desk, kind: frontend::ObjectKind, name: &str) -> Result<Vec<u8>, Fault> {
        let mut out = Vec::new();
        desk.describe(&ObjectName { kind, name: name.as_bytes() }, &mut out)?;
        Ok(Frames::new(&out).map(|frame| frame.unwrap().tag).collect())
    }

    #[test]
    fn a_statement_is_described_before_it_is_carried_out() {
        let mut desk = Desk::default();
        parse(&mut desk, "a", "SHOW POOLS").unwrap();
        parse(&mut desk, "b", "RELOAD").unwrap();
        parse(&mut desk, "", "").unwrap();
        bind(&mut desk, "", "a").unwrap();
        assert_eq!(described(&desk, ObjectKind::Statement, "a").unwrap(), b"tT");
        assert_eq!(described(&desk, ObjectKind::Statement, "b").unwrap(), b"tn");
        assert_eq!(described(&desk, ObjectKind::Statement, "").unwrap(), b"tn");
        assert_eq!(described(&desk, ObjectKind::Portal, "").unwrap(), b"T");
    }

    #[test]
    fn names_are_used_once_until_they_are_closed() {
        let mut desk = Desk::default();
        parse(&mut desk, "a", "SHOW POOLS").unwrap();
        assert_eq!(parse(&mut desk, "a", "SHOW POOLS").unwrap_err().sqlstate.as_str(), "42P05");
        desk.close(&ObjectName { kind: ObjectKind::Statement, name: b"a" });
        parse(&mut desk, "a", "SHOW POOLS").unwrap();
        desk.deallocate(None).unwrap();
        assert_eq!(bind(&mut desk, "", "a").unwrap_err().sqlstate.as_str(), "26000");
        assert_eq!(desk.deallocate(Some("a")).unwrap_err().sqlstate.as_str(), "26000");
        parse(&mut desk, "", "SHOW POOLS").unwrap();
        parse(&mut desk, "", "SHOW STATS").unwrap();
    }

    #[test]
    fn portals_end_with_the_transaction() {
        let mut desk = Desk::default();
        parse(&mut desk, "a", "SHOW POOLS").unwrap();
        bind(&mut desk, "p", "a").unwrap();
        assert_eq!(bind(&mut desk, "p", "a").unwrap_err().sqlstate.as_str(), "42P03");
        desk.end_transaction();
        assert_eq!(described(&desk, ObjectKind::Portal, "p").unwrap_err().sqlstate.as_str(), "34000");
    }

    #[test]
    fn values_have_no_place_here() {
        let mut desk = Desk::default();
        parse(&mut desk, "a", "SHOW POOLS").unwrap();
        let one_null = [0, 0, 0, 1, 255, 255, 255, 255, 0, 0];
        let fault = desk.bind(&Bind { portal: b"", statement: b"a", tail: &one_null }).unwrap_err();
        assert_eq!(fault.sqlstate.as_str(), "08P01");
    }

    #[test]
    fn a_client_cannot_fill_the_memory_with_statements() {
        let mut desk = Desk::default();
        let refused = (0..=STATEMENTS_MAX).find_map(|number| parse(&mut desk, &number.to_string(), "SHOW POOLS").err());
        assert_eq!(refused.unwrap().sqlstate.as_str(), "54000");
    }
}
