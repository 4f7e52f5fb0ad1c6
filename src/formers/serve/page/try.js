// Try: one prompt, one or several runs side by side: text, translations, classes, images, episodes.

import { Refused, events, getJson, parsed, post, postJson } from "./api.js";
import { bytesOf, choice, field, fill, h, percent, sharp, shade, short, tick, visible } from "./dom.js";
import { shared } from "./shared.js";

const KINDS = [["text", "Write"], ["translate", "Translate"], ["classify", "Classify"], ["image", "Images"], ["episode", "Episode"]];
const OPTIONS = [
  ["max_tokens", "Tokens", { min: 0, max: 16384, step: 1, value: 120 }],
  ["temperature", "Temperature", { min: 0, max: 5, step: 0.05, value: 0.8 }],
  ["top_k", "Top k", { min: 1, step: 1, placeholder: "all" }],
  ["top_p", "Top p", { min: 0.01, max: 1, step: 0.01, placeholder: "all" }],
  ["min_p", "Min p", { min: 0, max: 1, step: 0.01, placeholder: "none" }],
  ["repetition_penalty", "Repetition penalty", { min: 0.1, max: 5, step: 0.05, placeholder: "1" }],
  ["n", "Samples", { min: 1, max: 16, step: 1, value: 1 }],
  ["seed", "Seed", { step: 1, placeholder: "random" }],
  ["beams", "Beams", { min: 1, max: 16, step: 1, placeholder: "none" }],
  ["length_penalty", "Length penalty", { min: 0, max: 5, step: 0.1, placeholder: "0.6" }],
];

