// What the page knows: groups from the stream of all groups, rules from the attributes.
import { batch, computed, signal } from '@preact/signals'
import { get, login, me, observed, pages, request } from './api.js'

// link is the connection: connecting, live or lost. Nothing is current unless it is live and the
// service sees its engine.
export const link = signal({ state: 'connecting', since: Date.now(), why: '' })
export const engine = signal({ state: 'unknown', since: Date.now() })
export const current = computed(() => link.value.state === 'live' && engine.value.state === 'ok')
export const now = signal(Date.now()) // moves once a second
export const refusal = signal('') // why the service refuses this caller everything
export const changes = signal(0) // moves with every change of groups

let groups = new Map()
let names = []
let sorted = true
let rules = new Map() // name of a group → its attributes
let skew = 0 // of the service's wall clock

export const serverNow = () => now.value + skew
export const group = (name) => (changes.value, groups.get(name))
export const rule = (name) => (changes.value, rules.get(name))

const dead = (name) => rules.get(name)?.deleted === 'yes' && groups.get(name)?.state !== 'led'

// all lists the groups by name, without deleted ones.
export const all = computed(() => {
  changes.value
  if (!sorted) {
    names = [...new Set([...groups.keys(), ...[...rules].filter(([, r]) => r.declared === 'yes').map(([g]) => g)])].filter((g) => !dead(g)).sort()
    sorted = true
  }
  return names.map((g) => groups.get(g) ?? { group: g, state: 'vacant' })
})

function apply(o) {
  for (const g of o.groups ?? []) {
    const known = groups.get(g.group)
    if (g.state === 'gone') {
      groups.delete(g.group)
      sorted = false
      continue
    }
    if (!known || rules.get(g.group)?.deleted) sorted = false
    // at: when this page saw the change; not set for what was so before.
    groups.set(g.group, { ...g, at: o.whole || (known && known.term === g.term && known.state === g.state) ? known?.at : Date.now() })
  }
}

let pending // a whole set of groups that is not complete yet

function take(event, o) {
  if (event === 'state') {
    skew = o.now_ms - Date.now()
    if (engine.value.state !== o.engine) engine.value = { state: o.engine, since: Date.now() }
    if (link.value.state !== 'live') link.value = { state: 'live', since: Date.now(), why: '' }
    return
  }
  if (o.whole) pending = { whole: true, groups: [] }
  if (pending) {
    pending.groups.push(...(o.groups ?? []))
    if (o.more) return
    o = pending
    pending = null
    const before = groups
    groups = new Map()
    sorted = false
    for (const g of o.groups) {
      const b = before.get(g.group)
      groups.set(g.group, { ...g, at: b && (b.term !== g.term || b.state !== g.state) ? Date.now() : b?.at })
    }
  } else apply(o)
  changes.value++
}

const silence = 7000 // the service says something every 2 s
let heard = 0
let stop = null
let lastID = ''

// lost says since when what is shown is not current: since the service was last heard.
function lost(why) {
  if (link.value.state === 'lost') link.value = { ...link.value, why }
  else link.value = { state: 'lost', since: heard || Date.now(), why }
}

function look() {
  now.value = Date.now()
  if (stop && heard && Date.now() - heard > silence) {
    lost('The service is silent.')
    stop.abort()
  }
}

async function listen() {
  stop = new AbortController()
  const timer = setTimeout(() => stop.abort(), silence)
  const resp = await request('GET', '/overview', { signal: stop.signal, headers: lastID ? { 'Last-Event-ID': lastID } : {} }).finally(() => clearTimeout(timer))
  pending = null
  heard = Date.now()
  const reader = resp.body.pipeThrough(new TextDecoderStream()).getReader()
  for (let text = ''; ; ) {
    const { value, done } = await reader.read()
    if (done) return
    heard = Date.now()
    text += value
    const end = text.lastIndexOf('\n\n')
    if (end < 0) continue
    const events = text.slice(0, end).split('\n\n')
    text = text.slice(end + 2)
    batch(() => {
      for (const e of events) {
        let event = '', data = '', id = ''
        for (const line of e.split('\n')) {
          if (line.startsWith('event: ')) event = line.slice(7)
          else if (line.startsWith('data: ')) data = line.slice(6)
          else if (line.startsWith('id: ')) id = line.slice(4)
        }
        if (data) take(event, JSON.parse(data))
        if (id) lastID = id
      }
    })
  }
}

// wake ends the pause between two attempts.
let wake = () => {}
export const retry = () => wake()

export async function run() {
  setInterval(look, 1000)
  document.addEventListener('visibilitychange', look)
  for (let pause = 250; ; ) {
    const mine = identity
    try {
      refusal.value = ''
      const who = await get('/whoami')
      if (mine !== identity) continue
      me.value = who
      login.value = null
      readRules()
      await listen()
      pause = 250
      lost('The service ended the stream.')
    } catch (e) {
      if (mine !== identity) continue
      if (link.value.state === 'live') pause = 250
      if (e.status === 403) refusal.value = e.message
      lost(e.status ? e.message : 'The service does not answer.')
    }
    stop = null
    await new Promise((r) => {
      wake = r
      if (login.value === null) setTimeout(r, pause * (0.75 + Math.random() / 2))
    })
    pause = Math.min(2 * pause, 2000)
  }
}

let identity = 0 // moves when the caller becomes another one

// forget drops what another identity has seen.
export function forget() {
  identity++
  groups = new Map()
  rules = new Map()
  sorted = false
  lastID = ''
  link.value = { state: 'connecting', since: Date.now(), why: '' }
  changes.value++
  stop?.abort()
  wake()
}

let reading = null

// readRules reads the rules of groups: which were declared and deleted. They change rarely.
export function readRules() {
  clearTimeout(reading)
  reading = setTimeout(readRules, 30_000)
  const mine = identity
  return Promise.all(observed().map((p) => pages('list-attributes', { prefix: 'group/' + p }, 'attributes', (a) => a.name)))
    .then((lists) => {
      if (mine !== identity) return
      rules = new Map(lists.flat().map((a) => [a.name.slice(6), a.values ?? {}]))
      sorted = false
      changes.value++
    })
    .catch(() => {}) // the connection says so
}

// route is the page in the address: ['groups', 'orders-17'].
export const route = signal(parse())
function parse() {
  let text = location.hash.slice(2)
  try {
    text = decodeURIComponent(text)
  } catch {} // it is shown as it is
  const [page, ...rest] = text.split('/')
  return [page || 'groups', rest.join('/')]
}
addEventListener('hashchange', () => (route.value = parse()))
export const link_to = (page, name) => '#/' + page + (name ? '/' + encodeURIComponent(name) : '')
