// The canvas of the atlas: tiles of one head or of the difference of two, margins, rulers and marks. Never an n × n
// array.
import { clamp, format, range, showToken } from "../lib/dom.js";
import { request, decodeBase64, unpack } from "../lib/api.js";
import { theme } from "../lib/colours.js";
import { handle, Plane } from "../lib/plane.js";
import { offline } from "../lib/state.js";
import { decodeTile, paintTile, subtract, tileColours, tileKey, TileStore } from "../lib/tiles.js";

const RULER = 56, MARGIN = 26, TOKEN_SCALE = 12, CHUNK = 256, POLL = 700;
export const count = (n) => n.toLocaleString("en");

export class AtlasMap {
  // onMove(plane) when the view has come to rest · onReadout(text, value) · onPick(query, key) · onScale(max) ·
  // onProgress(x) · onError(message) · reopen(id)
  constructor(canvas, events) {
    this.canvas = canvas;
    this.events = events;
    this.plane = new Plane();
    this.settings = { reduce: "mean", log: true, band: false, max: null, marks: [], mark: null, pinned: null };
    this.map = this.other = this.margins = this.hover = this.colours = null;
    this.tokens = new Map();
    this.store = new TileStore({ onChange: () => this.redraw(), onError: (error, id) => this.failed(error, id) });
    this.release = handle(canvas, this.plane, {
      origin: () => [RULER + MARGIN, RULER + MARGIN],
      onMove: (byKey) => { this.hover = byKey ? this.middle() : this.hover; this.updateReadout(byKey); this.moved(); },
      onHover: (px, py) => { this.hover = px === null ? null : [px, py]; this.updateReadout(); this.redraw(); },
      onClick: (px, py) => this.pick(px, py),
      onEnter: () => this.pick(...this.middle()),
    });
    this.poll = setInterval(() => this.progress < 1 && !document.hidden && this.requestMargins(true), POLL);
  }

  close() {
    this.release();
    this.store.close();
    clearInterval(this.poll);
    for (const timer of ["rest", "frame", "later"]) clearTimeout(this[timer]);
    this.closed = true;
  }

  middle() { return [this.plane.width / 2, this.plane.height / 2]; }
  get offset() { return RULER + MARGIN; }
  get progress() { return Math.min(this.map?.progress ?? 1, this.other?.progress ?? 1); }
  get levels() { return this.settings.band ? this.map.band_levels : this.map.levels; }
  get level() { return clamp(Math.ceil(-Math.log2(this.plane.scale) - 1e-6), 0, this.levels - 1); }

  // Another head: place and zoom stay as `keep` says, if both maps have one size.
  setMap(map, keep) {
    const same = this.map && this.map.queries === map.queries && this.map.keys === map.keys;
    const isNew = this.map?.id !== map.id;
    this.map = map;
    if (isNew) {
      this.margins = { id: map.id, level: map.levels - 1, row: 0, column: 0, entropy: unpack(map.entropy).values,
        received: unpack(map.received).values };
      if (!same) this.tokens.clear();
      this.store.put(tileKey(map.id, map.reduce, false, map.levels - 1, 0, 0), overview(map));
    }
    this.shape();
    if (isNew && !(same && keep.zoom)) this.plane.scale = 0;
    if (isNew && !(same && keep.place)) Object.assign(this.plane, { x: 0, y: 0 });
    this.plane.bound();
    this.redraw();
  }

  setOther(map) { this.other = map; this.redraw(); }

  set(settings) {
    const bandChanges = settings.band !== undefined && settings.band !== this.settings.band;
    Object.assign(this.settings, settings);
    if (this.map) this.shape();
    if (bandChanges && this.map) this.plane.bound();
    this.redraw();
  }

  // Rows and columns of what is shown; a band is only computed at fine levels.
  shape() {
    const { band } = this.settings, { queries, keys, offset, band_levels } = this.map;
    Object.assign(this.plane,
      { rows: queries, columns: band ? queries + offset : keys, minScale: band ? 2 ** (1 - band_levels) : 0 });
  }

