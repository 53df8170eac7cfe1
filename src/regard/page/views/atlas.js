// The atlas: a deep zoom over one head's attention map, from all of it to a single weight.
import { format, html, useEffect, useLayoutEffect, useMemo, useRef, useSignal, useState,
  useWidth } from "../lib/dom.js";
import { request, retries, useResponse } from "../lib/api.js";
import { theme } from "../lib/colours.js";
import { FileInput } from "../lib/files.js";
import { linkTo, offline, setParam, setParams } from "../lib/state.js";
import { paintTile } from "../lib/tiles.js";
import { Choice, Message, models, NoText, Replaced, Select, Switch } from "../lib/widgets.js";
import { AtlasMap, count, overview } from "./atlas-map.js";

export const hint =
  "One head's attention map at any length: drag to move, scroll to zoom, down to single weights. "
  + "Only what is on screen is computed.";

const DEMO = "demo:100000", LENGTHS = [1024, 16384, 100000, 262144], MAX_TEXT_VIEW = 2000;
const AWAY = { x: null, y: null, z: null, query: null, key: null }; // of a map that is gone

function bodyOf(params, list) {
  const model = chosen(params, list);
  if (!model) return null;
  const { text, file, to, target, site, head } = params,
    body = { model, head: Number(head ?? 0) };
  if (!model.startsWith("demo:")) Object.assign(body, file ? { file } : { text: text ?? exampleOf(model, list) },
    { to, target });
  return site ? { ...body, site } : body;
}

const able = (m) => m.reads === "text" || m.kind === "sight";
const exampleOf = (model, list) => list?.find((m) => m.name === model)?.examples[0];
// the synthetic map, unless a link or another view names a model that reads text
function chosen({ model = DEMO }, list) {
  if (model.startsWith("demo:")) return model;
  return list === null ? null : list.some((m) => m.name === model && able(m)) ? model : DEMO;
}

export const csv = (params) => { const body = bodyOf(params, models.peek()); return body && ["atlas", body]; };

export function View({ params }) {
  const list = useSignal(models), body = bodyOf(params, list), isEmpty = body?.text === "";
  const [place, setPlace] = useState("");
  const { response, error, loading } = useResponse("atlas", body ?? {},
    { skip: !body || isEmpty, delay: body?.text ? 250 : 0 });
  const other = otherOf(params), otherBody = other && body && { ...body, ...other };
  const second = useResponse("atlas", otherBody ?? {}, { view: "atlas.other", skip: !otherBody || offline !== null });
  const plot = useRef(null), [readout, setReadout] = useState(["", null]), [scale, setScale] = useState(null),
    [progress, setProgress] = useState(1), [problem, setProblem] = useState("");
  const tries = useSignal(retries);
  useEffect(() => setProblem(""), [tries, response?.id]);
  const compared = other && second.response && response && fits(second.response, response) ? second.response : null;
  return html`<${Inputs} params=${params} model=${body?.model ?? DEMO} list=${list} response=${response}
    setProblem=${setProblem} />
    ${isEmpty && html`<${NoText} />`}
    ${!isEmpty && (error || (loading && !response)) && html`<${Message} error=${error} loading=${loading} />`}
    ${(problem || second.error) && html`<p class="error" role="alert">${problem || second.error}</p>`}
    ${response && !isEmpty && html`<div class="side atlas"><section class="panel" aria-label="Map">
        <div class="row between">
          <h2 dir="auto">${response.title}
            ${compared ? ` minus ${compared.title.split(response.is_synthetic ? ": " : ", ").slice(1).join(", ")}` : ""}
              </h2>
          ${progress < 1 && !offline
            && html`<span class="tag" role="status">computing all levels: ${Math.floor(100 * progress)}%</span>`}</div>
        <${Canvas} response=${response} other=${compared} params=${params} body=${body} otherBody=${otherBody}
          plot=${plot}
          onReadout=${(text, value) => setReadout([text, value])} onScale=${setScale} onProgress=${setProgress}
            onPlace=${setPlace} onError=${setProblem} />
        <p class="readout" aria-live="polite" data-value=${readout[1] ?? ""}>
          ${readout[0] || html`<span
            class="faint">Point at a cell. Keys: arrows move, + and − zoom, Home shows all, Enter opens a
              weight.</span>`}</p>
      </section>
      <aside><${Controls} params=${params} response=${response} plot=${plot} scale=${scale} place=${place}
        compared=${compared} />
        ${params.query !== undefined
          && html`<${Cell} id=${response.id} params=${params} body=${body} response=${response} />`}</aside></div>`}`;
}

const fits = (a, b) => a.queries === b.queries && a.keys === b.keys && a.id !== b.id;

