// Statements about sequence models: what is claimed, what an experiment finds, and the numbers behind it.
import { format, groupBy, html, shorten, useEffect, useRef, useSignal, useState, useWidth } from "../lib/dom.js";
import { request, useResponse } from "../lib/api.js";
import { LINES, theme } from "../lib/colours.js";
import { HeatMap, LineChart } from "../lib/draw.js";
import { offline, setParams } from "../lib/state.js";
import { Message, Select, Table } from "../lib/widgets.js";

export const hint =
  "What courses teach about attention, depth, recurrence and cost, each decided by an experiment that runs here.";
export const csv = (params) => (params.claim ? ["claims.one", { claim: params.claim }] : ["claims", filters(params)]);

const filters = ({ family, verdict, search }) =>
  Object.fromEntries(Object.entries({ family, verdict, search }).filter(([, x]) => x));

export function View({ params }) {
  const { response, error, loading } = useResponse("claims", filters(params), { delay: 80 });
  if (!response) return html`<${Message} error=${error} loading=${loading} />`;
  const open = params.claim ?? response.claims[0]?.id;
  return html`<${Filters} response=${response} params=${params} />
    ${error && html`<${Message} error=${error} />`}
    ${response.answer && html`<${Answer} answer=${response.answer} />`}
    <div class="claims">
      <${List} response=${response} open=${open} />
      ${open && html`<${Detail} id=${open} key=${open} />`}
    </div>`;
}

// A written answer; its equations are indented by four spaces.
function Answer({ answer }) {
  return html`<section class="panel" aria-label="Answer"><h2>${answer.title}</h2>
    ${answer.text.split("\n\n").map((x) => (x.startsWith("    ") ? html`<pre>${x}</pre>` : html`<p>${x}</p>`))}
    <p class="faint">See it: <code>${answer.command}</code></p>
    <p>${answer.claims.map((id) => html`<button onClick=${() => setParams({ claim: id, search: null })}>${id}
      </button> `)}</p></section>`;
}

function Filters({ response, params }) {
  const chip = (name, label, count) =>
    html`<button aria-pressed=${(params.verdict ?? "") === name}
      onClick=${() => setParams({ verdict: name, claim: null })}>${label} <span class="faint-on">${count}</span>
        </button>`;
  const families = response.families.map((x) => [x.letter, `${x.letter} · ${x.title} (${x.count})`]);
  return html`<div class="panel"><div class="row">
      <label class="field grow"><span>Search or ask</span>
        <input type="search" value=${params.search ?? ""} placeholder="softmax, or: why divide by sqrt(d)"
        maxlength="200"
        onInput=${(e) => setParams({ search: e.target.value, claim: null })} /></label>
      <${Select} label="Family" value=${params.family ?? ""}
        options=${[["", `All families (${response.total})`], ...families]}
          onChange=${(family) => setParams({ family, claim: null })} />
    </div>
    <div class="chips" role="group" aria-label="Verdict">${chip("", "All", response.total)}
      ${response.verdicts.filter((x) => x.count).map((x) => chip(x.name, x.label, x.count))}</div></div>`;
}

function List({ response, open }) {
  const list = useRef(null);
  // a link may open a claim far down the list; only the list scrolls, not the page
  useEffect(() => {
    const on = list.current?.querySelector("[aria-current]");
    if (on) list.current.scrollTop = on.offsetTop - list.current.offsetTop - 60;
  }, [open === undefined]);
  if (!response.claims.length) {
    return html`<div class="panel"><p>No claim matches.</p>
      <button onClick=${() => setParams({ search: null, family: null, verdict: null, claim: null })}>Show all
        claims</button></div>`;
  }
  const groups = groupBy(response.claims, (x) => x.family);
  return html`<nav class="panel claims-list" aria-label=${`${response.claims.length} claims`} ref=${list}>
    <h2 class="faint">
      ${response.claims.length === response.total ? `${response.total} claims`
        : `${response.claims.length} of ${response.total} claims`}</h2>
    ${[...groups].map(([family, claims]) => html`<h3>${family}</h3><ul>${claims.map((x) => html`<li>
      <button aria-current=${x.id === open ? "true" : null} onClick=${() => setParams({ claim: x.id })}>
        <span class=${`claim-verdict ${x.verdict}`} title=${x.verdict}>${MARKS[x.verdict]}
          <span class="hidden"> ${x.verdict}: </span></span>
        <span class="faint">${x.id}</span> <span>${x.statement}</span></button></li>`)}</ul>`)}</nav>`;
}

