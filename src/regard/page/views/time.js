// Time: gates, states and gradients of recurrent models, one column per token; and four kinds of model side by side.
import { clamp, format, html, largest, range, showToken, useRef, useSignal, useState, useWidth } from "../lib/dom.js";
import { unpack, useResponse } from "../lib/api.js";
import { colourScale, theme } from "../lib/colours.js";
import { cellHandlers, LineChart, paint } from "../lib/draw.js";
import { setParam, setParams } from "../lib/state.js";
import { Choice, languageOf, LanguageSelect, Message, models, ModelSelect, NoText, pickModel,
  Select } from "../lib/widgets.js";

export const hint =
  "What a recurrent network keeps and forgets, step by step: "
  + "its gates, its states, and how far back a gradient reaches.";

const EXAMPLES = ["2 hours and 5 minutes", "March 5, 2024", "3 days", "€12.50"];
const SEQUENCES = ["fgCabehdgafbehcdagfhbcae", "Bahdgfecabhdgfecabhdgfecabhdgfec", "abcdefghD"];

const textOf = (params) => params.text ?? EXAMPLES[0];

function bodyOf(model, params) {
  const body = { model: model.name, text: textOf(params) };
  if (model.languages.length) body.to = languageOf(model, params);
  for (const name of ["target", "cell", "order"]) if (params[name]) body[name] = params[name];
  if (params.position !== undefined) body.position = Number(params.position);
  return body;
}

const isRecurrent = (names) => (m) => names.includes(m.name);

export function csv(params) {
  const model = (models.peek() ?? []).find((m) => m.name === (params.model ?? "phrases-gru"));
  return model ? ["time", bodyOf(model, params)] : null;
}

export function View({ params }) {
  const known = useSignal(models), { response } = useResponse("time.models", {});
  if (!known || !response) return html`<${Message} loading=${true} />`;
  const only = isRecurrent(response.models), model = pickModel(known, params.model, "text",
      only);
  return html`<div>${model ? html`<${Model} model=${model} only=${only} params=${params} />`
    : html`<p class="panel">None of the models here has recurrent layers; start regard serve with one, such as
      phrases-gru.</p>`}
    <${Compare} params=${params} /></div>`;
}

// ---- one recurrent model

function Model({ model, only, params }) {
  const text = textOf(params);
  const { response, error, loading } = useResponse("time", bodyOf(model, params), { delay: 60, skip: !text });
  const again = { unit: null, position: null, target: null };
  return html`<div><section class="panel"><div class="row">
      <${ModelSelect} value=${model.name} only=${only}
        onChange=${(name) => setParams({ ...again, model: name, cell: null })} />
      <${LanguageSelect} model=${model} value=${languageOf(model, params)}
        onChange=${(to) => setParams({ ...again, to })} />
      <label class="field grow"><span>Text</span>
        <input type="text" value=${text} spellcheck="false"
          onInput=${(e) => setParams({ ...again, text: e.target.value })} /></label></div>
    <div class="chips" role="group" aria-label="Examples">
      ${EXAMPLES.map((x) => html`<button onClick=${() => setParams({ ...again, text: x })}>${x}</button>`)}</div>
        </section>
    ${text ? html`<${Message} error=${error} loading=${loading && !response} />` : html`<${NoText} />`}
    ${text && response && html`<div aria-busy=${loading}><${Cell} response=${response} params=${params} />
      <${Gradients} response=${response} /></div>`}</div>`;
}

function Cell({ response, params }) {
  const [at, setAt] = useState(null);
  const cell = response.cells.find((c) => c.name === response.cell),
    unit = clamp(Number(params.unit ?? response.order[0]), 0, cell.units - 1);
  const strips = response.strips.map((s) => ({ ...s, ...unpack(s.values) }));
  const series = strips.map((s) =>
    ({ name: s.name, x: range(response.tokens.length), y: range(response.tokens.length)
      .map((t) => s.values[t * cell.units + unit]) }));
  return html`<section class="panel"><div class="row between"><h2>${cell.kind} ${cell.name}: ${cell.units} units</h2>
      <div class="row">
        <${Select} label="Layer" value=${cell.name} options=${response.cells.map((c) => [c.name, describe(c.name)])}
          onChange=${(x) => setParams({ cell: x, unit: null })} />
      <${Choice} label="Order of the units" value=${params.order ?? "index"}
        options=${[["index", "as stored"], ["mean", "by first gate"]]} onChange=${setParam("order", "index")} />
      <${Choice} label="What is drawn" value=${params.show ?? "units"}
        options=${[["units", "all units"], ["quantiles", "mean and range"]]} onChange=${setParam("show", "units")} />
          </div></div>
    <p class="faint">One row per unit, one column per token${response.target !== null
      && html`; the model writes “${response.target}”`}. Point for numbers, click or press Enter for the curve of a
        unit.</p>
    <div class="strips">
      ${strips.map((s) => params.show === "quantiles" ? html`<${Range} strip=${s} />`
        : html`<${Strip} name=${s.name} mean=${s.mean} values=${s.values} units=${cell.units} tokens=${response.tokens}
          order=${response.order} signed=${s.signed}
      unit=${unit} at=${at} onMove=${setAt} onSelect=${(u) => setParams({ unit: u })} />`)}</div>
    <h3>Unit ${unit}</h3>
      <${LineChart} series=${series} label=${`Gates and states of unit ${unit}`} xTitle="step" yTitle="value"
        height=${210} /></section>`;
}

