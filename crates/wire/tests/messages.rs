//! Encoders and decoders agree with each other and with the documented bytes.

use proptest::prelude::*;
use tidegate_wire::backend::{
    self, Authentication, BackendKeyData, CommandComplete, DataRow, ErrorFields, ErrorReport, Notification,
    ParameterStatus, RowDescription, Severity, TxStatus,
};
use tidegate_wire::frontend::{self, Bind, BindMessage, Execute, ObjectKind, ObjectName, Parse, Query, SaslInitial};
use tidegate_wire::{DecodeError, DecodeErrorKind, Frame, sqlstate};

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

/// The body of the single message that `write` appends, which must have this tag.
fn body(tag: u8, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let out = written(write);
    let frame = Frame::decode(&out).expect("an encoder writes one whole message");
    assert_eq!(frame.tag, tag);
    frame.body().to_vec()
}

/// Bytes of a string: any but zero.
fn text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1..=255_u8, 0..20)
}

fn values() -> impl Strategy<Value = Vec<Option<Vec<u8>>>> {
    prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..20)), 0..6)
}

fn borrowed(values: &[Option<Vec<u8>>]) -> Vec<Option<&[u8]>> {
    values.iter().map(Option::as_deref).collect()
}

#[test]
fn client_messages_have_the_documented_bytes() {
    let bind = BindMessage {
        portal: b"p",
        statement: b"s",
        formats: &[1],
        values: &[Some(b"x"), None],
        result_formats: &[0, 1],
    };
    let cases: [(Vec<u8>, &[u8]); 19] = [
        (written(|out| frontend::query(b"a", out)), b"Q\0\0\0\x06a\0"),
        (written(|out| frontend::parse(b"s", b"q", &[23], out)), b"P\0\0\0\x0es\0q\0\0\x01\0\0\0\x17"),
        (
            written(|out| frontend::bind(&bind, out)),
            b"B\0\0\0\x1dp\0s\0\0\x01\0\x01\0\x02\0\0\0\x01x\xff\xff\xff\xff\0\x02\0\0\0\x01",
        ),
        (written(|out| frontend::describe(ObjectKind::Statement, b"s", out)), b"D\0\0\0\x07Ss\0"),
        (written(|out| frontend::close(ObjectKind::Portal, b"", out)), b"C\0\0\0\x06P\0"),
        (written(|out| frontend::execute(b"", 5, out)), b"E\0\0\0\x09\0\0\0\0\x05"),
        (written(frontend::sync), b"S\0\0\0\x04"),
        (written(frontend::flush), b"H\0\0\0\x04"),
        (
            written(|out| frontend::function_call(2077, &[Some(b"a"), None], out)),
            b"F\0\0\0\x17\0\0\x08\x1d\0\0\0\x02\0\0\0\x01a\xff\xff\xff\xff\0\0",
        ),
        (written(frontend::terminate), b"X\0\0\0\x04"),
        (written(frontend::copy_done), b"c\0\0\0\x04"),
        (written(|out| frontend::copy_data(b"1\n", out)), b"d\0\0\0\x061\n"),
        (written(|out| frontend::copy_fail(b"no", out)), b"f\0\0\0\x07no\0"),
        (written(|out| frontend::password(b"pw", out)), b"p\0\0\0\x07pw\0"),
        (written(|out| frontend::sasl_initial(b"M", Some(b"x"), out)), b"p\0\0\0\x0bM\0\0\0\0\x01x"),
        (written(|out| frontend::sasl_initial(b"M", None, out)), b"p\0\0\0\x0aM\0\xff\xff\xff\xff"),
        (written(|out| frontend::sasl_response(b"x", out)), b"p\0\0\0\x05x"),
        // A zero byte ends the string in the encoder, as it does in the decoder.
        (written(|out| frontend::query(b"a\0b", out)), b"Q\0\0\0\x06a\0"),
        (written(|out| frontend::execute(b"a\0b", 0, out)), b"E\0\0\0\x0aa\0\0\0\0\0"),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected, "{}", expected.escape_ascii());
    }
}

