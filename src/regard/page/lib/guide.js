// The first minute: four things to try, each ticked off when it was done. Shown until it is closed.
import { html, useEffect, useSignal, useState } from "./dom.js";
import { offline, openView, state } from "./state.js";

const STEPS = [
  ["Type a text", (before, now) => now.view === "text" && now.params.text && now.params.text !== before.params.text],
  ["Choose a head in the strip", (before, now) => now.params.head !== undefined],
  ["Click a cell to see its arithmetic", (before, now) => now.params.key !== undefined],
  ["Move a slider in What-if", (before, now) => now.view === "what-if" && now.params.edits !== undefined],
];

const HERE = ["text", "what-if"]; // the views that the steps are about

export function Guide() {
  const now = useSignal(state);
  const [first] = useState(now),
    [closed, setClosed] = useState(offline !== null || localStorage.getItem("guide") === "closed");
  const [done, setDone] = useState(STEPS.map(() => false));
  useEffect(() => setDone((old) => old.map((was, i) => was || Boolean(STEPS[i][1](first, now)))), [now]);
  if (closed || !HERE.includes(now.view)) return null;
  const close = () => { localStorage.setItem("guide", "closed"); setClosed(true); };
  const { model, text, to } = now.params;
  const next = () => openView("what-if", { model, text, to });
  return html`<aside class="guide" aria-label="First steps"><strong>First steps</strong>
    <ol>${STEPS.map(([name], i) =>
      html`<li class=${done[i] ? "done" : ""}>${done[i] ? "✓ " : ""}${i === 3 && now.view !== "what-if"
      ? html`<button class="link" onClick=${next}>${name}</button>` : name}</li>`)}</ol>
    <button aria-label="Close the first steps" onClick=${close}>${done.every(Boolean) ? "Done" : "×"}</button></aside>`;
}
