//! Checks definitions: parameters and the catalogue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustc_hash::FxHashMap;
use tidegate_predicate::{
    Collation, Column, ColumnType, Predicate, ServerPredicate, Subquery, Table, parse_for_server, parse_with,
    subquery_tables,
};

use crate::database::{Catalogue, CatalogueError, ConnectionError, DatabaseInfo};
use crate::definition::{DefinitionKey, InnerTables, ShapeDefinition};
use crate::identifier::TableName;
use crate::parameters::{DefinitionParameters, ParameterErrors};
use crate::row_form::RowForm;
use crate::table::{CollationInfo, TableInfo};

/// Definitions that are remembered; the map is emptied when it is full.
const KNOWN_MAX: usize = 4000;

/// A definition and what evaluates it.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The definition.
    pub definition: Arc<ShapeDefinition>,
    /// The predicate.
    pub predicate: Arc<Predicate>,
}

/// A definition cannot be checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// The parameters are wrong.
    #[error("invalid parameters")]
    Parameters(ParameterErrors),
    /// The database cannot be asked.
    #[error("{0}")]
    Unavailable(String),
}

impl From<CatalogueError> for DefinitionError {
    fn from(error: CatalogueError) -> Self {
        match error {
            CatalogueError::Table(text) => Self::Parameters(ParameterErrors::one("table", text)),
            CatalogueError::Query(text) => Self::Unavailable(text),
        }
    }
}

impl From<ConnectionError> for DefinitionError {
    fn from(error: ConnectionError) -> Self {
        Self::Unavailable(error.to_string())
    }
}

/// Remembers tables, forms and definitions, until the catalogue changes.
#[derive(Debug, Default)]
pub(crate) struct DefinitionResolver {
    known: Mutex<KnownDefinitions>,
}

#[derive(Debug, Default)]
struct KnownDefinitions {
    database: Option<Arc<DatabaseInfo>>,
    definitions: FxHashMap<Arc<DefinitionParameters>, Resolved>,
    tables: FxHashMap<TableName, (Arc<TableInfo>, Arc<Table>)>,
    forms: FxHashMap<(u32, Vec<usize>), Weak<RowForm>>,
}

impl DefinitionResolver {
    /// Sets the properties of the database.
    pub(crate) fn set_database(&self, database: DatabaseInfo) {
        self.lock().database = Some(Arc::new(database));
    }

    /// Properties of the database, after the first connection.
    #[must_use]
    pub(crate) fn database(&self) -> Option<Arc<DatabaseInfo>> {
        self.lock().database.clone()
    }

    /// Forgets all tables: a definition has changed.
    pub(crate) fn clear(&self) {
        let mut known = self.lock();
        // Not cleared: a full map would keep its memory.
        known.definitions = FxHashMap::default();
        known.tables.clear();
        known.forms.clear();
    }

    /// A definition that was checked before.
    #[must_use]
    pub(crate) fn known(&self, parameters: &DefinitionParameters) -> Option<Resolved> {
        self.lock().definitions.get(parameters).cloned()
    }

    /// A definition that was checked before, and its parameters as all requests share them.
    #[must_use]
    pub(crate) fn shared(&self, parameters: &DefinitionParameters) -> Option<(Arc<DefinitionParameters>, Resolved)> {
        let known = self.lock();
        let (parameters, resolved) = known.definitions.get_key_value(parameters)?;
        Some((Arc::clone(parameters), resolved.clone()))
    }

    /// Checks a definition; `None` if the table is not known.
    ///
    /// # Errors
    /// [`DefinitionError`].
    pub(crate) fn resolve(&self, parameters: &DefinitionParameters) -> Option<Result<Resolved, DefinitionError>> {
        if let Some(found) = self.known(parameters) {
            return Some(Ok(found));
        }
        let (table, predicate_table) = self.lock().tables.get(&parameters.table).cloned()?;
        let mut inner = Vec::new();
        for name in tables_of_subqueries(parameters) {
            inner.push(self.lock().tables.get(&name).cloned()?);
        }
        Some(self.check(parameters, &table, &predicate_table, &inner))
    }

    /// Reads the tables of a definition that are not known.
    ///
    /// # Errors
    /// [`DefinitionError`].
    pub(crate) async fn load(
        &self,
        parameters: &DefinitionParameters,
        catalogue: Catalogue<'_>,
    ) -> Result<(), DefinitionError> {
        self.load_table(&parameters.table, Catalogue(catalogue.0)).await?;
        for name in tables_of_subqueries(parameters) {
            let is_known = self.lock().tables.contains_key(&name);
            if is_known {
                continue;
            }
            self.load_table(&name, Catalogue(catalogue.0)).await.map_err(|error| match error {
                DefinitionError::Parameters(errors) => DefinitionError::Parameters(errors.moved("table", "where")),
                other => other,
            })?;
        }
        Ok(())
    }

