// The engine, the connection and the caller.
import { useState } from 'preact/hooks'
import { get, me, observed, post } from './api.js'
import { all, current, engine, link, serverNow } from './model.js'
import { plural, span, Time, usePoll } from './parts.jsx'

const where = { cert: 'a client certificate', jwt: 'a JWT', credential: 'a bearer credential', loopback: 'this machine, without credentials', insecure: 'no credentials (--insecure)' }

export function Health() {
  const [seen, setSeen] = useState({})
  usePoll(async (here) => {
    const began = performance.now()
    const [meta, caps] = await Promise.all([post('/store/meta', {}), post('/store/caps', {})].map((p) => p.catch((e) => ({ failed: e.message }))))
    if (here()) setSeen({ meta, caps, took: performance.now() - began })
  }, 3000, [current.value])
  const { meta, caps } = seen
  const led = all.value.filter((g) => g.state === 'led').length
  return (
    <section class="pane health" aria-label="Health"><div class="scroll cards" tabIndex={0} aria-label="Health">
      <article class={'card ' + (current.value ? 'ok' : 'bad')}>
        <h2>Engine</h2>
        <p class="big">{link.value.state !== 'live' ? 'unknown' : engine.value.state === 'ok' ? '● reachable' : '▲ not reachable'}</p>
        <dl class="facts">
          <dt>Kind</dt><dd>{caps?.engine ?? '–'}{caps?.observed ? ', expiry observed by candidates' : ''}</dd>
          <dt>Deployment</dt><dd>{me.value?.deployment ?? '–'}</dd>
          <dt>Answers in</dt><dd>{meta && !meta.failed ? `${Math.round(seen.took)} ms (with the way to this page)` : '–'}</dd>
          <dt>TTL</dt><dd>{caps?.min_ttl_ms ? `${span(caps.min_ttl_ms)} to ${span(caps.max_ttl_ms)}` : '–'}</dd>
          <dt>Epoch</dt><dd>{meta?.epoch ?? '–'}</dd>
          {(meta?.failed || caps?.failed) && <><dt>Error</dt><dd class="warn">{meta?.failed || caps.failed}</dd></>}
          {caps?.loses && <><dt>Can lose</dt><dd class="warn">{caps.loses}</dd></>}
        </dl>
        {meta?.rewound && <p class="trouble" role="alert">The engine lost acknowledged data{meta.why ? `: ${meta.why}` : ''}. Nobody begins to lead until an operator raises the epoch: <code>tenure raise-epoch</code>.</p>}
      </article>
      <article class="card">
        <h2>This page</h2>
        <dl class="facts">
          <dt>Connection</dt><dd>{link.value.state === 'live' ? `live for ${span(serverNow() - link.value.since)}` : link.value.state}</dd>
          <dt>Groups</dt><dd>{plural(all.value.length, 'group')}, {led.toLocaleString('en')} led</dd>
        </dl>
      </article>
      <article class="card">
        <h2>You</h2>
        <dl class="facts">
          <dt>Name</dt><dd>{me.value?.node_id || 'anybody on this machine'}</dd>
          <dt>Known by</dt><dd>{where[me.value?.how] ?? '–'}</dd>
          {me.value?.until_ms ? <><dt>Until</dt><dd><Time ms={me.value.until_ms} /></dd></> : ''}
          <dt>Observe</dt><dd>{observed().map((p) => p + '*').join(', ') || 'nothing'}</dd>
        </dl>
        <ul class="grants">{(me.value?.grants ?? []).map((g, i) => <li key={i}><span class="tag">{g.prefix}*</span> {g.verbs.join(', ')}</li>)}</ul>
      </article>
    </div></section>
  )
}