function Range({ strip }) {
  const line = (name, y) => ({ name, x: range(y.length), y });
  return html`<div class="strip"><strong>${strip.name}</strong>
    <${LineChart} label=${strip.name} xTitle="step" height=${150}
    series=${[line("mean over the units", strip.mean), line("10%", strip.low), line("90%", strip.high)]} /></div>`;
}

const describe = (name) => `${name}${name.endsWith(".back") ? " (right to left)" : ""}`;

// A strip: units as thin rows, time to the right, tokens below. values: (time, unit), row-major.
function Strip({ name, mean, values, units, tokens, order, signed, unit = -1, at = null, onMove = () => {},
  onSelect = () => {}, height = 110, rowName = "unit" }) {
  useSignal(theme);
  const box = useRef(null), width = useWidth(box), time = tokens.length, wide = width - 2;
  const most = largest(values),
    colour = colourScale({ kind: signed ? "diverging" : "sequential", max: signed ? most : Math.max(1, most) });
  const cells = new Float32Array(units * time);
  order.forEach((u, row) => { for (let t = 0; t < time; t++) cells[row * time + t] = values[t * units + u]; });
  const cell = at && at.column < time && at.row < units ? cells[at.row * time + at.column] : null,
    chosen = order.indexOf(unit), column = wide / time;
  return html`<div class="strip" ref=${box}>
    <div class="row between"><strong>${name}</strong><span class="readout" data-value=${cell}>${cell !== null
      ? `${showToken(tokens[at.column])} (${at.column}), ${rowName} ${order[at.row]}: ${format(cell,
        4)}, mean ${format(mean[at.column])}`
          : html`<span class="faint">mean ${format(mean.reduce((a, b) => a + b, 0) / time)}</span>`}</span></div>
    <svg class="drawing" width=${wide} height=${height + 18} tabindex="0" role="application"
      aria-roledescription="heat map"
        aria-label=${`${name}: ${units} rows over ${time} steps. Arrow keys move, Enter selects a row.`}
      ...${cellHandlers({ rows: units, columns: time, area: [0, 0, wide, height], at, onMove,
        onSelect: (row) => onSelect(order[row]) })}>
      <image width=${wide} height=${height} preserveAspectRatio="none" class="pixels"
        href=${paint(cells, units, time, colour).toDataURL()} />
      ${chosen >= 0 && html`<rect class="outline" fill="none" x="1" width=${wide - 2}
        y=${(chosen / units) * height - 1} height=${Math.max(3, height / units)} />`}
      ${at && html`<rect class="outline cursor" fill="none" x=${at.column * column} width=${column} y="0"
        height=${height} />`}
      ${tokens.map((x, t) => t % Math.ceil(13 / column) === 0 &&
        html`<text class=${at?.column === t ? "on" : ""} x=${(t + 0.5) * column} y=${height + 14}
          text-anchor="middle" font-size="12">
            ${showToken(x).slice(0, Math.max(1, Math.floor(column / 6.5)))}</text>`)}
    </svg></div>`;
}

function Gradients({ response }) {
  const series = Object.entries(response.gradients)
    .flatMap(([name, g]) => [{ name: `${describe(name)}, state h`, x: range(g.h.length), y: g.h },
    ...(g.c ? [{ name: `${describe(name)}, cell c`, x: range(g.c.length), y: g.c }] : [])]);
  return html`<section class="panel"><div class="row between"><h2>How far back a gradient reaches</h2>
      <${Select} label="Output" value=${String(response.position)}
        options=${response.outputs.map((x, i) => [String(i), `${i}: ${showToken(x)}`])}
          onChange=${(x) => setParams({ position: x })} /></div>
    <p class="faint">Size of the derivative of the logit of “${showToken(response.outputs[response.position])}” by the
      state at each step: ‖∂ logit / ∂ h_t‖, all paths included.
      ${" "}${Object.entries(response.gradients).map(([name, g]) => `${name}: × ${format(g.rate)} per step back`)
        .join(" · ")}</p>
    <${LineChart} series=${series} label="Gradient norms of the states" xTitle="step" yTitle="gradient norm"
      logY=${true} height=${230} /></section>`;
}

