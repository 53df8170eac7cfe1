// Sound: what a recogniser hears, writes and attends to, on one time axis.
import { clamp, format, html, largest, pointIn, range, useEffect, useMemo, useRef, useSignal, useState,
  useWidth } from "../lib/dom.js";
import { decodeBase64, unpack, useResponse } from "../lib/api.js";
import { colourScale, theme } from "../lib/colours.js";
import { cellHandlers, paint } from "../lib/draw.js";
import { FileInput } from "../lib/files.js";
import { offline, setParams } from "../lib/state.js";
import { Message, models, ModelSelect, pickModel, Select, Slider } from "../lib/widgets.js";
import { LiveText, Recorder } from "./sound-recorder.js";

export const hint =
  "Key a text, record, or choose a recording: see what the model hears, when it writes, and what it attends to.";
export function csv(params) {
  const model = pick(models.peek(), params);
  return model ? ["sound", request(params, model.name)] : null;
}

// A model that other views were showing may read something else.
const pick = (list, params) => pickModel(list, params.model, "sound", (m) => m.reads === "sound");

const TEXT = "CQ DE REGARD", SAMPLES = ["SOS", TEXT, "PARIS PARIS", "73 GOOD NIGHT"];
const number = (x, fallback) => Number(x ?? fallback);
const recording = (p, model) => (p.file ? { model, file: p.file }
  : { model, message: p.message ?? TEXT, wpm: number(p.wpm, 22), pitch: number(p.pitch, 600), snr: number(p.snr, 12),
    seed: number(p.seed, 0) });
const request = (p, model) =>
  ({ ...recording(p, model), ...(p.site ? { site: p.site } : {}), ...(p.head ? { head: Number(p.head) } : {}) });

export function View({ params }) {
  const list = useSignal(models), model = pick(list, params);
  const [problem, setProblem] = useState(""), [live, setLive] = useState(null);
  const { response, error, loading } = useResponse("sound", request(params, model?.name), { skip: !model, delay: 250 });
  const { response: audio } = useResponse("sound.audio", recording(params, model?.name),
    { skip: !model || Boolean(error), delay: 300 });
  const player = usePlayer(audio?.wav, params, response);
  useSignal(theme);
  useEffect(() => setProblem(""), [params.file, params.message, model?.name]);
  if (list && !model) return html`<p class="error">No model here transcribes audio; start with regard serve morse.</p>`;
  return html`<div class="columns input">
    <section class="panel" aria-label="Recording"><div class="row">
        <${ModelSelect} value=${model?.name} reads="sound"
          onChange=${(m) => setParams({ model: m, site: null, head: null })} />
        <${FileInput} label="Choose or drop a recording" accept="audio/*,.wav,.flac,.ogg"
          onFile=${(file) => setParams({ file, at: null })} onError=${setProblem} />
        <${Recorder} model=${model?.name} live=${live} setLive=${setLive} onProblem=${setProblem} /></div>
      <${Keyer} params=${params} />
      <${Message} error=${problem} again=${false} /></section>
    <section class="panel" aria-label="Text" aria-live="polite" aria-busy=${loading}>
      ${live ? html`<${LiveText} live=${live} />`
    : html`<${Message} error=${error} loading=${loading && !response} />
      ${response && !error && html`<${Transcript} response=${response} />`}`}</section></div>
    ${response && !error && !live
      && html`<${Timeline} response=${response} player=${player} />
        <${AttentionMap} response=${response} player=${player} />`}`;
}

// Morse code of any text; hidden values are those of the link.
function Keyer({ params }) {
  const [draft, setDraft] = useState(params.message ?? TEXT);
  useEffect(() => setDraft(params.message ?? TEXT), [params.message]);
  if (offline) return null;
  const show = (changes) => setParams({ file: null, at: null, ...changes });
  const type = (text) => { setDraft(text); if (text.trim()) show({ message: text }); };
  const slider = (name, label, fallback, min, max, step, unit) =>
    html`<${Slider} label=${label} value=${number(params[name], fallback)} min=${min} max=${max} step=${step}
    onInput=${(x) => show({ [name]: x })} show=${(x) => `${x} ${unit}`} />`;
  return html`<label class="field keyer"><span>Type a text, hear it keyed as Morse code</span>
      <input type="text" maxlength="60" value=${draft} onInput=${(e) => type(e.target.value)} /></label>
    <div class="chips" role="group" aria-label="Samples">
      ${SAMPLES.map((t) =>
        html`<button onClick=${() => show({ message: t })}
          aria-pressed=${!params.file && t === (params.message ?? TEXT)}>${t}</button>`)}</div>
    <div class="row sliders">${slider("wpm", "Speed", 22, 8, 45, 1, "words/min")}
      ${slider("snr", "Tone over noise", 12, -10, 40, 1, "dB")}${slider("pitch", "Pitch", 600, 250, 1300, 50, "Hz")}
        </div>`;
}

