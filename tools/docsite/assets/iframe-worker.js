// Search runs in a web worker, which browsers refuse to pages that are opened as files. There its script runs in a hidden frame instead.
// The theme looks for the name IFrameWorker, and would else load a program of that name from the network.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      this.ready = new Promise(resolve => {
        const page = inside.document
        page.open()
        inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
        const script = page.createElement("script")
        script.src = url
        script.onload = () => resolve(inside)
        page.write("<!doctype html><html><head></head><body></body></html>")
        page.head.appendChild(script)
        page.close()
      })
    }

    postMessage(data) {
      this.ready.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