// ---- four kinds of model on one sequence

function Compare({ params }) {
  const on = params.compare === "true", sequence = params.sequence ?? SEQUENCES[0], seed = Number(params.seed ?? 0);
  const { response, error, loading } = useResponse("time.compare", { sequence, seed }, { skip: !on, delay: 150 });
  return html`<section class="panel" aria-label="Four kinds of model">
    <h2>The same letters through an RNN, a GRU, an LSTM and a Transformer</h2>
    <p>Four small models are trained here, alike and from seed ${seed}: 250 updates on random sequences of 2 to 32
      letters with one capital letter, which they have to name at the end.
      They are toys of width 32, not the pretrained models; the recurrent ones have one layer, the Transformer has
        two.</p>
    ${!on ? html`<p><button class="primary"
      onClick=${() => setParams({ compare: "true" })}>Train the four models (some seconds)</button></p>`
      : html`<div class="row">
        <label class="field grow"><span>Letters: one of A B C D, the rest a to h</span>
          <input type="text" class="mono" value=${sequence} spellcheck="false" maxlength="64"
          onInput=${(e) => setParams({ sequence: e.target.value })} /></label>
        <label class="field"><span>Seed</span>
          <input type="number" min="0" max="1000" value=${seed}
            onChange=${(e) => setParams({ seed: e.target.value === "0" ? null : e.target.value })} /></label></div>
      <div class="chips" role="group" aria-label="Example sequences">
        ${SEQUENCES.map((x) => html`<button class="mono" onClick=${() => setParams({ sequence: x })}>${x}</button>`)}
          </div>
      <${Message} error=${error} loading=${loading && !response} />
        ${response && html`<${Four} response=${response} />`}`}
        </section>`;
}

function Four({ response }) {
  const steps = range(response.letters.length),
    curves = (y) => response.models.map((m) => ({ name: m.name, x: range(m[y].length), y: m[y] }));
  return html`<div class="columns">
      <div><h3>Accuracy by distance, on new sequences</h3>
        <${LineChart} series=${curves("accuracy")} label="Accuracy by distance"
          xTitle="letters since the capital one" yTitle="accuracy" marks=${[response.trained.length - 1]}
            height=${220} />
        <p class="faint">Chance is ${1 / response.keys.length}. The dashed line is the longest distance of the
          training.</p></div>
      <div><h3>Probability of ${response.letters[response.key]}, letter by letter</h3>
        <${LineChart} series=${response.models.map((m) => ({ name: m.name, x: steps, y: m.right }))}
          label="Probability of the right letter" xTitle="step" yTitle="probability" height=${220} /></div>
      <div><h3>Reach of the gradient</h3>
        <${LineChart} series=${curves("reach")} label="Gradient norm per input letter" xTitle="step"
          yTitle="‖∂ logit / ∂ x_t‖" logY=${true} marks=${[response.key]} height=${220} />
        <p class="faint">How much the final logit of ${response.letters[response.key]} depends on each letter; the
          dashed
          line is the capital one.</p></div>
    </div>
    <div class="columns four">
      ${response.models.map((m) => html`<${Small} key=${m.kind} model=${m} response=${response} />`)}</div>`;
}

function Small({ model, response }) {
  const [at, setAt] = useState(null), right = model.guess === response.letters[response.key];
  const shown = model.strips.filter((s) => !/^(reset|input|output|candidate)/.test(s.name));
  return html`<div><h3>${model.name} <span class="faint">${model.parameters.toLocaleString("en")} parameters</span></h3>
    <p>Says <strong class=${right ? "right" : "wrong"}>${model.guess} ${right ? "✓" : "✗"}
      </strong> after ${response.distance} letters, with probability
      ${" "}<span data-value=${model.right.at(-1)}>
        ${format(right ? model.right.at(-1)
          : Math.max(...unpack(model.probabilities).values.slice(-response.keys.length)))}</span>.</p>
    ${shown.map((s) => { const { values, shape } = unpack(s.values);
      return html`<${Strip} name=${s.name} mean=${s.mean} values=${values} units=${shape[1]} tokens=${response.letters}
        order=${range(shape[1])}
      signed=${s.signed} at=${at} onMove=${setAt} height=${shape[1] < 8 ? 44 : 70}
        rowName=${model.kind === "transformer" ? "head" : "unit"} />`; })}</div>`;
}
