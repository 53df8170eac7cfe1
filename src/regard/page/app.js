// The shell of the page: navigation, the view of the URL, what is being computed, the first steps.
import { groupBy, html, render, useEffect, useRef, useSignal, useState } from "./lib/dom.js";
import { activity, cancelAll, isLost, retries, retry } from "./lib/api.js";
import { theme, toggleTheme } from "./lib/colours.js";
import { SaveMenu } from "./lib/save.js";
import { linkTo, offline, openView, state } from "./lib/state.js";
import { Guide } from "./lib/guide.js";
import { PresentButton, PresentKeys } from "./lib/present.js";
import { loadModels, models } from "./lib/widgets.js";

// Name, module and group of the navigation, in its order. Each module has: hint (a sentence), View({params}), and
// csv(params) -> [query, body] where it has a table.
const VIEWS = {
  text: ["Text", () => import("./views/text.js"), "Look"],
  "what-if": ["What-if", () => import("./views/what-if.js"), "Look"],
  atlas: ["Atlas", () => import("./views/atlas.js"), "Look"],
  image: ["Image", () => import("./views/image.js"), "Senses"],
  sound: ["Sound", () => import("./views/sound.js"), "Senses"],
  time: ["Time", () => import("./views/time.js"), "Senses"],
  lesson: ["Lesson", () => import("./views/lesson.js"), "Learn"],
  work: ["Work", () => import("./views/work.js"), "Learn"],
  claims: ["Claims", () => import("./views/claims.js"), "Learn"],
  cost: ["Cost", () => import("./views/cost.js"), "Measure"],
  runs: ["Runs", () => import("./views/runs.js"), "Measure"],
};

// An offline page may be about something else: a sight, the report of a run, or a comparison.
const OFFLINE = {
  sight: () => import("./views/sight.js"),
  report: () => import("./views/report.js"),
};
const shown = Object.entries(VIEWS).filter(([name]) => !offline || offline.views.includes(name));

function Shell() {
  const { view, params } = useSignal(state);
  const [module, setModule] = useState(null), [failed, setFailed] = useState("");
  const root = useRef(null);
  const tries = useSignal(retries);
  useEffect(() => { // after a restart there may be others
    setFailed("");
    loadModels().catch((e) => setFailed(e.message));
  }, [tries]);
  useSignal(theme);
  useSignal(models); // the table of a view may be one of its first model
  document.documentElement.dataset.theme = theme.peek();
  const [name, load] = VIEWS[view] ?? (offline ? [view, OFFLINE[view]] : []), title = load && (offline?.title || name);
  useEffect(() => {
    let live = true;
    document.title = offline?.title || (title ? `${title} · Regard` : "Regard");
    if (load) load().then((m) => live && setModule({ view, ...m }))
      .catch((e) => live && setFailed(`This view could not be loaded: ${e.message}`));
    return () => { live = false; };
  }, [view, tries]);
  const ready = module?.view === view;
  return html`
    <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); root.current?.focus(); }}>Skip to the view</a>
    <header class="bar">
      ${offline ? html`<span class="brand">Regard</span>` : html`<a class="brand" href=${linkTo("text")}
        onClick=${(e) => { e.preventDefault(); openView("text"); }}>Regard</a>`}
      <nav aria-label="Views">
        ${[...groupBy(offline?.title ? [] : shown, ([, [, , group]]) => group)].map(([group, members]) =>
          html`<span class="group" role="group" aria-label=${group}>
            <span class="faint" aria-hidden="true">${group}</span>
          ${members.map(([name, [text]]) => html`<a href=${linkTo(name)} aria-current=${name === view ? "page" : null}
            onClick=${(e) => {
              if (e.metaKey || e.ctrlKey) return;
              e.preventDefault();
              openView(name, inputOf(params));
            }}>${text}</a>`)}</span>`)}</nav>
      ${ready && html`<${SaveMenu} root=${root} csv=${module.csv?.(params)} />`}
      <${PresentButton} />
      <button class="theme" onClick=${toggleTheme}
        aria-label=${theme.peek() === "dark" ? "Light colours" : "Dark colours"}>
          ${theme.peek() === "dark" ? "☀" : "☾"}</button>
    </header>
    <main id="main" tabindex="-1" ref=${root}>
      ${offline && !offline.title && html`<p
        class="banner">A saved page: what was on the screen when it was saved works, nothing else can be computed.</p>`}
      ${!title && html`<p
        class="error">There is no view ${view}. <a href=${linkTo("text")}>Open the text view</a>.</p>`}
      ${failed && html`<p class="error" role="alert">${failed}</p>`}
      ${ready && html`<h1 dir="auto" class=${offline?.title ? "" : "hidden"}>${title}</h1>
        ${!offline?.title && html`<p class="hint">${module.hint}</p>`}
        <${Guide} />
        <${module.View} params=${params} key=${view} />`}
    </main>
    <${PresentKeys} />
    <${Activity} />`;
}

// A view opened by the navigation keeps the model and the input, so that one text can be seen in all of them.
const inputOf = ({ model, text, to }) => ({ model, text, to });

function Activity() {
  const now = useSignal(activity), lost = useSignal(isLost);
  return html`<div class="activity" role="status" aria-live="polite">
    ${lost && html`<div><span>The server does not answer; trying again …</span>
      <button onClick=${retry}>Now</button></div>`}
    ${now && html`<div><span>${now.text || "computing"}</span>
    <progress max="1" value=${now.fraction} aria-label="Progress"></progress>
      <button onClick=${cancelAll}>Cancel</button></div>`}</div>`;
}

document.documentElement.dataset.theme = theme.peek();
const root = document.getElementById("app");
root.replaceChildren();
render(html`<${Shell} />`, root);
