// Lesson: a guided walk on one's own text and any model, one screen per step, by keyboard too.
import { html, useEffect, useRef, useSignal } from "../lib/dom.js";
import { useResponse } from "../lib/api.js";
import { MathML } from "../lib/math.js";
import { linkTo, offline, setParams, state } from "../lib/state.js";
import { LanguageSelect, Message, models, ModelSelect, Select } from "../lib/widgets.js";
import { Place, Spans } from "./lesson-place.js";
import { Question } from "./lesson-question.js";

export const hint = "One step per screen, with the numbers of the model; ← and → move, each step has a link.";

const NUMBERS = ["head", "query", "key", "sample"];
const TEXTS = ["lesson", "model", "text", "to", "target", "site", "message"];
const HERE = [...NUMBERS, ...TEXTS.slice(5), "value"]; // they belong to one text and model
const first = state.peek().params; // an offline page holds what it was saved with
const none = Object.fromEntries(HERE.map((x) => [x, null]));

// The body of the requests: what the link says; the server knows the rest.
function bodyOf(params) {
  const given = (names, read) => names.filter((x) => params[x] !== undefined).map((x) => [x, read(params[x])]);
  return Object.fromEntries([...given(TEXTS, String), ...given(NUMBERS, Number)]);
}

export function View({ params }) {
  const body = bodyOf(params), { response, error, loading } = useResponse("lesson", body, { delay: 250, eager: true });
  if (!response) return html`<${Message} error=${error} loading=${loading} />`;
  const count = response.steps.length, step = Math.min(Math.max(Number(params.step) || 0, 0), count - 1);
  const isHandout = params.handout === "true";
  const steps = isHandout ? response.steps.map((_, i) => i) : [step];
  return html`<div class="lesson">
    <${Header} response=${response} params=${params} isHandout=${isHandout} />
    <${Message} error=${error} />
    ${response.remark && html`<p class="banner">${response.remark}</p>`}
    ${!isHandout && html`<${Steps} titles=${response.steps} step=${step} />`}
    ${steps.map((n) => html`<${Step} key=${isHandout ? n : "step"} n=${n} count=${count} isHandout=${isHandout}
      params=${params} body=${{ ...body, step: n,
        ...(params.value !== undefined && !isHandout ? { value: params.value } : {}) }} />`)}
    ${isHandout && html`<p class="faint">Answers are checked in the page:
      ${" "}<a href=${linkTo("lesson", { ...params, handout: undefined })}>open it step by step</a>.</p>`}</div>`;
}

function Header({ response, params, isHandout }) {
  const { reads, lessons } = response, now = response.state;
  const model = (useSignal(models) ?? []).find((m) => m.name === now.model);
  const open = (changes) => setParams({ ...none, ...changes });
  return html`<section class="row lesson-head">
    <${Select} label="Lesson" value=${response.lesson} options=${lessons}
      onChange=${(x) => open({ lesson: x, model: null, text: null, to: null, step: null })} />
    ${reads !== "nothing" && html`<${ModelSelect} value=${now.model} reads=${reads} only=${(m) => m.kind !== "sight"}
      onChange=${(x) => open({ model: x, text: null, to: null })} />`}
    ${reads === "text" && html`
      ${model && html`<${LanguageSelect} model=${model} value=${now.to} onChange=${(x) => open({ to: x })} />`}
      <label class="field grow"><span>Text</span><textarea rows="1" class="code" spellcheck="false"
        value=${params.text ?? now.text} onInput=${(e) => open({ text: e.target.value })}></textarea></label>`}
    ${reads === "sound" && html`<label class="field grow"><span>Keyed as Morse code</span><input type="text"
      maxlength="60" value=${params.message ?? now.message} onInput=${(e) => open({ message: e.target.value })} />
      </label>`}
    <button onClick=${() => setParams({ handout: isHandout ? null : "true" })}>
      ${isHandout ? "Step by step" : "Handout"}</button>
    ${isHandout && html`<button class="primary" onClick=${() => print()}>Print</button>`}</section>`;
}

// An offline page has each step with one thing changed, so a change ends with its step there.
function goTo(n) {
  const kept = offline ? Object.fromEntries(HERE.map((x) => [x, first[x] ?? null])) : { value: null };
  setParams({ ...kept, step: n || null });
}

