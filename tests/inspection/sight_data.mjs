// What the view `sight` computes from the data of a page, without a browser: node sight_data.mjs FOLDER JSON at,head,row …
import { pathToFileURL } from "node:url";
import { readFileSync } from "node:fs";

const [folder, file, ...places] = process.argv.slice(2);
const { describeSite, mapOf, stripOf, topKeys } = await import(pathToFileURL(`${folder}/views/sight-data.js`));
const page = JSON.parse(readFileSync(file, "utf8"));
const results = places.map((text) => {
  const [at, head, row] = text.split(",").map(Number), site = describeSite(page.sites[at], page.labels);
  return { name: site.name, heads: site.heads, label: site.queryLabel(row), top: topKeys(site.source, head, row),
    cells: [...mapOf(site.source, head).values], thumbnails: [...site.maps.values],
    entropy: [...stripOf(site.source, head, "entropy")] };
});
console.log(JSON.stringify(results));
