// The tour of the README with the Node SDK: create, watch, append, stream a reply, read, fork, list.
import { registerWorker } from 'iii-sdk'

const [url, updates] = process.argv.slice(2)
const last = Number(updates)
const iii = registerWorker(url, { workerName: 'node-tour', otel: { enabled: false } })
const call = (function_id, payload) => iii.trigger({ function_id, payload })
const text = (words) => [{ type: 'text', text: words }]
const metadata = { owner: 'node-tour' }

const { session_id } = await call('session::create', { title: 'Tour', metadata })

const heard = { added: [], updated: [], elsewhere: [] }
let finish
const finished = new Promise((resolve) => { finish = () => resolve(true) })
const listen = (name, type, config) => {
  iii.registerFunction(`node-tour::${name}`, async (event) => {
    heard[name].push(event)
    if (name === 'updated' && event.revision === last) finish()
    return null
  })
  iii.registerTrigger({ type, function_id: `node-tour::${name}`, config })
}
listen('added', 'session::message-added', { session_id, roles: ['assistant'] })
listen('updated', 'session::message-updated', { metadata })
listen('elsewhere', 'session::message-updated', { metadata: { owner: 'nobody' } })
// The bindings are made when the engine lists them.
for (;;) {
  const listed = await call('engine::registered-triggers::list', { search: 'node-tour::' })
  if (listed.registered_triggers.length === 3) break
}

const question = { role: 'user', content: text('How far is Oslo from Bergen?'), timestamp: 1 }
const asked = (await call('session::append', { session_id, message: question })).entry_id
const empty = { role: 'assistant', content: [], stop_reason: 'end', model: 'm', provider: 'p', timestamp: 2 }
const reply = (await call('session::append', { session_id, message: empty })).entry_id
let words = ''
for (let revision = 1; revision <= last; revision++) {
  words += `${revision} `
  await call('session::update-message', {
    session_id, entry_id: reply, content: text(words), expected_revision: revision - 1 })
}
const heard_last = await Promise.race([
  finished, new Promise((resolve) => setTimeout(() => resolve(false), 15000))])
const stale = await call('session::update-message', {
  session_id, entry_id: reply, content: [], expected_revision: 1 })

const page = await call('session::messages', { session_id })
const fork = (await call('session::fork', { session_id, entry_id: asked, title: 'Another plan' })).session_id
const listed = await call('session::list', { metadata })
let refused
try {
  refused = await call('session::append', { session_id: 'nobody', message: question })
} catch (error) {
  refused = error.message
}

console.log(JSON.stringify({
  session_id, asked, reply, words, heard_last, stale, fork, refused,
  added: heard.added.map((event) => [event.entry_id, event.message.role]),
  revisions: heard.updated.map((event) => event.revision),
  words_heard: heard.updated.at(-1).message.content[0].text,
  elsewhere: heard.elsewhere.length,
  page: page.messages.map((item) => [item.entry_id, item.message.content[0].text]),
  listed: listed.sessions.map((meta) => meta.session_id),
}))
await iii.shutdown()
process.exit(0)
