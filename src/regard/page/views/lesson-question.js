// A question of a lesson: its answer is checked here, so that a saved page checks it too.
import { html, showToken, useState } from "../lib/dom.js";
import { plain, Spans } from "./lesson-place.js";

// Whether an answer is right: a number to within a share of it, a whole number exactly, else the same word.
export function isRight(given, answer, within) {
  if (typeof answer !== "number") return given.trim().toLowerCase() === String(answer).trim().toLowerCase();
  const x = Number(given.trim().replace(",", ".").replace("−", "-"));
  if (!given.trim() || Number.isNaN(x)) return false;
  return Number.isInteger(answer) ? x === answer : Math.abs(x - answer) <= within * Math.abs(answer);
}

export function Question({ question, n, isHandout }) {
  const { answer, choices, error, because, within } = question;
  const [given, setGiven] = useState(""), [checked, setChecked] = useState(null), [shown, setShown] = useState(false);
  const check = (x) => { setGiven(x); setChecked(isRight(x, answer, within)); };
  const text = html`<p id=${`question-${n}`}><strong>Question.</strong> <${Spans} list=${question.text.spans} /></p>`;
  if (error || answer === null || answer === undefined) return html`<div class="lesson-question">${text}
    <p class="faint">No answer for this model and text${error ? `: ${error}` : "."}</p></div>`;
  if (isHandout) return html`<div class="lesson-question">${text}
    ${choices.length > 0 && html`<p>☐ ${choices.map(showToken).join("   ☐ ")}</p>`}
    <p class="lesson-blank">Answer:</p></div>`;
  const number = typeof answer === "number";
  return html`<div class="lesson-question" role="group" aria-labelledby=${`question-${n}`}>${text}
    ${choices.length > 0 ? html`<div class="chips">${choices.map((x) => html`<button aria-pressed=${x === given}
        onClick=${() => check(x)}>${showToken(x)}</button>`)}</div>`
      : html`<form class="row" onSubmit=${(e) => { e.preventDefault(); check(given); }}>
        <input type="text" inputmode=${number ? "decimal" : "text"} aria-label="Your answer" value=${given}
          onInput=${(e) => { setGiven(e.target.value); setChecked(null); }} /> <button>Check</button></form>`}
    <p role="status" class="lesson-verdict">${checked === true && html`<span class="good">✓ Right.</span>`}
      ${checked === false && html`<span class="bad">✗ Not yet.</span>
        ${" "}<button class="link" onClick=${() => setShown(true)}>Show the answer</button>`}
      ${shown && checked !== true && html` It is <strong>${plain(answer)}</strong>.`}
      ${because && (checked || shown) && html` <${Spans} list=${because.spans} />`}</p></div>`;
}
