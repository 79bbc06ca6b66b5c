//! The parameters of a request, checked as far as the database is not needed.
//!
//! Names, meanings and texts of errors are those of the open protocol (`electric-api.yaml`), because clients show them.
//! Unknown parameters are ignored: clients add random ones to pass caches.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::handle::{InvalidHandle, ShapeHandle};
use crate::identifier::{TableName, column_list};
use crate::offset::RequestOffset;

/// Limit of parameters `params[n]`.
const PARAMS_MAX: usize = 1000;

/// How updates and deletes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replica {
    /// Key and changed columns.
    #[default]
    Default,
    /// Whole rows, and the old values of changed columns.
    Full,
}

/// The start of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogMode {
    /// A snapshot.
    #[default]
    Full,
    /// Changes only; clients load subsets themselves.
    ChangesOnly,
}

/// How a client waits for changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LiveMode {
    /// Answer immediately.
    #[default]
    No,
    /// Hold the answer until there is data.
    LongPoll,
    /// A stream of server-sent events.
    EventStream,
}

/// The parameters that identify a shape, as written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DefinitionParameters {
    /// The table.
    pub table: TableName,
    /// The predicate.
    pub predicate: Option<String>,
    /// Values of `$1`, `$2` ... in the predicate.
    pub params: Vec<String>,
    /// Selected columns; none means all.
    pub columns: Option<Vec<String>>,
    /// Columns that a client may select, or use in subsets.
    pub queryable_columns: Option<Vec<String>>,
    /// Form of updates and deletes.
    pub replica: Replica,
    /// Whether there is a snapshot.
    pub log: LogMode,
}

/// A part of the shape's rows, read from the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SubsetParameters {
    /// A predicate in addition to the shape's.
    pub predicate: Option<String>,
    /// Values of `$1`, `$2` ... in it.
    pub params: Vec<String>,
    /// Limit of rows.
    pub limit: Option<u64>,
    /// Skipped rows.
    pub offset: Option<u64>,
    /// Order of rows.
    pub order_by: Option<String>,
}

/// A request for a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShapeRequest {
    /// Identifies the shape. Shared, because many clients wait for one shape.
    pub definition: Arc<DefinitionParameters>,
    /// Everything after this is sent.
    pub offset: RequestOffset,
    /// The handle that the client has.
    pub handle: Option<Result<ShapeHandle, InvalidHandle>>,
    /// Whether the request waits for data.
    pub live: LiveMode,
    /// The cursor of the last answer.
    pub cursor: Option<u64>,
    /// A part of the rows instead of the log. In a box, because most requests have none.
    pub subset: Option<Box<SubsetParameters>>,
}

/// A request to delete a shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeleteRequest {
    /// Identifies the shape, if a table was named.
    pub definition: Option<DefinitionParameters>,
    /// The handle.
    pub handle: Option<String>,
}

/// Errors by parameter, for the body of a 400.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParameterErrors(Map<String, Value>);

impl ParameterErrors {
    /// Creates a single error.
    #[must_use]
    pub fn one(field: &str, text: impl Into<String>) -> Self {
        let mut errors = Self::default();
        errors.push(field, text);
        errors
    }

    /// The error of a field of the subset.
    #[must_use]
    pub fn in_subset(field: &str, text: impl Into<String>) -> Self {
        let inner = Self::one(field, text);
        Self(Map::from_iter([("subset".to_owned(), Value::Object(inner.0))]))
    }

    /// The same errors under another parameter.
    #[must_use]
    pub(crate) fn moved(mut self, from: &str, to: &str) -> Self {
        if let Some(texts) = self.0.remove(from) {
            self.0.insert(to.to_owned(), texts);
        }
        self
    }

    /// The body of the answer.
    #[must_use]
    pub fn body(&self) -> String {
        json!({ "message": "Invalid request", "errors": self.0 }).to_string()
    }

    fn push(&mut self, field: &str, text: impl Into<String>) {
        if let Value::Array(texts) = self.0.entry(field).or_insert_with(|| json!([])) {
            texts.push(Value::String(text.into()));
        }
    }