  place({ x, y, z }) { Object.assign(this.plane, { x, y, scale: 2 ** z }); this.plane.bound(); this.redraw(); }
  jump(row, column, scale = 0) {
    Object.assign(this.plane, { x: column + 0.5, y: row + 0.5, scale: Math.max(scale, this.plane.scale) });
    this.plane.bound();
    this.moved();
  }
  zoom(factor) { this.plane.zoom(factor); this.moved(); }
  fit() { this.plane.fit(); this.moved(); }

  resize(width, height) {
    const ratio = Math.min(devicePixelRatio || 1, 2), wasWhole = this.plane.isWhole;
    Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    this.size = [width, height, ratio];
    Object.assign(this.plane, { width: width - this.offset, height: height - this.offset });
    if (wasWhole) this.plane.fit();
    this.plane.bound();
    this.redraw();
  }

  moved() {
    this.redraw();
    clearTimeout(this.rest);
    this.rest = setTimeout(() => this.events.onMove(this.plane), 250);
  }

  redraw() {
    if (this.frame || this.closed) return;
    this.frame = setTimeout(() => requestAnimationFrame(() => { this.frame = 0; if (!this.closed) this.draw(); }), 0);
  }

  failed(error, id) {
    if (error.message.startsWith("id:")) this.events.reopen(id)
      .then(() => { this.store.pausedUntil = 0; this.redraw(); }).catch(() => {});
    else this.events.onError(error.message);
  }

  // ---- tiles

  // Rows and columns of the tiles in view, nearest to the middle first.
  visible() {
    const size = this.map.tile * 2 ** this.level, { rowRange, columnRange, x, y } = this.plane;
    const tiles = ([start, stop]) => range(Math.ceil(stop / size) - Math.floor(start / size))
      .map((i) => Math.floor(start / size) + i);
    const columns = tiles(columnRange), gap = ([r, c]) => Math.hypot((r + 0.5) * size - y, (c + 0.5) * size - x);
    return tiles(rowRange).flatMap((r) => columns.map((c) => [r, c])).sort((a, b) => gap(a) - gap(b));
  }

  tile(level, row, column) {
    const { reduce, band } = this.settings,
      get = (map) => this.store.get(tileKey(map.id, reduce, band, level, row, column));
    const a = get(this.map);
    if (!this.other || !a) return a;
    const b = get(this.other);
    return b && subtract(a, b);
  }

  // The tile of a place, or the finest coarser one that is there.
  best(level, row, column) {
    for (let up = 0; level + up < this.levels; up++) {
      const tile = this.tile(level + up, row >> up, column >> up);
      if (tile) return tile;
    }
    return null;
  }

  requestTiles(places) {
    const { reduce, band } = this.settings, maps = this.other ? [this.map, this.other] : [this.map];
    const keys = places.map(([r, c]) => [this.level, r, c]);
    if (!band) keys.unshift([this.levels - 1, 0, 0]); // something to show at once
    this.store.setVisible(keys.flatMap((place) => maps.map((map) => tileKey(map.id, reduce, band, ...place))));
  }

  // ---- drawing

  draw() {
    if (!this.map || !this.size) return;
    const [width, height, ratio] = this.size, context = this.canvas.getContext("2d");
    const places = this.visible(), shown = places.map(([r, c]) => [r, c, this.best(this.level, r, c)]);
    this.requestTiles(places);
    this.setColours(shown.map(([, , tile]) => tile));
    this.style = getComputedStyle(this.canvas);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.save();
    context.translate(this.offset, this.offset);
    context.beginPath();
    context.rect(0, 0, this.plane.width, this.plane.height);
    context.clip();
    context.imageSmoothingEnabled = false;
    for (const [r, c, tile] of shown) if (tile) this.drawTile(context, r, c, tile);
    this.drawMarks(context);
    context.restore();
    this.drawMargins(context);
    this.drawRuler(context, "query");
    this.drawRuler(context, "key");
    this.events.onDraw?.(this);
  }

