// @electric-sql/client against a server of shapes: POSTGRES_URL SHAPES_URL.

import assert from 'node:assert/strict'
import pg from 'pg'
import { Shape, ShapeStream, isChangeMessage } from '@electric-sql/client'
import { run } from '../node/checks.mjs'

const [databaseUrl, baseUrl] = process.argv.slice(2)
const url = `${baseUrl}/v1/shape`
const sql = new pg.Client({ connectionString: databaseUrl })
await sql.connect()

let number = 0

async function table(columns) {
  const name = `electric_${process.pid}_${++number}`
  await sql.query(`CREATE TABLE ${name} (${columns})`)
  return name
}

/** Runs `work` with a stream that is aborted at the end. */
async function following(params, work, options = {}) {
  const aborter = new AbortController()
  const stream = new ShapeStream({ url, params, signal: aborter.signal, ...options })
  try {
    return await work(stream)
  } finally {
    aborter.abort()
  }
}

/** Waits until the rows of a shape satisfy a condition. */
function until(shape, condition) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`rows: ${JSON.stringify(shape.currentRows)}`)), 30_000)
    const look = () => {
      if (!condition(shape.currentRows)) return
      clearTimeout(timer)
      resolve(shape.currentRows)
    }
    shape.subscribe(look)
    look()
  })
}

const byId = rows => [...rows].sort((a, b) => Number(a.id - b.id))

async function followChanges(options) {
  const name = await table('id int8 PRIMARY KEY, title text, done bool')
  await sql.query(`INSERT INTO ${name} VALUES (1, 'one', false), (2, 'two', true)`)
  await following({ table: name }, async stream => {
    const shape = new Shape(stream)
    assert.deepEqual(byId(await shape.rows), [
      { id: 1n, title: 'one', done: false },
      { id: 2n, title: 'two', done: true },
    ])
    await sql.query(`UPDATE ${name} SET title = 'uno' WHERE id = 1`)
    await until(shape, rows => rows.some(row => row.title === 'uno'))
    await sql.query(`BEGIN; DELETE FROM ${name} WHERE id = 2; INSERT INTO ${name} VALUES (3, 'three', null); COMMIT`)
    const rows = await until(shape, rows => rows.some(row => row.id === 3n))
    assert.deepEqual(byId(rows), [{ id: 1n, title: 'uno', done: false }, { id: 3n, title: 'three', done: null }])
    await sql.query(`UPDATE ${name} SET id = 4 WHERE id = 3`)
    await until(shape, rows => rows.some(row => row.id === 4n) && rows.length === 2)
  }, options)
}

/** Rows of a shape with a subquery move in and out, in one log: the client never loads the shape again. */
async function moveRows(options) {
  const issues = await table('id int8 PRIMARY KEY, project int, title text')
  const members = await table('project int, name text, PRIMARY KEY (project, name)')
  await sql.query(`INSERT INTO ${issues} VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 2, 'c'), (4, null, 'd')`)
  await sql.query(`INSERT INTO ${members} VALUES (1, 'ann'), (2, 'bob')`)
  const where = `project IN (SELECT project FROM ${members} WHERE name = $1)`
  await following({ table: issues, where, params: ['ann'] }, async stream => {
    const shape = new Shape(stream)
    const has = ids => rows => JSON.stringify(byId(rows).map(row => Number(row.id))) === JSON.stringify(ids)
    assert.ok(has([1])(await shape.rows))
    const handle = stream.shapeHandle
    const moved = []
    stream.subscribe(messages => moved.push(...messages.filter(isChangeMessage)))
    await sql.query(`INSERT INTO ${members} VALUES (2, 'ann')`)
    await until(shape, has([1, 2, 3]))
    await sql.query(`UPDATE ${issues} SET title = 'new' WHERE id = 2`)
    await until(shape, rows => rows.some(row => row.title === 'new'))
    await sql.query(`DELETE FROM ${members} WHERE project = 1`)
    await until(shape, has([2, 3]))
    // The membership and the rows change in one transaction, whose identifier the client gets with the rows that move.
    moved.length = 0
    await sql.query('BEGIN')
    const { rows: [{ txid }] } = await sql.query('SELECT pg_current_xact_id()::xid::text AS txid')
    await sql.query(`INSERT INTO ${members} VALUES (1, 'ann'); DELETE FROM ${members} WHERE project = 2 AND name = 'ann'`)
    await sql.query(`INSERT INTO ${issues} VALUES (5, 1, 'e'); UPDATE ${issues} SET project = 1 WHERE id = 3; COMMIT`)
    await until(shape, has([1, 3, 5]))
    assert.ok(moved.every(message => message.headers.txids.includes(Number(txid))), JSON.stringify(moved.map(m => m.headers)))
    await sql.query(`UPDATE ${members} SET name = 'eve' WHERE name = 'ann'`)
    await until(shape, has([]))
    assert.equal(stream.shapeHandle, handle)
  }, options)
}

