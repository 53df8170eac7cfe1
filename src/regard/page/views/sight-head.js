// One head of a sight: its map, exact blocks of a long one, numbers per position, and the top keys of each token.
import { fixed, format, html, largest, showToken, useSignal, useState } from "../lib/dom.js";
import { colourScale, css, inkOn, theme } from "../lib/colours.js";
import { cellHandlers, HeatMap } from "../lib/draw.js";
import { setParams } from "../lib/state.js";
import { Tokens } from "../lib/widgets.js";
import { isWhole, mapOf, stripOf, topKeys } from "./sight-data.js";

const MAX_KEYS = 600; // of another text that are listed
const STRIPS = { entropy: "Entropy of each query, nats", first_share: "Share of each query on the first key",
  received: "Received by each key" };

const span = (start, stop) => (stop - start > 1 ? `${start}–${stop - 1}` : String(start));

export function SightHead({ site, head, row, block, query, predictions }) {
  const blocks = site.blocks[head], shown = block !== null && block >= 0 && block < blocks.length ? block : null;
  const zoom = (at) => setParams({ block: at === null ? null : String(at) });
  const leave = (event) => { if (event.key === "Escape" && shown !== null) zoom(null); };
  return html`<div onKeyDown=${leave}>
    <h2>${site.name}${site.path !== site.title ? ` (${site.path})` : ""}, head ${head} <span class="tag">
      ${row.type}</span></h2>
    <p dir="auto">${row.words}</p><p class="faint">${row.reason}.</p>
    <${Weights} site=${site} head=${head} blocks=${blocks} block=${shown} zoom=${zoom} />
    ${Object.keys(STRIPS).map((name) => html`<${Strip} key=${name} site=${site} head=${head} name=${name} />`)}
    <${TopKeys} site=${site} head=${head} query=${query} predictions=${predictions} /></div>`;
}

function Weights({ site, head, blocks, block, zoom }) {
  const map = mapOf(site.source, head, block), whole = isWhole(site.source), isPooled = !map.isExact;
  const label = (name, at, i) => (isPooled ? `${span(at(i), at(i + 1))} (${showToken(name(at(i)))} …)`
    : `${showToken(name(at(i)))} (${at(i)})`);
  const across = map.columns / site.keys, down = map.rows / site.queries;
  const boxes = isPooled ? blocks.map((b) => ({ row: b.rows[0] * down, column: b.keys[0] * across,
    rows: (b.rows[1] - b.rows[0]) * down, columns: (b.keys[1] - b.keys[0]) * across })) : [];
  const nearest = (i, j) => {
    const gaps = boxes.map((b) => Math.hypot(b.row + b.rows / 2 - i, b.column + b.columns / 2 - j));
    zoom(gaps.indexOf(Math.min(...gaps)));
  };
  return html`${!whole && html`<div class="chips" role="group" aria-label="Parts of the map">
      <button aria-pressed=${block === null} onClick=${() => zoom(null)}>whole map</button>
      ${blocks.map((b, at) => html`<button aria-pressed=${block === at} onClick=${() => zoom(at)}>
        queries ${span(...b.rows)} × keys ${span(...b.keys)}</button>`)}</div>`}
    <${HeatMap} values=${map.values} rows=${map.rows} columns=${map.columns} maxCell=${34}
      rowLabels=${isPooled ? undefined : Array.from({ length: map.rows }, (_, i) => site.queryLabel(map.query(i)))}
      columnLabels=${isPooled ? undefined : Array.from({ length: map.columns }, (_, j) => site.keyLabel(map.key(j)))}
      rowName=${(i) => label(site.queryLabel, map.query, i)} columnName=${(j) => label(site.keyLabel, map.key, j)}
      label=${`Map of ${site.name}, head ${head}, ${site.queries} queries by ${site.keys} keys`} log=${isPooled}
      boxes=${boxes} onSelect=${isPooled ? nearest : undefined} />
    <p class="faint">
      ${isPooled ? `Means of cells, ${map.rows} × ${map.columns} of ${site.queries} queries × ${site.keys}
      keys. Click near an outlined block, or press Enter, to see it weight by weight; Esc goes back.`
      : "Each row is a query; weights are rounded to 1/65535."} The largest is ${format(largest(map.values), 4)}.</p>`;
}

