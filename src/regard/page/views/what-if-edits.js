// Controls of the what-if view, made from what the edits declare, and edits as text in the link.
import { format, html, useSignal, useState } from "../lib/dom.js";
import { colourScale, css, inkOn, theme } from "../lib/colours.js";
import { setParams } from "../lib/state.js";
import { Choice, Select, Slider, Switch, Tokens } from "../lib/widgets.js";

// ---- edits in the link, as in Python: "scale_scores('*', factor=0.5); drop_head('encoder.0.self', heads=[2])"

export const writeEdits = (calls) =>
  calls.map(({ edit, place, values }) =>
    `${edit}('${place}'${Object.entries(values).map(([name, x]) => `, ${name}=${JSON.stringify(x)}`).join("")})`)
      .join("; ") || null;

// The edits of the link; null where they are written in another way, which the server then reads.
export function readEdits(text) {
  const calls = (text ?? "").split(";").filter((x) => x.trim()).map((part) => {
    const [, edit, place, rest] = part.trim().match(/^(\w+)\('([^']*)'((?:, *\w+=(?:\[[\d, ]*\]|[-\d.e]+))*)\)$/) ?? [];
    return edit && { edit, place,
      values: Object.fromEntries([...rest.matchAll(/(\w+)=(\[[^\]]*\]|[^,]+)/g)].map(([, name, x]) =>
        [name, JSON.parse(x)])) };
  });
  return calls.includes(undefined) ? null : calls;
}

// ---- controls, made from what the edits declare: a number is a slider, keys and positions are tokens, heads a grid

const TOKENS = ["keys", "queries", "positions", "tokens"];
export const noEdits = { edits: null, where: null, only: null };
export const isOfTokens = (name) => TOKENS.includes(name);
const words = (name) => name.replaceAll("_", " ");
const parameter = (type, test) => type.parameters.find(test);
const needsHeads = (type) => type.parameters.some((p) => p.name === "heads" && p.is_required);
const toggled = (list, x) => (list.includes(x) ? list.filter((y) => y !== x) : [...list, x].sort((a, b) => a - b));
const listOf = (x) => (x === undefined ? [] : [x].flat());

export function Controls({ response, params }) {
  const { types } = response, calls = readEdits(params.edits) ?? response.calls, order = types.map((t) => t.edit);
  const attention = types.filter((t) => t.target === "attention"), shared = attention.filter((t) => !needsHeads(t));
  const isShared = (call) => shared.some((t) => t.edit === call.edit);
  // edits other than those of heads act at the same place
  const where = params.where ?? ([...new Set(calls.filter(isShared).map((c) => c.place))].join(" ") || "*");
  const store = (list, more = {}) =>
    setParams({ edits: writeEdits([...list].sort((a, b) => order.indexOf(a.edit) - order.indexOf(b.edit))), ...more });
  const values = (type) => calls.find((c) => c.edit === type.edit)?.values;
  // values without what an edit needs are no edit; null removes it
  const set = (type, next, places = where.split(" ")) => {
    const rest = calls.filter((c) => c.edit !== type.edit),
      amount = parameter(type, (p) => p.kind === "number" && p.is_required);
    const whole = next
      && type.parameters.every((p) => !p.is_required || (next[p.name] !== undefined && listOf(next[p.name]).length));
    const only = next && params.only !== undefined && isShared({ edit: type.edit })
      ? { heads: [Number(params.only)] } : {};
    const acts = whole && (!amount || next[amount.name] !== amount.range[2]);
    store(acts ? [...rest, ...places.map((place) => ({ edit: type.edit, place, values: { ...next, ...only } }))]
      : rest);
  };
  const setWhere = (place, only) => {
    const unmoved = calls.filter((c) => !isShared(c)),
      shared = [...new Map(calls.filter(isShared).map((c) => [c.edit, c])).values()];
    const moved = shared.flatMap((c) => place.split(" ").map((x) => {
      const { heads, ...rest } = c.values;
      return { ...c, place: x, values: only === undefined ? rest : { ...rest, heads: [Number(only)] } };
    }));
    store([...unmoved, ...moved], { where: place === "*" ? null : place, only: only ?? null });
  };
  const places = [...response.groups.map((g) => [g.where, g.name]), ...response.sites.map((s) => [s.name, s.name])];
  if (!places.some(([x]) => x === where)) places.push([where, where]);
  const given = { response, values, set };
  return html`<aside class="panel controls" aria-label="Edits">
    <div class="row between"><h2>Edits</h2>
      <button onClick=${() => setParams(noEdits)} disabled=${!calls.length}>Reset</button></div>
    <${Control} name="where" on=${where !== "*" || params.only !== undefined} undo=${() => setWhere("*")}>
      <${Select} label="Where" value=${where} options=${places} onChange=${(x) => setWhere(x, params.only)} />
      <${Switch} label=${`only head ${params.only ?? response.head}`} value=${params.only !== undefined}
        onChange=${(on) => setWhere(where, on ? String(response.head) : undefined)} /><//>
    ${shared.filter((t) => !t.parameters.some((p) => isOfTokens(p.name)))
      .map((type) => html`<${Whole} type=${type} ...${given} />`)}
    <${Tools} label="Keys and queries" types=${shared.filter((t) => t.parameters.some((p) => isOfTokens(p.name)))}
      calls=${calls} ...${given} />
    <${Heads} types=${attention.filter(needsHeads)} calls=${calls} store=${store} response=${response} />
    ${[["Linear mixers", "mixer"], ["Activations", "activation"]].map(([label, target]) => html`
      <${Tools} label=${label} types=${types.filter((t) => t.target === target)} calls=${calls} place=${true}
        ...${given} />`)}
  </aside>`;
}

