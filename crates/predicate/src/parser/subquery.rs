//! `column IN (SELECT column FROM table WHERE …)`.

use super::{Grammar, Parsed, Parser};
use crate::ast::{ExprNode, NodeKind, SubqueryNode};
use crate::error::PredicateError;
use crate::keywords::is_column_name;
use crate::lexer::TokenKind;

/// Clauses that may follow in Postgres.
const CLAUSES: [&str; 11] =
    ["group", "having", "window", "union", "intersect", "except", "order", "limit", "offset", "fetch", "for"];
const JOINS: [&str; 7] = ["join", "inner", "left", "right", "full", "cross", "natural"];

impl Parser<'_> {
    /// The rest of `left IN (`.
    pub(super) fn in_subquery(&mut self, at: usize, left: ExprNode, negated: bool) -> Parsed {
        let query = self.subquery()?;
        let height = query.condition.as_ref().map_or(0, |condition| condition.height).max(left.height) + 1;
        let kind = NodeKind::InSubquery { arg: Box::new(left), query: Box::new(query), negated };
        Self::node_of_height(at, height, kind)
    }

    /// A subquery and the parenthesis after it.
    fn subquery(&mut self) -> Result<SubqueryNode, PredicateError> {
        self.expect_word("select")?;
        if self.is_word(0, "distinct") || self.is_word(0, "all") {
            return Err(self.unsupported("DISTINCT or ALL in a subquery"));
        }
        let column_at = self.start();
        let column = self.dotted_name("an expression in the list of a subquery")?;
        match self.peek() {
            TokenKind::Punctuation(',') => return Err(self.unsupported("a subquery of several columns")),
            TokenKind::Word(word) if **word == *"from" => self.advance(),
            TokenKind::Punctuation(')') => return Err(self.unsupported("a subquery without FROM")),
            _ => return Err(self.unsupported("an expression in the list of a subquery")),
        }
        // Rows of tables that inherit from it are not in its stream of changes.
        self.take_word("only");
        let table_at = self.start();
        let table = self.dotted_name("a subquery of anything but a table")?;
        let alias = self.alias();
        let condition = if self.take_word("where") { Some(self.expression(0, Grammar::Full)?) } else { None };
        let next = match self.peek() {
            TokenKind::Punctuation(')') => {
                self.advance();
                self.tables.push(table.clone());
                return Ok(SubqueryNode { column_at, column, table_at, table, alias, condition });
            }
            TokenKind::Punctuation(',') => "join".into(),
            TokenKind::Word(word) => word.clone(),
            _ => return Err(self.unexpected()),
        };
        if JOINS.contains(&&*next) {
            return Err(self.unsupported("a join in a subquery"));
        }
        if CLAUSES.contains(&&*next) {
            return Err(self.unsupported(&format!("{} in a subquery", next.to_uppercase())));
        }
        Err(self.unexpected())
    }

    /// `name` or `name.name`; `other` names what stands there instead.
    fn dotted_name(&mut self, other: &str) -> Result<Vec<Box<str>>, PredicateError> {
        let mut names = Vec::new();
        loop {
            match self.peek().clone() {
                TokenKind::Quoted(name) => names.push(name),
                TokenKind::Word(name) if is_column_name(&name) || !names.is_empty() => names.push(name),
                _ => return Err(self.unsupported(other)),
            }
            self.advance();
            match self.peek() {
                TokenKind::Punctuation('.') => self.advance(),
                TokenKind::Punctuation('(') => return Err(self.unsupported(other)),
                _ => return Ok(names),
            }
        }
    }

    fn alias(&mut self) -> Option<Box<str>> {
        let is_named = self.take_word("as");
        let alias = match self.peek().clone() {
            TokenKind::Quoted(name) => name,
            TokenKind::Word(name) if is_named || is_column_name(&name) && !JOINS.contains(&&*name) => name,
            _ => return None,
        };
        self.advance();
        Some(alias)
    }
}