    fn into_result(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}

/// Decoded parameters of a URL in the order of their names; the last of equal names counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryParameters<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

/// Most requests have fewer parameters.
const PARAMETERS_LEN: usize = 8;

impl<'a> QueryParameters<'a> {
    /// Decodes a query string. What needs no decoding is not copied.
    ///
    /// # Errors
    /// If a name or value is not UTF-8, or has a zero byte, which Postgres refuses.
    pub(crate) fn decode(query: &'a str) -> Result<Self, ParameterErrors> {
        let mut pairs = Vec::with_capacity(PARAMETERS_LEN);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name, Plus::Space).ok_or_else(|| ParameterErrors::one("query", "is not valid UTF-8"))?;
            let value = decode(value, Plus::Space).filter(|value| !value.contains('\0'));
            let value = value.ok_or_else(|| ParameterErrors::one(&name, "is invalid"))?;
            pairs.push((name, value));
        }
        pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
        pairs.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                std::mem::swap(later, earlier);
            }
            is_same
        });
        Ok(Self(pairs))
    }

    /// A value by name.
    #[must_use]
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(known, _)| known.as_ref().cmp(name)).ok()?;
        self.0.get(at).map(|(_, value)| value.as_ref())
    }

    /// A value that is not blank.
    fn text(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| !value.trim().is_empty())
    }

    /// The flag is set by its name alone, and by every value but `false`.
    fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value != "false")
    }

    /// The query string with secrets replaced, for logs.
    #[must_use]
    pub(crate) fn redacted(&self) -> String {
        let is_secret = |name: &str| matches!(name, "secret" | "api_secret" | "token" | "password" | "api_key");
        let pairs = self.0.iter().map(|(name, value)| match is_secret(name) {
            true => format!("{name}=[redacted]"),
            false => format!("{name}={value}"),
        });
        pairs.collect::<Vec<_>>().join("&")
    }

    /// `params[1]`, `params[2]` ... without a gap.
    fn numbered(&self) -> Result<Vec<String>, String> {
        let given = self
            .0
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix("params[")?.strip_suffix(']')?, value.as_ref())));
        number(given)
    }
}

/// Values in the order of their numbers, which start at 1.
fn number<'a>(given: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Vec<String>, String> {
    let mut numbered = BTreeMap::new();
    for (key, value) in given {
        let number = key.parse::<usize>().ok().filter(|number| (1..=PARAMS_MAX).contains(number));
        let number = number.ok_or("Parameters can only use numbers as keys")?;
        numbered.insert(number, value.to_owned());
    }
    if numbered.keys().enumerate().any(|(at, number)| at + 1 != *number) {
        return Err("Parameters must be numbered sequentially, starting from 1".to_owned());
    }
    Ok(numbered.into_values().collect())
}

/// Meaning of `+`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plus {
    /// A space, as in a query string.
    Space,
    /// A plus sign, as in a path.
    Plus,
}

/// Decodes percent signs. `None` if the result is not UTF-8. A percent sign without two digits stands for itself, as in browsers.
pub(crate) fn decode(text: &str, plus: Plus) -> Option<Cow<'_, str>> {
    if !text.bytes().any(|byte| byte == b'%' || byte == b'+') {
        return Some(Cow::Borrowed(text));
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'%', [high, low, after @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                out.push(hex_digit(*high) << 4 | hex_digit(*low));
                rest = after;
            }
            (b'+', _) if plus == Plus::Space => out.push(b' '),
            _ => out.push(*first),
        }
    }
    String::from_utf8(out).ok().map(Cow::Owned)
}

fn hex_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

impl DefinitionParameters {
    /// The first stage: forms that need no other parameter.
    fn read(query: &QueryParameters<'_>, errors: &mut ParameterErrors) -> Option<Self> {
        let mut columns = |name: &str| {
            let parsed = query.get(name).map(column_list).transpose();
            parsed.unwrap_or_else(|error| {
                errors.push(name, error);
                None
            })
        };
        let (selected, queryable_columns) = (columns("columns"), columns("queryable_columns"));
        let columns = selected.or_else(|| queryable_columns.clone());
        let replica = match query.text("replica") {
            None | Some("default") => Replica::Default,
            Some("full") => Replica::Full,
            Some(_) => {
                errors.push("replica", "is invalid");
                Replica::Default
            }
        };
        let log = match query.text("log") {
            None | Some("full") => LogMode::Full,
            Some("changes_only") => LogMode::ChangesOnly,
            Some(_) => {
                errors.push("log", "is invalid");
                LogMode::Full
            }
        };
        let params = query.numbered().unwrap_or_else(|error| {
            errors.push("params", error);
            Vec::new()
        });
        let table = TableName::parse(query.text("table")?).map_err(|error| errors.push("table", error)).ok()?;
        let predicate = query.text("where").map(str::to_owned);
        Some(Self { table, predicate, params, columns, queryable_columns, replica, log })
    }
}

