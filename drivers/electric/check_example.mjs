// The example examples/shapes in two windows of headless Chromium: POSTGRES_URL SHAPES_URL.

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { createServer } from 'node:net'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { startChromium } from '../../testkit/chromium/chromium.mjs'
import { run } from '../node/checks.mjs'

const [databaseUrl, baseUrl] = process.argv.slice(2)
const folder = fileURLToPath(new URL('../../examples/shapes/', import.meta.url))
const sql = new pg.Client({ connectionString: databaseUrl })
await sql.connect()

const programs = []
process.on('exit', () => programs.forEach(program => program.kill()))

function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer().on('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address()
      server.close(() => resolve(port))
    })
  })
}

/** Starts a program of the example and waits for a line of its output. */
function start(args, env, line) {
  const program = spawn(process.execPath, args, { cwd: folder, env: { ...process.env, ...env }, stdio: ['ignore', 'pipe', 'pipe'] })
  programs.push(program)
  return new Promise((resolve, reject) => {
    let text = ''
    const read = chunk => {
      text += chunk
      if (line.test(text)) resolve()
    }
    program.stdout.on('data', read)
    program.stderr.on('data', read)
    program.on('exit', code => reject(new Error(`${args[0]} has ended (${code}): ${text}`)))
  })
}

const [server, page] = [await freePort(), await freePort()]
const appServer = `http://127.0.0.1:${server}`
const app = `http://127.0.0.1:${page}/`

async function open(browser, user) {
  const window = await browser.open()
  await window.send('Page.navigate', { url: `${app}?user=${user}` })
  await window.until("/tasks$/.test(document.getElementById('status')?.textContent)", 'the tasks are loaded')
  return window
}

const titles = window => window.evaluate("[...document.querySelectorAll('#tasks tr')].map(row => row.cells[1].textContent)")
const shows = (window, title) => window.until(`[...document.querySelectorAll('#tasks td')].some(cell => cell.textContent === '${title}')`, title)

let browser
await run({
  async start() {
    const env = { DATABASE_URL: databaseUrl, SHAPES_URL: baseUrl, PORT: String(server), APP_SERVER: appServer }
    await start(['server.mjs'], env, /listening/)
    await start(['node_modules/vite/bin/vite.js', 'preview', '--host', '127.0.0.1', '--port', String(page), '--strictPort'], env, /Local/)
    browser = await startChromium()
  },

  async windows() {
    await sql.query(`INSERT INTO tasks VALUES (gen_random_uuid(), 'ann', 'first', false), (gen_random_uuid(), 'bob', 'hidden', false)`)
    const [one, two] = [await open(browser, 'ann'), await open(browser, 'ann')]
    assert.deepEqual(await titles(one), ['first'])
    // A change of another program.
    await sql.query(`INSERT INTO tasks VALUES (gen_random_uuid(), 'ann', 'second', false)`)
    await Promise.all([shows(one, 'second'), shows(two, 'second')])
    // A change in one window appears in the other, and in the database.
    await one.evaluate("document.getElementById('title').value = 'third'; document.querySelector('#add button').click()")
    await Promise.all([shows(one, 'third'), shows(two, 'third')])
    await two.evaluate("[...document.querySelectorAll('#tasks tr')].find(row => row.textContent.includes('third')).querySelector('input').click()")
    await one.until("document.querySelectorAll('#tasks tr.done').length === 1", 'the task is done in the other window')
    const { rows } = await sql.query("SELECT owner, done FROM tasks WHERE title = 'third'")
    assert.deepEqual(rows, [{ owner: 'ann', done: true }])
    await one.evaluate("[...document.querySelectorAll('#tasks tr')].find(row => row.textContent.includes('first')).querySelector('button').click()")
    await two.until("document.querySelectorAll('#tasks tr').length === 2", 'the task is removed in the other window')
    assert.deepEqual(await titles(two), ['second', 'third'])
    assert.deepEqual([one.errors, two.errors], [[], []])
  },

  async users() {
    const other = await open(browser, 'bob')
    assert.deepEqual(await titles(other), ['hidden'])
  },

  async proxy() {
    const shape = (query, user) => fetch(`${appServer}/shapes/tasks?${query}`, { headers: user ? { authorization: `Bearer ${user}` } : {} })
    assert.equal((await shape('offset=-1')).status, 401)
    assert.equal((await shape('offset=-1', 'eve')).status, 401)
    // A client cannot choose the table, the rows or the columns.
    const answer = await shape('offset=-1&table=pg_authid&where=true&columns=id,owner&secret=x', 'bob')
    assert.equal(answer.status, 200)
    assert.match(answer.headers.get('cache-control'), /^private/)
    const rows = (await answer.json()).filter(message => message.key)
    assert.deepEqual(rows.map(row => row.value.title), ['hidden'])
    assert.deepEqual(Object.keys(rows[0].value).sort(), ['done', 'id', 'title'])
    const { txid } = await (await fetch(`${appServer}/api/tasks/${crypto.randomUUID()}`, {
      method: 'PUT', headers: { authorization: 'Bearer bob' }, body: JSON.stringify({ title: 'x' }),
    })).json()
    assert.ok(Number.isInteger(txid), String(txid))
  },

  async stop() {
    await browser.close()
    programs.forEach(program => program.removeAllListeners('exit'))
  },
})
