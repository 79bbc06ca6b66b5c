//! Types, casts, operators and functions of Postgres 18, as far as they take part in overload resolution.
//!
//! The four text files are read from `pg_type`, `pg_cast`, `pg_operator` and `pg_proc`. They hold operators on types that are
//! not evaluated here as well: Postgres may choose one of them. What Postgres 14 lacks concerns those types only.

use std::collections::HashMap;
use std::sync::OnceLock;

/// Object id of a type.
pub(crate) type Oid = u32;

pub(crate) const BOOL: Oid = 16;
pub(crate) const NAME: Oid = 19;
pub(crate) const INT8: Oid = 20;
pub(crate) const INT2: Oid = 21;
pub(crate) const INT4: Oid = 23;
pub(crate) const TEXT: Oid = 25;
pub(crate) const FLOAT4: Oid = 700;
pub(crate) const FLOAT8: Oid = 701;
pub(crate) const UNKNOWN: Oid = 705;
pub(crate) const BPCHAR: Oid = 1042;
pub(crate) const VARCHAR: Oid = 1043;
pub(crate) const DATE: Oid = 1082;
pub(crate) const TIME: Oid = 1083;
pub(crate) const TIMESTAMP: Oid = 1114;
pub(crate) const TIMESTAMPTZ: Oid = 1184;
pub(crate) const INTERVAL: Oid = 1186;
pub(crate) const NUMERIC: Oid = 1700;
pub(crate) const UUID: Oid = 2950;
pub(crate) const ANY: Oid = 2276;
pub(crate) const ANY_ARRAY: Oid = 2277;
pub(crate) const ANY_ELEMENT: Oid = 2283;
pub(crate) const ANY_NONARRAY: Oid = 2776;
pub(crate) const ANY_COMPATIBLE: Oid = 5077;
pub(crate) const ANY_COMPATIBLE_ARRAY: Oid = 5078;
pub(crate) const ANY_COMPATIBLE_NONARRAY: Oid = 5079;
/// Polymorphic types of enums, ranges and multiranges: no type that is supported is one.
pub(crate) const ANY_OTHERS: [Oid; 5] = [3500, 3831, 4537, 5080, 4538];

/// A row of `pg_type`.
#[derive(Debug)]
pub(crate) struct TypeInfo {
    pub(crate) name: &'static str,
    pub(crate) category: u8,
    pub(crate) preferred: bool,
    /// Element type of an array type, else 0.
    pub(crate) element: Oid,
    /// Array type with this element type, else 0.
    pub(crate) array: Oid,
    pub(crate) collatable: bool,
}

/// An operator or a function.
#[derive(Debug)]
pub(crate) struct Routine {
    pub(crate) name: &'static str,
    /// Types of the arguments; a prefix operator has one.
    pub(crate) args: Box<[Oid]>,
    pub(crate) result: Oid,
    /// Name of the C function, which selects the implementation.
    pub(crate) source: &'static str,
    pub(crate) strict: bool,
    pub(crate) immutable: bool,
}

/// The situation in which a cast may happen, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CastContext {
    Implicit,
    Assignment,
    Explicit,
}

/// A row of `pg_cast`.
#[derive(Debug)]
pub(crate) struct Cast {
    /// Name of the C function; none if the representations are equal.
    pub(crate) source: Option<&'static str>,
    pub(crate) context: CastContext,
    pub(crate) immutable: bool,
}

/// The tables, by the keys of the look-ups.
#[derive(Debug)]
pub(crate) struct Catalog {
    types: HashMap<Oid, TypeInfo>,
    type_names: HashMap<&'static str, Oid>,
    operators: HashMap<&'static str, Vec<Routine>>,
    functions: HashMap<&'static str, Vec<Routine>>,
    casts: HashMap<(Oid, Oid), Cast>,
}

/// The catalogue, read on first use.
pub(crate) fn catalog() -> &'static Catalog {
    static CATALOG: OnceLock<Catalog> = OnceLock::new();
    CATALOG.get_or_init(Catalog::read)
}

fn rows<const N: usize>(text: &'static str) -> impl Iterator<Item = [&'static str; N]> {
    text.lines().map(|line| {
        let mut fields = line.split(' ');
        std::array::from_fn(|_| fields.next().expect("the files of the crate have all fields"))
    })
}

fn number(text: &str) -> Oid {
    text.parse().expect("the files of the crate have numbers")
}

