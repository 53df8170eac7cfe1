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
  getContext() { return { drawImage() {}, putImageData() {}, createImageData: (w, h) => ({ data: new Uint8ClampedArray(4 * w * h) }) }; }
  get tBodies() { return [{ rows: [] }]; }
  get tHead() { return { rows: [{ cells: [] }] }; }
}
globalThis.Image = class { addEventListener() {} };
const fs = require("node:fs"), [page, ...asked] = process.argv.slice(2);
const parts = [...fs.readFileSync(page, "utf8").matchAll(/<script[^>]*>([^]*?)<\/script>/g)].map(m => m[1]);
const known = { data: Object.assign(new Element(), { textContent: parts[0] }) };
globalThis.document = {
  getElementById: id => (known[id] ??= new Element()),
  createElement: () => new Element(),
  querySelectorAll: () => [],
};
const answers = new Function("asked", parts[1] + `
  return asked.map(text => {
    const [site, head, row] = text.split(",").map(Number);
    choose(site, head); point(row);
    const cells = $("windows").all().filter(e => e.title).map(e => e.title);
    const strips = $("strips").all().concat($("strips").children).map(e => e.textContent).filter(Boolean);
    return { title: $("h-one").textContent, words: $("words").textContent, attended: $("attended").textContent, cells, strips,
      tokens: $("tokens").all().concat($("tokens").children).map(e => e.textContent) };
  });`)(asked);
console.log(JSON.stringify(answers));
