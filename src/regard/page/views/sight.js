// One sight in an offline page: the numbers of every head, all maps, and one head in detail.
import { html, useMemo, useSignal } from "../lib/dom.js";
import { Bars } from "../lib/bars.js";
import { offline, setParams, state } from "../lib/state.js";
import { HeadGrid } from "./text-grid.js";
import { MapPanel } from "./map-panel.js";
import { describeSite } from "./sight-data.js";
import { SightHead } from "./sight-head.js";
import { HeadTable } from "./sight-table.js";

export const hint = "";

const saved = () => offline.responses.find((x) => x.name === "sight").response;

export function View({ params }) {
  useSignal(state);
  const page = saved();
  const sites = useMemo(() => page.sites.map((site) => describeSite(site, page.labels)), [page]);
  const heads = useMemo(() => sites.flatMap((site) => site.types.map((row, head) =>
    ({ ...row, ...Object.fromEntries(page.columns.map((name, n) => [name, site.numbers[head][n]])), site: site.name,
      head, words: site.words[head] }))), [sites]);
  if (!sites.length) return html`<${Facts} page=${page} /><p class="faint">${page.written}</p>`;
  const site = sites.find((x) => x.name === params.site) ?? sites[0];
  const head = Math.min(Number(params.head ?? 0) || 0, site.heads - 1);
  const select = (name, number) => {
    setParams({ site: name, head: String(number), block: null });
    document.getElementById("head").scrollIntoView({ block: "nearest" });
  };
  const stat = page.columns.includes(params.stat) ? params.stat : "normalized_entropy";
  const shared = { heads, site, head, onSelect: select };
  return html`<${Facts} page=${page} />
    <section class="panel" aria-label="Heads"><h2>Heads</h2>
      <p class="faint">The type follows from the numbers, which are means over queries with at least two visible keys.
        Click a column to sort by it, a head to see it; the number of the sorted column is under each map.</p>
      <${HeadTable} ...${shared} columns=${page.columns} stat=${stat} /></section>
    <div class="text-main"><section class="panel" aria-label="All maps"><h2>All maps</h2>
        <p class="faint">One row per query, one column per key.</p>
        <${HeadGrid} response=${{ sites, heads }} ...${shared} statistic=${{ name: stat }} /></section>
      <div class="text-side"><section class="panel" id="head" aria-label="One head">
        <${SightHead} site=${site} head=${head} row=${heads.find((x) => x.site === site.name && x.head === head)}
          block=${params.block === undefined ? null : Number(params.block)} query=${params.query}
          predictions=${page.predictions} /></section></div></div>
    <p class="faint">${page.written}</p>`;
}

function Facts({ page }) {
  const { summary, facts, skipped, outputs, panels } = page;
  return html`<p class="hint">${summary}</p>
    ${(facts.length > 0 || outputs) && html`<section class="panel" aria-label="Facts">
      <dl class="facts">${facts.map(([name, text]) => html`<dt>${name}</dt><dd dir="auto">${text}</dd>`)}</dl>
      ${outputs && html`<h2>${outputs.kind[0].toUpperCase()}${outputs.kind.slice(1)}</h2>
        <${Bars} label="Most probable outputs" rows=${outputs.rows} max=${1} show=${(p) => p.toFixed(3)} />`}
          </section>`}
    ${skipped.length > 0 && html`<section class="panel" aria-label="Skipped"><h2>Skipped</h2>
      <ul>${skipped.map((x) => html`<li>${x}</li>`)}</ul></section>`}
    ${panels.map((panel) => html`<${MapPanel} key=${panel.name} ...${panel} />`)}`;
}