function otherOf({ other }) {
  const at = other?.lastIndexOf("/") ?? -1;
  return at < 0 ? null : { site: other.slice(0, at), head: Number(other.slice(at + 1)) };
}

// ---- what is shown

function Inputs({ params, model, list, response, setProblem }) {
  const isDemo = model.startsWith("demo:"), names = (list ?? []).filter(able).map((m) => m.name),
    isText = list?.find((m) => m.name === model)?.reads === "text";
  const [name, setName] = useState("");
  const choose = (model) =>
    setParams({ ...AWAY, model, text: null, file: null, site: null, head: null, other: null, to: null, target: null });
  const sites = response?.sites ?? [], site = sites.find((s) => s.name === response?.site);
  return html`<section class="panel" aria-label="Input"><div class="row">
    <${Select} label="Model" value=${isDemo ? "demo" : model} options=${[["demo", "Synthetic map"], ...names]}
      onChange=${(v) => choose(v === "demo" ? DEMO : v)} />
    <${Replaced} what="model" given=${params.model} shown=${isDemo ? "the synthetic map" : model} known=${names}
      isThere=${isDemo && params.model?.startsWith("demo:")} />
    ${isDemo && html`<${Select} label="Length" value=${model}
      options=${[...new Set([...LENGTHS, Number(model.slice(5))])].sort((a, b) => a - b)
        .map((n) => [`demo:${n}`, `${count(n)} × ${count(n)}`])} onChange=${choose} />`}
    ${site && sites.length > 1
      && html`<${Select} label="Attention" value=${response.site} options=${sites.map((s) => s.name)}
        onChange=${(v) => setParams({ site: v, head: "0", query: null, key: null })} />`}
    ${site && html`<${Select} label="Head" value=${String(response.head)}
      options=${site.heads.map((text, n) => [String(n), text])}
        onChange=${(v) => setParams({ head: v, query: null, key: null })} />
      <${Select} label="Minus head" value=${params.other ?? ""}
        options=${[["", "none"],
          ...sites.flatMap((s) =>
            s.heads.map((text, n) => [`${s.name}/${n}`, sites.length > 1 ? `${s.name}, ${text}` : text]))]}
              onChange=${(v) => setParams({ other: v })} />`}
  </div>
  ${isDemo && html`<p
    class="faint">Synthetic: four heads over random words that look at equal words, near tokens, sinks and a period.
      No model made it.</p>`}
  ${isText && html`<div class="row top">
    <label class="field grow"><span>Text</span>
      <textarea rows="2" disabled=${Boolean(params.file)}
        value=${params.file ? name || "the uploaded file" : params.text ?? exampleOf(model, list) ?? ""}
      onInput=${(e) => setParams({ ...AWAY, text: e.target.value })}></textarea></label>
    <div><p class="faint">A long text:</p>
      <${FileInput} label="Choose a text file" accept="text/*,.txt,.md,.py" onError=${setProblem}
      onFile=${(id, file) => { setName(file.name); setProblem(""); setParams({ ...AWAY, file: id, text: null }); }} />
      ${params.file && html` <button onClick=${() => setParams({ ...AWAY, file: null })}>Type instead</button>`}</div>
        </div>`}</section>`;
}

function Canvas({ response, other, params, body, otherBody, plot, onReadout, onScale, onProgress, onPlace, onError }) {
  const box = useRef(null), canvas = useRef(null), width = useWidth(box), shade = useSignal(theme);
  const written = useRef(null), latest = useRef({});
  latest.current = { response, other, body, otherBody };
  useLayoutEffect(() => {
    const map = plot.current = new AtlasMap(canvas.current, {
      onReadout, onError, onScale, onProgress, onDraw: (m) => onPlace(m.where()),
      onMove: (plane) => { written.current = placeOf(plane); setParams(written.current, { isChoice: false }); },
      onPick: (query, key) => setParams({ query: String(query), key: String(key) }),
      // the server closes maps that nobody has looked at for long
      reopen: (id) => request("atlas", latest.current.other?.id === id ? latest.current.otherBody : latest.current.body,
        { quiet: true, save: false }),
    });
    return () => map.close();
  }, []);
  const height = Math.max(340, Math.min(width, innerHeight - 340));
  useLayoutEffect(() => {
    const map = plot.current, keeps = (params.keep ?? "place,zoom").split(","), isFirst = !map.map;
    map.setMap({ ...response }, { place: keeps.includes("place"), zoom: keeps.includes("zoom") });
    if (isFirst) map.resize(width, height);
    if (isFirst && params.z === undefined) map.plane.fit();
    onProgress(response.progress);
    if (!isFirst) map.moved();
  }, [response.id]);
  useLayoutEffect(() => plot.current.setOther(other && { ...other }), [other?.id]);
  useLayoutEffect(() => plot.current.resize(width, height), [width, height]);
  useLayoutEffect(() => plot.current.set(settingsOf(params)),
    [params.reduce, params.log, params.band, params.max, params.query, params.key, shade]);
  useEffect(() => { // a link, or the history
    const { x, y, z } = params, latest = written.current;
    if (z !== undefined && !(latest && latest.x === x && latest.y === y && latest.z === z)) plot.current.place(
      { x: Number(x), y: Number(y), z: Number(z) });
  }, [params.x, params.y, params.z]);
  const label = `Attention map, ${count(response.queries)} queries by ${count(response.keys)} keys. `
    + "Arrow keys move, plus and minus zoom, Home shows all of it, Enter opens the weight in the middle.";
  return html`<div ref=${box}>
    <canvas ref=${canvas} class="drawing atlas-map" tabindex="0" role="application" aria-roledescription="zoomable map"
    aria-label=${label}
    style=${{ width: `${width}px`, height: `${height}px` }}></canvas>
  </div>`;
}

