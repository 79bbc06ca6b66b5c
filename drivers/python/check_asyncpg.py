"""asyncpg: URL MODE."""

import asyncio
import io
import os
import ssl
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import asyncpg
from checks import equal, report

URL, MODE = sys.argv[1:3]
TABLE = f"asyncpg_{os.getpid()}"


async def connect(**more):
    return await asyncpg.connect(URL, timeout=20, ssl=more.pop("ssl", False), **more)


async def check_connect():
    for _ in range(5):
        connection = await connect()
        equal(await connection.fetchval("SELECT 1"), 1)
        await connection.close()


async def check_simple():
    connection = await connect()
    equal(await connection.execute("SELECT 1; SELECT 2, 3 FROM generate_series(1, 4)"), "SELECT 4")
    await connection.close()


async def check_prepared():
    connections = [await connect(statement_cache_size=20) for _ in range(8)]

    async def use(number, connection):
        statement = await connection.prepare("SELECT $1::int + 1")
        for turn in range(50):
            async with connection.transaction():
                equal(await statement.fetchval(turn), turn + 1)
                equal(await connection.fetchval("SELECT $1::text || 'x'", str(number)), f"{number}x")
        for number in range(40):
            equal(await connection.fetchval(f"SELECT {number} + $1::int", 1), number + 1)
        await connection.close()

    await asyncio.gather(*(use(number, connection) for number, connection in enumerate(connections)))


async def check_pipeline():
    connection = await connect()
    await connection.execute(f"CREATE TABLE {TABLE} (n int)")
    await connection.executemany(f"INSERT INTO {TABLE} VALUES ($1)", [(number,) for number in range(1000)])
    equal(await connection.fetchval(f"SELECT sum(n) FROM {TABLE}"), 499500)
    try:
        await connection.executemany(f"INSERT INTO {TABLE} VALUES (1/$1::int)", [(1,), (0,), (1,)])
        raise AssertionError("no error in the batch")
    except asyncpg.DivisionByZeroError:
        pass
    equal(await connection.fetchval(f"SELECT count(*) FROM {TABLE}"), 1000)
    await connection.execute(f"DROP TABLE {TABLE}")
    await connection.close()


async def check_copy():
    connection = await connect()
    await connection.execute(f"CREATE TABLE {TABLE} (n int, t text)")
    rows = [(number, f"row {number}") for number in range(1000)]
    equal(await connection.copy_records_to_table(TABLE, records=rows), "COPY 1000")
    out = io.BytesIO()
    await connection.copy_from_query(f"SELECT * FROM {TABLE} ORDER BY n", output=out)
    equal(out.getvalue().splitlines()[999], b"999\trow 999")
    await connection.execute(f"DROP TABLE {TABLE}")
    await connection.close()


async def check_cancel():
    connection = await connect()
    try:
        await connection.fetchval("SELECT pg_sleep(30)", timeout=0.3)
        raise AssertionError("not cancelled")
    except asyncio.TimeoutError:
        pass
    equal(await connection.fetchval("SELECT 1"), 1)
    try:
        await connection.execute("SET statement_timeout = '200ms'; SELECT pg_sleep(30)")
        raise AssertionError("not cancelled")
    except asyncpg.QueryCanceledError as error:
        equal(error.sqlstate, "57014")
    await connection.close()


async def check_errors():
    connection = await connect()
    for sql, sqlstate in [("SELECT * FROM no_such_table", "42P01"), ("SELECT 1/0", "22012"), ("SELEC", "42601")]:
        for run in (connection.fetchval, connection.execute):
            try:
                await run(sql)
                raise AssertionError(f"{sql} succeeded")
            except asyncpg.PostgresError as error:
                equal(error.sqlstate, sqlstate)
            equal(await connection.fetchval("SELECT $1::int", 7), 7)
    await connection.close()


async def check_transaction():
    connection = await connect()
    await connection.execute(f"CREATE TABLE {TABLE} (n int)")
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(f"INSERT INTO {TABLE} VALUES (1)")
    await transaction.rollback()
    equal(await connection.fetchval(f"SELECT count(*) FROM {TABLE}"), 0)
    async with connection.transaction():
        await connection.execute(f"INSERT INTO {TABLE} VALUES (1)")
        try:
            async with connection.transaction():
                await connection.execute("SELECT 1/0")
        except asyncpg.DivisionByZeroError:
            pass
        total = 0
        async for row in connection.cursor("SELECT generate_series(1, 500)", prefetch=100):
            total += row[0]
        equal(total, 125250)
    equal(await connection.fetchval(f"SELECT count(*) FROM {TABLE}"), 1)
    await connection.execute(f"DROP TABLE {TABLE}")
    await connection.close()


async def check_tls():
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = await connect(ssl=context)
    equal(await connection.fetchval("SELECT 1"), 1)
    await connection.close()


async def check_large():
    connection = await connect()
    equal(len(await connection.fetchval("SELECT repeat('x', 5000000)")), 5000000)
    equal(await connection.fetchval("SELECT length($1)", "y" * 3000000), 3000000)
    rows = await connection.fetch("SELECT n, md5(n::text) FROM generate_series(1, 20000) n")
    equal(len(rows), 20000)
    await connection.close()


async def check_parameters():
    settings = [{"application_name": f"at-login-{number}"} for number in range(6)]
    connections = [await connect(server_settings=setting) for setting in settings]
    for number, connection in enumerate(connections):
        equal(await connection.fetchval("SHOW application_name"), f"at-login-{number}")
        await connection.execute(f"SET application_name = 'set-{number}'")
    for _ in range(5):
        for number, connection in enumerate(connections):
            equal(await connection.fetchval("SHOW application_name"), f"set-{number}")
            async with connection.transaction():
                await connection.execute("SET LOCAL search_path = pg_catalog")
                equal(await connection.fetchval("SHOW search_path"), "pg_catalog")
    for connection in connections:
        await connection.close()


async def main():
    for name, check in [(name[6:], check) for name, check in list(globals().items()) if name.startswith("check_")]:
        try:
            await asyncio.wait_for(check(), 60)
            report(name)
        except Exception as error:
            report(name, error)


asyncio.run(main())