    fn check(
        &self,
        parameters: &DefinitionParameters,
        table: &Arc<TableInfo>,
        predicate_table: &Arc<Table>,
        inner: &[(Arc<TableInfo>, Arc<Table>)],
    ) -> Result<Resolved, DefinitionError> {
        let columns = select(table, parameters).map_err(|text| ParameterErrors::one("columns", text));
        let columns = columns.map_err(DefinitionError::Parameters)?;
        let predicate = self.predicate(parameters, predicate_table, inner).map_err(DefinitionError::Parameters)?;
        let wrong = |text| DefinitionError::Parameters(ParameterErrors::one("where", text));
        check_columns(table, &predicate.columns()).map_err(wrong)?;
        let mut tables = Vec::new();
        for subquery in predicate.subqueries() {
            let found = inner.iter().find(|(_, table)| Arc::ptr_eq(table, subquery.table()));
            let (table, _) = found.ok_or_else(|| wrong("the table of a subquery is not known".to_owned()))?;
            check_columns(table, &subquery.columns()).map_err(wrong)?;
            tables.push(Arc::clone(table));
        }
        let inner = (!tables.is_empty()).then(|| Arc::new(InnerTables(tables)));
        let form = self.form(table, columns);
        let text = parameters.predicate.as_ref().map(|_| predicate.shared_text());
        let (replica, log) = (parameters.replica, parameters.log);
        let definition = Arc::new(ShapeDefinition { form, predicate: text, replica, log, inner });
        let resolved = Resolved { definition, predicate };
        let mut known = self.lock();
        if known.definitions.len() >= KNOWN_MAX {
            known.definitions.clear();
        }
        known.definitions.insert(Arc::new(parameters.clone()), resolved.clone());
        Ok(resolved)
    }

    /// A definition of an earlier process. `None` if the table does not have it.
    #[must_use]
    pub(crate) fn restore(
        &self,
        key: &DefinitionKey,
        table: &Arc<TableInfo>,
        inner: Vec<Arc<TableInfo>>,
    ) -> Option<ShapeDefinition> {
        let columns = key.columns.iter().map(|name| table.position(name)).collect::<Option<Vec<_>>>()?;
        let form = self.form(table, columns);
        Some(ShapeDefinition {
            form,
            predicate: key.predicate.as_deref().map(Into::into),
            replica: key.replica,
            log: key.log,
            inner: (!inner.is_empty()).then(|| Arc::new(InnerTables(inner))),
        })
    }

    /// The predicate of a definition of an earlier process.
    ///
    /// # Errors
    /// If the predicate cannot be evaluated any more.
    pub(crate) fn restore_predicate(&self, definition: &ShapeDefinition) -> Result<Arc<Predicate>, String> {
        let database = self.database().ok_or("the database has not been reached")?;
        let table = self.predicate_table(&definition.form.table, &database);
        match &definition.predicate {
            None => Ok(Arc::new(Predicate::always_true(&table))),
            Some(text) => {
                let inner = definition.inner_tables();
                let tables: Vec<Arc<Table>> =
                    inner.iter().map(|table| self.predicate_table(table, &database)).collect();
                let predicate = parse_with(text, &[], &table, &tables).map_err(|error| error.to_string())?;
                let is_same = |(subquery, table): (&Subquery, &Arc<TableInfo>)| {
                    let name = (subquery.table().schema(), subquery.table().name());
                    name == (&*table.name.schema, &*table.name.table)
                };
                let subqueries = predicate.subqueries();
                if subqueries.len() != inner.len() || !subqueries.iter().zip(inner).all(is_same) {
                    return Err("the tables of its subqueries are not known".to_owned());
                }
                Ok(Arc::new(predicate.with_text(text)))
            }
        }
    }

