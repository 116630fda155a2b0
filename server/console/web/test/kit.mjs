// What the browser tests share: services as processes, calls of their API, a browser.
// The Go test starts them with
//   TENURE_BIN       the tenure program
//   CHROMIUM         the browser
//   CONSOLE_MODULES  a folder with node_modules
//   SCREENSHOTS      where to keep pictures
import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

const require = createRequire(join(process.env.CONSOLE_MODULES, 'node_modules/'))
const { chromium } = require('playwright-core')
export const axe = require('axe-core').source

// patience bounds every wait. It is long, so that a busy machine does not matter.
export const patience = 60_000

const ends = []
// atEnd calls f when the tests are over, the last one first.
export const atEnd = (f) => ends.push(f)
export async function end() {
  while (ends.length) await ends.pop()()
}

export function folder() {
  const dir = mkdtempSync(join(tmpdir(), 'tenure-console-'))
  atEnd(() => rmSync(dir, { recursive: true, force: true }))
  return dir
}

export function freePort() {
  return new Promise((done) => {
    const s = createServer().listen(0, '127.0.0.1', () => {
      const { port } = s.address()
      s.close(() => done(port))
    })
  })
}

// run starts a program and waits for its first line of JSON. It ends with the tests.
export function run(program, args) {
  const child = spawn(program, args, { stdio: ['pipe', 'pipe', 'pipe'] })
  let log = ''
  child.stderr.on('data', (d) => (log += d))
  const exited = new Promise((done) => child.on('exit', done))
  const stop = async (signal = 'SIGTERM') => {
    child.kill(signal)
    await exited
  }
  atEnd(() => stop('SIGKILL'))
  return new Promise((done, fail) => {
    // Not "exit": what it has written may come after that.
    child.on('close', (code) => fail(new Error(`${program} ${args.join(' ')} ended with ${code}:\n${log}`)))
    createInterface(child.stdout).once('line', (line) => done({ ...JSON.parse(line), stop, child }))
  })
}

// serve starts a service with an embedded engine. It can be stopped and started again.
export async function serve(...args) {
  const port = await freePort()
  const dir = folder()
  const s = { url: `http://127.0.0.1:${port}`, dir }
  s.start = async () => {
    s.process = await run(process.env.TENURE_BIN, ['serve', '--until-eof', `--listen=127.0.0.1:${port}`, `--data-dir=${join(dir, 'data')}`, '--ttl=60s', '--audit=' + join(dir, 'audit'), ...args])
  }
  s.stop = (signal) => s.process.stop(signal)
  await s.start()
  return s
}

// credential makes a bearer credential and returns it with its entry for the service.
export async function credential(name) {
  const made = await run(process.env.TENURE_BIN, ['serve', 'credential', name])
  return made
}

export function write(dir, name, value) {
  const path = join(dir, name)
  writeFileSync(path, JSON.stringify(value), { mode: 0o600 })
  return path
}

// api calls a service as a program does. An error has the problem.
export async function api(s, method, path, body, headers = {}) {
  const resp = await fetch(s.url + '/v1' + path, { method, headers, body: body && JSON.stringify(body), signal: AbortSignal.timeout(patience) })
  const answer = await resp.json()
  if (!resp.ok) throw Object.assign(new Error(`${method} ${path}: ${resp.status} ${JSON.stringify(answer)}`), answer)
  return answer
}

let instances = 0
export const instance = () => `console-test-instance-${String(++instances).padStart(6, '0')}`

export const campaign = (s, group, node_id, more, headers) => api(s, 'POST', `/groups/${group}/campaign`, { node_id, instance: instance(), ...more }, headers)
export const resign = (s, l, headers) => api(s, 'POST', `/groups/${l.group}/resign`, { node_id: l.leader_node_id, term: l.term, handle: l.handle }, headers)

// obey renews a term until an operator asks for it, and resigns then. It returns the request.
export async function obey(s, l) {
  for (;;) {
    const r = await api(s, 'POST', `/groups/${l.group}/renew`, { node_id: l.leader_node_id, term: l.term, handle: l.handle })
    if (r.requests?.length) {
      await resign(s, l)
      return r.requests[0]
    }
    await new Promise((next) => setTimeout(next, 50))
  }
}

// many makes n groups that one session leads.
export async function many(s, prefix, n, node_id = 'node-many', width = 5) {
  const session = await api(s, 'POST', '/sessions', { node_id, instance: instance(), groups: [prefix + '*'], ttl_ms: 300_000 })
  const names = Array.from({ length: n }, (_, i) => prefix + (width ? String(i).padStart(width, '0') : i))
  for (let i = 0; i < n; i += 1000) {
    let left = names.slice(i, i + 1000)
    while (left.length) {
      const got = await api(s, 'POST', `/sessions/${session.handle}/campaign`, { groups: left })
      left = got.refused.map((r) => r.group)
    }
  }
  return session
}

let shared
export async function browser() {
  if (shared) return shared
  shared = await chromium.launch({
    executablePath: process.env.CHROMIUM, headless: true, timeout: patience,
    args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'],
  })
  atEnd(() => {
    const b = shared
    shared = undefined
    return b.close()
  })
  return shared
}

// open opens a new page, with a browser profile of its own. Errors of the page fail the test.
export async function open(t, s, hash = '', options = {}) {
  const context = await (await browser()).newContext({ viewport: { width: 1280, height: 760 }, reducedMotion: 'reduce', locale: 'en-GB', timezoneId: 'UTC', ...options })
  context.setDefaultTimeout(patience)
  const page = await context.newPage()
  page.foreign = []
  page.failures = []
  page.on('request', (r) => { if (!r.url().startsWith(s.url + '/') && !r.url().startsWith('data:')) page.foreign.push(r.url()) })
  page.on('pageerror', (e) => page.failures.push(String(e)))
  page.on('console', (m) => { if (m.type() === 'error' && !/Failed to load resource/.test(m.text())) page.failures.push(m.text()) })
  t.after(async () => {
    await context.close()
    if (page.failures.length || page.foreign.length) throw new Error(`the page: ${page.failures.join('; ')} ${page.foreign.join(' ')}`)
  })
  await page.goto(s.url + '/ui/' + hash)
  return page
}

export const row = (page, group) => page.locator(`[data-group="${group}"]`)
export const live = (page) => page.locator('.pill[data-state=live]').waitFor()
export const shot = (page, name) => page.screenshot({ path: join(process.env.SCREENSHOTS, name + '.png') })
