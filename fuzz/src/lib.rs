//! Fuzz targets: each is a function of bytes that panics if a guarantee does not hold.
//!
//! Targets are plain functions, so that cargo-fuzz and a normal test run the same code.

#![forbid(unsafe_code)]

mod config;
mod files;
mod journal;
mod pgoutput;
mod predicate;
mod query_log;
mod scan;
mod scram;
mod shape_request;
mod statement;

pub use config::config;
pub use files::{hba, ini};
pub use journal::{journal_reader, journal_recovery};
pub use pgoutput::pgoutput;
pub use predicate::predicate;
pub use query_log::journal_entry;
pub use scan::scan;
pub use scram::scram;
pub use shape_request::shape_request;
pub use statement::{classified, shapes};

use tidegate_wire::{
    Frame, Frames,
    backend::{self, Authentication, BackendKeyData, DataRow, ErrorFields, RowDescription},
    frontend::{self, Bind, BindMessage, Execute, ObjectName, Parse, Query, SaslInitial},
    startup::{self, FirstPacket, NegotiateProtocolVersion},
};

/// A fuzz target.
pub type Run = fn(&[u8]);

/// All targets by name; the names are those of the folders in `corpus/`.
pub const TARGETS: [(&str, Run); 16] = [
    ("scan", scan),
    ("startup", startup),
    ("frontend", frontend),
    ("backend", backend),
    ("scram", scram),
    ("pgoutput", pgoutput),
    ("config", config),
    ("hba", hba),
    ("ini", ini),
    ("classified", classified),
    ("shapes", shapes),
    ("journal_entry", journal_entry),
    ("journal_reader", journal_reader),
    ("journal_recovery", journal_recovery),
    ("predicate", predicate),
    ("shape_request", shape_request),
];

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

/// First packets: an accepted packet is encoded to the same bytes.
pub fn startup(data: &[u8]) {
    let _ = startup::parse_options(data);
    if let Ok(negotiate) = NegotiateProtocolVersion::decode(data) {
        let unknown: Vec<_> = negotiate.unknown().collect();
        let again = written(|out| startup::negotiate_protocol_version(negotiate.minor, &unknown, out));
        assert_eq!(NegotiateProtocolVersion::decode(&again[5..]).map(|again| again.minor), Ok(negotiate.minor));
        assert_eq!(again[9..], data[4..]);
    }
    let again = match FirstPacket::decode(data) {
        Ok(FirstPacket::Ssl) => written(startup::ssl_request),
        Ok(FirstPacket::Gss) => written(startup::gss_request),
        Ok(FirstPacket::Cancel { pid, key }) => written(|out| startup::cancel_request(pid, key, out)),
        Ok(FirstPacket::Startup(start)) => {
            let _ = (start.get("user"), start.text("database"), start.extensions().count());
            let params: Vec<_> = start.params().collect();
            written(|out| startup::startup(start.minor, &params, out))
        }
        Err(error) => return assert!(error.offset <= data.len()),
    };
    assert_eq!(again, data);
}

/// Client messages: an accepted message is encoded to the same bytes, and another statement name changes nothing else.
pub fn frontend(data: &[u8]) {
    for frame in Frames::new(data).map_while(Result::ok) {
        if let Some(again) = rewrite_frontend(frame) {
            assert_eq!(again, frame.bytes);
        }
        check_rename(frame);
    }
}

fn rewrite_frontend(frame: Frame<'_>) -> Option<Vec<u8>> {
    let body = frame.body();
    match frame.tag {
        frontend::QUERY => Query::decode(body).ok().map(|query| written(|out| frontend::query(query.text, out))),
        frontend::PARSE => Parse::decode(body).ok().map(|parse| {
            let types: Vec<u32> = parse.types().collect();
            written(|out| frontend::parse(parse.name, parse.query, &types, out))
        }),
        frontend::BIND => rewrite_bind(Bind::decode(body).ok()?),
        frontend::EXECUTE => Execute::decode(body)
            .ok()
            .map(|execute| written(|out| frontend::execute(execute.portal, execute.max_rows, out))),
        frontend::DESCRIBE => target(body).map(|found| written(|out| frontend::describe(found.kind, found.name, out))),
        frontend::CLOSE => target(body).map(|found| written(|out| frontend::close(found.kind, found.name, out))),
        frontend::PASSWORD => SaslInitial::decode(body)
            .ok()
            .map(|initial| written(|out| frontend::sasl_initial(initial.mechanism, initial.data, out))),
        _ => None,
    }
}

