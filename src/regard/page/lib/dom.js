// Preact, and signals as a hook: a component that uses a signal is drawn again when it changes.
import { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { effect, signal } from "../vendor/signals.js";

export { html, render, signal, useEffect, useLayoutEffect, useMemo, useRef, useState };

export function useSignal(source) {
  const [, redraw] = useState(0);
  useLayoutEffect(() => {
    let first = true;
    return effect(() => {
      source.value;
      if (!first) redraw((n) => n + 1);
      first = false;
    });
  }, [source]);
  return source.peek();
}

// Width of an element in CSS pixels, followed while the window changes.
export function useWidth(ref, fallback = 640) {
  const [width, setWidth] = useState(fallback);
  useLayoutEffect(() => {
    if (!ref.current) return;
    const measure = () => setWidth(Math.max(120, Math.floor(ref.current.clientWidth)));
    const observer = new ResizeObserver(measure);
    observer.observe(ref.current);
    measure();
    return () => observer.disconnect();
  }, []);
  return width;
}

// Where the pointer is in an element, and the element's size, in its own CSS pixels: the page may be enlarged.
export function pointIn(event, element = event.currentTarget) {
  const bounds = element.getBoundingClientRect();
  const scale = bounds.width / (element.offsetWidth ?? element.clientWidth) || 1;
  return { x: (event.clientX - bounds.left) / scale, y: (event.clientY - bounds.top) / scale,
    width: bounds.width / scale, height: bounds.height / scale };
}

export const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
export const range = (n) => Array.from({ length: n }, (_, i) => i);
// The largest absolute value; NaN is left out, and arrays may be longer than a call can have arguments.
export const largest = (values, least = 0) => values.reduce((m, x) => (Math.abs(x) > m ? Math.abs(x) : m), least);

// Lists by key, in the order of the first of each; not every browser has Map.groupBy.
export function groupBy(list, keyOf) {
  const groups = new Map();
  for (const x of list) groups.set(keyOf(x), [...(groups.get(keyOf(x)) ?? []), x]);
  return groups;
}

// [rows down, columns right] of an arrow key; nothing for another key.
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
export const arrowOf = (event) => ARROWS[event.key];

// A number as people read it: three significant digits, and small ones without an exponent of -0.
export function format(x, digits = 3) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 1e6 || size < 1e-4) return scientific(x, digits);
  return Number(x.toPrecision(digits)).toString();
}
const scientific = (x, digits) => x.toExponential(digits - 1)
  .replace(/e\+?(-?\d+)/, (_, power) => ` × 10${superscript(power)}`);
export const superscript = (power) => [...String(power)].map((d) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(d)]).join("");

// With a fixed number of digits; what rounds to zero has no sign.
export const fixed = (x, digits) => x.toFixed(digits).replace(/^-(0(\.0*)?)$/, "$1");

export const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// White space and control characters of a token, made visible.
export function showToken(token) {
  if (token === "") return "∅";
  return token.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/^ +| +$/g, (s) => "␣".repeat(s.length))
    .replace(/[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/g, "·");
}
