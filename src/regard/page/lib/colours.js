// Colour scales that stay readable without colour vision: lightness alone orders the sequential one.
import { signal } from "./dom.js";

const SCALES = {
  light: {
    sequential: ["#f7fafd", "#cfe1f2", "#93c3df", "#4a98c9", "#1764ab", "#08306b"],
    diverging: ["#9a4b05", "#e08a2c", "#f9d9ae", "#f7f7f7", "#c3d9ee", "#4f91cd", "#0b4a8f"],
    hidden: "#ececec",
  },
  dark: {
    sequential: ["#131a22", "#143b5c", "#1f6ea3", "#52b0d6", "#b2e0ec", "#fdfbe6"],
    diverging: ["#ffb866", "#c2701c", "#5e3a16", "#1b222b", "#173f63", "#3d86c6", "#a9d8f5"],
    hidden: "#252b33",
  },
};
// Distinct lines (Okabe and Ito 2008), distinguished by dash as well.
export const LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a07800", "#56b4e9", "#7f7f7f", "#8c510a"];
export const DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 2", "10 4", "4 2 1 2", "3 6"];

const stored = localStorage.getItem("theme");
const preferred = matchMedia("(prefers-color-scheme: dark)");
export const theme = signal(stored ?? (preferred.matches ? "dark" : "light"));
preferred.addEventListener("change",
  () => { if (!localStorage.getItem("theme")) theme.value = preferred.matches ? "dark" : "light"; });

export function toggleTheme() {
  theme.value = theme.peek() === "dark" ? "light" : "dark";
  localStorage.setItem("theme", theme.peek());
}

const parse = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const tables = new Map();

// 256 colours of a scale as [r, g, b].
function table(kind) {
  const key = `${theme.peek()} ${kind}`;
  if (!tables.has(key)) {
    const stops = SCALES[theme.peek()][kind].map(parse);
    tables.set(key, Array.from({ length: 256 }, (_, i) => {
      const at = (i / 255) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
      return stops[low].map((c, j) => Math.round(c + (stops[low + 1][j] - c) * (at - low)));
    }));
  }
  return tables.get(key);
}

// A function from value to [r, g, b]. `max` is the value of the strongest colour; NaN is a hidden cell.
export function colourScale({ kind = "sequential", max = 1, log = false } = {}) {
  const colours = table(kind), hidden = parse(SCALES[theme.peek()].hidden);
  const floor = Math.log10(max || 1) - 4; // a log scale spans four decades
  return (x) => {
    if (Number.isNaN(x)) return hidden;
    let share = max ? x / max : 0;
    if (kind === "diverging") share = (share + 1) / 2;
    else if (log) share = x > 0 ? (Math.log10(x) - floor) / 4 : 0;
    return colours[Math.min(255, Math.max(0, Math.round(share * 255)))];
  };
}

export const css = ([r, g, b]) => `rgb(${r},${g},${b})`;

// Black or white, whichever can be read on a colour.
export const inkOn = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111" : "#fff");
