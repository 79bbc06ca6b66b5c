//! Setting changes of portals and statements, which take effect when the portal runs.

use std::collections::BTreeMap;

use tidegate_sql::classify::SessionChange;
use tidegate_wire::frontend::Execute;

/// Setting changes of portals or statements, by name, which take effect on Execute. Entries without a change are not stored.
#[derive(Debug, Default)]
pub struct NamedChanges(BTreeMap<Box<[u8]>, Box<SessionChange>>);

impl NamedChanges {
    /// Records a bound portal or a prepared statement, which replaces an entry of the same name.
    #[inline]
    pub fn bind(&mut self, name: &[u8], change: Option<Box<SessionChange>>) {
        match change {
            Some(change) => drop(self.0.insert(name.into(), change)),
            None => self.close(name),
        }
    }

    /// Change of a portal that was just bound.
    pub fn of_bound(&mut self, portal: &[u8]) -> Option<&mut SessionChange> {
        self.0.get_mut(portal).map(|change| &mut **change)
    }

    /// Change of a statement.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&SessionChange> {
        self.0.get(name).map(|change| &**change)
    }

    /// Removes the entry of a closed portal or statement.
    #[inline]
    pub fn close(&mut self, name: &[u8]) {
        if !self.0.is_empty() {
            self.0.remove(name);
        }
    }

    /// Removes all entries.
    #[inline]
    pub fn clear(&mut self) {
        if !self.0.is_empty() {
            self.0.clear();
        }
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Change of the portal that the body of an Execute message names.
    #[inline]
    #[must_use]
    pub fn of(&self, execute: &[u8]) -> Option<&SessionChange> {
        if self.0.is_empty() {
            return None;
        }
        let execute = Execute::decode(execute).ok()?;
        self.0.get(execute.portal).map(|change| &**change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portal_change_ends_with_its_close_or_next_bind() {
        let mut changes = NamedChanges::default();
        let execute = b"p\0\0\0\0\0";
        for ends_by_bind in [true, false] {
            changes.bind(b"p", Some(Box::new(SessionChange::DiscardAll)));
            changes.bind(b"q", None);
            assert_eq!((changes.len(), changes.of(execute)), (1, Some(&SessionChange::DiscardAll)));
            if ends_by_bind {
                changes.bind(b"p", None);
            } else {
                changes.close(b"p");
            }
            assert!(changes.is_empty() && changes.of(execute).is_none());
        }
    }
}
