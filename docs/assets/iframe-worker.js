// Browsers start no Web Worker for a page that is opened as a file. The search of the theme then
// runs in a hidden frame, which receives and sends messages as a worker does.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "Search";
      document.body.append(frame);
      this.frame = frame.contentWindow;
      this.ready = new Promise((resolve) => {
        const page = this.frame.document;
        page.open();
        this.frame.postMessage = (data) =>
          this.dispatchEvent(new MessageEvent("message", { data }));
        const script = page.createElement("script");
        script.src = url;
        script.onload = resolve;
        page.write("<!doctype html><html lang=en><title>Search</title><body>");
        page.body.append(script);
        page.close();
      });
    }

    async postMessage(data) {
      await this.ready;
      const event = new this.frame.MessageEvent("message", { data });
      setTimeout(() => this.frame.dispatchEvent(event)); // a task of its own, as in a worker
    }
  };
}
