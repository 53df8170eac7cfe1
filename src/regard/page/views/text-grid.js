// Every head of a model as a small map, with its type and one number: one drawing, chosen by mouse or arrow keys.
import { arrowOf, clamp, fixed, groupBy, html, largest, useMemo, useRef, useSignal, useWidth } from "../lib/dom.js";
import { unpack } from "../lib/api.js";
import { colourScale, theme } from "../lib/colours.js";
import { paint } from "../lib/draw.js";

const MAX_HEIGHT = 1000; // pixels of all layers, where they can be read so
const shortNumber = (x) => (x === null || x === undefined ? "–"
  : fixed(x, x >= 100 ? 0 : x >= 10 ? 1 : 2));
const layerOf = (name) => name.match(/\.(\d+)\./)?.[1];
const stackOf = (name) => name.match(/encoder|decoder/)?.[0] ?? name.split(".")[0];

// Sites that do the same, with a heading each: encoder, decoder, cross.
function groupSites(sites) {
  const stacks = new Set(sites.map((s) => stackOf(s.name)));
  return [...groupBy(sites, (site) => {
    const stack = stacks.size > 1 ? `${stackOf(site.name)} ` : "";
    const text = site.kind === "cross" ? `${stack}cross-attention: rows written, columns read`
      : `${stack}self-attention`;
    return text[0].toUpperCase() + text.slice(1);
  })];
}

function thumbnails(site) {
  const { shape: [heads, rows, columns], values } = unpack(site.maps);
  const colour = colourScale({ max: 1 });
  return Array.from({ length: heads }, (_, h) => {
    const part = values.subarray(h * rows * columns, (h + 1) * rows * columns);
    const most = largest(part, 1e-30);
    // the square root shows small weights beside large ones
    return paint(part.map((x) => Math.sqrt(Math.max(0, x) / most)), rows, columns, colour).toDataURL();
  });
}

export function HeadGrid({ response, site, head, statistic, onSelect }) {
  const shade = useSignal(theme), box = useRef(null), width = useWidth(box, 560);
  const pictures = useMemo(() => new Map(response.sites.map((s) => [s.name, thumbnails(s)])), [response, shade]);
  const numbers = useMemo(() => new Map(response.heads.map((h) => [`${h.site} ${h.head}`, h])), [response]);
  const { name: field, maximum: full } = statistic;
  const most = full ?? Math.max(1e-9, ...response.heads.map((h) => Math.abs(h[field] ?? 0)));
  const columns = Math.max(...response.sites.map((s) => s.heads)), left = 54, gap = 7;
  const room = Math.min((width - left) / columns - gap, MAX_HEIGHT / response.sites.length - 30);
  const cell = clamp(room, 20, 74), roomy = cell >= 34, tall = cell + (roomy ? 30 : 10);
  const groups = groupSites(response.sites), order = groups.flatMap(([, sites]) => sites);
  const press = (event) => {
    const [down, right] = arrowOf(event) ?? [];
    if (down === undefined) return;
    event.preventDefault();
    const next = order[clamp(order.indexOf(site) + down, 0, order.length - 1)];
    onSelect(next.name, clamp(head + right, 0, next.heads - 1));
  };
  let y = 0;
  const parts = groups.map(([heading, sites]) => {
    const top = y;
    y += 22 + sites.length * tall + 6;
    return html`<text class="on" x="0" y=${top + 15} font-size="12.5">${heading}</text>
      ${sites.map((s, n) =>
        html`<text x="0" y=${top + 22 + n * tall + cell / 2 + 4} font-size="12">
          ${layerOf(s.name) === undefined ? "" : `layer ${layerOf(s.name)}`}</text>
        ${pictures.get(s.name).map((href, h) => cellOf(s, h, href, left + h * (cell + gap), top + 22 + n * tall))}`)}`;
  });
  function cellOf(s, h, href, x, top) {
    const row = numbers.get(`${s.name} ${h}`), value = row?.[field], on = s === site && h === head;
    const share = clamp(Math.abs(value ?? 0) / most, 0, 1), bar = top + cell + (roomy ? 16 : 4);
    return html`<g class="head" data-site=${s.name} data-head=${h} data-value=${value}
      onClick=${() => onSelect(s.name, h)}>
      <title>${`${s.name}, head ${h}: ${row?.type}. ${row?.words}`}</title>
      <rect class="frame" x=${x} y=${top} width=${cell} height=${cell} />
      <image x=${x} y=${top} width=${cell} height=${cell} preserveAspectRatio="none" class="pixels" href=${href} />
      ${roomy && html`<text x=${x} y=${top + cell + 11} font-size="12">${row?.type.slice(0, Math.floor(cell / 5))}
        </text>`}
      <rect class="track" x=${x} y=${bar} width=${roomy ? cell - 27 : cell} height="4" rx="2" />
        <rect class="bar" x=${x} y=${bar} width=${share * (roomy ? cell - 27 : cell)} height="4" rx="2" />
      ${roomy && html`<text x=${x + cell} y=${bar + 5} text-anchor="end" font-size="12">${shortNumber(value)}</text>`}
      ${on && html`<rect class="outline" x=${x - 2} y=${top - 2} width=${cell + 4} height=${cell + 4} rx="3"
        fill="none" />`}</g>`;
  }
  return html`<div class="scroll-x" ref=${box}>
    <svg class="drawing grid-of-heads" tabindex="0" role="application" aria-roledescription="grid of heads"
      width=${Math.max(width, left + columns * (cell + gap))} height=${y}
    aria-label=${`Heads. ${site.name}, head ${head} is selected: ${numbers.get(
      `${site.name} ${head}`)?.type}. Arrow keys choose another.`} onKeyDown=${press}>${parts}</svg></div>`;
}