// One value per position: a curve of bars, read by pointer or arrow keys.
function Strip({ site, head, name }) {
  useSignal(theme);
  const [at, setAt] = useState(null);
  const values = stripOf(site.source, head, name), { count, cells } = site.strips[name];
  const low = values.reduce((a, b) => Math.min(a, b), Infinity),
    high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const nameOf = name === "received" ? site.keyLabel : site.queryLabel;
  const place = at && Math.floor(at.column * count / cells);
  const bars = Array.from(values, (x, i) => `M${i} 40V${(40 - (high > 0 ? 38 * x / high : 0)).toFixed(2)}h1V40z`);
  const about = `${STRIPS[name]}: ${fixed(low, 3)} to ${fixed(high, 3)}`
    + (cells < count ? `, means over ${count} in ${cells} cells` : "");
  return html`<figure class="strip"><figcaption>${about}</figcaption>
    <svg class="drawing" viewBox=${`0 0 ${cells} 40`} preserveAspectRatio="none" tabindex="0" role="application"
      aria-roledescription="bars" aria-label=${`${about}. Arrow keys move.`}
      ...${cellHandlers({ rows: 1, columns: cells, at, onMove: setAt, onSelect: () => {} })}>
      <path class="bar" d=${bars.join("")} /></svg>
    <p class="readout" aria-live="polite">${at ? `${showToken(nameOf(place))} (${place}): ${
      values[at.column].toPrecision(4)}` : ""}</p></figure>`;
}

// Tokens, and the keys that the chosen one attends to most.
function TopKeys({ site, head, query, predictions }) {
  useSignal(theme);
  const rows = site.top.rows, [over, setOver] = useState(-1);
  const chosen = rows.includes(Number(query)) && query !== undefined ? rows.indexOf(Number(query)) : rows.length - 1;
  const row = over >= 0 && over < rows.length ? over : chosen, at = rows[row];
  const top = topKeys(site.source, head, row), weights = new Map(top), colour = colourScale({ max: 1 });
  const shade = (key) => weights.has(key) && css(colour(weights.get(key)));
  const ink = (key) => weights.has(key) && inkOn(colour(weights.get(key)));
  const isSelf = site.kind === "self", keyOf = (i) => (isSelf ? rows[i] + site.offset : -1);
  const best = predictions?.labels === site.query_labels ? predictions.rows[at] : null;
  // a long text is listed from its start and its end
  const cut = rows.findIndex((x, i) => i > 0 && x !== rows[i - 1] + 1), parts = cut < 0 ? [[0, rows.length]]
    : [[0, cut], [cut, rows.length]];
  return html`<h3>${isSelf ? "Tokens" : "Queries"}</h3>
    <p class="faint">Point at a token to see where it attends: its top keys are shaded.</p>
    ${parts.map(([start, stop], n) => html`${n > 0 && html`<p class="faint">… ${rows[cut] - rows[cut - 1] - 1}
        not shown …</p>`}
      <${Tokens} tokens=${rows.slice(start, stop).map(site.queryLabel)} label="Tokens" selected=${chosen - start}
        onSelect=${(i) => setParams({ query: String(rows[start + i]) })}
        onHover=${(i) => setOver(i < 0 ? -1 : start + i)}
        background=${(i) => shade(keyOf(start + i))} ink=${(i) => ink(keyOf(start + i))} />`)}
    ${!isSelf && html`<h3>Keys${site.keys > MAX_KEYS ? `, the first ${MAX_KEYS} of ${site.keys}` : ""}</h3>
      <${Tokens} tokens=${Array.from({ length: Math.min(site.keys, MAX_KEYS) }, (_, key) => site.keyLabel(key))}
        label="Keys" onSelect=${() => {}} background=${shade} ink=${ink} />`}
    <p class="readout attended" aria-live="polite">${showToken(site.queryLabel(at))} (${at}) attends to ${
      top.map(([key, w]) => `${showToken(site.keyLabel(key))} (${key}) ${w.toFixed(4)}`).join(", ") || "nothing"}.${
      best ? ` Predicted ${predictions.kind} there: ${best.map(([name, p]) => `${name} ${p.toFixed(3)}`).join(", ")}.`
        : ""}</p>`;
}
