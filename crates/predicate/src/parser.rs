//! Parser of Postgres' expression grammar (`a_expr`, `b_expr` and `c_expr` of `src/backend/parser/gram.y`), by operator
//! precedence.

mod primary;
mod subquery;
mod type_name;

use crate::ast::{ExprNode, NodeKind};
use crate::error::{PredicateError, PredicateErrorKind};
use crate::lexer::{SqlToken, TokenKind, tokens};

/// Bound on the nesting of an expression: later passes recurse.
const HEIGHT_MAX: u16 = 200;

/// Precedences of gram.y, loosest first.
mod precedence {
    pub(super) const OR: u8 = 1;
    pub(super) const AND: u8 = 2;
    pub(super) const NOT: u8 = 3;
    pub(super) const IS: u8 = 4;
    pub(super) const COMPARISON: u8 = 5;
    pub(super) const BETWEEN: u8 = 6;
    pub(super) const OTHER: u8 = 8;
    pub(super) const ADD: u8 = 9;
    pub(super) const MULTIPLY: u8 = 10;
    pub(super) const POWER: u8 = 11;
    pub(super) const AT: u8 = 12;
    pub(super) const COLLATE: u8 = 13;
    pub(super) const SIGN: u8 = 14;
    pub(super) const CAST: u8 = 16;
}

/// Parses a whole text as one expression.
pub(crate) fn parse_expression(text: &str) -> Result<ExprNode, PredicateError> {
    let mut parser = Parser { text, tokens: tokens(text)?, at: 0, depth: 0, tables: Vec::new() };
    let node = parser.expression(0, Grammar::Full)?;
    match parser.peek() {
        TokenKind::End => Ok(node),
        _ => Err(parser.unexpected()),
    }
}

/// Schema and name of the tables in subqueries, each once.
pub(crate) fn tables_in_subqueries(text: &str) -> Result<Vec<Vec<Box<str>>>, PredicateError> {
    let mut parser = Parser { text, tokens: tokens(text)?, at: 0, depth: 0, tables: Vec::new() };
    parser.expression(0, Grammar::Full)?;
    parser.tables.sort_unstable();
    parser.tables.dedup();
    Ok(parser.tables)
}

/// Where an expression stands: between BETWEEN and AND, some operators need parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grammar {
    Full,
    Restricted,
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<SqlToken>,
    at: usize,
    depth: u16,
    /// Names of the tables of subqueries that were read.
    tables: Vec<Vec<Box<str>>>,
}

type Parsed = Result<ExprNode, PredicateError>;

/// The token after an operand.
enum Infix {
    /// A symbol; the flag marks an operator that may not be chained.
    Operator(u8, bool),
    Keyword(u8),
    Cast,
}

fn operator_precedence(name: &str) -> (u8, bool) {
    match name {
        "<" | ">" | "=" | "<=" | ">=" | "<>" => (precedence::COMPARISON, true),
        "+" | "-" => (precedence::ADD, false),
        "*" | "/" | "%" => (precedence::MULTIPLY, false),
        "^" => (precedence::POWER, false),
        _ => (precedence::OTHER, false),
    }
}

