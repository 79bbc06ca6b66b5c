//! The fields of a span, each with the value that was recorded last.

use tracing::field::Visit;

use super::json::JsonObject;

/// The other keys of a span object.
const KEYS: &[&str] = &["name"];

/// The fields as members of the span object, after its name.
pub(super) struct SpanFields {
    /// The members, each with a comma before it.
    members: Vec<u8>,
    /// The name of each field, and where its member begins.
    offsets: Vec<(&'static str, usize)>,
}

impl SpanFields {
    pub(super) fn recorded(record: impl FnOnce(&mut dyn Visit)) -> Self {
        let (mut members, mut offsets) = (Vec::new(), Vec::new());
        record(&mut JsonObject::continuation(&mut members, &mut offsets).with_reserved_keys(KEYS));
        Self { members, offsets }
    }

    pub(super) fn members(&self) -> &[u8] {
        &self.members
    }

    /// Replaces fields with later values. The fields are shared by all layers of the subscriber, and each layer updates
    /// them.
    pub(super) fn update(&mut self, later: &Self) {
        later.offsets.iter().for_each(|(name, _)| self.remove(name));
        let end = self.members.len();
        self.members.extend_from_slice(&later.members);
        self.offsets.extend(later.offsets.iter().map(|(name, begin)| (*name, end + begin)));
    }

    fn remove(&mut self, name: &str) {
        let Some(place) = self.offsets.iter().position(|(own, _)| *own == name) else { return };
        let (_, begin) = self.offsets.remove(place);
        let end = self.offsets.get(place).map_or(self.members.len(), |(_, next)| *next);
        self.members.drain(begin..end);
        self.offsets[place..].iter_mut().for_each(|(_, next)| *next -= end - begin);
    }
}
