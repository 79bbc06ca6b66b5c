//! Classification, normalisation and redaction of SQL statement texts, without a parser and without a catalog.
//!
//! A pooler has to answer a few questions about a statement before it forwards it: does it change session state ([`classify`]),
//! which statements differ only in their literals ([`normalize`], as in `pg_stat_statements`), and which parts of a text or an
//! error may contain a password or a value ([`redact`], [`error_values`]). Every function accepts any bytes, never fails, and
//! errs on the safe side: an unknown construct counts as session state, and an unterminated string counts as a secret.
//!
//! ```
//! use tidegate_sql::{classify, normalize, redact};
//!
//! assert!(classify::classify(b"select 1").is_plain());
//! assert!(!classify::classify(b"listen events").is_plain());
//!
//! let mut text = Vec::new();
//! normalize::normalize(b"SELECT * FROM t WHERE id IN (1, 2)", &mut text);
//! assert_eq!(text, b"select * from t where id in(?)");
//!
//! let logged = redact::without_passwords(b"alter role app password 'secret'");
//! assert_eq!(&*logged, b"alter role app password ***");
//! ```

pub mod cache;
pub mod classify;
pub mod error_values;
mod lexical;
pub mod normalize;
pub mod normalized;
pub mod redact;
mod template;
pub mod trace_parent;

/// Identifies a shared prepared statement: the first 16 bytes of a SHA-256 over everything that enters its analysis, so that no
/// client can construct a collision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatementDigest(pub [u8; 16]);
