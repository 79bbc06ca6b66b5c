//! Writes the seeds of the corpus: `cargo run -p tidegate-fuzz --example seeds`.

use std::path::Path;

use tidegate_journal::{Ack, Class, Journal, JournalConfig, ProducerRecord};
use tidegate_wire::auth::scram::Verifier;
use tidegate_wire::backend::{self, ErrorReport, TxStatus};
use tidegate_wire::frontend::{self, BindMessage, ObjectKind};
use tidegate_wire::replication::{
    Lsn,
    pgoutput::{
        ColumnValue, LogicalMessage, PgoutputMessage, RelationField, ReplicaIdentity, TaggedMessage,
        encode::{self, OldColumns, RelationFields},
    },
};
use tidegate_wire::{sqlstate, startup};

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

fn keep(target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(name), bytes)
}

fn pipeline(out: &mut Vec<u8>) {
    frontend::parse(b"s1", b"select $1::int", &[23, 0], out);
    let bind = BindMessage {
        portal: b"p",
        statement: b"s1",
        formats: &[1],
        values: &[Some(b"\0\0\0\x01"), None],
        result_formats: &[1],
    };
    frontend::bind(&bind, out);
    frontend::describe(ObjectKind::Portal, b"p", out);
    frontend::execute(b"p", 0, out);
    frontend::close(ObjectKind::Statement, b"s1", out);
    frontend::flush(out);
    frontend::sync(out);
}

fn result(out: &mut Vec<u8>) {
    backend::parse_complete(out);
    backend::bind_complete(out);
    backend::row_description(&[("id", 23), ("name", 25)], out);
    backend::data_row(&[Some(b"1"), None], out);
    backend::command_complete(b"SELECT 1", out);
    backend::ready_for_query(TxStatus::Idle, out);
}

fn login(out: &mut Vec<u8>) {
    backend::negotiate_protocol_version(0, &[b"_pq_.x"], out);
    backend::authentication_sasl(&["SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"], out);
    backend::authentication_md5(*b"salt", out);
    backend::authentication_ok(out);
    backend::parameter_status(b"TimeZone", b"UTC", out);
    backend::backend_key_data(7, &[9; 32], out);
}

fn failure(out: &mut Vec<u8>) {
    let report = ErrorReport { hint: Some("h"), ..ErrorReport::fatal(sqlstate::TOO_MANY_CONNECTIONS, "m") };
    backend::error_response(&report, out);
    backend::notice_response(&report, out);
}

/// A cleanly closed segment, an open one, and the start of one.
fn journal() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let (journal, _) = Journal::open(JournalConfig::new(folder.path())).map_err(std::io::Error::other)?;
    let producer = journal.producer();
    for number in 0..8 {
        let record = "x".repeat(number * 5);
        let note = ProducerRecord::new(Class::new(0), record.as_bytes()).ack(Ack::Written);
        producer.commit_blocking(note).map_err(std::io::Error::other)?;
    }
    let _ = producer.offer(ProducerRecord::new(Class::new(0), &vec![0; 2 << 20]));
    drop(journal);
    let segment = std::fs::read(folder.path().join("journal-00-0000000001.tgj"))?;
    for target in ["journal_reader", "journal_recovery"] {
        keep(target, "ended", &segment)?;
        keep(target, "not_ended", &segment[..segment.len() - 70])?;
        keep(target, "header", &segment[..64])?;
    }
    Ok(())
}

/// Files and statements with the elements that their parsers handle.
fn texts() -> std::io::Result<()> {
    let rules = b"local all all trust\nhost shop,\"x y\" ann 127.0.0.0/8 scram-sha-256 # a\n\
        hostssl all all ::1/128 cert map=map\n\
        host sameuser all 10.0.0.0 255.0.0.0 ldap ldapserver=d ldapprefix=\"cn=\" ldapsuffix=\", dc=x\"\n\
        host all all all \\\n reject\n\0\
        map /^(.*)@x$ \\1\nmap bob ann\n";
    keep("hba", "rules", rules)?;
    let ini = b"[databases]\nshop = host=127.0.0.1 port=5432 dbname='a b' pool_size=5\n* =\n[users]\nann = pool_mode=session\n\
        [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = 6432\nauth_type = md5\nauth_file = USERS\npool_mode = transaction\n\
        server_idle_timeout = 60 ; x\nignore_startup_parameters = extra_float_digits\n\0\"ann\" \"se\"\"cret\"\n; b\n";
    keep("ini", "shop", ini)?;
    for (name, text) in [
        ("set", "SET search_path TO a, \"b\"; set local x = 'y';"),
        ("characteristics", "set session characteristics as transaction isolation level read committed"),
        ("time_zone", "/* a /* b */ */ set time zone 'UTC' -- c"),
        ("savepoint", "rollback work to savepoint \"a\"\"b\""),
        ("deallocate", "DEALLOCATE PREPARE all"),
        ("config", "select set_config('a.b', $1::text, false), pg_advisory_lock(1)"),
        ("temporary", "select $a$;$a$ into temp t; create local temporary table u ()"),
        ("reset", "reset all; discard all; listen x; load 'y'; declare c cursor with hold for select 1"),
        ("block", "do $$ begin listen x; end $$"),
        ("view", "update pg_settings set setting = E'a\\'b' where name = U&\"c\""),
    ] {
        keep("classified", name, text.as_bytes())?;
    }
    for (name, text) in [
        ("literals", "SELECT a.b, -\x01, not null FROM t WHERE c IN (\x01, \x01) AND d = \x01::int; -- e"),
        ("numbers", "select 1.5e-3, .5, 0x1F, 1_000, $1 - 2, a[-1], x != -7"),
        ("strings", "select 'it''s', E'a\\'b' \n 'c', U&'d', b'01', $a$ b $a$, \"Q\"\"q\""),
        ("names", "savepoint a; release savepoint \"b\"; rollback to c; deallocate all"),
        ("password", "create role a password 'b'; alter user mapping for a server s options (set password 'c')"),
    ] {
        keep("shapes", name, text.as_bytes())?;
    }
    let record =
        br#"{"time":"2026-03-01T12:00:00.000042Z","kind":"query","user":"a","parameters":["b",null],"rows":1}"#;
    keep("journal_entry", "record", record)?;
    keep(
        "journal_entry",
        "parts",
        b"10.0.0.1:5\x01ann\x01shop\x01psql\x01[::1]:5432\x01p\x01\x00\x01select\n1\x01s\x01SELECT 1\x01\xe9\x01r",
    )
}

