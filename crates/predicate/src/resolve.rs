//! Overload resolution (chapter "Type Conversion" of Postgres' manual; `src/backend/parser/parse_func.c`, `parse_oper.c`,
//! `parse_coerce.c`).

use crate::catalog::{
    ANY, ANY_ARRAY, ANY_COMPATIBLE, ANY_COMPATIBLE_ARRAY, ANY_COMPATIBLE_NONARRAY, ANY_ELEMENT, ANY_NONARRAY,
    ANY_OTHERS, CastContext, Oid, Routine, TEXT, UNKNOWN, catalog,
};

/// Arrays of the system catalogues, to which nothing is cast.
const INT2_VECTOR: Oid = 22;
const OID_VECTOR: Oid = 30;

/// The outcome of a resolution that finds no routine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    None,
    Ambiguous,
}

/// How a value gets another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CastPath {
    /// The representations are equal.
    Relabel,
    /// The C function, and whether its result depends on its arguments only.
    Function(&'static str, bool),
    /// Each element of an array by its own cast.
    Elements,
    /// The output function, then the input function.
    Text,
}

/// The way from one known type to another, if `context` allows it.
pub(crate) fn cast_path(from: Oid, to: Oid, context: CastContext) -> Option<CastPath> {
    let catalog = catalog();
    if from == to {
        return Some(CastPath::Relabel);
    }
    if let Some(cast) = catalog.cast(from, to) {
        return (cast.context <= context)
            .then(|| cast.source.map_or(CastPath::Relabel, |source| CastPath::Function(source, cast.immutable)));
    }
    if [INT2_VECTOR, OID_VECTOR].contains(&to) {
        return None;
    }
    if let (Some(from), Some(to)) = (catalog.element(from), catalog.element(to)) {
        return cast_path(from, to, context)
            .filter(|path| *path != CastPath::Text || context == CastContext::Explicit)
            .map(|_| CastPath::Elements);
    }
    let to_text = context >= CastContext::Assignment && catalog.category(to) == b'S';
    let from_text = context == CastContext::Explicit && catalog.category(from) == b'S';
    (to_text || from_text).then_some(CastPath::Text)
}

fn is_polymorphic(oid: Oid) -> bool {
    [ANY_ARRAY, ANY_COMPATIBLE, ANY_COMPATIBLE_ARRAY, ANY_COMPATIBLE_NONARRAY, ANY_ELEMENT, ANY_NONARRAY].contains(&oid)
        || ANY_OTHERS.contains(&oid)
}

/// Whether a value of type `from` may be given without a cast where `to` is expected.
pub(crate) fn is_implicit(from: Oid, to: Oid) -> bool {
    from == to || to == ANY || from == UNKNOWN || cast_path(from, to, CastContext::Implicit).is_some()
}

fn accepts(declared: &[Oid], given: &[Oid]) -> bool {
    let mut polymorphic = false;
    let fits = declared.iter().zip(given).all(|(to, from)| {
        polymorphic |= is_polymorphic(*to);
        is_polymorphic(*to) || is_implicit(*from, *to)
    });
    fits && (!polymorphic || polymorphic_types(declared, given, true).is_some())
}

/// The element types that stand for `anyelement` and `anycompatible`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Polymorphic {
    pub(crate) element: Option<Oid>,
    pub(crate) compatible: Option<Oid>,
}

impl Polymorphic {
    /// The actual type of a declared one; none if it is not determined.
    pub(crate) fn actual(self, declared: Oid) -> Option<Oid> {
        match declared {
            ANY_ARRAY => self.element.and_then(|oid| catalog().array_of(oid)),
            ANY_ELEMENT | ANY_NONARRAY => self.element,
            ANY_COMPATIBLE_ARRAY => self.compatible.and_then(|oid| catalog().array_of(oid)),
            ANY_COMPATIBLE | ANY_COMPATIBLE_NONARRAY => self.compatible,
            other if ANY_OTHERS.contains(&other) => None,
            other => Some(other),
        }
    }
}

/// Derives the polymorphic types of a call. With `tolerant`, unknown literals do not have to be determined.
pub(crate) fn polymorphic_types(declared: &[Oid], given: &[Oid], tolerant: bool) -> Option<Polymorphic> {
    let catalog = catalog();
    let mut types = Polymorphic::default();
    let mut compatible = Vec::new();
    for (to, from) in declared.iter().zip(given) {
        if *from == UNKNOWN {
            continue;
        }
        match *to {
            ANY_ARRAY => {
                let element = catalog.element(*from)?;
                if *types.element.get_or_insert(element) != element {
                    return None;
                }
            }
            ANY_ELEMENT | ANY_NONARRAY => {
                let same = *types.element.get_or_insert(*from) == *from;
                if !same || *to == ANY_NONARRAY && catalog.element(*from).is_some() {
                    return None;
                }
            }
            ANY_COMPATIBLE_ARRAY => compatible.push(catalog.element(*from)?),
            ANY_COMPATIBLE => compatible.push(*from),
            ANY_COMPATIBLE_NONARRAY if catalog.element(*from).is_some() => return None,
            ANY_COMPATIBLE_NONARRAY => compatible.push(*from),
            other if ANY_OTHERS.contains(&other) => return None,
            _ => {}
        }
    }
    if !compatible.is_empty() {
        types.compatible = Some(common_type(&compatible)?);
    } else if !tolerant
        && declared.iter().any(|to| [ANY_COMPATIBLE, ANY_COMPATIBLE_ARRAY, ANY_COMPATIBLE_NONARRAY].contains(to))
    {
        types.compatible = Some(TEXT);
    }
    if declared.contains(&ANY_NONARRAY) && types.element.is_some_and(|oid| catalog.element(oid).is_some()) {
        return None;
    }
    Some(types)
}

