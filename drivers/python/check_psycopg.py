"""psycopg 3: URL MODE."""

import os
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import psycopg
from checks import equal, report

URL, MODE = sys.argv[1:3]
TABLE = f"psycopg_{os.getpid()}"


def connect(**more):
    return psycopg.connect(URL, autocommit=True, connect_timeout=20, **more)


def check_connect():
    for _ in range(5):
        with connect() as connection:
            equal(connection.execute("SELECT 1").fetchone(), (1,))


def check_simple():
    with connect() as connection:
        cursor = connection.execute("SELECT 1; SELECT 2")
        equal(cursor.fetchone(), (1,))
        assert cursor.nextset()
        equal(cursor.fetchone(), (2,))
        equal(connection.execute("").description, None)


def check_prepared():
    connections = [connect(prepare_threshold=0) for _ in range(8)]
    for turn in range(50):
        for number, connection in enumerate(connections):
            with connection.transaction():
                equal(connection.execute("SELECT %s::int + 1", (turn,)).fetchone(), (turn + 1,))
                equal(connection.execute("SELECT %s::text || 'x'", (str(number),)).fetchone(), (f"{number}x",))
    for connection in connections:
        # More statements than the driver keeps: the oldest are deallocated.
        connection.prepared_max = 5
        for number in range(20):
            equal(connection.execute(f"SELECT {number} + %s::int", (1,)).fetchone(), (number + 1,))
        connection.close()


def check_pipeline():
    with connect(prepare_threshold=0) as connection:
        with connection.pipeline():
            cursors = [connection.execute("SELECT %s::int", (number,)) for number in range(100)]
        equal([cursor.fetchone()[0] for cursor in cursors], list(range(100)))
        try:
            with connection.pipeline():
                connection.execute("SELECT 1")
                connection.execute("SELECT 1/%s::int", (0,))
                connection.execute("SELECT 3")
            raise AssertionError("no error in the pipeline")
        except psycopg.errors.DivisionByZero:
            pass
        equal(connection.execute("SELECT 4").fetchone(), (4,))
        # More statements than the driver keeps: the oldest are deallocated in the pipeline.
        connection.prepared_max = 5
        with connection.pipeline():
            cursors = [connection.execute(f"SELECT {number} + %s::int", (1,)) for number in range(20)]
        equal([cursor.fetchone()[0] for cursor in cursors], list(range(1, 21)))


def check_copy():
    with connect() as connection:
        connection.execute(f"CREATE TABLE {TABLE} (n int, t text)")
        with connection.cursor() as cursor:
            with cursor.copy(f"COPY {TABLE} FROM STDIN") as copy:
                for number in range(1000):
                    copy.write_row((number, f"row {number}"))
            with cursor.copy(f"COPY (SELECT * FROM {TABLE} ORDER BY n) TO STDOUT") as copy:
                rows = list(copy.rows())
        equal((len(rows), rows[999]), (1000, ("999", "row 999")))
        try:
            with connection.cursor().copy(f"COPY {TABLE} FROM STDIN") as copy:
                copy.write("not a number\tx\n")
            raise AssertionError("a bad row was taken")
        except psycopg.errors.InvalidTextRepresentation:
            pass
        connection.execute(f"DROP TABLE {TABLE}")


def check_cancel():
    with connect() as connection:
        timer = threading.Timer(0.3, connection.cancel)
        timer.start()
        start = time.monotonic()
        try:
            connection.execute("SELECT pg_sleep(30)")
            raise AssertionError("not cancelled")
        except psycopg.errors.QueryCanceled as error:
            equal(error.sqlstate, "57014")
        assert time.monotonic() - start < 20
        timer.join()
        equal(connection.execute("SELECT 1").fetchone(), (1,))


def check_errors():
    with connect() as connection:
        for sql, sqlstate in [("SELECT * FROM no_such_table", "42P01"), ("SELECT 1/0", "22012"), ("SELEC", "42601")]:
            try:
                connection.execute(sql)
                raise AssertionError(f"{sql} succeeded")
            except psycopg.Error as error:
                equal(error.sqlstate, sqlstate)
            equal(connection.execute("SELECT %s::int", (7,)).fetchone(), (7,))


def check_transaction():
    with connect() as connection:
        connection.execute(f"CREATE TABLE {TABLE} (n int)")
        try:
            with connection.transaction():
                connection.execute(f"INSERT INTO {TABLE} VALUES (1)")
                raise psycopg.Rollback
        except psycopg.Rollback:
            pass
        equal(connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone(), (0,))
        with connection.transaction():
            connection.execute(f"INSERT INTO {TABLE} VALUES (1)")
            try:
                with connection.transaction():
                    connection.execute("SELECT 1/0")
            except psycopg.errors.DivisionByZero:
                pass
            with connection.cursor(name="portal") as cursor:
                cursor.execute("SELECT generate_series(1, 500)")
                cursor.itersize = 100
                equal(sum(row[0] for row in cursor), 125250)
        equal(connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone(), (1,))
        connection.execute(f"DROP TABLE {TABLE}")


def check_tls():
    # Bound to the certificate: libpq refuses a login that is not.
    with connect(sslmode="require", channel_binding="require") as connection:
        assert connection.pgconn.ssl_in_use
        equal(connection.execute("SELECT 1").fetchone(), (1,))


def check_large():
    with connect() as connection:
        for binary in (False, True):
            value = connection.execute("SELECT repeat('x', 5000000)", binary=binary).fetchone()[0]
            equal(len(value), 5000000)
        equal(connection.execute("SELECT length(%s)", ("y" * 3000000,)).fetchone(), (3000000,))
        rows = connection.execute("SELECT n, md5(n::text) FROM generate_series(1, 20000) n").fetchall()
        equal(len(rows), 20000)


def check_parameters():
    connections = [connect(application_name=f"at-login-{number}") for number in range(6)]
    for number, connection in enumerate(connections):
        equal(connection.execute("SHOW application_name").fetchone(), (f"at-login-{number}",))
        connection.execute(f"SET application_name = 'set-{number}'")
        connection.execute("SET TimeZone = 'Asia/Tokyo'" if number % 2 else "SET TimeZone = 'UTC'")
    for _ in range(5):
        for number, connection in enumerate(connections):
            equal(connection.execute("SHOW application_name").fetchone(), (f"set-{number}",))
            equal(connection.execute("SHOW TimeZone").fetchone(), ("Asia/Tokyo" if number % 2 else "UTC",))
            equal(connection.info.parameter_status("TimeZone"), "Asia/Tokyo" if number % 2 else "UTC")
            with connection.transaction():
                connection.execute("SET LOCAL search_path = pg_catalog")
                equal(connection.execute("SHOW search_path").fetchone(), ("pg_catalog",))
    for connection in connections:
        connection.close()


for name, check in [(name[6:], check) for name, check in list(globals().items()) if name.startswith("check_")]:
    try:
        check()
        report(name)
    except Exception as error:
        report(name, error)
