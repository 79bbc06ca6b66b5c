//! A table that is kept equal to a table of another server: the statement of the guide, and what other statements are refused.

use rustix::process::Signal;
use tidegate_sandbox::{Major, Postgres};

use crate::process::{Stream, StreamOutput, TempFolder, eventually, versions};

const GUIDE: &str = include_str!("../../../../docs/src/guide/changes.md");

/// Two servers with the table of the guide.
struct Tables {
    source: Postgres,
    sink: Postgres,
    folder: TempFolder,
}

/// The first block of a language in the section of the guide.
fn printed(language: &str) -> &'static str {
    let section = GUIDE.split("## Table to table\n").nth(1).expect("a section of the guide");
    let block = section.split(&format!("```{language}\n")).nth(1).expect("a block");
    block.split("```").next().expect("the end of the block")
}

fn execute(server: &Postgres, sql: &str) -> Vec<Vec<Option<String>>> {
    server.simple_query(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// All rows, with a digest of the large column.
fn rows(server: &Postgres) -> String {
    let sql = "select coalesce(string_agg(concat_ws(' ', id, title, md5(body)), ', ' order by id), '') from doc";
    execute(server, sql)[0][0].clone().unwrap_or_default()
}

/// A value that Postgres stores outside of the row.
const LARGE: &str = "(select string_agg(md5(n::text), '') from generate_series(1, 500) n)";

impl Tables {
    fn new(major: u8) -> Self {
        let start = |builder: tidegate_sandbox::PostgresBuilder| builder.version(Major(major)).start().unwrap();
        let source = start(Postgres::builder().setting("wal_level", "logical"));
        let sink = start(Postgres::builder());
        for server in [&source, &sink] {
            execute(server, printed("sql"));
            execute(server, "alter table doc alter body set storage external");
        }
        Self { source, sink, folder: TempFolder::new() }
    }

    fn change(&self, sql: &str) {
        execute(&self.source, sql);
    }

    fn until_equal(&self, step: &str) {
        let difference = || (rows(&self.source), rows(&self.sink));
        eventually(&format!("the tables are equal after: {step}"), || {
            let (source, sink) = difference();
            source == sink
        });
    }

    /// The stream of the guide, as it is printed but for servers and folder.
    fn guide(&self) -> Stream {
        let file = printed("toml")
            .replace("postgres://cdc@10.0.0.5/shop", &self.source.url())
            .replace("postgres://writer@10.0.0.6/shop", &self.sink.url())
            .replace("/var/lib/tidegate", &self.folder.path("state"));
        Stream::start(["-c", &self.folder.write("tidegate.toml", &file)])
    }

    /// A stream of the changes with another statement.
    fn start(&self, more: &[&str], sql: &str, params: &[&str]) -> Stream {
        let from = format!("{}?publication=doc", self.source.url());
        let to = self.sink.url();
        let fixed = ["--name", "doc", "--from", &from, "--to", &to, "--create", "--tables", "public.doc", "--sql", sql];
        let params = params.iter().flat_map(|param| ["--params", param]);
        Stream::start(fixed.into_iter().chain(["--snapshot", "none"]).chain(params).chain(more.iter().copied()))
    }

    /// The error of a stream with a statement that cannot handle a change.
    fn error(&self, sql: &str, params: &[&str], change: &str) -> String {
        let stream = self.start(&["--attempts", "1"], sql, params);
        eventually("the stream runs", || stream.errors().contains("change stream started"));
        self.change(change);
        let ended = stream.wait().expect(1);
        // The server may still see the connection.
        let drop = "select pg_drop_replication_slot('tidegate_doc')";
        eventually("the slot is dropped", || self.source.simple_query(drop).is_ok());
        ended.errors
    }
}

fn stop(stream: Stream) -> StreamOutput {
    stream.signal(Signal::TERM);
    stream.wait().expect(0)
}

/// The statement of the guide keeps the tables equal through every operation.
#[test]
fn guide_keeps_two_tables_equal() {
    for (major, identity) in versions().into_iter().zip(["default", "full"].into_iter().cycle()) {
        let tables = Tables::new(major);
        tables.change(&format!("alter table doc replica identity {identity}"));
        tables.change(&format!("insert into doc select n, 'copied', {LARGE} from generate_series(1, 5) n"));
        let stream = tables.guide();
        tables.until_equal("the copy");
        let mut changes = vec![
            format!("insert into doc values (6, 'new', {LARGE}), (7, null, null)"),
            "update doc set title = 'changed'".to_owned(),
            "update doc set body = 'small' where id = 2; update doc set body = null where id = 3".to_owned(),
            "delete from doc where id = 4".to_owned(),
            "update doc set id = 70, title = 'moved' where id = 7".to_owned(),
            "alter table doc add extra int; insert into doc values (8, 'after the definition', null, 1)".to_owned(),
            format!("truncate doc; insert into doc values (1, 'again', {LARGE})"),
            "update doc set title = 'last'".to_owned(),
        ];
        if identity == "full" {
            changes.insert(5, "update doc set id = 60 where id = 6".to_owned());
        }
        for change in changes {
            tables.change(&change);
            tables.until_equal(&change);
        }
        let ended = stop(stream);
        let is_logged = ended.errors.contains("record without a row is not given to sql");
        assert!(is_logged && ended.errors.contains("operation=schema"), "{}", ended.errors);
        // Rows that were deleted while changes were lost are not in the new copy.
        let drop = "select pg_drop_replication_slot('tidegate_doc')";
        eventually("the slot is dropped", || tables.source.simple_query(drop).is_ok());
        tables.change("delete from doc; insert into doc values (9)");
        let stream = tables.guide();
        tables.until_equal("lost changes");
        stop(stream);
    }
}

const UPSERT: &str = "insert into doc values ($1::bigint, $2, $3) on conflict (id) do update \
                      set title = excluded.title, body = excluded.body";

/// An update without a large value does not overwrite it with NULL.
#[test]
fn value_that_was_not_sent_is_not_overwritten() {
    for major in versions() {
        let tables = Tables::new(major);
        for server in [&tables.source, &tables.sink] {
            execute(server, &format!("insert into doc values (1, 'old', {LARGE})"));
        }
        let before = rows(&tables.sink);
        let params = ["/key/id", "/after/title", "/after/body"];
        let error = tables.error(UPSERT, &params, "update doc set title = 'new'");
        for part in ["update of public.doc", "column body", "REPLICA IDENTITY FULL", "unchanged:body"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert_eq!(rows(&tables.sink), before);
        // The row that had the value is deleted when the new key arrives.
        let params = ["/key/id", "/after/title", "/after/body", "header:op", "unchanged:body"];
        let sql = "insert into doc select $1::bigint, $2, $3 where $4 <> 'delete' and not $5::boolean";
        let error = tables.error(sql, &params, "update doc set id = 2");
        assert!(error.contains("before keys of rows are changed"), "{error}");
        assert_eq!(rows(&tables.sink), before);
    }
}

/// A delete, the delete of a changed key, and a TRUNCATE do not become rows of NULLs.
#[test]
fn deletes_do_not_become_rows() {
    let tables = Tables::new(18);
    let params = ["/key/id", "/after/title", "/after/body"];
    for (change, operation) in [
        ("insert into doc values (1); delete from doc", "delete from public.doc"),
        ("insert into doc values (2); update doc set id = 3", "delete from public.doc"),
        ("truncate doc", "TRUNCATE of public.doc"),
    ] {
        let error = tables.error(UPSERT, &params, change);
        assert!(error.contains(operation) && error.contains("add header:op to params"), "{error}");
        // The words are those of a stream.
        assert!(error.contains("slot tidegate_doc") && error.contains("start the stream again"), "{error}");
        assert!(!error.contains("subscription"), "{error}");
    }
    let all = execute(&tables.sink, "select id, title from doc order by id");
    assert_eq!(all, [1, 2].map(|id| vec![Some(id.to_string()), None]));
    // The records of a table with the replica identity FULL name no key.
    tables.change("alter table doc replica identity full; insert into doc values (5)");
    let sql = "delete from doc where id = $1 and $2 = 'delete'";
    let error = tables.error(sql, &["/key/id", "header:op"], "delete from doc");
    assert!(error.contains("/before/id"), "{error}");
}

/// An error of the server is reported with the operation and the table of the record, and with `attempts`.
#[test]
fn refused_change_is_named_in_the_error() {
    let tables = Tables::new(18);
    execute(&tables.sink, "alter table doc add check (id < 5)");
    let sql = "insert into doc (id) select $1::bigint where $2 <> 'x'";
    let error = tables.error(sql, &["/after/id", "header:op"], "insert into doc values (7)");
    assert!(error.contains("insert of public.doc: 23514") && error.contains("attempts = 0"), "{error}");
}
