// Search from disk: browsers start no workers for pages of file://, so an iframe takes their place.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super()
    const frame = document.createElement("iframe")
    frame.hidden = true
    document.body.appendChild(frame)
    this.inside = frame.contentWindow
    window.addEventListener("message", event => {
      if (event.source === this.inside) this.dispatchEvent(new MessageEvent("message", { data: event.data }))
    })
    this.loaded = new Promise(loaded => {
      const script = frame.contentDocument.createElement("script")
      script.src = url
      script.onload = loaded
      this.inside.postMessage = data => {
        this.dispatchEvent(new MessageEvent("message", { data }))
      }
      frame.contentDocument.body.appendChild(script)
    })
  }

  postMessage(data) {
    this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
  }

  terminate() {
    this.inside.frameElement.remove()
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = IFrameWorker
  window.Worker = IFrameWorker
}