#[test]
fn server_messages_have_the_documented_bytes() {
    let report = ErrorReport { detail: Some("d"), ..ErrorReport::error(sqlstate::QUERY_CANCELED, "m") };
    let cases: [(Vec<u8>, &[u8]); 21] = [
        (written(backend::authentication_ok), b"R\0\0\0\x08\0\0\0\0"),
        (written(backend::authentication_cleartext), b"R\0\0\0\x08\0\0\0\x03"),
        (written(|out| backend::authentication_md5(*b"salt", out)), b"R\0\0\0\x0c\0\0\0\x05salt"),
        (written(|out| backend::authentication_sasl(&["A", "B"], out)), b"R\0\0\0\x0d\0\0\0\x0aA\0B\0\0"),
        (written(|out| backend::authentication_sasl(&["A", "", "\0", "B"], out)), b"R\0\0\0\x0d\0\0\0\x0aA\0B\0\0"),
        (written(|out| backend::authentication_sasl_continue(b"x", out)), b"R\0\0\0\x09\0\0\0\x0bx"),
        (written(|out| backend::authentication_sasl_final(b"x", out)), b"R\0\0\0\x09\0\0\0\x0cx"),
        (written(|out| backend::parameter_status(b"n", b"v", out)), b"S\0\0\0\x08n\0v\0"),
        (written(|out| backend::backend_key_data(1, b"\0\0\0\x02", out)), b"K\0\0\0\x0c\0\0\0\x01\0\0\0\x02"),
        (written(|out| backend::ready_for_query(TxStatus::Failed, out)), b"Z\0\0\0\x05E"),
        (written(|out| backend::command_complete(b"OK", out)), b"C\0\0\0\x07OK\0"),
        (written(|out| backend::data_row(&[Some(b"1"), None], out)), b"D\0\0\0\x0f\0\x02\0\0\0\x011\xff\xff\xff\xff"),
        (
            written(|out| backend::row_description(&[("a", 25)], out)),
            b"T\0\0\0\x1a\0\x01a\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0",
        ),
        (written(backend::parse_complete), b"1\0\0\0\x04"),
        (written(backend::bind_complete), b"2\0\0\0\x04"),
        (written(backend::close_complete), b"3\0\0\0\x04"),
        (written(backend::no_data), b"n\0\0\0\x04"),
        (written(backend::empty_query), b"I\0\0\0\x04"),
        (written(|out| backend::parameter_description(&[23], out)), b"t\0\0\0\x0a\0\x01\0\0\0\x17"),
        (written(|out| backend::error_response(&report, out)), b"E\0\0\0\x20SERROR\0VERROR\0C57014\0Mm\0Dd\0\0"),
        (
            written(|out| backend::negotiate_protocol_version(2, &[b"_pq_.x"], out)),
            b"v\0\0\0\x13\0\x03\0\x02\0\0\0\x01_pq_.x\0",
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected, "{}", expected.escape_ascii());
    }
}

#[test]
fn authentication_requests_are_decoded() {
    let decode = |bytes: &'static [u8]| Authentication::decode(bytes);
    assert_eq!(decode(b"\0\0\0\0"), Ok(Authentication::Ok));
    assert_eq!(decode(b"\0\0\0\x03"), Ok(Authentication::Cleartext));
    assert_eq!(decode(b"\0\0\0\x05salt"), Ok(Authentication::Md5 { salt: *b"salt" }));
    assert_eq!(decode(b"\0\0\0\x0bx"), Ok(Authentication::SaslContinue(b"x")));
    assert_eq!(decode(b"\0\0\0\x0c"), Ok(Authentication::SaslFinal(b"")));
    assert_eq!(decode(b"\0\0\0\x07"), Ok(Authentication::Other { code: 7 }));
    let Ok(Authentication::Sasl { mechanisms }) = decode(b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0") else {
        panic!("these are two mechanisms");
    };
    assert_eq!(mechanisms.iter().collect::<Vec<_>>(), [b"SCRAM-SHA-256-PLUS".as_slice(), b"SCRAM-SHA-256"]);
    assert!(mechanisms.offer("SCRAM-SHA-256") && !mechanisms.offer("SCRAM"));
}

