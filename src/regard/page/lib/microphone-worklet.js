// Runs in the audio thread: hands over samples, a tenth of a second at a time.
class Microphone extends AudioWorkletProcessor {
  constructor() {
    super();
    this.samples = new Float32Array(Math.ceil(sampleRate / 10));
    this.count = 0;
  }

  process([[channel]]) {
    for (const x of channel ?? []) {
      this.samples[this.count++] = x;
      if (this.count === this.samples.length) {
        this.port.postMessage(this.samples.slice());
        this.count = 0;
      }
    }
    return true;
  }
}
registerProcessor("microphone", Microphone);