const settingsOf = ({ reduce, log, band, max, query, key }) =>
  ({ reduce: reduce ?? "mean", log: log !== "0", band: band === "1",
  max: max === undefined ? null : Number(max), pinned: query === undefined ? null : [Number(query), Number(key)] });
const placeOf = (plane) => (plane.isWhole ? { x: null, y: null, z: null }
  : { x: plane.x.toFixed(2), y: plane.y.toFixed(2), z: Math.log2(plane.scale).toFixed(3) });

// ---- controls

function Controls({ params, response, plot, scale, place, compared }) {
  const keeps = (params.keep ?? "place,zoom").split(","),
    keep = (name) => (on) =>
      setParams({ keep: [...keeps.filter((k) => k && k !== name), ...(on ? [name] : [])].join(",") || "none" });
  return html`<section class="panel atlas-controls" aria-label="View"><div>
    <div class="row atlas-zoom"><button aria-label="Zoom in" onClick=${() => plot.current.zoom(2)}>+</button>
      <button aria-label="Zoom out" onClick=${() => plot.current.zoom(0.5)}>−</button>
      <button onClick=${() => plot.current.fit()}>Whole map</button></div>
    <${MiniMap} response=${response} plot=${plot} place=${place} />
    <p class="readout atlas-place">${place}</p>
    <${Search} response=${response} plot=${plot} /></div><div>
    <h3>A cell shows</h3>
    <${Choice} label="A cell shows" value=${params.reduce ?? "mean"}
      options=${[["mean", "mean"], ["max", "largest"]]} onChange=${setParam("reduce", "mean")} />
    ${response.band_levels > 0
      && html`<${Switch} label="Columns by distance back" value=${params.band === "1"}
        onChange=${(on) => setParams({ ...AWAY, band: on ? "1" : null })} />`}
    <h3>Colours</h3>
    <${Legend} scale=${scale} compared=${compared} />
    <${Switch} label="Logarithmic" value=${params.log !== "0"}
      onChange=${(on) => setParams({ log: on ? null : "0" })} />
    <h3>With another head, keep</h3>
    <${Switch} label="Place" value=${keeps.includes("place")} onChange=${keep("place")} />
    <${Switch} label="Zoom" value=${keeps.includes("zoom")} onChange=${keep("zoom")} />
    <${Switch} label="Colour scale" value=${params.max !== undefined}
      onChange=${(on) => setParams({ max: on && scale ? String(scale.max) : null })} /></div>
  </section>`;
}

function Legend({ scale, compared }) {
  const canvas = useRef(null);
  useEffect(() => {
    if (!scale) return;
    const context = canvas.current.getContext("2d"), image = context.createImageData(256, 1);
    new Uint32Array(image.data.buffer).set(scale.table);
    context.putImageData(image, 0, 0);
  }, [scale]);
  const low = !scale ? "" : compared ? format(-scale.max) : scale.log ? `≤ ${format(scale.max / 1e4)}` : "0";
  return html`<div class="atlas-legend"><span>${low}</span>
    <canvas ref=${canvas} width="256" height="1" role="img"
      aria-label=${`Colours from ${low} to ${scale ? format(scale.max) : ""}`}></canvas>
        <span>${scale ? format(scale.max) : ""}</span></div>`;
}

