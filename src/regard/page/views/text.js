// The text view: type a text, see what a model makes of it, every attention head, and one head in detail.
import { html, showToken, useSignal } from "../lib/dom.js";
import { useResponse } from "../lib/api.js";
import { Bars } from "../lib/bars.js";
import { linkTo, setParam, setParams } from "../lib/state.js";
import { Choice, languageOf, LanguageSelect, Message, models, ModelSelect, NoText, pickModel,
  Replaced, Select, Tokens } from "../lib/widgets.js";
import { CellPanels } from "./text-cell.js";
import { Compare } from "./text-compare.js";
import { HeadGrid } from "./text-grid.js";
import { Head } from "./text-head.js";
import { Attribution, Lens, positionOf } from "./text-parts.js";

export const hint =
  "Type a text and see which tokens a model looks at, head by head, with the arithmetic of every weight.";
const MAX_TOKENS = 512; // listed; the atlas shows more
const readsText = (m) => m.reads === "text" || m.kind === "sight";

// The body of the requests: the parameters of the URL, or the first example of the model.
function bodyOf(params, model) {
  return { model: model.name, text: params.text ?? model.examples[0] ?? "", to: languageOf(model, params),
    target: params.target, options: params.options };
}

export const csv = (params) => {
  const model = pickModel(models.peek(), params.model, "text", readsText);
  return model ? ["text", bodyOf(params, model)] : undefined;
};

export function View({ params }) {
  const model = pickModel(useSignal(models), params.model, "text", readsText);
  const body = model && bodyOf(params, model), cleared = body?.text === "" && model.kind !== "sight";
  // details are requested for the text of the response
  const { response, of, error, loading } =
    useResponse("text", body, { skip: !model || cleared, delay: 250, eager: true });
  if (!model) return html`<${Message} loading=${true} />`;
  const needsTarget = Boolean(params.target) || (error ?? "").startsWith("target:");
  return html`
    <${Input} params=${params} model=${model} body=${body} needsTarget=${needsTarget} />
    ${cleared ? html`<${NoText} />`
      : html`${error && html`<${Message} error=${error} />`}
        ${!error && !response && html`<${Message} loading=${true} />`}
        ${!error && response && html`<div aria-busy=${loading} class=${loading ? "stale" : ""}>
          <${Output} response=${response} body=${of} params=${params} />
          ${response.sites.length ? html`<${Heads} response=${response} body=${of} params=${params} model=${model} />`
            : html`<p class="faint">No attention was recorded in this model.</p>`}</div>`}`}`;
}

function Input({ params, model, body, needsTarget }) {
  const clean = { options: null, site: null, head: null, query: null, key: null, position: null, target: null };
  return html`<section class="panel" aria-label="Input"><div class="row">
      <${ModelSelect} value=${model.name}
        onChange=${(name) =>
          setParams({ ...clean, model: name, text: model.examples.includes(body.text) ? null : params.text })} />
      <${LanguageSelect} model=${model} value=${body.to} onChange=${(to) => setParams({ to })} />
      ${model.kind !== "sight"
        && html`<label class="field grow"><span>Text</span>
          <textarea dir="auto" rows=${Math.min(6, body.text.split("\n").length)}
        value=${body.text} onInput=${(e) => setParams({ text: e.target.value })} spellcheck="false"></textarea>
          </label>`}
      <${TaskOptions} model=${model} given=${params.options} />
      ${needsTarget && html`<label class="field grow"><span>Target text (what the decoder has written)</span>
        <textarea dir="auto" rows="1" value=${params.target ?? ""}
        onInput=${(e) => setParams({ target: e.target.value })}></textarea></label>`}
    </div>
    <div class="chips">
      ${model.examples.map((text) =>
        html`<button onClick=${() => setParams({ text, query: null, key: null, position: null })}
      aria-pressed=${text === body.text}>${text.replace(/\n/g, "↵")}</button>`)}</div></section>`;
}

// The options that the task of the model declares; the URL has those that were changed.
function TaskOptions({ model, given }) {
  const changed = given ? Object.fromEntries(new URLSearchParams(given)) : {};
  const write = (name, value, normal) => {
    const { [name]: _, ...rest } = changed;
    const next = value === "" || value === normal ? rest : { ...rest, [name]: value };
    setParams({ options: new URLSearchParams(next).toString() || null });
  };
  return (model.options ?? []).map((o) => {
    const normal = String(o.default ?? ""), value = changed[o.name] ?? normal, label = o.name.replaceAll("_", " ");
    const onChange = (x) => write(o.name, x, normal);
    const choices = o.type === "boolean" ? ["false", "true"] : o.choices;
    if (choices.length) {
      const options = choices.includes(normal) ? choices : ["", ...choices];
      return html`<${Select} label=${label} value=${value} options=${options} onChange=${onChange} />`;
    }
    return html`<label class="field" title=${o.help}><span>${label}</span>
      <input type=${o.is_list || o.type === "string" ? "text" : "number"} step=${o.type === "number" ? "any" : 1}
        min=${o.minimum} max=${o.maximum} value=${value} onChange=${(e) => onChange(e.target.value)} /></label>`;
  });
}

