//! Cache of normalised statements, so that a frequent statement costs one look-up.
//!
//! Prepared statements are found by their digest. Texts are matched against [templates](Template) of the statements that came
//! most often.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::{
    StatementDigest,
    normalize::{fingerprint, normalize},
    normalized::Normalized,
    redact::may_hide,
    template::Template,
};

/// NormalizeCache that were worked out before, so that a hot statement costs a look-up.
#[derive(Default)]
pub struct NormalizeCache {
    prepared: FxHashMap<StatementDigest, Rc<Normalized>>,
    /// Those that fit oftenest are in front, more or less.
    templates: Vec<Template>,
    /// Which shapes came last, and how often.
    seen: Vec<(u64, u32)>,
    scratch: Vec<u8>,
}

/// More prepared statements than a thread has hot; beyond it the cache begins anew.
const PREPARED_MAX: usize = 4096;
/// To find out that a text is none of these takes a few nanoseconds each.
const TEMPLATES_MAX: usize = 32;
const SEEN: usize = 256;
/// Texts longer than this are reduced each time.
const TEMPLATE_BYTES_MAX: usize = 2048;

/// A shape that is kept, or one that lies in the scratch buffer until the next.
pub enum Lookup<'a> {
    /// In the cache, shared.
    Kept(Rc<Normalized>),
    /// In the scratch buffer: text and fingerprint.
    Fresh(&'a [u8], u64),
}

impl Lookup<'_> {
    /// The normalised text.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        match self {
            Self::Kept(shape) => &shape.text,
            Self::Fresh(text, _) => text,
        }
    }

    /// The hash of that text.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        match self {
            Self::Kept(shape) => shape.fingerprint,
            Self::Fresh(_, fingerprint) => *fingerprint,
        }
    }

    /// Whether there may be something to hide in the statement.
    pub fn may_hide(&self) -> bool {
        match self {
            Self::Kept(shape) => shape.may_hide,
            Self::Fresh(text, _) => may_hide(text),
        }
    }
}

impl NormalizeCache {
    /// The shape of a prepared statement.
    pub fn of_prepared(&mut self, digest: StatementDigest, text: &[u8]) -> Lookup<'_> {
        if let Some(shape) = self.prepared.get(&digest) {
            return Lookup::Kept(shape.clone());
        }
        let shape = self.reduced(text);
        if self.prepared.len() >= PREPARED_MAX {
            self.prepared.clear();
        }
        self.prepared.insert(digest, shape.clone());
        Lookup::Kept(shape)
    }

    /// The shape of a text.
    pub fn of_text(&mut self, text: &[u8]) -> Lookup<'_> {
        if text.len() > TEMPLATE_BYTES_MAX {
            return self.fresh(text);
        }
        if let Some(at) = self.templates.iter().position(|template| template.fits(text)) {
            let to = at.saturating_sub(1);
            self.templates.swap(at, to);
            return Lookup::Kept(self.templates[to].shape().clone());
        }
        let fingerprint = self.fresh(text).fingerprint();
        if !self.comes_again(fingerprint) {
            return Lookup::Fresh(&self.scratch, fingerprint);
        }
        let shape = Rc::new(Normalized::new(&self.scratch, fingerprint));
        self.templates.truncate(TEMPLATES_MAX - 1);
        self.templates.push(Template::new(text, shape.clone()));
        Lookup::Kept(shape)
    }

    /// Whether a template of that shape would be worth its allocations: when it comes for the second time, and ever more
    /// rarely if the texts of that shape go on to fit none.
    fn comes_again(&mut self, fingerprint: u64) -> bool {
        if self.seen.is_empty() {
            self.seen.resize(SEEN, (0, 0));
        }
        let (known, times) = &mut self.seen[fingerprint as usize % SEEN];
        if *known != fingerprint {
            (*known, *times) = (fingerprint, 0);
        }
        *times = times.saturating_add(1);
        *times > 1 && times.is_power_of_two()
    }

    fn fresh(&mut self, text: &[u8]) -> Lookup<'_> {
        self.scratch.clear();
        normalize(text, &mut self.scratch);
        Lookup::Fresh(&self.scratch, fingerprint(&self.scratch))
    }

    fn reduced(&mut self, text: &[u8]) -> Rc<Normalized> {
        let found = self.fresh(text);
        Rc::new(Normalized::new(found.text(), found.fingerprint()))
    }
}