// The whole map in the corner: a click goes there.
function MiniMap({ response, plot, place }) {
  const canvas = useRef(null), tile = useMemo(() => overview(response), [response]), side = 160,
    height = Math.max(24, Math.min(side, Math.round((side * response.queries) / response.keys)));
  useEffect(() => {
    const map = plot.current, context = canvas.current?.getContext("2d");
    if (!map?.colours || !context) return;
    const { columns, rows, columnRange, rowRange } = map.plane;
    context.imageSmoothingEnabled = false;
    context.clearRect(0, 0, side, height);
    context.drawImage(
      paintTile(tile, { ...map.colours, share: (x) => (x > 0 ? 1 + Math.log10(x / tile.max) / 4 : 0) }), 0, 0, side,
        height);
    if (map.settings.band) return;
    context.strokeStyle = getComputedStyle(canvas.current).getPropertyValue("--warm");
    context.lineWidth = 2;
    const [x0, x1] = columnRange.map((v) => (v / columns) * side), [y0, y1] = rowRange.map((v) => (v / rows) * height);
    context.strokeRect(x0 + 1, y0 + 1, Math.max(3, x1 - x0 - 2), Math.max(3, y1 - y0 - 2));
  }, [response.id, place]);
  const go = (event) => {
    const bounds = event.currentTarget.getBoundingClientRect();
    plot.current.jump(((event.clientY - bounds.top) / bounds.height) * response.queries,
      ((event.clientX - bounds.left) / bounds.width) * response.keys);
  };
  return html`<canvas class="atlas-mini" ref=${canvas} width=${side} height=${height} aria-hidden="true"
    onClick=${go}></canvas>`;
}

function Search({ response, plot }) {
  const [text, setText] = useState(""), [matches, setMatches] = useState(null), [at, setAt] = useState(0),
    [error, setError] = useState("");
  const show = (positions, n) => {
    setAt(n);
    plot.current.set({ marks: positions, mark: positions[n] ?? null });
    if (positions.length) plot.current.jump(Math.min(positions[n], response.queries - 1), plot.current.settings.band
      ? 0 : positions[n], 12);
  };
  const search = (event) => {
    event.preventDefault();
    if (matches?.text === text && matches.positions.length) return show(matches.positions,
      (at + 1) % matches.positions.length);
    const position = /^#(\d+)$/.exec(text.trim());
    const take = (response) => { setError(""); setMatches({ text, ...response }); show(response.positions, 0); };
    if (position) return take({ positions: [Math.min(Number(position[1]), response.keys - 1)], count: 1 });
    if (text) request("atlas.search", { id: response.id, text }, { view: "atlas.search" }).then(take)
      .catch((e) => setError(e.message));
  };
  return html`<form class="atlas-search" role="search" onSubmit=${search}>
    <label class="field"><span>Find a token, or a position as #4096</span>
    <span class="row"><input type="search" value=${text} onInput=${(e) => setText(e.target.value)} />
      <button>${matches?.text === text && matches.count > 1 ? "Next" : "Find"}</button></span></label>
    <p class="readout" role="status">
      ${error || (matches
        ? (matches.count ? `${at + 1} of ${count(matches.count)}, position ${count(matches.positions[at])}`
          : "not found") : "")}</p></form>`;
}

// ---- one weight

const TERMS = [["dot", "q · k"], ["scaled", "scaled"], ["bias", "bias"], ["score", "score s"],
  ["lse", "log-sum-exp of the row"], ["weight", "weight exp(s − lse)"]];

function Cell({ id, params, body, response }) {
  const at = { query: Number(params.query), key: Number(params.key) };
  const { response: cell, error, loading } = useResponse("atlas.cell", { id, ...at }, { view: "atlas.cell" });
  const isShort = !body.file && !body.model.startsWith("demo:") && (body.text?.length ?? Infinity) <= MAX_TEXT_VIEW;
  const name = (n, token) => `${count(n)}${token ? ` “${token}”` : ""}`;
  return html`<section class="panel" aria-label="Arithmetic">
    <div class="row between"><h2>One weight</h2>
      <button onClick=${() => setParams({ query: null, key: null })}>Close</button></div>
    ${(error || !cell) && html`<${Message} error=${error} loading=${loading} />`}
    ${!error && cell
      && html`<p dir="auto">Query ${name(at.query, cell.tokens[0])}, key ${name(at.key, cell.tokens[1])}</p>
      ${!cell.allowed && html`<p class="warning">The mask hides this key.</p>`}
      <table class="atlas-terms">
        <tbody>${TERMS.filter(([n]) => cell[n] !== null && cell[n] !== undefined && !(n === "bias" && !cell[n]))
        .map(([n, title]) =>
          html`<tr><th scope="row">${title}</th>
            <td class="number" data-name=${n} data-value=${cell[n]}>${format(cell[n], 5)}</td></tr>`)}</tbody></table>
      ${isShort && html`<p>
        <a href=${linkTo("text",
          { model: body.model, text: body.text, to: body.to, site: response.site, head: String(response.head),
            query: params.query, key: params.key })}>Its arithmetic, step by step</a></p>`}`}</section>`;
}
