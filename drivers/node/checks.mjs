// How a check is run and what it says: its name, a tab, ok, FAIL or skip, and why.

import assert from 'node:assert/strict'

const LIMIT_MS = 60_000

function late(name) {
  return new Promise((_, reject) => {
    setTimeout(() => reject(new Error(`${name} takes longer than ${LIMIT_MS} ms`)), LIMIT_MS).unref()
  })
}

export async function run(checks) {
  for (const [name, check] of Object.entries(checks)) {
    try {
      await Promise.race([check(), late(name)])
      console.log(`${name}\tok`)
    } catch (error) {
      console.error(error)
      console.log(`${name}\tFAIL\t${String(error?.message ?? error).replace(/\s+/g, ' ')}`)
    }
  }
  process.exit(0)
}

// Expects `promise` to fail with this SQLSTATE.
export async function fails(promise, sqlstate) {
  const error = await promise.then(() => null, error => error)
  assert.equal(error?.code, sqlstate, error?.message)
}
