// Two heads, texts, languages or models side by side, with their difference.
import { html, largest, range, useSignal } from "../lib/dom.js";
import { unpack, useResponse } from "../lib/api.js";
import { HeatMap } from "../lib/draw.js";
import { setParams } from "../lib/state.js";
import { Choice, Message, models, Select, Table } from "../lib/widgets.js";

const SIDES = ["first", "second", "difference"];

export function Compare({ body, response, site, head, params, model }) {
  const others = (useSignal(models) ?? [])
    .filter((m) => m.name !== model.name && (m.reads === "text" || m.kind === "sight"));
  const kinds = [["head", "A head"], ["text", "A text"],
    ...(model.languages.length > 1 ? [["to", "A language"]] : []), ...(others.length ? [["model", "A model"]] : [])];
  const against = kinds.some(([name]) => name === params.vs) ? params.vs : "head";
  const other = chosen(against, params, { body, response, site, head, model, others });
  const { response: comparison, error, loading } =
    useResponse("text.compare", { ...body, site: site.name, head, ...other },
    { delay: 250, skip: other.other_text === "" });
  return html`<h2>Compare ${site.name}, head ${head} with</h2>
    <div class="row">
      <${Choice} label="Compare with" value=${against} options=${kinds} onChange=${(vs) => setParams({ vs })} /></div>
    <div class="row">
      ${against === "head"
        && html`<${Select} label="Attention" value=${other.other_site}
          options=${response.sites.filter((s) => s.queries === site.queries && s.keys === site.keys).map((s) => s.name)}
        onChange=${(x) => setParams({ other_site: x, other_head: null })} />
      <${Select} label="Head" value=${String(other.other_head)}
        options=${range(response.sites.find((s) => s.name === other.other_site).heads).map(String)}
          onChange=${(x) => setParams({ other_head: x })} />`}
    ${against === "text"
      && html`<label class="field grow"><span>Other text</span>
        <textarea dir="auto" rows="1" value=${other.other_text}
          onInput=${(e) => setParams({ other_text: e.target.value })}></textarea></label>`}
    ${against === "to"
      && html`<${Select} label="Other language" value=${other.other_to} options=${model.languages}
        onChange=${(x) => setParams({ other_to: x })} />`}
    ${against === "model"
      && html`<${Select} label="Other model" value=${other.other_model} options=${others.map((m) => m.name)}
        onChange=${(x) => setParams({ other_model: x })} />`}</div>
    ${(error || !comparison) && html`<${Message} error=${error} loading=${loading} />`}
    ${!error && comparison && html`<${Maps} comparison=${comparison} />`}
    ${!error && comparison?.heads.length > 0
      && html`<h3>Heads that differ most</h3>
        <${Table} label="Heads that differ most" rows=${comparison.heads.slice(0, 12)}
      onRow=${(r) => setParams({ site: r.site, head: String(r.head) })}
        selected=${comparison.heads.findIndex((r) => r.site === site.name && r.head === head)}
      columns=${[["Attention", "site"], ["head", "head", "number"],
        ["distance", (r) => html`<span data-value=${r.distance}>${r.distance.toFixed(3)}</span>`, "number"],
          ["largest change", (r) => `${r.query} → ${r.key}: ${r.before.toFixed(2)} → ${r.after.toFixed(2)}`]]} />
      <p class="faint">Distance: half the sum of absolute differences per row; 0 for equal maps, 1 for disjoint
        ones.</p>`}`;
}

// The fields of the request that name the other side, with a sensible first choice for each.
function chosen(against, params, { body, site, head, model, others }) {
  if (against === "head") {
    const same = !params.other_site || params.other_site === site.name;
    return { other_site: params.other_site ?? site.name,
      other_head: Number(params.other_head ?? (same ? (head + 1) % site.heads : 0)) };
  }
  if (against === "text") return { other_text: params.other_text ?? model.examples.find((x) => x !== body.text)
    ?? body.text };
  if (against === "to") return { other_to: params.other_to
    ?? ["fr", "de"].find((x) => x !== body.to && model.languages.includes(x))
      ?? model.languages.find((x) => x !== body.to) };
  return { other_model: others.some((m) => m.name === params.other_model) ? params.other_model : others[0].name };
}

function Maps({ comparison }) {
  const { shape: [, rows, columns], values } = unpack(comparison.maps), size = rows * columns;
  const labels = comparison.pool[0] > 1 || comparison.pool[1] > 1 ? {}
    : { rowLabels: comparison.query_tokens, columnLabels: comparison.key_tokens };
  const titles = [comparison.outputs[0] ?? comparison.names[0], comparison.outputs[1] ?? comparison.names[1],
    "Difference (second − first)"];
  // differences of 0.2 and less would hardly show on the scale of the weights
  const most = largest(values.subarray(2 * size), 0.2);
  return html`<div class="three">${SIDES.map((side, n) => html`<figure><figcaption dir="auto">${titles[n]}</figcaption>
    <${HeatMap} values=${values.subarray(n * size, (n + 1) * size)} rows=${rows} columns=${columns} ...${labels}
      label=${`${side} map`} max=${n === 2 ? most : 1} kind=${n === 2 ? "diverging" : "sequential"} maxCell=${26} />
        </figure>`)}</div>`;
}
