// Horizontal bars with their names and numbers, as one drawing.
import { format, html, shorten, showToken, useRef, useWidth } from "./dom.js";

// rows: [[name, value], …] · max: value of the longest bar · negative values go to the left
export function Bars({ rows, label, max, show = (x) => format(x, 4) }) {
  const box = useRef(null), width = useWidth(box, 320);
  const below = Math.max(0, ...rows.map(([, x]) => -x)), above = max ?? Math.max(1e-30, ...rows.map(([, x]) => x)),
    signed = below > 0;
  const names = Math.min(0.5 * width, 16 + 7.8 * Math.max(4, ...rows.map(([name]) => showToken(name).length)));
  const room = Math.max(30, width - names - 62), unit = room / (below + above), zero = names + below * unit;
  const most = Math.floor((names - 12) / 7.4), tall = 21;
  return html`<div ref=${box}>
    <svg class="drawing bars" width=${width} height=${rows.length * tall + 4} role="list" aria-label=${label}>
    ${signed && html`<line class="grid" x1=${zero} x2=${zero} y1="0" y2=${rows.length * tall} />`}
    ${rows.map(([name, value], i) =>
      html`<g role="listitem" data-value=${value} aria-label=${`${showToken(name)}: ${show(value)}`}>
      <title>${showToken(name)}: ${show(value)}</title>
      <text class="on" x=${names - 8} y=${i * tall + 14} text-anchor="end" font-size="12">
        ${shorten(showToken(name), most)}</text>
      <rect class=${value < 0 ? "bar minus" : "bar"} x=${value < 0 ? zero + value * unit : zero} y=${i * tall + 4}
        width=${Math.max(0.5, Math.abs(value) * unit)} height="13" rx="2" />
      <text x=${names + room + 6} y=${i * tall + 14} font-size="12">${show(value)}</text></g>`)}</svg></div>`;
}
