// Calls of the service. The credential stays in this tab: in memory and sessionStorage.
import { signal } from '@preact/signals'

const kept = 'tenure-credential'
let credential = sessionStorage.getItem(kept) ?? ''

// login asks for a credential: null, or why one is needed.
export const login = signal(null)
// me is the answer of GET /whoami.
export const me = signal(null)

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The service answered ${status}.`)
    this.status = status
    this.code = body.code ?? ''
    this.body = body
  }
}

export function setCredential(text) {
  credential = text
  if (text) sessionStorage.setItem(kept, text)
  else sessionStorage.removeItem(kept)
}

export const hasCredential = () => credential !== ''

// request sends one request. A refusal is a Problem; no answer is a TypeError or an abort.
export async function request(method, path, { body, headers, signal: ended } = {}) {
  const used = credential
  const resp = await fetch('../v1' + path, {
    method,
    headers: {
      ...(credential && { Authorization: 'Bearer ' + credential }),
      ...(body !== undefined && { 'Content-Type': 'application/json' }),
      ...headers,
    },
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: 'no-store',
    credentials: 'same-origin',
    redirect: 'error',
    signal: ended,
  })
  if (resp.ok) return resp
  const problem = new Problem(resp.status, await resp.json().catch(() => ({})))
  // A late answer to a credential that was replaced says nothing about the present one.
  if (resp.status === 401 && used === credential) {
    login.value = hasCredential() ? problem.message : ''
    me.value = null
  }
  throw problem
}

const patience = 40_000 // longer than any ?wait= of the page

export async function call(method, path, options = {}) {
  const resp = await request(method, path, { signal: AbortSignal.timeout(patience), ...options })
  return resp.json()
}

export const get = (path) => call('GET', path)
export const post = (path, body, headers) => call('POST', path, { body, headers })

// may reports whether the caller has a verb on a group; '' is all groups. The service decides:
// this chooses what to show.
export function may(verb, group) {
  return (me.value?.grants ?? []).some((g) => (group === '' ? g.prefix === '' : group.startsWith(g.prefix)) && g.verbs.includes(verb))
}

// observed lists the prefixes that the caller may observe.
export function observed() {
  const all = (me.value?.grants ?? []).filter((g) => g.verbs.includes('observe')).map((g) => g.prefix)
  return [...new Set(all)].filter((p) => !all.some((q) => q !== p && p.startsWith(q)))
}

// pages reads all pages of a list of /store/…, at most 20.
export async function pages(path, body, field, key) {
  const all = []
  for (let after = '', n = 0; n < 20; n++) {
    const page = (await post('/store/' + path, { ...body, limit: 1000, ...(after && { after }) }))[field] ?? []
    all.push(...page)
    if (page.length < 1000) break
    after = key(page.at(-1))
  }
  return all
}