impl ShapeRequest {
    /// Checks the parameters of a request. `subset` is the body of a POST.
    ///
    /// # Errors
    /// The first stage with errors: forms, offset, handle, live, table, subset.
    pub(crate) fn read(query: &QueryParameters<'_>, body: Option<SubsetBody>) -> Result<Self, ParameterErrors> {
        let mut errors = ParameterErrors::default();
        let mut table_errors = ParameterErrors::default();
        let definition = DefinitionParameters::read(query, &mut table_errors);
        // A malformed table is reported after the other parameters, when the shape is defined.
        let table_error = table_errors.0.remove("table");
        errors.0.append(&mut table_errors.0);
        let cursor = query.text("cursor").and_then(|cursor| cursor.parse().ok());
        if query.text("offset").is_none() {
            errors.push("offset", "can't be blank");
        }
        errors.into_result()?;
        let offset: RequestOffset = query
            .text("offset")
            .unwrap_or_default()
            .trim()
            .parse()
            .map_err(|error| ParameterErrors::one("offset", crate::offset::InvalidOffset::to_string(&error)))?;
        let is_after = matches!(offset, RequestOffset::After(_));
        // The handle is ignored with -1 and now: the request is for the current shape.
        let handle = query.text("handle").filter(|_| is_after).map(str::parse);
        if is_after && handle.is_none() {
            return Err(ParameterErrors::one("handle", "can't be blank when offset != -1"));
        }
        let live = live_mode(query, offset)?;
        if let Some(error) = table_error {
            return Err(ParameterErrors(Map::from_iter([("table".to_owned(), error)])));
        }
        let definition = definition.ok_or_else(|| ParameterErrors::one("table", "can't be blank"))?;
        let subset = match body {
            Some(body) => body.0,
            None => SubsetParameters::from_query(query)?,
        };
        if let Some(subset) = &subset {
            subset.check()?;
        }
        let (definition, subset) = (Arc::new(definition), subset.map(Box::new));
        Ok(Self { definition, offset, handle, live, cursor, subset })
    }
}

fn live_mode(query: &QueryParameters<'_>, offset: RequestOffset) -> Result<LiveMode, ParameterErrors> {
    let is_stream = query.flag("live_sse") || query.flag("experimental_live_sse");
    if !query.flag("live") {
        let name = if query.flag("live_sse") { "live_sse" } else { "experimental_live_sse" };
        let text = "can't be true unless live is also true";
        return if is_stream { Err(ParameterErrors::one(name, text)) } else { Ok(LiveMode::No) };
    }
    match offset {
        RequestOffset::Start => Err(ParameterErrors::one("live", "can't be true when offset == -1")),
        RequestOffset::Now => Err(ParameterErrors::one("live", "can't be true when offset is 'now'")),
        RequestOffset::After(_) if is_stream => Ok(LiveMode::EventStream),
        RequestOffset::After(_) => Ok(LiveMode::LongPoll),
    }
}

impl DeleteRequest {
    /// Checks the parameters of a DELETE: a definition, a handle, or both (SH-47: read as by GET).
    ///
    /// # Errors
    /// If there is neither, or a parameter is malformed.
    pub(crate) fn read(query: &QueryParameters<'_>) -> Result<Self, ParameterErrors> {
        let mut errors = ParameterErrors::default();
        let definition = DefinitionParameters::read(query, &mut errors);
        errors.into_result()?;
        let handle = query.text("handle").map(str::to_owned);
        if definition.is_none() && handle.is_none() {
            return Err(ParameterErrors::one("handle", "can't be blank when shape definition is missing"));
        }
        Ok(Self { definition, handle })
    }
}

/// The subset in the body of a POST.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SubsetBody(Option<SubsetParameters>);

/// The body of a POST is not what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubsetBodyError {
    /// No JSON.
    #[error("Invalid JSON in request body")]
    Json,
    /// Not an object.
    #[error("Request body must be a JSON object")]
    NotAnObject,
}