const MARKS = { true: "✓", conditional: "◐", false: "✗", open: "?", literature: "¶" };

function Detail({ id }) {
  const { response, error, loading } = useResponse("claims.one", { claim: id });
  const [again, setAgain] = useState({ response: null, error: null, running: false });
  const run = async () => {
    setAgain({ response: null, error: null, running: true });
    try {
      setAgain({ response: await request("claims.run", { claim: id }, { view: "claims.run" }), error: null,
        running: false });
    } catch (e) {
      setAgain({ response: null, error: e.name === "AbortError" ? "Stopped." : e.message, running: false });
    }
  };
  const shown = again.response ?? response;
  if (!shown) return html`<section class="panel"><${Message} error=${error} loading=${loading} /></section>`;
  const label = (verdict) => shown.labels[verdict];
  const sentences = [["Condition", shown.condition], ["Correct", shown.correction], ["Remark", shown.remark],
    ["Found", shown.evidence?.note],
    ["Failed", shown.error], ["Would have refuted it", shown.can_run ? shown.refutation : ""]].filter(([, text]) =>
      text);
  return html`<article class="panel" aria-label=${`Claim ${shown.id}`}>
    <p class="faint">${shown.id} · ${shown.family} · source: ${shown.source}</p>
    <h2 class="statement">${shown.statement}</h2>
    <div class="row verdicts">
      <p><span class="faint">Declared</span>
        <strong class=${`claim-verdict ${shown.verdict}`} data-declared=${shown.verdict}>${label(shown.verdict)}
          </strong></p>
      ${shown.can_run && html`<p><span class="faint">Found here</span>${shown.evidence || shown.error
        ? html`<strong class=${`claim-verdict ${shown.found}`} data-found=${shown.found ?? "failed"}>
          ${label(shown.found ?? "None")}${shown.agrees ? "" : ", not as declared"}</strong>`
            : html`<span>not run yet</span>`}</p>`}
      ${shown.can_run && !offline
        && html`<button class=${shown.evidence ? "" : "primary"} disabled=${again.running} onClick=${run}>
          ${again.running ? "Running …" : shown.evidence ? "Run it again" : "Run it now"}</button>`}
    </div>
    <p class="faint" role="status">${runNote(shown, again)}</p>
    ${again.error && html`<p class="error" role="alert">${again.error}</p>`}
    <dl class="sentences">${sentences.map(([name, text]) => html`<div><dt>${name}</dt><dd>${text}</dd></div>`)}</dl>
    ${shown.evidence && html`<${Evidence} shown=${shown} />`}
    ${shown.code && html`<details><summary>Code of the experiment</summary><pre><code>${shown.code}</code></pre>
      </details>`}
  </article>`;
}

function runNote(shown, again) {
  if (!shown.can_run) return "Known from publications; there is no experiment of this size.";
  if (again.running) return shown.trained ? "It trains small models, which takes up to half a minute."
    : "Running the experiment.";
  if (again.response) return `Run just now in ${format(shown.seconds, 2)} s.`;
  if (shown.evidence) return shown.cached ? `Stored result; it took ${format(shown.seconds, 2)} s.`
    : `Run in ${format(shown.seconds, 2)} s.`;
  return "This experiment trains small models, which takes up to half a minute.";
}

function Evidence({ shown }) {
  const { measures, chart } = shown.evidence;
  const interval = (m) => (m.low === null ? "" : `${format(m.low)} … ${format(m.high)}`);
  return html`<div class="evidence">
    ${measures.length > 0 && html`<${Table} label="Numbers of the experiment" rows=${measures} columns=${[
      ["Number", "name"], ["Value", (m) => html`<span data-value=${m.value}>${format(m.value, 4)}</span>`, "number"],
      ...(measures.some((m) => m.low !== null) ? [["95% interval", interval, "number"]] : [])]} />`}
    <figure><${Picture} chart=${chart} label=${shown.picture} />
      <figcaption class="hidden">${shown.picture}</figcaption></figure></div>`;
}

