//! The fields of a span, each with the value that was recorded last.

use tracing::field::Visit;

use super::json::Object;

/// What a span has besides its fields.
const KEYS: &[&str] = &["name"];

/// As they stand in the objects of the span's events, behind its name.
pub(super) struct Fields {
    /// Members of an object, each with a comma before it.
    members: Vec<u8>,
    /// Whose they are, and where each begins.
    begins: Vec<(&'static str, usize)>,
}

impl Fields {
    pub(super) fn recorded(record: impl FnOnce(&mut dyn Visit)) -> Self {
        let (mut members, mut begins) = (Vec::new(), Vec::new());
        record(&mut Object::behind(&mut members, &mut begins).owning(KEYS));
        Self { members, begins }
    }

    pub(super) fn members(&self) -> &[u8] {
        &self.members
    }

    /// Takes over what was recorded later. Each layer of a subscriber is told, and all of them share these fields.
    pub(super) fn update(&mut self, later: &Self) {
        later.begins.iter().for_each(|(name, _)| self.remove(name));
        let end = self.members.len();
        self.members.extend_from_slice(&later.members);
        self.begins.extend(later.begins.iter().map(|(name, begin)| (*name, end + begin)));
    }

    fn remove(&mut self, name: &str) {
        let Some(place) = self.begins.iter().position(|(own, _)| *own == name) else { return };
        let (_, begin) = self.begins.remove(place);
        let end = self.begins.get(place).map_or(self.members.len(), |(_, next)| *next);
        self.members.drain(begin..end);
        self.begins[place..].iter_mut().for_each(|(_, next)| *next -= end - begin);
    }
}
