// One head: its map, lines between tokens, or the weights of one token.
import { clamp, format, html, range, showToken, useMemo, useRef, useSignal, useState, useWidth } from "../lib/dom.js";
import { unpack, useResponse } from "../lib/api.js";
import { colourScale, css, inkOn, theme } from "../lib/colours.js";
import { HeatMap } from "../lib/draw.js";
import { present } from "../lib/present.js";
import { setParams } from "../lib/state.js";
import { Term } from "../lib/terms.js";
import { Message, Tokens } from "../lib/widgets.js";
import { nextOf } from "./text-sentence.js";

const MAX_LINES = 64; // tokens on a side between which lines are drawn
export const FORMS = [["map", "Heat map"], ["arcs", "Lines"], ["token", "One token"]];

// The map of a head: {shape, values, pool, query_tokens, key_tokens}, or {error} until it is there.
export function useWeights(body, site, head) {
  const pooled = useResponse("text.map", { ...body, site: site.name, head }, { skip: site.is_exact });
  return useMemo(() => {
    if (!site.is_exact) return pooled.response?.site === site.name && pooled.response.head === head
      ? { ...pooled.response, ...unpack(pooled.response.map) } : { error: pooled.error };
    const { shape: [, rows, columns], values } = unpack(site.maps);
    return { pool: [1, 1], shape: [rows, columns],
      values: values.subarray(head * rows * columns, (head + 1) * rows * columns), query_tokens: site.query_tokens,
        key_tokens: site.key_tokens };
  }, [site, head, pooled.response, pooled.error]);
}

export function Head({ response, site, weights, params, query, key_ }) {
  if (!weights.values) return html`<${Message} error=${weights.error} loading=${true} />`;
  const pooled = weights.pool[0] > 1 || weights.pool[1] > 1;
  const form = pooled ? "map" : FORMS.some(([name]) => name === params.show) ? params.show : "map";
  return html`${form === "map" && html`<${WeightMap} headMap=${weights} pooled=${pooled} site=${site} query=${query}
      key_=${key_} next=${nextOf(response, site)}
      used=${response.output === null ? 455 : 500} />`}
    ${form === "arcs" && html`<${Lines} headMap=${weights} query=${query} key_=${key_} />`}
    ${form === "token" && html`<${OneToken} headMap=${weights} query=${query} key_=${key_} />`}
    ${pooled && html`<p class="faint">This text is long: each cell is the mean of
      ${weights.pool[0]} × ${weights.pool[1]} weights. The atlas shows every single one.</p>`}`;
}

const pin = (query, key) => setParams({ query: String(query), key: String(key) });

function WeightMap({ headMap, pooled, site, query, key_, next, used }) {
  const [rows, columns] = headMap.shape, zoom = useSignal(present) ? 1.5 : 1;
  const labels = pooled ? {} : { rowLabels: headMap.query_tokens, columnLabels: headMap.key_tokens, rowNext: next };
  return html`<${HeatMap} values=${headMap.values} rows=${rows} columns=${columns} ...${labels}
    label=${`Attention weights of ${site.name}`} max=${pooled ? undefined : 1} log=${pooled} maxCell=${48}
    maxHeight=${clamp(innerHeight / zoom - used, 220, 620)}
    hint=${html`Each row is a <${Term} name="query" /> and sums to 1, each column a${" "}
      <${Term} name="key" />. Click a cell for its arithmetic.`}
    selected=${!pooled && query >= 0 && key_ >= 0 ? { row: query, column: key_ } : null}
      onSelect=${pooled ? () => {} : pin} />`;
}

