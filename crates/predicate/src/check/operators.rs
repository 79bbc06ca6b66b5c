//! Operators, functions, IN, BETWEEN, DISTINCT.

use super::{Checked, Checker, Derived, Typed, boolean, comparison_order, sql_name, undefined, wrong_type};
use crate::ast::{ExprNode, NodeKind};
use crate::builtin::{Builtin, CollationNeed, builtin, collation_need, comparison, is_utc};
use crate::catalog::{BOOL, BPCHAR, CastContext, Oid, Routine, TEXT, UNKNOWN, catalog, is_supported};
use crate::datum::{Datum, Order};
use crate::error::{PredicateError, PredicateErrorKind};
use crate::expr::{BuiltinCall, Comparison, ElementOperator, Expr, Form, Quantified};
use crate::resolve::{Unresolved, common_type, function, operator, polymorphic_types};
use crate::table::Collation;

/// Names of functions that `catalog/functions.txt` has; others may exist in the database.
fn is_known_function(name: &str) -> bool {
    !catalog().functions(name).is_empty()
}

fn has_column(node: &ExprNode) -> bool {
    let mut stack = vec![node];
    while let Some(node) = stack.pop() {
        match &node.kind {
            NodeKind::Column(_) => return true,
            NodeKind::Operator { left, right, .. } => {
                stack.extend(left.as_deref());
                stack.push(right);
            }
            NodeKind::And(items) | NodeKind::Or(items) | NodeKind::Coalesce(items) | NodeKind::Greatest(items) => {
                stack.extend(items);
            }
            NodeKind::Least(items) | NodeKind::Array(items) | NodeKind::Row(items) => stack.extend(items),
            NodeKind::Call { args, .. } => stack.extend(args),
            NodeKind::Not(arg)
            | NodeKind::IsNull { arg, .. }
            | NodeKind::IsBool { arg, .. }
            | NodeKind::Cast { arg, .. } => stack.push(arg),
            NodeKind::IsDistinct { left, right, .. }
            | NodeKind::NullIf(left, right)
            | NodeKind::Quantified { left, right, .. } => {
                stack.extend([&**left, &**right]);
            }
            NodeKind::Between { arg, low, high, .. } => stack.extend([&**arg, &**low, &**high]),
            NodeKind::In { arg, list, .. } => {
                stack.push(arg);
                stack.extend(list);
            }
            // The condition of the subquery has columns of another table.
            NodeKind::InSubquery { arg, .. } => stack.push(arg),
            NodeKind::Subscript { arg, subscripts } => {
                stack.push(arg);
                for subscript in subscripts {
                    match subscript {
                        crate::ast::Subscript::Index(index) => stack.push(index),
                        crate::ast::Subscript::Slice(lower, upper) => stack.extend(lower.iter().chain(upper)),
                    }
                }
            }
            NodeKind::Null | NodeKind::Bool(_) | NodeKind::Number(_) | NodeKind::String(_) | NodeKind::Param(_) => {}
        }
    }
    false
}

/// An operator or function for arguments that are cast to its types.
struct Bound {
    routine: &'static Routine,
    args: Vec<Typed>,
    result: Oid,
    collation: Derived,
}

