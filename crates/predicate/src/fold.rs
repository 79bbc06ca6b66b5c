//! Evaluates constant parts once, as Postgres' planner does (`eval_const_expressions`). Order matters: a part behind
//! `false AND` is not evaluated, and its error does not occur.

use crate::catalog::BOOL;
use crate::datum::Datum;
use crate::error::EvalError;
use crate::eval::{NoRow, evaluate};
use crate::expr::{Expr, ExprSubscript};

/// An error of a constant part, with the offset of its call in the text.
pub(crate) type FoldError = (EvalError, Option<usize>);

type Folded = Result<Expr, FoldError>;

fn null_bool() -> Expr {
    Expr::Const(Datum::Null, BOOL)
}

fn constant_bool(value: bool) -> Expr {
    Expr::Const(Datum::Bool(value), BOOL)
}

/// Folds an expression; errors of parts that are always evaluated are returned.
pub(crate) fn fold(expr: Expr) -> Folded {
    match expr {
        Expr::Const(..) | Expr::Column(..) | Expr::Element(_) => Ok(expr),
        Expr::And(args) => connective(args, false),
        Expr::Or(args) => connective(args, true),
        Expr::Relabel(arg, oid) => Ok(match fold(*arg)? {
            Expr::Const(value, _) => Expr::Const(value, oid),
            arg => Expr::Relabel(Box::new(arg), oid),
        }),
        Expr::Not(arg) => computed(Expr::Not(Box::new(fold(*arg)?))),
        Expr::IsNull(arg, negated) => computed(Expr::IsNull(Box::new(fold(*arg)?), negated)),
        Expr::IsBool(arg, value, negated) => computed(Expr::IsBool(Box::new(fold(*arg)?), value, negated)),
        Expr::Compare(operator, order, pair) => {
            let pair = both(*pair)?;
            if pair.0.is_null_const() || pair.1.is_null_const() {
                return Ok(null_bool());
            }
            computed(Expr::Compare(operator, order, Box::new(pair)))
        }
        Expr::IsDistinct(order, pair, negated) => computed(Expr::IsDistinct(order, Box::new(both(*pair)?), negated)),
        Expr::NullIf(order, pair, oid) => {
            let pair = both(*pair)?;
            // NULL equals no value.
            if pair.0.is_null_const() || pair.1.is_null_const() {
                return Ok(pair.0);
            }
            computed(Expr::NullIf(order, Box::new(pair), oid))
        }
        Expr::CastElements(pair, oid) => {
            let (arg, cast) = *pair;
            let immutable = matches!(&cast, Expr::Call(call) if call.immutable);
            let folded = Expr::CastElements(Box::new((fold(arg)?, cast)), oid);
            if immutable { computed(folded) } else { Ok(folded) }
        }
        Expr::Call(mut call) => {
            call.args = all(call.args)?;
            if call.strict && call.args.iter().any(Expr::is_null_const) {
                return Ok(Expr::Const(Datum::Null, call.oid));
            }
            if call.immutable { computed(Expr::Call(call)) } else { Ok(Expr::Call(call)) }
        }
        Expr::Quantified(mut quantified) => {
            quantified.left = fold(quantified.left)?;
            quantified.right = fold(quantified.right)?;
            computed(Expr::Quantified(quantified))
        }
        Expr::InSubquery(mut query) => {
            query.left = fold(query.left)?;
            Ok(Expr::InSubquery(query))
        }
        Expr::Coalesce(args, oid) => coalesce(args, oid),
        Expr::Extreme(greatest, order, args, oid) => computed(Expr::Extreme(greatest, order, all(args)?, oid)),
        Expr::Array(items, oid, nested) => computed(Expr::Array(all(items)?, oid, nested)),
        Expr::Subscript(mut subscript) => {
            subscript.arg = fold(subscript.arg)?;
            for part in &mut subscript.subscripts {
                fold_subscript(part)?;
            }
            computed(Expr::Subscript(subscript))
        }
    }
}