impl SubsetBody {
    /// Reads a JSON object with the subset at its top or under `subset`. An empty body has no subset.
    ///
    /// # Errors
    /// [`SubsetBodyError`] in the outer result; errors of fields in the inner one.
    pub(crate) fn read(body: &[u8]) -> Result<Result<Self, ParameterErrors>, SubsetBodyError> {
        if body.trim_ascii().is_empty() {
            return Ok(Ok(Self(None)));
        }
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return Err(SubsetBodyError::Json) };
        let Value::Object(body) = body else { return Err(SubsetBodyError::NotAnObject) };
        let fields = match body.get("subset") {
            Some(Value::Object(inner)) => inner,
            _ => &body,
        };
        Ok(SubsetParameters::from_fields(fields).map(Self))
    }
}

impl SubsetParameters {
    fn from_query(query: &QueryParameters<'_>) -> Result<Option<Self>, ParameterErrors> {
        if !query.0.iter().any(|(name, _)| name.starts_with("subset__")) {
            return Ok(None);
        }
        let names = ["where", "params", "limit", "offset", "order_by"];
        let given = names.iter().filter_map(|name| {
            let value = query.get(&format!("subset__{name}"))?;
            Some(((*name).to_owned(), Value::String(value.to_owned())))
        });
        Self::from_fields(&given.collect())
    }

    fn from_fields(fields: &Map<String, Value>) -> Result<Option<Self>, ParameterErrors> {
        let given = |name: &str| fields.get(name).filter(|value| !value.is_null() && **value != json!(""));
        if ["where", "params", "limit", "offset", "order_by"].iter().all(|name| given(name).is_none()) {
            return Ok(None);
        }
        let invalid = |name: &str| ParameterErrors::in_subset(name, "is invalid");
        let text = |name: &str| match given(name) {
            None => Ok(None),
            Some(Value::String(text)) if !text.contains('\0') => Ok(Some(text.clone())),
            Some(_) => Err(invalid(name)),
        };
        let number = |name: &str, min: i64, text: &str| match given(name) {
            None => Ok(None),
            Some(value) => {
                let number = value.as_i64().or_else(|| value.as_str()?.trim().parse().ok());
                match number.ok_or_else(|| invalid(name))? {
                    number if number >= min => Ok(Some(number.unsigned_abs())),
                    _ => Err(ParameterErrors::in_subset(name, text)),
                }
            }
        };
        Ok(Some(Self {
            predicate: text("where")?,
            params: subset_params(given("params")).map_err(|error| ParameterErrors::in_subset("params", error))?,
            limit: number("limit", 1, "must be greater than 0")?,
            offset: number("offset", 0, "must be greater than or equal to 0")?,
            order_by: text("order_by")?,
        }))
    }

    fn check(&self) -> Result<(), ParameterErrors> {
        let is_partial = self.limit.is_some() || self.offset.is_some();
        if is_partial && self.order_by.is_none() {
            let text = "order_by is required when limit or offset is present";
            return Err(ParameterErrors::in_subset("order_by", text));
        }
        Ok(())
    }
}

/// An object, or the text of one.
fn subset_params(value: Option<&Value>) -> Result<Vec<String>, String> {
    let object = match value {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|_| "params must be valid JSON")?,
        Some(other) => other.clone(),
    };
    let Value::Object(object) = object else { return Err("params must be a JSON object".to_owned()) };
    let mut texts = BTreeMap::new();
    for (key, value) in object {
        let text = match value {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            _ => return Err("params must have string values".to_owned()),
        };
        texts.insert(key, text);
    }
    number(texts.iter().map(|(key, value)| (key.as_str(), value.as_str())))
}

/// A request that was accepted, without a database: its parts as text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestSummary {
    /// The table, quoted for SQL.
    pub table: String,
    /// The order of a subset, rebuilt for SQL.
    pub order_by: Option<String>,
    /// The query string without secrets, as it is logged.
    pub logged: String,
}

/// Reads the query string and the body of a request as the server does, for tools and fuzzing.
///
/// # Errors
/// The body of the answer with status 400.
pub fn read_request(query: &str, body: Option<&[u8]>) -> Result<RequestSummary, String> {
    let parameters = QueryParameters::decode(query).map_err(|errors| errors.body())?;
    let body = body.map(SubsetBody::read).transpose().map_err(|error| error.to_string())?;
    let body = body.transpose().map_err(|errors| errors.body())?;
    let request = ShapeRequest::read(&parameters, body).map_err(|errors| errors.body())?;
    let order_by = request.subset.and_then(|subset| subset.order_by);
    let order_by = order_by.map(|text| crate::order_by::parse(&text, |_| true)).transpose()?;
    Ok(RequestSummary { table: request.definition.table.quoted(), order_by, logged: parameters.redacted() })
}

#[cfg(test)]
mod tests;
