// A table of tasks that follows the database. Changes are shown immediately and confirmed when they come back in the shape.

import { createCollection } from '@tanstack/db'
import { electricCollectionOptions } from '@tanstack/electric-db-collection'

type Task = { id: string; title: string; done: boolean }

// Who is logged in: `?user=bob`. A real application has a session.
const user = new URLSearchParams(location.search).get('user') ?? 'ann'
const headers = { authorization: `Bearer ${user}` }

/** Sends a change to the server and returns the transaction that made it. */
async function write(method: string, id: string, body?: Partial<Task>): Promise<{ txid: number }> {
  const answer = await fetch(`/api/tasks/${id}`, {
    method,
    headers: { ...headers, 'content-type': 'application/json' },
    body: body && JSON.stringify(body),
  })
  if (!answer.ok) throw new Error(await answer.text())
  return answer.json()
}

const tasks = createCollection(
  electricCollectionOptions<Task>({
    id: 'tasks',
    getKey: task => task.id,
    shapeOptions: { url: `${location.origin}/shapes/tasks`, headers },
    onInsert: ({ transaction }) => {
      const { id, title, done } = transaction.mutations[0].modified
      return write('PUT', id, { title, done })
    },
    onUpdate: ({ transaction }) => {
      const [{ original, changes }] = transaction.mutations
      return write('PATCH', original.id, changes)
    },
    onDelete: ({ transaction }) => write('DELETE', transaction.mutations[0].original.id),
  }),
)

const element = <T extends HTMLElement>(id: string) => document.getElementById(id) as T
const status = element('status')
element('user').textContent = user

function attempt(change: { isPersisted: { promise: Promise<unknown> } }) {
  change.isPersisted.promise.catch(error => {
    status.textContent = `Not saved: ${error.message}`
  })
}

function row(task: Task) {
  const done = Object.assign(document.createElement('input'), { type: 'checkbox', checked: task.done })
  done.setAttribute('aria-label', `Done: ${task.title}`)
  done.onchange = () => attempt(tasks.update(task.id, draft => { draft.done = done.checked }))
  const remove = Object.assign(document.createElement('button'), { textContent: 'Remove' })
  remove.onclick = () => attempt(tasks.delete(task.id))
  const line = document.createElement('tr')
  line.dataset.id = task.id
  line.className = task.done ? 'done' : ''
  for (const content of [done, task.title, remove]) {
    const cell = document.createElement('td')
    cell.append(content)
    line.append(cell)
  }
  return line
}

function show() {
  const sorted = [...tasks.toArray].sort((a, b) => a.title.localeCompare(b.title))
  element('tasks').replaceChildren(...sorted.map(row))
  status.textContent = tasks.status === 'ready' ? `${sorted.length} tasks` : 'Loading …'
}

element<HTMLFormElement>('add').onsubmit = event => {
  event.preventDefault()
  const title = element<HTMLInputElement>('title')
  attempt(tasks.insert({ id: crypto.randomUUID(), title: title.value, done: false }))
  title.value = ''
}

tasks.subscribeChanges(show, { includeInitialState: true })
await tasks.preload()
show()