/// Messages of `pgoutput`, alone and as sequences with a length before each.
fn replication() -> std::io::Result<()> {
    let relation = |xid| {
        let id = RelationField { is_key: true, name: b"id", type_oid: 20, type_modifier: -1 };
        let fields = RelationFields {
            oid: 9,
            schema: b"public",
            name: b"t",
            identity: ReplicaIdentity::Default,
            columns: &[id],
        };
        written(|out| encode::relation(xid, &fields, out))
    };
    let row = |xid| written(|out| encode::insert(xid, 9, &[ColumnValue::Text(b"1")], out));
    let update = |xid| {
        let old = OldColumns::Key(&[ColumnValue::Text(b"1")]);
        written(|out| encode::update(xid, 9, Some(old), &[ColumnValue::Unchanged], out))
    };
    let truncate = written(|out| encode::truncate(None, &[9], true, false, out));
    let fields = LogicalMessage { transactional: true, lsn: Lsn(7), prefix: b"p", content: b"c" };
    let message = written(|out| encode::logical(None, fields, out));
    let other = |message| written(|out| encode::message(TaggedMessage { xid: None, message }, out));
    let begin = other(PgoutputMessage::Begin { commit_lsn: Lsn(50), commit_time: 1, xid: 3 });
    let commit = other(PgoutputMessage::Commit { commit_lsn: Lsn(50), end_lsn: Lsn(58), commit_time: 1 });
    for (name, bytes) in [("relation", relation(None)), ("insert", row(None)), ("update", update(None))] {
        keep("pgoutput", name, &bytes)?;
    }
    let plain = [begin, relation(None), row(None), update(None), truncate, message, commit];
    let streamed = [
        other(PgoutputMessage::StreamStart { xid: 3, first: true }),
        relation(Some(3)),
        row(Some(3)),
        row(Some(4)),
        other(PgoutputMessage::StreamStop),
        other(PgoutputMessage::StreamAbort { xid: 3, subxid: 4, aborted_at: None }),
        other(PgoutputMessage::StreamCommit { xid: 3, commit_lsn: Lsn(90), end_lsn: Lsn(98), commit_time: 1 }),
    ];
    for (name, messages) in [("plain", plain), ("streamed", streamed)] {
        let sized = |bytes: &Vec<u8>| [&[u8::try_from(bytes.len()).unwrap_or(u8::MAX)], bytes.as_slice()].concat();
        keep("pgoutput", name, &messages.iter().flat_map(sized).collect::<Vec<_>>())?;
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    for (name, bytes) in [("pipeline", written(pipeline)), ("result", written(result)), ("login", written(login))] {
        keep("scan", name, &[b"s", bytes.as_slice()].concat())?;
    }
    keep(
        "scan",
        "copy",
        &written(|out| {
            out.push(3);
            frontend::copy_data(&[b'x'; 100], out);
            frontend::copy_done(out);
        }),
    )?;
    keep("frontend", "pipeline", &written(pipeline))?;
    keep("frontend", "query", &written(|out| frontend::query(b"select 1", out)))?;
    keep("frontend", "sasl", &written(|out| frontend::sasl_initial(b"SCRAM-SHA-256", Some(b"n,,n=,r=x"), out)))?;
    for (name, bytes) in [("result", written(result)), ("login", written(login)), ("failure", written(failure))] {
        keep("backend", name, &bytes)?;
    }
    let params: &[(&[u8], &[u8])] = &[(b"user", b"a"), (b"options", b"-c a=b --c-d=e\\ f"), (b"_pq_.x", b"1")];
    keep("startup", "session", &written(|out| startup::startup(2, params, out)))?;
    keep("startup", "cancel", &written(|out| startup::cancel_request(7, &[9; 32], out)))?;
    keep("startup", "ssl", &written(startup::ssl_request))?;
    keep("startup", "gss", &written(startup::gss_request))?;
    keep("startup", "options", b"-c a=b -cc=d --e-f=g\\ h\\\\")?;
    keep("startup", "negotiate", &written(|out| startup::negotiate_protocol_version(2, &[b"_pq_.x"], out))[5..])?;
    keep("scram", "client_first", b"n,,n=,r=client")?;
    keep("scram", "client_first_bound", b"p=tls-server-end-point,,n=,r=client")?;
    keep("scram", "server_first", b"r=clientserver,s=MDEyMzQ1Njc4OWFiY2RlZg==,i=1")?;
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    keep("scram", "client_final", format!("c=biws,r=clientserver,p={key}").as_bytes())?;
    keep("scram", "server_final", format!("v={key}").as_bytes())?;
    keep("scram", "server_error", b"e=invalid-proof")?;
    keep("scram", "verifier", Verifier::derive(b"secret", b"0123456789abcdef", 1).to_text().as_bytes())?;
    replication()?;
    texts()?;
    journal()
}