export async function tryOut(place) {
  const state = { kind: null, runs: [], chosen: new Map(), stop: null };
  const kinds = h("fieldset", { "aria-label": "What to try" });
  const models = h("fieldset");
  const form = h("div", { className: "form" });
  const answers = h("div", { className: "answers" });
  fill(place, h("h1", {}, "Try"), kinds, models, form, answers);

  async function enter() {
    const found = await getJson("/api/runs");
    state.runs = found.runs.filter((run) => run.saved && !run.error && KINDS.some(([kind]) => kind === run.task));
    const there = KINDS.filter(([kind]) => state.runs.some((run) => run.task === kind));
    if (!there.length) {
      fill(kinds);
      fill(models);
      fill(form, h("p", {}, "There is no run to try in this folder yet: one must have saved a checkpoint."));
      return;
    }
    if (!there.some(([kind]) => kind === state.kind)) state.kind = there[0][0];
    fill(kinds, h("legend", {}, "What to try"), there.map(([kind, text]) => {
      const radio = h("input", { type: "radio", name: "kind", value: kind, checked: kind === state.kind, onchange: () => { state.kind = kind; state.chosen.clear(); show(); } });
      return h("label", { className: "tick" }, radio, text);
    }));
    show();
  }

  function show() {
    state.stop?.abort();
    const fitting = state.runs.filter((run) => run.task === state.kind);
    if (!fitting.some((run) => state.chosen.has(run.id))) state.chosen = new Map([[fitting[0].id, "last"]]);
    fill(models, h("legend", {}, "Runs, side by side"), fitting.map((run) => {
      const which = choice([["last", "last"], ["best", "best"]], state.chosen.get(run.id) ?? "last", (value) => { if (state.chosen.has(run.id)) state.chosen.set(run.id, value); });
      which.setAttribute("aria-label", `checkpoint of ${run.id}`);
      return h("span", { className: "tick" },
        tick(run.id, state.chosen.has(run.id), (on) => { if (on) state.chosen.set(run.id, which.value); else state.chosen.delete(run.id); }), which);
    }));
    fill(answers);
    ({ text: write, translate: write, classify, image: images, episode })[state.kind](fitting);
  }

  const named = () => [...state.chosen].map(([id, which]) => (which === "best" ? `${id}@best` : id));

  function controls(text, act) {
    const go = h("button", { type: "submit", className: "main" }, text);
    const stop = h("button", { type: "button", disabled: true, onclick: () => state.stop?.abort() }, "Stop");
    const run = async (event) => {
      event.preventDefault();
      if (!state.chosen.size) return fill(answers, h("p", { role: "status" }, "Tick at least one run."));
      state.stop?.abort();
      const mine = (state.stop = new AbortController());
      go.disabled = true;
      stop.disabled = false;
      try {
        await act(mine.signal);
      } finally {
        if (state.stop === mine) {
          go.disabled = false;
          stop.disabled = true;
        }
      }
      return undefined;
    };
    return { buttons: h("div", { className: "bar" }, go, stop), run };
  }

  function panel(name) {
    const body = h("div");
    const status = h("p", { className: "quiet", role: "status" });
    return { element: h("article", { className: "panel answer", "aria-label": name }, h("h2", {}, name), body, status), body, status };
  }

  /** Runs something for every chosen run, each in a panel of its own. */
  async function each(act) {
    const panels = named().map((name) => [name, panel(name)]);
    fill(answers, panels.map(([, one]) => one.element));
    await Promise.all(panels.map(async ([name, one]) => {
      try {
        await act(name, one);
      } catch (error) {
        one.status.textContent = error.name === "AbortError" ? `${one.status.textContent} stopped` : error.message;
        one.status.className = error.name === "AbortError" ? "quiet" : "error";
      }
    }));
  }

  function write() {
    const translates = state.kind === "translate";
    const prompt = h("textarea", { value: translates ? "" : shared.prompt, spellcheck: false });
    const inputs = OPTIONS.map(([name, text, how]) => {
      const start = translates && name === "temperature" ? { ...how, value: 0 } : how;
      return [name, text, h("input", { type: "number", ...start })];
    });
    const stops = h("textarea", { rows: 1, placeholder: "one a line", className: "stops" });
    const { buttons, run } = controls(translates ? "Translate" : "Write", async (signal) => {
      const body = { prompt: prompt.value };
      if (!translates) shared.prompt = prompt.value;
      for (const [name, , input] of inputs) if (input.value !== "") body[name] = Number(input.value);
      if (stops.value) body.stop = stops.value.split("\n").filter(Boolean);
      await each((name, one) => completion({ ...body, model: name }, one, signal, translates));
    });
    fill(form, h("form", { onsubmit: run },
      field(translates ? "Source" : "Prompt", prompt),
      h("div", { className: "options" }, inputs.map(([, text, input]) => field(text, input)), field("Stop before", stops)),
      buttons));
  }

  async function completion(body, one, signal, translates) {
    const began = performance.now();
    const streams = body.beams === undefined;
    const chances = h("p", { className: "chances", role: "status" }, streams ? "The darker a token, the less likely it was; underlined below 10 %." : "");
    const texts = new Map();
    const text_of = (index) => {
      if (!texts.has(index)) {
        const made = tokens(translates ? "" : body.prompt, chances, one);
        texts.set(index, made);
        one.body.insertBefore(made.element, chances);
      }
      return texts.get(index);
    };
    one.body.append(chances);
    text_of(0);
    let count = 0;
    let first = null;
    const tell = (done) => {
      const seconds = (performance.now() - (first ?? began)) / 1000;
      const speed = count > 1 && seconds > 0 ? `, ${short((count - 1) / seconds, 3)} tokens/s` : "";
      one.status.textContent = `${count} tokens${speed}${first === null ? "" : `, first after ${Math.round(first - began)} ms`}${done ? `, ended by ${done}` : ""}`;
    };
    const take = (chunk) => {
      for (const note of chunk.notes ?? []) one.body.append(h("p", { className: "quiet" }, note));
      for (const piece of chunk.choices) {
        first ??= performance.now();
        count += piece.logprobs?.tokens.length ?? 0;
        text_of(piece.index).add(piece);
        if (piece.index === 0) shared.text = (translates ? body.prompt : body.prompt + text_of(0).text);
        tell(piece.finish_reason);
      }
    };
    shared.model = body.model;
    if (!streams) {
      one.status.textContent = "searching …";
      const found = await postJson("/v1/completions", body, signal);
      take(found);
      count = found.usage.completion_tokens;
      one.status.textContent = `${count} tokens in ${short((performance.now() - began) / 1000, 3)} s`;
      return;
    }
    const response = await post("/v1/completions", { ...body, stream: true, logprobs: 5 }, signal);
    await events(response, (data) => { if (data !== "[DONE]") take(parsed(data)); });
  }

  /** A text whose tokens tell how likely they were, by mouse and by arrow keys. */
  function tokens(prompt, chances) {
    const element = h("div", { className: "text", tabIndex: 0, role: "group", "aria-label": "what was written; arrow keys go from token to token" }, h("span", { className: "given" }, visible(prompt)));
    const made = { element, text: "", tokens: [] };
    let active = -1;
    const point = (place) => {
      made.tokens[active]?.span.classList.remove("active");
      active = Math.max(0, Math.min(made.tokens.length - 1, place));
      const one = made.tokens[active];
      if (!one) return;
      one.span.classList.add("active");
      const others = Object.entries(one.top ?? {}).sort((a, b) => b[1] - a[1]).map(([text, value]) => `${JSON.stringify(visible(text))} ${percent(Math.exp(value))}`);
      chances.textContent = `${JSON.stringify(visible(one.name))} ${one.logprob === null ? "" : percent(Math.exp(one.logprob))}; likeliest: ${others.join(", ")}`;
    };
    element.addEventListener("pointerover", (event) => {
      const place = made.tokens.findIndex((one) => one.span === event.target);
      if (place >= 0) point(place);
    });
    element.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 };
      if (event.key in moves) point(active + moves[event.key]);
      else if (event.key === "Home") point(0);
      else if (event.key === "End") point(made.tokens.length - 1);
      else return;
      event.preventDefault();
    });
    made.add = (piece) => {
      made.text += piece.text;
      if (!piece.logprobs) {
        element.append(visible(piece.text));
        return;
      }
      piece.logprobs.tokens.forEach((name, i) => {
        const logprob = piece.logprobs.token_logprobs[i];
        const span = h("span", { className: logprob !== null && logprob < Math.log(0.1) ? "token rare" : "token" }, visible(name));
        if (logprob !== null) span.style.setProperty("background", `rgb(var(--ink) / ${(0.28 * (1 - Math.exp(logprob))).toFixed(3)})`);
        made.tokens.push({ name, logprob, top: piece.logprobs.top_logprobs[i], span });
        element.append(span);
      });
    };
    return made;
  }

  function classify() {
    const text = h("textarea", { value: shared.prompt, spellcheck: false });
    const { buttons, run } = controls("Classify", async (signal) => {
      shared.prompt = text.value;
      await each(async (name, one) => {
        const { labels } = await postJson("/api/classify", { model: name, texts: [text.value] }, signal);
        shared.model = name;
        shared.text = text.value;
        const bars = h("div", { className: "meter" });
        for (const [label, value] of Object.entries(labels[0]).slice(0, 20)) {
          const bar = h("span");
          bar.style.setProperty("width", `${100 * value}%`);
          bars.append(h("span", {}, visible(label)), h("div", { className: "fill" }, bar), h("span", { className: "value" }, percent(value)));
        }
        fill(one.body, bars);
        one.status.textContent = `${Object.keys(labels[0]).length} labels`;
      });
    });
    fill(form, h("form", { onsubmit: run }, field("Text", text), buttons));
  }

  function images() {
    const samples = h("input", { type: "number", min: 1, max: 16, value: 4 });
    const temperature = h("input", { type: "number", min: 0, max: 3, step: 0.05, value: 1 });
    const seed = h("input", { type: "number", step: 1, placeholder: "random" });
    const k = h("input", { type: "number", min: 1, step: 1, placeholder: "all" });
    const p = h("input", { type: "number", min: 0.01, max: 1, step: 0.01, placeholder: "all" });
    const label = h("input", { type: "number", min: 0, step: 1, placeholder: "none" });
    const file = h("input", { type: "file", accept: "image/*" });
    const keep = h("input", { type: "range", min: 0, max: 1, step: 0.05, value: 0.5 });
    const { buttons, run } = controls("Draw", (signal) => each(async (name, one) => {
      const facts = await getJson("/api/image", { run: name }, signal);
      const body = { model: name, samples: Number(samples.value), temperature: Number(temperature.value) };
      if (seed.value !== "") body.seed = Number(seed.value);
      if (k.value !== "") body.top_k = Number(k.value);
      if (p.value !== "") body.top_p = Number(p.value);
      if (facts.labels) body.label = label.value === "" ? 0 : Number(label.value);
      if (file.files[0] && facts.source) body.source = await levels(file.files[0], ...facts.source, facts.levels);
      else if (file.files[0]) {
        body.image = await levels(file.files[0], facts.height, facts.width, facts.channels, facts.levels);
        body.rows = Math.round(Number(keep.value) * facts.height);
      } else if (facts.source) throw new Refused(`${name} draws from a ${facts.source[0]} × ${facts.source[1]} image: choose a file.`, 400);
      await events(await post("/api/images", body, signal), (data) => {
        const told = parsed(data);
        if (told.done) one.status.textContent = `${told.done} of ${told.total} places`;
        else {
          fill(one.body, h("div", { className: "pictures" }, pictures(told)));
          one.status.textContent = `${told.images} images of ${told.height} × ${told.width}${told.nats === null ? "" : `, ${short(told.nats)} nats on average`}`;
        }
      });
    }));
    fill(form, h("form", { onsubmit: run },
      h("div", { className: "options" }, field("Images", samples), field("Temperature", temperature), field("Top k", k), field("Top p", p), field("Seed", seed), field("Class", label)),
      h("div", { className: "bar" }, field("Complete this image (or draw from it)", file), field("Rows that are kept", keep)), buttons));
  }

  function pictures({ images: count, height, width, data }) {
    const bytes = bytesOf(data);
    return Array.from({ length: count }, (_, i) => {
      const canvas = h("canvas", { width, height, className: "pixels", role: "img", "aria-label": `image ${i + 1}` });
      const pen = canvas.getContext("2d");
      const image = pen.createImageData(width, height);
      for (let at = 0; at < width * height; at += 1) {
        const from = 3 * (i * width * height + at);
        image.data.set([bytes[from], bytes[from + 1], bytes[from + 2], 255], 4 * at);
      }
      pen.putImageData(image, 0, 0);
      const size = Math.max(1, Math.round(128 / Math.max(width, height)));
      canvas.style.setProperty("width", `${width * size}px`);
      return canvas;
    });
  }

  /** The levels of an image file, shrunk to a model's size in the browser. */
  async function levels(file, height, width, channels, count) {
    const bitmap = await createImageBitmap(file, { resizeWidth: width, resizeHeight: height, resizeQuality: "high" });
    const canvas = h("canvas", { width, height });
    const pen = canvas.getContext("2d");
    pen.drawImage(bitmap, 0, 0, width, height);
    const pixels = pen.getImageData(0, 0, width, height).data;
    const found = [];
    for (let at = 0; at < width * height; at += 1) {
      const [r, g, b] = pixels.slice(4 * at, 4 * at + 3);
      const values = channels === 1 ? [0.299 * r + 0.587 * g + 0.114 * b] : [r, g, b].slice(0, channels);
      for (const value of values) found.push(Math.min(count - 1, Math.round((value / 255) * (count - 1))));
    }
    return found;
  }

  function episode() {
    const seed = h("input", { type: "number", min: 0, step: 1, value: 0 });
    const which = h("input", { type: "number", min: 0, step: 1, value: 0 });
    let sampled = false;
    const { buttons, run } = controls("Play", (signal) => each(async (name, one) => {
      one.status.textContent = "playing …";
      const played = await postJson("/api/episode", { model: name, seed: Number(seed.value), episode: Number(which.value), sampled }, signal);
      fill(one.body, replay(played));
      one.status.textContent = `${played.actions.length} steps, return ${short(played.returns.at(-1))}, ${played.success ? "success" : "no success"}`;
    }));
    fill(form, h("form", { onsubmit: run }, h("div", { className: "options" }, field("Seed", seed), field("Episode", which)), tick("draw actions", false, (on) => { sampled = on; }), buttons));
  }

  function replay(played) {
    const [steps, layers, heads] = played.shape;
    const weights = bytesOf(played.weights);
    const picture = h("div", { className: "frame" });
    const words = h("p", { className: "says", role: "status" });
    const canvas = h("canvas", { role: "img", "aria-label": "attention over the steps so far, a row for each layer and head" });
    const slider = h("input", { type: "range", min: 0, max: Math.max(0, steps - 1), value: 0, oninput: draw });
    let timer = null;
    const button = h("button", { type: "button", onclick: () => {
      if (timer) { clearInterval(timer); timer = null; button.textContent = "Play"; return; }
      if (Number(slider.value) >= steps - 1) slider.value = 0;
      button.textContent = "Pause";
      timer = setInterval(() => {
        slider.value = Number(slider.value) + 1;
        draw();
        if (Number(slider.value) >= steps - 1) button.click();
      }, 250);
    } }, "Play");
    function draw() {
      const t = Number(slider.value);
      if (played.pictures[t]) fill(picture, pictures({ images: 1, ...played.pictures[t] }));
      else fill(picture, h("pre", {}, visible(played.frames[t])));
      words.textContent = `step ${t}: action ${played.actions[t]}, reward ${short(played.rewards[t])}, return ${short(played.returns[t])}, value ${short(played.values[t])}`;
      if (!layers) return;
      const cell = Math.max(2, Math.min(10, Math.floor(320 / steps)));
      const pen = sharp(canvas, Math.max(60, cell * steps), layers * (heads * 9 + 5));
      pen.clearRect(0, 0, 2000, 2000);
      pen.fillStyle = shade("--accent");
      for (let layer = 0; layer < layers; layer += 1) for (let head = 0; head < heads; head += 1) for (let j = 0; j < steps; j += 1) {
        pen.globalAlpha = weights[((t * layers + layer) * heads + head) * steps + j] / 255;
        pen.fillRect(j * cell, layer * (heads * 9 + 5) + head * 9, cell - 1, 8);
      }
      pen.globalAlpha = 1;
      pen.strokeStyle = shade("--mark");
      pen.strokeRect(t * cell, 0, cell - 1, layers * (heads * 9 + 5) - 5);
    }
    draw();
    return [picture, words, h("div", { className: "bar" }, button, field("Step", slider)), layers ? h("h3", {}, "Attention over the past") : null, layers ? canvas : null];
  }

  return { enter };
}
