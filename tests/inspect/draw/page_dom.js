// Runs the script of an image page with a small stand-in for a browser, and prints what it draws as JSON.
const fs = require("fs");
const html = fs.readFileSync(process.argv[2], "utf8");
const [click, layer, head] = process.argv.slice(3).map(Number);
const data = html.match(/id="data">([^]*?)<\/script>/)[1], code = html.match(/<script>([^]*)<\/script>\n<\/body>/)[1];
class Element {
  constructor(tag) { Object.assign(this, { tag, children: [], dataset: {}, style: { setProperty() {} }, handlers: {}, offsetWidth: 10 }); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute(name, value) { (this.attributes ??= {})[name] = value; }
  addEventListener(name, act) { this.handlers[name] = act; }
  get firstChild() { return this.children[0]; }
  querySelectorAll(tag) { return this.children.filter((child) => child.tag === tag); }
  getBoundingClientRect() { const { width, height } = JSON.parse(data); return { left: 0, top: 0, width, height }; }
  getContext() {
    return {
      createImageData: (width, height) => ({ data: new Uint8ClampedArray(4 * width * height) }),
      putImageData: (picture) => { this.pixels = picture.data; }, drawImage: (source) => { this.drawn = source; }, strokeRect() {},
    };
  }
}
const elements = {}, get = (id) => (elements[id] ??= new Element(id));
get("data").textContent = data;
const handlers = {};
const page = { getElementById: get, createElement: (tag) => new Element(tag), addEventListener: (name, act) => { handlers[name] = act; } };
new Function("document", "window", "atob", code)(page, { devicePixelRatio: 1 }, (text) => Buffer.from(text, "base64").toString("binary"));
const { width } = JSON.parse(data);
const colours = (canvas) => [...canvas.pixels].filter((_, place) => place % 4 < 3);
const lines = () => get("list").children.map((item) => item.children.map((part) => part.textContent));
const shown = () => ({ picture: colours(get("picture").drawn), says: get("says").textContent, list: lines(), title: get("picture-title").textContent });
const first = shown();
get("picture").handlers.click({ clientX: (click % width) + 0.5, clientY: Math.floor(click / width) + 0.5 });
get("layer").value = String(layer);
get("layer").handlers.change();
get("head").value = String(head);
get("head").handlers.change();
get("picture").handlers.pointermove({ clientX: 0.5, clientY: 0.5 });
const grid = get("grid").children.filter((child) => child.tag === "button").map((button) => colours(button.firstChild));
console.log(JSON.stringify({ first, then: shown(), grid, tip: get("tip").textContent, footer: get("footer").textContent }));
