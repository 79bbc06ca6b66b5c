// An authorising proxy in front of shapes. It decides what a user may read: the client sends neither a table nor a WHERE, and
// never sees the secret.

import { Readable } from 'node:stream'

// What the protocol needs from a client. Everything else is dropped.
const PARAMETERS = ['offset', 'handle', 'live', 'live_sse', 'cursor', 'log', 'cache-buster', 'expired_handle']
// Collections that load on demand ask for parts of the shape, in the URL or in the body of a POST.
const SUBSET = ['subset__where', 'subset__params', 'subset__order_by', 'subset__limit', 'subset__offset']
const BODY_LENGTH_MAX = 100_000

/**
 * Answers a request with the shape that `shape` (parameters `table`, `where`, ...) defines. A subset is limited to its rows, and to
 * `queryable_columns` in what it compares.
 */
export async function proxyShape(request, response, { base, secret, shape }) {
  const url = new URL('/v1/shape', base)
  const given = new URL(request.url, 'http://localhost').searchParams
  for (const name of [...PARAMETERS, ...SUBSET]) {
    if (given.has(name)) url.searchParams.set(name, given.get(name))
  }
  for (const [name, value] of Object.entries({ ...shape, ...(secret && { secret }) })) url.searchParams.set(name, value)
  const leaving = new AbortController()
  response.on('close', () => leaving.abort())
  try {
    const body = request.method === 'POST' ? await readBody(request) : undefined
    const passedHeaders = pick(request.headers, ['if-none-match', 'accept', 'content-type'])
    const answer = await fetch(url, { method: request.method, body, signal: leaving.signal, headers: passedHeaders })
    const headers = Object.fromEntries(answer.headers)
    // The answer was decoded, and belongs to this user: no shared cache may give it to another one.
    delete headers['content-encoding']
    delete headers['content-length']
    headers['cache-control'] = (headers['cache-control'] ?? '').replace('public', 'private')
    headers.vary = 'authorization'
    response.writeHead(answer.status, headers)
    if (answer.body) Readable.fromWeb(answer.body).on('error', () => response.destroy()).pipe(response)
    else response.end()
  } catch (error) {
    if (leaving.signal.aborted) return
    response.writeHead(502, { 'content-type': 'application/json', 'cache-control': 'no-store' })
    response.end(JSON.stringify({ message: `no answer of the shape server: ${error.message}` }))
  }
}

async function readBody(request) {
  const chunks = []
  let length = 0
  for await (const chunk of request) {
    length += chunk.length
    if (length > BODY_LENGTH_MAX) throw new Error('the body is too large')
    chunks.push(chunk)
  }
  return Buffer.concat(chunks)
}

function pick(headers, names) {
  return Object.fromEntries(names.filter(name => headers[name]).map(name => [name, headers[name]]))
}
