// The list of groups.
import { computed, signal } from '@preact/signals'
import { get } from './api.js'
import { all, current, now, route, link_to, serverNow } from './model.js'
import { because, Leader, Lease, List, plural, since, span, usePoll } from './parts.jsx'
import { Group } from './group.jsx'

const search = signal('')
const only = signal('all')
const order = signal('name')
const recent = 10 * 60_000

const filters = {
  all: ['All', () => true],
  led: ['Led', (g) => g.state === 'led'],
  vacant: ['No leader', (g) => g.state !== 'led'],
  changed: ['Changed in 10 min', (g, then) => g.since_ms > then],
}

// Time moves the filter of recent changes only.
const then = computed(() => (only.value === 'changed' ? Math.floor(serverNow() / 10_000) * 10_000 - recent : 0))

const shown = computed(() => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean)
  const [, fits] = filters[only.value]
  const some = all.value.filter((g) => fits(g, then.value) && words.every((w) => g.group.includes(w) || (g.state === 'led' && g.leader_node_id.includes(w))))
  if (order.value === 'since') some.sort((a, b) => (b.since_ms ?? 0) - (a.since_ms ?? 0))
  if (order.value === 'leader') some.sort((a, b) => ((a.state === 'led' && a.leader_node_id) || '~').localeCompare((b.state === 'led' && b.leader_node_id) || '~'))
  return some
})

const counts = computed(() => {
  const led = all.value.reduce((n, g) => n + (g.state === 'led'), 0)
  return { led, vacant: all.value.length - led }
})

const visible = signal([])
const leases = signal(new Map())

export const lookFor = (text) => {
  search.value = text
  only.value = 'all'
  location.hash = link_to('groups')
}

function Row({ g, index }) {
  const lease = leases.value.get(g.group)
  const fresh = lease?.term === g.term ? lease : undefined
  const chosen = route.value[1] === g.group
  return (
    <div role="row" aria-rowindex={index} class={'row' + (chosen ? ' chosen' : '') + (now.value - (g.at ?? 0) < 4000 ? ' flash' : '')} data-group={g.group}>
      <span role="cell" class="name"><a href={link_to('groups', g.group)} aria-current={chosen ? 'true' : undefined}>{g.group}</a></span>
      <span role="cell" class="who"><Leader g={g} /></span>
      <span role="cell" class="num term">{g.term || ''}</span>
      <span role="cell" class="num long">{current.value && g.state === 'led' ? since(g.since_ms) : ''}</span>
      <span role="cell" class="lease-cell">{g.state === 'led' ? <Lease lease={fresh} /> : ''}</span>
      <span role="cell" class="num cands">{lease?.candidates ?? ''}</span>
      <span role="cell" class="why" title={because(g.reason)}>{g.state === 'vacant' && g.since_ms ? `${g.reason || 'ended'} ${since(g.since_ms)} ago` : g.reason ? `after ${g.reason}` : ''}</span>
    </div>
  )
}

const Sort = ({ by, children, ...more }) => (
  <span role="columnheader" aria-sort={order.value === by ? 'ascending' : 'none'} {...more}>
    <button type="button" class="sort" onClick={() => (order.value = by)}>{children}{order.value === by ? ' ▾' : ''}</button>
  </span>
)

const narrow = matchMedia('(max-width: 700px)')

export function Groups() {
  const chosen = route.value[1]
  usePoll(async (here) => {
    const some = visible.value.slice(0, 64)
    if (!some.length || !current.value) return
    const read = Date.now()
    const answer = await get('/leases?' + some.map((g) => 'group=' + encodeURIComponent(g)).join('&'))
    if (here()) leases.value = new Map(answer.leases.map((l) => [l.group, { ...l, read }]))
  }, 1000, [visible.value])
  const total = all.value.length
  return (
    <div class={'split' + (chosen ? ' open' : '')}>
      <section class="pane" aria-label="Groups">
        <div class="tools">
          <input id="search" type="search" placeholder="Search groups and leaders   ( / )" aria-label="Search groups and leaders" value={search.value} onInput={(e) => (search.value = e.currentTarget.value)} />
          <div class="chips" role="group" aria-label="Filter">
            {Object.entries(filters).map(([key, [name]]) => (
              <button type="button" key={key} aria-pressed={only.value === key} onClick={() => (only.value = key)}>
                {name}{key === 'vacant' && current.value && counts.value.vacant ? <b class="count"> {counts.value.vacant.toLocaleString('en')}</b> : ''}
              </button>
            ))}
          </div>
          <span class="tally" role="status">{shown.value.length === total ? plural(total, 'group') : `${shown.value.length.toLocaleString('en')} of ${plural(total, 'group')}`}</span>
        </div>
        <List
          label="Groups" items={shown.value} height={narrow.matches ? 52 : 32} keyOf={(g) => g.group}
          onVisible={(some) => (visible.value = some.map((g) => g.group))}
          row={(g, i) => <Row key={g.group} g={g} index={i} />}
          head={
            <div role="rowgroup"><div role="row" class="row head" aria-rowindex={1}>
              <Sort by="name" class="name">Group</Sort>
              <Sort by="leader" class="who">Leader</Sort>
              <span role="columnheader" class="num term">Term</span>
              <Sort by="since" class="num long">In term</Sort>
              <span role="columnheader" class="lease-cell">Lease left</span>
              <span role="columnheader" class="num cands" title="Living sessions that may lead the group">Cand.</span>
              <span role="columnheader" class="why">Last change</span>
            </div></div>
          }
        />
        {!shown.value.length && <p class="empty">{total ? 'No group matches.' : current.value ? 'No group was led yet. Start one: tenure exec billing -- sleep 60' : 'Nothing is known yet.'}</p>}
      </section>
      {chosen && <Group key={chosen} name={chosen} />}
    </div>
  )
}
