// Exercises: change the given numbers, see the exact solution step by step, or solve it and have it checked.
import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { request, useResponse } from "../lib/api.js";
import { MathML } from "../lib/math.js";
import { download } from "../lib/save.js";
import { offline, setParam, setParams } from "../lib/state.js";
import { Choice, Message, Select } from "../lib/widgets.js";

export const hint =
  "An exercise with your numbers, solved exactly and step by step. "
  + "Or solve it yourself: a wrong step is found, with its likely cause.";
export const csv = (params) =>
  ["work", bodyOf(params)];

const FORMATS = { toml: ["Problem (TOML)", "toml"], latex: ["Solution (LaTeX)", "tex"],
  markdown: ["Solution (Markdown)", "md"], text: ["Solution (text)", "txt"] };

function bodyOf({ problem, family, level, seed, given, options }) {
  const texts = family ? { family, level: Number(level ?? 1), seed: Number(seed ?? 0) } : problem ? { problem } : {};
  return { ...texts, ...(given ? { given } : {}), ...(options ? { options } : {}) };
}

export function View({ params }) {
  const body = bodyOf(params);
  const { response, error, loading } = useResponse("work", body, { delay: 250 });
  const answers = parse(params.answers), hasAnswers = Object.values(answers).flat(2).some((x) => x.trim() !== "");
  const marks = useResponse("work.check", { ...body, answers: JSON.stringify(answers) },
    { skip: params.mode !== "solve" || !hasAnswers, delay: 500 });
  if (!response) return html`<${Message} error=${error} loading=${loading} />`;
  const field = error ? fieldOf(error) : {};
  const isSolve = params.mode === "solve";
  return html`<${Chooser} response=${response} params=${params} />
    <div class="work">
      <${Given} response=${response} params=${params} error=${error} field=${field} />
      <section class="panel" aria-label="Solution" aria-busy=${loading ? "true" : null}>
        <div class="row work-mode">
          <${Choice} label="What to do" value=${params.mode ?? "see"} onChange=${setParam("mode", "see")}
          options=${[["see", "See the solution"], ["solve", "Solve it yourself"]]} />
          ${!isSolve && !offline && html`<${Texts} body=${body} name=${response.name} />`}</div>
        ${error && html`<p class="faint">Below is the solution of the last numbers that could be read.</p>`}
        ${isSolve && html`<p
          class="faint">Fill in what you have: 0.25, 1/4, sqrt(2) or √2. An empty field is not checked; decimals are
            compared to the digits that you write.</p>`}
        ${isSolve && hasAnswers && html`<${Summary} marks=${marks} />`}
        <ol class="steps">${response.steps.map((step) => (isSolve
          ? html`<${Question} key=${step.name} step=${step} cells=${answers[step.name]} answers=${answers}
            isAsked=${response.questions.includes(step.name)}
              finding=${hasAnswers ? marks.response?.findings.find((x) => x.name === step.name) : null}
                error=${marks.error} />`
          : html`<${Step} key=${step.name} step=${step} />`))}</ol>
        ${!isSolve && response.remarks.length > 0
          && html`<h3>Remarks</h3><ul>${response.remarks.map((x) => html`<li>${x}</li>`)}</ul>`}
      </section>
    </div>`;
}

function parse(text) {
  try { return JSON.parse(text ?? "{}") ?? {}; } catch { return {}; }
}

// The field that an error names first: "X (1,2): …", "X: …" or "mask: …".
function fieldOf(error) {
  const [, name, row, column] = error.match(/^(\S+?)(?: \((\d+),(\d+)\))?:/) ?? [];
  return { name, row: Number(row) - 1, column: Number(column) - 1 };
}

const CLEAR = { given: null, options: null, answers: null };

function Chooser({ response, params }) {
  const titles = Object.entries(response.problems).map(([name, title]) => [name, `${name}: ${title}`]);
  const level = Number(params.level ?? 1), seed = Number(params.seed ?? 0);
  return html`<div class="panel"><div class="row">
      <${Choice} label="Kind of exercise" value=${params.family ? "new" : "known"}
        options=${[["known", "Built-in problems"], ["new", "New exercises"]]}
        onChange=${(kind) =>
          setParams({ ...CLEAR, problem: null, level: null, seed: null, family: kind === "new"
            ? (response.families.includes(response.family) ? response.family : "attention") : null })} />
      ${params.family
        ? html`<${Select} label="Family" value=${params.family} options=${response.families}
          onChange=${(family) => setParams({ ...CLEAR, family })} />
          <${Select} label="Level" value=${String(level)}
            options=${[["1", "1 · easy"], ["2", "2"], ["3", "3 · hard"]]}
              onChange=${(x) => setParams({ ...CLEAR, level: x })} />
          <button onClick=${() => setParams({ ...CLEAR, seed: seed + 1 })}>Another one</button>`
        : html`<div class="grow work-choose">
          <${Select} label="Problem" value=${response.name} options=${titles}
            onChange=${(problem) => setParams({ ...CLEAR, problem })} /></div>`}
    </div></div>`;
}

