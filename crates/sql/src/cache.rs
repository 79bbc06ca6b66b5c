//! Cache of normalised statements: a frequent statement costs one look-up instead of tokenising.
//!
//! Prepared statements are found by digest. Texts are matched against templates of frequent statements.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::{
    StatementDigest,
    normalize::{fingerprint, normalize},
    normalized::Normalized,
    redact::may_hide,
    template::Template,
};

/// Caches normalised statements. One per thread.
#[derive(Default)]
pub struct NormalizeCache {
    prepared: FxHashMap<StatementDigest, Rc<Normalized>>,
    /// Frequently matched templates move to the front.
    templates: Vec<Template>,
    /// Recently seen fingerprints, with their counts.
    recent: Vec<(u64, u32)>,
    scratch: Vec<u8>,
}

/// Limit of cached prepared statements per thread; beyond it, the cache is cleared.
const PREPARED_MAX: usize = 4096;
/// Limit of templates: a text that matches none of them costs a few nanoseconds for each.
const TEMPLATES_MAX: usize = 32;
const RECENT_MAX: usize = 256;
/// Longer texts are normalised each time.
const TEMPLATE_BYTES_MAX: usize = 2048;

/// Result of a look-up: cached, or valid until the next look-up.
pub enum Lookup<'a> {
    /// Cached and shared.
    Cached(Rc<Normalized>),
    /// Text and fingerprint, borrowed from the scratch buffer.
    Uncached(&'a [u8], u64),
}

impl Lookup<'_> {
    /// The normalised text.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        match self {
            Self::Cached(normalized) => &normalized.text,
            Self::Uncached(text, _) => text,
        }
    }

    /// The hash of the normalised text.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        match self {
            Self::Cached(normalized) => normalized.fingerprint,
            Self::Uncached(_, fingerprint) => *fingerprint,
        }
    }

    /// Whether the statement may contain a password or a key.
    pub fn may_hide(&self) -> bool {
        match self {
            Self::Cached(normalized) => normalized.may_hide,
            Self::Uncached(text, _) => may_hide(text),
        }
    }
}

impl NormalizeCache {
    /// Normalises the text of a prepared statement.
    pub fn normalize_prepared(&mut self, digest: StatementDigest, text: &[u8]) -> Lookup<'_> {
        if let Some(normalized) = self.prepared.get(&digest) {
            return Lookup::Cached(normalized.clone());
        }
        let normalized = self.normalize_shared(text);
        if self.prepared.len() >= PREPARED_MAX {
            self.prepared.clear();
        }
        self.prepared.insert(digest, normalized.clone());
        Lookup::Cached(normalized)
    }

    /// Normalises a text.
    pub fn normalize_text(&mut self, text: &[u8]) -> Lookup<'_> {
        if text.len() > TEMPLATE_BYTES_MAX {
            return self.normalize_uncached(text);
        }
        if let Some(at) = self.templates.iter().position(|template| template.matches(text)) {
            let to = at.saturating_sub(1);
            self.templates.swap(at, to);
            return Lookup::Cached(self.templates[to].normalized().clone());
        }
        let fingerprint = self.normalize_uncached(text).fingerprint();
        if !self.deserves_template(fingerprint) {
            return Lookup::Uncached(&self.scratch, fingerprint);
        }
        let normalized = Rc::new(Normalized::new(&self.scratch, fingerprint));
        self.templates.truncate(TEMPLATES_MAX - 1);
        self.templates.push(Template::new(text, normalized.clone()));
        Lookup::Cached(normalized)
    }

    /// Whether a template is worth its allocations: at the second occurrence, then at exponentially growing counts if the texts
    /// keep matching no template.
    fn deserves_template(&mut self, fingerprint: u64) -> bool {
        if self.recent.is_empty() {
            self.recent.resize(RECENT_MAX, (0, 0));
        }
        let (last, count) = &mut self.recent[fingerprint as usize % RECENT_MAX];
        if *last != fingerprint {
            (*last, *count) = (fingerprint, 0);
        }
        *count = count.saturating_add(1);
        *count > 1 && count.is_power_of_two()
    }

    fn normalize_uncached(&mut self, text: &[u8]) -> Lookup<'_> {
        self.scratch.clear();
        normalize(text, &mut self.scratch);
        Lookup::Uncached(&self.scratch, fingerprint(&self.scratch))
    }

    fn normalize_shared(&mut self, text: &[u8]) -> Rc<Normalized> {
        let found = self.normalize_uncached(text);
        Rc::new(Normalized::new(found.text(), found.fingerprint()))
    }
}
