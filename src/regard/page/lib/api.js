// Requests to the server. The newest request of a view wins; an offline page has the responses saved in it.
import { signal, useEffect, useSignal, useState } from "./dom.js";
import { formatState, offline, state } from "./state.js";

const windowId = Math.random().toString(36).slice(2);
const pending = new Map(); // by view: the AbortController of the request in progress
const responses = new Map(); // by name and body, for offline pages
export const activity = signal(null); // {text, fraction} of what takes longer than a moment
export const isLost = signal(false); // the server does not answer
export const retries = signal(0); // how often failed requests are to be sent again

const NO_ANSWER = "The server does not answer; is regard serve still running?", PING = 2000; // milliseconds
export function retry() {
  isLost.value = false;
  retries.value += 1;
}

// Until the server answers again, as after a restart; then every view sends what failed.
function lose() {
  if (isLost.peek()) return;
  isLost.value = true;
  const ping = () => isLost.peek() && fetch("/page/icon.svg", { cache: "no-store", headers: headers() })
    .then(retry, () => setTimeout(ping, PING));
  setTimeout(ping, PING);
}

const keyOf = (name, body) => JSON.stringify([name, sortKeys(body)]);
const sortKeys = (x) => (x && typeof x === "object" && !Array.isArray(x)
  ? Object.fromEntries(Object.keys(x).sort().filter((k) => x[k] !== undefined).map((k) => [k, sortKeys(x[k])])) : x);
// a page of the command line holds responses to requests with at least this body, whatever the view adds to it
const partial = (name, body) => offline.responses.find((x) => x.any && x.name === name
  && Object.entries(x.body).every(([field, value]) => body[field] === value));
const saved = new Map((offline?.responses ?? []).map((x) => [keyOf(x.name, x.body), x.response]));

class RequestError extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

function headers(more) {
  const token = sessionStorage.getItem("token");
  return { "X-Regard": "1", ...(token ? { Authorization: `Bearer ${token}` } : {}), ...more };
}

// The response to a query. `view` names what it is for: a new request for the same cancels the older one.
// What is requested again and again (save: false) is not saved in offline pages.
export async function request(name, body = {}, { view = null, quiet = false, save = true } = {}) {
  const key = keyOf(name, body);
  if (offline) {
    if (saved.has(key)) return saved.get(key);
    const match = partial(name, body);
    if (match) return match.response;
    throw new RequestError("This saved page does not hold that; open it with regard serve.", 0);
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
      const reply = await fetch(`/explore/${name}`,
        { method: "POST", headers: headers(more), body: JSON.stringify(body), signal: control.signal });
      if (reply.status === 503 && attempt < 5) {
        await new Promise((resume) => setTimeout(resume, 1000 * Number(reply.headers.get("Retry-After") ?? 1)));
        continue;
      }
      const response = await read(reply, quiet);
      if (save && JSON.stringify(response).length < 4e6) responses.set(key, { name, body: sortKeys(body), response });
      return response;
    }
  } catch (error) {
    if (control.signal.aborted) throw control.signal.reason; // a newer request came, or Cancel was pressed
    if (error instanceof RequestError && error.status !== 0) throw error;
    lose();
    throw error instanceof RequestError ? error
      : new RequestError(NO_ANSWER, 0);
  } finally {
    if (view !== null && pending.get(view) === control) pending.delete(view);
    if (!quiet && !pending.size) activity.value = null;
  }
}

async function read(reply, quiet) {
  if (!(reply.headers.get("Content-Type") ?? "").startsWith("text/event-stream")) {
    const response = await reply.json().catch(() => ({ error: `status ${reply.status}` }));
    if (!reply.ok) throw new RequestError(response.error, reply.status);
    return response;
  }
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new RequestError("The server stopped in the middle of a response.", 0);
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      const [event, data] = text.slice(0, end).split("\n");
      const content = JSON.parse(data.slice("data: ".length));
      if (event === "event: response") return content;
      if (event === "event: error") throw new RequestError(content.error, content.status);
      if (!quiet) activity.value = content;
    }
  }
}

export function cancelAll() {
  for (const control of pending.values()) control.abort(new RequestError("Cancelled.", 499));
  pending.clear();
  activity.value = null;
}

// The response to a query as state of a component: {response, of, error, loading}. The last response stays while a
// new one
// loads;
// `of` is the body that it belongs to. eager: the first request is sent without the delay.
export function useResponse(name, body, { view = name, skip = false, delay = 0, eager = false } = {}) {
  const [result, setResult] = useState({ response: null, of: null, error: null, loading: true });
  const key = skip ? null : keyOf(name, body), tries = useSignal(retries);
  useEffect(() => {
    if (skip) return;
    let live = true;
    setResult((old) => ({ ...old, loading: true }));
    const timer = setTimeout(() => {
      request(name, body, { view })
        .then((response) => live && setResult({ response, of: body, error: null, loading: false }))
        .catch((error) => live && error.name !== "AbortError"
          && setResult((old) => ({ ...old, error: error.message, loading: false })));
    }, offline || (eager && !result.response) ? 0 : delay);
    return () => { live = false; clearTimeout(timer); };
  }, [key, result.error ? tries : 0]);
  return result;
}

// What is not a query; an error has the sentence of the server.
async function send(url, options, more = {}) {
  const reply = await fetch(url, { ...options, headers: headers(more) }).catch((error) => {
    if (error.name === "AbortError") throw error;
    lose();
    throw new RequestError(NO_ANSWER, 0);
  });
  if (reply.ok) return reply;
  throw new RequestError((await reply.json().catch(() => ({}))).error ?? `status ${reply.status}`, reply.status);
}
const sendJson = (url, body, more) =>
  send(url, { method: "POST", body: JSON.stringify(body) }, { "Content-Type": "application/json", ...more });

export async function upload(content) {
  if (offline) throw new RequestError("A saved page takes no files; open it with regard serve.", 0);
  return (await (await send("/explore/upload", { method: "POST", body: content })).json()).file;
}

export const fetchBytes = async (url, signal) => (await send(url, { signal })).arrayBuffer();
export const fetchCsv = async (name, body) => (await sendJson(`/explore/${name}`, body, { Accept: "text/csv" })).text();

// The page as one file, with every response that it has got so far.
export async function fetchOfflinePage() {
  const latest = [...responses.values()].slice(-300);
  while (latest.length > 1 && JSON.stringify(latest).length > 4e7) latest.shift(); // the oldest leave first
  return (await sendJson("/explore/offline", { state: formatState(state.peek()), responses: latest })).text();
}

export { decodeBase64, unpack } from "./pack.js";