impl Parser<'_> {
    fn peek(&self) -> &TokenKind {
        &self.tokens[self.at].kind
    }

    fn peek_at(&self, ahead: usize) -> &TokenKind {
        &self.tokens[(self.at + ahead).min(self.tokens.len() - 1)].kind
    }

    fn start(&self) -> usize {
        self.tokens[self.at].start
    }

    /// Moves to the next token; the last token stays.
    fn advance(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    fn is_word(&self, ahead: usize, word: &str) -> bool {
        matches!(self.peek_at(ahead), TokenKind::Word(found) if **found == *word)
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = self.is_word(0, word);
        if found {
            self.advance();
        }
        found
    }

    fn take_punctuation(&mut self, expected: char) -> bool {
        let found = *self.peek() == TokenKind::Punctuation(expected);
        if found {
            self.advance();
        }
        found
    }

    fn expect_punctuation(&mut self, expected: char) -> Result<(), PredicateError> {
        if self.take_punctuation(expected) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn expect_word(&mut self, word: &str) -> Result<(), PredicateError> {
        if self.take_word(word) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn unexpected(&self) -> PredicateError {
        let token = &self.tokens[self.at];
        let message = match token.kind {
            TokenKind::End => "syntax error at end of input".to_owned(),
            _ => format!("syntax error at or near \"{}\"", &self.text[token.start..token.end]),
        };
        PredicateError::new(PredicateErrorKind::Syntax, token.start, message)
    }

    fn unsupported(&self, what: &str) -> PredicateError {
        PredicateError::unsupported(self.start(), format!("{what} is not supported"))
    }

    fn too_deep(at: usize) -> PredicateError {
        PredicateError::new(PredicateErrorKind::TooComplex, at, format!("more than {HEIGHT_MAX} nested expressions"))
    }

    /// A node above `children`.
    fn node<'n>(
        at: usize,
        children: impl IntoIterator<Item = &'n ExprNode>,
        kind: impl FnOnce() -> NodeKind,
    ) -> Parsed {
        let height = children.into_iter().map(|child| child.height + 1).max().unwrap_or(0);
        Self::node_of_height(at, height, kind())
    }

    fn node_of_height(at: usize, height: u16, kind: NodeKind) -> Parsed {
        if height > HEIGHT_MAX {
            return Err(Self::too_deep(at));
        }
        Ok(ExprNode { at, height, kind })
    }

    fn unary(at: usize, arg: ExprNode, kind: impl FnOnce(Box<ExprNode>) -> NodeKind) -> Parsed {
        let height = arg.height + 1;
        Self::node_of_height(at, height, kind(Box::new(arg)))
    }

    fn binary(
        at: usize,
        left: ExprNode,
        right: ExprNode,
        kind: impl FnOnce(Box<ExprNode>, Box<ExprNode>) -> NodeKind,
    ) -> Parsed {
        let height = left.height.max(right.height) + 1;
        Self::node_of_height(at, height, kind(Box::new(left), Box::new(right)))
    }

    fn list(at: usize, items: Vec<ExprNode>, kind: impl FnOnce(Vec<ExprNode>) -> NodeKind) -> Parsed {
        let height = items.iter().map(|item| item.height + 1).max().unwrap_or(0);
        Self::node_of_height(at, height, kind(items))
    }

    /// An expression whose operators all bind at least as tightly as `minimum`.
    fn expression(&mut self, minimum: u8, grammar: Grammar) -> Parsed {
        self.depth += 1;
        if self.depth > HEIGHT_MAX {
            return Err(Self::too_deep(self.start()));
        }
        let result = self.expression_inner(minimum, grammar);
        self.depth -= 1;
        result
    }

    fn expression_inner(&mut self, minimum: u8, grammar: Grammar) -> Parsed {
        let mut left = self.prefix(grammar)?;
        // Precedence of the operator just parsed, if it may not be chained.
        let mut unchained = None;
        while let Some(infix) = self.infix(grammar) {
            let (strength, single) = match infix {
                Infix::Operator(strength, single) => (strength, single),
                Infix::Keyword(strength) => (strength, matches!(strength, precedence::IS | precedence::BETWEEN)),
                Infix::Cast => (precedence::CAST, false),
            };
            if strength < minimum {
                break;
            }
            if single && unchained == Some(strength) {
                return Err(self.unexpected());
            }
            let complete;
            (left, complete) = match infix {
                Infix::Operator(..) => self.operator(left, strength, grammar)?,
                Infix::Keyword(_) => self.keyword(left, grammar)?,
                Infix::Cast => {
                    let at = self.start();
                    self.advance();
                    let target = self.type_name()?;
                    (Self::unary(at, left, |arg| NodeKind::Cast { arg, target })?, true)
                }
            };
            unchained = (single && !complete).then_some(strength);
        }
        Ok(left)
    }

    fn infix(&self, grammar: Grammar) -> Option<Infix> {
        let word = match self.peek() {
            TokenKind::Operator(name) => {
                let (strength, single) = operator_precedence(name);
                return Some(Infix::Operator(strength, single));
            }
            TokenKind::TypeCast => return Some(Infix::Cast),
            TokenKind::Word(word) => &**word,
            _ => return None,
        };
        let full = grammar == Grammar::Full;
        let negatable = |word: &str| matches!(word, "between" | "in" | "like" | "ilike" | "similar");
        Some(match word {
            "or" if full => Infix::Keyword(precedence::OR),
            "and" if full => Infix::Keyword(precedence::AND),
            "is" if full || self.is_distinct() => Infix::Keyword(precedence::IS),
            "isnull" | "notnull" if full => Infix::Keyword(precedence::IS),
            "not" if full && matches!(self.peek_at(1), TokenKind::Word(next) if negatable(next)) => {
                Infix::Keyword(precedence::BETWEEN)
            }
            _ if full && negatable(word) => Infix::Keyword(precedence::BETWEEN),
            "operator" if *self.peek_at(1) == TokenKind::Punctuation('(') => Infix::Keyword(precedence::OTHER),
            "at" if full => Infix::Keyword(precedence::AT),
            "collate" if full => Infix::Keyword(precedence::COLLATE),
            _ => return None,
        })
    }

    fn is_distinct(&self) -> bool {
        let not = usize::from(self.is_word(1, "not"));
        self.is_word(1 + not, "distinct")
    }

    /// NOT, signs and prefix operators, or a primary expression.
    fn prefix(&mut self, grammar: Grammar) -> Parsed {
        let at = self.start();
        match self.peek().clone() {
            TokenKind::Word(word) if *word == *"not" && grammar == Grammar::Full => {
                self.advance();
                let arg = self.expression(precedence::NOT, grammar)?;
                Self::unary(at, arg, NodeKind::Not)
            }
            TokenKind::Operator(name) if *name == *"-" || *name == *"+" => {
                self.advance();
                let mut arg = self.expression(precedence::SIGN, grammar)?;
                if let (NodeKind::Number(digits), "-") = (&mut arg.kind, &*name) {
                    *digits = match digits.strip_prefix('-') {
                        Some(positive) => positive.into(),
                        None => format!("-{digits}").into(),
                    };
                    return Ok(ExprNode { at, ..arg });
                }
                Self::unary(at, arg, |right| NodeKind::Operator { name, left: None, right })
            }
            TokenKind::Operator(name) if operator_precedence(&name).0 == precedence::OTHER => {
                self.advance();
                let arg = self.expression(precedence::OTHER + 1, grammar)?;
                Self::unary(at, arg, |right| NodeKind::Operator { name, left: None, right })
            }
            _ => self.primary(),
        }
    }

    /// `left operator right` or `left operator ANY (…)`. The flag marks a construct that ends with a token of its
    /// own, after which an operator that may not be chained may follow.
    fn operator(&mut self, left: ExprNode, strength: u8, grammar: Grammar) -> Result<(ExprNode, bool), PredicateError> {
        let at = self.start();
        let TokenKind::Operator(name) = self.peek().clone() else { return Err(self.unexpected()) };
        self.advance();
        if grammar == Grammar::Full
            && let Some(any) = self.quantifier()
        {
            return Ok((self.quantified(at, left, name, any)?, true));
        }
        let right = self.expression(strength + 1, grammar)?;
        Ok((Self::binary(at, left, right, |left, right| NodeKind::Operator { name, left: Some(left), right })?, false))
    }

    fn quantifier(&self) -> Option<bool> {
        let any = self.is_word(0, "any") || self.is_word(0, "some");
        (any || self.is_word(0, "all")).then_some(any)
    }

    fn quantified(&mut self, at: usize, left: ExprNode, operator: Box<str>, any: bool) -> Parsed {
        self.advance();
        self.expect_punctuation('(')?;
        self.refuse_subquery()?;
        let right = self.expression(0, Grammar::Full)?;
        self.expect_punctuation(')')?;
        Self::binary(at, left, right, |left, right| NodeKind::Quantified { left, operator, any, right })
    }

    fn refuse_subquery(&self) -> Result<(), PredicateError> {
        let mut ahead = 0;
        while *self.peek_at(ahead) == TokenKind::Punctuation('(') {
            ahead += 1;
        }
        let starts = ["select", "values", "with", "table"].iter().any(|word| self.is_word(ahead, word));
        if starts { Err(self.unsupported("a subquery outside of column IN (SELECT …)")) } else { Ok(()) }
    }

    /// An operator that starts with a word. The flag is that of [`Self::operator`].
    fn keyword(&mut self, left: ExprNode, grammar: Grammar) -> Result<(ExprNode, bool), PredicateError> {
        let at = self.start();
        let TokenKind::Word(word) = self.peek().clone() else { return Err(self.unexpected()) };
        if *word == *"operator" {
            return Err(self.unsupported("OPERATOR()"));
        }
        self.advance();
        match &*word {
            "or" | "and" => Ok((self.connective(at, left, &word)?, false)),
            "is" => self.is_test(at, left, grammar),
            "isnull" | "notnull" => {
                let negated = *word == *"notnull";
                Ok((Self::unary(at, left, |arg| NodeKind::IsNull { arg, negated })?, true))
            }
            "at" => {
                self.expect_word("time")?;
                self.expect_word("zone")?;
                let zone = self.expression(precedence::AT + 1, grammar)?;
                let args = vec![zone, left];
                Ok((Self::list(at, args, |args| NodeKind::Call { name: vec!["timezone".into()], args })?, false))
            }
            "collate" => Err(PredicateError::unsupported(at, "COLLATE is not supported")),
            "not" => {
                let TokenKind::Word(word) = self.peek().clone() else { return Err(self.unexpected()) };
                self.advance();
                self.between_in_like(at, left, &word, true)
            }
            _ => self.between_in_like(at, left, &word, false),
        }
    }

    /// `a AND b AND c` is one node, so that long chains are not deep.
    fn connective(&mut self, at: usize, left: ExprNode, word: &str) -> Parsed {
        let strength = if word == "or" { precedence::OR } else { precedence::AND };
        let right = self.expression(strength + 1, Grammar::Full)?;
        let height = left.height.max(right.height + 1);
        match (left.kind, word) {
            (NodeKind::Or(mut items), "or") => {
                items.push(right);
                Self::node_of_height(left.at, height, NodeKind::Or(items))
            }
            (NodeKind::And(mut items), "and") => {
                items.push(right);
                Self::node_of_height(left.at, height, NodeKind::And(items))
            }
            (kind, _) => {
                let items = vec![ExprNode { kind, ..left }, right];
                Self::list(at, items, if word == "or" { NodeKind::Or } else { NodeKind::And })
            }
        }
    }

    fn is_test(&mut self, at: usize, left: ExprNode, grammar: Grammar) -> Result<(ExprNode, bool), PredicateError> {
        let negated = self.take_word("not");
        if self.is_word(0, "distinct") {
            self.advance();
            self.expect_word("from")?;
            let right = self.expression(precedence::IS + 1, grammar)?;
            let node = Self::binary(at, left, right, |left, right| NodeKind::IsDistinct { left, right, negated })?;
            return Ok((node, false));
        }
        let TokenKind::Word(word) = self.peek().clone() else { return Err(self.unexpected()) };
        let value = match &*word {
            "null" => {
                self.advance();
                return Ok((Self::unary(at, left, |arg| NodeKind::IsNull { arg, negated })?, true));
            }
            "true" => Some(true),
            "false" => Some(false),
            "unknown" => None,
            "document" | "json" | "normalized" | "nfc" | "nfd" | "nfkc" | "nfkd" => {
                return Err(self.unsupported(&format!("IS {}", word.to_uppercase())));
            }
            _ => return Err(self.unexpected()),
        };
        self.advance();
        Ok((Self::unary(at, left, |arg| NodeKind::IsBool { arg, value, negated })?, true))
    }

    fn between_in_like(
        &mut self,
        at: usize,
        left: ExprNode,
        word: &str,
        negated: bool,
    ) -> Result<(ExprNode, bool), PredicateError> {
        match word {
            "between" => {
                let symmetric = self.take_word("symmetric");
                if !symmetric {
                    self.take_word("asymmetric");
                }
                let low = self.expression(0, Grammar::Restricted)?;
                self.expect_word("and")?;
                let high = self.expression(precedence::BETWEEN + 1, Grammar::Full)?;
                let height = left.height.max(low.height).max(high.height) + 1;
                let (arg, low, high) = (Box::new(left), Box::new(low), Box::new(high));
                let kind = NodeKind::Between { arg, low, high, negated, symmetric };
                Ok((Self::node_of_height(at, height, kind)?, false))
            }
            "in" => {
                self.expect_punctuation('(')?;
                if self.is_word(0, "select") {
                    return Ok((self.in_subquery(at, left, negated)?, true));
                }
                self.refuse_subquery()?;
                let list = self.expressions(')')?;
                let height = list.iter().map(|item| item.height).max().unwrap_or(0).max(left.height) + 1;
                Ok((Self::node_of_height(at, height, NodeKind::In { arg: Box::new(left), list, negated })?, true))
            }
            "like" | "ilike" => self.like(at, left, word == "ilike", negated),
            _ => Err(PredicateError::unsupported(at, "SIMILAR TO is not supported")),
        }
    }

    fn like(
        &mut self,
        at: usize,
        left: ExprNode,
        insensitive: bool,
        negated: bool,
    ) -> Result<(ExprNode, bool), PredicateError> {
        let name = match (insensitive, negated) {
            (false, false) => "~~",
            (false, true) => "!~~",
            (true, false) => "~~*",
            (true, true) => "!~~*",
        };
        if let Some(any) = self.quantifier() {
            return Ok((self.quantified(at, left, name.into(), any)?, true));
        }
        let mut pattern = self.expression(precedence::BETWEEN + 1, Grammar::Full)?;
        if self.take_word("escape") {
            let escape = self.expression(precedence::BETWEEN + 1, Grammar::Full)?;
            let call = |args| NodeKind::Call { name: vec!["like_escape".into()], args };
            pattern = Self::list(at, vec![pattern, escape], call)?;
        }
        let operator = |left, right| NodeKind::Operator { name: name.into(), left: Some(left), right };
        Ok((Self::binary(at, left, pattern, operator)?, false))
    }

    /// A list of expressions that ends with `close`; it is not empty.
    fn expressions(&mut self, close: char) -> Result<Vec<ExprNode>, PredicateError> {
        let mut items = Vec::new();
        loop {
            items.push(self.expression(0, Grammar::Full)?);
            if self.take_punctuation(close) {
                return Ok(items);
            }
            self.expect_punctuation(',')?;
        }
    }
}
