//! Description of the table whose rows a predicate reads.

/// Object id of a Postgres type, with a mark for enums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ColumnType {
    oid: u32,
    is_enum: bool,
}

macro_rules! column_types {
    ($($(#[$doc:meta])* $name:ident = $oid:literal;)*) => {
        impl ColumnType {
            $($(#[$doc])* pub const $name: Self = Self::from_oid($oid);)*
        }
    };
}

column_types! {
    /// `boolean`
    BOOL = 16;
    /// `smallint`
    INT2 = 21;
    /// `integer`
    INT4 = 23;
    /// `bigint`
    INT8 = 20;
    /// `real`
    FLOAT4 = 700;
    /// `double precision`
    FLOAT8 = 701;
    /// `numeric`
    NUMERIC = 1700;
    /// `text`
    TEXT = 25;
    /// `character varying`
    VARCHAR = 1043;
    /// `character`
    BPCHAR = 1042;
    /// `name`
    NAME = 19;
    /// `uuid`
    UUID = 2950;
    /// `date`
    DATE = 1082;
    /// `time without time zone`
    TIME = 1083;
    /// `timestamp without time zone`
    TIMESTAMP = 1114;
    /// `timestamp with time zone`
    TIMESTAMPTZ = 1184;
    /// `interval`
    INTERVAL = 1186;
    /// `boolean[]`
    BOOL_ARRAY = 1000;
    /// `smallint[]`
    INT2_ARRAY = 1005;
    /// `integer[]`
    INT4_ARRAY = 1007;
    /// `bigint[]`
    INT8_ARRAY = 1016;
    /// `numeric[]`
    NUMERIC_ARRAY = 1231;
    /// `text[]`
    TEXT_ARRAY = 1009;
    /// `uuid[]`
    UUID_ARRAY = 2951;
}

impl ColumnType {
    /// The type with this object id. A domain is described by its base type. A type that is not supported may be read
    /// by `IS NULL` only.
    #[must_use]
    pub const fn from_oid(oid: u32) -> Self {
        Self { oid, is_enum: false }
    }

    /// An enum type: it may be cast to text.
    #[must_use]
    pub const fn enumeration(oid: u32) -> Self {
        Self { oid, is_enum: true }
    }

    /// The type's object id.
    #[must_use]
    pub const fn oid(self) -> u32 {
        self.oid
    }

    /// Whether the type is an enum.
    #[must_use]
    pub const fn is_enum(self) -> bool {
        self.is_enum
    }
}

/// A collation, with the properties on which comparisons depend.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collation {
    name: Box<str>,
    rules: CollationRules,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CollationRules {
    C,
    CodePoints,
    Language,
    Nondeterministic,
}

impl Collation {
    /// `C`, `POSIX` or `ucs_basic` of a UTF-8 database: order by bytes, and only ASCII letters have case.
    #[must_use]
    pub fn c() -> Self {
        Self { name: "C".into(), rules: CollationRules::C }
    }

    /// `C.UTF-8` and the like: order by bytes, case of all letters. Ordering is evaluated, `lower()` and ILIKE are refused.
    #[must_use]
    pub fn code_points(name: &str) -> Self {
        Self { name: name.into(), rules: CollationRules::CodePoints }
    }

    /// A collation of a language, such as `en_US.utf8`: only equality is evaluated.
    #[must_use]
    pub fn language(name: &str) -> Self {
        Self { name: name.into(), rules: CollationRules::Language }
    }

    /// A nondeterministic collation, under which texts with other bytes are equal: comparisons are refused.
    #[must_use]
    pub fn nondeterministic(name: &str) -> Self {
        Self { name: name.into(), rules: CollationRules::Nondeterministic }
    }

    /// The name in error messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether texts are equal exactly if their bytes are.
    #[must_use]
    pub fn is_deterministic(&self) -> bool {
        self.rules != CollationRules::Nondeterministic
    }

    /// Whether the order of texts is the order of their bytes.
    #[must_use]
    pub fn orders_by_bytes(&self) -> bool {
        matches!(self.rules, CollationRules::C | CollationRules::CodePoints)
    }

    /// Whether only ASCII letters have an upper and a lower case.
    #[must_use]
    pub fn has_ascii_case(&self) -> bool {
        self.rules == CollationRules::C
    }
}

/// A column: name, type, and its collation if it is not the database's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Column {
    pub(crate) name: Box<str>,
    pub(crate) column_type: ColumnType,
    pub(crate) collation: Option<Collation>,
}

impl Column {
    /// A column with the database's collation, if its type has one.
    #[must_use]
    pub fn new(name: &str, column_type: ColumnType) -> Self {
        Self { name: name.into(), column_type, collation: None }
    }

    /// A column with a `COLLATE` clause.
    #[must_use]
    pub fn with_collation(mut self, collation: Collation) -> Self {
        self.collation = Some(collation);
        self
    }

    /// The name, case-sensitive.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type.
    #[must_use]
    pub fn column_type(&self) -> ColumnType {
        self.column_type
    }
}

/// A table: its names for qualified columns, its columns in the order of rows, and the database's collation.
///
/// The database's encoding must be UTF-8, and rows are read under `DateStyle = ISO`, `TimeZone = UTC`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Table {
    pub(crate) schema: Box<str>,
    pub(crate) name: Box<str>,
    pub(crate) columns: Box<[Column]>,
    pub(crate) database_collation: Collation,
    /// Whether the rows are those of partitions.
    pub(crate) is_partitioned: bool,
}

impl Table {
    /// A table of a database whose default collation (`datcollate`, `datctype`) is `database_collation`.
    #[must_use]
    pub fn new(schema: &str, name: &str, columns: Vec<Column>, database_collation: Collation) -> Self {
        Self {
            schema: schema.into(),
            name: name.into(),
            columns: columns.into(),
            database_collation,
            is_partitioned: false,
        }
    }

    /// A partitioned table, for subqueries: otherwise rows of tables that inherit from it are left out.
    #[must_use]
    pub fn with_partitions(mut self) -> Self {
        self.is_partitioned = true;
        self
    }

    /// The schema.
    #[must_use]
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The name without schema.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The columns in the order of rows.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The number of the column with this name, counted from zero.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| &*column.name == name)
    }
}
