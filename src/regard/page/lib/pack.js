// Arrays in JSON: base64 of little-endian numbers.
const KINDS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array };

export const decodeBase64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
export const numbers = (text, kind) => new KINDS[kind](decodeBase64(text).buffer);
// A tensor of the server: {shape, float32 in base64} -> {shape, values}; what is decoded already stays.
export const unpack = ({ shape, float32, values }) => ({ shape, values: values ?? numbers(float32, "f4") });