fn fold_subscript(part: &mut ExprSubscript) -> Result<(), FoldError> {
    let fold_in_place = |bound: &mut Expr| -> Result<(), FoldError> {
        let taken = std::mem::replace(bound, null_bool());
        *bound = fold(taken)?;
        Ok(())
    };
    match part {
        ExprSubscript::Index(index) => fold_in_place(index),
        ExprSubscript::Slice(lower, upper) => [lower, upper].into_iter().flatten().try_for_each(fold_in_place),
    }
}

fn both(pair: (Expr, Expr)) -> Result<(Expr, Expr), FoldError> {
    Ok((fold(pair.0)?, fold(pair.1)?))
}

fn all(args: Box<[Expr]>) -> Result<Box<[Expr]>, FoldError> {
    args.into_iter().map(fold).collect()
}

/// The value of an expression whose parts are all constants.
fn computed(expr: Expr) -> Folded {
    let mut constant = true;
    expr.for_each_child(&mut |child| {
        constant &= child.is_const() || matches!(child, Expr::Call(_)) && is_element_cast(&expr, child);
    });
    if !constant {
        return Ok(expr);
    }
    let at = if let Expr::Call(call) = &expr { Some(call.at) } else { None };
    let oid = type_of(&expr);
    let value = evaluate(&expr, &NoRow).map_err(|error| (error, at))?.into_owned();
    Ok(Expr::Const(value, oid))
}

/// The cast in [`Expr::CastElements`] reads its element, which is not a constant.
fn is_element_cast(expr: &Expr, child: &Expr) -> bool {
    matches!(expr, Expr::CastElements(pair, _) if std::ptr::eq(&pair.1, child))
}

/// The type of an expression.
pub(crate) fn type_of(expr: &Expr) -> u32 {
    match expr {
        Expr::Const(_, oid)
        | Expr::Column(_, oid)
        | Expr::Relabel(_, oid)
        | Expr::Coalesce(_, oid)
        | Expr::Extreme(_, _, _, oid) => *oid,
        Expr::NullIf(_, _, oid) | Expr::Array(_, oid, _) | Expr::CastElements(_, oid) | Expr::Element(oid) => *oid,
        Expr::Call(call) => call.oid,
        Expr::Subscript(subscript) => subscript.oid,
        _ => BOOL,
    }
}

/// AND, or OR if `decisive` is true. A decisive constant ends it; the others vanish, except that NULL stays at the end.
fn connective(args: Box<[Expr]>, decisive: bool) -> Folded {
    let mut kept = Vec::with_capacity(args.len());
    let mut unknown = false;
    for arg in args {
        let arg = fold(arg)?;
        match arg.as_bool() {
            Some(Some(value)) if value == decisive => return Ok(constant_bool(decisive)),
            Some(Some(_)) => {}
            Some(None) => unknown = true,
            None => match (arg, decisive) {
                (Expr::And(inner), false) | (Expr::Or(inner), true) => {
                    unknown |= inner.iter().any(Expr::is_null_const);
                    kept.extend(inner.into_iter().filter(|part| !part.is_null_const()));
                }
                (other, _) => kept.push(other),
            },
        }
    }
    if unknown {
        kept.push(null_bool());
    }
    Ok(match kept.len() {
        0 => constant_bool(!decisive),
        1 => kept.swap_remove(0),
        _ if decisive => Expr::Or(kept.into()),
        _ => Expr::And(kept.into()),
    })
}

fn coalesce(args: Box<[Expr]>, oid: u32) -> Folded {
    let mut kept = Vec::with_capacity(args.len());
    for arg in args {
        let arg = fold(arg)?;
        if arg.is_null_const() {
            continue;
        }
        let last = arg.is_const();
        kept.push(arg);
        if last {
            break;
        }
    }
    Ok(match kept.len() {
        0 => Expr::Const(Datum::Null, oid),
        1 if kept[0].is_const() => kept.swap_remove(0),
        _ => Expr::Coalesce(kept.into(), oid),
    })
}