function Transcript({ response }) {
  const sure = response.confidence, low = Boolean(response.warning);
  return html`<p class="transcript">${response.text || html`<span class="faint">nothing recognised</span>`}</p>
    <p class=${low ? "warning" : "faint"} data-value=${sure}>${sure === null ? "This run has no calibrated confidence."
    : low ? `⚠ ${response.warning.replace(/^\S+: /, "")}`
      : `Confidence ${(100 * sure).toFixed(1)} %: the calibrated probability that the text is right.`}</p>
    ${response.notes.length > 0
      && html`<p class=${response.is_complete ? "faint" : "warning"}>${response.notes.join("; ")}.</p>`}
    ${response.total_seconds > response.seconds
      && html`<p class="faint">The drawings show the
        first ${Math.round(response.seconds)} of ${format(response.total_seconds)} seconds.</p>`}`;
}

// Position and playback of the recording: {now, playing, toggle, seek}
function usePlayer(wav, params, response) {
  const audio = useRef(null), [playing, setPlaying] = useState(false), [now, setNow] = useState(null);
  useEffect(() => {
    if (!wav) return;
    const url = URL.createObjectURL(new Blob([decodeBase64(wav)], { type: "audio/wav" }));
    const element = audio.current = new Audio(url);
    const stop = () => setPlaying(false);
    element.addEventListener("ended", stop);
    element.addEventListener("pause", stop);
    setNow(null);
    return () => {
      element.removeEventListener("pause", stop);
      element.pause();
      setPlaying(false);
      URL.revokeObjectURL(url);
    };
  }, [wav]);
  useEffect(() => {
    if (!playing) return;
    let frame = requestAnimationFrame(function follow() {
      setNow(audio.current.currentTime);
      frame = requestAnimationFrame(follow);
    });
    return () => cancelAnimationFrame(frame);
  }, [playing]);
  const last = response?.emissions.at(-1)?.seconds ?? 0, end = response?.seconds ?? 0;
  const at = clamp(now ?? number(params.at, last), 0, end);
  return {
    now: at, playing, ready: Boolean(wav),
    seek(seconds) {
      const to = clamp(Math.round(100 * seconds) / 100, 0, end);
      if (audio.current) audio.current.currentTime = Math.min(to, audio.current.duration || to);
      setNow(null);
      setParams({ at: to });
    },
    toggle() {
      const element = audio.current;
      if (playing) { element.pause(); setNow(null); setParams({ at: element.currentTime.toFixed(2) }); return; }
      if (now === null && (params.at === undefined || at >= element.duration - 0.05)) element.currentTime = 0;
      else element.currentTime = at;
      element.play().then(() => setPlaying(true)).catch(() => {});
    },
  };
}

const LEFT = 70, ROW = { text: 24, wave: 70, mel: 92, attention: 18 };
const TOPS = { wave: 30, mel: 108, attention: 208 }, HEIGHT = 252;

