// Files of the user: chosen, or dropped on the view.
import { html, useEffect, useState } from "./dom.js";
import { upload } from "./api.js";
import { offline } from "./state.js";

const MAX_BYTES = 16 << 20; // as the server; a larger file is refused before it is sent

export async function sendFile(file) {
  if (file.size > MAX_BYTES) throw new Error(
    `${file.name ?? "The file"} has ${Math.round(file.size / 1e6)} MB; at most ${MAX_BYTES >> 20} MB can be read.`);
  if (!file.size) throw new Error(`${file.name ?? "The file"} is empty.`);
  return upload(file);
}

// A button that chooses a file; a file dropped anywhere on the view counts too. onFile(id, file)
export function FileInput({ label, accept, onFile, onError }) {
  const [over, setOver] = useState(false);
  const take = (file) => file && sendFile(file).then((id) => onFile(id, file)).catch((error) => onError(error.message));
  useEffect(() => {
    const target = document.getElementById("main");
    const drag = (event) => { event.preventDefault(); setOver(event.type === "dragover"); };
    const drop = (event) => { drag(event); take(event.dataTransfer.files[0]); };
    const events = { dragover: drag, dragleave: drag, drop };
    for (const name in events) target.addEventListener(name, events[name]);
    return () => { for (const name in events) target.removeEventListener(name, events[name]); };
  });
  if (offline) return null;
  return html`<label class=${over ? "file over" : "file"}><input type="file" class="hidden" accept=${accept}
    onChange=${(e) => { take(e.target.files[0]); e.target.value = ""; }} />
      <span>${over ? "Drop it here" : label}</span></label>`;
}
