// How a prediction comes about: the most probable token after each layer, and what each part adds to a logit.
import { arrowOf, clamp, format, html, range, shorten, showToken, useRef, useSignal, useState,
  useWidth } from "../lib/dom.js";
import { unpack, useResponse } from "../lib/api.js";
import { Bars } from "../lib/bars.js";
import { colourScale, css, inkOn, theme } from "../lib/colours.js";
import { setParams } from "../lib/state.js";
import { Choice, Message, Select } from "../lib/widgets.js";

const MEASURES = [["probability", "Its probability"], ["final_probability", "Probability of the final token"],
  ["kl", "Distance to the final prediction (KL)"]];
const MAX_BARS = 24, LEAST_CELL = 46; // pixels

// The position whose prediction is shown. Where a translator hesitates most says more than its end.
export function positionOf(response, params) {
  const predictions = response.predictions;
  if (!predictions) return undefined;
  const given = Number(params.position ?? -1);
  if (given >= 0 && predictions.positions.includes(given)) return given;
  return response.effects?.position ?? (response.output === null ? predictions.at
    : predictions.positions.reduce((best, p, i) =>
      (predictions.rows[i][0][1] < predictions.rows[best][0][1] ? i : best), 0));
}
const tokenAt = (response, i) => response.sites.at(-1)?.query_tokens[i] ?? String(i);

export function Lens({ body, response, params }) {
  const position = positionOf(response, params);
  const { response: lens, error, loading } = useResponse("text.lens", { ...body, position });
  const measure = MEASURES.find(([name]) => name === params.measure)?.[0] ?? "probability";
  return html`<h2>What it would say after each layer</h2>
    <p class="faint">The model's own last step applied early (logit lens): the most probable token at each position,
      from the embedding up to the output.</p>
    ${(error || !lens) && html`<${Message} error=${error} loading=${loading} />`}
    ${!error && lens
      && html`<${Select} label="Shade by" value=${measure} options=${MEASURES}
        onChange=${(x) => setParams({ measure: x })} />
      <${LensMap} lens=${lens} measure=${measure} response=${response} position=${position} />`}`;
}

