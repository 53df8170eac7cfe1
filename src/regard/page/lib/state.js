// The state of the page is its URL behind #: "/text?model=phrases&text=3%20days". A link restores a view.
import { signal } from "./dom.js";

const saved = document.getElementById("saved");
export const offline = saved ? JSON.parse(saved.textContent) : null;

function parseState(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").replace(/^\//, "").split(/\?(.*)/s);
  return { view: path || "text", params: Object.fromEntries(new URLSearchParams(query)) };
}

export function formatState({ view, params }) {
  const given = Object.entries(params).filter(([, x]) => x !== undefined && x !== null && x !== "");
  return `/${view}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

// only "#token=…" alone: a view may have a parameter of that name
const token = location.hash.startsWith("#token=") ? new URLSearchParams(location.hash.slice(1)).get("token") : null;
if (token) {
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", "#/text");
}
export const state = signal(parseState(offline && !location.hash ? offline.state : location.hash));

// Change parameters of the view; null removes one. Small changes make no entry in the history.
export function setParams(changes) {
  const params = { ...state.peek().params, ...changes };
  for (const name in params) if (params[name] === null || params[name] === "") delete params[name];
  state.value = { view: state.peek().view, params };
  history.replaceState(null, "", `#${formatState(state.peek())}`);
}

// A handler that sets one parameter; its default is left out of the link.
export const setParam = (name, usual) => (x) => setParams({ [name]: x === usual ? null : String(x) });

export function openView(view, params = {}) {
  state.value = { view, params };
  history.pushState(null, "", `#${formatState(state.peek())}`);
  window.scrollTo(0, 0);
}

export const linkTo = (view, params = {}) => `#${formatState({ view, params })}`;

const restore = () => { state.value = parseState(location.hash); };
addEventListener("popstate", restore);
addEventListener("hashchange", restore);
