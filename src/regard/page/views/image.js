// Images: what a vision model predicts, and which patches each head attends to.
import {
  format, html, largest, range, showToken, useEffect, useMemo, useRef, useSignal, useState,
} from "../lib/dom.js";
import { unpack, useResponse } from "../lib/api.js";
import { Bars } from "../lib/bars.js";
import { colourScale, css, theme } from "../lib/colours.js";
import { cellHandlers, paint } from "../lib/draw.js";
import { FileInput, sendFile } from "../lib/files.js";
import { offline, setParams } from "../lib/state.js";
import { Term } from "../lib/terms.js";
import { Message, models, ModelSelect, pickModel, reading, Replaced, Slider, Switch, Tokens } from "../lib/widgets.js";

export const hint = "Draw a letter, choose an image or a sample: see what the model predicts and where it looks.";
export function csv(params) {
  const model = pick(models.peek(), params);
  return model ? ["image", bodyOf(params, model.name)] : null;
}

// A model that other views were showing may read something else.
const pick = (list, params) => pickModel(list, params.model, "image", (m) => reading(m, "image"));

const DEFAULT_SEED = 3; // as the server's
const bodyOf = (p, model) => ({
  model, sample: Number(p.sample ?? 0), seed: Number(p.seed ?? DEFAULT_SEED), invert: p.invert === "1",
    ...(p.token == null ? {} : { token: Number(p.token) }), ...(p.text ? { text: p.text } : {}),
    ...(p.file ? { file: p.file } : {}),
});

export function View({ params }) {
  const list = useSignal(models), model = pick(list, params);
  const [problem, setProblem] = useState("");
  const { response, error, loading } = useResponse("image", bodyOf(params, model?.name), { skip: !model });
  useSignal(theme);
  useEffect(() => setProblem(""), [params.file, params.sample, params.seed, model?.name]);
  if (list && !model) return html`<p
    class="error">No model here classifies images; start with regard serve glyphs.</p>`;
  const show = (changes) => setParams({ file: null, sample: null, token: null, ...changes });
  return html`<div class="columns input">
    <section class="panel" aria-label="Image">
      <div class="row top">
        <${Pad} original=${response?.original} file=${params.file} onFile=${(file) => show({ file })}
          onError=${setProblem} />
        <div class="grow"><div class="row">
          <${ModelSelect} value=${model?.name} reads="image" onChange=${(m) => show({ model: m })} />
          <${FileInput} label="Choose or drop an image" accept="image/*" onFile=${(file) => show({ file })}
            onError=${setProblem} /></div>
          <${Samples} model=${model?.name} params=${params} onPick=${(n) => show({ sample: n })} />
          ${model?.pictures ? html`<label class="field"><span>Text after the image</span>
            <input value=${params.text ?? ""} maxlength="2000" dir="auto"
              onChange=${(e) => setParams({ text: e.target.value || null, token: null })} /></label>`
          : html`<${Switch} label=${response?.cropped ? "Dark ink that touches the border" : "Swap black and white"}
            value=${params.invert === "1"}
            onChange=${(on) => setParams({ invert: on ? "1" : null })} />`}
          <${OtherModels} list=${list} /></div>
      </div>
      <${Message} error=${problem} again=${false} />
    </section>
    <section class="panel" aria-label="Prediction" aria-live="polite" aria-busy=${loading}>
      <${Message} error=${error} loading=${loading && !response} />
        ${response && !error && html`<${Prediction} response=${response} />`}</section>
  </div>
  ${response && !error
    && (response.grid ? html`<${Attention} response=${response} params=${params} />` : html`<section class="panel">
    <p>This model (${response.kind}) has no attention to show: it works by convolutions.</p>
    <svg class="drawing" width="240" height="240" role="img" aria-label="The image as the model sees it">
      <image width="240" height="240" class="pixels" href=${imageUrl(response.image)} /></svg></section>`)}`;
}

// Hugging Face folders that no view shows are listed with the reason.
function OtherModels({ list }) {
  const others = (list ?? []).filter((m) => m.reason);
  return others.length
    ? html`<ul class="faint">${others.map((m) => html`<li>${m.name}: ${m.reason}.</li>`)}</ul>` : null;
}

