//! The parse tree of an expression, before names and types are resolved.

/// A part of an expression with its byte offset in the text.
#[derive(Debug)]
pub(crate) struct ExprNode {
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
        left: Option<Box<ExprNode>>,
        right: Box<ExprNode>,
    },
    And(Vec<ExprNode>),
    Or(Vec<ExprNode>),
    Not(Box<ExprNode>),
    IsNull {
        arg: Box<ExprNode>,
        negated: bool,
    },
    /// IS TRUE, IS FALSE; IS UNKNOWN for `None`.
    IsBool {
        arg: Box<ExprNode>,
        value: Option<bool>,
        negated: bool,
    },
    IsDistinct {
        left: Box<ExprNode>,
        right: Box<ExprNode>,
        negated: bool,
    },
    Between {
        arg: Box<ExprNode>,
        low: Box<ExprNode>,
        high: Box<ExprNode>,
        negated: bool,
        symmetric: bool,
    },
    In {
        arg: Box<ExprNode>,
        list: Vec<ExprNode>,
        negated: bool,
    },
    InSubquery {
        arg: Box<ExprNode>,
        query: Box<SubqueryNode>,
        negated: bool,
    },
    /// `left operator ANY (right)`, or ALL.
    Quantified {
        left: Box<ExprNode>,
        operator: Box<str>,
        any: bool,
        right: Box<ExprNode>,
    },
    Cast {
        arg: Box<ExprNode>,
        target: TypeName,
    },
    Call {
        name: Vec<Box<str>>,
        args: Vec<ExprNode>,
    },
    Coalesce(Vec<ExprNode>),
    Greatest(Vec<ExprNode>),
    Least(Vec<ExprNode>),
    NullIf(Box<ExprNode>, Box<ExprNode>),
    Array(Vec<ExprNode>),
    Subscript {
        arg: Box<ExprNode>,
        subscripts: Vec<Subscript>,
    },
    Row(Vec<ExprNode>),
}

/// `SELECT column FROM table WHERE condition`.
#[derive(Debug)]
pub(crate) struct SubqueryNode {
    pub(crate) column_at: usize,
    pub(crate) column: Vec<Box<str>>,
    pub(crate) table_at: usize,
    pub(crate) table: Vec<Box<str>>,
    pub(crate) alias: Option<Box<str>>,
    pub(crate) condition: Option<ExprNode>,
}

/// `[index]` or `[lower:upper]`.
#[derive(Debug)]
pub(crate) enum Subscript {
    Index(ExprNode),
    Slice(Option<ExprNode>, Option<ExprNode>),
}

/// The name of a type as written, with Postgres' name for SQL's own spellings.
#[derive(Debug)]
pub(crate) struct TypeName {
    pub(crate) at: usize,
    pub(crate) name: Box<str>,
    pub(crate) modifiers: Vec<i32>,
    pub(crate) is_array: bool,
}
