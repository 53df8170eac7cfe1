// The numbers of every head as a table that can be sorted and limited to a type.
import { fixed, html, useState } from "../lib/dom.js";
import { setParams } from "../lib/state.js";
import { Select } from "../lib/widgets.js";

const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

export function HeadTable({ heads, columns, site, head, stat, onSelect }) {
  const [order, setOrder] = useState({ name: "", down: true }), [type, setType] = useState("");
  const types = [...new Set(heads.map((x) => x.type.split(" ")[0]))];
  const sort = (name) => {
    setOrder({ name, down: name !== order.name || !order.down });
    if (columns.includes(name)) setParams({ stat: name });
  };
  const rows = heads.filter((x) => !type || x.type.split(" ")[0] === type);
  if (order.name) rows.sort((a, b) => compare(a[order.name], b[order.name]) * (order.down ? -1 : 1));
  const direction = (name) => (name !== order.name ? null : order.down ? "descending" : "ascending");
  return html`<${Select} label="Show" value=${type} options=${[["", "all types"], ...types]} onChange=${setType} />
    <div class="scroll" tabindex="0" role="region" aria-label="Table of heads"><table class="head-table">
      <thead><tr>${["site", "head", "type", ...columns].map((name) => html`<th scope="col"
        aria-sort=${direction(name)}><button class="link" onClick=${() => sort(name)}>${name.replace(/_/g, " ")}
          ${name === order.name ? (order.down ? " ↓" : " ↑") : name === stat ? " •" : ""}</button></th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr class=${row.site === site.name && row.head === head ? "on" : ""}>
        <th scope="row">${row.site}</th>
        <td><button onClick=${() => onSelect(row.site, row.head)}
          aria-label=${`${row.site}, head ${row.head}`}>${row.head}</button></td>
        <td title=${row.reason}>${row.type}</td>
        ${columns.map((name) => html`<td class="number">${fixed(row[name], 3)}</td>`)}</tr>`)}</tbody></table></div>`;
}