  setColours(tiles) {
    const { max, log } = this.settings, top = tiles.reduce((m, tile) => Math.max(m, tile?.max ?? 0), 0);
    const auto = top ? 2 ** (Math.ceil(2 * Math.log2(top)) / 2) : 1; // in steps, so that few tiles are coloured again
    const options = { max: max ?? Math.min(auto, 1), log, diverging: this.other !== null, theme: theme.peek() };
    const colours = tileColours(options);
    if (colours.key !== this.colours?.key) {
      this.colours = { ...colours, ...options };
      this.events.onScale(this.colours);
    }
  }

  // The part of a tile, or of a coarser one, that covers the tile (row, column) of the level.
  drawTile(context, row, column, tile) {
    const side = this.map.tile, size = side * 2 ** this.level, cell = 2 ** tile.level, { rows, columns } = this.plane;
    const top = row * size, left = column * size, bottom = Math.min(top + size, rows),
      right = Math.min(left + size, columns);
    const [x0, y0] = this.plane.toScreen(top, left).map(Math.round), [x1, y1] = this.plane.toScreen(bottom, right)
      .map(Math.round);
    const sx = left / cell - tile.column * side, sy = top / cell - tile.row * side;
    context.drawImage(paintTile(tile, this.colours), sx, sy, (right - left) / cell, (bottom - top) / cell, x0, y0,
      x1 - x0, y1 - y0);
  }

  drawMarks(context) {
    const { mark, pinned, band } = this.settings, { scale, width, height } = this.plane,
      warm = this.style.getPropertyValue("--warm");
    context.strokeStyle = warm;
    context.lineWidth = 1.5;
    if (mark !== null) {
      const [x, y] = this.plane.toScreen(mark, band ? -10 : mark);
      context.globalAlpha = 0.7;
      context.strokeRect(-5, y, width + 10, Math.max(scale, 1));
      if (!band) context.strokeRect(x, -5, Math.max(scale, 1), height + 10);
      context.globalAlpha = 1;
    }
    if (pinned) {
      const [x, y] = this.plane.toScreen(pinned[0], band ? pinned[0] + this.map.offset - pinned[1] : pinned[1]),
        size = Math.max(scale, 6);
      context.lineWidth = 2.5;
      context.strokeRect(x, y, size, size);
    }
    if (this.hover) {
      const cell = 2 ** this.level, [row, column] = this.plane.toMap(...this.hover)
        .map((v) => Math.floor(v / cell) * cell);
      const [x, y] = this.plane.toScreen(row, column);
      context.strokeStyle = this.style.getPropertyValue("--ink");
      context.lineWidth = 1;
      if (scale * cell >= 4) context.strokeRect(x, y, scale * cell, scale * cell);
    }
  }

  // Entropy of the rows at the left, received mass of the keys at the top, each on the scale of its part in view.
  drawMargins(context) {
    const { level, margins, offset } = this, cell = 2 ** level, { band, log } = this.settings;
    const [top, bottom] = this.plane.rowRange.map((v) => v / cell),
      [left, right] = this.plane.columnRange.map((v) => v / cell);
    const fits = margins && margins.id === this.map.id && margins.level === level && margins.row <= Math.floor(top)
      && margins.column <= Math.floor(left)
      && margins.row + margins.entropy.length >= Math.ceil(bottom)
        && (band || margins.column + margins.received.length >= Math.ceil(right));
    if (!fits) this.requestMargins();
    if (!margins || margins.id !== this.map.id) return;
    context.fillStyle = this.style.getPropertyValue("--accent");
    const step = 2 ** margins.level, share = (values, first, from, to) => {
      const part = values.subarray(Math.max(0, Math.floor(from / step) - first),
        Math.max(0, Math.ceil(to / step) - first));
      const max = part.reduce((m, x) => Math.max(m, x), 0) || 1;
      return (x) => clamp(log && max > 20 ? Math.log1p(x) / Math.log1p(max) : x / max, 0, 1) * (MARGIN - 4);
    };
    const tall = share(margins.entropy, margins.row, ...this.plane.rowRange),
      wide = share(margins.received, margins.column, ...this.plane.columnRange);
    const bars = (values, first, side, length, draw) => values.forEach((x, i) => {
      // whole pixels, without gaps
      const at = (k) => clamp(Math.round(this.plane.toScreen((first + k) * step, (first + k) * step)[side]), 0, length);
      if (at(i + 1) > at(i)) draw(at(i), at(i + 1) - at(i), x);
    });
    bars(margins.entropy, margins.row, 1, this.plane.height,
      (at, size, x) => context.fillRect(offset - 2 - tall(x), offset + at, tall(x), size));
    if (!band) bars(margins.received, margins.column, 0, this.plane.width,
      (at, size, x) => context.fillRect(offset + at, offset - 2 - wide(x), size, wide(x)));
  }

