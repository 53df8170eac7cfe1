// A document in an offline page: the report of a run, or a comparison. Its blocks are those of page/document.py.
import { html, range, useSignal } from "../lib/dom.js";
import { theme } from "../lib/colours.js";
import { HeatMap, LineChart } from "../lib/draw.js";
import { offline } from "../lib/state.js";
import { Table } from "../lib/widgets.js";

export const hint = "";
const LOG_RATIO = 20; // of the largest to the smallest value, from which a curve has a logarithmic axis

export function View() {
  const { summary, sections, written } = offline.responses.find((x) => x.name === "report").response;
  return html`<p class="hint">${summary}</p>
    <nav class="sections" aria-label="Sections">
      ${sections.map(({ name }) => html`<button class="link" onClick=${() => jump(name)}>${name}</button>`)}</nav>
    ${sections.map(({ name, blocks }) => html`<section class="panel report" aria-labelledby=${name}>
      <h2 id=${name} tabindex="-1">${name}</h2>
      <div class=${layoutOf(blocks.map((x) => x.kind))}>${blocks.map(draw)}</div>
    </section>`)}
    <p class="faint">${written}</p>`;
}

// Charts in two columns; three maps of one head in a row.
const layoutOf = (kinds) => (kinds.every((x) => x === "map") ? "three"
  : kinds.filter((x) => x === "chart").length > 1 ? "columns" : "");

function jump(name) {
  const heading = document.getElementById(name);
  heading.scrollIntoView();
  heading.focus({ preventScroll: true });
}

const KINDS = {
  text: ({ text, soft }) => html`<p class=${soft ? "faint lines" : "lines"}>${text}</p>`,
  list: ({ lines }) => html`<ul>${lines.map((x) => html`<li>${x}</li>`)}</ul>`,
  code: ({ prompt, text }) => html`<pre><code><b>${prompt}</b>${text}</code></pre>`,
  tiles: ({ items }) => html`<ul class="tiles">${items.map(([name, value, note]) =>
    html`<li>${name}<b data-value=${value}>${value}</b><small>${note}</small></li>`)}</ul>`,
  picture: ({ png, alt }) => html`<img class="pixels" alt=${alt} src=${`data:image/png;base64,${png}`} />`,
  mark: ({ ok, text }) => html`<span class=${ok ? "right" : "wrong"}>${text}</span>`,
  tokens: ({ items }) => html`<p class="aligned" dir="auto">${items.map(([label, note]) =>
    html`<span class=${note ? `token ${note.split(" ")[0]}` : "token"} title=${note || null}>${label}</span>`)}</p>`,
  table: Rows, chart: Curves, map: WeightMap, confusions: Confusions,
};
const draw = (block) => html`<${KINDS[block.kind]} ...${block} />`;

function Rows({ caption, columns, rows, numbers, fold }) {
  const cell = (x) => (typeof x === "object" ? draw(x) : x);
  const body = html`<${Table} label=${caption} rows=${rows}
    columns=${columns.map((name, n) => [name, (row) => cell(row[n]), numbers.includes(n) ? "number" : "lines"])} />`;
  return fold ? html`<details><summary>${caption}</summary>${body}</details>` : html`<h3>${caption}</h3>${body}`;
}

function Curves({ title, series, x_label, at, log }) {
  const values = series.flatMap((s) => s.y), least = Math.min(...values), most = Math.max(...values);
  const isLog = log && least > 0 && most / least > LOG_RATIO;
  return html`<figure><figcaption>${title}${isLog ? " (logarithmic)" : ""}</figcaption>
    <${LineChart} label=${`${title} by ${x_label}`} series=${series} xTitle=${x_label} logY=${isLog}
      marks=${at === null ? [] : [at]} /></figure>`;
}

function WeightMap({ title, rows, columns, values, limit, signed, beside }) {
  return html`<figure><figcaption dir="auto">${title}</figcaption><div class="beside">${beside && draw(beside)}
    <${HeatMap} values=${Float32Array.from(values.flat(), (x) => x ?? NaN)} rows=${rows.length}
      columns=${columns.length}
      rowLabels=${rows} columnLabels=${columns} label=${title} kind=${signed ? "diverging" : "sequential"}
      max=${limit} maxCell=${26} /></div></figure>`;
}

function Confusions({ names, counts }) {
  useSignal(theme);
  const shade = (row, n) => Math.round(70 * row[n] / Math.max(1, row.reduce((a, b) => a + b, 0)));
  return html`<p class="faint">One row per class of the reference, one column per predicted class; outlined:
    correct.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="Table of confusions"><table class="confusions">
      <thead><tr><td></td>${names.map((x) => html`<th scope="col">${x}</th>`)}</tr></thead>
      <tbody>${counts.map((row, i) => html`<tr><th scope="row">${names[i]}</th>${range(row.length).map((j) =>
        html`<td class=${i === j ? "number hit" : "number"} data-value=${row[j]}
          style=${{ background: `color-mix(in srgb, var(--accent) ${shade(row, j)}%, transparent)` }}>
          ${row[j] ? row[j].toLocaleString("en") : "·"}</td>`)}</tr>`)}</tbody></table></div>`;
}
