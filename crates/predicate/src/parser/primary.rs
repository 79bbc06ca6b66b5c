//! Literals, columns, calls, arrays, rows and parentheses.

use super::{Grammar, Parsed, Parser};
use crate::ast::{ExprNode, NodeKind, Subscript};
use crate::error::PredicateError;
use crate::keywords::{is_column_name, is_function_name};
use crate::lexer::TokenKind;

impl Parser<'_> {
    pub(super) fn primary(&mut self) -> Parsed {
        let at = self.start();
        let kind = match self.peek().clone() {
            TokenKind::Integer(digits) | TokenKind::Decimal(digits) => NodeKind::Number(digits),
            TokenKind::String(value) => NodeKind::String(value),
            TokenKind::Param(number) => {
                self.advance();
                let param = Self::node(at, [], || NodeKind::Param(number))?;
                return self.subscripts(param);
            }
            TokenKind::Punctuation('(') => return self.parentheses(at),
            TokenKind::Quoted(name) => {
                self.advance();
                return self.named(at, name);
            }
            TokenKind::Word(word) => return self.word(at, word),
            _ => return Err(self.unexpected()),
        };
        self.advance();
        Self::node(at, [], || kind)
    }

    fn parentheses(&mut self, at: usize) -> Parsed {
        self.refuse_subquery()?;
        self.advance();
        let mut items = self.expressions(')')?;
        if items.len() > 1 {
            return Self::list(at, items, NodeKind::Row);
        }
        let Some(inner) = items.pop() else { return Err(self.unexpected()) };
        // `(a AND b) AND c` becomes one list here, unlike in gram.y. The value is the same.
        self.subscripts(inner)
    }

    /// A word that is not quoted: a keyword's construct, a typed literal, a call or a column.
    fn word(&mut self, at: usize, word: Box<str>) -> Parsed {
        if let Some(kind) = constant(&word) {
            self.advance();
            return Self::node(at, [], || kind);
        }
        let called = *self.peek_at(1) == TokenKind::Punctuation('(');
        match &*word {
            "cast" => return self.cast(at),
            "array" => return self.array(at),
            "row" if called => {
                self.advance();
                self.advance();
                let items = if self.take_punctuation(')') { Vec::new() } else { self.expressions(')')? };
                return Self::list(at, items, NodeKind::Row);
            }
            "coalesce" | "greatest" | "least" | "nullif" if called => return self.special_call(at, &word),
            "case" => return Err(self.unsupported("CASE")),
            "exists" if called => return Err(self.unsupported("EXISTS (SELECT …)")),
            "current_date" | "current_time" | "current_timestamp" | "localtime" | "localtimestamp" => {
                return Err(self.unsupported(&format!("{}, whose value changes,", word.to_uppercase())));
            }
            "current_user" | "current_role" | "session_user" | "user" | "current_catalog" | "current_schema" => {
                return Err(self.unsupported(&word.to_uppercase()));
            }
            "extract" | "overlay" | "position" | "substring" | "trim" | "treat" | "normalize" | "collation"
                if called =>
            {
                return Err(self.unsupported(&format!("{word}()")));
            }
            "grouping" if called => return Err(self.unsupported("GROUPING")),
            _ => {}
        }
        if called && (word.starts_with("xml") || word.starts_with("json_")) {
            return Err(self.unsupported(&format!("{word}()")));
        }
        if let Some(literal) = self.typed_literal(at, &word)? {
            return Ok(literal);
        }
        if called && is_function_name(&word) || is_column_name(&word) || self.is_qualified_function(&word) {
            self.advance();
            return self.named(at, word);
        }
        Err(self.unexpected())
    }

    fn is_qualified_function(&self, word: &str) -> bool {
        is_column_name(word) && *self.peek_at(1) == TokenKind::Punctuation('.')
    }

    /// `date '2020-01-01'`, `timestamp with time zone '…'`.
    fn typed_literal(&mut self, at: usize, word: &str) -> Result<Option<ExprNode>, PredicateError> {
        let before = self.at;
        let generic = is_function_name(word) && matches!(self.peek_at(1), TokenKind::String(_));
        if !generic && !Self::starts_sql_type(word) {
            return Ok(None);
        }
        let Ok(target) = self.constant_type_name() else {
            self.at = before;
            return Ok(None);
        };
        let TokenKind::String(value) = self.peek().clone() else {
            self.at = before;
            return Ok(None);
        };
        let literal = Self::node(self.start(), [], || NodeKind::String(value))?;
        self.advance();
        if *target.name == *"interval"
            && ["year", "month", "day", "hour", "minute", "second"].iter().any(|unit| self.is_word(0, unit))
        {
            return Err(self.unsupported("a field after an interval literal"));
        }
        Self::unary(at, literal, |arg| NodeKind::Cast { arg, target }).map(Some)
    }

    /// A name that starts at `at` and was passed: a column or a call.
    fn named(&mut self, at: usize, first: Box<str>) -> Parsed {
        let mut names = vec![first];
        while *self.peek() == TokenKind::Punctuation('.') {
            self.advance();
            match self.peek().clone() {
                TokenKind::Word(name) | TokenKind::Quoted(name) => names.push(name),
                TokenKind::Operator(star) if *star == *"*" => return Err(self.unsupported("a whole row")),
                _ => return Err(self.unexpected()),
            }
            self.advance();
        }
        if self.take_punctuation('(') {
            return self.call(at, names);
        }
        if matches!(self.peek(), TokenKind::String(_)) {
            return Err(self.unexpected());
        }
        let column = Self::node(at, [], || NodeKind::Column(names))?;
        self.subscripts(column)
    }

    fn call(&mut self, at: usize, name: Vec<Box<str>>) -> Parsed {
        if matches!(self.peek(), TokenKind::Operator(star) if **star == *"*") {
            return Err(self.unsupported("an aggregate function"));
        }
        for word in ["variadic", "distinct", "all"] {
            if self.is_word(0, word) {
                return Err(self.unsupported(&format!("{} in a call", word.to_uppercase())));
            }
        }
        let args = if self.take_punctuation(')') { Vec::new() } else { self.expressions(')')? };
        let clause = self.is_word(0, "over") || self.is_word(0, "filter") || self.is_word(0, "within");
        if clause && !matches!(self.peek_at(1), TokenKind::End) {
            return Err(self.unsupported("an aggregate or window function"));
        }
        Self::list(at, args, |args| NodeKind::Call { name, args })
    }

    fn special_call(&mut self, at: usize, word: &str) -> Parsed {
        self.advance();
        self.advance();
        let mut args = self.expressions(')')?;
        match word {
            "coalesce" => Self::list(at, args, NodeKind::Coalesce),
            "greatest" => Self::list(at, args, NodeKind::Greatest),
            "least" => Self::list(at, args, NodeKind::Least),
            _ => match (args.pop(), args.pop(), args.pop()) {
                (Some(right), Some(left), None) => Self::binary(at, left, right, NodeKind::NullIf),
                _ => Err(self.unexpected()),
            },
        }
    }

    fn cast(&mut self, at: usize) -> Parsed {
        self.advance();
        self.expect_punctuation('(')?;
        let arg = self.expression(0, Grammar::Full)?;
        self.expect_word("as")?;
        let target = self.type_name()?;
        self.expect_punctuation(')')?;
        Self::unary(at, arg, |arg| NodeKind::Cast { arg, target })
    }

    fn array(&mut self, at: usize) -> Parsed {
        self.advance();
        if *self.peek() == TokenKind::Punctuation('(') {
            return Err(self.unsupported("a subquery outside of column IN (SELECT …)"));
        }
        self.array_items(at)
    }

    /// `[1, 2]`, and in it `[[1], [2]]`.
    fn array_items(&mut self, at: usize) -> Parsed {
        self.depth += 1;
        if self.depth > super::HEIGHT_MAX {
            return Err(Self::too_deep(at));
        }
        self.expect_punctuation('[')?;
        let mut items = Vec::new();
        if !self.take_punctuation(']') {
            let nested = *self.peek() == TokenKind::Punctuation('[');
            loop {
                let at = self.start();
                items.push(if nested { self.array_items(at)? } else { self.expression(0, Grammar::Full)? });
                if self.take_punctuation(']') {
                    break;
                }
                self.expect_punctuation(',')?;
            }
        }
        self.depth -= 1;
        Self::list(at, items, NodeKind::Array)
    }

    fn subscripts(&mut self, arg: ExprNode) -> Parsed {
        if *self.peek() == TokenKind::Punctuation('.') {
            return Err(self.unsupported("a field of a composite value"));
        }
        let at = self.start();
        let mut subscripts = Vec::new();
        let mut height = arg.height + 1;
        while self.take_punctuation('[') {
            let lower = if *self.peek() == TokenKind::Punctuation(':') {
                None
            } else {
                Some(self.expression(0, Grammar::Full)?)
            };
            height = height.max(lower.as_ref().map_or(0, |node| node.height + 1));
            if self.take_punctuation(':') {
                let upper = if *self.peek() == TokenKind::Punctuation(']') {
                    None
                } else {
                    Some(self.expression(0, Grammar::Full)?)
                };
                height = height.max(upper.as_ref().map_or(0, |node| node.height + 1));
                subscripts.push(Subscript::Slice(lower, upper));
            } else {
                subscripts.push(Subscript::Index(lower.ok_or_else(|| self.unexpected())?));
            }
            self.expect_punctuation(']')?;
        }
        if subscripts.is_empty() {
            return Ok(arg);
        }
        Self::node_of_height(at, height, NodeKind::Subscript { arg: Box::new(arg), subscripts })
    }
}

fn constant(word: &str) -> Option<NodeKind> {
    match word {
        "true" => Some(NodeKind::Bool(true)),
        "false" => Some(NodeKind::Bool(false)),
        "null" => Some(NodeKind::Null),
        _ => None,
    }
}
