// What-if: edit attention and see at once what the maps, the predictions and the output become.
import { format, html, largest, range, showToken, useEffect, useSignal, useState } from "../lib/dom.js";
import { unpack, useResponse } from "../lib/api.js";
import { theme } from "../lib/colours.js";
import { HeatMap } from "../lib/draw.js";
import { setParams } from "../lib/state.js";
import { Controls, isOfTokens, noEdits, readEdits, writeEdits } from "./what-if-edits.js";
import { languageOf, LanguageSelect, Message, models, ModelSelect, NoText, pickModel, Select,
  Table } from "../lib/widgets.js";

export const hint =
  "Change the attention of a model while it runs: sharpen it, drop heads and keys, add noise. "
  + "Everything below follows.";

const runs = (m) => m.kind !== "sight";
// What the view begins with: one key of one attention less, and two hours become two seconds.
const FIRST = { text: "2 hours and 5 minutes", to: "de", edits: "drop_key('decoder.1.cross', keys=[1])" };

const textOf = (model, params) => params.text ?? model.examples[0] ?? "";

function bodyOf(model, params) {
  const body = { model: model.name, text: textOf(model, params) };
  if (model.languages.length) body.to = languageOf(model, params);
  if (params.target) body.target = params.target;
  for (const name of ["edits", "site"]) if (params[name]) body[name] = params[name];
  if (params.head !== undefined) body.head = Number(params.head);
  return body;
}

export function csv(params) {
  const model = pickModel(models.peek(), params.model, "text", runs);
  return model ? ["what-if", bodyOf(model, params)] : null;
}

export function View({ params }) {
  const list = useSignal(models), isNew = !Object.values(params).some((x) => x !== undefined);
  const begins = isNew && (list ?? []).find((m) => m.task === "phrases" && runs(m));
  const model = begins || pickModel(list, params.model, "text", runs);
  useEffect(() => { if (begins) setParams({ model: begins.name, ...FIRST }, { isChoice: false }); }, [begins?.name]);
  if (!model) return html`<${Message} loading=${true} />`;
  return html`<${Loaded} model=${model} params=${params} />`;
}

function Loaded({ model, params }) {
  const body = bodyOf(model, params);
  const { response, error, loading } = useResponse("what-if", body, { delay: 40, skip: !body.text });
  const edits = useResponse("what-if.edits", { model: model.name }).response; // once; a slider step sends numbers only
  // some encoder-decoders cannot write one themselves
  const asksTarget = params.target !== undefined || /^target:/.test(error ?? "");
  return html`<div><${Input} model=${model} params=${params} asksTarget=${asksTarget} />
    ${body.text && html`<${Message} error=${error} />`}
    ${!body.text ? html`<${NoText} />` : response && edits ? html`<div class="side" aria-busy=${loading}>
      <div><${Result} response=${response} params=${params} /></div>
      <${Controls} response=${{ ...response, ...edits }} params=${params} /></div>`
        : html`<${Message} loading=${!error} />`}</div>`;
}

function Input({ model, params, asksTarget }) {
  const rest = { position: null, target: null };
  const setModel = (name) =>
    setParams({ ...noEdits, ...rest, site: null, head: null, text: null, to: null, model: name });
  const setText = (text) => { // positions of another text mean nothing
    const calls = (readEdits(params.edits) ?? []).filter((call) => !Object.keys(call.values).some(isOfTokens));
    setParams({ position: null, text, edits: writeEdits(calls), ...(model.languages.length ? { target: null } : {}) });
  };
  return html`<section class="panel"><div class="row">
      <${ModelSelect} value=${model.name} only=${runs} onChange=${setModel} />
      <${LanguageSelect} model=${model} value=${languageOf(model, params)}
        onChange=${(to) => setParams({ to, target: null })} />
      <label class="field grow"><span>Text</span>
        <textarea rows="2" class="code" value=${textOf(model, params)} spellcheck="false"
        onInput=${(e) => setText(e.target.value)}></textarea></label>
      ${asksTarget && html`<label class="field grow"><span>Target</span>
        <textarea rows="2" class="code" value=${params.target ?? ""} spellcheck="false"
          onInput=${(e) => setParams({ target: e.target.value })}></textarea></label>`}
    </div>
    <div class="chips" role="group" aria-label="Examples">
      ${model.examples.map((x) => html`<button onClick=${() => setText(x)}>${showToken(x)}</button>`)}</div>
  </section>`;
}

// ---- what changed

function Result({ response, params }) {
  const { output, positions } = response, at = Number(params.position ?? response.position ?? 0);
  return html`<section class="panel" aria-live="polite"><h2 class="hidden">What changes</h2>
    <p class="big sentence">${response.sentence}</p>
      ${output && html`<div class="columns"><${Output} label="Before" text=${output.before} />
        <${Output} label="After" text=${output.after} changed=${output.after !== output.before} /></div>`}
    </section>
    <${Maps} response=${response} />
    ${positions.length > 0
      && html`<section class="panel">
        <h2>Predictions, with the text ${response.target === null ? "" : "and its translation "}given</h2>
      <div class="columns"><${Positions} response=${response} at=${at} />
        <${Bars} row=${positions[at] ?? positions[0]} kind=${response.kind} /></div></section>`}
    ${response.formula && html`<${Formula} response=${response} />`}
    <section class="panel"><h2>Where it acts</h2>
      <${Table} label="Change per attention site" rows=${response.sites} columns=${[
      ["site", "name"], ["map moved", (s) => format(mean(s.map)), "number"],
        ["output moved", (s) => format(mean(s.output)), "number"]]} />
      <p class="faint">Map: share of the weight that moved, mean over heads and queries. Output: size of the change
        beside the size of the output before.</p>
      ${response.edits.length > 0
        && html`<details><summary>The same in Python</summary>
          <pre>${`with rg.what_if(model, ${response.edits.map((x) => `rg.edit.${x}`).join(", ")}):\n    model(…)`}</pre>
            </details>`}
    </section>`;
}