// Paper to draw on; until the first stroke it shows the image that was chosen.
function Pad({ original, file, onFile, onError }) {
  const canvas = useRef(null), drawn = useRef(null), last = useRef(null);
  const [brush, setBrush] = useState(16);
  const context = () => canvas.current.getContext("2d");
  const blank = () => { const c = context(); c.fillStyle = "#fff"; c.fillRect(0, 0, 240, 240); };
  useEffect(() => {
    if (!original || (file && file === drawn.current)) return;
    drawn.current = null;
    const picture = new Image();
    picture.onload = () => {
      if (!canvas.current || drawn.current) return;
      const scale = Math.min(240 / picture.width, 240 / picture.height), w = picture.width * scale,
        h = picture.height * scale;
      blank();
      context().drawImage(picture, (240 - w) / 2, (240 - h) / 2, w, h);
    };
    picture.src = `data:image/png;base64,${original.png}`;
  }, [original?.png, file]);
  const clear = () => { drawn.current = "drawing"; blank(); };
  const place = (e) => {
    const box = canvas.current.getBoundingClientRect();
    return [(e.clientX - box.left) * 240 / box.width, (e.clientY - box.top) * 240 / box.height];
  };
  const down = (e) => {
    if (offline) return;
    if (!drawn.current) clear();
    try { canvas.current.setPointerCapture(e.pointerId); } catch { /* a pen that has left already */ }
    last.current = place(e);
    stroke(e);
  };
  const stroke = (e) => {
    if (!last.current) return;
    const c = context(), to = place(e);
    Object.assign(c, { lineWidth: brush * (e.pointerType === "pen" ? 0.4 + e.pressure : 1), lineCap: "round",
      strokeStyle: "#111" });
    c.beginPath(); c.moveTo(...last.current); c.lineTo(...to); c.stroke();
    last.current = to;
  };
  const up = () => {
    if (!last.current) return;
    last.current = null;
    canvas.current.toBlob((blob) => sendFile(blob).then((id) => { drawn.current = id; onFile(id); })
      .catch((error) => onError(error.message)), "image/png");
  };
  return html`<div class="pad">
    <canvas ref=${canvas} width="240" height="240" role="img"
      aria-label="Paper: draw with mouse, finger or pen; or choose a sample"
    onPointerDown=${down} onPointerMove=${stroke} onPointerUp=${up} onPointerCancel=${up}></canvas>
    ${!offline && html`<div class="row"><button onClick=${clear}>Clear</button>
      <${Slider} label="Brush" value=${brush} min=${4} max=${36} step=${2} onInput=${setBrush} /></div>`}</div>`;
}

function Samples({ model, params, onPick }) {
  const seed = Number(params.seed ?? DEFAULT_SEED);
  const { response } = useResponse("image.samples", { model, seed }, { skip: !model });
  const chosen = params.file ? -1 : Number(params.sample ?? 0);
  return html`<div class="samples" role="group" aria-label="Samples">
    ${(response?.samples ?? []).map((s) => html`<button aria-pressed=${s.sample === chosen}
    aria-label=${s.class === null ? `Sample ${s.sample}, none of the classes` : `Sample ${s.sample}, ${s.class}`}
      onClick=${() => onPick(s.sample)}>
    <img alt="" src=${`data:image/png;base64,${s.png}`} /></button>`)}
    ${!offline && html`<button
      onClick=${() => setParams({ seed: seed + 1, sample: null, file: null, token: null })}>Others</button>`}</div>`;
}

function Prediction({ response }) {
  if (response.tokens) return html`<h2>Next token</h2><${Bars} label="Probabilities of the next token" max=${1}
    rows=${response.classes.map((c) => [showToken(c.class), c.probability])} show=${percent} />`;
  if (!response.classes.length) return html`<p>${response.kind} has no classes: it is an encoder.</p>`;
  const best = response.classes[0], sure = response.confidence;
  return html`<div class="row top">
    <div class="verdict"><strong data-value=${best.probability}>${response.unsure ? "?" : best.class}</strong>
    ${response.unsure && html`<span>perhaps ${best.class}</span>`}</div>
    <div class="grow">
      <${Bars} label="Probabilities" rows=${response.classes.slice(0, 8).map((c) => [c.class, c.probability])} max=${1}
        show=${percent} /></div></div>
    <p class=${response.unsure ? "warning" : "faint"}>${sure === null ? "This run has no calibrated confidence."
      : response.unsure ? `⚠ Confidence ${percent(sure)}, below ${percent(
        response.threshold)}: the class may be wrong, or the image shows none of the ${
        response.classes.length} classes.`
        : `Confidence ${percent(sure)}: the calibrated probability that the first class is right.`}</p>`;
}
const percent = (p) => (p > 0.9995 && p < 1 ? "> 99.9 %" : p < 0.0005 ? "< 0.1 %" : `${(100 * p).toFixed(1)} %`);

