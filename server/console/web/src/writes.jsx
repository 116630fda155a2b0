// Writes that the fence refused, from the ledger of --ledger.
import { useState } from 'preact/hooks'
import { get, me } from './api.js'
import { current } from './model.js'
import { GroupLink, List, plural, Time, Trouble, usePoll } from './parts.jsx'

export function Writes() {
  const [seen, setSeen] = useState(null)
  usePoll(async (here) => {
    if (!me.peek()?.ledger) return
    try {
      const page = await get('/rejections?limit=500')
      if (here()) setSeen(page)
    } catch (e) {
      if (here()) setSeen((s) => ({ ...s, failed: e.message }))
    }
  }, 3000, [current.value, me.value?.ledger])
  if (me.value && !me.value.ledger) return <section class="pane" aria-label="Refused writes"><p class="empty">The service does not know a ledger. Start it with <code>--ledger=URL</code> to see the writes that were refused.</p></section>
  return (
    <section class="pane" aria-label="Refused writes">
      <div class="tools"><span class="tally" role="status">{seen?.items ? `${plural(seen.total, 'write')} refused so far` : 'Reading …'}</span></div>
      <p class="note">A refused write comes from a leader whose term had ended: the resource has seen a larger term. This is the fence at work; look at the node that sent it.</p>
      <Trouble text={seen?.failed} />
      <List
        label="Refused writes" items={seen?.items ?? []} height={matchMedia('(max-width: 700px)').matches ? 76 : 32} keyOf={(r) => r.id}
        row={(r, i) => (
          <div role="row" class="row write-row" key={r.id} aria-rowindex={i}>
            <span role="cell" class="faint"><Time ms={r.at_ms} /></span>
            <span role="cell" class="name"><GroupLink name={r.group} /></span>
            <span role="cell">{r.resource}</span>
            <span role="cell">{r.node_id}</span>
            <span role="cell" class="num">{r.term} &lt; {r.current_term}</span>
            <span role="cell">{r.applied ? <span class="tag bad">fencing was off: written anyway</span> : <span class="tag">{r.reason}</span>}</span>
          </div>
        )}
        head={
          <div role="rowgroup"><div role="row" class="row write-row head" aria-rowindex={1}>
            {['At', 'Group', 'Resource', 'Writer', 'Its term', 'Reason'].map((h) => <span role="columnheader" key={h} class={h === 'Its term' ? 'num' : ''}>{h}</span>)}
          </div></div>
        }
      />
      {seen?.items?.length === 0 && <p class="empty">No write was refused.</p>}
    </section>
  )
}
