//! Array constructors and subscripts.

use super::{Checked, Checker, Derived, Typed, sql_name, wrong_type};
use crate::ast::{ExprNode, NodeKind, Subscript};
use crate::catalog::{CastContext, INT4, Oid, catalog, is_supported};
use crate::error::PredicateError;
use crate::expr::{Expr, ExprSubscript, SubscriptExpr};
use crate::resolve::common_type;

impl Checker<'_> {
    /// `ARRAY[…]`; `target` is the array type of a cast around it.
    pub(super) fn array(&mut self, at: usize, nodes: &[ExprNode], target: Option<Oid>) -> Checked {
        let mut items = Vec::with_capacity(nodes.len());
        for node in nodes {
            items.push(match (&node.kind, target) {
                (NodeKind::Array(inner), Some(_)) => self.array(node.at, inner, target)?,
                _ => self.expression(node)?,
            });
        }
        let types: Vec<Oid> = items.iter().map(|item| item.oid).collect();
        let nested = types.iter().any(|oid| catalog().element(*oid).is_some());
        let (array, element, context) = match target {
            Some(array) => (array, if nested { Some(array) } else { catalog().element(array) }, CastContext::Explicit),
            None if nodes.is_empty() => return Err(wrong_type(at, "cannot determine type of empty array")),
            None => {
                let common = common_type(&types);
                let common = common.ok_or_else(|| wrong_type(at, "ARRAY types cannot be matched"))?;
                let array = if nested { Some(common) } else { catalog().array_of(common) };
                let array = array.ok_or_else(|| wrong_type(at, format!("no array type for {}", sql_name(common))))?;
                (array, Some(common), CastContext::Implicit)
            }
        };
        let Some(element) = element.filter(|_| is_supported(array)) else {
            return Err(PredicateError::unsupported(at, format!("type {} is not supported", sql_name(array))));
        };
        let items = self.items(items, element, context)?;
        let collation = items.iter().fold(Derived::None, |all, item| all.merge(item.collation.clone()));
        let items = items.into_iter().map(|item| item.expr).collect();
        Ok(Typed { expr: Expr::Array(items, array, nested), oid: array, at, collation, param: None })
    }

    pub(super) fn subscript(&mut self, at: usize, arg: &ExprNode, subscripts: &[Subscript]) -> Checked {
        let arg = self.expression(arg)?;
        let Some(element) = catalog().element(arg.oid) else {
            return Err(wrong_type(
                at,
                format!("cannot subscript type {} because it does not support subscripting", sql_name(arg.oid)),
            ));
        };
        if !is_supported(arg.oid) || subscripts.len() > 6 {
            return Err(PredicateError::unsupported(
                at,
                format!("subscripts of type {} are not supported", sql_name(arg.oid)),
            ));
        }
        let mut parts = Vec::with_capacity(subscripts.len());
        let mut is_slice = false;
        for subscript in subscripts {
            parts.push(match subscript {
                Subscript::Index(index) => ExprSubscript::Index(self.index(index)?),
                Subscript::Slice(lower, upper) => {
                    is_slice = true;
                    let lower = lower.as_ref().map(|bound| self.index(bound)).transpose()?;
                    let upper = upper.as_ref().map(|bound| self.index(bound)).transpose()?;
                    ExprSubscript::Slice(lower, upper)
                }
            });
        }
        let oid = if is_slice { arg.oid } else { element };
        let collation = arg.collation.clone();
        let subscript = SubscriptExpr { arg: arg.expr, subscripts: parts, oid };
        Ok(Typed { expr: Expr::Subscript(Box::new(subscript)), oid, at, collation, param: None })
    }

    fn index(&mut self, node: &ExprNode) -> Result<Expr, PredicateError> {
        let index = self.expression(node)?;
        Ok(self.coerce(index, INT4, CastContext::Assignment)?.expr)
    }
}