  drawRuler(context, side) {
    const isRow = side === "query", { band } = this.settings, [start, stop] = isRow ? this.plane.rowRange
      : this.plane.columnRange, { scale } = this.plane;
    const writes = scale >= TOKEN_SCALE && this.map.has_tokens && (isRow || !band);
    context.fillStyle = this.style.getPropertyValue("--soft");
    context.font = "12px ui-monospace, Menlo, Consolas, monospace";
    context.textBaseline = "middle";
    const step = writes ? 1 : niceStep(80 / scale), first = Math.ceil(start / step) * step;
    for (let at = first; at < stop; at += step) {
      const text = writes ? this.token(side, at) : count(at);
      const [x, y] = this.plane.toScreen(isRow ? at + 0.5 : 0, isRow ? 0 : at + 0.5), pixel = isRow ? y : x;
      if (pixel < 0 || pixel > (isRow ? this.plane.height : this.plane.width)) continue;
      if (this.settings.marks.includes(at)) context.fillStyle = this.style.getPropertyValue("--warm");
      this.write(context, isRow, writes, pixel, text ?? "");
      context.fillStyle = this.style.getPropertyValue("--soft");
    }
    context.font = "12px system-ui, sans-serif";
    context.textAlign = "left";
    if (isRow) context.fillText("query ↓", 2, this.offset - 8);
    else context.fillText(band ? "distance back →" : "key →", 2, this.offset - 24);
  }

  write(context, isRow, isToken, pixel, text) {
    const short = isToken ? showToken(text).slice(0, 7) : text, end = this.offset - MARGIN - 4;
    context.save();
    if (isRow) context.translate(end, this.offset + pixel);
    else context.translate(this.offset + pixel, end);
    if (!isRow && isToken) context.rotate(-Math.PI / 2);
    context.textAlign = isRow ? "right" : isToken ? "left" : "center";
    context.fillText(short, 0, isRow || isToken ? 0 : -4);
    context.restore();
  }

  // ---- numbers

  // Value and cell under a point of the view; null outside of the map, and where no tile is yet.
  read(px, py) {
    const [row, column] = this.plane.toMap(px, py).map(Math.floor), { rows, columns } = this.plane;
    if (row < 0 || column < 0 || row >= rows || column >= columns || px < 0 || py < 0) return null;
    const size = this.map.tile * 2 ** this.level,
      tile = this.best(this.level, Math.floor(row / size), Math.floor(column / size));
    if (!tile) return { row, column, level: this.level, value: null };
    const cell = 2 ** tile.level, i = Math.floor(row / cell) - tile.row * this.map.tile,
      j = Math.floor(column / cell) - tile.column * this.map.tile;
    return { row, column, level: tile.level, value: tile.values[i * tile.columns + j], complete: tile.complete };
  }

