// Every head as a small map in one strip, sorted by a number and filtered by kind.
import { html, largest, range, useEffect, useLayoutEffect, useMemo, useRef, useSignal } from "../lib/dom.js";
import { unpack } from "../lib/api.js";
import { colourScale, theme } from "../lib/colours.js";
import { paint } from "../lib/draw.js";
import { setParam, setParams } from "../lib/state.js";
import { Select } from "../lib/widgets.js";

const shortNumber = (x) => (x === null || x === undefined ? "–" : Math.abs(x) < 0.005 ? "0" : x >= 100 ? x.toFixed(0)
  : x.toFixed(Math.abs(x) >= 10 ? 1 : 2));
const shortName = (name) => name.replace("encoder.", "enc ").replace("decoder.", "").replace(".self", "");

export function Strip({ response, params, site, head, effects }) {
  const box = useRef(null);
  const effectOf = new Map((effects?.heads ?? []).map((x) => [`${x.site} ${x.head}`, x.effect]));
  const sorts = [...(effects ? [["effect", "Effect on the output"]] : []), ["layer", "Layer"],
    ...response.columns.map((c) => [c.name, `${c.label[0].toUpperCase()}${c.label.slice(1)}`])];
  const sort = sorts.find(([name]) => name === params.sort)?.[0] ?? sorts[0][0];
  const number = (row) => (sort === "effect" ? effectOf.get(`${row.site} ${row.head}`)
    : row[sort === "layer" ? "normalized_entropy" : sort]);
  const kinds = countBy(response.heads, (x) => x.type), attentions = countBy(response.heads, kindOf);
  const options = [["", response.heads.length === 1 ? "1 head" : `All ${response.heads.length} heads`],
    ...[...kinds, ...(attentions.size > 1 ? attentions : [])].map(([name, n]) => [name, `${name} (${n})`])];
  const kind = options.some(([name]) => name === params.kind) ? params.kind : "";
  const shown = response.heads.filter((x) => !kind || x.type === kind || kindOf(x) === kind);
  const value = (row) => number(row) ?? -Infinity;
  if (sort !== "layer") shown.sort((a, b) => value(b) - value(a));
  const sites = new Map(response.sites.map((s) => [s.name, s])), maps = useMaps(response.sites);
  const at = shown.findIndex((x) => x.site === site.name && x.head === head);
  const go = (i) => shown[i] && setParams({ site: shown[i].site, head: String(shown[i].head), query: null, key: null });
  useLayoutEffect(() => {
    const on = box.current.querySelector("[aria-pressed=true]");
    if (on) box.current.scrollLeft = on.offsetLeft - (box.current.clientWidth - on.offsetWidth) / 2;
  }, [response, at, sort, kind]);
  const press = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    go(at + step);
    box.current.children[at + step]?.focus();
  };
  return html`<section class="panel strip-panel" aria-label="All heads">
    <div class="strip-choose">
      <${Select} label="Sort by" value=${sort} options=${sorts} onChange=${setParam("sort", sorts[0][0])} />
      <${Select} label="Show" value=${kind} options=${options} onChange=${setParam("kind", "")} />
      <span class="row"><button disabled=${at < 1} onClick=${() => go(at - 1)} data-key="ArrowLeft"
        data-does="head before" aria-label="Head before">‹</button><button disabled=${at > shown.length - 2}
        onClick=${() => go(at + 1)} data-key="ArrowRight" data-does="next head" aria-label="Next head">›</button></span>
    </div>
    <div class="strip-heads" ref=${box} onKeyDown=${press}>${shown.map((row, i) => html`<button class="head-thumb"
      key=${`${row.site} ${row.head}`} aria-pressed=${i === at} tabindex=${i === at || (at < 0 && i === 0) ? 0 : -1}
      data-site=${row.site} data-head=${row.head} data-value=${number(row)} onClick=${() => go(i)}
      aria-label=${`${row.site}, head ${row.head}: ${row.type}, ${shortNumber(number(row))}`}
      title=${`${row.site}, head ${row.head}: ${row.type}. ${row.words}`}>
      <${Thumb} site=${sites.get(row.site)} map=${maps.get(row.site)} head=${row.head} />
      <span>${shortName(row.site)}·${row.head}</span><span>${row.type}</span><b>${shortNumber(number(row))}</b>
      </button>`)}</div></section>`;
}

const kindOf = (row) => (row.kind === "cross" ? "cross-attention"
  : `${row.site.match(/encoder|decoder/)?.[0] ?? ""} self-attention`.trim());
const countBy = (rows, of) => rows.reduce((m, x) => m.set(of(x), (m.get(of(x)) ?? 0) + 1), new Map());
const useMaps = (sites) => useMemo(() => new Map(sites.map((s) => [s.name, unpack(s.maps)])), [sites]);

function Thumb({ site, map, head }) {
  const canvas = useRef(null), shade = useSignal(theme);
  useEffect(() => {
    const [, rows, columns] = map.shape, part = map.values.subarray(head * rows * columns, (head + 1) * rows * columns);
    const most = largest(part, 1e-30); // the square root shows small weights beside large ones
    paint(part.map((x) => Math.sqrt(Math.max(0, x) / most)), rows, columns, colourScale({ max: 1 }), canvas.current);
  }, [map, head, shade]);
  return html`<canvas class="pixels" ref=${canvas} width="1" height="1" aria-hidden="true" data-site=${site.name} />`;
}
