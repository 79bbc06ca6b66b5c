//! Names of types, with SQL's own spellings.

use super::Parser;
use crate::ast::TypeName;
use crate::error::PredicateError;
use crate::keywords::is_function_name;
use crate::lexer::TokenKind;

/// SQL's spellings of one word; `char` and the like have a length of 1 if none is given.
fn sql_type(word: &str) -> Option<&'static str> {
    Some(match word {
        "int" | "integer" => "int4",
        "smallint" => "int2",
        "bigint" => "int8",
        "real" => "float4",
        "boolean" => "bool",
        "decimal" | "dec" | "numeric" => "numeric",
        "float" => "float",
        "double" => "float8",
        "character" | "char" => "bpchar",
        "varchar" => "varchar",
        "timestamp" => "timestamp",
        "time" => "time",
        "interval" => "interval",
        _ => return None,
    })
}

impl Parser<'_> {
    /// Whether a word starts a type of SQL's own grammar.
    pub(super) fn starts_sql_type(word: &str) -> bool {
        sql_type(word).is_some() && word != "double" || matches!(word, "double" | "bit" | "national" | "nchar")
    }

    /// The type of a cast: a name, `[]`.
    pub(super) fn type_name(&mut self) -> Result<TypeName, PredicateError> {
        let mut target = self.constant_type_name()?;
        if self.take_word("array") {
            target.is_array = true;
            if self.take_punctuation('[') {
                self.array_bound(false)?;
            }
        }
        while self.take_punctuation('[') {
            target.is_array = true;
            self.array_bound(true)?;
        }
        Ok(target)
    }

    fn array_bound(&mut self, may_be_empty: bool) -> Result<(), PredicateError> {
        if matches!(self.peek(), TokenKind::Integer(_)) {
            self.advance();
        } else if !may_be_empty {
            return Err(self.unexpected());
        }
        self.expect_punctuation(']')
    }

    /// The type of a typed literal.
    pub(super) fn constant_type_name(&mut self) -> Result<TypeName, PredicateError> {
        let at = self.start();
        let (word, quoted) = match self.peek().clone() {
            TokenKind::Word(word) => (word, false),
            TokenKind::Quoted(name) => (name, true),
            _ => return Err(self.unexpected()),
        };
        if !quoted && matches!(&*word, "bit" | "national" | "nchar" | "setof") {
            return Err(self.unsupported(&format!("type {word}")));
        }
        let known = if quoted { None } else { sql_type(&word) };
        if known.is_none() && !quoted && !is_function_name(&word) {
            return Err(self.unexpected());
        }
        self.advance();
        let mut target =
            TypeName { at, name: known.map_or(word.clone(), Into::into), modifiers: Vec::new(), is_array: false };
        match (&*word, known) {
            ("double", Some(_)) => {
                if !self.take_word("precision") {
                    target.name = word;
                }
            }
            ("character" | "char", Some(_)) => {
                if self.take_word("varying") {
                    target.name = "varchar".into();
                }
                self.modifiers(&mut target)?;
                if target.modifiers.is_empty() && *target.name == *"bpchar" {
                    target.modifiers.push(1);
                }
            }
            ("float", Some(_)) => self.float(&mut target)?,
            ("timestamp" | "time", Some(_)) => {
                self.modifiers(&mut target)?;
                self.time_zone(&mut target)?;
            }
            ("int" | "integer" | "smallint" | "bigint" | "real" | "boolean", Some(_)) => {}
            (_, Some(_)) => self.modifiers(&mut target)?,
            (_, None) => {
                if self.take_punctuation('.') {
                    self.qualified(&mut target)?;
                }
                self.modifiers(&mut target)?;
            }
        }
        Ok(target)
    }

    /// `pg_catalog.int4`; other schemas hold types that are not known.
    fn qualified(&mut self, target: &mut TypeName) -> Result<(), PredicateError> {
        match self.peek().clone() {
            TokenKind::Word(name) | TokenKind::Quoted(name) if *target.name == *"pg_catalog" => target.name = name,
            TokenKind::Word(_) | TokenKind::Quoted(_) => return Err(self.unsupported("a type of a schema")),
            _ => return Err(self.unexpected()),
        }
        self.advance();
        Ok(())
    }

    fn float(&mut self, target: &mut TypeName) -> Result<(), PredicateError> {
        self.modifiers(target)?;
        target.name = match target.modifiers.as_slice() {
            [] | [25..=53] => "float8".into(),
            [1..=24] => "float4".into(),
            _ => {
                return Err(PredicateError::unsupported(target.at, "precision of type float must be between 1 and 53"));
            }
        };
        target.modifiers.clear();
        Ok(())
    }

    fn modifiers(&mut self, target: &mut TypeName) -> Result<(), PredicateError> {
        if *self.peek() != TokenKind::Punctuation('(') {
            return Ok(());
        }
        self.advance();
        loop {
            let negative = matches!(self.peek(), TokenKind::Operator(minus) if **minus == *"-");
            if negative {
                self.advance();
            }
            let TokenKind::Integer(digits) = self.peek().clone() else { return Err(self.unexpected()) };
            let number: i32 = digits.parse().map_err(|_| self.unexpected())?;
            target.modifiers.push(if negative { -number } else { number });
            self.advance();
            if self.take_punctuation(')') {
                return Ok(());
            }
            self.expect_punctuation(',')?;
        }
    }

    fn time_zone(&mut self, target: &mut TypeName) -> Result<(), PredicateError> {
        let with = self.is_word(0, "with") && self.is_word(1, "time");
        let without = self.is_word(0, "without") && self.is_word(1, "time");
        if with || without {
            self.advance();
            self.advance();
            self.expect_word("zone")?;
        }
        if with {
            target.name = format!("{}tz", target.name).into();
        }
        Ok(())
    }
}
