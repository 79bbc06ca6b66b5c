// The server of the example: authorised shapes to read, and a small API to write.
// DATABASE_URL, SHAPES_URL, SHAPES_SECRET and PORT configure it.

import { createServer } from 'node:http'
import pg from 'pg'
import { proxyShape } from './proxy.mjs'

const { DATABASE_URL, SHAPES_URL = 'http://127.0.0.1:3000', SHAPES_SECRET, PORT = '3001' } = process.env
const database = new pg.Pool({ connectionString: DATABASE_URL, max: 4 })
await database.query(`CREATE TABLE IF NOT EXISTS tasks (
  id uuid PRIMARY KEY, owner text NOT NULL, title text NOT NULL, done bool NOT NULL DEFAULT false)`)

// A real application checks a session or a signed token.
const USERS = new Set(['ann', 'bob'])
function userOf(request) {
  const user = request.headers.authorization?.replace(/^Bearer /, '')
  return USERS.has(user) ? user : null
}

const WRITES = {
  PUT: [`INSERT INTO tasks (id, owner, title, done) VALUES ($1, $2, $3, $4)`, body => [body.title, body.done ?? false]],
  PATCH: [
    `UPDATE tasks SET title = coalesce($3, title), done = coalesce($4, done) WHERE id = $1 AND owner = $2`,
    body => [body.title, body.done],
  ],
  DELETE: [`DELETE FROM tasks WHERE id = $1 AND owner = $2`, () => []],
}

/** Runs a write and returns the transaction ID, which the client awaits in the shape. */
async function write([sql, values], id, user, body) {
  const client = await database.connect()
  try {
    await client.query('BEGIN')
    await client.query(sql, [id, user, ...values(body)])
    // The 32 bits that messages of a shape have.
    const { rows } = await client.query('SELECT pg_current_xact_id()::xid::text AS txid')
    await client.query('COMMIT')
    return { txid: Number(rows[0].txid) }
  } catch (error) {
    await client.query('ROLLBACK')
    throw error
  } finally {
    client.release()
  }
}

async function readBody(request) {
  let text = ''
  for await (const chunk of request) {
    text += chunk
    if (text.length > 10_000) throw new Error('the body is too large')
  }
  return text ? JSON.parse(text) : {}
}

function reply(response, status, body) {
  response.writeHead(status, { 'content-type': 'application/json', 'cache-control': 'no-store' })
  response.end(JSON.stringify(body))
}

const server = createServer(async (request, response) => {
  try {
    const user = userOf(request)
    if (!user) return reply(response, 401, { message: 'send Authorization: Bearer ann' })
    const { pathname } = new URL(request.url, 'http://localhost')
    if (pathname === '/shapes/tasks' && ['GET', 'POST'].includes(request.method)) {
      // Each user reads the own rows, without the column of the owner.
      const columns = 'id,title,done'
      const shape = { table: 'tasks', where: 'owner = $1', 'params[1]': user, columns, queryable_columns: columns }
      return await proxyShape(request, response, { base: SHAPES_URL, secret: SHAPES_SECRET, shape })
    }
    const id = /^\/api\/tasks\/([0-9a-f-]{36})$/.exec(pathname)?.[1]
    if (!id || !WRITES[request.method]) return reply(response, 404, { message: 'not found' })
    reply(response, 200, await write(WRITES[request.method], id, user, await readBody(request)))
  } catch (error) {
    if (!response.headersSent) reply(response, 400, { message: error.message })
  }
})
server.listen(Number(PORT), '127.0.0.1', () => console.log(`listening on http://127.0.0.1:${PORT}`))
