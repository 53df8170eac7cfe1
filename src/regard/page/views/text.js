// The text view: type a text, see what a model makes of it, every attention head, and one head in detail.
import { html, shorten, useSignal } from "../lib/dom.js";
import { useResponse } from "../lib/api.js";
import { linkTo, setParam, setParams } from "../lib/state.js";
import { Term } from "../lib/terms.js";
import { Choice, languageOf, LanguageSelect, Message, models, ModelSelect, NoText, pickModel, Replaced,
  Select } from "../lib/widgets.js";
import { CellPanels } from "./text-cell.js";
import { Compare } from "./text-compare.js";
import { FORMS, Head, useWeights } from "./text-head.js";
import { Attribution, Lens, positionOf } from "./text-parts.js";
import { Prediction, Sentence, useEffects } from "./text-sentence.js";
import { Strip } from "./text-strip.js";

export const hint =
  "Type a text and see which tokens a model looks at, head by head, with the arithmetic of every weight.";
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
    ${cleared ? html`<${NoText} />${model.knows && html`<p class="faint">This model knows ${model.knows}.</p>`}`
      : html`${error && html`<${Message} error=${error} />`}
        ${!error && !response && html`<${Message} loading=${true} />`}
        ${!error && response && html`<div aria-busy=${loading} class=${loading ? "stale" : ""}>
          ${response.sites.length ? html`<${Stage} response=${response} body=${of} params=${params} model=${model} />`
            : html`<p class="faint">No attention was recorded in this model.</p>`}</div>`}`}`;
}

function Input({ params, model, body, needsTarget }) {
  const clean = { site: null, head: null, query: null, key: null, position: null };
  return html`<section class="panel text-in" aria-label="Input"><div class="row">
      <${ModelSelect} value=${model.name}
        onChange=${(name) => setParams({ ...clean, options: null, target: null, model: name,
          text: model.examples.includes(body.text) ? null : params.text })} />
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
    <div class="chips">
      ${model.examples.map((text, i) =>
        html`<button onClick=${() => setParams({ ...clean, text })} title=${text} data-key=${String(i + 1)}
          aria-label=${model.shows[i] ? `${model.shows[i]}: ${text}` : text}
          data-does=${model.shows[i] || shorten(text, 12)} aria-pressed=${text === body.text}>
          ${model.shows[i] && html`<b>${model.shows[i]}</b>`}${(!model.shows[i] || text.length < 12)
            && ` ${text.replace(/\n/g, "↵")}`}</button>`)}</div></div>
    </section>`;
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

const TABS = [["head", "Attention"], ["compare", "Compare"], ["lens", "Logit lens"], ["parts", "Logit attribution"]];

// The sentence with what is written next, one large map, what the head does, all heads as a strip, and a drawer.
function Stage({ response, body, params, model }) {
  const site = response.sites.find((s) => s.name === params.site)
    ?? response.sites.find((s) => s.name === response.start.site);
  const fallback = site.name === response.start.site ? response.start.head : 0;
  const given = Number(params.head ?? fallback), head = given >= 0 && given < site.heads ? given : fallback;
  const tab = TABS.some(([name]) => name === params.tab) ? params.tab : "head";
  const inside = (name, count) =>
    (params[name] !== undefined && Number(params[name]) >= 0 && Number(params[name]) < count ? Number(params[name])
      : -1);
  const query = inside("query", site.queries), key = inside("key", site.keys);
  const row = response.heads.find((x) => x.site === site.name && x.head === head);
  const weights = useWeights(body, site, head);
  const position = positionOf(response, params), found = useEffects(body, response, position, site, head);
  const shared = { body, response, site, head, row, params, model, weights, position, ...found };
  const skipped = Object.entries(response.skipped), pinned = tab === "head" && key >= 0;
  return html`<${Replaced} what="attention" given=${params.site} shown=${site.name}
      known=${response.sites.map((s) => s.name)} />
    <${Replaced} what=${`head of ${site.name} with the number`} given=${params.head} shown=${`head ${head}`}
      isThere=${given === head} />
    ${["query", "key"].map((x) => html`<${Replaced} what=${`${x} with the number`} given=${params[x]}
      shown="the map" isThere=${String({ query, key }[x]) === params[x]} />`)}
    <div class="stage">
    <section class="panel text-detail" aria-label="Detail">
      <${Sentence} ...${shared} query=${query} key_=${key} />
      <div class="row between"><h2>${site.name}, head ${head}${" "}
          <${Term} name=${row?.type} title=${row?.reason} /></h2>
        <${Choice} label="What to show" value=${tab} options=${TABS} onChange=${setParam("tab", "head")} /></div>
      ${tab === "head" && html`<${Head} ...${shared} query=${query} key_=${key} />`}
      ${tab === "compare" && html`<${Compare} ...${shared} />`}
      ${tab === "lens" && html`<${Lens} ...${shared} />`}
      ${tab === "parts" && html`<${Attribution} ...${shared} />`}</section>
    <aside class="panel" aria-label="What it does">
      <${Prediction} ...${shared} />
      <p class="faint words" dir="auto" title=${row?.words}>${row?.words}</p>
      ${tab === "head" && weights.pool?.[0] === 1 && html`<${Choice} label="How to draw it" options=${FORMS}
        value=${FORMS.some(([name]) => name === params.show) ? params.show : "map"}
        onChange=${setParam("show", "map")} />`}
      <p class="faint"><a href=${linkTo("atlas",
        { model: body.model, text: body.text, to: body.to, site: site.name, head })}>Open this head in the atlas</a></p>
    </aside>
    <${Strip} ...${shared} />
    ${skipped.length > 0
      && html`<p class="faint">Without a head: ${skipped.map(([name, why]) => `${name} (${why})`).join(", ")}</p>`}
    ${pinned && html`<${CellPanels} ...${shared} query=${query} key_=${key} />`}</div>`;
}
