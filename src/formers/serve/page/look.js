// Look: attention over a text, a layer and a head at a time; spans, ponder times and buckets where the member has them.

import { framed, get, getJson, postJson } from "./api.js";
import { PALETTE, choice, field, fill, h, percent, sharp, shade, short, visible } from "./dom.js";
import { shared } from "./shared.js";

const READS = ["text", "translate", "classify", "other"];
const SIDE = 512;

export async function look(place) {
  const state = { look: null, view: 0, layer: 0, head: -1, side: "query", at: null, part: null, picture: null };
  const models = h("select");
  const text = h("textarea", { spellcheck: false, rows: 4 });
  const status = h("p", { className: "quiet", role: "status" });
  const found = h("div");
  const go = h("button", { type: "submit", className: "main" }, "Look");
  fill(place, h("h1", {}, "Look"), h("form", { onsubmit: begin }, h("div", { className: "bar" }, field("Run", models)), field("Text", text, "up to 4,096 tokens"), h("div", { className: "bar" }, go)), status, found);

  async function enter() {
    const { runs } = await getJson("/api/runs");
    const fitting = runs.filter((run) => run.saved && !run.error && READS.includes(run.task));
    const wanted = shared.model && fitting.some((run) => run.id === shared.model.replace(/@best$/, "")) ? shared.model : models.value || fitting[0]?.id;
    fill(models, fitting.flatMap((run) => [run.id, `${run.id}@best`]).map((id) => h("option", { value: id, selected: id === wanted }, id)));
    if (shared.text && !text.value) text.value = shared.text;
    if (shared.fresh) {
      text.value = shared.text;
      shared.fresh = false;
    }
    if (!fitting.length) status.textContent = "There is no run that reads text in this folder yet: one must have saved a checkpoint.";
  }

  async function begin(event) {
    event.preventDefault();
    go.disabled = true;
    status.className = "quiet";
    status.textContent = "reading …";
    fill(found);
    try {
      const told = await postJson("/api/look", { model: models.value, text: text.value });
      for (const view of told.views) view.keys ??= view.queries;
      Object.assign(state, { look: told, view: Math.max(0, told.views.length - 1), layer: 0, head: -1, at: null, part: null });
      status.textContent = "";
      show();
      await paint();
    } catch (error) {
      status.className = "error";
      status.textContent = error.message;
    } finally {
      go.disabled = false;
    }
  }

  const canvas = h("canvas", { className: "map", tabIndex: 0, role: "img", "aria-label": "attention map: queries down, keys across; arrow keys move, plus and minus zoom" });
  const says = h("p", { className: "says", role: "status" });
  const heading = h("h2", {});
  const lists = h("div");
  const controls = h("div", { className: "bar" });

  function show() {
    const { views, spans, ponder, buckets } = state.look;
    fill(found,
      views.length ? [controls, h("div", { className: "split" }, h("div", { className: "panel" }, heading, canvas, says), h("div", { className: "panel" }, lists))] : null,
      spans ? spanned(spans) : null, ponder ? pondered(ponder) : null, buckets ? bucketed(buckets) : null);
    if (views.length) choose();
  }

  function choose() {
    const { views } = state.look;
    const view = views[state.view];
    const change = (name) => (value) => { state[name] = Number(value); if (name === "view") Object.assign(state, { layer: 0, head: -1, at: null, part: null }); choose(); paint(); };
    fill(controls,
      views.length > 1 ? field("Attention", choice(views.map((each, i) => [i, each.title]), state.view, change("view"))) : null,
      field("Layer", choice(Array.from({ length: view.layers }, (_, i) => [i, String(i)]), state.layer, change("layer"))),
      field("Head", choice([[-1, "mean of heads"], ...Array.from({ length: view.heads }, (_, i) => [i, String(i)])], state.head, change("head"))),
      field("A token shows", choice([["query", "what it attends to"], ["key", "what attends to it"]], state.side, (value) => { state.side = value; list(); row(); })),
      h("button", { type: "button", onclick: () => { state.part = null; paint(); } }, "Whole map"));
    heading.textContent = `${view.title}${view.note ? `. ${view.note}` : ""}`;
    list();
  }

  const same = () => state.look.views[state.view].keys === state.look.views[state.view].queries || state.look.views[state.view].keys.length === state.look.views[state.view].queries.length && state.look.views[state.view].keys.every((key, i) => key === state.look.views[state.view].queries[i]);

  function list() {
    const view = state.look.views[state.view];
    const make = (labels, side) => {
      const box = h("div", { className: "tokens", role: "group", "aria-label": side === "query" ? "queries" : "keys", dataset: { side } });
      labels.forEach((label, i) => box.append(h("button", { type: "button", tabIndex: i ? -1 : 0, title: `${i}`, onclick: () => { state.at = i; if (!same()) state.side = side; row(); }, onfocus: () => { state.at = i; if (!same()) state.side = side; row(); } }, visible(label))));
      box.addEventListener("keydown", (event) => {
        const all = [...box.children];
        const here = all.indexOf(document.activeElement);
        const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: all.length - 1 }[event.key];
        if (to === undefined || !all[to]) return;
        event.preventDefault();
        all[here].tabIndex = -1;
        all[to].tabIndex = 0;
        all[to].focus();
      });
      return box;
    };
    fill(lists, same() ? [h("h3", {}, `${view.queries.length} tokens`), make(view.queries, "query")]
      : [h("h3", {}, "Queries"), make(view.queries, "query"), h("h3", {}, "Keys"), make(view.keys, "key")]);
  }

  const where = () => ({ view: state.view, layer: state.layer, head: state.head });

  async function row() {
    if (state.at === null) return;
    const asked = state.at;
    const response = await get(`/api/look/${state.look.look}/row`, { ...where(), at: asked, side: state.side });
    const bytes = new Uint8Array(await response.arrayBuffer());
    if (asked !== state.at) return;
    const target = same() ? lists.querySelector('[data-side="query"]') : lists.querySelector(`[data-side="${state.side === "query" ? "key" : "query"}"]`);
    const own = lists.querySelector(`[data-side="${same() ? "query" : state.side}"]`);
    for (const button of lists.querySelectorAll("button")) {
      button.classList.remove("active", "deep");
      button.style.removeProperty("--shade");
    }
    [...target.children].forEach((button, i) => {
      if (!bytes[i]) return;
      button.style.setProperty("--shade", (bytes[i] / 255).toFixed(3));
      button.classList.toggle("deep", bytes[i] > 130);
    });
    own.children[state.at]?.classList.add("active");
    const labels = [...target.children].map((button) => button.textContent);
    const strongest = [...bytes.keys()].sort((a, b) => bytes[b] - bytes[a]).slice(0, 5).filter((i) => bytes[i]);
    says.textContent = `${own.children[state.at]?.textContent} [${state.at}] ${state.side === "query" ? "attends to" : "is attended by"} ${strongest.map((i) => `${labels[i]} [${i}] ${percent((bytes[i] / 255) ** 2)}`).join(", ")}`;
  }

  async function paint() {
    const view = state.look.views[state.view];
    state.part ??= { query: [0, view.queries.length], key: [0, view.keys.length] };
    const { query, key } = state.part;
    status.textContent = view.queries.length > 512 ? "computing the layer …" : "";
    const began = performance.now();
    const { header, buffer, start } = await framed(await get(`/api/look/${state.look.look}/map`, { ...where(), query_from: query[0], query_to: query[1], key_from: key[0], key_to: key[1] }));
    const bytes = new Uint8Array(buffer, start);
    status.textContent = `queries ${query[0]}–${query[1] - 1}, keys ${key[0]}–${key[1] - 1}${header.down * header.across > 1 ? `, each cell the strongest of ${header.down} × ${header.across}` : ""}; ${Math.round(performance.now() - began)} ms`;
    state.picture = { ...header, bytes };
    draw();
    if (state.at !== null) await row();
  }

  function draw() {
    if (!state.picture) return;
    const { height, width, bytes } = state.picture;
    canvas.width = width;
    canvas.height = height;
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(width, height);
    const low = shade("--low").split(" ").map(Number);
    const ink = shade("--ink").split(" ").map(Number);
    for (let i = 0; i < width * height; i += 1) {
      const share = bytes[i] / 255;
      for (let c = 0; c < 3; c += 1) image.data[4 * i + c] = low[c] + (ink[c] - low[c]) * share;
      image.data[4 * i + 3] = 255;
    }
    pen.putImageData(image, 0, 0);
    const room = Math.min(SIDE, canvas.parentElement.clientWidth - 26 || SIDE);
    const scale = Math.min(room / width, room / height, 40);
    canvas.style.setProperty("width", `${Math.max(1, width * scale)}px`);
    canvas.style.setProperty("height", `${Math.max(1, height * scale)}px`);
    if (state.cell) {
      pen.fillStyle = shade("--mark");
      pen.fillRect(state.cell[1], state.cell[0], 1, 1);
    }
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  function point(row_, column) {
    const { height, width, down, across, query, key, bytes } = state.picture;
    const r = Math.max(0, Math.min(height - 1, row_));
    const c = Math.max(0, Math.min(width - 1, column));
    const view = state.look.views[state.view];
    state.cell = [r, c];
    const [i, j] = [query + r * down, key + c * across];
    says.textContent = `${visible(view.queries[i])} [${i}] → ${visible(view.keys[j])} [${j}]: ${percent((bytes[r * width + c] / 255) ** 2)}`;
  }

  const cellOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return [Math.floor(((event.clientY - box.top) / box.height) * state.picture.height), Math.floor(((event.clientX - box.left) / box.width) * state.picture.width)];
  };

  async function zoom(factor) {
    const { down, across, query, key } = state.picture;
    const view = state.look.views[state.view];
    const middle = [query + state.cell[0] * down, key + state.cell[1] * across];
    for (const [i, side, count] of [[0, "query", view.queries.length], [1, "key", view.keys.length]]) {
      const wide = Math.max(Math.min(8, count), Math.min(count, Math.round((state.part[side][1] - state.part[side][0]) * factor)));
      const start = Math.max(0, Math.min(count - wide, middle[i] - Math.floor(wide / 2)));
      state.part[side] = [start, start + wide];
    }
    state.cell = null;
    await paint();
  }

  canvas.addEventListener("pointermove", (event) => { if (state.picture) point(...cellOf(event)); });
  canvas.addEventListener("click", async (event) => {
    point(...cellOf(event));
    await zoom(event.shiftKey ? 4 : 0.25);
  });
  canvas.addEventListener("keydown", async (event) => {
    if (!state.picture) return;
    const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    state.cell ??= [0, 0];
    if (event.key in moves) {
      event.preventDefault();
      const many = event.shiftKey ? 10 : 1;
      point(state.cell[0] + many * moves[event.key][0], state.cell[1] + many * moves[event.key][1]);
      draw();
    } else if (event.key === "+" || event.key === "-") await zoom(event.key === "+" ? 0.25 : 4);
    else if (event.key === "Escape") {
      state.part = null;
      state.cell = null;
      await paint();
    }
  });

  function meter(rows) {
    const most = Math.max(...rows.map(([, value]) => value), 1e-9);
    const box = h("div", { className: "meter" });
    for (const [name, value, words] of rows) {
      const bar = h("span");
      bar.style.setProperty("width", `${(100 * value) / most}%`);
      box.append(h("span", {}, name), h("div", { className: "fill" }, bar), h("span", { className: "value" }, words ?? short(value)));
    }
    return box;
  }

  function spanned(facts) {
    return h("section", { className: "panel", "aria-label": "Spans" }, h("h2", {}, "Spans"),
      h("p", {}, `A token reads ${short(facts.keys)} of ${short(facts.maximum_keys)} keys: ${percent(facts.saved)} are saved.`),
      meter(facts.spans.flatMap((heads, layer) => heads.map((value, head) => [`layer ${layer}, head ${head}`, value]))));
  }

  function pondered(facts) {
    return h("section", { className: "panel", "aria-label": "Ponder times" }, h("h2", {}, "Ponder times"), facts.stacks.map((stack) => [
      h("p", {}, `${stack.stack ? `${stack.stack}: ` : ""}${short(stack.mean_steps)} of ${stack.limit} steps a token, ${percent(stack.saved)} saved.`),
      h("div", { className: "cells", tabIndex: 0, role: "group", "aria-label": "steps of each token" }, stack.tokens.map((token, i) => {
        const cell = h("span", { title: `remainder ${stack.remainder[i]}` }, `${visible(token)} ${stack.steps[i]}`);
        cell.style.setProperty("background", `rgb(var(--ink) / ${(0.35 * stack.steps[i]) / stack.limit})`);
        return cell;
      }))]));
  }

  function bucketed(facts) {
    return h("section", { className: "panel", "aria-label": "Buckets" }, h("h2", {}, "Buckets"),
      h("p", {}, `Layer ${facts.layer}, head ${facts.head}, round ${facts.round}: the tokens by the bucket that they are hashed to.`),
      h("div", { className: "cells", tabIndex: 0, role: "group", "aria-label": "bucket of each token" }, facts.tokens.map((token, i) => {
        const cell = h("span", {}, `${visible(token)} ${facts.buckets[i]}`);
        cell.style.setProperty("border-color", `var(--line-${facts.buckets[i] % PALETTE})`);
        return cell;
      })),
      h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "figures of the layers" }, h("table", {},
        h("thead", {}, h("tr", {}, ["Layer", "Rounds", "Buckets used", "Largest", "Keys a query", "See nobody"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, facts.layers.map((layer) => h("tr", {}, [layer.layer, layer.rounds, layer.used, layer.largest, layer.keys].map((value) => h("td", { className: "number" }, short(value))), h("td", { className: "number" }, percent(layer.alone))))))));
  }

  return { enter };
}
