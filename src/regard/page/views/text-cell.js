// A pinned weight: its arithmetic, its causes, and what removing its key changes.
import { format, html, showToken, useEffect, useSignal } from "../lib/dom.js";
import { useResponse } from "../lib/api.js";
import { Bars } from "../lib/bars.js";
import { colourScale, css, inkOn, theme } from "../lib/colours.js";
import { MathML } from "../lib/math.js";
import { setParams } from "../lib/state.js";
import { Message, Table, Tokens } from "../lib/widgets.js";

export function CellPanels({ body, site, head, query, key_ }) {
  const at = { ...body, site: site.name, head };
  const close = () => setParams({ query: null, key: null });
  useEffect(() => {
    const leave = (event) => {
      if (event.key !== "Escape") return;
      event.stopImmediatePropagation(); // it closes the drawer alone
      close();
    };
    addEventListener("keydown", leave, true);
    return () => removeEventListener("keydown", leave, true);
  }, []);
  return html`<aside class="drawer" aria-label="Arithmetic and causes">
    <div class="row between"><h2>${query >= 0 ? "One weight" : "One key"}</h2>
      <button onClick=${close}>Close</button></div>
    ${query >= 0 && html`<${Arithmetic} at=${{ ...at, query, key: key_ }} />
      <${Why} at=${{ ...at, query, key: key_ }} site=${site} />`}
    <${Influence} at=${{ ...at, key: key_ }} site=${site} head=${head} /></aside>`;
}

function Arithmetic({ at }) {
  const { response, error, loading } = useResponse("text.cell", at);
  return html`<section class="panel" aria-label="Arithmetic"><h2>Its arithmetic</h2>
    ${(error || !response) && html`<${Message} error=${error} loading=${loading} />`}
    ${!error && response && html`<p dir="auto" data-value=${response.weight} class="cell-title">${response.title}</p>
      <details><summary>Given numbers</summary>${response.given.map((code) => html`<${MathML} xml=${code} />`)}
        </details>
      <ol class="steps">
        ${response.steps.map((s) =>
          html`<li><span>${s.title}</span><${MathML} xml=${s.formula} />
            ${s.entry && html`<p class="mono">${s.entry}</p>`}
              ${s.results.map((code) => html`<${MathML} xml=${code} />`)}</li>`)}</ol>
      <ul class="faint">${response.remarks.map((x) => html`<li dir="auto">${x}</li>`)}</ul>`}</section>`;
}

function Why({ at, site }) {
  const isSelf = site.kind === "self";
  const { response, error, loading } = useResponse("text.why", at, { skip: !isSelf });
  return html`<section class="panel" aria-label="Why"><h2>Why it has this score</h2>
    ${!isSelf && html`<p
      class="faint">The score of a cross-attention comes from two stacks and is not split; choose a cell of a
        self-attention.</p>`}
    ${isSelf && (error || !response) && html`<${Message} error=${error} loading=${loading} />`}
    ${isSelf && !error && response
      && html`<p class="faint">The score ${format(response.score, 4)} is a sum over ${response.count} pairs: what wrote
        the query × what wrote the key. The largest ${response.pairs.length}:</p>
      <${Bars} label="Pairs of parts that made the score"
        rows=${response.pairs.map(([q, k, x]) => [`${q} × ${k}`, x])} />`}</section>`;
}

function Influence({ at, site, head }) {
  useSignal(theme);
  const { response, error, loading } = useResponse("text.influence", at);
  if (error || !response || response.key !== at.key) return html`<section class="panel" aria-label="Influence">
    <h2>Ablate this key</h2><${Message} error=${error} loading=${loading} /></section>`;
  const colour = colourScale({ max: Math.max(1e-30, ...response.effects) }),
    fill = (i) => colour(response.effects[i] ?? 0);
  const name = showToken(site.key_tokens[at.key] ?? String(at.key));
  const rows = response.effects.map((e, i) => ({ i, e, share: response.sizes[i] ? e / response.sizes[i] : null }))
    .sort((a, b) => b.e - a.e).slice(0, 6);
  return html`<section class="panel" aria-label="Influence"><h2>Ablate key “${name}”</h2>
    <p class="faint">How far each output of head ${head} moves when this key is removed and the others share its
      weight: computed exactly, without running the model again.</p>
    <${Tokens} tokens=${site.query_tokens.slice(0, response.effects.length)} label="Queries shaded by the effect"
      onSelect=${(i) => setParams({ query: String(i) })} background=${(i) => css(fill(i))}
        ink=${(i) => inkOn(fill(i))} />
    <${Table} label="Effects by query" rows=${rows}
      columns=${[["Query", (r) => `${showToken(site.query_tokens[r.i] ?? "")} (${r.i})`],
      ["moves by", (r) => html`<span data-value=${r.e}>${format(r.e)}</span>`, "number"],
        ["of its length", (r) => (r.share === null ? "–" : `${(100 * r.share).toFixed(1)}%`), "number"]]} />
    <h3>All heads of each attention</h3>
    <${Table} label="Effects by attention" rows=${response.sites}
      selected=${response.sites.findIndex((s) => s.site === site.name)}
        onRow=${(r) => setParams({ site: r.site, head: String(r.head) })}
      columns=${[["Attention", "site"],
        ["total", (r) => html`<span data-value=${r.effect}>${format(r.effect)}</span>`, "number"],
          ["most in head", "head", "number"]]} /></section>`;
}
