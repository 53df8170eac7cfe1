// Recording with the microphone: a button, and the text while one speaks.
import { html, largest, useEffect, useRef, useState } from "../lib/dom.js";
import { sendFile } from "../lib/files.js";
import { record } from "../lib/microphone.js";
import { offline, setParams } from "../lib/state.js";

const MAX_RECORD_SECONDS = 120;

export function Recorder({ model, live, setLive, onProblem }) {
  const current = useRef(null), [starting, setStarting] = useState(false);
  useEffect(() => () => current.current?.abandon(), []);
  if (offline) return null;
  const end = (sentence) => { current.current = null; setLive(null); if (sentence) onProblem(sentence); };
  const finish = async () => {
    try {
      setParams({ file: await sendFile(current.current.wav()), at: null });
      end("");
    } catch (error) { end(error.message); }
  };
  const start = async () => {
    onProblem("");
    setStarting(true);
    const state = { text: "", partial: "", seconds: 0, levels: [], stopping: false };
    const update = (changes) => { Object.assign(state, changes); setLive({ ...state }); };
    try {
      current.current = await record(model, {
        onText: (m) => { update({ text: state.text + m.text, partial: m.partial }); if (m.is_last) finish(); },
        onSamples: (x) => {
          update({ seconds: state.seconds + 0.1, levels: [...state.levels, largest(x)].slice(-300) });
          if (state.seconds >= MAX_RECORD_SECONDS) stop();
        },
        onError: end,
      });
      update({});
    } catch (error) { end(error.message); }
    setStarting(false);
  };
  const stop = () => { setLive((x) => x && { ...x, stopping: true }); current.current?.stop(); };
  return html`<button class=${live ? "primary" : ""} disabled=${starting || live?.stopping || !model}
    onClick=${live ? stop : start}>${live ? "■ Stop" : "● Record"}</button>`;
}

export function LiveText({ live }) {
  return html`<p class="transcript">${live.text}<span class="faint">${live.partial}</span>
    <span class="caret" aria-hidden="true"></span></p>
    <svg class="drawing" width="300" height="60" viewBox="0 0 300 60" role="img" aria-label="Level of the microphone">
      ${live.levels.map((x, i) => html`<rect
      x=${i} y=${30 - 29 * x} width="1" height=${Math.max(1, 58 * x)} fill="var(--accent)" />`)}</svg>
    <p class="faint">Recording, ${live.seconds.toFixed(1)} s; at most ${MAX_RECORD_SECONDS} s. The whole analysis
      follows when you stop.</p>`;
}