// What came out: the translation, and the most probable outputs at one position.
function Output({ response, params }) {
  const last = response.sites.at(-1);
  const predictions = response.predictions;
  const perToken = predictions && predictions.kind !== "class" && last?.queries === predictions.count;
  const isPair = response.output !== null && last?.kind === "cross";
  const at = positionOf(response, params);
  const row = predictions?.rows[predictions.positions.indexOf(at)];
  const select = (position) =>
    setParams({ position: String(position), ...(isPair ? {} : { key: String(position), query: null, tab: null }) });
  // the effect of removing a token that was read is that on an attention which reads it
  const readers = response.sites.filter((s) => s.keys === last?.keys && s.key_tokens.join() === last.key_tokens.join())
    .map((s) => s.name);
  const remove = (key) =>
    setParams({ key: String(key), query: null, tab: null,
      ...(readers.includes(params.site) ? {} : { site: last.name }) });
  const titles = { "next token": "Next token", token: "Token here", tag: "Tag", class: "Class" };
  const token = perToken && last.query_tokens[at];
  const where = !perToken ? "" : token === undefined ? ` after position ${at}` : ` after “${showToken(token)}”`;
  return html`<div class="columns text-out"><section class="panel" aria-label="Tokens">
      ${response.output !== null
        && html`<output class="big" dir="auto" aria-label="Output">${response.output}</output>`}
      ${response.applied !== null
        && html`<output class="big" dir="auto" aria-label="Result">${response.applied}</output>`}
      ${isPair && html`<h2>Read</h2><${Tokens} tokens=${last.key_tokens} label="Tokens read" onSelect=${remove} />
        <p class="faint">Click one to see what removing it changes.</p>`}
      <h2>${isPair ? "Written" : "Tokens"} <span class="faint">${last?.queries ?? 0}</span></h2>
      ${last && html`<${Tokens} tokens=${last.query_tokens} label=${isPair ? "Tokens written" : "Tokens"}
        selected=${perToken ? at : -1} onSelect=${select} />`}
      ${last?.queries > MAX_TOKENS && html`<p class="faint">The first ${MAX_TOKENS} of ${last.queries} tokens.</p>`}
        </section>
    ${row && html`<section class="panel" aria-label="Predictions">
      <h2>${titles[predictions.kind] ?? predictions.kind}
        <span class="faint">${predictions.kind === "next token" ? where : ""}</span></h2>
      <${Bars} label="Most probable outputs" rows=${row} max=${1} show=${(p) => `${(100 * p).toFixed(1)}%`} />
        </section>`}</div>`;
}

const TABS = [["head", "One head"], ["compare", "Compare"], ["lens", "Logit lens"], ["parts", "Logit attribution"]];

function Heads({ response, body, params, model }) {
  const site = response.sites.find((s) => s.name === params.site)
    ?? response.sites.find((s) => s.name === response.start.site);
  const fallback = site.name === response.start.site ? response.start.head : 0;
  const given = Number(params.head ?? fallback), head = given >= 0 && given < site.heads ? given : fallback;
  const statistic = ["normalized_entropy", params.stat].map((name) => response.columns.find((c) => c.name === name))
    .findLast((c) => c);
  const tab = TABS.some(([name]) => name === params.tab) ? params.tab : "head";
  const inside = (name, count) =>
    (params[name] !== undefined && Number(params[name]) >= 0 && Number(params[name]) < count ? Number(params[name])
      : -1);
  const query = inside("query", site.queries), key = inside("key", site.keys);
  const select = (name, number) => setParams({ site: name, head: String(number) });
  const row = response.heads.find((x) => x.site === site.name && x.head === head);
  const shared = { body, response, site, head, row, params, model };
  const skipped = Object.entries(response.skipped), pinned = tab === "head" && key >= 0;
  return html`<${Replaced} what="attention" asked=${params.site} shown=${site.name}
      known=${response.sites.map((s) => s.name)} />
    <${Replaced} what=${`head of ${site.name} with the number`} asked=${params.head} shown=${`head ${head}`}
      isThere=${given === head} />
    ${["query", "key"].map((x) => html`<${Replaced} what=${`${x} with the number`} asked=${params[x]}
      shown="the map" isThere=${String({ query, key }[x]) === params[x]} />`)}
    <div class="text-main">
    <section class="panel" aria-label="All heads"><div class="row between"><h2>Every head</h2>
        <${Select} label="Number under each" value=${statistic.name}
          options=${response.columns.map((c) => [c.name, `${c.label[0].toUpperCase()}${c.label.slice(1)}`])}
            onChange=${(stat) => setParams({ stat })} /></div>
      <${HeadGrid} response=${response} site=${site} head=${head} statistic=${statistic} onSelect=${select} />
      ${skipped.length > 0
        && html`<p class="faint">Without a row: ${skipped.map(([name, why]) => `${name} (${why})`).join(", ")}</p>`}
          </section>
    <div class=${pinned ? "text-side" : "text-side alone"}>
      <section class="panel text-detail" aria-label="Detail">
        <${Choice} label="What to show" value=${tab} options=${TABS} onChange=${setParam("tab", "head")} />
      ${tab === "head" && html`<${Head} ...${shared} query=${query} key_=${key} />`}
      ${tab === "compare" && html`<${Compare} ...${shared} />`}
      ${tab === "lens" && html`<${Lens} ...${shared} />`}
      ${tab === "parts" && html`<${Attribution} ...${shared} />`}
      <p class="faint">
        <a href=${linkTo("atlas", { model: body.model, text: body.text, to: body.to, site: site.name, head })}>Open
          this head in the atlas</a></p></section>
    ${pinned && html`<${CellPanels} ...${shared} query=${query} key_=${key} />`}</div></div>`;
}
