// postgres.js: URL MODE.

import assert from 'node:assert/strict'
import { pipeline } from 'node:stream/promises'
import { Readable } from 'node:stream'
import postgres from 'postgres'
import { fails, run } from './checks.mjs'

const [url] = process.argv.slice(2)
const table = `postgres_js_${process.pid}`

const pool = (more = {}) => postgres(url, { max: 1, connect_timeout: 20, onnotice: () => {}, ...more })

async function withSql(work, more) {
  const sql = pool(more)
  try {
    return await work(sql)
  } finally {
    await sql.end({ timeout: 5 })
  }
}

await run({
  async connect() {
    for (let i = 0; i < 5; i++) await withSql(async sql => assert.equal((await sql`SELECT 1 AS n`)[0].n, 1))
  },

  async simple() {
    await withSql(async sql => {
      const [one, two] = await sql`SELECT 1 AS a; SELECT 2 AS b`.simple()
      assert.deepEqual([one[0].a, two[0].b], [1, 2])
    })
  },

  async prepared() {
    await withSql(async sql => {
      const turns = Array.from({ length: 400 }, (_, turn) => sql.begin(async tx => {
        assert.equal((await tx`SELECT ${turn}::int + 1 AS n`)[0].n, turn + 1)
        assert.equal((await tx`SELECT ${'x'}::text || ${String(turn)} AS t`)[0].t, `x${turn}`)
      }))
      await Promise.all(turns)
    }, { max: 8 })
  },

  async pipeline() {
    await withSql(async sql => {
      const all = Array.from({ length: 100 }, (_, number) => sql`SELECT ${number}::int AS n`)
      const rows = await Promise.all(all)
      assert.deepEqual(rows.map(([row]) => row.n), Array.from({ length: 100 }, (_, number) => number))
    })
  },

  async copy() {
    await withSql(async sql => {
      await sql`CREATE TABLE ${sql(table)} (n int, t text)`
      const lines = Array.from({ length: 1000 }, (_, number) => `${number}\trow ${number}\n`)
      await pipeline(Readable.from(lines), await sql`COPY ${sql(table)} FROM STDIN`.writable())
      const chunks = []
      const out = await sql`COPY (SELECT * FROM ${sql(table)} ORDER BY n) TO STDOUT`.readable()
      for await (const chunk of out) chunks.push(chunk)
      assert.equal(Buffer.concat(chunks).toString(), lines.join(''))
      await sql`DROP TABLE ${sql(table)}`
    })
  },

  async cancel() {
    await withSql(async sql => {
      const query = sql`SELECT pg_sleep(30)`
      const running = fails(query, '57014')
      await new Promise(resolve => setTimeout(resolve, 300))
      await query.cancel()
      await running
      assert.equal((await sql`SELECT 1 AS n`)[0].n, 1)
    })
  },

  async errors() {
    await withSql(async sql => {
      await fails(sql`SELECT * FROM no_such_table`, '42P01')
      assert.equal((await sql`SELECT ${7}::int AS n`)[0].n, 7)
      await fails(sql`SELECT 1/0`, '22012')
      assert.equal((await sql`SELECT ${8}::int AS n`)[0].n, 8)
      await fails(sql`SELECT 1/0`.simple(), '22012')
      assert.equal((await sql`SELECT ${9}::int AS n`)[0].n, 9)
    })
  },

  async transaction() {
    await withSql(async sql => {
      await sql`CREATE TABLE ${sql(table)} (n int)`
      const undone = sql.begin(async tx => {
        await tx`INSERT INTO ${sql(table)} VALUES (1)`
        throw new Error('undo')
      })
      await assert.rejects(undone, /undo/)
      assert.equal((await sql`SELECT count(*)::int AS n FROM ${sql(table)}`)[0].n, 0)
      let rows = 0
      await sql.begin(async tx => {
        await tx`INSERT INTO ${sql(table)} VALUES (1)`
        await tx.savepoint(inner => inner`SELECT 1/0`).catch(() => {})
        for await (const some of tx`SELECT generate_series(1, 500)`.cursor(100)) rows += some.length
      })
      assert.equal(rows, 500)
      assert.equal((await sql`SELECT count(*)::int AS n FROM ${sql(table)}`)[0].n, 1)
      await sql`DROP TABLE ${sql(table)}`
    })
  },

  async tls() {
    await withSql(async sql => assert.equal((await sql`SELECT 1 AS n`)[0].n, 1), { ssl: 'require' })
  },

  async large() {
    await withSql(async sql => {
      assert.equal((await sql`SELECT repeat('x', 5000000) AS t`)[0].t.length, 5_000_000)
      assert.equal((await sql`SELECT length(${'y'.repeat(3_000_000)}) AS n`)[0].n, 3_000_000)
      assert.equal((await sql`SELECT n, md5(n::text) FROM generate_series(1, 20000) n`).length, 20_000)
    })
  },

  async parameters() {
    const names = Array.from({ length: 6 }, (_, number) => `at-login-${number}`)
    const pools = names.map(application_name => pool({ connection: { application_name } }))
    for (const [number, sql] of pools.entries()) {
      assert.equal((await sql`SHOW application_name`)[0].application_name, names[number])
      await sql.unsafe(`SET application_name = 'set-${number}'`)
    }
    for (let turn = 0; turn < 5; turn++) {
      for (const [number, sql] of pools.entries()) {
        assert.equal((await sql`SHOW application_name`)[0].application_name, `set-${number}`)
        await sql.begin(async tx => {
          await tx`SET LOCAL search_path = pg_catalog`
          assert.equal((await tx`SHOW search_path`)[0].search_path, 'pg_catalog')
        })
      }
    }
    await Promise.all(pools.map(sql => sql.end({ timeout: 5 })))
  },
})