/// The type to which all inputs of IN, COALESCE, ARRAY and the like are cast.
pub(crate) fn common_type(types: &[Oid]) -> Option<Oid> {
    let catalog = catalog();
    let mut chosen = *types.first()?;
    for next in types.iter().copied().filter(|next| *next != UNKNOWN) {
        if chosen == UNKNOWN {
            chosen = next;
        } else if next != chosen {
            if catalog.category(next) != catalog.category(chosen) {
                return None;
            }
            if !catalog.is_preferred(chosen) && is_implicit(chosen, next) && !is_implicit(next, chosen) {
                chosen = next;
            }
        }
    }
    let chosen = if chosen == UNKNOWN { TEXT } else { chosen };
    types.iter().all(|from| is_implicit(*from, chosen)).then_some(chosen)
}

/// The operator for operands of these types; a prefix operator has one.
pub(crate) fn operator(name: &str, given: &[Oid]) -> Result<&'static Routine, Unresolved> {
    let all = catalog().operators(name);
    let exact = match *given {
        [UNKNOWN, right] => [right, right].to_vec(),
        [left, UNKNOWN] => [left, left].to_vec(),
        _ => given.to_vec(),
    };
    let found = all.iter().find(|routine| *routine.args == *exact && !exact.contains(&UNKNOWN));
    found.map_or_else(|| select(all, given), Ok)
}

/// The function for arguments of these types.
pub(crate) fn function(name: &str, given: &[Oid]) -> Result<&'static Routine, Unresolved> {
    let all = catalog().functions(name);
    let found = all.iter().find(|routine| *routine.args == *given);
    found.map_or_else(|| select(all, given), Ok)
}

fn select(all: &'static [Routine], given: &[Oid]) -> Result<&'static Routine, Unresolved> {
    let mut candidates: Vec<&Routine> =
        all.iter().filter(|routine| routine.args.len() == given.len() && accepts(&routine.args, given)).collect();
    if candidates.is_empty() {
        return Err(Unresolved::None);
    }
    let catalog = catalog();
    let known = || given.iter().copied().enumerate().filter(|(_, oid)| *oid != UNKNOWN);
    keep_best(&mut candidates, |routine| known().filter(|(at, oid)| routine.args[*at] == *oid).count());
    keep_best(&mut candidates, |routine| {
        let fits = |(at, oid): &(usize, Oid)| {
            let declared = routine.args[*at];
            declared == *oid || catalog.is_preferred(declared) && catalog.category(declared) == catalog.category(*oid)
        };
        known().filter(fits).count()
    });
    if candidates.len() > 1 && given.contains(&UNKNOWN) {
        keep_category(&mut candidates, given);
    }
    if candidates.len() > 1 && given.contains(&UNKNOWN) {
        keep_same_type(&mut candidates, given);
    }
    match candidates.as_slice() {
        [only] => Ok(only),
        _ => Err(Unresolved::Ambiguous),
    }
}

fn keep_best(candidates: &mut Vec<&Routine>, score: impl Fn(&Routine) -> usize) {
    if candidates.len() > 1 {
        let best = candidates.iter().map(|routine| score(routine)).max().unwrap_or(0);
        candidates.retain(|routine| score(routine) == best);
    }
}

/// Unknown literals take the category that the candidates agree on, or strings.
fn keep_category(candidates: &mut Vec<&Routine>, given: &[Oid]) {
    let catalog = catalog();
    let mut expected = Vec::new();
    for at in (0..given.len()).filter(|at| given[*at] == UNKNOWN) {
        let mut slot: Option<(u8, bool)> = None;
        let mut conflict = false;
        for routine in candidates.iter() {
            let (category, preferred) = (catalog.category(routine.args[at]), catalog.is_preferred(routine.args[at]));
            match &mut slot {
                None => slot = Some((category, preferred)),
                Some((known, has_preferred)) if *known == category => *has_preferred |= preferred,
                Some(known) if category == b'S' => *known = (category, preferred),
                Some(_) => conflict = true,
            }
        }
        match slot {
            Some((category, preferred)) if !conflict || category == b'S' => expected.push((at, category, preferred)),
            _ => return,
        }
    }
    let fits = |routine: &&Routine| {
        expected.iter().all(|(at, category, preferred)| {
            let declared = routine.args[*at];
            catalog.category(declared) == *category && (!preferred || catalog.is_preferred(declared))
        })
    };
    if candidates.iter().any(fits) {
        candidates.retain(fits);
    }
}

/// Last resort: unknown literals have the type of the known arguments, if those have one type.
fn keep_same_type(candidates: &mut Vec<&Routine>, given: &[Oid]) {
    let mut known = given.iter().copied().filter(|oid| *oid != UNKNOWN);
    let Some(first) = known.next() else { return };
    if known.any(|other| other != first) {
        return;
    }
    let same = vec![first; given.len()];
    let fitting: Vec<_> = candidates.iter().copied().filter(|routine| accepts(&routine.args, &same)).collect();
    if fitting.len() == 1 {
        *candidates = fitting;
    }
}
