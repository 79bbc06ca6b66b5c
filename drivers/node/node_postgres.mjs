// node-postgres: URL MODE.

import assert from 'node:assert/strict'
import { once } from 'node:events'
import { pipeline } from 'node:stream/promises'
import { Readable } from 'node:stream'
import pg from 'pg'
import Cursor from 'pg-cursor'
import copy from 'pg-copy-streams'
import { fails, run } from './checks.mjs'

const [url] = process.argv.slice(2)
const table = `node_postgres_${process.pid}`

async function connect(more = {}) {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 20_000, ...more })
  await client.connect()
  return client
}

async function withClient(work, more) {
  const client = await connect(more)
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}

const value = async (client, sql, values) => Object.values((await client.query(sql, values)).rows[0])[0]

await run({
  async connect() {
    for (let i = 0; i < 5; i++) await withClient(async client => assert.equal(await value(client, 'SELECT 1'), 1))
  },

  async simple() {
    await withClient(async client => {
      const [one, two] = await client.query('SELECT 1 AS a; SELECT 2 AS b')
      assert.deepEqual([one.rows[0].a, two.rows[0].b], [1, 2])
      await client.query('')
    })
  },

  async prepared() {
    const clients = await Promise.all(Array.from({ length: 8 }, () => connect()))
    await Promise.all(clients.map(async (client, number) => {
      for (let turn = 0; turn < 50; turn++) {
        await client.query('BEGIN')
        const plus = await client.query({ name: 'plus', text: 'SELECT $1::int + 1 AS n', values: [turn] })
        assert.equal(plus.rows[0].n, turn + 1)
        // One name, another text in each session.
        const own = { name: 'own', text: `SELECT $1::text || '-${number}' AS t`, values: ['x'] }
        assert.equal((await client.query(own)).rows[0].t, `x-${number}`)
        await client.query('COMMIT')
      }
    }))
    await Promise.all(clients.map(client => client.end()))
  },

  async pipeline() {
    await withClient(async client => {
      const all = Array.from({ length: 100 }, (_, number) => value(client, 'SELECT $1::int', [number]))
      assert.deepEqual(await Promise.all(all), Array.from({ length: 100 }, (_, number) => number))
    })
  },

  async copy() {
    await withClient(async client => {
      await client.query(`CREATE TABLE ${table} (n int, t text)`)
      const lines = Array.from({ length: 1000 }, (_, number) => `${number}\trow ${number}\n`)
      await pipeline(Readable.from(lines), client.query(copy.from(`COPY ${table} FROM STDIN`)))
      const chunks = []
      const out = client.query(copy.to(`COPY (SELECT * FROM ${table} ORDER BY n) TO STDOUT`))
      for await (const chunk of out) chunks.push(chunk)
      assert.equal(Buffer.concat(chunks).toString(), lines.join(''))
      await client.query(`DROP TABLE ${table}`)
    })
  },

  async cancel() {
    await withClient(async client => {
      const running = fails(client.query('SELECT pg_sleep(30)'), '57014')
      await new Promise(resolve => setTimeout(resolve, 300))
      await cancel(client)
      await running
      assert.equal(await value(client, 'SELECT 1'), 1)
    })
  },

  async errors() {
    await withClient(async client => {
      for (const values of [undefined, []]) {
        await fails(client.query('SELECT * FROM no_such_table', values), '42P01')
        assert.equal(await value(client, 'SELECT $1::int', [7]), 7)
        await fails(client.query('SELECT 1/0', values), '22012')
        assert.equal(await value(client, 'SELECT $1::int', [8]), 8)
      }
    })
  },

  async transaction() {
    await withClient(async client => {
      await client.query(`CREATE TABLE ${table} (n int)`)
      await client.query('BEGIN')
      await client.query(`INSERT INTO ${table} VALUES (1)`)
      await client.query('ROLLBACK')
      assert.equal(await value(client, `SELECT count(*)::int FROM ${table}`), 0)
      await client.query('BEGIN')
      await client.query(`INSERT INTO ${table} VALUES (1)`)
      const cursor = client.query(new Cursor('SELECT generate_series(1, 500) AS n'))
      let rows = 0
      for (let some; (some = await cursor.read(100)).length; ) rows += some.length
      await cursor.close()
      assert.equal(rows, 500)
      await client.query('COMMIT')
      assert.equal(await value(client, `SELECT count(*)::int FROM ${table}`), 1)
      await client.query(`DROP TABLE ${table}`)
    })
  },

  async tls() {
    const ssl = { rejectUnauthorized: false }
    await withClient(async client => assert.equal(await value(client, 'SELECT 1'), 1), { ssl })
  },

  async large() {
    await withClient(async client => {
      assert.equal((await value(client, "SELECT repeat('x', 5000000)")).length, 5_000_000)
      assert.equal(await value(client, 'SELECT length($1)', ['y'.repeat(3_000_000)]), 3_000_000)
      const { rows } = await client.query('SELECT n, md5(n::text) FROM generate_series(1, 20000) n')
      assert.equal(rows.length, 20_000)
    })
  },

  async parameters() {
    const names = Array.from({ length: 6 }, (_, number) => `at-login-${number}`)
    const clients = await Promise.all(names.map(application_name => connect({ application_name })))
    for (const [number, client] of clients.entries()) {
      assert.equal(await value(client, 'SHOW application_name'), names[number])
      await client.query(`SET application_name = 'set-${number}'`)
    }
    for (let turn = 0; turn < 5; turn++) {
      for (const [number, client] of clients.entries()) {
        assert.equal(await value(client, 'SHOW application_name'), `set-${number}`)
        await client.query('BEGIN; SET LOCAL search_path = pg_catalog')
        assert.equal(await value(client, 'SHOW search_path'), 'pg_catalog')
        await client.query('COMMIT')
      }
    }
    await Promise.all(clients.map(client => client.end()))
  },
})

// The driver cancels only through its pool's private means, so the request goes over a connection of its own.
async function cancel(client) {
  const connection = new pg.Connection()
  connection.connect(client.port, client.host)
  await once(connection, 'connect')
  connection.cancel(client.processID, client.secretKey)
  await once(connection, 'end')
}
