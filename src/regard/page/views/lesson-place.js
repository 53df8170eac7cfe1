// What a place of a lesson shows: the form follows from the value, or from `as` in the lesson.
import { clamp, format, html, range, showToken, useEffect, useRef, useSignal } from "../lib/dom.js";
import { unpack } from "../lib/api.js";
import { Bars } from "../lib/bars.js";
import { colourScale, theme } from "../lib/colours.js";
import { HeatMap, LineChart, paint } from "../lib/draw.js";
import { MathML } from "../lib/math.js";
import { Table } from "../lib/widgets.js";

const SHOWN = 6, TINY = 1e-4; // numbers of a long vector; size of what is written as ≈ 0

// Text with its places; a number in it keeps its full value for tests and readers.
export function Spans({ list }) {
  return list.map(([style, x]) => {
    if (style !== "value") return style ? html`<${style}>${x}</${style}>` : x;
    if (x.error || x.note) return html`<span class=${x.error ? "error" : "faint"}>${x.error ?? x.note}</span>`;
    return html`<strong class="lesson-value" data-value=${x.value}>${plain(x.value)}</strong>`;
  });
}

function short(x, digits = 4) {
  if (x !== 0 && Math.abs(x) < TINY) return "≈ 0";
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return String(x);
  return format(x, Math.abs(x) < 0.01 ? 2 : digits);
}

export function plain(x) {
  if (x === null || x === undefined) return "none";
  if (typeof x === "number") return short(x);
  return Array.isArray(x) ? x.map(plain).join(", ") : showToken(String(x));
}

export function Place({ place }) {
  const { title, error, note, value } = place, form = place.as ?? formOf(value);
  return html`<figure class=${`panel lesson-place ${place.size ?? ""}`}>
    ${title && html`<figcaption>${title}</figcaption>`}
    ${error || note ? html`<p class=${error ? "error" : "faint"} role=${error ? "alert" : null}>${error ?? note}</p>`
      : html`<${FORMS[form] ?? Text} ...${place} label=${title ?? form} />`}</figure>`;
}

const isPacked = (x) => x?.float32 !== undefined;
function formOf(value) {
  if (isPacked(value)) return value.shape.length === 1 ? "bars" : "map";
  if (typeof value === "string" && value.startsWith("<math")) return "formula";
  if (!Array.isArray(value) || !value.length) return "text";
  const [x] = value;
  if (typeof x === "number" || (Array.isArray(x) && x.length === 2 && typeof x[1] === "number")) return "bars";
  if (typeof x === "string") return x.startsWith("<math") ? "formula" : "tokens";
  return Array.isArray(x) ? "grid" : "table";
}

const FORMS = {
  text: Text, tokens: Row, bars: Lengths, map: Cells, numbers: Numbers, table: Records, grid: Grid, steps: Steps,
  line: Lines, picture: Picture, formula: ({ value }) => [value].flat().map((xml) => html`<${MathML} xml=${xml} />`),
};

function Text({ value }) {
  return html`<p class="big" data-value=${typeof value === "number" ? value : null} dir="auto">${plain(value)}</p>`;
}

function Row({ value, mark, label }) {
  return html`<ol class="tokens" aria-label=${label}>${value.map((x, i) =>
    html`<li class="token" aria-current=${i === mark ? "true" : null}>${showToken(x)}</li>`)}</ol>`;
}

function Lengths({ value, rows, mark, first, label }) {
  const numbers = isPacked(value) ? [...unpack(value).values] : value;
  const pairs = numbers.map((x, i) => (Array.isArray(x) ? x : [rows?.[i] ?? String(i), x]));
  const named = pairs.map(([name, x], i) => [i === mark ? `▸ ${name}` : name, x]);
  const known = named.filter(([, x]) => x !== null);
  return html`<${Bars} rows=${known.slice(0, Number(first) || known.length)} label=${label} show=${short} />
    ${known.length < named.length && html`<p class="faint">Hidden by the mask, with the score −∞:
      ${" "}${named.filter(([, x]) => x === null).map(([name]) => showToken(name)).join(" ")}</p>`}`;
}

function Cells({ value, rows, columns, mark, label }) {
  const { shape: [high, wide], values } = unpack(value), signed = values.some((x) => x < 0);
  const at = Array.isArray(mark) ? { row: mark[0], column: mark[1] } : null;
  const isSquare = wide <= 3 * high; // else vectors below each other
  return html`<${HeatMap} values=${values} rows=${high} columns=${wide} rowLabels=${rows} columnLabels=${columns}
    label=${label} kind=${signed ? "diverging" : "sequential"} selected=${at}
    maxCell=${isSquare ? clamp(330 / high, 26, 44) : 16} maxHeight=${isSquare ? null : 22 + 16 * high}
    rowTitle="row" columnTitle=${columns ? "column" : "number"} />`;
}