fn target(body: &[u8]) -> Option<ObjectName<'_>> {
    ObjectName::decode(body).ok()
}

fn rewrite_bind(bind: Bind<'_>) -> Option<Vec<u8>> {
    let values = bind.values().ok()?;
    let (formats, result_formats): (Vec<u16>, Vec<u16>) =
        (values.formats().collect(), values.result_formats().collect());
    let values: Vec<_> = values.collect();
    let (portal, statement) = (bind.portal, bind.statement);
    let message =
        BindMessage { portal, statement, formats: &formats, values: &values, result_formats: &result_formats };
    Some(written(|out| frontend::bind(&message, out)))
}

/// A message is unchanged after two renames, to another name and back.
fn check_rename(frame: Frame<'_>) {
    let body = frame.body();
    let name = match frame.tag {
        frontend::PARSE => Parse::decode(body).ok().map(|parse| parse.name),
        frontend::BIND => Bind::decode(body).ok().map(|bind| bind.statement),
        _ => target(body).map(|found| found.name),
    };
    let mut renamed = Vec::new();
    if frontend::rename_statement(frame.bytes, b"tide_1", &mut renamed).is_err() {
        return assert!(renamed.is_empty());
    }
    let Some(name) = name else { return };
    let mut back = Vec::new();
    frontend::rename_statement(&renamed, name, &mut back).expect("a renamed message names a statement");
    assert_eq!(back, frame.bytes);
}

/// Server messages: an accepted message is complete, and is encoded to the same bytes.
pub fn backend(data: &[u8]) {
    for frame in Frames::new(data).map_while(Result::ok) {
        if let Some(again) = rewrite_backend(frame) {
            assert_eq!(again, frame.bytes);
        }
        read_backend(frame.body());
    }
}

fn rewrite_backend(frame: Frame<'_>) -> Option<Vec<u8>> {
    let body = frame.body();
    match frame.tag {
        backend::DATA_ROW => {
            let values: Vec<_> = DataRow::decode(body).ok()?.collect();
            Some(written(|out| backend::data_row(&values, out)))
        }
        backend::PARAMETER_STATUS => backend::ParameterStatus::decode(body)
            .ok()
            .map(|status| written(|out| backend::parameter_status(status.name, status.value, out))),
        backend::BACKEND_KEY_DATA => BackendKeyData::decode(body)
            .ok()
            .map(|data| written(|out| backend::backend_key_data(data.pid, data.key, out))),
        backend::READY_FOR_QUERY => backend::ready_for_query_status(body)
            .ok()
            .map(|status| written(|out| backend::ready_for_query(status, out))),
        backend::COMMAND_COMPLETE => backend::CommandComplete::decode(body)
            .ok()
            .map(|complete| written(|out| backend::command_complete(complete.tag, out))),
        _ => None,
    }
}

/// Runs every decoder on every body, independent of the tag.
fn read_backend(body: &[u8]) {
    if let Ok(Authentication::Sasl { mechanisms }) = Authentication::decode(body) {
        assert!(mechanisms.iter().map(|name| name.len() + 1).sum::<usize>() + 5 == body.len());
    }
    if let Ok(fields) = ErrorFields::decode(body) {
        let _ = (fields.severity(), fields.code(), fields.message());
        assert!(fields.iter().map(|(_, value)| value.len() + 2).sum::<usize>() + 1 == body.len());
    }
    if let Ok(columns) = RowDescription::decode(body) {
        assert!(columns.map(|column| column.name.len() + 19).sum::<usize>() + 2 == body.len());
    }
    if let Ok(complete) = backend::CommandComplete::decode(body) {
        let _ = complete.rows();
    }
    let _ = backend::Notification::decode(body);
}
