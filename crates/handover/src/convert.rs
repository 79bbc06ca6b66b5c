//! Parameters and prepared statements to records and back.

use std::{rc::Rc, time::Duration};

use tidegate_session_state::{
    params::{ParameterValue, ServerSettings, Settings},
    statements::{
        Analysis, CatalogChanges, ClientStatement, ClientStatements, DescribedBy, Description, Freshness,
        PreparedState, ServerStatements, StatementCatalog, StatementShape,
    },
};
use tidegate_wire::{
    frame::HEADER,
    frontend::{self, Parse},
};

use crate::record::{ParameterRecord, PreparedRecord, ServerRecord, StatementRecord};

/// The records of parameters.
#[must_use]
pub fn parameters_of(settings: &Settings) -> Vec<ParameterRecord> {
    let record = |(name, value): (&str, &ParameterValue)| {
        let stamp = if let ParameterValue::Owned(_, (_, stamp)) = value { Some(*stamp) } else { None };
        let bytes = value.bytes();
        let (text, sql) = match value.plain() {
            ParameterValue::Sql(sql) => (None, Some(sql.to_string())),
            _ => (Some(bytes.to_vec()), None),
        };
        ParameterRecord { name: name.to_owned(), text, sql, stamp }
    };
    settings.iter().map(record).collect()
}

/// The parameters of records. Values that belong to one client alone belong to the client with this id.
#[must_use]
pub fn restore_parameters(records: &[ParameterRecord], client: u64) -> Settings {
    let mut settings = Settings::default();
    for record in records {
        let value = match &record.sql {
            Some(sql) => ParameterValue::Sql(sql.as_str().into()),
            None => ParameterValue::text(record.text.as_deref().unwrap_or_default()),
        };
        settings.set(
            &record.name,
            match record.stamp {
                Some(stamp) => ParameterValue::Owned(Box::new(value), (client, stamp)),
                None => value,
            },
        );
    }
    settings
}

/// The records of the statements of a client.
#[must_use]
pub fn statements_of(statements: &ClientStatements, changes: &CatalogChanges) -> Vec<StatementRecord> {
    statements.iter().map(|(name, prepared)| statement_of(name, prepared, changes)).collect()
}

fn statement_of(name: &[u8], prepared: &ClientStatement, changes: &CatalogChanges) -> StatementRecord {
    let ClientStatement { statement, freshness, description, described_by: _ } = prepared;
    let parse = Parse::decode(&statement.parse_message()[HEADER..]).expect("the gateway encoded this message");
    let age = |at| u64::try_from(changes.age(at).as_nanos()).unwrap_or(u64::MAX);
    StatementRecord {
        name: name.to_vec(),
        text: parse.query.to_vec(),
        types: parse.types().collect(),
        parsed_age_ns: age(freshness.parsed),
        oldest_age_ns: age(freshness.oldest),
        tolerated_age_ns: age(freshness.tolerated),
        shape: description.as_ref().map_or_else(Vec::new, |description| description.shape.to_bytes().to_vec()),
        parameters: description.as_ref().map_or_else(Vec::new, |description| description.parameters.to_vec()),
    }
}

/// Adds the statements of records to the statements of a thread, for a client with these settings. `pool` identifies the servers
/// as in [`StatementCatalog::intern`].
#[must_use]
pub fn restore_statements(
    records: &[StatementRecord],
    catalog: &StatementCatalog,
    settings: &Rc<Settings>,
    pool: [&str; 3],
) -> Option<Box<ClientStatements>> {
    let mut statements = Box::<ClientStatements>::default();
    let now = catalog.changes().now();
    let at = |age_ns: u64| now.before(Duration::from_nanos(age_ns));
    for record in records {
        let mut message = Vec::new();
        frontend::parse(&record.name, &record.text, &record.types, &mut message);
        // Checked when the record was decoded.
        let Ok(parse) = Parse::decode(&message[HEADER..]) else { continue };
        let statement = catalog.intern(&parse, settings, pool);
        let shape: Option<[u8; 16]> = record.shape.as_slice().try_into().ok();
        let description = shape.map(|shape| {
            let shape = StatementShape::from_bytes(shape);
            statement.share_description(Description { shape, parameters: record.parameters.as_slice().into() })
        });
        let freshness = Freshness {
            parsed: at(record.parsed_age_ns),
            oldest: at(record.oldest_age_ns),
            tolerated: at(record.tolerated_age_ns),
        };
        // The record does not contain how the client has asked for the description.
        let described_by = if description.is_some() { DescribedBy::Statement } else { DescribedBy::Nothing };
        statements.restore(&record.name, ClientStatement { statement, freshness, description, described_by });
    }
    (!statements.is_empty()).then_some(statements)
}

impl ServerRecord {
    /// Stores the parameters of the server.
    pub fn set_settings(&mut self, settings: &ServerSettings) {
        let [reported, defaults, set, base] = settings.parts().map(parameters_of);
        (self.reported, self.defaults, self.set, self.base) = (reported, defaults, set, base);
    }