// The given numbers in editable tables. What is typed is in the URL at once; a mistake stands at its field.
function Given({ response, params, error, field }) {
  const given = params.given ? parse(params.given) : response.given, options = params.options ? parse(params.options)
    : response.options;
  const put = (name, rows) => setParams({ given: JSON.stringify({ ...given, [name]: rows }) });
  const set = (name, value) => setParams({ options: JSON.stringify({ ...options, [name]: value }) });
  const known = field.name in given || field.name in options;
  return html`<section class="panel" aria-label="Given"><h2>Given</h2>
    ${error && !known && html`<p class="error" role="alert">${error}</p>`}
    <div class="work-given">
      ${Object.entries(given)
        .map(([name, rows]) => html`<${Matrix} key=${name} name=${name} rows=${rows} onChange=${(x) => put(name, x)}
      error=${field.name === name ? error : null} at=${field} />`)}</div>
    ${response.added.map((x) => html`<p><${MathML} xml=${x.mathml} /></p>`)}
    ${Object.keys(options).length > 0
      && html`<h3>Options</h3>
        <div class="work-options">
          ${Object.entries(options).map(([name, value]) => html`<label class="field"><span>${name}</span>
      <input type="text" value=${value} placeholder="default" size="9" maxlength="200"
        aria-invalid=${field.name === name ? "true" : null} onInput=${(e) => set(name, e.target.value)} />
      ${field.name === name && html`<span class="error" role="alert">${error}</span>`}</label>`)}</div>`}
    ${(params.given || params.options)
      && html`<p><button onClick=${() => setParams({ given: null, options: null })}>Original numbers</button></p>`}
    <p class="faint">Numbers such as 2, 0.25, 1/3, sqrt(2) or √2.</p></section>`;
}

function Matrix({ name, rows, onChange, error, at }) {
  const put = (i, j, text) => onChange(rows.map((row, r) => (r === i ? row.map((x, c) => (c === j ? text : x)) : row)));
  const columns = rows[0]?.length ?? 0, isNumber = rows.length === 1 && columns === 1;
  const size = (label, text, next, off) =>
    html`<button aria-label=${`${name}: ${label}`} title=${label} disabled=${off} onClick=${() => onChange(next())}>
      ${text}</button>`;
  return html`<div class="work-matrix"><div class="row"><strong class="mono">${name}</strong>
    ${!isNumber && html`<span class="faint">${rows.length} × ${columns}</span><span class="work-sizes">
      ${size("add a row", "+ row", () => [...rows, Array(columns).fill("0")], rows.length >= 16)}
        ${size("remove the last row", "− row", () => rows.slice(0, -1), rows.length < 2)}
      ${size("add a column", "+ col", () => rows.map((r) => [...r, "0"]), columns >= 16)}
        ${size("remove the last column", "− col", () => rows.map((r) => r.slice(0, -1)), columns < 2)}</span>`}</div>
    <${Cells} name=${name} rows=${rows} onInput=${put} isBad=${(i, j) => error && at.row === i && at.column === j} />
    ${error && html`<p class="error" role="alert">${error}</p>`}</div>`;
}

// A table of text fields; arrow keys up and down move between rows.
function Cells({ name, rows, onInput, isBad = () => false }) {
  const table = useRef(null);
  const press = (i, j) => (e) => {
    const next = { ArrowUp: i - 1, ArrowDown: i + 1, Enter: i + 1 }[e.key];
    const input = next === undefined ? null : table.current.querySelector(`[data-at="${next},${j}"]`);
    if (input) { e.preventDefault(); input.focus(); input.select(); }
  };
  return html`<div class="work-cells" ref=${table}>
    ${rows.map((row, i) => html`<div>${row.map((x, j) => html`<input type="text" value=${x} data-at=${`${i},${j}`}
    size=${Math.min(Math.max(3, ...rows.map((r) => (r[j] ?? "").length)), 14)} maxlength="200"
      aria-label=${`${name}, row ${i + 1}, column ${j + 1}`} aria-invalid=${isBad(i, j) ? "true" : null}
    autocomplete="off" spellcheck=${false} onInput=${(e) => onInput(i, j, e.target.value)}
      onKeyDown=${press(i, j)} />`)}</div>`)}</div>`;
}

