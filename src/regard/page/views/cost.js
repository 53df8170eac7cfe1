// What a model costs: parameters, multiply-adds and memory by part, and how they grow with the length.
import { format, html, useRef, useSignal, useWidth } from "../lib/dom.js";
import { useResponse } from "../lib/api.js";
import { inkOn, LINES, theme } from "../lib/colours.js";
import { LineChart } from "../lib/draw.js";
import { setParams } from "../lib/state.js";
import { Message, Select, Slider, Table } from "../lib/widgets.js";

export const hint =
  "What one forward pass costs, part by part, with the formula behind each number. "
  + "Move a slider and everything follows.";
export const csv = (params) => ["cost", bodyOf(params, [...SIZES, "source", "target"])];

const SIZES = ["dim", "heads", "layers", "vocab",
  "batch"];
const LABELS = { source: "Source length", target: "Target length", dim: "Width d", heads: "Heads h",
  layers: "Layers L", vocab: "Vocabulary V", batch: "Batch B" };
const BARS = [
  ["parameters", "Parameters", count], ["multiply_adds", "Multiply-adds", count], ["bytes_moved", "Bytes moved", bytes],
  ["activation_bytes", "Activations for training", bytes], ["cache_bytes", "KV cache", bytes],
    ["map_bytes", "Attention maps, if stored", bytes],
];

function bodyOf(params, names) {
  const given = names.filter((x) => params[x] !== undefined).map((x) => [x, Number(params[x])]);
  return { ...(params.model ? { model: params.model } : {}), ...Object.fromEntries(given) };
}

export function View({ params }) {
  const { response, error, loading } = useResponse("cost", bodyOf(params, [...SIZES, "source", "target"]),
    { delay: 15 });
  const { response: curves } = useResponse("cost.curves", bodyOf(params, SIZES), { delay: 60 });
  if (!response) return html`<${Message} error=${error} loading=${loading} />`;
  return html`<${Controls} response=${response} params=${params} error=${error} />
    <${Summary} response=${response} />
    <div class="panel"><h2>Share of each part</h2><${Bars} response=${response} /></div>
    <div class="panel"><h2>Parts</h2><${Parts} response=${response} /></div>
    ${curves && html`<${Curves} curves=${curves} response=${response} />`}`;
}

function Controls({ response, params, error }) {
  const changed = SIZES.some((x) => params[x] !== undefined);
  const options = [...response.models.map((x) => [x, x]),
    ...response.presets.map((x) => [x, `${x.replace("_", " ")} (preset)`])];
  const change = (name, value) =>
    setParams(name === "dim" ? { dim: value, heads: fittingHeads(value, response.sizes.heads) } : { [name]: value });
  return html`<div class="panel">
    <div class="row"><${Select} label="Model" value=${response.name} options=${options}
        onChange=${(model) =>
          setParams({ model, ...Object.fromEntries([...SIZES, "source", "target"].map((x) => [x, null])) })} />
      ${changed && html`<button
        onClick=${() => setParams(Object.fromEntries(SIZES.map((x) => [x, null])))}>Sizes of the model</button>`}</div>
    <div class="cost-sliders">
      ${Object.keys(LABELS).filter((name) => response.choices[name]).map((name) => html`<${SizeSlider} key=${name}
      label=${name === "source" && response.unit !== "tokens" ? `Input, ${response.unit}`
        : response.sizes.target === undefined && name === "source" ? "Length n" : LABELS[name]}
      value=${Number(params[name] ?? response.sizes[name])} choices=${response.choices[name]}
        onChange=${(value) => change(name, value)} />`)}</div>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${!response.is_editable
      && html`<p class="faint">The sizes of a model of transformers are fixed; the lengths are not.</p>`}
  </div>`;
}

// Heads have to divide the width: the largest number that does, up to the present one.
function fittingHeads(dim, heads) {
  if (heads === undefined) return null;
  let fitting = heads;
  while (dim % fitting) fitting -= 1;
  return fitting;
}

// A slider over a list of values, since lengths and widths are chosen by their magnitude.
function SizeSlider({ label, value, choices, onChange }) {
  const values = choices.includes(value) ? choices : [...choices, value].sort((a, b) => a - b);
  return html`<${Slider} label=${label} value=${values.indexOf(value)} min=${0} max=${values.length - 1} step=${1}
    show=${(i) => (values[i] ?? value).toLocaleString("en")} onInput=${(i) => onChange(values[i])} />`;
}

function Summary({ response }) {
  const { totals } = response;
  const facts = [
    ["parameters", totals.parameters, count(totals.parameters)],
      ["multiply-adds", totals.multiply_adds, count(totals.multiply_adds)],
    ["FLOPs", response.flops, count(response.flops)], ["weights", totals.weight_bytes, bytes(totals.weight_bytes)],
    ["activations for training", totals.activation_bytes, bytes(totals.activation_bytes)],
      ["KV cache", totals.cache_bytes, bytes(totals.cache_bytes)],
  ];
  return html`<div class="cost-facts" role="group" aria-label="Totals of one forward pass">
    ${facts.filter(([, x]) => x).map(([name, value, text]) => html`<div>
    <strong class="big" data-value=${value} data-name=${name}>${text}</strong><span class="faint">${name}</span>
      </div>`)}</div>`;
}