// Text, waveform, features, and what the output at the cursor attends to.
function Timeline({ response, player }) {
  const box = useRef(null), width = useWidth(box), inner = width - LEFT - 10;
  const x = (t) => LEFT + (t / response.seconds) * inner;
  const wave = useMemo(() => unpack(response.wave), [response]),
    features = useMemo(() => unpack(response.features), [response]);
  const map = useMemo(() => unpack(response.map), [response]), colours = theme.peek();
  const melUrl = useMemo(() => spectrogram(features), [features, colours]);
  const row = rowAt(response, map, player.now),
    strip = map.values.subarray(row * map.shape[1], (row + 1) * map.shape[1]);
  const n = wave.shape[1], y = (v) => TOPS.wave + ROW.wave / 2 * (1 - clamp(v, -1, 1)),
    place = (i) => LEFT + (i + 0.5) / n * inner;
  const outline = useMemo(() =>
    `M${range(n).map((i) => `${place(i).toFixed(1)} ${y(wave.values[n + i]).toFixed(1)}`).join("L")}L${range(n)
      .reverse()
    .map((i) => `${place(i).toFixed(1)} ${y(wave.values[i]).toFixed(1)}`).join("L")}Z`, [wave, inner]);
  const locate = (e) =>
    player.seek((pointIn(e).x - LEFT) / inner * response.seconds);
  const press = (e) => {
    const step = { ArrowLeft: -0.1, ArrowRight: 0.1, PageUp: 1, PageDown: -1 }[e.key];
    if (step) player.seek(player.now + step);
    else if (e.key === "Home") player.seek(0);
    else if (e.key === "End") player.seek(response.seconds);
    else if (e.key === " " && player.ready) player.toggle();
    else return;
    e.preventDefault();
  };
  const written = response.emissions.filter((e) => e.seconds <= player.now + 1e-6).map((e) => e.text).join("").trim();
  const label = (text, top) => html`<text x=${LEFT - 8} y=${top} text-anchor="end" font-size="12">${text}</text>`;
  return html`<section class="panel">
    <div class="row">
      <button class="primary" disabled=${!player.ready} onClick=${player.toggle}>
        ${player.playing ? "❚❚ Pause" : "▶ Play"}</button>
      <p class="readout">${player.now.toFixed(2)} s of ${response.seconds.toFixed(2)} s · written so far: <strong>
        ${written || "–"}</strong></p></div>
    <div ref=${box}><svg class="drawing timeline" width=${width} height=${HEIGHT} tabindex="0" role="slider"
      aria-label="Position in the recording" aria-valuemin="0" aria-valuemax=${response.seconds}
      aria-valuenow=${player.now}
        aria-valuetext=${`${player.now.toFixed(2)} seconds, written so far: ${written || "nothing"}`}
      onPointerDown=${locate} onPointerMove=${(e) => e.buttons === 1 && locate(e)} onKeyDown=${press}>
      ${label("written", 19)}
        ${response.emissions.map((e) =>
          html`<text class=${e.seconds <= player.now ? "on" : ""} x=${x(e.seconds)} y="20" text-anchor="middle"
            font-size="14"
        data-value=${e.seconds}>${e.text}</text>`)}
      ${label("waveform", TOPS.wave + ROW.wave / 2 + 4)}<path d=${outline} fill="var(--accent)" />
      ${label("log-mel", TOPS.mel + ROW.mel / 2 + 4)}
        <image x=${LEFT} y=${TOPS.mel} width=${inner} height=${ROW.mel} preserveAspectRatio="none" class="pixels"
          href=${melUrl} />
      ${label("attends to", TOPS.attention + 13)}
        <image x=${LEFT} y=${TOPS.attention} width=${inner} height=${ROW.attention} preserveAspectRatio="none"
          class="pixels" href=${stripUrl(strip)} />
      ${axis(response.seconds)
        .map((t) => html`<text x=${x(t)} y=${HEIGHT - 8} text-anchor="middle" font-size="12">${t} s</text>`)}
      <line class="playhead" x1=${x(player.now)} x2=${x(player.now)} y1="0" y2=${HEIGHT - 22} /></svg></div>
    <p class="faint">Log-mel energies in ${features.shape[1]} bands, normalised as the model gets them, with a second
      of silence at the end. “Attends to” is one row of the map below:
      what the output at the cursor looks back at. Letters stand where they are decided, which is after they were
        heard.</p></section>`;
}

const rowAt = (response, map, now) => clamp(Math.floor(now / response.seconds * response.outputs / response.pool), 0,
  map.shape[0] - 1);
const axis = (seconds) => {
  const step = [0.5, 1, 2, 5, 10, 20].find((s) => seconds / s <= 8) ?? 30;
  return range(Math.floor(seconds / step) + 1).map((i) => i * step);
};
// Weights on a square-root scale: most of them are small.
function rooted(max) { const colour = colourScale({ max: Math.sqrt(max) }); return (w) => colour(Math.sqrt(w)); }
const stripUrl = (values) => paint(values, 1, values.length, rooted(largest(values))).toDataURL();

function spectrogram({ shape: [frames, mels], values }) {
  const low = values.reduce((a, b) => Math.min(a, b), Infinity),
    high = values.reduce((a, b) => Math.max(a, b), 1e-30), colour = colourScale({ max: high - low });
  const at = (i) => values[(i % frames) * mels + mels - 1 - Math.floor(i / frames)]; // low bands at the bottom
  return paint(range(frames * mels), mels, frames, (i) => colour(at(i) - low)).toDataURL();
}