function Attention({ response, params }) {
  const maps = useMemo(() => split(response), [response]);
  const [rows, columns] = response.grid, { token, prefix } = response;
  const inside = (x, count) => (Number(x) >= 0 && Number(x) < count ? Number(x) : null); // NaN is not
  const site = inside(params.site, response.sites.length) ?? response.sites.length - 1;
  const head = inside(params.head, response.sites[site].heads);
  const chosen = head === null ? mean(maps.weights[site]) : maps.weights[site][head];
  const base = useMemo(() => imageUrl(response.image), [response.image]);
  const { tokens = null, first = 0 } = response, at = token - first - prefix;
  const isPatch = at >= 0 && at < rows * columns;
  const words = range(tokens?.length ?? 0).filter((i) => tokens[i] !== tokens[first]); // without the patches
  const pick = (t) => setParams({ token: (t || tokens) && t !== token ? t : null });
  const common = { base, grid: response.grid, prefix, token: isPatch || !tokens ? token - first : -1,
    onSelect: (t) => pick(t + first) };
  const name = !isPatch && tokens ? `token “${showToken(tokens[token])}” (${token})`
    : at >= 0 ? `patch in row ${Math.floor(at / columns)}, column ${at % columns}`
    : token ? `register ${token}` : "class token";
  const place = head === null ? `${response.sites[site].name}, mean of heads`
    : `${response.sites[site].name}, head ${head}`;
  return html`<${Replaced} what="head" given=${params.head} shown=${place}
      isThere=${String(head) === String(params.head)} />
    <${Replaced} what="attention" given=${params.site} shown=${response.sites[site].name}
      isThere=${String(site) === String(params.site)} />
    <section class="panel"><div class="row"><h2>Attention of the ${name}</h2>
      ${token > 0 && prefix > 0 && html`<button onClick=${() => pick(0)}>Back to the class token</button>`}</div>
    ${tokens && html`<${Tokens} tokens=${words.map((i) => tokens[i])} label="Tokens beside the patches"
        selected=${words.indexOf(token)} onSelect=${(i) => pick(words[i])} />`}
    ${response.coverage && html`<p class="faint">${response.coverage}</p>`}
    <p class="faint">Click a patch, or move with the arrow keys and press Enter, to see what that patch attends to.
      ${prefix > 0 && response.classes.length > 0 && " The prediction is read from the class token."}</p>
    <div class="image-maps">
      <${PatchMap} ...${common} title="As the model sees it"
        note=${`${rows} × ${columns} patches of ${response.patch} × ${response.patch} pixels`} />
      <${PatchMap} ...${common} title=${place} values=${chosen}
        note=${`Weights of one row of the map; ${prefix === 1 ? `${format(chosen[0])} stays on the class token`
          : tokens ? `${format(head === null ? mean(maps.elsewhere[site].map((x) => [x]))[0]
            : maps.elsewhere[site][head])} is on tokens of the text and the frame`
          : prefix ? `${format(sum(chosen.subarray(0, prefix)))} stays on the class token and ${prefix - 1} registers`
            : "there is no class token"}.`} />
      <${PatchMap} ...${common} title="Rollout through all layers" values=${maps.rollout}
        note=${html`<${Term} name="rollout" /> Mean of heads times residual, multiplied over layers.`} />
      ${maps.similarity && html`<${PatchMap} ...${common} title="Position similarity" values=${maps.similarity} isPlain
        note="Cosine of the position embeddings: what is near is alike." />`}
    </div></section>
  <section class="panel"><h2>All heads</h2>
    <div class="scroll">
      ${response.sites.map((s, n) =>
        html`<div class="image-layer" role="group" aria-label=${s.name}><span class="mono">${s.name}</span>
    ${[null, ...range(s.heads)].map((h) =>
      html`<button class="image-thumb" aria-pressed=${n === site && h === head}
        aria-label=${`${s.name}, ${h === null ? "mean of heads" : `head ${h}`}`}
          onClick=${() => setParams({ site: n, head: h })}>
        <${Thumb} base=${base} grid=${response.grid} prefix=${prefix}
          values=${h === null ? mean(maps.weights[n]) : maps.weights[n][h]} />
      <span>${h === null ? "mean" : h}</span></button>`)}</div>`)}</div></section>`;
}

// Rows of packed arrays: weights[site][head][token], the class token first.
function split(response) {
  const { shape, values } = unpack(response.weights);
  let at = 0;
  const row = () => values.subarray(shape[1] * at, shape[1] * ++at);
  const others = response.elsewhere ? unpack(response.elsewhere).values : [];
  let n = 0;
  return { weights: response.sites.map((s) => range(s.heads).map(row)),
    elsewhere: response.sites.map((s) => range(s.heads).map(() => others[n++])),
    rollout: unpack(response.rollout).values,
    similarity: response.similarity && unpack(response.similarity).values };
}
const sum = (values) => values.reduce((a, b) => a + b, 0);
const mean = (rows) => Float32Array.from(rows[0], (_, i) => rows.reduce((sum, row) => sum + row[i], 0) / rows.length);

