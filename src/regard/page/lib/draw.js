// Drawings as SVG: heat maps, arcs and curves. What is on the screen is what "save as SVG" writes.
import { arrowOf, clamp, format, html, largest, pointIn, range, shorten, showToken, superscript, useRef, useSignal,
  useState, useWidth } from "./dom.js";
import { colourScale, css, DASHES, inkOn, LINES, theme } from "./colours.js";

const LEAST_HEIGHT = 96; // pixels of a map of few rows, whose many columns are narrow
const MAX_RECTANGLES = 4096; // cells drawn one by one; larger maps are an image

// Draw values (row-major) on a canvas, one pixel per cell.
export function paint(values, rows, columns, colour, canvas = document.createElement("canvas")) {
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const [r, g, b] = colour(values[i]);
    image.data.set([r, g, b, 255], 4 * i);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// Handlers of a drawing with rows × columns cells: the pointer or arrow keys move, a click or Enter selects.
// area: [left, top, width, height] of the cells; all of the drawing by default · at: the cell that keys start from
// clamped: a pointer beside the cells is at the nearest one, else nowhere · onMove({row, column} or null) ·
// onSelect(row, column)
export function cellHandlers({ rows, columns, area, at, clamped = false, onMove, onSelect }) {
  const locate = (event) => {
    const point = pointIn(event), [left, top, width, height] = area ?? [0, 0, point.width, point.height];
    const row = Math.floor(((point.y - top) / height) * rows);
    const column = Math.floor(((point.x - left) / width) * columns);
    const near = { row: clamp(row, 0, rows - 1), column: clamp(column, 0, columns - 1) };
    return clamped || (near.row === row && near.column === column) ? near : null;
  };
  const leave = () => onMove(null);
  return {
    onMouseMove: (event) => onMove(locate(event)), onMouseLeave: leave, onBlur: leave,
    onClick: (event) => { const p = locate(event); if (p) onSelect(p.row, p.column); },
    onKeyDown: (event) => {
      const step = arrowOf(event), { row, column } = at ?? { row: 0, column: 0 };
      if (step) onMove({ row: clamp(row + step[0], 0, rows - 1), column: clamp(column + step[1], 0, columns - 1) });
      else if (event.key === "Enter" || event.key === " ") onSelect(row, column);
      else return;
      event.preventDefault();
    },
  };
}

// A heat map with labelled axes. Hover or move with the arrow keys; Enter or a click selects a cell.
// values: Float32Array (row-major) · rowLabels, columnLabels: strings · selected: {row, column}
// boxes: outlined parts, in cells · rowName, columnName: of a cell in the readout · onSelect(row, column)
export function HeatMap({
  values, rows, columns, rowLabels, columnLabels, label, kind = "sequential", max, log = false,
  selected = null, onSelect = () => {}, onHover = () => {}, maxCell = 34, rowTitle = "query", columnTitle = "key",
  square = true, boxes = [], rowName = null, columnName = null, rowNext = null, maxHeight = null,
  hint = "Point at a cell.",
}) {
  useSignal(theme);
  const box = useRef(null), width = useWidth(box);
  const [cursor, setCursor] = useState(null);
  const showsLabels = rowLabels && rows <= 96 && (columns <= 96 || !columnLabels);
  const size = (labels) => Math.min(118, 12 + 7.2 * Math.max(1, ...(labels ?? [""]).map((x) => showToken(x).length)));
  const nextSize = showsLabels && rowNext ? size(rowNext) : 0;
  const left = showsLabels ? size(rowLabels) + nextSize : 34;
  const fit = (width - left - 8) / columns, wide = showsLabels ? size(columnLabels) - 8 : 0;
  const cell = clamp(fit, 1.2, maxHeight ? 2.4 * maxCell : maxCell); // wide cells have room for their labels
  const upright = wide <= cell, top = showsLabels && columnLabels && !upright ? size(columnLabels) : 22;
  const low = square ? Math.max(cell, Math.min(maxCell, LEAST_HEIGHT / rows)) : clamp(cell, 6, maxCell);
  const least = showsLabels ? Math.min(6, cell) : 1.2;
  const tall = maxHeight ? clamp((maxHeight - top) / rows, least, maxCell) : low;
  const every = (length) => Math.max(1, Math.ceil(13 / length)); // labels keep their size: some are left out
  const colour = colourScale({ kind, max: max ?? largest(values), log });
  const at = cursor ?? selected;
  const height = top + rows * tall + 4;
  const move = (place) => { setCursor(place); onHover(place); };
  const name = (labels, i) => (labels ? `${showToken(labels[i] ?? "")} (${i})` : i);
  const readout = at && at.row < rows && at.column < columns
    ? `${rowTitle} ${rowName?.(at.row) ?? name(rowLabels, at.row)}, ${columnTitle} ${
      columnName?.(at.column) ?? name(columnLabels, at.column)}: ${format(values[at.row * columns + at.column], 4)}`
        : "";
  const cells = rows * columns <= MAX_RECTANGLES
    ? range(rows * columns).map((i) => {
      const fill = colour(values[i]);
      return html`<rect x=${left + (i % columns) * cell} y=${top + Math.floor(i / columns) * tall}
        width=${cell + 0.4} height=${tall + 0.4} fill=${css(fill)} />`;
    })
    : html`<image x=${left} y=${top} width=${columns * cell} height=${rows * tall} preserveAspectRatio="none"
        class="pixels" href=${paint(values, rows, columns, colour).toDataURL()} />`;
  const writesNumbers = cell >= 30 && tall >= 14 && rows * columns <= 400;
  const names = { query: "query", key: "key" }, side = (title) => names[title] ?? "";
  return html`<div class="heatmap" ref=${box}>
    <svg width=${left + columns * cell + 4} height=${height} role="application" aria-roledescription="heat map"
      aria-label=${`${label}. ${rows} by ${columns}. Arrow keys move, Enter selects.`} tabindex="0" class="drawing"
      ...${cellHandlers({ rows, columns, area: [left, top, columns * cell, rows * tall], at, onMove: move, onSelect })}>
      ${cells}
      ${writesNumbers && range(rows * columns).map((i) => Number.isNaN(values[i]) ? null : html`<text class="number"
        x=${left + (i % columns + 0.5) * cell} y=${top + (Math.floor(i / columns) + 0.5) * tall + 3.5}
        text-anchor="middle" font-size="12" fill=${inkOn(colour(values[i]))}>${shortNumber(values[i])}</text>`)}
      ${showsLabels && rowLabels.map((x, i) => i % every(tall) === 0 && html`
        <text class=${`${side(rowTitle)} ${at?.row === i ? "on" : ""}`} x=${left - nextSize - 5}
          y=${top + (i + 0.5) * tall + 4} text-anchor="end" font-size="12">${showToken(x).slice(0, 16)}</text>
        ${rowNext && html`<text class=${at?.row === i ? "on" : ""} x=${left - nextSize} y=${top + (i + 0.5) * tall + 4}
          font-size="12">→ ${shorten(showToken(rowNext[i] ?? ""), 13)}</text>`}`)}
      ${showsLabels && columnLabels?.map((x, i) => (upright || i % every(cell) === 0) && html`
        <text class=${`${side(columnTitle)} ${at?.column === i ? "on" : ""}`} font-size="12"
          ...${above(left + (i + 0.5) * cell, top - 6, upright)}>${showToken(x).slice(0, 16)}</text>`)}
      ${!(showsLabels && columnLabels) && html`<text class=${side(columnTitle)} x=${left} y="14" font-size="12">
          ${columnTitle} 0 … ${columns - 1} →</text>`}
      ${!showsLabels && html`
        <text class=${side(rowTitle)} transform=${`translate(14,${top}) rotate(90)`} font-size="12">
          ${rowTitle} 0 … ${rows - 1} →</text>`}
      ${boxes.map((b) => html`<rect class="outline box" fill="none" x=${left + b.column * cell} y=${top + b.row * tall}
        width=${Math.max(6, b.columns * cell)} height=${Math.max(6, b.rows * tall)} />`)}
      ${selected && outline(selected, left, top, cell, tall, "selected")}
      ${cursor && outline(cursor, left, top, cell, tall, "cursor")}
    </svg>
    <p class="readout" aria-live="polite">${readout || html`<span class="faint">${hint}</span>`}</p>
  </div>`;
}

const shortNumber = (x) => (Math.abs(x) < 0.005 ? "" : x.toFixed(2).replace(/^(-?)0/, "$1"));
const above = (x, y, upright) =>
  (upright ? { x, y, "text-anchor": "middle" }
    : { transform: `translate(${x + 3.5},${y}) rotate(-90)` });
const outline = (p, left, top, cell, tall, name) => html`<rect class=${`outline ${name}`} fill="none"
  x=${left + p.column * cell} y=${top + p.row * tall} width=${cell} height=${tall} />`;

// Curves over a common x axis. series: [{name, x: [...], y: [...]}]; one with points: true is drawn as dots
export function LineChart({ series, label, xTitle = "", yTitle = "", logX = false, logY = false, height = 240,
  marks = [] }) {
  useSignal(theme);
  const box = useRef(null), width = useWidth(box);
  const [near, setNear] = useState(null);
  const margin = { left: 58, right: 14, top: 10, bottom: 34 };
  const fx = logX ? Math.log10 : (v) => v, fy = logY ? Math.log10 : (v) => v;
  const usable = (s) => range(s.x.length)
    .filter((i) => Number.isFinite(fx(s.x[i])) && s.y[i] !== null && Number.isFinite(fy(s.y[i])));
  const xs = series.flatMap((s) => usable(s).map((i) => fx(s.x[i]))),
    ys = series.flatMap((s) => usable(s).map((i) => fy(s.y[i])));
  if (!xs.length) return html`<div ref=${box}><p class="faint">No points yet.</p></div>`;
  const [x0, x1] = extent(xs), [y0, y1] = extent(ys);
  const px = (v) => margin.left + ((fx(v) - x0) / (x1 - x0)) * (width - margin.left - margin.right);
  const py = (v) => height - margin.bottom - ((fy(v) - y0) / (y1 - y0)) * (height - margin.top - margin.bottom);
  const hover = (event) => {
    const at = pointIn(event);
    const best = series.flatMap((s, n) => usable(s)
      .map((i) => ({ n, i, gap: Math.abs(px(s.x[i]) - at.x) + 0.2 * Math.abs(py(s.y[i]) - at.y) })));
    setNear(best.reduce((a, b) => (a && a.gap < b.gap ? a : b), null));
  };
  const point = near && series[near.n]?.x[near.i] !== undefined ? series[near.n] : null;
  return html`<div class="chart" ref=${box}>
    <svg width=${width} height=${height} role="img" aria-label=${`${label}: ${series.map((s) => s.name).join(", ")}`}
      class="drawing"
      onMouseMove=${hover} onMouseLeave=${() => setNear(null)}>
      ${ticks(y0, y1, logY)
        .map((v) => html`<g><line class="grid" x1=${margin.left} x2=${width - margin.right} y1=${py(v)} y2=${py(v)} />
        <text x=${margin.left - 6} y=${py(v) + 3.5} text-anchor="end" font-size="12">${tickText(v)}</text></g>`)}
      ${ticks(x0, x1, logX)
        .map((v) => html`<text x=${px(v)} y=${height - margin.bottom + 15} text-anchor="middle" font-size="12">
          ${tickText(v)}</text>`)}
      <text x=${(width + margin.left) / 2} y=${height - 4} text-anchor="middle" font-size="12">${xTitle}</text>
      <text transform=${`translate(11,${(height - margin.bottom) / 2}) rotate(-90)`} text-anchor="middle"
        font-size="12">${yTitle}</text>
      ${marks.map((m) =>
        html`<line class="mark" x1=${px(m)} x2=${px(m)} y1=${margin.top} y2=${height - margin.bottom} />`)}
      ${series.map((s, n) => s.points
        ? usable(s).map((i) =>
          html`<circle cx=${px(s.x[i])} cy=${py(s.y[i])} r="2.6" fill=${LINES[n % LINES.length]} opacity="0.75" />`)
        : html`<path fill="none" stroke=${LINES[n % LINES.length]} stroke-width="1.8"
          stroke-dasharray=${DASHES[n % DASHES.length]}
        d=${usable(s).map((i, j) => `${j ? "L" : "M"}${px(s.x[i]).toFixed(1)} ${py(s.y[i]).toFixed(1)}`).join("")} />`)}
      ${point && html`<circle cx=${px(point.x[near.i])} cy=${py(point.y[near.i])} r="4"
        fill=${LINES[near.n % LINES.length]} />`}
    </svg>
    <p class="legend">
      ${series.map((s, n) =>
        html`<span><svg width="22" height="8" aria-hidden="true">
          <line x1="0" x2="22" y1="4" y2="4" stroke=${LINES[n % LINES.length]}
      stroke-width="2.2" stroke-dasharray=${DASHES[n % DASHES.length]} /></svg> ${s.name}</span>`)}
      ${point && html`<strong class="readout">
        ${point.name}: ${xTitle} ${format(point.x[near.i])}, ${format(point.y[near.i], 4)}</strong>`}</p>
  </div>`;
}

// Powers of ten from 10⁵ on as such: "1.00e+14" would run into the title of the axis.
function tickText(v) {
  if (v === 0) return "0"; // log10 of it is no power
  const power = Math.round(Math.log10(Math.abs(v)));
  if (Math.abs(power) < 5 || Math.abs(v / 10 ** power - 1) > 1e-9) return format(v);
  return `10${superscript(power)}`;
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
  return high > low ? [low, high] : [low - 0.5, high + 0.5];
}

function ticks(low, high, isLog) {
  if (isLog && high - low >= 1) {
    const first = Math.ceil(low), apart = Math.ceil((Math.floor(high) - first + 1) / 9); // at most nine
    return range(Math.floor((Math.floor(high) - first) / apart) + 1).map((i) => 10 ** (first + i * apart));
  }
  const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const values = [];
  for (let v = Math.ceil(low / step) * step; v <= high + 1e-9;
    v += step) values.push(isLog ? 10 ** v : Number(v.toPrecision(12)));
  return values;
}
