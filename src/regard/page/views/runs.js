// Training runs of the served folder: curves side by side, followed while a run is being written.
import { format, html, useEffect, useRef, useState } from "../lib/dom.js";
import { request } from "../lib/api.js";
import { LineChart } from "../lib/draw.js";
import { linkTo, offline, openView, setParams } from "../lib/state.js";
import { Message, Slider, Switch, Table } from "../lib/widgets.js";

export const hint = "Training runs and their curves. A run that is being trained is followed live.";
export const csv = (params) => ["runs", bodyOf(params)];

const POLL = 2000; // milliseconds between two looks at the files, while the tab is visible
const VIEW_NAMES = { text: "Text", "what-if": "What-if", atlas: "Atlas", image: "Image", sound: "Sound", time: "Time" };

function bodyOf({ runs, metrics, smooth }) {
  return { ...(runs !== undefined ? { runs } : {}), ...(metrics !== undefined ? { metrics } : {}),
    ...(smooth ? { smooth: Number(smooth) } : {}) };
}

// The response for the parameters, requested again when the files have changed.
function useLiveRuns(params) {
  const [result, setResult] = useState({ response: null, error: null });
  const body = bodyOf(params), key = JSON.stringify(body), stamp = useRef(null);
  useEffect(() => {
    let live = true, timer = 0;
    const load = () => request("runs", body, { view: "runs", quiet: stamp.current !== null })
      .then((response) => { if (live) { stamp.current = response.stamp; setResult({ response, error: null }); } })
      .catch((e) => live && e.name !== "AbortError" && setResult((old) => ({ ...old, error: e.message })));
    const look = async () => {
      if (!document.hidden) {
        // a server that is gone may come back
        const now = await request("runs.stamp", {}, { view: "runs.stamp", quiet: true }).catch(() => null);
        if (live && now && now.stamp !== stamp.current) await load();
      }
      if (live) timer = setTimeout(look, POLL);
    };
    load().then(() => { if (live && !offline) timer = setTimeout(look, POLL); });
    return () => { live = false; clearTimeout(timer); };
  }, [key]);
  return result;
}

export function View({ params }) {
  const { response, error } = useLiveRuns(params);
  if (!response) return html`<${Message} error=${error} loading=${!error} />`;
  if (!response.runs.length) return html`<${Empty} folders=${response.folders} />`;
  return html`${error && html`<${Message} error=${error} />`}
    <${List} response=${response} shown=${params.runs?.split(",").filter(Boolean) ?? response.shown} />
    <${Charts} response=${response} params=${params} />
    <${Settings} response=${response} />`;
}

function Empty({ folders }) {
  return html`<div class="panel"><h2>No runs yet</h2>
    <p>Train a small translator of dates, prices and units; it takes a few minutes on a laptop. Type this in the
      folder where the server was started:</p>
    <pre><code>regard train phrases</code></pre>
    <p>Its curves appear here while it trains${folders.length
      ? html`, from the folder <code>${folders.join(", ")}</code>`
        : ""}. Runs in another folder: <code>regard serve --runs FOLDER</code>.</p></div>`;
}

