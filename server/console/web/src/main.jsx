import { render } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import './app.css'
import { hasCredential, login, me, setCredential } from './api.js'
import { current, engine, forget, link, link_to, now, refusal, retry, route, run } from './model.js'
import { clock, span } from './parts.jsx'
import { Groups } from './groups.jsx'
import { Nodes } from './nodes.jsx'
import { Shards } from './shards.jsx'
import { Writes } from './writes.jsx'
import { Health } from './health.jsx'
import { Dialog } from './steer.jsx'

const views = { groups: ['Groups', Groups], nodes: ['Nodes', Nodes], shards: ['Shards', Shards], writes: ['Refused writes', Writes], health: ['Health', Health] }

function Connection() {
  const { state, since } = link.value
  if (current.value) return <span class="pill live" data-state="live"><i class="mark led" aria-hidden="true" />Live</span>
  if (state === 'connecting' || (state === 'live' && engine.value.state === 'unknown')) return <span class="pill" data-state="connecting"><i class="mark unknown" aria-hidden="true" />Connecting …</span>
  return <span class="pill lost" data-state="lost"><i class="mark vacant" aria-hidden="true" />{state === 'lost' ? 'Disconnected' : 'Engine lost'} {span(now.value - (state === 'lost' ? since : engine.value.since))}</span>
}

function Banner() {
  const { state, since, why } = link.value
  if (login.value !== null) return null
  if (state === 'lost') {
    return (
      <div class="banner" role="alert" data-banner="lost">
        <b>Disconnected since {clock(since)}.</b> {why} What is shown was true then; others may lead by now.
        <button type="button" onClick={retry}>Try now</button>
      </div>
    )
  }
  if (state === 'live' && engine.value.state === 'unreachable') {
    return <div class="banner" role="alert" data-banner="engine"><b>The service cannot reach its engine since {clock(engine.value.since)}.</b> Nobody knows who leads. Leaders lead on until their TTL is over.</div>
  }
  return null
}

function Login() {
  const [text, setText] = useState('')
  const submit = (e) => {
    e.preventDefault()
    setCredential(text.trim())
    login.value = null
    forget()
  }
  return (
    <main class="login">
      <form onSubmit={submit} autocomplete="off">
        <h1>Tenure</h1>
        {login.value ? <p class="trouble" role="alert">{login.value}</p> : <p>This service needs to know who you are.</p>}
        <label>Bearer credential or JWT<input type="password" name="credential" autocomplete="off" spellcheck={false} value={text} onInput={(e) => setText(e.currentTarget.value)} /></label>
        <p class="faint">It is kept in this tab until you sign out or close it. With a client certificate in the browser none is needed.</p>
        <button type="submit" class="primary" disabled={!text.trim()}>Sign in</button>
      </form>
    </main>
  )
}

function Page() {
  const [page] = route.value
  const [title, View] = views[page] ?? views.groups
  useEffect(() => {
    document.title = `${title} – Tenure`
  }, [title])
  if (login.value !== null) return <Login />
  return (
    <div class={current.value ? 'page' : 'page stale'}>
      <header class="top">
        <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById('main').focus() }}>Skip to content</a>
        <h1><img src="./icon.svg" alt="" width="20" height="20" />Tenure</h1>
        <nav aria-label="Views">{Object.entries(views).map(([key, [name]]) => <a key={key} href={link_to(key)} aria-current={(views[page] ? page : 'groups') === key ? 'page' : undefined}>{name}</a>)}</nav>
        <div class="status">
          <Connection />
          {me.value?.node_id && <span class="who-am-i" title="signed in as">{me.value.node_id}</span>}
          {hasCredential() && <button type="button" onClick={() => { setCredential(''); me.value = null; forget() }}>Sign out</button>}
        </div>
      </header>
      <Banner />
      {refusal.value && <p class="trouble" role="alert">{refusal.value}</p>}
      <main id="main" tabIndex={-1}><View /></main>
      <Dialog />
    </div>
  )
}

addEventListener('keydown', (e) => {
  if (e.key !== '/' || e.ctrlKey || e.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName)) return
  const box = document.getElementById('search')
  if (!box) return
  e.preventDefault()
  box.focus()
})

render(<Page />, document.getElementById('app'))
run()
