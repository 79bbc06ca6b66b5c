//! Writes the seeds of the corpus: `cargo run -p tidegate-fuzz --example seeds`.

use std::path::Path;

use tidegate_journal::{Ack, Class, Config, Journal, Note};
use tidegate_wire::auth::scram::Verifier;
use tidegate_wire::backend::{self, ErrorReport, TxStatus};
use tidegate_wire::frontend::{self, BindMessage, Kind};
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
    frontend::describe(Kind::Portal, b"p", out);
    frontend::execute(b"p", 0, out);
    frontend::close(Kind::Statement, b"s1", out);
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

/// A segment that was ended in order, one that was not, and the beginning of one.
fn journal() -> std::io::Result<()> {
    let folder = tempfile::tempdir()?;
    let (journal, _) = Journal::open(Config::new(folder.path())).map_err(std::io::Error::other)?;
    let producer = journal.producer();
    for number in 0..8 {
        let record = "x".repeat(number * 5);
        let note = Note::new(Class::new(0), record.as_bytes()).ack(Ack::Written);
        producer.commit_blocking(note).map_err(std::io::Error::other)?;
    }
    let _ = producer.offer(Note::new(Class::new(0), &vec![0; 2 << 20]));
    drop(journal);
    let segment = std::fs::read(folder.path().join("journal-00-0000000001.tgj"))?;
    for target in ["journal_reader", "journal_recovery"] {
        keep(target, "ended", &segment)?;
        keep(target, "not_ended", &segment[..segment.len() - 70])?;
        keep(target, "header", &segment[..64])?;
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
    journal()
}
