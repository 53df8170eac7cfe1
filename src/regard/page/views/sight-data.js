// A sight in an offline page: pooled maps, exact blocks, numbers per position and top keys. No browser is needed here.
import { numbers } from "../lib/pack.js";

const PACKED = 65535; // weights are multiples of 1/65535

export const titleOf = (site) => site.name + (site.call ? ` (call ${site.call})` : "");

// The first of `count` rows or keys in each cell of a pooled map.
const edge = (count, cells) => (i) => Math.ceil(i * count / cells);

// One block holds the whole map where it is small.
export function isWhole({ blocks, queries, keys }) {
  const { rows, keys: columns } = blocks[0][0];
  return rows[1] - rows[0] === queries && columns[1] - columns[0] === keys;
}

export function pooledMap(site, head) {
  const [rows, columns] = site.image.cells, size = rows * columns;
  site.pixels ??= numbers(site.image.data, "u1");
  const values = Float32Array.from(site.pixels.subarray(head * size, (head + 1) * size),
    (x) => (x / 255) ** 2 * site.image.scale[head]);
  return { values, rows, columns, query: edge(site.queries, rows), key: edge(site.keys, columns), isExact: false };
}

export function blockMap(site, head, at) {
  const { rows: [top, bottom], keys: [left, right], data } = site.blocks[head][at];
  const values = Float32Array.from(numbers(data, "u2"), (x) => x / PACKED);
  return { values, rows: bottom - top, columns: right - left, query: (i) => top + i, key: (j) => left + j,
    isExact: true };
}

// The whole map of a head, or one of its blocks.
export const mapOf = (site, head, block = null) =>
  (block === null && !isWhole(site) ? pooledMap(site, head) : blockMap(site, head, block ?? 0));

// The keys with the largest weights of one listed query: [[key, weight], …]
export function topKeys(site, head, row) {
  const { count, dtype, rows } = site.top, none = dtype === "u2" ? PACKED : 2 ** 32 - 1;
  site.topKeys ??= numbers(site.top.keys, dtype);
  site.topWeights ??= numbers(site.top.weights, "u2");
  const start = (head * rows.length + row) * count;
  return Array.from({ length: count }, (_, i) => [site.topKeys[start + i], site.topWeights[start + i] / PACKED])
    .filter(([key]) => key !== none);
}

// One value per position of a head, or means of them.
export const stripOf = (site, head, name) =>
  numbers(site.strips[name].data, "f4").subarray(head * site.strips[name].cells, (head + 1) * site.strips[name].cells);

// As the grid of heads takes it: thumbnails of all heads.
export function describeSite(site, labels) {
  const maps = site.heads.map((_, head) => mapOf(site, head)), [{ rows, columns }] = maps;
  const values = new Float32Array(maps.length * rows * columns);
  maps.forEach((map, head) => values.set(map.values, head * rows * columns));
  return { ...site, title: site.name, name: titleOf(site), heads: site.heads.length, types: site.heads,
    maps: { shape: [maps.length, rows, columns], values },
    queryLabel: (i) => labels[site.query_labels][i] ?? String(i),
    keyLabel: (i) => labels[site.key_labels][i] ?? String(i), source: site };
}