// A control with a button that undoes it; the button is there only when something is set.
function Control({ name, on, undo, children }) {
  return html`<div class=${on ? "control on" : "control"}><div>${children}</div>
    <button class="undo" disabled=${!on} aria-label=${`Undo ${words(name)}`} title="Undo this"
      onClick=${undo}>↺</button></div>`;
}

// An edit of whole maps: a slider, or a switch where it takes no number.
function Whole({ type, values, set }) {
  const now = values(type);
  return html`<${Control} name=${type.edit} on=${now !== undefined} undo=${() => set(type, null)}>
    <div title=${type.meaning}>
    ${parameter(type, (p) => p.kind === "number")
      ? html`<${Numbers} type=${type} now=${now ?? {}} change=${(next) => set(type, next)} />`
      : html`<${Switch} label=${words(type.edit)} value=${now !== undefined}
        onChange=${(on) => set(type, on ? {} : null)} />`}</div><//>`;
}

// Sliders of the numbers of an edit, and its seed.
function Numbers({ type, now, change }) {
  return type.parameters.map(({ name, kind, range: span }) => {
    if (kind === "seed") return html`<label class="field"><span>Seed</span>
      <input type="number" min="0" max="9999" value=${now[name] ?? 0}
        onInput=${(e) => change({ ...now, [name]: Number(e.target.value) })} /></label>`;
    if (kind !== "number") return null;
    return html`<${Slider} label=${`${words(type.edit)}: ${name}`} value=${now[name] ?? span[2]} min=${span[0]}
      max=${span[1]} step="0.05" show=${(x) => format(x)} onInput=${(x) => change({ ...now, [name]: x })} />`;
  });
}

