// Browsers refuse Worker on file://, and the search of Material for MkDocs runs in one. In a copy of the
// site that is opened from disk, this runs the search in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inner = frame.contentWindow;
      const script = (text, source) => `<script${source ? ` src="${source}"` : ""}>${text}</scr` + "ipt>";
      this.inner.document.open();
      this.inner.document.write(
        `<body>${script('postMessage = (data) => parent.postMessage(data, "*")')}${script("", url)}</body>`
      );
      this.inner.document.close();
      this.ready = new Promise((resolve) => this.inner.addEventListener("load", resolve));
      window.addEventListener("message", (event) => {
        if (event.source === this.inner)
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
