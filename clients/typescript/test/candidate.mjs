#!/usr/bin/env node
// The program that the tests run: the same as ../../python/tests/candidate.py.
//
//   candidate.mjs GROUP NODE [SECONDS]   lead once, and work for that long
//   candidate.mjs watch GROUP            print each event
//
// Every line of output is a JSON object. Exit codes: 75 the lease ended, 1 another error.
import { writeSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client, TenureError, TermEnded } from '../dist/index.js'

const env = process.env
const clock = () => Number(process.hrtime.bigint()) / 1e6
const say = (event, more) => writeSync(1, JSON.stringify({ event, ...more }) + '\n')

/** Writes to the fenced resource, if there is one. */
async function write(term) {
  if (!env.TEST_SINK) return say('works', { term: term.token, remaining: term.remaining() })
  const answer = await fetch(env.TEST_SINK, { method: 'POST', body: 'x', headers: term.headers(), signal: AbortSignal.timeout(30_000) })
  await answer.arrayBuffer()
  if (answer.ok) say('works', { term: term.token })
  else say('refused', { term: term.token, status: answer.status })
}

async function work(term, seconds) {
  say('leads', { term: term.token, deployment: term.deployment, fenced: term.fenced, remaining: term.remaining() })
  const end = clock() + seconds * 1000
  const stuck = Boolean(env.TEST_STUCK)
  while (clock() < end) {
    try {
      term.check()
    } catch {
      if (!stuck) break
    }
    await write(term)
    await sleep(50, undefined, stuck ? {} : { signal: term.signal }).catch(() => {})
  }
  const request = term.request && { verb: term.request.verb, to: term.request.to }
  say('stopped', { term: term.token, reason: term.reason ?? '', request: request ?? null, at: clock() })
  if (env.TEST_LATE) await write(term)
}

async function main(args) {
  if (args[0] === 'watch') {
    for await (const e of Client.fromEnv('watcher').watch(args[1])) {
      say(e.kind, { group: e.group, state: e.state, term: e.term, leader_node_id: e.leaderNodeId, reason: e.reason })
    }
  }
  const client = Client.fromEnv(args[1])
  const options = { ttlMs: Number(env.TENURE_TTL_MS ?? 8000), exitOnOverrun: !env.TEST_LATE }
  if (env.TEST_TIMEOUT_MS) options.timeoutMs = Number(env.TEST_TIMEOUT_MS)
  try {
    for (let n = Number(env.TEST_TERMS ?? 1); n > 0; n--) {
      await client.lead(args[0], (term) => work(term, Number(args[2] ?? Infinity)), options)
      say('resigned')
    }
  } catch (e) {
    if (e instanceof TermEnded) {
      say('lost', { term: e.token, reason: e.reason })
      process.exit(75)
    }
    if (!(e instanceof TenureError)) throw e
    say('error', { code: e.code, retryable: e.retryable })
    process.exit(1)
  }
}

await main(process.argv.slice(2))