// A chart of the library: {kind: "Lines" | "Points" | "Bars" | "Maps", ...}
function Picture({ chart, label }) {
  const log = chart.log ?? "",
    axes = { xTitle: chart.x_label, yTitle: chart.y_label, logX: log.includes("x"), logY: log.includes("y"), label,
      height: 280 };
  if (chart.kind === "Lines") return html`<${LineChart} ...${axes}
    series=${Object.entries(chart.curves).map(([name, y]) => ({ name, x: chart.x, y }))} />`;
  if (chart.kind === "Points") {
    const dots = Object.entries(chart.groups).map(([name, [x, y]]) => ({ name, x, y, points: true }));
    return html`<${LineChart} ...${axes}
      series=${[...dots, ...Object.entries(chart.curves).map(([name, [x, y]]) => ({ name, x, y }))]} />`;
  }
  return chart.kind === "Bars" ? html`<${Bars} chart=${chart} label=${label} />` : html`<${Maps} chart=${chart} />`;
}

function Maps({ chart }) {
  const all = Object.values(chart.maps).flat(2), max = Math.max(...all.map(Math.abs));
  const kind = Math.min(...all) < 0 ? "diverging" : "sequential"; // one scale for all, so that they compare
  return html`<div class="maps">
    ${Object.entries(chart.maps)
      .map(([name, rows]) =>
        html`<div><h3>${name}</h3><${HeatMap} label=${name} values=${Float32Array.from(rows.flat(), (x) => x ?? NaN)}
    rows=${rows.length} columns=${rows[0].length} kind=${kind} max=${max} rowTitle=${chart.y_label}
      columnTitle=${chart.x_label} maxCell=${30} /></div>`)}</div>`;
}

// Horizontal bars, since names are long; groups of one name share a block.
function Bars({ chart, label }) {
  useSignal(theme);
  const box = useRef(null), width = useWidth(box);
  const entries = Object.entries(chart.values), grouped = typeof entries[0][1] === "object";
  const groups = grouped ? Object.keys(entries[0][1]) : [""];
  const bars = entries.flatMap(([name, value], i) =>
    groups.map((group, n) =>
      ({ name: n ? "" : name, value: grouped ? value[group] : value, n, interval: grouped ? null
        : chart.intervals[name], y: i * (groups.length * 20 + 8) + n * 20 })));
  const isLog = (chart.log ?? "").includes("y"), scale = isLog ? Math.log10 : (x) => x;
  const values = bars.flatMap((b) => [b.value, ...(b.interval ?? [])]).filter((x) => x !== null && (!isLog || x > 0))
    .map(scale);
  const low = isLog ? Math.floor(Math.min(...values) - 0.3) : Math.min(0, ...values),
    high = Math.max(isLog ? low + 1 : 0, ...values) || 1;
  const left = Math.min(width * 0.42, 14 + 6.6 * Math.max(...entries.map(([name]) => name.length))),
    full = width - left - 64;
  const px = (x) => left + ((clampLog(scale(x), low) - low) / (high - low)) * full, zero = isLog ? left : px(0);
  return html`<div ref=${box} class="chart">
    <svg class="drawing" width=${width} height=${bars.at(-1).y + 44} role="img" aria-label=${label}>
    ${bars.map((b) =>
      html`<g><text x=${left - 6} y=${b.y + 14} text-anchor="end" font-size="12">
        ${shorten(b.name, Math.floor((left - 8) / 6))}<title>${b.name}</title></text>
      ${b.value !== null
        && html`<rect x=${Math.min(zero, px(b.value))} y=${b.y + 2}
          width=${Math.max(1, Math.abs(px(b.value) - zero))} height="16" rx="2" fill=${LINES[b.n % LINES.length]} />`}
      ${b.interval && html`<line x1=${px(b.interval[0])} x2=${px(b.interval[1])} y1=${b.y + 10} y2=${b.y + 10}
        stroke="var(--ink)" stroke-width="1.5" />`}
      <text class="on" x=${Math.max(zero, px(b.value ?? 0), ...(b.interval ?? []).map(px)) + 6} y=${b.y + 14}
        font-size="12" data-value=${b.value}>${format(b.value)}</text></g>`)}
    <text x=${left + full / 2} y=${bars.at(-1).y + 40} text-anchor="middle" font-size="12">${chart.y_label}
      ${isLog ? " (log scale)" : ""}</text></svg>
    ${grouped && html`<p class="legend">
      ${groups.map((g, n) =>
        html`<span><svg width="12" height="12" aria-hidden="true">
          <rect width="12" height="12" rx="2" fill=${LINES[n % LINES.length]} /></svg> ${g}</span>`)}</p>`}</div>`;
}

const clampLog = (x, low) => (Number.isFinite(x) ? x : low);