    /// The parameters of the server, whose current client has this id.
    #[must_use]
    pub fn settings(&self, client: u64) -> ServerSettings {
        let all = [&self.reported, &self.defaults, &self.set, &self.base];
        ServerSettings::from_parts(all.map(|records| restore_parameters(records, client)))
    }

    /// Stores the statements of the server.
    pub fn set_statements(&mut self, statements: &ServerStatements, changes: &CatalogChanges) {
        let record = |state: PreparedState| PreparedRecord {
            digest: state.digest.to_vec(),
            name: state.name.into(),
            is_stale: state.is_stale,
            age_ns: u64::try_from(changes.age(state.analysis.since).as_nanos()).unwrap_or(u64::MAX),
            shape: state.analysis.shape.map_or_else(Vec::new, |shape| shape.to_bytes().to_vec()),
        };
        self.statements = statements.states().into_iter().map(record).collect();
    }

    /// The statements of the server.
    #[must_use]
    pub fn statements(&self, changes: &CatalogChanges) -> ServerStatements {
        let now = changes.now();
        let state = |record: &PreparedRecord| {
            let shape: Option<[u8; 16]> = record.shape.as_slice().try_into().ok();
            Some(PreparedState {
                // Checked when the record was decoded.
                digest: record.digest.as_slice().try_into().ok()?,
                name: record.name.as_slice().into(),
                is_stale: record.is_stale,
                analysis: Analysis {
                    since: now.before(Duration::from_nanos(record.age_ns)),
                    shape: shape.map(StatementShape::from_bytes),
                },
            })
        };
        ServerStatements::from_states(self.statements.iter().filter_map(state))
    }
}

#[cfg(test)]
mod tests {
    use tidegate_session_state::statements::AnalysisTime;

    use super::*;

    const POOL: [&str; 3] = ["shop", "shop", "app"];

    #[test]
    fn parameters_survive_and_change_their_owner() {
        let mut settings = Settings::default();
        settings.set("search_path", ParameterValue::Sql("a, \"B\"".into()));
        settings.set("application_name", ParameterValue::text(b"na\xefve"));
        settings.set("role", ParameterValue::Owned(Box::new(ParameterValue::text(b"r")), (7, 3)));
        let restored = restore_parameters(&parameters_of(&settings), 9);
        settings.set("role", ParameterValue::Owned(Box::new(ParameterValue::text(b"r")), (9, 3)));
        assert_eq!(restored, settings);
    }

    #[test]
    fn state_of_a_server_survives() {
        let mut settings = ServerSettings::default();
        settings.report_default("TimeZone", b"UTC");
        settings.set("TimeZone", ParameterValue::text(b"Asia/Tokyo"));
        settings.set("role", ParameterValue::Owned(Box::new(ParameterValue::text(b"r")), (7, 3)));
        let catalog = StatementCatalog::default();
        let mut message = Vec::new();
        frontend::parse(b"s", b"select 1", &[], &mut message);
        let statement = catalog.intern(&Parse::decode(&message[HEADER..]).unwrap(), &Rc::default(), POOL);
        let mut statements = ServerStatements::default();
        statements.add(&statement, 10, catalog.changes().now());
        let mut record = ServerRecord::default();
        record.set_settings(&settings);
        record.set_statements(&statements, catalog.changes());
        settings.set("role", ParameterValue::Owned(Box::new(ParameterValue::text(b"r")), (9, 3)));
        assert_eq!(record.settings(9).parts(), settings.parts());
        let mut restored = record.statements(&CatalogChanges::default());
        assert_eq!(restored.len(), 1);
        assert!(restored.find(statement.digest(), AnalysisTime::default()).is_some());
        assert_eq!(restored.remove_by_name(statement.server_name()), Some(statement.digest()));
    }

    #[test]
    fn statements_survive_with_their_descriptions() {
        let settings = Rc::new(Settings::default());
        let old = StatementCatalog::default();
        let mut message = Vec::new();
        frontend::parse(b"s", b"select $1", &[23, 0], &mut message);
        let statement = old.intern(&Parse::decode(&message[HEADER..]).unwrap(), &settings, POOL);
        let digest = statement.digest();
        let columns = None;
        let description = Description::decode(&[0, 1, 0, 0, 0, 23], columns).unwrap();
        let shared = statement.share_description(description);
        let mut statements = ClientStatements::default();
        let now = old.changes().now();
        let (freshness, description) = (Freshness::from(now), Some(shared.clone()));
        let prepared = ClientStatement { statement, freshness, description, described_by: DescribedBy::Statement };
        statements.restore(b"s", prepared);
        let new = StatementCatalog::default();
        let before = new.changes().now();
        let records = statements_of(&statements, old.changes());
        let restored = restore_statements(&records, &new, &settings, POOL).unwrap();
        let (named, prepared) = restored.get_prepared(b"s").unwrap();
        assert_eq!(named.statement.digest(), digest);
        assert_eq!(prepared.description, Some(shared));
        // Not older than the Parse: the way between the processes only makes it later.
        assert!(prepared.freshness.parsed <= new.changes().now() && before <= new.changes().now());
        assert!(restore_statements(&[], &new, &settings, POOL).is_none());
    }
}
