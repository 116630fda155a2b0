// Nodes with their sessions, cordons and drains.
import { useState } from 'preact/hooks'
import { may, observed, pages } from './api.js'
import { all, current } from './model.js'
import { acted, askNode } from './steer.jsx'
import { lookFor } from './groups.jsx'
import { List, plural, Trouble, usePoll } from './parts.jsx'

const scopes = () => observed().map((p) => p + '*')

export function Nodes() {
  const [seen, setSeen] = useState(null)
  const [find, setFind] = useState('')
  const everything = may('observe', '')
  usePoll(async (here) => {
    try {
      const sessions = await pages('sessions', { scope: scopes() }, 'sessions', (s) => s.session)
      const attributes = everything ? await pages('list-attributes', { prefix: 'node/' }, 'attributes', (a) => a.name) : []
      if (here()) setSeen({ sessions, cordons: new Map(attributes.filter((a) => a.values?.cordon).map((a) => [a.name.slice(5), a.values.cordon])) })
    } catch (e) {
      if (here()) setSeen((s) => ({ ...s, failed: e.message }))
    }
  }, 3000, [acted.value, current.value])
  const leads = new Map()
  for (const g of all.value) if (g.state === 'led') leads.set(g.leader_node_id, (leads.get(g.leader_node_id) ?? 0) + 1)
  const sessions = seen?.sessions ?? []
  const of = new Map([...leads.keys(), ...(seen?.cordons?.keys() ?? [])].map((n) => [n, []]))
  for (const s of sessions) of.set(s.candidate.id, [...(of.get(s.candidate.id) ?? []), s])
  const names = [...of.keys()].filter((n) => n.includes(find)).sort()
  const admin = may('admin', '')
  const cell = (node) => {
    const own = of.get(node)
    const why = seen?.cordons?.get(node)
    const n = leads.get(node) ?? 0
    return (
      <>
        <span role="cell" class="name">{node}</span>
        <span role="cell" class="who">
          {!current.value ? <span class="leader was">unknown</span> : why ? <span class="tag bad">{n ? `cordoned, still leads ${n.toLocaleString('en')}` : 'cordoned'}</span> : own.length ? <span class="tag good">alive</span> : <span class="tag">no session</span>}
          {why && <span class="faint"> {why}</span>}
        </span>
        <span role="cell" class="num"><button type="button" class="sort" onClick={() => lookFor(node)} disabled={!n}>{n ? plural(n, 'group') : '–'}</button></span>
        <span role="cell" class="sess">
          {own.slice(0, 3).map((s) => <span class="tag" key={s.session} title={s.session}>{s.scope.slice(0, 2).join(' ')}{s.scope.length > 2 ? ` +${s.scope.length - 2}` : ''} · TTL {s.ttl_ms / 1000} s{s.fenced ? ' · fenced' : ''}</span>)}
          {own.length > 3 && <span class="faint">and {own.length - 3} more sessions</span>}
        </span>
        <span role="cell" class="buttons">
          {admin && (why
            ? <button type="button" disabled={!current.value} onClick={() => askNode('uncordon', node)}>Uncordon…</button>
            : <button type="button" disabled={!current.value} onClick={() => askNode('cordon', node)}>Cordon…</button>)}
          {admin && may('step-down', '') && <button type="button" disabled={!current.value || !n} onClick={() => askNode('drain', node)}>Drain…</button>}
        </span>
      </>
    )
  }
  return (
    <section class="pane nodes" aria-label="Nodes">
      <div class="tools">
        <input id="search" type="search" placeholder="Search nodes   ( / )" aria-label="Search nodes" value={find} onInput={(e) => setFind(e.currentTarget.value)} />
        <span class="tally" role="status">{plural(names.length, 'node')}, {plural(sessions.length, 'session')}</span>
      </div>
      {!everything && <p class="note">You may not observe all groups, so cordons are not shown.</p>}
      <Trouble text={seen?.failed} />
      <List
        label="Nodes" items={names} height={matchMedia('(max-width: 700px)').matches ? 88 : 36} keyOf={(n) => n}
        row={(n, i) => <div role="row" class="row node-row" key={n} aria-rowindex={i} data-node={n}>{cell(n)}</div>}
        head={
          <div role="rowgroup"><div role="row" class="row node-row head" aria-rowindex={1}>
            <span role="columnheader" class="name">Node</span><span role="columnheader" class="who">State</span><span role="columnheader" class="num">Leads</span><span role="columnheader" class="sess">Sessions</span><span role="columnheader" class="buttons">Actions</span>
          </div></div>
        }
      />
    </section>
  )
}
