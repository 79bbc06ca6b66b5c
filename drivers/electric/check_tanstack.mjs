// @tanstack/electric-db-collection against a server of shapes: POSTGRES_URL SHAPES_URL.

import assert from 'node:assert/strict'
import pg from 'pg'
import { createCollection, createLiveQueryCollection, eq } from '@tanstack/db'
import { electricCollectionOptions } from '@tanstack/electric-db-collection'
import { run } from '../node/checks.mjs'

const [databaseUrl, baseUrl] = process.argv.slice(2)
const url = `${baseUrl}/v1/shape`
const sql = new pg.Client({ connectionString: databaseUrl })
await sql.connect()

let number = 0

async function table(columns) {
  const name = `tanstack_${process.pid}_${++number}`
  await sql.query(`CREATE TABLE ${name} (${columns})`)
  return name
}

/** Runs a write and returns its transaction ID, as messages of shapes have it. */
async function write(text, values) {
  await sql.query('BEGIN')
  await sql.query(text, values)
  const { rows } = await sql.query('SELECT pg_current_xact_id()::xid::text AS txid')
  await sql.query('COMMIT')
  return { txid: Number(rows[0].txid) }
}

async function until(condition, state) {
  const end = Date.now() + 30_000
  while (!condition()) {
    if (Date.now() > end) throw new Error(`never: ${JSON.stringify(state?.())}`)
    await new Promise(resolve => setTimeout(resolve, 10))
  }
}

/** Runs `work` with a collection of a table that writes to the database. */
async function collection(name, work, options = {}) {
  const rows = createCollection(
    electricCollectionOptions({
      id: name,
      getKey: row => row.id,
      shapeOptions: { url, params: { table: name, ...options.params }, ...options.shape },
      onInsert: ({ transaction }) => {
        const { id, title, done } = transaction.mutations[0].modified
        return write(`INSERT INTO ${name} VALUES ($1, $2, $3)`, [id, title, done])
      },
      onUpdate: ({ transaction }) => {
        const { original, changes } = transaction.mutations[0]
        return write(`UPDATE ${name} SET title = coalesce($2, title) WHERE id = $1`, [original.id, changes.title])
      },
      onDelete: ({ transaction }) => write(`DELETE FROM ${name} WHERE id = $1`, [transaction.mutations[0].original.id]),
      ...options.collection,
    }),
  )
  try {
    return await work(rows)
  } finally {
    await rows.cleanup()
  }
}

async function tasks() {
  const name = await table('id int4 PRIMARY KEY, title text, done bool')
  await sql.query(`INSERT INTO ${name} SELECT n, 'task ' || n, n % 2 = 0 FROM generate_series(1, 50) n`)
  return name
}

const titles = rows => [...rows.toArray].sort((a, b) => a.id - b.id).map(row => row.title)

/** Loads, follows changes of others, and confirms own changes by their transaction IDs. */
async function follows(options) {
  const name = await tasks()
  await collection(name, async rows => {
    await rows.preload()
    assert.equal(rows.size, 50)
    assert.deepEqual([rows.get(2).title, rows.get(2).done], ['task 2', true])
    await sql.query(`UPDATE ${name} SET title = 'changed' WHERE id = 1; DELETE FROM ${name} WHERE id > 3`)
    await until(() => rows.size === 3 && rows.get(1).title === 'changed', () => titles(rows))
    // A mutation is persisted when its transaction has come back in the shape.
    await rows.insert({ id: 100, title: 'mine', done: false }).isPersisted.promise
    await rows.update(100, draft => { draft.title = 'mine, changed' }).isPersisted.promise
    assert.deepEqual(titles(rows), ['changed', 'task 2', 'task 3', 'mine, changed'])
    await rows.delete(100).isPersisted.promise
    assert.equal(rows.has(100), false)
  }, options)
}

await run({
  async eager() {
    await follows()
  },

  async events() {
    await follows({ shape: { liveSse: true } })
  },

  async rollback() {
    const name = await tasks()
    await collection(name, async rows => {
      await rows.preload()
      // The primary key exists: the optimistic row disappears again.
      const insert = rows.insert({ id: 1000, title: null, done: false })
      await assert.rejects(insert.isPersisted.promise)
      assert.equal(rows.has(1000), false)
    }, { collection: { onInsert: () => Promise.reject(new Error('refused')) } })
  },

  async where() {
    const name = await tasks()
    const params = { where: 'done = $1 AND id <= $2', params: ['true', '10'] }
    await collection(name, async rows => {
      await rows.preload()
      assert.equal(rows.size, 5)
      await sql.query(`UPDATE ${name} SET done = NOT done WHERE id IN (1, 2, 20)`)
      await until(() => rows.has(1) && !rows.has(2), () => titles(rows))
      assert.equal(rows.size, 5)
    }, { params })
  },

  async query() {
    const name = await tasks()
    await collection(name, async rows => {
      const open = createLiveQueryCollection({
        query: q => q.from({ task: rows }).where(({ task }) => eq(task.done, false)).orderBy(({ task }) => task.id, 'desc').limit(3),
        startSync: true,
      })
      await open.preload()
      assert.deepEqual(open.toArray.map(task => task.id), [49, 47, 45])
      await sql.query(`UPDATE ${name} SET done = true WHERE id = 47`)
      await until(() => open.toArray[1]?.id === 45, () => open.toArray)
      await open.cleanup()
    })
  },

  async ondemand() {
    const name = await tasks()
    await collection(name, async rows => {
      const some = createLiveQueryCollection({
        query: q => q.from({ task: rows }).where(({ task }) => eq(task.id, 7)),
        startSync: true,
      })
      await some.preload()
      await until(() => some.size === 1, () => some.toArray)
      assert.ok(rows.size < 50, `${rows.size} rows are loaded`)
      await sql.query(`UPDATE ${name} SET title = 'seven' WHERE id = 7`)
      await until(() => some.toArray[0]?.title === 'seven', () => some.toArray)
      await some.cleanup()
    }, { collection: { syncMode: 'on-demand' } })
  },

  async progressive() {
    const name = await tasks()
    await collection(name, async rows => {
      await rows.preload()
      await until(() => rows.size === 50, () => rows.size)
      await sql.query(`DELETE FROM ${name} WHERE id > 5`)
      await until(() => rows.size === 5, () => rows.size)
    }, { collection: { syncMode: 'progressive' } })
  },

  async truncate() {
    const name = await tasks()
    await collection(name, async rows => {
      await rows.preload()
      await sql.query(`BEGIN; TRUNCATE ${name}; INSERT INTO ${name} VALUES (5, 'again', null); COMMIT`)
      await until(() => rows.size === 1 && rows.get(5)?.title === 'again', () => titles(rows))
    })
  },
})