const mean = (values) => {
  const known = values.filter((x) => x !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
};

function Output({ label, text, changed = false }) {
  return html`<div><h3>${label}${changed && html` <span class="changed">changed</span>`}</h3>
    <p class="mono output">${text || html`<span class="faint">nothing</span>`}</p></div>`;
}

function Maps({ response }) {
  const [cell, setCell] = useState(null);
  const { shape: [, rows, columns], values } = unpack(response.maps), size = rows * columns;
  const part = (i) => values.slice(i * size, (i + 1) * size);
  const pooled = response.pool[0] > 1 || response.pool[1] > 1, labels = (x) => (pooled ? null : x);
  const top = largest(values.subarray(0, 2 * size));
  const show = (title, i, more) =>
    html`<div><h3>${title}</h3>
      <${HeatMap} values=${part(i)} rows=${rows} columns=${columns} rowLabels=${labels(response.queries)}
    columnLabels=${labels(response.keys)} label=${`${title}: ${response.site}, head ${response.head}`} selected=${cell}
      onHover=${setCell} ...${more} /></div>`;
  const site = response.sites.find((s) => s.name === response.site);
  return html`<section class="panel"><div class="row"><h2>Attention map</h2>
      <${Select} label="Site" value=${response.site} options=${response.sites.map((s) => s.name)}
        onChange=${(x) => setParams({ site: x, head: "0" })} />
      <${Select} label="Head" value=${String(response.head)} options=${site.map.map((_, i) => String(i))}
        onChange=${(x) => setParams({ site: response.site, head: x })} /></div>
    <div class="three">${show("Before", 0, { max: top })}${show("After", 1, { max: top })}
      ${show("Difference", 2, { kind: "diverging" })}</div></section>`;
}

function Positions({ response, at }) {
  const guess = ([token, p]) => html`<span class="mono">${showToken(token)}</span> ${format(p)}`;
  return html`<${Table} label="Predictions per position" rows=${response.positions} selected=${at}
    onRow=${(row) => setParams({ position: row.position })} columns=${[
    [response.kind === "next token" ? "after" : "at",
      (r) => html`<span class="mono">${showToken(r.token || "the text")}</span>`], ["before", (r) => guess(r.before)],
    ["now", (r) => html`<span class=${r.after[0] === r.before[0] ? "" : "changed"}>${guess(r.after)}</span>`],
    ["KL", (r) => html`<span data-value=${r.kl}>${format(r.kl)}</span>`, "number"]]} />`;
}

// The likeliest tokens of one position, two bars each: before above, after below.
function Bars({ row, kind }) {
  useSignal(theme);
  const tall = 34, left = 108, width = 360, high = row.top.length * tall + 22;
  const bar = (p) => Math.max(0, p * (width - left - 52));
  return html`<figure>
    <figcaption>${kind === "next token" ? "Next after" : `Most likely ${kind} at`} <span class="mono">
      ${showToken(row.token || "the text")}</span></figcaption>
    <svg class="drawing bars" viewBox=${`0 0 ${width} ${high}`} width=${width} height=${high} role="img"
      aria-label=${`Probabilities after ${row.token}: ${row.top.map(([t, a, b]) =>
        `${showToken(t)} ${format(a)} before, ${format(b)} now`).join("; ")}`}>
      ${row.top.map(([token, before, after], i) => html`<g transform=${`translate(0,${i * tall})`}>
        <text x=${left - 8} y="19" text-anchor="end" font-size="12">${showToken(token).slice(0, 15)}</text>
        <rect class="before" x=${left} y="4" width=${bar(before)} height="10" />
          <text x=${left + bar(before) + 4} y="13" font-size="12">${format(before)}</text>
        <rect class="after" x=${left} y="16" width=${bar(after)} height="10" />
          <text x=${left + bar(after) + 4} y="25" font-size="12">${format(after)}</text></g>`)}
      <g transform=${`translate(${left},${high - 12})`}><rect class="before" width="10" height="8" />
        <text x="14" y="8" font-size="12">before</text>
        <rect class="after" x="70" width="10" height="8" /><text x="84" y="8" font-size="12">now</text></g></svg>
          </figure>`;
}

function Formula({ response }) {
  const { formula } = response, number = (name) => (i) =>
    html`<span data-value=${formula[name][i]}>${format(formula[name][i], 4)}</span>`;
  const columns = [["query", (i) => html`<span class="mono">${showToken(response.queries[i])}</span>`],
    ["predicted by the formula", number("predicted"), "number"], ["measured", number("measured"), "number"]];
  if (formula.first_order) columns.push(["first order only", number("first_order"), "number"]);
  return html`<section class="panel"><h2>Formula beside measurement</h2>
    <p>With this edit at ${response.site} alone, head ${response.head} changes its output h by <code>${formula.formula}
      </code>; here is its size ‖Δh‖ per query.
      ${" "}Formula and measurement differ by at most <strong data-value=${formula.largest_error}>
        ${format(formula.largest_error)}</strong>.</p>
    <${Table} label="Change of the output per query" rows=${range(response.queries.length)} columns=${columns} />
      </section>`;
}