function imageUrl(packed) {
  const { shape: [channels, height, width], values } = unpack(packed), size = height * width;
  const byte = (x) => Math.round(255 * Math.min(1, Math.max(0, x)));
  return paint(range(size), height, width,
    (i) => [0, 1, 2].map((c) => byte(values[(channels === 3 ? c : 0) * size + i]))).toDataURL();
}

// Orange over the image, the stronger the larger the weight of the patch.
function overlayUrl(values, [rows, columns], prefix) {
  const canvas = document.createElement("canvas"), image = new ImageData(columns, rows),
    patches = values.subarray(prefix);
  const most = largest(patches, 1e-30);
  Object.assign(canvas, { width: columns, height: rows });
  patches.forEach((x, i) => image.data.set([255, 136, 0, Math.round(225 * Math.max(0, x) / most)], 4 * i));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas.toDataURL();
}

const Thumb = ({ base, grid, prefix, values }) =>
  html`<svg width="58" height=${58 * grid[0] / grid[1]} viewBox=${`0 0 ${grid[1]} ${grid[0]}`}
    preserveAspectRatio="none" aria-hidden="true">
  <image width=${grid[1]} height=${grid[0]} preserveAspectRatio="none" class="pixels image-dim" href=${base} />
    <image width=${grid[1]} height=${grid[0]} preserveAspectRatio="none" class="pixels"
      href=${overlayUrl(values, grid, prefix)} /></svg>`;

function PatchMap({ base, grid, prefix, token, onSelect, title, note, values = null, isPlain = false }) {
  const [rows, columns] = grid, width = 232, cell = width / columns, height = rows * cell;
  const [cursor, setCursor] = useState(null);
  // tokens below prefix are the class token and registers
  const patchOf = (t) => ({ row: Math.floor((t - prefix) / columns), column: (t - prefix) % columns }),
    tokenOf = ({ row, column }) => prefix + row * columns + column;
  const handlers =
    cellHandlers({ rows, columns, at: cursor ?? patchOf(Math.max(token, prefix)), clamped: true, onMove: setCursor,
      onSelect: (row, column) => onSelect(tokenOf({ row, column })) });
  const box = ({ row, column }, kind) =>
    html`<rect class=${`outline ${kind}`} fill="none" x=${column * cell} y=${row * cell} width=${cell}
      height=${cell} />`;
  const lines = range(columns - 1).map((i) => `M${(i + 1) * cell} 0V${height}`)
    .concat(range(rows - 1).map((i) => `M0 ${(i + 1) * cell}H${width}`)).join("");
  const patches = values?.subarray(prefix), most = patches ? patches.reduce((a, b) => Math.max(a, b), -1) : 0;
  const at = cursor ?? (values ? patchOf(prefix + patches.indexOf(most)) : null), value = at && values
    ? values[tokenOf(at)] : null;
  const readout = at
    && `${cursor ? "" : "largest: "}row ${at.row}, column ${at.column}${values ? `: ${format(value, 4)}` : ""}`;
  const colour = isPlain && colourScale({ kind: "diverging", max: 1 });
  return html`<figure><figcaption>${title}</figcaption>
    <svg class="drawing" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} tabindex="0"
      role="application" aria-roledescription="patches" aria-label=${`${title}. Arrow keys move, Enter selects.`}
      ...${handlers}>
      ${isPlain ? range(rows * columns)
        .map((i) => html`<rect x=${i % columns * cell} y=${Math.floor(i / columns) * cell} width=${cell + 0.3}
          height=${cell + 0.3} fill=${css(colour(values[i + prefix]))} />`)
    : html`<image width=${width} height=${height} preserveAspectRatio="none"
      class=${values ? "pixels image-dim" : "pixels"} href=${base} />`}
      ${values && !isPlain
        && html`<image width=${width} height=${height} preserveAspectRatio="none" class="pixels"
          href=${overlayUrl(values, grid, prefix)} />`}
      <path d=${lines} fill="none" class="patches" />${token >= prefix && box(patchOf(token), "selected")}
        ${cursor && box(cursor, "cursor")}</svg>
    <p class="readout" data-value=${value}>${readout || html`<span class="faint">Point at a patch.</span>`}</p>
      <p class="faint">${note}</p></figure>`;
}