// Queries on the left, keys on the right; the darker a line, the larger the weight.
function Lines({ headMap, query, key_ }) {
  const box = useRef(null), width = Math.min(useWidth(box), 520), [near, setNear] = useState(null);
  const [rows, columns] = headMap.shape;
  if (Math.max(rows, columns) > MAX_LINES) return html`<p class="faint"
    ref=${box}>Lines are drawn for up to ${MAX_LINES} tokens; the heat map shows them all.</p>`;
  const tall = 20, height = Math.max(rows, columns) * tall + 26, left = 0.34 * width, right = 0.66 * width;
  const at = near ?? (query >= 0 ? { side: "query", i: query } : key_ >= 0 ? { side: "key", i: key_ } : null);
  const shown = (i, j) => !at || (at.side === "query" ? at.i === i : at.i === j);
  const y = (i) => 34 + i * tall;
  const lines = range(rows * columns).map((n) => [Math.floor(n / columns), n % columns, headMap.values[n]])
    .filter(([i, j, w]) => w >= 0.01 && shown(i, j));
  const word = (side, tokens, x, anchor) =>
    tokens.map((t, i) =>
      html`<text class=${at?.side === side && at.i === i ? "on" : ""} x=${x} y=${y(i) + 4} text-anchor=${anchor}
        font-size="12.5"
    onMouseEnter=${() => setNear({ side, i })} onMouseLeave=${() => setNear(null)}
      onClick=${() => setParams({ [side]: String(i) })}>${showToken(t).slice(0, 18)}</text>`);
  const press = (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step && event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.preventDefault();
    const side = step ? at?.side ?? "query" : event.key === "ArrowLeft" ? "query" : "key", count = side === "query"
      ? rows : columns;
    setNear({ side, i: clamp((at?.i ?? -1) + (step ?? 0), 0, count - 1) });
  };
  return html`<div ref=${box}>
    <svg class="drawing lines" width=${width} height=${height} tabindex="0" role="application"
      aria-roledescription="lines between tokens"
      aria-label="Lines from queries to keys. Up and down choose a token, left and right the side."
        onKeyDown=${press} onBlur=${() => setNear(null)}>
      <text class="query" x=${left - 10} y="14" text-anchor="end" font-size="12">query</text>
        <text class="key" x=${right + 10} y="14" font-size="12">key</text>
      ${lines.map(([i, j, w]) =>
        html`<path d=${`M${left} ${y(i)}C${(left + right) / 2} ${y(i)} ${(left + right) / 2} ${y(j)} ${right} ${y(
          j)}`} opacity=${Math.min(1, w)} stroke-width=${0.6 + 3 * Math.min(1, w)} data-value=${w} />`)}
      ${word("query", headMap.query_tokens, left - 8, "end")}${word("key", headMap.key_tokens, right + 8, "start")}
        </svg>
    <p class="readout" aria-live="polite">
      ${at ? summary(headMap, at) : html`<span class="faint">Point at a token to see its own lines.</span>`}</p></div>`;
}

function summary(headMap, { side, i }) {
  const [rows, columns] = headMap.shape, isQuery = side === "query";
  const weights = range(isQuery ? columns : rows)
    .map((n) => [n, headMap.values[isQuery ? i * columns + n : n * columns + i]]);
  const best = weights.sort((a, b) => b[1] - a[1]).slice(0, 3)
    .map(([n, w]) => `${showToken((isQuery ? headMap.key_tokens : headMap.query_tokens)[n])} ${format(w)}`);
  return `${showToken((isQuery ? headMap.query_tokens : headMap.key_tokens)[i])} (${i}) ${isQuery ? "gives"
    : "gets from"} ${best.join(", ")}`;
}

// The keys shaded by the weights that one query gives, or the queries by the weights that one key gets.
function OneToken({ headMap, query, key_ }) {
  useSignal(theme);
  const [over, setOver] = useState(null);
  const [rows, columns] = headMap.shape, byKey = query < 0 && key_ >= 0,
    at = over ?? (byKey ? { side: "key", i: key_ } : { side: "query", i: Math.max(0, query) });
  const colour = colourScale({ max: 1 }), isQuery = at.side === "query";
  const weight = (n) => (isQuery ? headMap.values[at.i * columns + n] : headMap.values[n * columns + at.i]);
  const strip = (side, tokens) => {
    const shaded = side !== at.side, fill = (n) => colour(weight(n));
    return html`<h3><span class=${side}>${side === "query" ? "Queries" : "Keys"}</span> <span class="faint">
      ${shaded ? (isQuery ? "shaded by the weight they get" : "shaded by the weight they give") : "choose one"}</span>
        </h3>
      <${Tokens} tokens=${tokens} label=${side === "query" ? "Queries" : "Keys"}
        selected=${side === at.side ? at.i : -1}
        onSelect=${(i) =>
          setParams(side === "query" ? { query: String(i), key: null } : { key: String(i), query: null })}
            onHover=${(i) => setOver(i < 0 ? null : { side, i })}
        background=${shaded ? (n) => css(fill(n)) : undefined} ink=${shaded ? (n) => inkOn(fill(n)) : undefined} />`;
  };
  return html`${strip("query", headMap.query_tokens)}${strip("key", headMap.key_tokens)}
    <p class="readout" aria-live="polite">${summary(headMap, at)}</p>`;
}
