// Controls that several views share.
import { html, showToken, signal, useSignal } from "./dom.js";
import { request, retries, retry } from "./api.js";
import { offline, state } from "./state.js";

export const models = signal(null); // of the catalog; null until they are loaded
export const damaged = signal([]); // runs that cannot be opened: {name, reason}
export async function loadModels() {
  const list = await request("models", {}, { quiet: true });
  damaged.value = list.damaged ?? [];
  models.value = list.models;
}

// A drop-down list. options: strings or [value, text]
export function Select({ label, value, options, onChange }) {
  return html`<label class="field"><span>${label}</span>
    <select value=${value} onChange=${(e) => onChange(e.target.value)}>
    ${options.map((o) => {
      const [v, t] = Array.isArray(o) ? o : [o, o];
      return html`<option value=${v} selected=${v === value}>${t}</option>`;
    })}</select></label>`;
}

// What a link names and this page does not have: said, with what is shown instead.
export const Replaced = ({ what, given, shown, known, isThere = known.includes(given), isSoft = false }) =>
  given !== undefined && !isThere && html`<p class=${isSoft ? "faint" : "warning"} role="status">
    There is no ${what} “${given}” here; ${shown} is shown.</p>`;

export const reading = (m, reads) => m.reads === reads || (reads === "image" && m.pictures);

// The models that read "text", "image", "sound" …
export function ModelSelect({ value, reads = "text", label = "Model", onChange, only = () => true }) {
  const given = useSignal(state).params.model, all = useSignal(models) ?? [];
  const known = all
    .filter((m) => (reading(m, reads) || (reads === "text" && m.kind === "sight")) && only(m));
  return html`<${Select} label=${label} value=${value} onChange=${onChange}
    options=${known.map((m) => [m.name, m.task && m.task !== m.name ? `${m.name} (${m.task})` : m.name])} />
    <${Replaced} what="model" given=${given} shown=${value} known=${known.map((m) => m.name)}
      isSoft=${all.some((m) => m.name === given)} />
    <${Damaged} />`;
}

// The runs that the list leaves out, each with the reason.
function Damaged() {
  const list = useSignal(damaged);
  return list.length > 0 && html`<details class="faint damaged">
    <summary>${list.length === 1 ? "1 damaged run is" : `${list.length} damaged runs are`} not listed</summary>
    <ul>${list.map((x) => html`<li><code>${x.name}</code>: ${x.reason}</li>`)}</ul></details>`;
}

// The languages that a translator writes, by their English names; nothing for other models.
export function LanguageSelect({ model, value, onChange }) {
  const given = useSignal(state).params.to;
  if (!model.languages.length) return null;
  return html`<${Select} label="Translate to" value=${value}
    options=${model.languages.map((x) => [x, languageName(x)])} onChange=${onChange} />
    <${Replaced} what="language" given=${given} shown=${languageName(value)} known=${model.languages} />`;
}

// The language of the link if the model writes it, else German, else its first; nothing for other models.
export const languageOf = ({ languages }, { to }) => [to, "de"].find((x) => languages.includes(x)) ?? languages[0];

function languageName(code) {
  try { return new Intl.DisplayNames(["en"], { type: "language" }).of(code); } catch { return code; }
}

// The model of a name, or the first that reads this; null until the list is there.
export function pickModel(list, name, reads = "text", only = () => true) {
  const able = (list ?? []).filter((m) => reading(m, reads) && only(m));
  return (list ?? []).find((m) => m.name === name && only(m)) ?? able[0] ?? null;
}

export function Slider({ label, value, min, max, step, onInput, show = (x) => x }) {
  return html`<label class="field slider"><span>${label} <output>${show(value)}</output></span>
    <input type="range" aria-label=${label} value=${value} min=${min} max=${max} step=${step}
      aria-valuetext=${String(show(value))} onInput=${(e) => onInput(Number(e.target.value))} /></label>`;
}

export function Switch({ label, value, onChange }) {
  return html`<label class="field switch">
    <input type="checkbox" checked=${value} onChange=${(e) => onChange(e.target.checked)} /><span>${label}</span>
      </label>`;
}

// Radio buttons that look like tabs. options: [value, text]
export function Choice({ label, value, options, onChange }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(([v, text]) =>
      html`<button aria-pressed=${v === value} onClick=${() => onChange(v)}>${text}</button>`)}</div>`;
}

// Tokens as buttons in one row.
export function Tokens({ tokens, label, selected = -1, isPressed = (i) => i === selected, onSelect,
  onHover = () => {}, background = () => null, ink = () => null }) {
  return html`<div class="tokens" role="group" aria-label=${label}>
    ${tokens.map((t, i) =>
      html`<button class="token" aria-pressed=${isPressed(i)} title=${`${showToken(t)} · position ${i}`}
    style=${background(i) ? { background: background(i), color: ink(i) ?? "inherit" } : {}}
    onClick=${() => onSelect(i)} onMouseEnter=${() => onHover(i)} onMouseLeave=${() => onHover(-1)}
      onFocus=${() => onHover(i)} onBlur=${() => onHover(-1)}>${showToken(t)}</button>`)}</div>`;
}

export const NoText = () => html`<p class="faint">Type something, or choose an example.</p>`;

export function Message({ error, loading, again = true }) { // again: a request that can be sent again
  if (error) return html`<p class="error" role="alert">${error}
    ${again && offline === null && html` <button onClick=${retry}>Retry</button>`}</p>`;
  return loading ? html`<p class="faint" aria-busy="true">Computing …</p>` : null;
}

// A table. columns: [name, field or function, "number"?]
export function Table({ columns, rows, label, onRow = null, selected = null }) {
  const value = (row, field) => (typeof field === "function" ? field(row) : row[field]);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table><caption class="hidden">${label}</caption>
    <thead><tr>${columns.map(([name, , kind]) => html`<th scope="col" class=${kind ?? ""}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row, i) =>
      html`<tr class=${i === selected ? "on" : ""}>${columns.map(([, field, kind], j) => html`<td class=${kind ?? ""}>
      ${j === 0 && onRow ? html`<button class="link" onClick=${() => onRow(row, i)}>${value(row, field)}</button>`
        : value(row, field)}</td>`)}</tr>`)}</tbody></table></div>`;
}
