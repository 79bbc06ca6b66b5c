//! The parse tree of an expression, before names and types are resolved.

/// A part of an expression with its byte offset in the text.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) at: usize,
    /// Longest path to a leaf.
    pub(crate) height: u16,
    pub(crate) kind: NodeKind,
}

#[derive(Debug)]
pub(crate) enum NodeKind {
    Null,
    Bool(bool),
    /// A number as written, with the sign that precedes it.
    Number(Box<str>),
    String(Box<str>),
    Param(usize),
    /// A column, perhaps qualified.
    Column(Vec<Box<str>>),
    /// A binary operator, or a prefix operator without `left`.
    Operator {
        name: Box<str>,
        left: Option<Box<Node>>,
        right: Box<Node>,
    },
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    IsNull {
        arg: Box<Node>,
        negated: bool,
    },
    /// IS TRUE, IS FALSE; IS UNKNOWN for `None`.
    IsBool {
        arg: Box<Node>,
        value: Option<bool>,
        negated: bool,
    },
    IsDistinct {
        left: Box<Node>,
        right: Box<Node>,
        negated: bool,
    },
    Between {
        arg: Box<Node>,
        low: Box<Node>,
        high: Box<Node>,
        negated: bool,
        symmetric: bool,
    },
    In {
        arg: Box<Node>,
        list: Vec<Node>,
        negated: bool,
    },
    InSubquery {
        arg: Box<Node>,
        query: Box<SubqueryNode>,
        negated: bool,
    },
    /// `left operator ANY (right)`, or ALL.
    Quantified {
        left: Box<Node>,
        operator: Box<str>,
        any: bool,
        right: Box<Node>,
    },
    Cast {
        arg: Box<Node>,
        target: TypeName,
    },
    Call {
        name: Vec<Box<str>>,
        args: Vec<Node>,
    },
    Coalesce(Vec<Node>),
    Greatest(Vec<Node>),
    Least(Vec<Node>),
    NullIf(Box<Node>, Box<Node>),
    Array(Vec<Node>),
    Subscript {
        arg: Box<Node>,
        subscripts: Vec<Subscript>,
    },
    Row(Vec<Node>),
}

/// `SELECT column FROM table WHERE condition`.
#[derive(Debug)]
pub(crate) struct SubqueryNode {
    pub(crate) column_at: usize,
    pub(crate) column: Vec<Box<str>>,
    pub(crate) table_at: usize,
    pub(crate) table: Vec<Box<str>>,
    pub(crate) alias: Option<Box<str>>,
    pub(crate) condition: Option<Node>,
}

/// `[index]` or `[lower:upper]`.
#[derive(Debug)]
pub(crate) enum Subscript {
    Index(Node),
    Slice(Option<Node>, Option<Node>),
}

/// The name of a type as written, with Postgres' name for SQL's own spellings.
#[derive(Debug)]
pub(crate) struct TypeName {
    pub(crate) at: usize,
    pub(crate) name: Box<str>,
    pub(crate) modifiers: Vec<i32>,
    pub(crate) is_array: bool,
}
