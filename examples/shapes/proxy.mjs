// An authorising proxy in front of shapes. It decides what a user may read: the client sends neither a table nor a WHERE, and
// never sees the secret.

import { Readable } from 'node:stream'

// What the protocol needs from a client. Everything else is dropped.
const PARAMETERS = ['offset', 'handle', 'live', 'live_sse', 'cursor', 'log', 'cache-buster', 'expired_handle']

/** Answers a request with the shape that `shape` (parameters `table`, `where`, ...) defines. */
export async function proxyShape(request, response, { base, secret, shape }) {
  const url = new URL('/v1/shape', base)
  const given = new URL(request.url, 'http://localhost').searchParams
  for (const name of PARAMETERS) {
    if (given.has(name)) url.searchParams.set(name, given.get(name))
  }
  for (const [name, value] of Object.entries({ ...shape, ...(secret && { secret }) })) url.searchParams.set(name, value)
  const leaving = new AbortController()
  response.on('close', () => leaving.abort())
  try {
    const answer = await fetch(url, { signal: leaving.signal, headers: pick(request.headers, ['if-none-match', 'accept']) })
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

function pick(headers, names) {
  return Object.fromEntries(names.filter(name => headers[name]).map(name => [name, headers[name]]))
}
