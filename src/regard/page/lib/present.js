// Present: the page enlarged for a projector, with single keys. A control that names its key in data-key gets it;
// the last line of the page lists them.
import { arrowOf, html, signal, useEffect, useSignal, useState } from "./dom.js";

export const present = signal(sessionStorage.getItem("present") === "yes");
const show = () => document.documentElement.toggleAttribute("data-present", present.peek());
show();

function toggle() {
  present.value = !present.peek();
  sessionStorage.setItem("present", present.peek() ? "yes" : "no");
  show();
}

export function PresentButton() {
  return html`<button class="present" aria-pressed=${useSignal(present)} onClick=${toggle}
    title="Larger, for a projector, with keys; Escape leaves">Present</button>`;
}

const TYPES = "input, textarea, select, [role=menu]"; // they have keys of their own, as maps have arrows
const controls = () => [...document.querySelectorAll("[data-key]:not(:disabled)")]
  .filter((x) => x.getClientRects().length);

export function PresentKeys() {
  const on = useSignal(present), [keys, setKeys] = useState([]);
  useEffect(() => {
    if (!on) return;
    const list = () => setKeys((old) => {
      const now = [...new Map(controls().map((x) => [x.dataset.key, x.dataset.does ?? x.textContent])).entries()];
      return now.join() === old.join() ? old : now;
    });
    const press = (event) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") return toggle();
      if (event.target.closest?.(arrowOf(event) ? `${TYPES}, [role=application]` : TYPES)) return;
      const control = controls().find((x) => x.dataset.key === event.key);
      if (!control) return;
      event.preventDefault();
      control.click();
    };
    const observer = new MutationObserver(list);
    observer.observe(document.getElementById("main"), { childList: true, subtree: true });
    addEventListener("keydown", press);
    list();
    return () => { observer.disconnect(); removeEventListener("keydown", press); };
  }, [on]);
  return on && html`<footer class="keys">${keys.map(([key, does]) =>
    html`<span><kbd>${SYMBOLS[key] ?? key}</kbd> ${does}</span>`)}<span><kbd>Esc</kbd> leave</span></footer>`;
}
const SYMBOLS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };
