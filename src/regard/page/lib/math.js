import { html, useLayoutEffect, useRef } from "./dom.js";

// MathML of the server, rebuilt from known elements and attributes: nothing else of it reaches the page.
const ELEMENTS =
  new Set(("math mrow mi mn mo mtext mspace msub msup msubsup munder mover munderover "
    + "mfrac msqrt mroot mtable mtr mtd mstyle mpadded").split(" "));
const ATTRIBUTES = new Set("displaystyle fence form stretchy width accent".split(" "));
const HUES = { q: "query", k: "key", v: "value" };
const NAMESPACE = "http://www.w3.org/1998/Math/MathML";

function build(
    node) {
  if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data);
  if (node.nodeType !== Node.ELEMENT_NODE || !ELEMENTS.has(node.localName)) return document.createTextNode(
    node.textContent ?? "");
  const copy = document.createElementNS(NAMESPACE, node.localName);
  for (const { name, value } of node.attributes) if (ATTRIBUTES.has(name)) copy.setAttribute(name, value);
  if (node.getAttribute("style") === "font-weight:bold") copy.classList.add("bold");
  const vector = node.localName === "mi" && HUES[node.textContent.trim()[0]?.toLowerCase()];
  if (vector && node.textContent.trim().length < 3) copy.classList.add(vector);
  copy.append(...[...node.childNodes].map(build));
  return copy;
}

export function MathML({ xml }) {
  const box = useRef(null);
  useLayoutEffect(() => { // before it is painted: what follows must not move
    const parsed = new DOMParser().parseFromString(xml, "application/xml");
    box.current.replaceChildren(build(parsed.documentElement));
  }, [xml]);
  return html`<span class="formula" ref=${box}></span>`;
}