impl Checker<'_> {
    pub(super) fn operator(&mut self, at: usize, name: &str, left: Option<&ExprNode>, right: &ExprNode) -> Checked {
        if let (NodeKind::Row(_), _) | (_, Some(NodeKind::Row(_))) = (&right.kind, left.map(|left| &left.kind)) {
            return Err(PredicateError::unsupported(at, "the comparison of rows is not supported"));
        }
        let mut args = Vec::with_capacity(2);
        if let Some(left) = left {
            args.push(self.expression(left)?);
        }
        args.push(self.expression(right)?);
        self.apply_operator(at, name, args)
    }

    fn apply_operator(&mut self, at: usize, name: &str, args: Vec<Typed>) -> Checked {
        let bound = self.bind_operator(at, name, args)?;
        self.build(at, bound, |routine| {
            if routine.args.len() == 1 { Form::Prefix(routine.name) } else { Form::Infix(routine.name) }
        })
    }

    fn bind_operator(&mut self, at: usize, name: &str, args: Vec<Typed>) -> Result<Bound, PredicateError> {
        let types: Vec<Oid> = args.iter().map(|arg| arg.oid).collect();
        let shown = || types.iter().map(|oid| sql_name(*oid)).collect::<Vec<_>>();
        let described = || match shown().as_slice() {
            [only] => format!("{name} {only}"),
            list => list.join(&format!(" {name} ")),
        };
        let unknown = types.iter().any(|oid| *oid != UNKNOWN && catalog().type_info(*oid).is_none());
        if unknown {
            let mut message = format!("operator {} is not supported: the type is user-defined", described());
            if let Some(name) = args.iter().find_map(|arg| self.enum_column(&arg.expr)) {
                message += &format!("; compare the enum as text: \"{name}\"::text");
            }
            return Err(PredicateError::unsupported(at, message));
        }
        match operator(name, &types) {
            Ok(routine) => self.bind(at, routine, args),
            Err(Unresolved::None) if catalog().operators(name).is_empty() => {
                Err(PredicateError::unsupported(at, format!("operator {name} is not supported")))
            }
            Err(Unresolved::None) => Err(undefined(at, format!("operator does not exist: {}", described()))),
            Err(Unresolved::Ambiguous) => Err(PredicateError::new(
                PredicateErrorKind::Ambiguous,
                at,
                format!("operator is not unique: {}", described()),
            )),
        }
    }

    /// The name of a column, if its type is an enum.
    fn enum_column(&self, expr: &Expr) -> Option<&str> {
        let Expr::Column(index, _) = expr else { return None };
        let column = self.scope.table.columns().get(*index as usize)?;
        column.column_type().is_enum().then(|| column.name())
    }

    /// Casts the arguments of a routine to its types.
    fn bind(&mut self, at: usize, routine: &'static Routine, args: Vec<Typed>) -> Result<Bound, PredicateError> {
        let types: Vec<Oid> = args.iter().map(|arg| arg.oid).collect();
        let undetermined = || wrong_type(at, "could not determine polymorphic type because input has type unknown");
        let polymorphic = polymorphic_types(&routine.args, &types, false).ok_or_else(undetermined)?;
        let mut collation = Derived::None;
        let mut cast = Vec::with_capacity(args.len());
        for (arg, declared) in args.into_iter().zip(&routine.args) {
            let target = polymorphic.actual(*declared).ok_or_else(undetermined)?;
            let arg = self.coerce(arg, target, CastContext::Implicit)?;
            collation = collation.merge(arg.collation.clone());
            cast.push(arg);
        }
        let result = polymorphic.actual(routine.result).ok_or_else(undetermined)?;
        Ok(Bound { routine, args: cast, result, collation })
    }

    fn unsupported_routine(at: usize, bound: &Bound) -> PredicateError {
        let types: Vec<String> = bound.args.iter().map(|arg| sql_name(arg.oid)).collect();
        let name = bound.routine.name;
        let shown = match (name.starts_with(|c: char| c.is_ascii_alphabetic()), types.as_slice()) {
            (true, _) => format!("function {name}({})", types.join(", ")),
            (false, [only]) => format!("operator {name} {only}"),
            (false, _) => format!("operator {}", types.join(&format!(" {name} "))),
        };
        PredicateError::unsupported(at, format!("{shown} is not supported"))
    }

    /// The comparison that a bound operator is, with the order of its operands.
    fn bound_comparison(&self, at: usize, bound: &Bound) -> Result<Option<(Comparison, Order)>, PredicateError> {
        let Some(operator) = comparison(bound.routine) else { return Ok(None) };
        let supported = bound.args.iter().all(|arg| is_supported(arg.oid));
        let Some(first) = bound.args.first().filter(|_| supported) else {
            return Err(Self::unsupported_routine(at, bound));
        };
        match operator {
            Comparison::Equal | Comparison::NotEqual => self.need_determinism(at, first.oid, &bound.collation)?,
            _ => self.need_byte_order(at, first.oid, &bound.collation)?,
        }
        Ok(Some((operator, comparison_order(first.oid))))
    }

    fn bound_builtin(&self, at: usize, bound: &Bound) -> Result<Builtin, PredicateError> {
        let supported = is_supported(bound.result) && bound.args.iter().all(|arg| is_supported(arg.oid));
        let function = builtin(bound.routine.source, bound.result).filter(|_| supported);
        let Some(function) = function else { return Err(Self::unsupported_routine(at, bound)) };
        let elements = bound.args.first().and_then(|arg| catalog().element(arg.oid));
        let compares_elements = matches!(bound.routine.source, "arraycontains" | "arraycontained" | "arrayoverlap");
        if compares_elements {
            if elements == Some(BPCHAR) {
                return Err(Self::unsupported_routine(at, bound));
            }
            self.need_determinism(at, elements.unwrap_or(TEXT), &bound.collation)?;
        }
        match collation_need(bound.routine.source) {
            CollationNeed::Nothing => {}
            CollationNeed::Deterministic => self.need_determinism(at, TEXT, &bound.collation)?,
            CollationNeed::AsciiCase => {
                self.need(at, TEXT, &bound.collation, "the case of its letters", Collation::has_ascii_case)?;
            }
        }
        Ok(function)
    }

    fn build(&mut self, at: usize, mut bound: Bound, form: impl Fn(&Routine) -> Form) -> Checked {
        let (oid, strict, immutable) = (bound.result, bound.routine.strict, bound.routine.immutable);
        if let Some((operator, order)) = self.bound_comparison(at, &bound)? {
            let (Some(right), Some(left)) = (bound.args.pop(), bound.args.pop()) else {
                return Err(Self::unsupported_routine(at, &bound));
            };
            return Ok(boolean(at, Expr::Compare(operator, order, Box::new((left.expr, right.expr)))));
        }
        if matches!(bound.routine.source, "anytextcat" | "textanycat") {
            return self.text_concatenation(at, bound);
        }
        let builtin = self.bound_builtin(at, &bound)?;
        self.refuse_zone(&bound)?;
        let collation = match (catalog().is_collatable(oid), bound.collation) {
            (false, _) => Derived::None,
            (true, Derived::None) => Derived::Database,
            (true, collation) => collation,
        };
        let args = bound.args.into_iter().map(|arg| arg.expr).collect();
        let call = BuiltinCall { builtin, args, form: form(bound.routine), oid, strict, immutable, at };
        Ok(Typed { expr: Expr::Call(Box::new(call)), oid, at, collation, param: None })
    }

    /// `text || value`: SQL functions with a cast of the value.
    fn text_concatenation(&mut self, at: usize, bound: Bound) -> Checked {
        let mut args = Vec::with_capacity(2);
        for arg in bound.args {
            args.push(self.coerce(arg, TEXT, CastContext::Explicit)?);
        }
        self.apply_operator(at, "||", args)
    }

    /// Zones other than UTC depend on the server's data.
    fn refuse_zone(&self, bound: &Bound) -> Result<(), PredicateError> {
        if !matches!(bound.routine.source, "timestamp_zone" | "timestamptz_zone") {
            return Ok(());
        }
        match bound.args.first() {
            Some(Typed { expr: Expr::Const(Datum::Text(zone), _), .. }) if is_utc(zone) => Ok(()),
            Some(zone) => {
                Err(PredicateError::unsupported(zone.at, "a time zone other than the constant 'UTC' is not supported"))
            }
            None => Ok(()),
        }
    }

    pub(super) fn call(&mut self, at: usize, name: &[Box<str>], args: &[ExprNode]) -> Checked {
        let plain = match name {
            [name] => name,
            [schema, name] if **schema == *"pg_catalog" => name,
            _ => return Err(PredicateError::unsupported(at, format!("function {} is not supported", name.join(".")))),
        };
        if !is_known_function(plain) {
            return Err(PredicateError::unsupported(
                at,
                format!("function {plain}() does not exist or is not supported"),
            ));
        }
        let mut typed = Vec::with_capacity(args.len());
        for arg in args {
            typed.push(self.expression(arg)?);
        }
        if **plain == *"concat" {
            return self.concat(at, typed);
        }
        let types: Vec<Oid> = typed.iter().map(|arg| arg.oid).collect();
        let shown = || format!("{plain}({})", types.iter().map(|oid| sql_name(*oid)).collect::<Vec<_>>().join(", "));
        if types.iter().any(|oid| *oid != UNKNOWN && catalog().type_info(*oid).is_none()) {
            return Err(PredicateError::unsupported(
                at,
                format!("function {} is not supported: the type is user-defined", shown()),
            ));
        }
        match function(plain, &types) {
            // Postgres reads `date(text)` as a cast.
            Ok(Routine { args, .. }) if catalog().type_named(plain).is_some() && **args != *types => {
                Err(PredicateError::unsupported(at, format!("function {} is not supported: write a cast", shown())))
            }
            Err(_) if catalog().type_named(plain).is_some() => {
                Err(PredicateError::unsupported(at, format!("function {} is not supported: write a cast", shown())))
            }
            Ok(routine) => {
                let bound = self.bind(at, routine, typed)?;
                self.build(at, bound, |routine| Form::Function(routine.name))
            }
            Err(Unresolved::None) => Err(undefined(at, format!("function {} does not exist", shown()))),
            Err(Unresolved::Ambiguous) => Err(PredicateError::new(
                PredicateErrorKind::Ambiguous,
                at,
                format!("function {} is not unique", shown()),
            )),
        }
    }

    /// Takes any number of values of any types, and treats NULL as an empty text.
    fn concat(&mut self, at: usize, typed: Vec<Typed>) -> Checked {
        let Some(routine) = catalog().functions("concat").first().filter(|_| !typed.is_empty()) else {
            return Err(undefined(at, "function concat() does not exist"));
        };
        let mut collation = Derived::Database;
        let mut args = Vec::with_capacity(typed.len());
        for value in typed {
            let value = self.output_text(value)?;
            collation = collation.merge(value.collation);
            args.push(value.expr);
        }
        let Some(builtin) = builtin(routine.source, TEXT) else {
            return Err(undefined(at, "function concat() does not exist"));
        };
        let form = Form::Function(routine.name);
        let call = BuiltinCall {
            builtin,
            args: args.into(),
            form,
            oid: TEXT,
            strict: false,
            immutable: routine.immutable,
            at,
        };
        Ok(Typed { expr: Expr::Call(Box::new(call)), oid: TEXT, at, collation, param: None })
    }

    pub(super) fn between(&mut self, at: usize, nodes: [&ExprNode; 3], negated: bool, symmetric: bool) -> Checked {
        let range = |checker: &mut Self, low: &ExprNode, high: &ExprNode| {
            let (lower, upper) = if negated { ("<", ">") } else { (">=", "<=") };
            let from = checker.operator(at, lower, Some(nodes[0]), low)?;
            let to = checker.operator(at, upper, Some(nodes[0]), high)?;
            let both = [checker.as_condition(from, "BETWEEN")?.expr, checker.as_condition(to, "BETWEEN")?.expr];
            Ok(if negated { Expr::Or(both.into()) } else { Expr::And(both.into()) })
        };
        let mut expr = range(self, nodes[1], nodes[2])?;
        if symmetric {
            let both = [expr, range(self, nodes[2], nodes[1])?];
            expr = if negated { Expr::And(both.into()) } else { Expr::Or(both.into()) };
        }
        Ok(boolean(at, expr))
    }

    /// A list of constants is compared as an array; items that read columns are compared one by one.
    pub(super) fn is_in(&mut self, at: usize, arg: &ExprNode, list: &[ExprNode], negated: bool) -> Checked {
        let name = if negated { "<>" } else { "=" };
        if std::iter::once(arg).chain(list).any(|node| matches!(node.kind, NodeKind::Row(_))) {
            return Err(PredicateError::unsupported(at, "a list of rows is not supported"));
        }
        let left = self.expression(arg)?;
        let (mut constants, mut others) = (Vec::new(), Vec::new());
        for node in list {
            let typed = self.expression(node)?;
            if has_column(node) { others.push(typed) } else { constants.push(typed) }
        }
        let mut parts = Vec::new();
        let types: Vec<Oid> = std::iter::once(left.oid).chain(constants.iter().map(|item| item.oid)).collect();
        let common = common_type(&types).filter(|_| constants.len() > 1);
        match common.and_then(|oid| catalog().array_of(oid).map(|array| (oid, array))) {
            Some((element, array)) if is_supported(array) => {
                let items = self.items(constants, element, CastContext::Implicit)?;
                let collation = items.iter().fold(Derived::None, |all, item| all.merge(item.collation.clone()));
                let items = items.into_iter().map(|item| item.expr).collect();
                let right = Typed { expr: Expr::Array(items, array, false), oid: array, at, collation, param: None };
                parts.push(self.quantified(at, left.clone(), name, !negated, right)?.expr);
            }
            Some(_) => return Err(PredicateError::unsupported(at, "a list of values of this type is not supported")),
            None => others = self.in_order(list, constants, others),
        }
        for item in others {
            let part = self.apply_operator(at, name, vec![left.clone(), item])?;
            parts.push(self.as_condition(part, "IN")?.expr);
        }
        self.parts += parts.len();
        let expr = match parts.len() {
            1 => parts.swap_remove(0),
            _ if negated => Expr::And(parts.into()),
            _ => Expr::Or(parts.into()),
        };
        Ok(boolean(at, expr))
    }

    /// Restores the order of a list whose items are all compared one by one.
    fn in_order(&self, list: &[ExprNode], constants: Vec<Typed>, others: Vec<Typed>) -> Vec<Typed> {
        let (mut constants, mut others) = (constants.into_iter(), others.into_iter());
        list.iter().filter_map(|node| if has_column(node) { others.next() } else { constants.next() }).collect()
    }

    pub(super) fn items(
        &mut self,
        items: Vec<Typed>,
        oid: Oid,
        context: CastContext,
    ) -> Result<Vec<Typed>, PredicateError> {
        items.into_iter().map(|item| self.coerce(item, oid, context)).collect()
    }

    /// `left operator ANY (right)`: the operator is chosen for the array's elements.
    pub(super) fn quantified(&mut self, at: usize, left: Typed, name: &str, any: bool, right: Typed) -> Checked {
        let element = match right.oid {
            UNKNOWN => UNKNOWN,
            oid => catalog()
                .element(oid)
                .ok_or_else(|| wrong_type(at, "op ANY/ALL (array) requires array on right side"))?,
        };
        let right_literal = right.oid == UNKNOWN;
        // Stands for an element while the operator is chosen; its value is not read.
        let stand_in = Typed { oid: element, expr: Expr::Element(element), ..right.clone() };
        let types = [left.oid, element];
        let Ok(routine) = operator(name, &types) else {
            let (left, right) = (sql_name(left.oid), sql_name(right.oid));
            return Err(undefined(at, format!("operator does not exist: {left} {name} ANY/ALL ({right})")));
        };
        let polymorphic = polymorphic_types(&routine.args, &types, false);
        let target = polymorphic.and_then(|types| types.actual(routine.args[1])).unwrap_or(UNKNOWN);
        let Some(array) = catalog().array_of(target).filter(|array| is_supported(*array)) else {
            return Err(PredicateError::unsupported(
                at,
                format!("{name} ANY/ALL with elements of type {} is not supported", sql_name(target)),
            ));
        };
        let context = if right_literal { CastContext::Explicit } else { CastContext::Implicit };
        let right = self.coerce(right, array, context)?;
        let stand_in =
            Typed { oid: target, expr: Expr::Element(target), collation: right.collation.clone(), ..stand_in };
        let mut bound = self.bind(at, routine, vec![left, stand_in])?;
        if bound.result != BOOL {
            return Err(wrong_type(at, "op ANY/ALL (array) requires operator to yield boolean"));
        }
        let operator = match self.bound_comparison(at, &bound)? {
            Some((operator, order)) => ElementOperator::Compare(operator, order),
            None => ElementOperator::Call(self.bound_builtin(at, &bound)?, routine.name),
        };
        let left = bound.args.swap_remove(0).expr;
        Ok(boolean(at, Expr::Quantified(Box::new(Quantified { operator, any, left, right: right.expr }))))
    }

    pub(super) fn is_distinct(&mut self, at: usize, left: &ExprNode, right: &ExprNode, negated: bool) -> Checked {
        match (&left.kind, &right.kind) {
            (_, NodeKind::Null) => return self.is_null(at, left, !negated),
            (NodeKind::Null, _) => return self.is_null(at, right, !negated),
            _ => {}
        }
        let args = vec![self.expression(left)?, self.expression(right)?];
        let bound = self.bind_operator(at, "=", args)?;
        let (order, pair) = self.equality(at, bound)?;
        Ok(boolean(at, Expr::IsDistinct(order, Box::new(pair), negated)))
    }

    fn equality(&self, at: usize, mut bound: Bound) -> Result<(Order, (Expr, Expr)), PredicateError> {
        let found = self.bound_comparison(at, &bound)?;
        match (found, bound.args.pop(), bound.args.pop()) {
            (Some((Comparison::Equal, order)), Some(right), Some(left)) => Ok((order, (left.expr, right.expr))),
            _ => Err(Self::unsupported_routine(at, &bound)),
        }
    }

    pub(super) fn null_if(&mut self, at: usize, left: &ExprNode, right: &ExprNode) -> Checked {
        let args = vec![self.expression(left)?, self.expression(right)?];
        let bound = self.bind_operator(at, "=", args)?;
        let (oid, collation) =
            bound.args.first().map_or((UNKNOWN, Derived::None), |arg| (arg.oid, arg.collation.clone()));
        let (order, pair) = self.equality(at, bound)?;
        Ok(Typed { expr: Expr::NullIf(order, Box::new(pair), oid), oid, at, collation, param: None })
    }
}