function Step({ step }) {
  return html`<li class="step" data-step=${step.name}><h3>${step.heading}</h3><${MathML} xml=${step.formula_mathml} />
    ${step.entry && html`<p class="mono faint">
      ${step.rows * step.columns > 1 ? `${step.name} (1,1) = ` : `${step.name} = `}${step.entry}</p>`}
    <div class="step-results">${step.results.map((xml) => html`<${MathML} xml=${xml} />`)}</div></li>`;
}

const VERDICTS = { right: ["✓ right", "right"], "carried forward": ["✓ follows from your earlier value", "right"],
  "right, but rounded early": ["✓ right, but rounded early", "right"], wrong: ["✗ wrong", "wrong"],
  open: ["not answered", ""] };

function Question({ step, cells, answers, isAsked, finding, error }) {
  const [shown, setShown] = useState(false);
  const blank = Array.from({ length: step.rows }, () => Array(step.columns).fill(""));
  const rows = cells?.length === step.rows && cells.every((r) => r.length === step.columns) ? cells : blank;
  const put = (i, j, text) =>
    setParams({ answers: JSON.stringify(
      { ...answers, [step.name]: rows.map((row, r) => (r === i ? row.map((x, c) => (c === j ? text : x)) : row)) }) });
  const field = error ? fieldOf(error) : {}, problem = field.name === step.name ? error : null;
  const [text, kind] = VERDICTS[finding?.verdict] ?? [];
  return html`<li class=${isAsked ? "step" : "step work-extra"} data-step=${step.name}
    data-verdict=${problem ? null : finding?.verdict}><h3>${step.heading}</h3>
    <div class="row"><${MathML} xml=${step.formula_mathml} />
      <button class="link" aria-expanded=${shown} onClick=${() => setShown(!shown)}>
        ${shown ? "Hide the result" : "Show the result"}</button></div>
    <${Cells} name=${step.name} rows=${rows} onInput=${put}
      isBad=${(i, j) => problem && field.row === i && field.column === j} />
    ${problem && html`<p class="error" role="alert">${problem}</p>`}
    ${!problem && text && html`<p class=${`work-verdict ${kind}`} role="status">${text}
      ${finding.wrong_inputs.length && finding.verdict === "wrong"
        ? `, even given ${finding.wrong_inputs.join(" and ")} as written` : ""}
          ${finding.diagnosis ? `: ${finding.diagnosis}` : ""}${finding.note ? `, ${finding.note}` : ""}
            ${finding.blanks.length && finding.verdict !== "open" ? `; ${finding.blanks.join(", ")} left open` : ""}
              </p>`}
    ${!problem && finding?.unread.map((x) => html`<p class="error" role="alert">Not read: ${x}</p>`)}
    ${!problem && finding?.differences.length > 0
      && html`<details><summary>Which entries</summary><ul>${finding.differences.map((x) => html`<li>${x}</li>`)}</ul>
        </details>`}
    ${shown && html`<div class="step-results">${step.entry && html`<p class="mono faint">${step.entry}</p>`}
      ${step.results.map((xml) => html`<${MathML} xml=${xml} />`)}</div>`}</li>`;
}

function Summary({ marks }) {
  if (marks.error) return html`<p class="faint" role="status">One field cannot be read yet: ${marks.error}</p>`;
  return marks.response
    && html`<p class=${`banner work-verdict ${marks.response.is_wrong ? "wrong" : "right"}`} role="status"
      data-summary=${marks.response.is_wrong ? "wrong" : "right"}>${marks.response.summary.join(" ")}</p>`;
}

// The exercise as text to copy or to download.
function Texts({ body, name }) {
  const [form, setForm] = useState(""), [text, setText] = useState(""), [note, setNote] = useState("");
  const key = JSON.stringify(body);
  useEffect(() => {
    if (!form) return;
    let live = true;
    request("work.text", { ...body, format: form }, { view: "work.text" })
      .then((x) => live && setText(x.text), (e) => live && e.name !== "AbortError" && setText(e.message));
    return () => { live = false; };
  }, [form, key]);
  const copy = () => navigator.clipboard.writeText(text)
    .then(() => setNote("Copied."), () => setNote("Select the text to copy it."));
  return html`<${Select} label="As text" value=${form}
    options=${[["", "–"], ...Object.entries(FORMATS).map(([k, [label]]) => [k, label])]}
      onChange=${(x) => { setForm(x); setText(""); setNote(""); }} />
    ${form && text && html`<div class="work-text">
      <textarea class="code" readonly rows="9" aria-label=${FORMATS[form][0]} value=${text} />
      <div class="row"><button onClick=${copy}>Copy</button>
        <button onClick=${() => download(`${name}.${FORMATS[form][1]}`, text, "text/plain")}>Download</button>
          <span role="status" class="faint">${note}</span></div></div>`}`;
}
