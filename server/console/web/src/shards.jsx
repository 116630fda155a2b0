// The shards of a set as a map. A shard is a group SET-INDEX; its rules are attributes.
import { useState } from 'preact/hooks'
import { may, pages } from './api.js'
import { all, current, group, link_to, now, route } from './model.js'
import { plural, Trouble, usePoll } from './parts.jsx'

const most = 4000 // cells that are drawn
const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ'
const moved = 30_000

// parse reads "shard/SET", "shard/SET/weight/NODE", "shard/SET/pin/INDEX".
function parse(attributes) {
  const sets = new Map()
  for (const { name, values } of attributes) {
    const [, set, kind, key] = name.split('/')
    if (!sets.has(set)) sets.set(set, { count: 0, weights: {}, pins: {} })
    const s = sets.get(set)
    if (!kind) s.count = +values?.count || 0
    if (kind === 'weight' && values?.weight) s.weights[key] = values.weight
    if (kind === 'pin' && values?.candidate) s.pins[key] = values.candidate
  }
  for (const [set, s] of sets) if (!s.count) sets.delete(set)
  return sets
}

export function Shards() {
  const [seen, setSeen] = useState({})
  usePoll(async (here) => {
    try {
      const sets = parse(await pages('list-attributes', { prefix: 'shard/' }, 'attributes', (a) => a.name))
      if (here()) setSeen({ sets })
    } catch (e) {
      if (here()) setSeen((s) => ({ ...s, failed: e.message }))
    }
  }, 5000, [current.value])
  if (!may('observe', '')) return <section class="pane" aria-label="Shards"><p class="empty">Sets of shards are shown to those who may observe all groups.</p></section>
  const sets = seen.sets ?? new Map()
  const name = route.value[1] || sets.keys().next().value
  const set = sets.get(name)
  const cells = []
  const owners = new Map()
  all.value // the map follows every change
  for (let i = 0; set && i < Math.min(set.count, most); i++) {
    const g = group(`${name}-${i}`)
    const owner = current.value && g?.state === 'led' ? g.leader_node_id : ''
    cells.push({ i, g, owner })
    if (owner) owners.set(owner, (owners.get(owner) ?? 0) + 1)
  }
  const order = [...new Set([...owners.keys(), ...Object.keys(set?.weights ?? {})])].sort()
  const index = new Map(order.map((o, i) => [o, i]))
  const letter = (o) => letters[index.get(o) % 26] + (index.get(o) >= 26 ? Math.floor(index.get(o) / 26) : '')
  const vacant = cells.filter((c) => !c.owner).length
  return (
    <section class="pane shards" aria-label="Shards">
      <div class="tools">
        <label class="inline">Set <select value={name} onChange={(e) => (location.hash = link_to('shards', e.currentTarget.value))}>{[...sets.keys()].map((s) => <option key={s} value={s}>{s}</option>)}</select></label>
        {set && <span class="tally" role="status">{plural(set.count, 'shard')} on {plural(owners.size, 'node')}{current.value ? `, ${vacant.toLocaleString('en')} without an owner` : ''}</span>}
      </div>
      <Trouble text={seen.failed} />
      {seen.sets && !sets.size && <p class="empty">No set of shards has been run yet.</p>}
      {set && <div class="scroll" tabIndex={0} aria-label="Map of shards">
        <ul class="legend">
          {order.map((o) => <li key={o}><b class={`cell c${index.get(o) % 8}`} aria-hidden="true">{letter(o)}</b> {o} <span class="faint">{plural(owners.get(o) ?? 0, 'shard')}{set.weights[o] ? `, weight ${set.weights[o]}` : ''}</span></li>)}
          <li><b class="cell none" aria-hidden="true">·</b> {current.value ? 'no owner' : 'unknown'}</li>
          <li><b class="cell moved" aria-hidden="true" /> moved in the last 30 s</li>
          {Object.keys(set.pins).length > 0 && <li><b class="cell pin" aria-hidden="true" /> pinned</li>}
        </ul>
        <div class="map">
          {cells.map(({ i, g, owner }) => (
            <a key={i} href={link_to('groups', `${name}-${i}`)} title={`${name}-${i}: ${owner || (current.value ? 'no owner' : 'unknown')}${set.pins[i] ? `, pinned to ${set.pins[i]}` : ''}`} aria-label={`shard ${i}: ${owner || (current.value ? 'no owner' : 'unknown')}`}
              data-shard={i} class={'cell ' + (owner ? `c${index.get(owner) % 8}` : 'none') + (now.value - (g?.at ?? 0) < moved ? ' moved' : '') + (set.pins[i] ? ' pin' : '')}>{owner ? letter(owner) : '·'}</a>
          ))}
        </div>
        {set.count > most && <p class="note">The first {most.toLocaleString('en')} shards are drawn.</p>}
      </div>}
    </section>
  )
}
