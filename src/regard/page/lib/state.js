// The state of the page is its URL behind #: "/text?model=phrases&text=3%20days". A link restores a view.
import { signal } from "./dom.js";

const saved = document.getElementById("saved");
export const offline = saved ? JSON.parse(saved.textContent) : null;

function parseState(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").replace(/^\//, "").split(/\?(.*)/s);
  return { view: path || "text", params: Object.fromEntries(new URLSearchParams(query)) };
}

const TEXTS = ["text", "other_text", "sequence"]; // boxes that may be empty: that is not the first example
const isGiven = ([name, x]) => x !== undefined && x !== null && (x !== "" || TEXTS.includes(name));

export function formatState({ view, params }) {
  const given = Object.entries(params).filter(isGiven);
  return `/${view}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

// only "#token=…" alone: a view may have a parameter of that name
const token = location.hash.startsWith("#token=") ? new URLSearchParams(location.hash.slice(1)).get("token") : null;
if (token) {
  sessionStorage.setItem("token", token);
  history.replaceState(null, "", "#/text");
}
export const state = signal(parseState(offline && !location.hash ? offline.state : location.hash));

// Change parameters of the view; null removes one. Back undoes a choice; letters of one text, steps of one slider
// and arrow keys in a row are one choice, and what nobody chose (isChoice: false) is none.
const MERGE = 1000; // milliseconds between changes of the same parameters
let last = { names: "", at: -Infinity };
addEventListener("click", () => { last.names = ""; }, true); // a click is a choice of its own
export function setParams(changes, { isChoice = true } = {}) {
  const now = { names: `${state.peek().view} ${Object.keys(changes)}`, at: performance.now() };
  const { view, params } = state.peek(), given = Object.entries({ ...params, ...changes }).filter(isGiven);
  state.value = { view, params: Object.fromEntries(given) };
  const link = `#${formatState(state.peek())}`, isSame = link === location.hash;
  const merges = !isChoice || isSame || (now.names === last.names && now.at - last.at < MERGE);
  history[merges ? "replaceState" : "pushState"](null, "", link);
  if (isChoice) last = now;
}

// A handler that sets one parameter; its default is left out of the link.
export const setParam = (name, usual) => (x) => setParams({ [name]: x === usual ? null : String(x) });

export function openView(view, params = {}) {
  last.names = "";
  state.value = { view, params };
  history.pushState(null, "", `#${formatState(state.peek())}`);
  window.scrollTo(0, 0);
}

export const linkTo = (view, params = {}) => `#${formatState({ view, params })}`;

const restore = () => { last.names = ""; state.value = parseState(location.hash); };
addEventListener("popstate", restore);
addEventListener("hashchange", restore);