    /// Parses the predicate of a subset, which the database evaluates.
    ///
    /// # Errors
    /// The text for the client.
    pub(crate) fn parse(
        &self,
        text: &str,
        params: &[String],
        definition: &ShapeDefinition,
    ) -> Result<ServerPredicate, String> {
        let database = self.database().ok_or("the database has not been reached")?;
        let table = self.predicate_table(&definition.form.table, &database);
        let params: Vec<Option<&str>> = params.iter().map(|param| Some(param.as_str())).collect();
        if subquery_tables(text).is_ok_and(|tables| !tables.is_empty()) {
            return Err("a subquery is not supported in the predicate of a subset".to_owned());
        }
        parse_for_server(text, &params, &table).map_err(|error| error.to_string())
    }

    /// Reads the definition of a table from the catalogue.
    ///
    /// # Errors
    /// [`DefinitionError`].
    pub(crate) async fn load_table(&self, name: &TableName, catalogue: Catalogue<'_>) -> Result<(), DefinitionError> {
        let database = match self.database() {
            Some(database) => database,
            None => Arc::new(catalogue.database().await?),
        };
        let Some(table) = catalogue.table(name).await? else {
            let text = format!(
                "Table {} does not exist. If the table name contains capitals or special characters you must quote it.",
                name.quoted()
            );
            return Err(DefinitionError::Parameters(ParameterErrors::one("table", text)));
        };
        let table = Arc::new(table);
        let predicate_table = self.predicate_table(&table, &database);
        self.lock().tables.insert(name.clone(), (table, predicate_table));
        Ok(())
    }

    fn predicate_table(&self, table: &Arc<TableInfo>, database: &DatabaseInfo) -> Arc<Table> {
        if let Some((known, found)) = self.lock().tables.get(&table.name)
            && (Arc::ptr_eq(known, table) || **known == **table)
        {
            return Arc::clone(found);
        }
        let columns = table.columns.iter().map(|column| {
            let column_type = match column.is_enum {
                true => ColumnType::enumeration(column.base_type_oid),
                false => ColumnType::from_oid(column.base_type_oid),
            };
            let described = Column::new(&column.name, column_type);
            match &column.collation {
                Some(info) => described.with_collation(collation(info)),
                None => described,
            }
        });
        let default = collation(&database.collation);
        let made = Table::new(&table.name.schema, &table.name.table, columns.collect(), default);
        let made = Arc::new(if table.is_partitioned() { made.with_partitions() } else { made });
        self.lock().tables.insert(table.name.clone(), (Arc::clone(table), Arc::clone(&made)));
        made
    }

    fn predicate(
        &self,
        parameters: &DefinitionParameters,
        table: &Arc<Table>,
        inner: &[(Arc<TableInfo>, Arc<Table>)],
    ) -> Result<Arc<Predicate>, ParameterErrors> {
        let Some(text) = &parameters.predicate else { return Ok(Arc::new(Predicate::always_true(table))) };
        let is_utf8 = self.database().is_none_or(|database| database.encoding == "UTF8");
        if !is_utf8 {
            return Err(ParameterErrors::one("where", "is supported in databases with encoding UTF8 only"));
        }
        let params: Vec<Option<&str>> = parameters.params.iter().map(|param| Some(param.as_str())).collect();
        let tables: Vec<Arc<Table>> = inner.iter().map(|(_, table)| Arc::clone(table)).collect();
        let parsed = parse_with(text, &params, table, &tables);
        parsed.map(Arc::new).map_err(|error| ParameterErrors::one("where", error.to_string()))
    }

    fn form(&self, table: &Arc<TableInfo>, mut columns: Vec<usize>) -> Arc<RowForm> {
        columns.sort_unstable();
        columns.dedup();
        let mut known = self.lock();
        let key = (table.oid, columns);
        let found = known.forms.get(&key).and_then(Weak::upgrade).filter(|form| *form.table == **table);
        found.unwrap_or_else(|| {
            let form = Arc::new(RowForm::new(Arc::clone(table), key.1.clone()));
            known.forms.insert(key, Arc::downgrade(&form));
            form
        })
    }

    /// A holder that panicked left consistent maps: each section makes one change.
    fn lock(&self) -> MutexGuard<'_, KnownDefinitions> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn collation(info: &CollationInfo) -> Collation {
    match info.locale.as_str() {
        _ if !info.is_deterministic => Collation::nondeterministic(&info.name),
        "C" | "POSIX" => Collation::c(),
        "C.UTF-8" | "C.UTF8" | "C.utf8" => Collation::code_points(&info.name),
        _ => Collation::language(&info.name),
    }
}

