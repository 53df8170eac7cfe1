// Saving a view: SVG and PNG of its drawings, CSV of its table, one offline HTML file, a link.
import { fetchCsv, fetchOfflinePage } from "./api.js";
import { html, useEffect, useRef, useState } from "./dom.js";
import { offline, state } from "./state.js";

export function download(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "font-family",
  "opacity", "image-rendering"];

// An SVG element with its computed styles written out, so that it looks the same without the page.
function standalone(svg) {
  const copy = svg.cloneNode(true),
    pairs = [[svg, copy], ...zip(svg.querySelectorAll("*"), copy.querySelectorAll("*"))];
  for (const [from, to] of pairs) {
    const style = getComputedStyle(from);
    for (const name of STYLES) if (style.getPropertyValue(name)) to.setAttribute(name, style.getPropertyValue(name));
    to.removeAttribute("class");
  }
  copy.removeAttribute("tabindex");
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return copy;
}
const zip = (a, b) => [...a].map((x, i) => [x, b[i]]);

// Every drawing of the view, one below the other; a canvas becomes an image in it.
function viewAsSvg(root) {
  const parts = [...root.querySelectorAll("svg.drawing, canvas.drawing")].filter((x) =>
    x.getBoundingClientRect().width > 0);
  let height = 0, width = 0;
  const groups = [];
  for (const part of parts) {
    const bounds = part.getBoundingClientRect();
    let inner;
    if (part.tagName === "CANVAS") {
      inner = document.createElementNS("http://www.w3.org/2000/svg", "image");
      inner.setAttribute("href", part.toDataURL());
      inner.setAttribute("width", bounds.width);
      inner.setAttribute("height", bounds.height);
    } else inner = standalone(part);
    inner.setAttribute("y", height);
    groups.push(new XMLSerializer().serializeToString(inner));
    height += bounds.height + 12;
    width = Math.max(width, bounds.width);
  }
  if (!groups.length) throw new Error("This view has no drawing yet.");
  const background = getComputedStyle(document.body).backgroundColor;
  return { width, height,
    text: `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}">`
      + `<rect width="100%" height="100%" fill="${background}"/>${groups.join("")}</svg>` };
}

async function viewAsPng(root, scale = 2) {
  const { width, height, text } = viewAsSvg(root);
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

// The menu of a view. csv: [name, body] of the query whose table is saved.
export function SaveMenu({ root, csv }) {
  const [open, setOpen] = useState(false), [note, setNote] = useState("");
  const menu = useRef(null);
  useEffect(() => {
    const close = (event) => { if (!menu.current?.contains(event.target)) setOpen(false); };
    addEventListener("pointerdown", close);
    return () => removeEventListener("pointerdown", close);
  }, []);
  const name = `regard-${state.peek().view}`;
  const run = (action, done) => async () => {
    try { await action(); setNote(done); } catch (error) { setNote(error.message); }
    setOpen(false);
    setTimeout(() => setNote(""), 4000);
  };
  const items = [
    ["Copy link", run(() => navigator.clipboard.writeText(location.href), "Link copied.")],
    ["Picture (PNG)", run(async () => download(`${name}.png`, await viewAsPng(root.current)), "Saved.")],
    ["Vector (SVG)",
    run(() => download(`${name}.svg`, viewAsSvg(root.current).text, "image/svg+xml"), "Saved.")],
  ];
  if (csv && !offline) items.push(
    ["Table (CSV)", run(async () => download(`${name}.csv`, await fetchCsv(...csv), "text/csv"), "Saved.")]);
  if (!offline) items.push(["Offline page (HTML)",
    run(async () => download(`${name}.html`, await fetchOfflinePage(), "text/html"), "Saved.")]);
  return html`<div class="save" ref=${menu} onKeyDown=${(e) => e.key === "Escape" && setOpen(false)}>
    <button aria-haspopup="true" aria-expanded=${open} onClick=${() => setOpen(!open)}>Save ▾</button>
    <span class="note" role="status">${note}</span>
    ${open && html`<ul role="menu">
      ${items.map(([text, act]) =>
        html`<li role="none"><button role="menuitem" onClick=${act}>${text}</button></li>`)}</ul>`}
  </div>`;
}
