//! The checked expression: every node has one type, every cast is explicit.

use crate::builtin::Builtin;
use crate::catalog::{BOOL, Oid};
use crate::datum::{Datum, Order};

/// A comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "<>",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }

    pub(crate) fn holds(self, ordering: std::cmp::Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }
}

/// How a call is written in canonical text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Infix(&'static str),
    Prefix(&'static str),
    Function(&'static str),
    /// A cast of the first argument; further arguments are the type's modifiers.
    Cast,
    /// Only the argument is written: the parser adds the call again.
    Hidden,
}

/// A call of an operator, function or cast.
#[derive(Clone, Debug)]
pub(crate) struct BuiltinCall {
    pub(crate) builtin: Builtin,
    pub(crate) args: Box<[Expr]>,
    pub(crate) form: Form,
    /// Type of the result.
    pub(crate) oid: Oid,
    /// NULL if an argument is NULL.
    pub(crate) strict: bool,
    /// May be evaluated when the predicate is parsed.
    pub(crate) immutable: bool,
    /// Byte offset in the predicate's text.
    pub(crate) at: usize,
}

/// Operator on the elements of `op ANY (array)`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ElementOperator {
    Compare(Comparison, Order),
    Call(Builtin, &'static str),
}

#[derive(Clone, Debug)]
pub(crate) struct Quantified {
    pub(crate) operator: ElementOperator,
    pub(crate) any: bool,
    pub(crate) left: Expr,
    pub(crate) right: Expr,
}

/// `left IN (SELECT …)`.
#[derive(Clone, Debug)]
pub(crate) struct InSubquery {
    pub(crate) left: Expr,
    /// Number of the subquery in the predicate.
    pub(crate) number: u32,
}

/// `[index]`, or `[lower:upper]`.
#[derive(Clone, Debug)]
pub(crate) enum ExprSubscript {
    Index(Expr),
    Slice(Option<Expr>, Option<Expr>),
}

#[derive(Clone, Debug)]
pub(crate) struct SubscriptExpr {
    pub(crate) arg: Expr,
    pub(crate) subscripts: Vec<ExprSubscript>,
    /// Type of the result.
    pub(crate) oid: Oid,
}

#[derive(Clone, Debug)]
pub(crate) enum Expr {
    Const(Datum<'static>, Oid),
    /// A column by its number.
    Column(u32, Oid),
    /// Another type with the same representation.
    Relabel(Box<Self>, Oid),
    Compare(Comparison, Order, Box<(Self, Self)>),
    Call(Box<BuiltinCall>),
    And(Box<[Self]>),
    Or(Box<[Self]>),
    Not(Box<Self>),
    IsNull(Box<Self>, bool),
    /// IS TRUE, IS FALSE, or IS UNKNOWN; negated by the flag.
    IsBool(Box<Self>, Option<bool>, bool),
    /// Negated by the flag.
    IsDistinct(Order, Box<(Self, Self)>, bool),
    Quantified(Box<Quantified>),
    InSubquery(Box<InSubquery>),
    Coalesce(Box<[Self]>, Oid),
    /// The greatest for the flag, else the least.
    Extreme(bool, Order, Box<[Self]>, Oid),
    NullIf(Order, Box<(Self, Self)>, Oid),
    /// A constructor with its array type; arrays of arrays for the flag.
    Array(Box<[Self]>, Oid, bool),
    Subscript(Box<SubscriptExpr>),
    /// The element casts of an array, as a call on each element, to an array type.
    CastElements(Box<(Self, Self)>, Oid),
    /// The element that the cast of [`Self::CastElements`] reads.
    Element(Oid),
}

impl Expr {
    pub(crate) fn is_const(&self) -> bool {
        matches!(self, Self::Const(..))
    }

    pub(crate) fn is_null_const(&self) -> bool {
        matches!(self, Self::Const(Datum::Null, _))
    }

    /// The constant truth value, with NULL as `Some(None)`.
    pub(crate) fn as_bool(&self) -> Option<Option<bool>> {
        match self {
            Self::Const(Datum::Bool(value), _) => Some(Some(*value)),
            Self::Const(Datum::Null, _) => Some(None),
            _ => None,
        }
    }

    /// The expression without changes of the type's name.
    pub(crate) fn without_relabels(&self) -> &Self {
        match self {
            Self::Relabel(arg, _) => arg.without_relabels(),
            other => other,
        }
    }

    /// Whether a part of the expression is a subquery.
    pub(crate) fn has_subquery(&self) -> bool {
        let mut found = matches!(self, Self::InSubquery(_));
        self.for_each_child(&mut |child| found |= child.has_subquery());
        found
    }

    /// A condition without subqueries that is true in every row for which this one is.
    pub(crate) fn without_subqueries(&self) -> Self {
        let any = || Self::Const(Datum::Bool(true), BOOL);
        match self {
            other if !other.has_subquery() => other.clone(),
            Self::And(args) => {
                let args: Vec<Self> = args.iter().map(Self::without_subqueries).collect();
                let mut args: Vec<Self> = args.into_iter().filter(|arg| arg.as_bool() != Some(Some(true))).collect();
                match args.len() {
                    0 => any(),
                    1 => args.remove(0),
                    _ => Self::And(args.into()),
                }
            }
            Self::Or(args) => {
                let args: Vec<Self> = args.iter().map(Self::without_subqueries).collect();
                match args.iter().any(|arg| arg.as_bool() == Some(Some(true))) {
                    true => any(),
                    false => Self::Or(args.into()),
                }
            }
            _ => any(),
        }
    }

    /// Calls `visit` for all direct parts.
    pub(crate) fn for_each_child(&self, visit: &mut dyn FnMut(&Self)) {
        match self {
            Self::Const(..) | Self::Column(..) | Self::Element(_) => {}
            Self::Relabel(arg, _) | Self::Not(arg) | Self::IsNull(arg, _) | Self::IsBool(arg, ..) => visit(arg),
            Self::Compare(_, _, pair)
            | Self::IsDistinct(_, pair, _)
            | Self::NullIf(_, pair, _)
            | Self::CastElements(pair, _) => {
                visit(&pair.0);
                visit(&pair.1);
            }
            Self::Call(call) => call.args.iter().for_each(visit),
            Self::And(args)
            | Self::Or(args)
            | Self::Coalesce(args, _)
            | Self::Extreme(_, _, args, _)
            | Self::Array(args, ..) => {
                args.iter().for_each(visit);
            }
            Self::Quantified(quantified) => {
                visit(&quantified.left);
                visit(&quantified.right);
            }
            Self::InSubquery(query) => visit(&query.left),
            Self::Subscript(subscript) => {
                visit(&subscript.arg);
                for part in &subscript.subscripts {
                    match part {
                        ExprSubscript::Index(index) => visit(index),
                        ExprSubscript::Slice(lower, upper) => {
                            [lower, upper].into_iter().flatten().for_each(&mut *visit);
                        }
                    }
                }
            }
        }
    }
}