// A matrix as numbers: the first columns and the length of each row.
function Numbers({ value, rows, columns, label }) {
  const { shape: [high, wide], values } = unpack(value), shown = range(Math.min(wide, SHOWN));
  const at = (i, j) => values[i * wide + j];
  const length = (i) => Math.hypot(...values.subarray(i * wide, (i + 1) * wide));
  const number = (x) => html`<span data-value=${x}>${short(x, 3)}</span>`;
  return html`<${Table} label=${label} rows=${range(high)} columns=${[["", (i) => showToken(rows?.[i] ?? String(i))],
    ...shown.map((j) => [columns?.[j] ?? String(j), (i) => number(at(i, j)), "number"]),
    ...(wide > SHOWN ? [[`… ${wide}`, () => "…", "number"]] : []),
    ["length", (i) => number(length(i)), "number"]]} />`;
}

function Records({ value, columns, mark, label }) {
  const names = columns ?? Object.keys(value[0] ?? {}).filter((x) => typeof value[0][x] !== "object" || !value[0][x]);
  const cell = (x) => (typeof x === "number" || x === null ? html`<span data-value=${x}>${plain(x)}</span>` : plain(x));
  const isNumber = (name) => value.some((x) => typeof x[name] === "number");
  return html`<${Table} label=${label} rows=${value} selected=${mark} columns=${names.map((name) =>
    [name.replaceAll("_", " "), (x) => cell(x[name]), isNumber(name) ? "number" : ""])} />`;
}

// A table of texts or numbers with names of its rows: its `first` rows and `last` columns.
function Grid({ value, rows, columns, first, last, label }) {
  const wide = value[0]?.length ?? 0, shown = range(wide).slice(-(Number(last) || wide));
  return html`<${Table} label=${label} rows=${value.slice(0, Number(first) || value.length)} columns=${[
    ...(rows ? [["", (x) => showToken(rows[value.indexOf(x)] ?? "")]] : []),
    ...shown.map((j) => [showToken(columns?.[j] ?? String(j)), (x) => plain(x[j]),
      typeof value[0][j] === "number" ? "number" : ""])]} />`;
}

function Steps({ value }) {
  return html`<ol class="steps">${value.map((s) => html`<li><span>${s.title}</span><${MathML} xml=${s.formula} />
    ${s.results.map((xml) => html`<${MathML} xml=${xml} />`)}</li>`)}</ol>`;
}

// Each row of a matrix, or the one list, over its columns.
function Lines({ value, rows, label }) {
  const { shape, values } = isPacked(value) ? unpack(value)
    : { shape: Array.isArray(value[0]) ? [value.length, value[0].length] : [value.length], values: value.flat() };
  const wide = shape.at(-1), x = range(wide);
  const series = range(values.length / wide).map((i) =>
    ({ name: rows?.[i] ?? label, x, y: [...values.slice(i * wide, (i + 1) * wide)] }));
  return html`<${LineChart} series=${series} label=${label} height=${190} xTitle="" />`;
}

// An image: PNG in base64, channels × rows × columns of 0 to 1, or one value per patch of a grid.
function Picture({ value, rows, label }) {
  const canvas = useRef(null), now = useSignal(theme);
  useEffect(() => {
    if (!canvas.current) return;
    const { shape, values } = unpack(value), [high, wide] = rows ? rows.map(Number) : shape.slice(-2);
    const size = high * wide;
    const shown = rows ? values.subarray(values.length - size) : values;
    const scale = colourScale({ max: rows ? Math.max(...shown) : 1 });
    const channel = (i, c) => Math.round(255 * values[(shape[0] === 3 ? c : 0) * size + i]);
    const colour = rows ? (i) => scale(shown[i]) : (i) => [0, 1, 2].map((c) => channel(i, c));
    paint(range(size), high, wide, colour, canvas.current);
  }, [value, now]);
  if (value.png) return html`<img class="pixels lesson-picture" alt=${label}
    src=${`data:image/png;base64,${value.png}`} />`;
  return html`<canvas ref=${canvas} class="pixels lesson-picture drawing" role="img" aria-label=${label}></canvas>`;
}