/// The tables in the subqueries of a predicate. A text that cannot be read has none, and is refused when it is parsed.
pub(crate) fn tables_of_subqueries(parameters: &DefinitionParameters) -> Vec<TableName> {
    let names = parameters.predicate.as_deref().and_then(|text| subquery_tables(text).ok()).unwrap_or_default();
    let names = names.into_iter().filter_map(|name| match name.as_slice() {
        [table] => Some(TableName { schema: "public".to_owned(), table: table.to_string() }),
        [schema, table] => Some(TableName { schema: schema.to_string(), table: table.to_string() }),
        _ => None,
    });
    names.collect()
}

/// Refuses generated columns: they are not in the stream.
fn check_columns(table: &TableInfo, positions: &[usize]) -> Result<(), String> {
    let mut columns = positions.iter().filter_map(|position| table.columns.get(*position));
    match columns.find(|column| column.is_generated) {
        Some(column) => Err(format!("column {} is generated and cannot be used in the predicate", column.name)),
        None => Ok(()),
    }
}

/// The positions of the selected columns.
fn select(table: &TableInfo, parameters: &DefinitionParameters) -> Result<Vec<usize>, String> {
    let missing = |names: &[String]| -> Vec<String> {
        let key = table.key_columns().into_iter().map(|position| table.columns[position].name.clone());
        key.filter(|name| !names.contains(name)).collect()
    };
    let unknown = |names: &[String]| -> Vec<String> {
        names.iter().filter(|name| table.position(name).is_none()).cloned().collect()
    };
    let check = |names: &[String]| match (missing(names), unknown(names)) {
        (missing, _) if !missing.is_empty() => {
            Err(format!("The list of columns must include all primary key columns, missing: {}", missing.join(", ")))
        }
        (_, unknown) if !unknown.is_empty() => {
            Err(format!("The following columns are not found on the table: {}", unknown.join(", ")))
        }
        _ => Ok(()),
    };
    if let Some(queryable) = &parameters.queryable_columns {
        check(queryable)?;
        let hidden = parameters.columns.iter().flatten().filter(|name| !queryable.contains(name));
        let hidden: Vec<&str> = hidden.map(String::as_str).collect();
        if !hidden.is_empty() {
            return Err(format!("The following columns are not found on the table: {}", hidden.join(", ")));
        }
    }
    let columns = match &parameters.columns {
        Some(names) => {
            check(names)?;
            names.iter().filter_map(|name| table.position(name)).collect()
        }
        None => (0..table.columns.len()).collect::<Vec<_>>(),
    };
    let generated = columns.iter().map(|position| &table.columns[*position]).filter(|column| column.is_generated);
    let generated: Vec<&str> = generated.map(|column| column.name.as_str()).collect();
    if generated.is_empty() {
        return Ok(columns);
    }
    let advice = match parameters.columns {
        Some(_) => "",
        None => {
            ". You can exclude them from the shape by explicitly listing which columns to fetch in the 'columns' query param"
        }
    };
    let generated = generated.join(", ");
    Err(format!("The following columns are generated and cannot be included in the shape: {generated}{advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::{QueryParameters, ShapeRequest};
    use crate::table::ColumnInfo;
    use crate::table::tests::{column, table};

    fn selected(query: &str) -> Result<Vec<usize>, String> {
        let query = format!("table=t&offset=-1&{query}");
        let query = QueryParameters::decode(&query).unwrap();
        let generated = ColumnInfo { is_generated: true, ..column("g", "text", None) };
        let columns =
            vec![column("id", "int8", Some(0)), column("a", "text", None), column("B", "text", None), generated];
        select(&table("public", "t", columns), &ShapeRequest::read(&query, None).unwrap().definition)
    }

    #[test]
    fn columns_are_checked_with_the_texts_of_the_protocol() {
        assert_eq!(selected("columns=a,id"), Ok(vec![1, 0]));
        assert_eq!(selected("columns=id,%22B%22"), Ok(vec![0, 2]));
        let cases = [
            ("columns=a", "The list of columns must include all primary key columns, missing: id"),
            ("columns=id,b,c", "The following columns are not found on the table: b, c"),
            ("columns=id,g", "The following columns are generated and cannot be included in the shape: g"),
            ("queryable_columns=a", "The list of columns must include all primary key columns, missing: id"),
            ("queryable_columns=id,a&columns=id,%22B%22", "The following columns are not found on the table: B"),
        ];
        for (query, expected) in cases {
            assert_eq!(selected(query), Err(expected.to_owned()), "{query}");
        }
        assert!(selected("").unwrap_err().ends_with("in the 'columns' query param"));
        assert_eq!(selected("queryable_columns=id,a"), Ok(vec![0, 1]));
    }
}
