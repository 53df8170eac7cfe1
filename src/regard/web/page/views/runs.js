import { html } from "../lib/dom.js";
export const hint = "Not here yet.";
export function View() { return html`<p>Not here yet.</p>`; }
