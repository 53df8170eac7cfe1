// The sentence with what is written next, the weights that flow to it, and the prediction without a head.
import { clamp, html, largest, range, showToken, useLayoutEffect, useRef, useState, useWidth } from "../lib/dom.js";
import { useResponse } from "../lib/api.js";
import { Bars } from "../lib/bars.js";
import { setParams } from "../lib/state.js";
import { Term } from "../lib/terms.js";
import { Message } from "../lib/widgets.js";

const MAX_TOKENS = 512, MAX_FLOW = 96, MAX_CURVES = 16; // listed · of a sentence with curves · drawn
const UNSURE = 0.1; // a likeliest output below says that the text is foreign to the model
const percent = (p) => `${(100 * p).toFixed(p > 0.0995 || p === 0 ? 0 : 1)}%`;

// What is about to be written after each query of an attention; null where outputs are not one per query.
export function nextOf(response, site) {
  const predictions = response.predictions;
  if (predictions?.kind !== "next token" || predictions.count !== site.queries) return null;
  if (response.output !== null) return null; // its rows are what it wrote
  return range(site.queries).map((i) => predictions.rows[predictions.positions.indexOf(i)]?.[0][0] ?? "");
}

export function Sentence({ response, site, head, weights, query, key_, position }) {
  const predictions = response.predictions, last = response.sites.at(-1), isPair = response.output !== null;
  const perToken = predictions && predictions.kind !== "class" && last.queries === predictions.count;
  const at = position, isWriting = perToken && site.queries === predictions.count;
  const from = query >= 0 ? query : isWriting ? at : site.queries - 1; // whose weights flow
  const row = predictions?.rows[predictions.positions.indexOf(isWriting && query >= 0 ? query : at)];
  const reads = isPair && last.kind === "cross" ? last.key_tokens : null;
  const onRead = isPair && site.kind === "self" && site.queries === reads?.length && !isWriting;
  const keyLine = reads && (site.kind === "cross" || onRead) ? "read" : "written";
  const select = (position) => setParams(perToken ? { position: String(position), query: null, key: null }
    : { query: String(position), key: null });
  const line = (tokens, name, onSelect, selected, more = null) => html`
    <div class="tokens" role="group" aria-label=${NAMES[isPair ? name : "tokens"]}>
      ${tokens.slice(0, MAX_TOKENS).map((t, i) => html`<button key=${i} data-line=${name} data-at=${i}
        class=${`token${i === key_ && name === keyLine ? " chosen" : ""}`} aria-pressed=${i === selected}
        title=${`${showToken(t)} · position ${i}`} onClick=${() => onSelect(i)}>${showToken(t)}</button>`)}
      ${more}</div>`;
  const best = row?.[0];
  const written = best && perToken && html`<output class="token next" data-line="next" aria-label="About to write">
    →${" "}<b dir="auto">${showToken(best[0])}</b>${" "}${percent(best[1])}</output>`;
  const goal = onRead ? ["read", from] : isWriting && best ? ["next", 0] : ["written", from];
  const step = (by) => () => select(clamp((isWriting ? at : from) + by, 0, last.queries - 1));
  return html`<${Flow} weights=${weights} from=${from} keyLine=${keyLine} goal=${goal}
      name=${`${site.name} ${head} ${from}`} lines=${reads ? 2 : 1}
      isLong=${Math.max(last.queries, last.keys) > MAX_FLOW}>
    ${reads && line(reads, "read", (i) => setParams(onRead ? { query: String(i), key: null }
      : { key: String(i), query: null, ...(keyLine === "read" ? {} : { site: last.name, head: "0" }) }),
    onRead ? from : -1)}
    ${line(last.query_tokens, "written", select, onRead ? -1 : isWriting ? at : from, written)}
    <//>
    ${last.queries > MAX_TOKENS && html`<p class="faint">The first ${MAX_TOKENS} of ${last.queries} tokens.</p>`}
    <button hidden=${last.queries < 2} class="hidden" tabindex="-1" aria-hidden="true" data-key="ArrowUp"
      data-does="token before" onClick=${step(-1)}></button>
    <button hidden=${last.queries < 2} class="hidden" tabindex="-1" aria-hidden="true" data-key="ArrowDown"
      data-does="token after" onClick=${step(1)}></button>`;
}
const NAMES = { read: "Tokens read", written: "Tokens written", tokens: "Tokens" };

// Curves from the keys to the output, as wide as the weights; they run when a token is selected.
function Flow({ weights, from, keyLine, goal, name, lines, isLong, children }) {
  const box = useRef(null), width = useWidth(box), [paths, setPaths] = useState([]);
  useLayoutEffect(() => {
    const [rows, columns] = weights.shape ?? [0, 0];
    const find = ([line, i]) => box.current.querySelector(
      line === "next" ? "[data-line=next]" : `[data-line=${line}][data-at="${i}"]`);
    const end = find(goal);
    if (isLong || !end || !weights.values || weights.pool[0] > 1 || from >= rows) return setPaths([]);
    const row = weights.values.subarray(from * columns, (from + 1) * columns), most = largest(row, 1e-9);
    const heaviest = range(columns).filter((i) => row[i] >= 0.02).sort((a, b) => row[b] - row[a]).slice(0, MAX_CURVES);
    const wraps = ([x]) => lines === 1 && Math.abs(x.offsetTop - end.offsetTop) > 4;
    setPaths(heaviest.map((i) => [find([keyLine, i]), row[i]]).filter(([x]) => x).map(([start, w]) =>
      ({ d: curve(start, end), wide: wraps([start]) ? 1.5 : 1 + 7 * w, share: w / most })));
  }, [weights, from, keyLine, goal.join(), width]);
  return html`<div class=${isLong ? "flow long" : `flow lines-${lines}`} ref=${box}>
    <svg class="flow-curves" key=${name} aria-hidden="true">${paths.map(({ d, wide, share }) =>
      html`<path d=${d} pathLength="1" stroke-width=${wide} opacity=${0.25 + 0.75 * share} />`)}</svg>
    ${children}</div>`;
}

// Within a line it is an arc above the tokens, between lines an S.
function curve(start, end) {
  const [x, y, u, v] = [start.offsetLeft + start.offsetWidth / 2, start.offsetTop, end.offsetLeft + end.offsetWidth / 2,
    end.offsetTop];
  if (Math.abs(y - v) > 4) {
    const [a, b] = y < v ? [y + start.offsetHeight, v] : [y, v + end.offsetHeight], middle = (a + b) / 2;
    return `M${x} ${a}C${x} ${middle} ${u} ${middle} ${u} ${b}`;
  }
  const rise = Math.min(44, 12 + Math.abs(u - x) / 10);
  return `M${x} ${y}C${x} ${y - rise} ${u} ${y - rise} ${u} ${v}`;
}

// The likeliest outputs, and what becomes of the first without the head.
export function Prediction({ response, model, position, effects, known, problem }) {
  const predictions = response.predictions;
  const row = predictions?.rows[predictions.positions.indexOf(position)];
  if (!row) return html`<${Written} response=${response} model=${model} />`;
  const last = response.sites.at(-1), token = last?.queries === predictions.count ? last.query_tokens[position] : null;
  const titles = { "next token": token === null ? "Next" : html`After “${showToken(token)}”`, token: "Token here",
    tag: "Tag", class: "Class" };
  const best = row[0][0];
  return html`<${Written} response=${response} model=${model} />
    <section aria-label="Predictions"><h2>${titles[predictions.kind] ?? predictions.kind}</h2>
      <${Bars} label="Most probable outputs" rows=${row} max=${1} show=${(p) => `${(100 * p).toFixed(1)}%`} />
      ${row[0][1] < UNSURE && model.knows && html`<p class="faint">The model is unsure: it knows ${model.knows}.</p>`}
    </section>
    ${predictions.kind !== "class" && html`<section aria-label="Without this head">
      <h2>Without this head${" "}<${Term} name="effect" /></h2>
      ${known ? html`<p class="without" data-value=${known.effect}><b>${showToken(best)}</b>${" "}
          ${percent(effects.probability)} → <strong>${percent(known.probability)}</strong>${known.writes !== best
          && html`; it would write <b>${showToken(known.writes)}</b>`}</p>`
        : effects === null ? html`<p class="faint">Single heads of this model are not left out here.</p>`
          : problem ? html`<p class="faint">${problem}</p>` : html`<${Message} loading=${true} />`}
      ${effects && effects.heads.length < effects.of && html`<p class="faint">${effects.heads.length} of${" "}
        ${effects.of} heads are tested: those that add most to its logit directly.</p>`}
      ${known && Math.max(...effects.heads.map((x) => x.effect)) < 0.01
        && html`<p class="faint">No single head is needed here: the others make up for each.</p>`}</section>`}`;
}

// What an encoder-decoder or a task wrote; "nothing" too.
function Written({ response, model }) {
  const nothing = html`<b>nothing</b>`;
  return html`${response.output !== null && html`<output class="big" dir="auto" aria-label="Output">
      ${response.output || nothing}</output>`}
    ${response.output === "" && model.knows && html`<p class="faint">This model knows ${model.knows}.</p>`}
    ${response.applied !== null
      && html`<output class="big" dir="auto" aria-label="Result">${response.applied || nothing}</output>`}`;
}

// The effects of heads at a position, that of this head among them. The response has those of its first position.
export function useEffects(body, response, position, site, head) {
  const holds = (effects) => effects?.position === position
    && effects.heads.find((x) => x.site === site.name && x.head === head);
  const first = response.effects, canRequest = first && position !== undefined && !holds(first);
  const current = useResponse("text.heads", { ...body, position, site: site.name, head }, { skip: !canRequest });
  const effects = !first ? null : canRequest ? (holds(current.response) ? current.response : first.position === position
    ? first : undefined) : first;
  return { effects, known: effects ? holds(effects) : undefined, problem: canRequest && current.error };
}