// Output × heard frame of one head; while the recording plays it grows with it.
function AttentionMap({ response, player }) {
  const map = useMemo(() => unpack(response.map), [response]), [rows, columns] = map.shape, colours = theme.peek();
  const url = useMemo(() => paint(map.values, rows, columns, rooted(largest(map.values))).toDataURL(), [map, colours]);
  const box = useRef(null), side = Math.min(useWidth(box) - 62, 460), [cursor, setCursor] = useState(null);
  const row = rowAt(response, map, player.now), at = cursor ?? { row, column: best(map, row, columns) };
  const second = (i, n) => (i + 0.5) / n * response.seconds;
  const handlers =
    cellHandlers({ rows, columns, area: [52, 6, side, side], at, clamped: true, onMove: setCursor,
      onSelect: (row) => player.seek(second(row, rows)) });
  const site = response.sites.find((s) => s.name === response.site), weight = map.values[at.row * columns + at.column];
  const y = (i) => 6 + i / rows * side, later = player.playing ? y(row + 1) : null;
  return html`<section class="panel"><h2>Attention map</h2><div class="row">
      <${Select} label="Layer" value=${response.site} options=${response.sites.map((s) => s.name)}
        onChange=${(s) => setParams({ site: s })} />
      <${Select} label="Head" value=${response.head === null ? "" : String(response.head)}
        options=${[["", "mean of heads"], ...range(site.heads).map((h) => [String(h), `head ${h}`])]}
        onChange=${(h) => setParams({ head: h || null })} /></div>
    <div class="columns">
      <div ref=${box}><svg class="drawing" width=${side + 60} height=${side + 36} tabindex="0" role="application"
        aria-roledescription="heat map"
          aria-label="Attention: output by heard frame. Arrow keys move, Enter sets the position."
      ...${handlers}>
      <image x="52" y="6" width=${side} height=${side} preserveAspectRatio="none" class="pixels" href=${url} />
      ${later !== null
        && html`<rect x="52" y=${later} width=${side} height=${Math.max(0, side + 6 - later)} fill="var(--panel)" />`}
      ${axis(response.seconds)
        .map((t) => html`<g><text x="46" y=${10 + t / response.seconds * side} text-anchor="end" font-size="12">
          ${t} s</text>
        <text x=${52 + t / response.seconds * side} y=${side + 22} text-anchor="middle" font-size="12">${t} s</text>
          </g>`)}
      <text x=${52 + side} y=${side + 34} text-anchor="end" font-size="12">heard at →</text>
        <line class="playhead" x1="52" x2=${52 + side} y1=${y(row + 0.5)} y2=${y(row + 0.5)} />
      ${cursor && html`<rect class="outline cursor" fill="none" x=${52 + cursor.column / columns * side}
        y=${y(cursor.row)} width=${Math.max(3, side / columns)} height=${Math.max(3, side / rows)} />`}</svg></div>
          <${Thumbnails} response=${response} /></div>
    <p class="readout"
      data-value=${weight}>output at ${second(at.row, rows).toFixed(2)} s, heard at ${second(at.column, columns)
        .toFixed(2)} s: ${format(weight, 4)}</p>
    <p class="faint">One row per output (downwards), one column per heard frame; each row sums to 1, and nothing
      above the diagonal has been heard yet. Square-root scale${response.pool > 1
    ? `, means of ${response.pool} × ${response.pool} cells` : ""}. Click a row to move there; while it plays, the map
      grows.</p></section>`;
}
function best(map, row, columns) {
  const w = map.values.subarray(row * columns, (row + 1) * columns);
  return w.indexOf(largest(w));
}

// Every head as a small map; one click shows it large.
function Thumbnails({ response }) {
  const colours = theme.peek();
  const urls = useMemo(() => {
    const { shape: [, rows, columns], values } = unpack(response.thumbnails);
    return range(values.length / rows / columns).map((i) => {
      const cells = values.subarray(i * rows * columns, (i + 1) * rows * columns);
      return paint(cells, rows, columns, rooted(largest(cells))).toDataURL();
    });
  }, [response, colours]);
  let next = 0;
  return html`<div class="scroll" role="group" aria-label="All heads">
    ${response.sites.map((s) => html`<div class="image-layer"><span class="mono">${s.name}</span>
    ${range(s.heads).map((h) =>
      html`<button class="image-thumb" aria-pressed=${s.name === response.site && h === response.head}
        aria-label=${`${s.name}, head ${h}`}
      onClick=${() => setParams({ site: s.name, head: h })}>
        <img class="pixels" alt="" width="64" height="64" src=${urls[next++]} /><span>${h}</span></button>`)}</div>`)}
          </div>`;
}