function LensMap({ lens, measure, response, position }) {
  useSignal(theme);
  const box = useRef(null), width = useWidth(box), [at, setAt] = useState(null);
  const { shape: [rows, columns], values } = unpack(lens[measure]);
  const left = 80, tall = 26, top = 24, begin = useRef(columns);
  const shown = clamp(Math.floor((width - left) / LEAST_CELL), 1, columns), cell = Math.min((width - left) / shown, 90);
  const colour = colourScale({ max: measure === "kl" ? Math.max(1e-9, ...values) : 1 });
  const y = (depth) => top + (rows - 1 - depth) * tall; // the output is at the top
  const chosen = at ?? (position === undefined ? null : { depth: rows - 1, n: lens.positions.indexOf(position) });
  // as many columns as have room; the chosen one is among them
  const near = Math.max(0, chosen?.n ?? columns - 1);
  begin.current = clamp(clamp(begin.current, near + 1 - shown, near), 0, columns - shown);
  const inside = range(shown).map((i) => begin.current + i), x = (n) => left + (n - begin.current) * cell;
  const press = (event) => {
    const [down, right] = arrowOf(event) ?? [];
    const from = chosen ?? { depth: 0, n: 0 };
    if (down !== undefined) setAt({ depth: clamp(from.depth - down, 0, rows - 1),
      n: clamp(from.n + right, 0, columns - 1) });
    else if (event.key === "Enter") setParams({ position: String(lens.positions[from.n]) });
    else return;
    event.preventDefault();
  };
  const most = Math.floor(cell / 6.6), short = (t) => shorten(showToken(t), most);
  const readout = chosen && chosen.n >= 0
    ? `${lens.depths[chosen.depth]}, after “${showToken(tokenAt(response, lens.positions[chosen.n]))}”: “${showToken(
      lens.tokens[chosen.depth][chosen.n])}”, ${format(values[chosen.depth * columns + chosen.n], 4)}` : "";
  return html`<div ref=${box}>
    <svg class="drawing lens" width=${left + shown * cell} height=${top + rows * tall + 2} tabindex="0"
      role="application" aria-roledescription="logit lens"
      aria-label="Most probable token by layer and position. Arrow keys move, Enter selects the position."
        onKeyDown=${press} onMouseLeave=${() => setAt(null)} onBlur=${() => setAt(null)}>
      ${inside.map((n) => html`<text class=${lens.positions[n] === position ? "on" : ""} x=${x(n + 0.5)} y="15"
          text-anchor="middle" font-size="12">${short(tokenAt(response, lens.positions[n]))}</text>`)}
      ${range(rows).map((depth) =>
        html`<text x=${left - 6} y=${y(depth) + 17} text-anchor="end" font-size="12">
          ${depth === rows - 1 ? "output" : lens.depths[depth]}</text>
        ${inside.map((n) => { const fill = colour(values[depth * columns + n]);
          return html`<g data-value=${values[depth * columns + n]} onMouseEnter=${() => setAt({ depth, n })}
            onClick=${() => setParams({ position: String(lens.positions[n]) })}>
          <rect x=${x(n) + 0.5} y=${y(depth) + 0.5} width=${cell - 1} height=${tall - 1} rx="3"
            fill=${css(fill)} />
          <text class="number" x=${x(n + 0.5)} y=${y(depth) + 17} text-anchor="middle" font-size="12"
            fill=${inkOn(fill)}>${short(lens.tokens[depth][n])}</text></g>`; })}`)}
      ${chosen && chosen.n >= 0
        && html`<rect class="outline" fill="none" x=${x(chosen.n) + 1} y=${y(chosen.depth) + 1}
          width=${cell - 2} height=${tall - 2} rx="3" />`}</svg>
    <p class="readout" aria-live="polite">${readout}${shown < columns && html` <span class="faint">${shown} of
      ${columns} positions; arrow keys and the tokens above lead to the others.</span>`}</p></div>`;
}

export function Attribution({ body, response, params }) {
  const position = positionOf(response, params);
  const by = params.by === "head" ? "head" : "part", token = params.token === undefined ? undefined
    : Number(params.token);
  const { response: attribution, error, loading } = useResponse("text.attribution", { ...body, position, by, token });
  if (error || !attribution) return html`<h2>What made the prediction</h2>
    <${Message} error=${error} loading=${loading} />`;
  const order = [...attribution.parts].sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, MAX_BARS)
    .map(([name]) => name);
  const rows = attribution.parts.filter(([name]) => order.includes(name));
  const names = new Map(
    attribution.choices.map(([id, name, p]) => [String(id), `${showToken(name)}  ${(100 * p).toFixed(1)}%`]));
  if (!names.has(String(attribution.token))) names.set(String(attribution.token), showToken(attribution.name));
  return html`<h2>What made “${showToken(attribution.name)}” likely after
    “${showToken(tokenAt(response, attribution.position))}”</h2>
    <p class="faint">Its logit ${format(attribution.logit, 4)} is the sum of what each part of the model adds, and a
      constant ${format(attribution.constant, 3)}.</p>
    <div class="row">
      <${Choice} label="Split by" value=${by} options=${[["part", "By part"], ["head", "By head"]]}
        onChange=${(x) => setParams({ by: x })} />
      <${Select} label="Token" value=${String(attribution.token)} options=${[...names]}
        onChange=${(x) => setParams({ token: x })} /></div>
    <${Bars} label="What each part adds to the logit" rows=${rows} />
    ${attribution.parts.length > rows.length
      && html`<p class="faint">The ${rows.length} largest of ${attribution.parts.length
        + attribution.left_out} parts, in the order of the model.</p>`}`;
}