  updateReadout(withPlace = false) {
    const cell = this.hover && this.map && this.read(...this.hover);
    if (!cell) return this.events.onReadout("", null);
    const size = 2 ** cell.level, { band, reduce } = this.settings;
    const span = (name, at, side) => {
      const first = Math.floor(at / size) * size, last = first + size - 1, token = size === 1 && side
        && this.plane.scale >= TOKEN_SCALE ? this.token(side, at) : null;
      return `${name} ${size === 1 ? count(at) : `${count(first)}–${count(last)}`}${token ? ` “${showToken(token)}”`
        : ""}`;
    };
    const what = cell.value === null ? "loading" : Number.isNaN(cell.value) ? "hidden by the mask"
      : `${this.other ? "difference of " : ""}${size === 1 ? "weight"
        : `${reduce} weight`} ${format(cell.value, 4)}${cell.complete === false ? " (preview)" : ""}`;
    const place = `${span("query", cell.row, "query")}, ${span(band ? "distance" : "key", cell.column, band ? null
      : "key")}: ${what}`;
    this.events.onReadout(withPlace ? `${place}. ${this.where()}` : place, cell.value);
  }

  where() {
    const part = ([start, stop], all) => `${count(start)}–${count(Math.max(start, stop - 1))} of ${count(all)}`,
      { band } = this.settings;
    return `Queries ${part(this.plane.rowRange, this.plane.rows)}, ${band ? "distances"
      : "keys"} ${part(this.plane.columnRange, this.plane.columns)}`;
  }

  pick(px, py) {
    const cell = this.read(px, py);
    if (!cell || cell.level > 0 || Number.isNaN(cell.value)) return;
    const key = this.settings.band ? cell.row + this.map.offset - cell.column : cell.column;
    if (key >= 0 && key < this.map.keys) this.events.onPick(cell.row, key);
  }

  // ---- what comes from the server beside tiles

  token(side, at) {
    const chunk = Math.floor(at / CHUNK), name = `${side} ${chunk}`, known = this.tokens.get(name);
    if (known) return known[at % CHUNK] ?? "";
    if (known === undefined && !offline) {
      this.tokens.set(name, null);
      const id = this.map.id;
      request("atlas.tokens", { id, side, start: chunk * CHUNK, stop: (chunk + 1) * CHUNK },
        { quiet: true, save: false })
        .then(({ tokens }) => { this.tokens.set(name, tokens ?? []); this.redraw(); })
        .catch((error) => { this.tokens.delete(name); this.failed(error, id); });
    }
    return null;
  }

  // The margins of the view and a bit around; while the pass runs they come with its progress.
  requestMargins(polls = false) {
    if (!this.map || offline || this.isRequesting) return;
    const { level, map } = this, cell = 2 ** level, around = ([start, stop], all) => {
      const size = Math.ceil((stop - start) / cell) + 1,
        first = Math.max(0, Math.floor(start / cell) - Math.ceil(size / 2));
      return [first, Math.min(4096, 2 * size + 2, Math.ceil(all / cell) - first)];
    };
    const [row, rows] = around(this.plane.rowRange, map.queries), [column, columns] = this.settings.band ? [0, 0]
      : around(this.plane.columnRange, map.keys);
    this.isRequesting = true;
    request("atlas.margins", { id: map.id, level, row, rows, column, columns }, { quiet: true, save: false })
      .then((response) => {
      this.isRequesting = false;
      this.margins = { id: map.id, level, row, column, entropy: unpack(response.entropy).values,
        received: unpack(response.received).values };
      this.advanced(map, response.progress);
      this.redraw();
    }).catch((error) => {
      this.later = setTimeout(() => { this.isRequesting = false; }, 1000);
      this.failed(error, map.id);
    });
    if (polls && this.other && this.other.progress < 1) {
      const id = this.other.id, other = this.other;
      request("atlas.margins", { id, level: 0, rows: 0, columns: 0 }, { quiet: true, save: false })
        .then((a) => this.advanced(other, a.progress)).catch(() => {});
    }
  }

  advanced(map, progress) {
    if (progress === map.progress) return;
    map.progress = progress;
    this.store.refresh();
    this.events.onProgress(this.progress);
  }
}

export const overview = (map) => decodeTile(decodeBase64(map.overview).buffer);

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return Math.max(1, [1, 2, 5, 10].map((m) => m * power).find((s) => s >= least) ?? 1);
}