const KEYS = { ArrowLeft: -1, PageUp: -1, ArrowRight: 1, PageDown: 1 };

function Steps({ titles, step }) {
  const last = titles.length - 1, move = (n) => n >= 0 && n <= last && n !== step && goTo(n);
  useEffect(() => {
    const press = (event) => {
      const isPlain = !(event.ctrlKey || event.metaKey || event.altKey || event.shiftKey);
      if (!isPlain || event.defaultPrevented || event.target.closest("input, textarea, select, [role=menu]")) return;
      if (event.key in KEYS) move(step + KEYS[event.key]);
      else if (event.key === "Home" || event.key === "End") move(event.key === "Home" ? 0 : last);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
  return html`<nav class="lesson-steps" aria-label="Steps">
    <button onClick=${() => move(step - 1)} disabled=${step === 0} aria-label="Previous step"
      data-key="ArrowLeft" data-does="previous">←</button>
    <ol>${titles.map((title, n) => html`<li><a href=${linkTo("lesson", { ...state.peek().params, step: n || null })}
      aria-current=${n === step ? "step" : null} title=${title}
      onClick=${(e) => { if (e.metaKey || e.ctrlKey) return; e.preventDefault(); move(n); }}>
        <span>${n + 1}</span> ${title}</a></li>`)}</ol>
    <button class="primary" onClick=${() => move(step + 1)} disabled=${step === last}
      aria-label="Next step" data-key="ArrowRight" data-does="next step">→</button></nav>`;
}

function Step({ n, count, body, isHandout }) {
  const view = isHandout ? `lesson.step ${n}` : "lesson.step", heading = useRef(null), shown = useRef(n);
  const { response, error, loading, of } = useResponse("lesson.step", body, { view });
  useEffect(() => { // the next Tab is in the step, and a screen reader says its title
    if (shown.current !== n && response && of.step === n) { shown.current = n; heading.current?.focus(); }
  }, [n, response]);
  if (!response || of.step !== n) return html`<${Message} error=${error} loading=${loading} />`;
  return html`<section class="lesson-step" aria-busy=${loading} aria-label=${response.title}>
    <div class="lesson-text"><h2 ref=${heading} tabindex="-1">
        <span class="faint">${n + 1} of ${count}</span> ${response.title}</h2>
      <${Message} error=${error} />
      <${Paragraphs} list=${response.text} />
      ${response.formulas.length > 0 && html`<div class="lesson-formula">
        ${response.formulas.map((xml) => html`<${MathML} xml=${xml} />`)}</div>`}
      ${response.change && html`<${Change} change=${response.change} />`}
      ${response.question && html`<${Question} key=${`${n} ${response.question.answer}`} n=${n}
        question=${response.question} isHandout=${isHandout} />`}</div>
    <div class="lesson-shown">
      ${response.shown.map((place) => html`<${Place} place=${place} />`)}</div></section>`;
}

// Neighbours of the same kind are one list.
function Paragraphs({ list }) {
  const groups = [];
  for (const p of list) {
    if (p.kind === "li" && groups.at(-1)?.[0].kind === "li") groups.at(-1).push(p);
    else groups.push([p]);
  }
  return groups.map((group) => (group[0].kind === "p" ? html`<p><${Spans} list=${group[0].spans} /></p>`
    : html`<ul>${group.map((p) => html`<li><${Spans} list=${p.spans} /></li>`)}</ul>`));
}

// What a step lets one change: few values as buttons, many as a list.
function Change({ change }) {
  const { name, label, options, chosen } = change;
  const set = (x) => setParams(name === "site" ? { ...none, site: x } : { [name]: String(x) });
  if (options.length > 12) return html`<div class="lesson-change"><${Select} label=${`Change: ${label}`}
    value=${String(chosen)} options=${options.map(([v, text]) => [String(v), text])} onChange=${set} /></div>`;
  return html`<div class="lesson-change" role="group" aria-label=${`Change: ${label}`}>
    <span>Change: ${label}</span>
    <div class="chips">${options.map(([v, text]) => html`<button aria-pressed=${v === chosen} onClick=${() => set(v)}>
      ${text}</button>`)}</div></div>`;
}