// shown: what the link names, since the response to a click comes a moment later
function List({ response, shown }) {
  const toggle = (name, on) =>
    setParams({ runs: (on ? [...shown, name] : shown.filter((x) => x !== name)).join(",") || "," });
  const metrics = [...new Set(response.runs.flatMap((row) => Object.keys(row.scores)))].slice(0, 4);
  const columns = [
    ["Run", (row) =>
      html`<label class="field switch">
        <input type="checkbox" checked=${shown.includes(row.name)}
          onChange=${(e) => toggle(row.name, e.target.checked)} /><span>${row.name}</span></label>`],
    ["State", (row) =>
      html`<span class=${row.state === "training" ? "runs-live" : ""} data-state=${row.state}>
        ${row.state === "training" ? "● training" : row.state}</span>`],
    ["Step", (row) =>
      html`<span data-value=${row.step}>
        ${row.step === null ? "–" : `${row.step.toLocaleString("en")} / ${row.steps.toLocaleString("en")}`}</span>
      ${row.steps && html`<progress class="runs-progress" max=${row.steps} value=${row.step}
        aria-label=${`${row.name}: step`}></progress>`}`, "number"],
    ...metrics.map((name) =>
      [name, (row) => html`<span data-value=${row.scores[name]}>${format(row.scores[name], 4)}</span>`, "number"]),
    ["On", (row) => row.split ?? ""],
    ["Time", (row) => duration(row.seconds), "number"],
    ["Open in", (row) =>
      (row.views.length
        ? html`<span class="runs-open">${row.views.map((view) => html`<a href=${linkTo(view, { model: row.name })}
      onClick=${(e) => {
        if (!e.metaKey && !e.ctrlKey) { e.preventDefault(); openView(view, { model: row.name }); }
      }}>${VIEW_NAMES[view]}</a>`)}</span>` : html`<span class="faint">no weights yet</span>`)],
  ];
  return html`<div class="panel runs-list">
    <h2>${response.runs.length === 1 ? "1 run" : `${response.runs.length} runs`}</h2>
      <${Table} label="Runs" rows=${response.runs} columns=${columns} />
      ${response.runs.filter((row) => row.baseline && shown.includes(row.name)).map((row) =>
        html`<p data-baseline=${row.name}><strong>${row.name}</strong>: ${row.baseline}</p>`)}</div>`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${format(seconds, 2)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${format(seconds / 3600, 2)} h`;
}

function Charts({ response, params }) {
  const picked = response.charts.map((x) => x.metric), smooth = Number(params.smooth ?? 0);
  const toggle = (name) =>
    setParams({ metrics: (picked.includes(name) ? picked.filter((x) => x !== name) : [...picked, name]).join(",")
      || "," });
  if (!response.shown.length) return html`<p class="panel">Choose a run in the list to see its curves.</p>`;
  if (!response.metrics.length) return html`<p
    class="panel">The chosen runs have written no numbers yet; the first ones appear here by themselves.</p>`;
  return html`<div class="panel"><div class="row">
      <div class="grow">
        <${Slider} label="Smoothing" value=${smooth} min=${0} max=${0.98} step=${0.02}
          onInput=${(x) => setParams({ smooth: x || null })} /></div>
      <${Switch} label="Logarithmic axis" value=${params.log === "1"}
        onChange=${(on) => setParams({ log: on ? "1" : null })} /></div>
    <div class="chips" role="group" aria-label="Curves to show">
      ${response.metrics.map((name) =>
        html`<button aria-pressed=${picked.includes(name)} onClick=${() => toggle(name)}>${name}</button>`)}</div></div>
    <div class="columns">
      ${response.charts.map((chart) =>
        html`<div class="panel" key=${chart.metric} data-metric=${chart.metric}
          data-points=${chart.curves.reduce((n, c) => n + c.x.length, 0)}><h2>${chart.metric}</h2>
      <${LineChart} label=${`${chart.metric} by step`} xTitle="step" yTitle=${chart.metric} logY=${params.log === "1"}
        series=${chart.curves.map((c) => ({ name: c.run, x: c.x, y: c.y }))} /></div>`)}</div>`;
}

// What distinguishes the chosen runs; a setting that they share is left out.
function Settings({ response }) {
  const rows = response.shown.map((name) => response.runs.find((row) => row.name === name)).filter(Boolean);
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.differs)))].filter((name) =>
    new Set(rows.map((row) => row.differs[name])).size > 1);
  if (rows.length < 2) return null;
  return html`<div class="panel"><h2>Settings that differ</h2>${names.length
    ? html`<${Table} label="Settings that differ" rows=${names}
      columns=${[["Setting", (name) => name], ...rows.map((row) => [row.name, (name) => row.differs[name] ?? "–"])]} />`
    : html`<p class="faint">The chosen runs have the same settings.</p>`}</div>`;
}