#[test]
fn broken_bodies_are_errors_with_their_offset() {
    let unterminated = |offset| DecodeError { offset, kind: DecodeErrorKind::Unterminated };
    let truncated = |offset| DecodeError { offset, kind: DecodeErrorKind::Truncated };
    let trailing = |offset, left| DecodeError { offset, kind: DecodeErrorKind::Trailing(left) };
    assert_eq!(Query::decode(b"a"), Err(unterminated(0)));
    assert_eq!(Query::decode(b"a\0b"), Err(trailing(2, 1)));
    assert_eq!(Parse::decode(b"s\0q\0\0\x01\0\0"), Err(truncated(6)));
    assert_eq!(Bind::decode(b"p\0s"), Err(unterminated(2)));
    assert_eq!(Bind::decode(b"p\0s\0\0\0\0\x01").and_then(|bind| bind.values()).err(), Some(truncated(8)));
    assert_eq!(ObjectName::decode(b"Xs\0").map_err(|error| error.offset), Err(0));
    assert_eq!(Execute::decode(b"\0\0\0\0"), Err(truncated(1)));
    assert_eq!(SaslInitial::decode(b"M\0\0\0\0\x05x"), Err(truncated(6)));
    assert_eq!(Authentication::decode(b"\0\0\0\x05sal"), Err(truncated(4)));
    assert_eq!(Authentication::decode(b"\0\0\0\x0aA\0"), Err(unterminated(6)));
    assert_eq!(backend::ready_for_query_status(b""), Err(truncated(0)));
    assert_eq!(backend::ready_for_query_status(b"II"), Err(trailing(1, 1)));
    assert!(backend::ready_for_query_status(b"X").is_err());
    assert!(BackendKeyData::decode(b"\0\0\0\x01abc").is_err());
    assert!(BackendKeyData::decode(&[0; 4 + 257]).is_err());
    assert!(BackendKeyData::decode(&[0; 4 + 256]).is_ok());
    assert_eq!(DataRow::decode(b"\0\x02\xff\xff\xff\xff").err(), Some(truncated(6)));
    assert_eq!(DataRow::decode(b"\0\x01\xff\xff\xff\xfe").map_err(|error| error.offset).err(), Some(2));
    assert_eq!(RowDescription::decode(b"\0\x01a\0").err(), Some(truncated(4)));
    assert_eq!(Notification::decode(b"\0\0\0\x01a\0").err(), Some(unterminated(6)));
    assert_eq!(ErrorFields::decode(b"SERROR\0").err(), Some(truncated(7)));
}

#[test]
fn every_field_of_an_error_is_optional() -> Result<(), DecodeError> {
    let fields = ErrorFields::decode(b"\0")?;
    assert_eq!((fields.severity(), fields.code(), fields.message()), (None, None, None));
    let fields = ErrorFields::decode(b"Cshort\0M\xff!\0SERREUR\0\0")?;
    assert_eq!((fields.severity(), fields.code()), (Some("ERREUR"), None));
    assert_eq!(fields.message().as_deref(), Some("\u{fffd}!"));
    assert_eq!(fields.get(b'M'), Some(b"\xff!".as_slice()));
    Ok(())
}

#[test]
fn report_is_decoded_as_encoded() -> Result<(), DecodeError> {
    let report =
        ErrorReport { hint: Some("h"), ..ErrorReport::new(Severity::Warning, sqlstate::TOO_MANY_CONNECTIONS, "many") };
    let body = body(backend::NOTICE_RESPONSE, |out| {
        backend::notice_response(&report, out);
    });
    let fields = ErrorFields::decode(&body)?;
    assert_eq!(fields.severity(), Some("WARNING"));
    assert_eq!(fields.code(), Some(sqlstate::TOO_MANY_CONNECTIONS));
    assert_eq!(fields.message().as_deref(), Some("many"));
    assert_eq!(fields.get(b'D'), None);
    assert_eq!(fields.get(b'H'), Some(b"h".as_slice()));
    Ok(())
}

#[test]
fn row_count_is_read_from_tags_that_have_one() {
    for (tag, rows) in [
        ("INSERT 0 5", Some(5)),
        ("SELECT 18446744073709551615", Some(u64::MAX)),
        ("SELECT 18446744073709551616", None),
        ("BEGIN", None),
        ("CREATE TABLE", None),
        ("COPY ", None),
        ("", None),
    ] {
        assert_eq!(CommandComplete { tag: tag.as_bytes() }.rows(), rows, "{tag}");
    }
}

#[test]
fn rename_refuses_messages_without_a_statement() {
    let mut out = b"before".to_vec();
    let portal = written(|out| frontend::describe(ObjectKind::Portal, b"p", out));
    for (message, offset) in [
        (portal.as_slice(), 5),
        (b"Q\0\0\0\x06a\0", 0),
        (b"P\0\0\0\x06ab", 5),
        (b"B\0\0\0\x07a\0b", 7),
        (b"P\0\0\0\x06a", 6),
        (b"P\0\0\0\x05\0\0", 6),
        (b"P\0", 2),
    ] {
        let error = frontend::rename_statement(message, b"new", &mut out).expect_err("no statement is named");
        assert_eq!(error.offset, offset, "{}", message.escape_ascii());
    }
    assert_eq!(out, b"before");
}