await run({
  async empty() {
    const name = await table('id int8 PRIMARY KEY')
    await following({ table: name }, async stream => assert.deepEqual(await new Shape(stream).rows, []))
  },

  async follow() {
    await followChanges()
  },

  async events() {
    await followChanges({ liveSse: true })
  },

  async resume() {
    const name = await table('id int8 PRIMARY KEY, title text')
    await sql.query(`INSERT INTO ${name} VALUES (1, 'one')`)
    const position = await following({ table: name }, async stream => {
      await new Shape(stream).rows
      return { handle: stream.shapeHandle, offset: stream.lastOffset }
    })
    await sql.query(`INSERT INTO ${name} VALUES (2, 'two')`)
    await following({ table: name }, async stream => {
      const received = []
      await new Promise(resolve => stream.subscribe(messages => {
        received.push(...messages)
        if (messages.some(isChangeMessage)) resolve()
      }))
      assert.deepEqual(received.filter(isChangeMessage).map(message => message.value.id), [2n])
    }, position)
  },

  async columns() {
    const name = await table('id int8 PRIMARY KEY, title text, secret text')
    await sql.query(`INSERT INTO ${name} VALUES (1, 'one', 'hidden')`)
    await following({ table: name, columns: ['id', 'title'] }, async stream =>
      assert.deepEqual(await new Shape(stream).rows, [{ id: 1n, title: 'one' }]))
  },

  async where() {
    const name = await table('id int8 PRIMARY KEY, owner text')
    await sql.query(`INSERT INTO ${name} VALUES (1, 'a'), (2, 'b')`)
    await following({ table: name, where: 'owner = $1', params: ['a'] }, async stream => {
      const shape = new Shape(stream)
      assert.deepEqual(await shape.rows, [{ id: 1n, owner: 'a' }])
      await sql.query(`UPDATE ${name} SET owner = 'a' WHERE id = 2`)
      await until(shape, rows => rows.length === 2)
      await sql.query(`UPDATE ${name} SET owner = 'c' WHERE id = 1`)
      await until(shape, rows => rows.length === 1 && rows[0].id === 2n)
    })
  },

  async moves() {
    await moveRows()
  },

  async moveevents() {
    await moveRows({ liveSse: true })
  },

  async full() {
    const name = await table('id int8 PRIMARY KEY, a text, b text')
    await sql.query(`INSERT INTO ${name} VALUES (1, 'a', 'b')`)
    await following({ table: name, replica: 'full' }, async stream => {
      const update = new Promise(resolve => stream.subscribe(messages => {
        const found = messages.find(message => isChangeMessage(message) && message.headers.operation === 'update')
        if (found) resolve(found)
      }))
      await new Shape(stream).rows
      await sql.query(`UPDATE ${name} SET a = 'x'`)
      const message = await update
      assert.deepEqual(message.value, { id: 1n, a: 'x', b: 'b' })
      assert.deepEqual(message.old_value, { a: 'a' })
    })
  },

  async truncate() {
    const name = await table('id int8 PRIMARY KEY')
    await sql.query(`INSERT INTO ${name} VALUES (1), (2)`)
    await following({ table: name }, async stream => {
      const shape = new Shape(stream)
      assert.equal((await shape.rows).length, 2)
      await sql.query(`BEGIN; TRUNCATE ${name}; INSERT INTO ${name} VALUES (3); COMMIT`)
      await until(shape, rows => rows.length === 1 && rows[0].id === 3n)
    })
  },

  async snapshot() {
    const name = await table('id int8 PRIMARY KEY, n int')
    await sql.query(`INSERT INTO ${name} SELECT g, g % 3 FROM generate_series(1, 30) g`)
    await following({ table: name }, async stream => {
      const rows = new Map()
      stream.subscribe(messages => messages.filter(isChangeMessage).forEach(message => rows.set(message.key, message.value)))
      await stream.requestSnapshot({ where: 'n = 1', orderBy: 'id DESC', limit: 5 })
      const wait = async () => { while (rows.size < 5) await new Promise(resolve => setTimeout(resolve, 20)) }
      await Promise.race([wait(), new Promise((_, reject) => setTimeout(() => reject(new Error(`${rows.size} rows`)), 20_000))])
      assert.deepEqual([...rows.values()].map(row => row.id).sort((a, b) => Number(b - a)), [28n, 25n, 22n, 19n, 16n])
    }, { log: 'changes_only', offset: 'now' })
  },

  async types() {
    const name = await table('id int8 PRIMARY KEY, f float8, n numeric(10,2), b bool, j jsonb, t timestamptz, a int[], y bytea')
    await sql.query(`INSERT INTO ${name} VALUES (1, 1.5, 2.50, true, '{"k": [1, null]}', '2024-01-02 03:04:05+02', '{1,null,3}', '\\xff00')`)
    await following({ table: name }, async stream => assert.deepEqual(await new Shape(stream).rows, [{
      id: 1n, f: 1.5, n: '2.50', b: true, j: { k: [1, null] }, t: '2024-01-02 01:04:05+00', a: [1, null, 3], y: '\\xff00',
    }]))
  },
})

await sql.end()
process.exit(0)
