// Asks the server. The newest question of a view wins; an offline page answers from what was saved in it.
import { signal, useEffect, useState } from "./dom.js";
import { formatState, offline, state } from "./state.js";

const windowId = Math.random().toString(36).slice(2);
const pending = new Map(); // by view: the AbortController of the question in progress
const answered = new Map(); // by name and body, for offline pages
export const activity = signal(null); // {text, fraction} of what takes longer than a moment

const keyOf = (name, body) => JSON.stringify([name, sortKeys(body)]);
const sortKeys = (x) => (x && typeof x === "object" && !Array.isArray(x)
  ? Object.fromEntries(Object.keys(x).sort().filter((k) => x[k] !== undefined).map((k) => [k, sortKeys(x[k])])) : x);
// a page of the command line holds one answer per query, whatever the view adds to the question
const anyBody = new Map((offline?.answers ?? []).filter((x) => x.any).map((x) => [x.name, x.answer]));
const saved = new Map((offline?.answers ?? []).map((x) => [keyOf(x.name, x.body), x.answer]));

class AskError extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

function headers(more) {
  const token = sessionStorage.getItem("token");
  return { "X-Regard": "1", ...(token ? { Authorization: `Bearer ${token}` } : {}), ...more };
}

// The answer to a query. `view` names what it is for: asking again for the same cancels the older question.
// What is asked again and again (keep: false) is not saved in offline pages.
export async function ask(name, body = {}, { view = null, quiet = false, keep = true } = {}) {
  const key = keyOf(name, body);
  if (offline) {
    if (saved.has(key)) return saved.get(key);
    if (anyBody.has(name)) return anyBody.get(name);
    throw new AskError("This saved page does not hold that; open it with regard serve.", 0);
  }
  const control = new AbortController();
  if (view !== null) {
    pending.get(view)?.abort();
    pending.set(view, control);
  }
  try {
    for (let attempt = 0; ; attempt++) {
      const more = { "Content-Type": "application/json", Accept: "text/event-stream, application/json" };
      if (view !== null) more["X-Regard-View"] = `${windowId}/${view}`;
      const response = await fetch(`/explore/${name}`,
        { method: "POST", headers: headers(more), body: JSON.stringify(body), signal: control.signal });
      if (response.status === 503 && attempt < 5) {
        await new Promise((resume) => setTimeout(resume, 1000 * Number(response.headers.get("Retry-After") ?? 1)));
        continue;
      }
      const answer = await read(response, quiet);
      if (keep && JSON.stringify(answer).length < 4e6) answered.set(key, { name, body: sortKeys(body), answer });
      return answer;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (error instanceof AskError) throw error;
    throw new AskError("The server does not answer; is regard serve still running?", 0);
  } finally {
    if (view !== null && pending.get(view) === control) pending.delete(view);
    if (!quiet && !pending.size) activity.value = null;
  }
}

async function read(response, quiet) {
  if (!(response.headers.get("Content-Type") ?? "").startsWith("text/event-stream")) {
    const answer = await response.json().catch(() => ({ error: `status ${response.status}` }));
    if (!response.ok) throw new AskError(answer.error, response.status);
    return answer;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new AskError("The server stopped in the middle of an answer.", 0);
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const [event, data] = text.slice(0, end).split("\n");
      const content = JSON.parse(data.slice("data: ".length));
      if (event === "event: answer") return content;
      if (event === "event: error") throw new AskError(content.error, content.status);
      if (!quiet) activity.value = content;
    }
  }
}

export function cancelAll() {
  for (const control of pending.values()) control.abort();
  pending.clear();
  activity.value = null;
}

// The answer to a query as state of a component: {answer, of, error, loading}. The last answer stays while a new one loads;
// `of` is the body that it belongs to. eager: the first question is asked without the delay.
export function useAsk(name, body, { view = name, skip = false, delay = 0, eager = false } = {}) {
  const [result, setResult] = useState({ answer: null, of: null, error: null, loading: true });
  const key = skip ? null : keyOf(name, body);
  useEffect(() => {
    if (skip) return;
    let live = true;
    setResult((old) => ({ ...old, loading: true }));
    const timer = setTimeout(() => {
      ask(name, body, { view })
        .then((answer) => live && setResult({ answer, of: body, error: null, loading: false }))
        .catch((error) => live && error.name !== "AbortError"
          && setResult((old) => ({ ...old, error: error.message, loading: false })));
    }, offline || (eager && !result.answer) ? 0 : delay);
    return () => { live = false; clearTimeout(timer); };
  }, [key]);
  return result;
}

// What is not asked as a query; an error has the sentence of the server.
async function send(url, options, more = {}) {
  const response = await fetch(url, { ...options, headers: headers(more) });
  if (response.ok) return response;
  throw new AskError((await response.json().catch(() => ({}))).error ?? `status ${response.status}`, response.status);
}
const sendJson = (url, body, more) => send(url, { method: "POST", body: JSON.stringify(body) }, { "Content-Type": "application/json", ...more });

export async function upload(content) {
  if (offline) throw new AskError("A saved page takes no files; open it with regard serve.", 0);
  return (await (await send("/explore/upload", { method: "POST", body: content })).json()).file;
}

export const fetchBytes = async (url, signal) => (await send(url, { signal })).arrayBuffer();
export const fetchCsv = async (name, body) => (await sendJson(`/explore/${name}`, body, { Accept: "text/csv" })).text();

// The page as one file, with every answer that it has got so far.
export async function fetchOfflinePage() {
  const answers = [...answered.values()].slice(-300);
  while (answers.length > 1 && JSON.stringify(answers).length > 4e7) answers.shift(); // the oldest leave first
  return (await sendJson("/explore/offline", { state: formatState(state.peek()), answers })).text();
}

export const decodeBase64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
// A tensor of the server: {shape, float32 in base64} -> {shape, values}.
export const unpack = ({ shape, float32 }) => ({ shape, values: new Float32Array(decodeBase64(float32).buffer) });
