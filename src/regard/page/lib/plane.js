// A plane to move over: what part of a large map is in view, by pointer, wheel, pinch and keyboard.
import { clamp, pointIn } from "./dom.js";

const MAX_SCALE = 40; // pixels per weight

export class Plane {
  // rows, columns: the size of the map · width, height: of the area on screen · x, y: the middle of the view · scale:
  // pixels per weight
  constructor() {
    Object.assign(this, { rows: 1, columns: 1, width: 1, height: 1, x: 0.5, y: 0.5, scale: 1, minScale: 0 });
  }

  get fitScale() { return Math.min(this.width / this.columns, this.height / this.rows); }
  get lowest() { return Math.min(MAX_SCALE, Math.max(this.minScale, Math.min(this.fitScale, MAX_SCALE))); }
  get left() { return this.x - this.width / 2 / this.scale; }
  get top() { return this.y - this.height / 2 / this.scale; }
  get rowRange() {
    return [clamp(Math.floor(this.top), 0, this.rows),
      clamp(Math.ceil(this.top + this.height / this.scale), 0, this.rows)];
  }
  get columnRange() {
    return [clamp(Math.floor(this.left), 0, this.columns),
      clamp(Math.ceil(this.left + this.width / this.scale), 0, this.columns)];
  }
  get isWhole() { return this.scale <= this.lowest * 1.0001 && this.lowest === Math.min(this.fitScale, MAX_SCALE); }

  toScreen(row, column) { return [(column - this.left) * this.scale, (row - this.top) * this.scale]; }
  toMap(px, py) { return [this.top + py / this.scale, this.left + px / this.scale]; }

  fit() { this.scale = this.lowest; this.x = this.columns / 2; this.y = this.rows / 2; this.bound(); }

  move(dx, dy) { this.x -= dx / this.scale; this.y -= dy / this.scale; this.bound(); }

  // Zoom by a factor; what is at (px, py) stays there.
  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const [row, column] = this.toMap(px, py);
    this.scale = clamp(this.scale * factor, this.lowest, MAX_SCALE);
    this.x = column + (this.width / 2 - px) / this.scale;
    this.y = row + (this.height / 2 - py) / this.scale;
    this.bound();
    return this;
  }

  // The view never leaves the map; a map smaller than the view stays at its upper left.
  bound() {
    this.scale = clamp(this.scale, this.lowest, MAX_SCALE);
    const half = (size) => size / 2 / this.scale;
    this.x = this.columns * this.scale <= this.width ? half(this.width)
      : clamp(this.x, half(this.width), this.columns - half(this.width));
    this.y = this.rows * this.scale <= this.height ? half(this.height)
      : clamp(this.y, half(this.height), this.rows - half(this.height));
  }
}

// Pointer, wheel and keys of an element. origin(): offset of the area in it · onMove(), onHover(px, py | null),
// onClick(px, py), onEnter()
export function handle(element, plane, { origin, onMove, onHover, onClick, onEnter }) {
  const pointers = new Map();
  let travelled = 0;
  const place = (event) => {
    const { x, y } = pointIn(event, element), [left, top] = origin();
    return [x - left, y - top];
  };
  const spread = () => {
    const [[ax, ay], [bx, by]] = [...pointers.values()];
    return [Math.hypot(ax - bx, ay - by), (ax + bx) / 2, (ay + by) / 2];
  };
  const listeners = {
    pointerdown(event) {
      if (event.button) return;
      element.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, place(event));
      if (pointers.size === 1) travelled = 0;
    },
    pointermove(event) {
      const now = place(event), before = pointers.get(event.pointerId);
      if (!before) return onHover(...now);
      travelled += Math.hypot(now[0] - before[0], now[1] - before[1]);
      if (pointers.size === 2) {
        const [old, x, y] = spread();
        pointers.set(event.pointerId, now);
        const [size, px, py] = spread();
        plane.zoom(size / Math.max(old, 1), px, py).move(px - x, py - y);
      } else plane.move(now[0] - before[0], now[1] - before[1]);
      pointers.set(event.pointerId, now);
      onMove();
    },
    pointerup(event) {
      const was = pointers.delete(event.pointerId);
      if (was && !pointers.size && travelled < 4) onClick(...place(event));
    },
    pointercancel(event) { pointers.delete(event.pointerId); },
    pointerleave() { onHover(null); },
    dblclick(event) { plane.zoom(event.shiftKey ? 1 / 3 : 3, ...place(event)); onMove(); event.preventDefault(); },
    wheel(event) {
      event.preventDefault();
      plane.zoom(Math.exp(-clamp(event.deltaY * (event.deltaMode ? 30 : 1), -400, 400) * 0.002), ...place(event));
      onMove();
    },
    keydown(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const step = event.shiftKey ? Math.max(plane.scale, 1) : Math.min(plane.width, plane.height) / 6;
      const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
      if (moves[event.key]) plane.move(...moves[event.key]);
      else if (event.key === "+" || event.key === "=") plane.zoom(1.5);
      else if (event.key === "-" || event.key === "_") plane.zoom(1 / 1.5);
      else if (event.key === "Home") plane.fit();
      else if (event.key === "Enter") return onEnter();
      else return;
      event.preventDefault();
      onMove(true);
    },
  };
  for (const name in listeners) element.addEventListener(name, listeners[name], { passive: false });
  return () => { for (const name in listeners) element.removeEventListener(name, listeners[name]); };
}