// One bar per quantity, divided among the parts; a part keeps its colour, and its name where it fits.
function Bars({ response }) {
  useSignal(theme);
  const box = useRef(null), width = useWidth(box);
  const left = Math.min(168, width * 0.36), right = 76, full = Math.max(60, width - left - right), tall = 26, gap = 8;
  const rows = BARS.filter(([field]) => response.totals[field]);
  const colour = (n) => LINES[n % LINES.length], strength = (n) => (n < LINES.length ? 1 : 0.45);
  return html`<div ref=${box} class="chart">
    <svg class="drawing" width=${width} height=${rows.length * (tall + gap)} role="img"
      aria-label="Share of each part in each quantity; the table below has the numbers">
    ${rows.map(([field, name, show], r) => {
      let x = left;
      const y = r * (tall + gap);
      return html`<g><text x=${left - 8} y=${y + 17} text-anchor="end" font-size="12">
        ${width < 520 ? name.split(/,| for/)[0] : name}</text>
        ${response.parts.map((part, n) => {
          const share = part[field] / response.totals[field], size = share * full, at = x;
          x += size;
          return size > 0 && html`<g>
            <title>${`${part.name}: ${show(part[field])}, ${(100 * share).toFixed(1)} %`}</title>
            <rect x=${at} y=${y} width=${Math.max(size - 1, 0.5)} height=${tall} rx="3" fill=${colour(n)}
              opacity=${strength(n)} data-part=${part.name} data-share=${share} />
            ${size > 6.6 * part.name.length + 8
              && html`<text class="number" x=${at + size / 2} y=${y + 17} text-anchor="middle" font-size="12"
                fill=${n < LINES.length ? inkOn(rgb(colour(n))) : "var(--ink)"}>${part.name}</text>`}</g>`;
        })}
        <text class="on" x=${left + full + 8} y=${y + 17} font-size="12">${show(response.totals[field])}</text></g>`;
    })}</svg>
    <p class="legend">
      ${response.parts.map((part, n) =>
        html`<span><svg width="12" height="12" aria-hidden="true">
          <rect width="12" height="12" rx="3" fill=${colour(n)} opacity=${strength(n)} /></svg> ${part.name}</span>`)}
            </p></div>`;
}

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

function Parts({ response }) {
  const letters = (part) => Object.entries(part.letters ?? {})
    .filter(([name]) => name !== "B" || response.sizes.batch > 1)
      .map(([name, x]) => `${name} = ${x.toLocaleString("en")}`).join(", ");
  const number = (field, show) => (part) =>
    html`<span class="nowrap" data-value=${part[field]} title=${part[field].toLocaleString("en")}>
      ${part[field] ? show(part[field]) : "–"}</span>`;
  const rows = [{ name: "all", formula: "", ...response.totals }, ...response.parts];
  return html`<${Table} label="Cost by part" selected=${0} rows=${rows} columns=${[
    ["Part", "name"], ["Formula", (part) => html`<span class="mono nowrap">${part.formula}</span>`],
      ["with", (part) => html`<span class="faint">${letters(part)}</span>`],
    ...BARS.map(([field, name, show]) => [name, number(field, show), "number"]),
  ]} />
  <p class="faint">Bytes are those of float32. Attention maps: heads × queries × keys for each layer, which a library
    that returns weights keeps; here they are computed on demand.</p>`;
}

function Curves({ curves, response }) {
  const line = (name, field) => ({ name, x: curves.lengths, y: curves[field] });
  const some = (list) => list.filter((s) => s.y.some((y) => y > 0));
  const both = response.sizes.target === undefined ? "" : "; source and target have the same length";
  const products =
    some([line("attention", "attention"), line("feed-forward", "feed_forward"), line("recurrence", "recurrence"),
      line("other", "other")]);
  const memory = some([line("activations for training", "activation_bytes"), line("KV cache", "cache_bytes"),
    line("attention maps, if stored", "map_bytes")]);
  return html`<div class="columns">
    <div class="panel"><h2>Multiply-adds over the length</h2>
      <p data-value=${curves.crossing}><strong>${curves.sentence}</strong></p>
      <${LineChart} label="Multiply-adds over the length" series=${products} logX logY xTitle=${curves.unit}
        yTitle="multiply-adds" marks=${curves.crossing ? [curves.crossing] : []} />
    </div>
    <div class="panel"><h2>Memory over the length</h2>
      <p>${memoryNote(curves)}</p>
      <${LineChart} label="Memory over the length" series=${memory} logX logY xTitle=${curves.unit} yTitle="bytes" />
    </div>
    <p class="faint">Both axes are logarithmic${both}.</p></div>`;
}

function memoryNote(curves) {
  const last = curves.lengths.length - 1, maps = curves.map_bytes[last];
  if (!maps) return "There is no attention map to store.";
  return `At ${curves.lengths[last].toLocaleString("en")} ${curves.unit} all attention maps would take ${bytes(maps)}.`;
}

const UNITS = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

function count(x) {
  const [power, name] = UNITS.find(([p]) => x >= p) ?? [1, ""];
  return `${format(x / power)}${name && ` ${name}`}`;
}

function bytes(x) {
  const [power, name] = UNITS.find(([p]) => x >= p) ?? [1, ""];
  return `${format(x / power)} ${name}B`;
}
