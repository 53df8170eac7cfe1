// Saving a view: SVG and PNG of its drawings, CSV of its table, one offline HTML file, a link.
import { fetchCsv, fetchOfflinePage } from "./api.js";
import { html, shorten, useEffect, useRef, useState } from "./dom.js";
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
  copy.setAttribute("xmlns", SVG);
  const { width, height } = svg.getBoundingClientRect(), ground = getComputedStyle(svg).backgroundColor;
  Object.entries({ width, height }).forEach((x) => copy.setAttribute(...x));
  if (ground !== "rgba(0, 0, 0, 0)") copy.prepend(element("rect", { width: "100%", height: "100%", fill: ground }));
  return copy;
}
const SVG = "http://www.w3.org/2000/svg";
function element(name, attributes, text = "") {
  const x = document.createElementNS(SVG, name);
  for (const key in attributes) x.setAttribute(key, attributes[key]);
  x.textContent = text;
  return x;
}

// The name of a drawing: the nearest heading or caption before it in its panel, else its label.
const HEADS = "figcaption, h2, h3, .between > strong";
function nameOf(part) {
  for (let at = part; at && !at.matches(".panel, main"); at = at.parentElement) {
    for (let x = at.previousElementSibling; x; x = x.previousElementSibling) {
      const head = x.matches(HEADS) ? x : [...x.querySelectorAll(HEADS)].at(-1);
      if (head?.textContent.trim()) return head.textContent.replace(/\s+/g, " ").trim();
    }
  }
  return part.getAttribute("aria-label")?.split(". ")[0] ?? "";
}

// The legend of a chart, which stands beside its drawing: a line and a name per curve.
function legendOf(part, at) {
  let x = MARGIN;
  return [...part.parentElement.querySelectorAll(".legend > span")].flatMap((span) => {
    const line = standalone(span.querySelector("svg")), text = span.textContent.trim();
    line.setAttribute("x", x);
    line.setAttribute("y", at - 8);
    x += 40 + 7 * text.length;
    return [line, label(text, x - 12 - 7 * text.length, at)];
  });
}
const label = (text, x, y, more = {}) => element("text", { x, y, "font-size": 12,
  "font-family": "system-ui, sans-serif", fill: getComputedStyle(document.body).color, ...more }, text);

// What is shown: the view, and the model and the text of the link.
function titleOf(root) {
  const { model, text } = state.peek().params;
  return [root.querySelector("h1").textContent, model, text && shorten(text, 60)].filter(Boolean).join(" · ");
}
const zip = (a, b) => [...a].map((x, i) => [x, b[i]]);

const drawings = (root) => [...root.querySelectorAll("svg.drawing, canvas.drawing")]
  .filter((x) => x.getBoundingClientRect().width > 0);

// Every drawing of the view under its name, one below the other; a canvas becomes an image in it.
const MARGIN = 20;
function viewAsSvg(root) {
  const sheet = element("svg", { xmlns: SVG }), title = titleOf(root);
  sheet.append(element("rect", { width: "100%", height: "100%",
    fill: getComputedStyle(document.body).backgroundColor }), label(title, MARGIN, 30, { "font-size": 16 }));
  let height = 40, width = 9 * title.length;
  for (const part of drawings(root)) {
    const bounds = part.getBoundingClientRect(), name = nameOf(part), legend = legendOf(part, height + 42);
    const inner = part.tagName === "CANVAS"
      ? element("image", { href: part.toDataURL(), width: bounds.width, height: bounds.height }) : standalone(part);
    inner.setAttribute("x", MARGIN);
    inner.setAttribute("y", height += legend.length ? 50 : 30);
    sheet.append(label(name, MARGIN, height - (legend.length ? 28 : 8), { "font-weight": 600 }), ...legend, inner);
    height += bounds.height;
    width = Math.max(width, bounds.width, 7 * name.length);
  }
  const size = { width: width + 2 * MARGIN, height: height + MARGIN };
  Object.entries(size).forEach((x) => sheet.setAttribute(...x));
  return { ...size, text: new XMLSerializer().serializeToString(sheet) };
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
  const menu = useRef(null), choices = () => [...menu.current.querySelectorAll("[role=menuitem]")];
  const close = () => { setOpen(false); menu.current.querySelector("button").focus(); };
  useEffect(() => { if (open) choices()[0].focus(); }, [open]);
  const press = (event) => {
    const all = open ? choices() : [], at = all.indexOf(document.activeElement), { key } = event;
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[key];
    if (key === "Tab") setOpen(false);
    if (key === "Escape" && open) close();
    if (next === undefined || (!open && key !== "ArrowDown")) return;
    event.preventDefault();
    if (open) all.at(next % all.length).focus();
    else setOpen(true);
  };
  useEffect(() => {
    const leave = (event) => { if (!menu.current?.contains(event.target)) setOpen(false); };
    addEventListener("pointerdown", leave);
    return () => removeEventListener("pointerdown", leave);
  }, []);
  const name = `regard-${state.peek().view}`;
  const run = (action, done) => async () => {
    try { await action(); setNote(done); } catch (error) { setNote(error.message); }
    close();
    setTimeout(() => setNote(""), 4000);
  };
  const items = [
    ["Copy link", run(() => navigator.clipboard.writeText(location.href), state.peek().params.file
      ? "Link copied. Its file stays on this server until it stops or needs the room." : "Link copied.")],
  ];
  if (open && drawings(root.current).length) items.push(
    ["Picture (PNG)", run(async () => download(`${name}.png`, await viewAsPng(root.current)), "Saved.")],
    ["Vector (SVG)", run(() => download(`${name}.svg`, viewAsSvg(root.current).text, "image/svg+xml"), "Saved.")]);
  if (csv && !offline) items.push(
    ["Table (CSV)", run(async () => download(`${name}.csv`, await fetchCsv(...csv), "text/csv"), "Saved.")]);
  if (!offline) items.push(["Offline page (HTML)",
    run(async () => download(`${name}.html`, await fetchOfflinePage(), "text/html"), "Saved.")]);
  return html`<div class="save" ref=${menu} onKeyDown=${press}>
    <button aria-haspopup="menu" aria-expanded=${open} onClick=${() => setOpen(!open)}>Save ▾</button>
    <span class="note" role="status">${note}</span>
    ${open && html`<ul role="menu">
      ${items.map(([text, act]) =>
        html`<li role="none"><button role="menuitem" tabindex="-1" onClick=${act}>${text}</button></li>`)}</ul>`}
  </div>`;
}
