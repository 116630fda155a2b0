// One group: who leads, its candidates, and its terms.
import { useState } from 'preact/hooks'
import { get, may } from './api.js'
import { current, group, link, link_to, rule, serverNow } from './model.js'
import { ask } from './steer.jsx'
import { bars, because, Leader, Lease, span, since, Time, Trouble, usePoll } from './parts.jsx'

const path = (name) => '/groups/' + encodeURIComponent(name)

const Values = ({ of }) => Object.entries(of ?? {}).map(([k, v]) => <span class="tag" key={k}>{k}={v}</span>)

function Timeline({ terms, more, next }) {
  const longest = Math.max(1, ...terms.map((t) => t.duration_ms))
  return (
    <ol class="terms">
      {terms.map((t, i) => {
        const later = terms[i - 1]
        const gap = later && t.end_ms ? later.begin_ms - t.end_ms : 0
        const lasts = !t.end_ms
        return (
          <li key={t.term} class={lasts ? 'lasts' : ''}>
            {gap >= 1000 && <p class="gap">no leader for {span(gap)}</p>}
            <div class="line">
              <b class="num">{t.term}</b>
              <span class="node">{t.leader_node_id}</span>
              <span class="faint"><Time ms={t.begin_ms} /></span>
              <span class="num">{lasts ? since(t.begin_ms) : span(t.duration_ms)}</span>
            </div>
            <div class="bar" aria-hidden="true"><i style={{ width: Math.max(1, (100 * (lasts ? serverNow() - t.begin_ms : t.duration_ms)) / Math.max(longest, lasts ? serverNow() - t.begin_ms : 0)) + '%' }} /></div>
            <p class="reason">{lasts ? (current.value ? 'lasts' : 'lasted when last seen') : <>ended: <b>{t.reason || 'not recorded'}</b>{because(t.reason) && ` – ${because(t.reason)}`}</>}</p>
          </li>
        )
      })}
      {more && <li><button type="button" onClick={next}>Show older terms</button></li>}
    </ol>
  )
}

export function Group({ name }) {
  const g = group(name)
  const [seen, setSeen] = useState({})
  const [older, setOlder] = useState([])
  const key = `${g?.term} ${g?.state} ${link.value.state}`
  usePoll(async (here) => {
    const one = (f) => f.catch((e) => ({ problem: e }))
    const [info, leader, candidates, history, leases] = await Promise.all([
      one(get(path(name))), one(get(path(name) + '/leader')), one(get(path(name) + '/candidates?limit=200')), one(get(path(name) + '/history?limit=50')), one(get('/leases?group=' + encodeURIComponent(name))),
    ])
    if (!here() || [info, history].some((x) => x.problem && !x.problem.status)) return // no answer: the banner says so
    const lease = leases.leases?.[0]
    setSeen({ info, leader, candidates, history, lease: lease && { ...lease, read: Date.now() } })
  }, 2000, [key])
  const { info, leader, candidates, history, lease } = seen
  const gone = info?.deleted || (!info?.deleted && rule(name)?.deleted === 'yes' && g?.state !== 'led')
  const unknown = info?.problem
  const detail = leader?.term === g?.term ? leader : undefined
  const terms = [...(history?.terms ?? []), ...older.filter((t) => t.term < (history?.terms.at(-1)?.term ?? 0))]
  const next = older.length ? older.next : history?.next
  const steer = may('step-down', name)
  const led = current.value && g?.state === 'led'
  return (
    <section class="pane detail" aria-label={'Group ' + name}>
      <header>
        <h2>{name}</h2>
        <a class="close" href={link_to('groups')} aria-label="Close this group">✕</a>
      </header>
      <div class="scroll" tabIndex={0} aria-label="Details">
        {gone && <p class="trouble" role="alert">This group was deleted. Nobody can lead it until it is created again.</p>}
        {unknown && <Trouble text={unknown.status === 404 ? 'There is no such group: ' + unknown.message : unknown.message} />}
        {g && (
          <dl class="facts">
            <dt>Leader</dt><dd class="big"><Leader g={g} /></dd>
            <dt>Term</dt><dd>{g.term || '–'}{!led ? '' : <span class="faint"> for {since(g.since_ms)}</span>}</dd>
            <dt>Lease left</dt><dd>{g.state === 'led' ? <Lease lease={lease?.term === g.term ? lease : undefined} /> : '–'}</dd>
            {led && detail?.address && <><dt>Address</dt><dd>{detail.address}</dd></>}
            {led && Object.keys(detail?.metadata ?? {}).length > 0 && <><dt>Metadata</dt><dd><Values of={detail.metadata} /></dd></>}
            {g.reason && <><dt>{g.state === 'led' ? 'Change before' : 'Ended'}</dt><dd>{g.reason}{because(g.reason) && <span class="faint"> – {because(g.reason)}</span>}</dd></>}
            {info?.policy?.members && <><dt>Members</dt><dd>{info.policy.members.join(', ')}</dd></>}
            {info?.policy?.fenced === false && <><dt>Fence</dt><dd class="warn">not fenced: nothing refuses a stale leader</dd></>}
          </dl>
        )}
        {steer && (
          <div class="actions">
            <button type="button" disabled={!led} onClick={() => ask('step-down', g)}>Step down…</button>
            <button type="button" disabled={!led} onClick={() => ask('transfer', g, candidates?.candidates)}>Transfer…</button>
            <button type="button" class="danger" disabled={!led} onClick={() => ask('force', g)}>Force…</button>
          </div>
        )}
        <h3>Candidates</h3>
        {candidates?.problem && <Trouble text={candidates.problem.message} />}
        {candidates?.candidates && (candidates.candidates.length === 0 ? <p class="faint">Nobody waits for this group.</p> : (
          <ol class="cand">
            {candidates.candidates.map((c, i) => (
              <li key={c.node_id + i}>
                <span class="node">{c.node_id}</span>
                {c.leads && <span class="tag good">leads</span>}
                {c.barred && <span class="tag bad">{bars[c.barred] ?? c.barred}</span>}
                {c.priority ? <span class="tag">priority {c.priority}</span> : ''}
                <span class="faint">TTL {c.ttl_ms / 1000} s</span>
                {c.address && <span class="faint">{c.address}</span>}
                <Values of={c.metadata} />
              </li>
            ))}
            {candidates.next && <li class="faint">and more</li>}
          </ol>
        ))}
        <h3>Terms</h3>
        {history?.problem && <Trouble text={history.problem.message} />}
        {history?.terms && (terms.length === 0 ? <p class="faint">Nobody has led this group yet.</p> : (
          <Timeline terms={terms} more={next} next={() => get(path(name) + '/history?limit=50&after=' + next).then((page) => setOlder(Object.assign([...older, ...page.terms], { next: page.next })), () => {})} />
        ))}
      </div>
    </section>
  )
}
