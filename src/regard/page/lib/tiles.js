// Tiles of a deep zoom: decoded to numbers, cached within a limit, requested in batches, those on screen first.
import { fetchBytes } from "./api.js";
import { colourScale } from "./colours.js";
import { largest } from "./dom.js";
import { offline } from "./state.js";

const MAX_TILES = 256, BATCH = 6, MAX_REQUESTS = 2, RETRY = 2000; // 256 tiles of 256 × 256 numbers are 64 MB
const DECADES = 4; // of a logarithmic scale

// All 65,536 numbers of float16, as browsers have no common way to read them.
const halves = new Float32Array(65536);
for (let bits = 0; bits < 65536; bits++) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  halves[bits] = exponent === 31 ? (fraction ? NaN : sign * Infinity)
    : sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

// One tile of `MapTile.to_bytes`: a header of 32 bytes, then float16 · 2^exponent; NaN is hidden.
export function decodeTile(buffer, offset = 0) {
  const view = new DataView(buffer, offset), rows = view.getUint16(10, true), columns = view.getUint16(12, true);
  if (view.getUint32(0, true) !== 0x4c544752
    || view.getUint8(4) !== 1) throw new Error("The server sent something that is no tile.");
  const scale = 2 ** view.getInt16(8, true), values = new Float32Array(rows * columns);
  for (let i = 0; i < values.length; i++) values[i] = halves[view.getUint16(32 + 2 * i, true)] * scale;
  return { rows, columns, values, max: largest(values), level: view.getUint8(5),
    complete: Boolean(view.getUint8(7) & 1),
    row: view.getUint32(16, true), column: view.getUint32(20, true), version: view.getUint32(24, true) };
}

export const tileKey = (id, reduce, band, level, row, column) =>
  `${id} ${reduce} ${band ? 1 : 0} ${level}/${row}/${column}`;

export class TileStore {
  constructor({ onChange, onError }) {
    this.tiles = new Map(); // by key, the least recently used first
    this.visible = [];
    this.requests = new Set();
    this.pausedUntil = 0;
    Object.assign(this, { onChange, onError });
  }

  get(key) {
    const tile = this.tiles.get(key);
    if (tile) { this.tiles.delete(key); this.tiles.set(key, tile); }
    return tile;
  }

  put(key, tile) {
    this.tiles.delete(key);
    this.tiles.set(key, tile);
    for (const old of this.tiles.keys()) { if (this.tiles.size <= MAX_TILES) break; this.tiles.delete(old); }
  }

  // Previews may have become better: those in view are requested again.
  refresh() {
    for (const tile of this.tiles.values()) if (!tile.complete) tile.stale = true;
    this.pump();
  }

  // The keys that are in view, the most important first; requests of which none is in view any more are cancelled.
  setVisible(keys) {
    const set = new Set(keys); // the whole map is named twice where it is in view
    this.visible = [...set];
    for (const request of this.requests) if (!request.keys.some((key) => set.has(key))) request.control.abort();
    this.pump();
  }

  pump() {
    if (offline || Date.now() < this.pausedUntil) return;
    const requested = new Set([...this.requests].flatMap((request) => request.keys));
    while (this.requests.size < MAX_REQUESTS) {
      const missing = this.visible.filter((key) => !requested.has(key)
        && (!this.tiles.has(key) || this.tiles.get(key).stale));
      if (!missing.length) return;
      const source = missing[0].replace(/ [^ ]*$/, " ");
      const keys = missing.filter((key) => key.startsWith(source)).slice(0, BATCH);
      keys.forEach((key) => requested.add(key));
      this.fetch(source.trim().split(" "), keys);
    }
  }

  async fetch([id, reduce, band], keys) {
    const request = { keys, control: new AbortController() };
    this.requests.add(request);
    const places = keys.map((key) => key.split(" ")[3]).join(",");
    try {
      const buffer = await fetchBytes(`/explore/atlas/tiles?id=${id}&reduce=${reduce}&band=${band}&tiles=${places}`,
        request.control.signal);
      const view = new DataView(buffer);
      for (let at = 0, n = 0; at < buffer.byteLength; at += 4 + view.getUint32(at, true), n++) this.put(keys[n],
        decodeTile(buffer, at + 4));
      this.onChange();
    } catch (error) {
      if (error.name !== "AbortError") {
        this.pausedUntil = Date.now() + RETRY;
        setTimeout(() => this.pump(), RETRY + 10);
        this.onError(error, id);
      }
    } finally {
      this.requests.delete(request);
      this.pump();
    }
  }

  close() { this.setVisible([]); }
}

// The difference of two tiles, computed once: NaN where one of them hides its cell.
export function subtract(a, b) {
  if (a.minus?.from !== b) {
    const values = a.values.map((x, i) => x - b.values[i]);
    a.minus = { from: b, rows: a.rows, columns: a.columns, values, max: largest(values), level: a.level, row: a.row,
      column: a.column };
  }
  return a.minus;
}

// Colours of a tile on a canvas of its own, one pixel per cell; cached until the colours change.
export function paintTile(tile, colours) {
  if (tile.picture?.colours !== colours.key) tile.picture = { colours: colours.key, canvas: paint(tile, colours) };
  return tile.picture.canvas;
}

function paint({ values, rows, columns }, { table, hidden, share }) {
  const canvas = new OffscreenCanvas(columns, rows), context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows), pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < values.length; i++) {
    const x = values[i];
    pixels[i] = x !== x ? hidden : table[Math.round(255 * Math.min(1, Math.max(0, share(x))))];
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// A table of 256 colours as pixels, and the function from value to its share of the scale.
export function tileColours({ max, log, diverging, theme }) {
  const kind = diverging ? "diverging" : "sequential", colour = colourScale({ kind, max: 1 });
  const pixel = ([r, g, b]) => (255 << 24 | b << 16 | g << 8 | r) >>> 0;
  const table = Uint32Array.from({ length: 256 }, (_, i) => pixel(colour(diverging ? 2 * (i / 255) - 1 : i / 255)));
  const one = 1 / (max || 1);
  const part = log ? (x) => (x > 0 ? 1 + Math.log10(x * one) / DECADES : 0) : (x) => x * one;
  const share = diverging ? (x) => (1 + Math.sign(x) * Math.max(0, part(Math.abs(x)))) / 2 : part;
  return { key: `${kind} ${max} ${log} ${theme}`, table, hidden: pixel(colour(NaN)), share };
}
