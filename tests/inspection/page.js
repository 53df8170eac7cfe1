// Just enough of a browser to run a report's script and hear what it would show.
"use strict";
class Element {
  constructor() { Object.assign(this, { children: [], dataset: {}, style: {}, attributes_: {}, textContent: "", classList: { toggle() {} } }); }
  append(...more) { this.children.push(...more); }
  replaceChildren(...more) { this.children = more; }
  setAttribute(name, value) { this.attributes_[name] = String(value); }
  getAttribute(name) { return this.attributes_[name] ?? null; }
  querySelectorAll() { return this.all().filter(e => e.dataset.key !== undefined); }
  all() { return this.children.flatMap(e => (e instanceof Element ? [e, ...e.all()] : [])); }
  addEventListener() {}
  getContext() {
    const data = (w, h) => ({ data: new Uint8ClampedArray(4 * w * h) });
    const known = { createImageData: data, getImageData: (x, y, w, h) => data(w, h), measureText: text => ({ width: 6 * text.length }) };
    return new Proxy(known, { get: (own, name) => own[name] ?? (() => {}) });
  }
  get tBodies() { return [{ rows: [] }]; }
  get tHead() { return { rows: [{ cells: [] }] }; }
}
globalThis.Image = class { width = 1; height = 1; async decode() {} };
globalThis.addEventListener = () => {};
globalThis.devicePixelRatio = 1;
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#000" });
const fs = require("node:fs"), [page, ...asked] = process.argv.slice(2);
const parts = [...fs.readFileSync(page, "utf8").matchAll(/<script[^>]*>([^]*?)<\/script>/g)].map(m => m[1]);
const known = { data: Object.assign(new Element(), { textContent: parts[0] }) };
globalThis.document = {
  getElementById: id => (known[id] ??= new Element()),
  createElement: () => new Element(),
  querySelectorAll: () => [],
};
new Function("asked", "done", parts[1] + `
  setTimeout(() => done(asked.map(text => {
    const [at, head, row] = text.split(",").map(Number);
    choose(at, head); point(row);
    const site = sites[at], view = viewOf(site, head, null), cells = [];
    for (let i = 0; i < view.high; i++) for (let j = 0; j < view.wide; j++) cells.push(describeCell(site, view, i, j));
    const strips = $("strips").all().concat($("strips").children).map(e => e.textContent).filter(Boolean);
    return { title: $("h-one").textContent, words: $("words").textContent, attended: $("attended").textContent, cells, strips,
      tokens: $("tokens").all().concat($("tokens").children).map(e => e.textContent) };
  })));`)(asked, answers => console.log(JSON.stringify(answers)));