// One edit of several, chosen by tabs: its tokens, numbers and, for activations, their names and units.
function Tools({ label, types, calls, place = false, response, values, set }) {
  const used = types.find((t) => calls.some((c) => c.edit === t.edit));
  const [chosen, setChosen] = useState(null), [draft, setDraft] = useState({}),
    type = types.find((t) => t.edit === chosen) ?? used ?? types[0];
  if (!type) return null;
  const call = calls.find((c) => c.edit === type.edit), now = { ...draft[type.edit], ...call?.values };
  const at = call?.place ?? draft.place ?? "",
    of = parameter(type, (p) => isOfTokens(p.name) && (p.is_required || p.name !== "queries"))
      ?? parameter(type, (p) => isOfTokens(p.name));
  const change = (next, name = at) => {
    setDraft({ ...draft, place: name, [type.edit]: next });
    if (!place || name) set(type, next, place ? [name] : undefined);
  };
  const tokens = of?.name === "keys" ? response.keys : response.queries, marked = listOf(now[of?.name]);
  const mark = (list) => {
    const { [of.name]: before, ...rest } = now;
    setDraft({ ...draft, [type.edit]: list.length ? now : rest });
    change(list.length ? { ...rest, [of.name]: list } : rest);
  };
  const note = `${words(type.edit)}: ${of?.name}${of?.is_required ? "" : ", all if none is chosen"}`;
  return html`<${Control} name=${type.edit} on=${call !== undefined} undo=${() => { setDraft({}); set(type, null); }}>
    <span class="faint">${label}</span>
    <${Choice} label=${label} value=${type.edit} options=${types.map((t) => [t.edit, words(t.edit)])}
      onChange=${setChosen} />
    <p class="faint">${type.meaning}</p>
    ${place && html`<label class="field"><span>Activation</span>
      <input list="activations" class="code" value=${at} placeholder="decoder.0.mlp.out"
        onChange=${(e) => change(now, e.target.value)} />
      <datalist id="activations">${response.activations.map((x) => html`<option value=${x} />`)}</datalist></label>`}
    ${of && html`<${Tokens} tokens=${tokens} label=${note} isPressed=${(i) => marked.includes(i)}
      onSelect=${(i) => mark(toggled(marked, i))} />`}
    <${Numbers} type=${type} now=${now} change=${(next) => change(next)} /><//>`;
}

// Sites × heads, coloured by how far each output moved; a click chooses a head for the edit, or frees it.
function Heads({ types, calls, store, response }) {
  useSignal(theme);
  const used = types.find((t) => calls.some((c) => c.edit === t.edit)), [chosen, setChosen] = useState(null);
  const type = types.find((t) => t.edit === chosen) ?? used ?? types[0],
    amount = parameter(type, (p) => p.kind === "number");
  const [draft, setDraft] = useState(amount?.range[0] ?? 0);
  const most = Math.max(1e-9, ...response.sites.flatMap((s) => s.output.map((x) => x ?? 0))),
    colour = colourScale({ max: most });
  const mine = calls.filter((c) => c.edit === type.edit), others = calls.filter((c) => c.edit !== type.edit);
  const value = amount && (mine[0]?.values[amount.name] ?? draft);
  const write = (site, heads, x) => {
    const rest = mine.filter((c) => c.place !== site)
      .map((c) => ({ ...c, values: amount ? { ...c.values, [amount.name]: x } : c.values }));
    const added = heads.length
      ? [{ edit: type.edit, place: site, values: { heads, ...(amount ? { [amount.name]: x } : {}) } }] : [];
    store([...others, ...rest, ...added]);
  };
  const headsOf = (name) => mine.flatMap((c) => (c.place === name ? listOf(c.values.heads) : []));
  return html`<${Control} name=${type.edit} on=${mine.length > 0} undo=${() => store(others)}>
    <span class="faint">Heads</span>
    <${Choice} label="Heads" value=${type.edit} options=${types.map((t) => [t.edit, words(t.edit)])}
      onChange=${setChosen} />
    <p class="faint">${type.meaning}</p>
    <div role="group" aria-label=${`Heads; a pressed one is chosen: ${words(type.edit)}`}>
    ${response.sites.map((site) =>
      html`<div class=${site.output.length > 6 ? "head-row many" : "head-row"}><span class="mono">${site.name}</span>
        ${site.output.map((moved, h) => {
      const on = headsOf(site.name).includes(h), fill = colour(moved ?? 0);
      return html`<button aria-pressed=${on} aria-label=${`${site.name}, head ${h}`}
        title=${`${site.name}, head ${h}: output moved by ${format(moved)}`}
        style=${on ? {} : { background: css(fill), color: inkOn(fill) }}
          onClick=${() => write(site.name, toggled(headsOf(site.name), h), value)}>${on ? "×" : h}</button>`;
    })}</div>`)}</div>
    ${amount && html`<${Slider} label=${`${words(type.edit)}: ${amount.name}`} value=${value} min=${amount.range[0]}
      max=${amount.range[1]} step="0.1" show=${(x) => format(x)}
      onInput=${(x) => { setDraft(x); if (mine.length) write(mine[0].place, listOf(mine[0].values.heads), x); }} />`}
        <//>`;
}
