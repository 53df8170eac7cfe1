// Records the microphone and streams it to a model: text comes back while one speaks.
const REFUSED = "The microphone was refused; allow it for this page, or choose a file.";

// A WebSocket of this server; a browser cannot set its headers, so the token is one of the subprotocols.
function openSocket(path, query) {
  const token = sessionStorage.getItem("token");
  const hex = token && [...new TextEncoder().encode(token)].map((b) => b.toString(16).padStart(2, "0")).join("");
  const url = `${location.origin.replace(/^http/, "ws")}${path}?${new URLSearchParams(query)}`;
  return new WebSocket(url, hex ? ["regard", `regard.token.${hex}`] : ["regard"]);
}

// Begin to record. onText({text, partial, is_last, …}) and onSamples(Float32Array) are called while it runs;
// onError(sentence) at most once. The result has stop(), and wav() when it has stopped.
export async function record(model, { onText, onSamples, onError }) {
  if (!navigator.mediaDevices) throw new Error(
    "Recording needs this page on localhost or over https; a file can be chosen instead.");
  const media = await navigator.mediaDevices
    .getUserMedia({ audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: false } })
    .catch((error) => {
      throw new Error(error.name === "NotFoundError" ? "No microphone was found; choose a file instead." : REFUSED);
    });
  const context = new AudioContext(), chunks = [];
  const close = () => { media.getTracks().forEach((t) => t.stop()); if (context.state !== "closed") context.close(); };
  try {
    await context.audioWorklet.addModule("/page/lib/microphone-worklet.js");
    await context.resume();
  } catch (error) { close(); throw new Error(`This browser cannot record: ${error.message}`); }
  const socket = openSocket("/explore/sound/stream", { model, rate: context.sampleRate });
  let stopped = false, done = false;
  const fail = (sentence) => { if (!done) { done = true; stopped = true; close(); onError(sentence); } };
  socket.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    if (message.error) return fail(message.error);
    done ||= message.is_last;
    onText(message);
  };
  socket.onclose = () => fail("The server ended the recording; is regard serve still running?");
  const waiting = []; // samples that came before the connection was there
  const send = (samples) => (socket.readyState === WebSocket.OPEN ? socket.send(toInt16(samples).buffer)
    : waiting.push(samples));
  socket.onopen = () => { waiting.splice(0).forEach(send); if (stopped) socket.send("end"); };
  const node = new AudioWorkletNode(context, "microphone");
  node.port.onmessage = ({ data }) => { if (!stopped) { chunks.push(data); send(data); onSamples(data); } };
  context.createMediaStreamSource(media).connect(node);
  return {
    stop() { stopped = true; close(); if (socket.readyState === WebSocket.OPEN) socket.send("end"); },
    abandon() { done = true; stopped = true; close(); socket.close(); },
    wav: () => toWav(chunks, context.sampleRate),
  };
}

const toInt16 = (samples) => Int16Array.from(samples, (x) => Math.round(32767 * Math.min(1, Math.max(-1, x))));

// A WAV file of 16-bit samples, one channel.
function toWav(chunks, rate) {
  const body = chunks.map(toInt16), size = body.reduce((n, x) => n + x.byteLength, 0),
    head = new DataView(new ArrayBuffer(44));
  const text = (at, s) => [...s].forEach((c, i) => head.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF"); head.setUint32(4, 36 + size, true); text(8, "WAVEfmt "); head.setUint32(16, 16, true);
  head.setUint16(20, 1, true); head.setUint16(22, 1, true); head.setUint32(24, rate, true);
    head.setUint32(28, 2 * rate, true);
  head.setUint16(32, 2, true); head.setUint16(34, 16, true); text(36, "data"); head.setUint32(40, size, true);
  return new Blob([head, ...body], { type: "audio/wav" });
}