impl Catalog {
    fn read() -> Self {
        let mut types = HashMap::new();
        let mut type_names = HashMap::new();
        for [oid, name, category, preferred, element, array, collatable] in rows::<7>(include_str!("catalog/types.txt"))
        {
            let info = TypeInfo {
                name,
                category: category.as_bytes()[0],
                preferred: preferred == "1",
                element: number(element),
                array: number(array),
                collatable: collatable == "1",
            };
            types.insert(number(oid), info);
            type_names.insert(name, number(oid));
        }
        let mut operators: HashMap<_, Vec<_>> = HashMap::new();
        for [name, left, right, result, source, strict, volatile] in rows::<7>(include_str!("catalog/operators.txt")) {
            let args = [left, right].into_iter().map(number).filter(|oid| *oid != 0).collect();
            let (strict, immutable) = (strict == "s", volatile == "i");
            operators.entry(name).or_default().push(Routine {
                name,
                args,
                result: number(result),
                source,
                strict,
                immutable,
            });
        }
        let mut functions: HashMap<_, Vec<_>> = HashMap::new();
        for [name, args, result, source, strict, volatile] in rows::<6>(include_str!("catalog/functions.txt")) {
            let args = args.split(',').map(number).collect();
            let (strict, immutable) = (strict == "s", volatile == "i");
            functions.entry(name).or_default().push(Routine {
                name,
                args,
                result: number(result),
                source,
                strict,
                immutable,
            });
        }
        let mut casts = HashMap::new();
        for [from, to, source, context, _, volatile] in rows::<6>(include_str!("catalog/casts.txt")) {
            let context = match context {
                "i" => CastContext::Implicit,
                "a" => CastContext::Assignment,
                _ => CastContext::Explicit,
            };
            let cast = Cast { source: (source != "-").then_some(source), context, immutable: volatile == "i" };
            casts.insert((number(from), number(to)), cast);
        }
        Self { types, type_names, operators, functions, casts }
    }

    pub(crate) fn type_info(&self, oid: Oid) -> Option<&TypeInfo> {
        self.types.get(&oid)
    }

    pub(crate) fn type_named(&self, name: &str) -> Option<Oid> {
        self.type_names.get(name).copied()
    }

    pub(crate) fn operators(&self, name: &str) -> &[Routine] {
        self.operators.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn functions(&self, name: &str) -> &[Routine] {
        self.functions.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn cast(&self, from: Oid, to: Oid) -> Option<&Cast> {
        self.casts.get(&(from, to))
    }

    /// Postgres' name of a type, for errors and casts.
    pub(crate) fn type_name(&self, oid: Oid) -> &'static str {
        self.types.get(&oid).map_or("a user-defined type", |info| info.name)
    }

    /// Element type of an array type.
    pub(crate) fn element(&self, oid: Oid) -> Option<Oid> {
        self.types.get(&oid).map(|info| info.element).filter(|element| *element != 0)
    }

    /// Array type with this element type.
    pub(crate) fn array_of(&self, oid: Oid) -> Option<Oid> {
        self.types.get(&oid).map(|info| info.array).filter(|array| *array != 0)
    }

    pub(crate) fn category(&self, oid: Oid) -> u8 {
        match oid {
            UNKNOWN => b'X',
            _ => self.types.get(&oid).map_or(b'U', |info| info.category),
        }
    }

    pub(crate) fn is_preferred(&self, oid: Oid) -> bool {
        self.types.get(&oid).is_some_and(|info| info.preferred)
    }

    pub(crate) fn is_collatable(&self, oid: Oid) -> bool {
        self.types.get(&oid).is_some_and(|info| info.collatable)
    }
}

/// Whether values of a type are evaluated here.
pub(crate) fn is_supported(oid: Oid) -> bool {
    let scalar = |oid| {
        [
            BOOL,
            NAME,
            INT8,
            INT2,
            INT4,
            TEXT,
            FLOAT4,
            FLOAT8,
            BPCHAR,
            VARCHAR,
            DATE,
            TIME,
            TIMESTAMP,
            TIMESTAMPTZ,
            INTERVAL,
            NUMERIC,
            UUID,
        ]
        .contains(&oid)
    };
    // name[] and bpchar[] are left out: their elements compare by rules of their own.
    scalar(oid) || catalog().element(oid).is_some_and(scalar)
}