proptest! {
    #[test]
    fn parse_and_its_rename(name in text(), new in text(), query in text(), types in prop::collection::vec(any::<u32>(), 0..5)) {
        let message = written(|out| frontend::parse(&name, &query, &types, out));
        let body = &message[5..];
        let view = Parse::decode(body).expect("it was just written");
        prop_assert_eq!((view.name, view.query), (name.as_slice(), query.as_slice()));
        prop_assert_eq!(view.types().collect::<Vec<_>>(), types.clone());
        let mut renamed = Vec::new();
        frontend::rename_statement(&message, &new, &mut renamed).expect("it names a statement");
        prop_assert_eq!(renamed, written(|out| frontend::parse(&new, &query, &types, out)));
    }

    #[test]
    fn bind_and_its_rename(portal in text(), statement in text(), new in text(), values in values(),
                           formats in prop::collection::vec(0_u16..2, 0..4)) {
        let values = borrowed(&values);
        let message = |statement: &[u8]| {
            let message = BindMessage {
                portal: &portal, statement, formats: &formats, values: &values, result_formats: &formats,
            };
            written(|out| frontend::bind(&message, out))
        };
        let bytes = message(&statement);
        let view = Bind::decode(&bytes[5..]).expect("it was just written");
        prop_assert_eq!((view.portal, view.statement), (portal.as_slice(), statement.as_slice()));
        prop_assert_eq!(view.tail, &bytes[5 + view.rest()..]);
        let found = view.values().expect("it was just written");
        prop_assert_eq!(found.formats().collect::<Vec<_>>(), formats.clone());
        prop_assert_eq!(found.result_formats().collect::<Vec<_>>(), formats.clone());
        prop_assert_eq!(found.collect::<Vec<_>>(), values.clone());
        let mut renamed = Vec::new();
        frontend::rename_statement(&bytes, &new, &mut renamed).expect("it names a statement");
        prop_assert_eq!(renamed, message(&new));
    }

    #[test]
    fn describe_and_close_and_their_rename(name in text(), new in text(), portal: bool) {
        let kind = if portal { ObjectKind::Portal } else { ObjectKind::Statement };
        for write in [frontend::describe, frontend::close] {
            let message = written(|out| write(kind, &name, out));
            prop_assert_eq!(ObjectName::decode(&message[5..]), Ok(ObjectName { kind, name: &name }));
            let mut renamed = Vec::new();
            prop_assert_eq!(frontend::rename_statement(&message, &new, &mut renamed).is_err(), portal);
            if !portal {
                prop_assert_eq!(renamed, written(|out| write(kind, &new, out)));
            }
        }
    }

    #[test]
    fn other_client_messages(name in text(), rows: i32, data in prop::option::of(prop::collection::vec(any::<u8>(), 0..20))) {
        let query = body(frontend::QUERY, |out| frontend::query(&name, out));
        prop_assert_eq!(Query::decode(&query), Ok(Query { text: &name }));
        let execute = body(frontend::EXECUTE, |out| frontend::execute(&name, rows, out));
        prop_assert_eq!(Execute::decode(&execute), Ok(Execute { portal: &name, max_rows: rows }));
        let initial = body(frontend::PASSWORD, |out| frontend::sasl_initial(&name, data.as_deref(), out));
        prop_assert_eq!(SaslInitial::decode(&initial), Ok(SaslInitial { mechanism: &name, data: data.as_deref() }));
        let password = body(frontend::PASSWORD, |out| frontend::password(&name, out));
        prop_assert_eq!(frontend::password_text(&password), Ok(name.as_slice()));
    }

    #[test]
    fn rows_and_columns(values in values(), columns in prop::collection::vec(("[a-z]{0,8}", any::<u32>()), 0..5)) {
        let values = borrowed(&values);
        let row = body(backend::DATA_ROW, |out| backend::data_row(&values, out));
        prop_assert_eq!(DataRow::decode(&row).expect("it was just written").collect::<Vec<_>>(), values);
        let columns: Vec<_> = columns.iter().map(|(name, oid)| (name.as_str(), *oid)).collect();
        let description = body(backend::ROW_DESCRIPTION, |out| backend::row_description(&columns, out));
        let found = RowDescription::decode(&description).expect("it was just written");
        let found: Vec<_> = found.map(|column| (str::from_utf8(column.name).expect("ASCII"), column.type_oid)).collect();
        prop_assert_eq!(found, columns);
    }

    #[test]
    fn other_server_messages(name in text(), value in text(), pid: u32, key in prop::collection::vec(any::<u8>(), 4..=256)) {
        let status = body(backend::PARAMETER_STATUS, |out| backend::parameter_status(&name, &value, out));
        prop_assert_eq!(ParameterStatus::decode(&status), Ok(ParameterStatus { name: &name, value: &value }));
        let data = body(backend::BACKEND_KEY_DATA, |out| backend::backend_key_data(pid, &key, out));
        prop_assert_eq!(BackendKeyData::decode(&data), Ok(BackendKeyData { pid, key: &key }));
        for status in [TxStatus::Idle, TxStatus::InTransaction, TxStatus::Failed] {
            let ready = body(backend::READY_FOR_QUERY, |out| backend::ready_for_query(status, out));
            prop_assert_eq!(backend::ready_for_query_status(&ready), Ok(status));
        }
    }
}
