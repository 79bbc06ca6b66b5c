//! Casts: of literals by their context, implicit ones, and those of `::`.

use super::{Checked, Checker, Derived, Typed, sql_name, undefined, wrong_type};
use crate::ast::{ExprNode, NodeKind, TypeName};
use crate::builtin::{Builtin, builtin, reads_text_exactly};
use crate::catalog::{
    BPCHAR, CastContext, INT4, INTERVAL, NAME, NUMERIC, Oid, TEXT, UNKNOWN, VARCHAR, catalog, is_supported,
};
use crate::datum::Datum;
use crate::error::{EvalError, PredicateError, PredicateErrorKind};
use crate::eval::{NoRow, evaluate};
use crate::expr::{BuiltinCall, Expr, Form};
use crate::output::{has_text_form, writes_text_exactly};
use crate::resolve::{CastPath, cast_path};

const NUMERIC_PRECISION_MAX: i32 = 1000;
const LENGTH_MAX: i32 = 10_485_760;

/// Whether an expression reads no column.
fn is_constant(expr: &Expr) -> bool {
    let mut constant = !matches!(expr, Expr::Column(..) | Expr::Element(_));
    expr.for_each_child(&mut |child| constant &= is_constant(child));
    constant
}

impl Checker<'_> {
    /// Casts a value, or reads a literal as the target type.
    pub(super) fn coerce(&mut self, value: Typed, target: Oid, context: CastContext) -> Checked {
        if value.oid == target {
            return Ok(value);
        }
        let at = value.at;
        if value.oid == UNKNOWN {
            self.note_param(&value, target)?;
            let datum = match &value.expr {
                Expr::Const(Datum::Text(text), _) => Self::read_literal(at, text, target)?,
                _ if !is_supported(target) => {
                    return Err(PredicateError::unsupported(at, format!("type {} is not supported", sql_name(target))));
                }
                _ => Datum::Null,
            };
            let collation = Self::own_collation(target);
            return Ok(Typed { expr: Expr::Const(datum, target), oid: target, at, collation, param: None });
        }
        if catalog().type_info(value.oid).is_none() && !self.is_enum(value.oid) {
            return Err(Self::unsupported_cast(at, value.oid, target, ""));
        }
        let Some(path) = self.path(value.oid, target, context) else {
            let message = format!("cannot cast type {} to {}", sql_name(value.oid), sql_name(target));
            return Err(undefined(at, message));
        };
        let collation = match (catalog().is_collatable(target), &value.collation) {
            (false, _) => Derived::None,
            (true, Derived::None) => Self::own_collation(target),
            (true, collation) => collation.clone(),
        };
        let expr = Self::cast_expr(at, value.expr, value.oid, target, path)?;
        Ok(Typed { expr, oid: target, at, collation, param: None })
    }

    /// The collation of a type without a text argument.
    fn own_collation(oid: Oid) -> Derived {
        match oid {
            NAME => Derived::Explicit(crate::table::Collation::c()),
            _ if catalog().is_collatable(oid) => Derived::Database,
            _ => Derived::None,
        }
    }

    /// A parameter has one type, wherever it stands.
    fn note_param(&mut self, value: &Typed, target: Oid) -> Result<(), PredicateError> {
        let Some(slot) = value.param.and_then(|index| self.param_types.get_mut(index)) else { return Ok(()) };
        let known = *slot.get_or_insert(target);
        if known == target {
            return Ok(());
        }
        let number = value.param.unwrap_or(0) + 1;
        let message = format!("parameter ${number} has types {} and {}", sql_name(known), sql_name(target));
        Err(PredicateError::new(PredicateErrorKind::BadParameter, value.at, message))
    }

    fn is_enum(&self, oid: Oid) -> bool {
        self.scope.table.columns.iter().any(|column| column.column_type.oid() == oid && column.column_type.is_enum())
    }

    fn path(&self, from: Oid, to: Oid, context: CastContext) -> Option<CastPath> {
        let enum_to_text = self.is_enum(from) && [TEXT, VARCHAR, BPCHAR, NAME].contains(&to);
        if enum_to_text && context >= CastContext::Assignment {
            Some(CastPath::Text)
        } else {
            cast_path(from, to, context)
        }
    }

    fn unsupported_cast(at: usize, from: Oid, to: Oid, why: &str) -> PredicateError {
        let message = format!("the cast of type {} to {} is not supported{why}", sql_name(from), sql_name(to));
        PredicateError::unsupported(at, message)
    }

    fn cast_expr(at: usize, arg: Expr, from: Oid, to: Oid, path: CastPath) -> Result<Expr, PredicateError> {
        let call = |arg, builtin, oid, immutable| {
            Expr::Call(Box::new(BuiltinCall {
                builtin,
                args: [arg].into(),
                form: Form::Cast,
                oid,
                strict: true,
                immutable,
                at,
            }))
        };
        if !is_supported(to) {
            return Err(Self::unsupported_cast(at, from, to, ""));
        }
        match path {
            CastPath::Relabel => Ok(Expr::Relabel(Box::new(arg), to)),
            CastPath::Function(source, immutable) => match builtin(source, to) {
                Some(function) if is_supported(from) => Ok(call(arg, function, to, immutable)),
                _ => Err(Self::unsupported_cast(at, from, to, "")),
            },
            CastPath::Elements => Self::element_casts(at, arg, from, to),
            CastPath::Text => {
                let is_text = |oid| [TEXT, VARCHAR, BPCHAR, NAME].contains(&oid);
                if is_text(to) {
                    if !has_text_form(from) {
                        return Err(Self::unsupported_cast(at, from, to, ": the text depends on IntervalStyle"));
                    }
                    // Values of enums are held as text; other types that are not supported come with casts of their own.
                    let known = is_supported(from) || catalog().type_info(from).is_none();
                    let target = if to == NAME { TEXT } else { to };
                    let written = known.then(|| call(arg, Builtin::ToText(from), target, writes_text_exactly(from)));
                    let written = written.ok_or_else(|| Self::unsupported_cast(at, from, to, ""))?;
                    let cut = (to == NAME).then(|| builtin("text_name", NAME)).flatten();
                    return Ok(match cut {
                        Some(function) => call(written, function, NAME, true),
                        None => written,
                    });
                }
                let immutable = reads_text_exactly(to);
                let expr = if is_constant(&arg) || immutable {
                    call(arg, Builtin::FromText(to), to, immutable)
                } else {
                    return Err(Self::unsupported_cast(at, from, to, " unless the text is a constant"));
                };
                Self::refuse_unknown_form(at, &expr)?;
                Ok(expr)
            }
        }
    }

    /// A constant text in a form that is not known is refused now, and not when a row comes.
    fn refuse_unknown_form(at: usize, expr: &Expr) -> Result<(), PredicateError> {
        if !is_constant(expr) {
            return Ok(());
        }
        match evaluate(expr, &NoRow) {
            Err(error @ (EvalError::Unsupported(_) | EvalError::UnknownForm { .. })) => {
                Err(PredicateError::unsupported(at, error.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn element_casts(at: usize, arg: Expr, from: Oid, to: Oid) -> Result<Expr, PredicateError> {
        let elements = catalog().element(from).zip(catalog().element(to));
        let Some((from_element, to_element)) = elements.filter(|_| is_supported(from)) else {
            return Err(Self::unsupported_cast(at, from, to, ""));
        };
        let Some(path) = cast_path(from_element, to_element, CastContext::Explicit) else {
            return Err(Self::unsupported_cast(at, from, to, ""));
        };
        if path == CastPath::Relabel {
            return Ok(Expr::Relabel(Box::new(arg), to));
        }
        let cast = Self::cast_expr(at, Expr::Element(from_element), from_element, to_element, path)?;
        Ok(Expr::CastElements(Box::new((arg, cast)), to))
    }

    /// `arg::type`, CAST, and typed literals.
    pub(super) fn cast(&mut self, at: usize, arg: &ExprNode, target: &TypeName) -> Checked {
        let scalar = catalog().type_named(&target.name).filter(|oid| is_supported(*oid));
        let Some(scalar) = scalar else {
            let message = format!("type \"{}\" does not exist or is not supported", target.name);
            return Err(PredicateError::unsupported(target.at, message));
        };
        let oid = if target.is_array { catalog().array_of(scalar) } else { Some(scalar) };
        let Some(oid) = oid else {
            return Err(PredicateError::unsupported(
                target.at,
                format!("an array of type {} is not supported", target.name),
            ));
        };
        let value = match &arg.kind {
            // The elements are cast one by one, and `ARRAY[]` gets its type.
            NodeKind::Array(items) if catalog().element(oid).is_some() => self.array(arg.at, items, Some(oid))?,
            _ => self.expression(arg)?,
        };
        let mut value = self.coerce(value, oid, CastContext::Explicit)?;
        value.at = at;
        if target.modifiers.is_empty() {
            return Ok(value);
        }
        if target.is_array {
            return Err(PredicateError::unsupported(target.at, "a cast to an array with a length is not supported"));
        }
        self.limit(value, target)
    }

    /// The second step of a cast to `varchar(n)`, `char(n)` or `numeric(p,s)`.
    fn limit(&mut self, value: Typed, target: &TypeName) -> Checked {
        let source = match value.oid {
            VARCHAR => "varchar",
            BPCHAR => "bpchar",
            NUMERIC => "numeric",
            oid => {
                let message = format!("a precision of type {} is not supported", sql_name(oid));
                return Err(PredicateError::unsupported(target.at, message));
            }
        };
        let modifiers = match (value.oid, target.modifiers.as_slice()) {
            (NUMERIC, [precision]) if (1..=NUMERIC_PRECISION_MAX).contains(precision) => vec![*precision, 0],
            (NUMERIC, [precision, scale])
                if (1..=NUMERIC_PRECISION_MAX).contains(precision) && (0..=*precision).contains(scale) =>
            {
                vec![*precision, *scale]
            }
            (VARCHAR | BPCHAR, [len]) if (1..=LENGTH_MAX).contains(len) => vec![*len],
            (oid, _) => {
                let message = format!("the length or precision of type {} is not supported", sql_name(oid));
                return Err(PredicateError::unsupported(target.at, message));
            }
        };
        let Some(function) = builtin(source, value.oid) else {
            return Err(wrong_type(target.at, format!("type {} has no length", sql_name(value.oid))));
        };
        let mut args = vec![value.expr];
        args.extend(modifiers.into_iter().map(|number| Expr::Const(Datum::Int(number.into()), INT4)));
        let call = BuiltinCall {
            builtin: function,
            args: args.into(),
            form: Form::Cast,
            oid: value.oid,
            strict: true,
            immutable: true,
            at: value.at,
        };
        Ok(Typed { expr: Expr::Call(Box::new(call)), ..value })
    }

    /// The text of a value as `concat()` writes it.
    pub(super) fn output_text(&mut self, value: Typed) -> Checked {
        if value.oid == UNKNOWN || value.oid == TEXT {
            return self.coerce(value, TEXT, CastContext::Implicit);
        }
        let (at, oid) = (value.at, value.oid);
        if oid == INTERVAL || !has_text_form(oid) || !(is_supported(oid) || self.is_enum(oid)) {
            return Err(Self::unsupported_cast(at, oid, TEXT, ""));
        }
        let collation = if value.collation == Derived::None { Derived::Database } else { value.collation };
        let call = BuiltinCall {
            builtin: Builtin::ToText(oid),
            args: [value.expr].into(),
            form: Form::Hidden,
            oid: TEXT,
            strict: true,
            immutable: writes_text_exactly(oid),
            at,
        };
        Ok(Typed { expr: Expr::Call(Box::new(call)), oid: TEXT, at, collation, param: None })
    }
}
