// Patterns: every pattern with its parameters as sliders; its matrix, what one pixel sees, and what it costs. The link holds the settings.

import { getJson, postJson } from "./api.js";
import { calm, choice, field, fill, h, percent, shade, short, tick } from "./dom.js";

const MARKS = { Q: ["the query", "--mark"], "#": ["seen, own block", "--line-0"], "+": ["seen, memory of the block", "--line-5"], ".": ["before, not seen", "--line"], " ": ["later", "--card"] };

export async function patterns(place) {
  const { patterns: known } = await getJson("/api/patterns");
  const state = { name: "strided", options: {}, length: 64, heads: 1, layer: 0, image: false, height: 8, width: 8 };
  const controls = h("div");
  const about = h("p", { className: "quiet" });
  const facts = h("p", { role: "status" });
  const matrix = h("div", { className: "pairs" });
  const grid = h("div");
  const link = h("p", { className: "quiet" });
  const name = choice(known.map((each) => [each.name, each.name]), state.name, (value) => { state.name = value; start(); build(); save(); });
  fill(place, h("h1", {}, "Patterns"), h("div", { className: "split" },
    h("div", { className: "panel" }, field("Pattern", name), about, controls, link),
    h("div", { className: "panel" }, facts, matrix, grid)));

  const fields = () => known.find((each) => each.name === state.name).fields;

  function start() {
    state.options = Object.fromEntries(fields().map((each) => [each.name, each.default]));
  }

  /** A slider and a number that show the same value. */
  function slider(text, value, least, most, change) {
    const number = h("input", { type: "number", min: least, max: most, value, "aria-label": `${text}, as a number` });
    const range = h("input", { type: "range", min: least, max: most, value, oninput: () => { number.value = range.value; change(Number(range.value)); } });
    number.addEventListener("input", () => { if (number.value !== "" && number.validity.valid) { range.value = number.value; change(Number(number.value)); } });
    return h("div", { className: "bar" }, field(text, range), number);
  }

  const later = calm(40, () => draw().catch((error) => { facts.textContent = error.message; facts.className = "error"; }));
  const keep = calm(250, save);
  const set = (key) => (value) => { state[key] = value; later(); keep(); };

  function build() {
    name.value = state.name;
    about.textContent = known.find((each) => each.name === state.name).about.replaceAll("`", "");
    const own = fields().map((each) => {
      const change = (value) => { state.options[each.name] = value; later(); keep(); };
      const words = each.name.replaceAll("_", " ");
      if (each.kind === "switch") return tick(words, state.options[each.name], change);
      if (each.kind === "pair") return ["height", "width"].map((side, i) => slider(`${words}, ${side}`, state.options[each.name][i], each.least, each.most, (value) => { const both = [...state.options[each.name]]; both[i] = value; change(both); }));
      return slider(words, state.options[each.name], each.least, each.most, change);
    });
    const gridded = state.name === "local-grid";
    fill(controls, own.flat(),
      gridded ? null : slider("length", state.length, 1, 256, set("length")),
      slider("heads", state.heads, 1, 8, set("heads")), slider("layer", state.layer, 0, 12, set("layer")),
      gridded ? null : tick("the places are pixels of an image", state.image, (on) => { state.image = on; build(); keep(); }),
      state.image && !gridded ? [slider("image height", state.height, 1, 32, set("height")), slider("image width", state.width, 1, 32, set("width"))] : null);
    later();
  }

  async function draw() {
    const body = { name: state.name, options: state.options, length: state.length, heads: state.heads, layer: state.layer };
    if (state.image && state.name !== "local-grid") Object.assign(body, { height: state.height, width: state.width });
    const found = await postJson("/api/pattern", body);
    facts.className = "";
    facts.textContent = `${found.length} places: ${percent(found.density)} of all pairs, ${short(found.pairs)} of ${short(found.length ** 2)} (${percent(found.of_causal)} of what causal attention computes). ${found.causal ? "Causal." : ""}`;
    fill(matrix, found.mask.map((rows, head) => h("figure", {}, h("figcaption", {}, found.by_head ? `head ${head}: ${percent(found.density_by_head[head])}` : "queries down, keys across"), masked(rows, head))));
    fill(grid, found.seen ? [h("h2", {}, `What pixel ${found.pixel.join(", ")} sees`), h("div", { className: "pairs" }, found.seen.map((rows, head) => seen(rows, head))),
      h("ul", { className: "legend" }, Object.entries(MARKS).map(([, [words, ink]]) => { const key = h("i"); key.style.setProperty("background", `var(${ink})`); return h("li", {}, key, words); }))] : null);
  }

  function cells(height, width, ink, label) {
    const scale = Math.max(1, Math.min(24, Math.floor(380 / Math.max(height, width))));
    const canvas = h("canvas", { width: width * scale, height: height * scale, className: "pixels", role: "img", "aria-label": label });
    const pen = canvas.getContext("2d");
    const gap = scale > 4 ? 1 : 0;
    for (let r = 0; r < height; r += 1) for (let c = 0; c < width; c += 1) {
      pen.fillStyle = ink(r, c);
      pen.fillRect(c * scale, r * scale, scale - gap, scale - gap);
    }
    return canvas;
  }

  function masked(rows, head) {
    const [on, off] = [shade("--line-0"), shade("--card")];
    return cells(rows.length, rows[0].length, (r, c) => (rows[r][c] === "1" ? on : off), `matrix of ${state.name}, head ${head}`);
  }

  function seen(rows, head) {
    const inks = Object.fromEntries(Object.entries(MARKS).map(([mark, [, ink]]) => [mark, shade(ink)]));
    return cells(rows.length, rows[0].length, (r, c) => inks[rows[r][c]], `image grid of ${state.name}, head ${head}`);
  }

  function save() {
    const settings = new URLSearchParams({ name: state.name, length: state.length, heads: state.heads, layer: state.layer, options: JSON.stringify(state.options) });
    if (state.image) for (const key of ["height", "width"]) settings.set(key, state[key]);
    history.replaceState(null, "", `#/patterns?${settings}`);
    fill(link, h("a", { href: location.hash }, "Link to these settings"));
  }

  function enter(query) {
    if (known.some((each) => each.name === query.get("name"))) state.name = query.get("name");
    start();
    try {
      Object.assign(state.options, JSON.parse(query.get("options") ?? "{}"));
    } catch {
      // a link that was cut: its pattern with the first values
    }
    for (const [key, least] of [["length", 1], ["heads", 1], ["layer", 0], ["height", 1], ["width", 1]]) {
      const value = Number.parseInt(query.get(key), 10);
      if (value >= least) state[key] = value;
    }
    state.image = query.has("height");
    build();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);

  return { enter };
}
