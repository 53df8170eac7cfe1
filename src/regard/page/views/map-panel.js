// A table with one map per row, such as the heads of linear mixers or the routers of experts.
import { html, useMemo, useState } from "../lib/dom.js";
import { HeatMap } from "../lib/draw.js";
import { numbers } from "../lib/pack.js";

const ZERO = 32767; // numbers are stored as multiples of scale / 32767 above it

export function MapPanel({ name, note, columns, rows, maps }) {
  const [at, setAt] = useState(0), first = columns.indexOf("head") > 0 ? 1 : 0; // the column that names a row
  const isNumber = (x) => x !== "" && !Number.isNaN(Number(x));
  return html`<section class="panel" aria-label=${name}><h2>${name}</h2><p class="faint">${note}</p>
    <div class="map-panel"><div class="scroll" tabindex="0" role="region" aria-label=${`Table: ${name}`}>
      <table class="head-table"><thead><tr>${columns.map((x) => html`<th scope="col">
        ${x.replaceAll("_", " ")}</th>`)}</tr></thead>
      <tbody>${rows.map((row, i) => html`<tr class=${i === at ? "on" : ""}>${row.map((x, j) => (j === first
        ? html`<td><button onClick=${() => setAt(i)} aria-pressed=${i === at} aria-label=${maps[i].title}>${x}</button>
          </td>` : html`<td class=${isNumber(x) ? "number" : ""}>${x}</td>`))}</tr>`)}</tbody></table></div>
    <${SignedMap} ...${maps[at]} /></div></section>`;
}

function SignedMap({ title, titles, rows, columns, scale, signed, data }) {
  const values = useMemo(() => Float32Array.from(numbers(data, "u2"), (x) => (x / ZERO - 1) * scale), [data]);
  return html`<figure><figcaption>${title}</figcaption><${HeatMap} values=${values} rows=${rows.length}
    columns=${columns.length} rowLabels=${rows} columnLabels=${columns} rowTitle=${titles[0]} columnTitle=${titles[1]}
    label=${`Map of ${title}`} kind=${signed ? "diverging" : "sequential"} max=${scale} maxCell=${30} /></figure>`;
}
