// Watch: all runs, live; their curves on shared axes; samples, best and last of the one that is chosen.

import { events, framed, get, getJson } from "./api.js";
import { Chart, smoothed } from "./chart.js";
import { PALETTE, calm, choice, colour, dash, duration, field, fill, h, short, tick, visible } from "./dom.js";

const WAIT = 250;

export async function watch(place) {
  const state = { runs: [], count: 0, query: "", ticked: new Map(), focus: null, name: null, axis: "step", log: false, smooth: 0, curves: new Map() };
  const chart = new Chart("Curves of the ticked runs; arrow keys move a cursor over them");
  const progress = h("p", { className: "quiet", role: "status" });
  const rows = h("tbody");
  const more = h("p", { className: "quiet" });
  const details = h("div", { className: "details" });
  const names = choice([["loss", "loss"]], "loss", (value) => { state.name = value; load([...state.ticked.keys()]); });
  const axes = choice([["step", "steps"], ["seconds", "seconds"], ["tokens", "tokens"]], "step", (value) => { state.axis = value; load([...state.ticked.keys()]); });
  const smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0, oninput: () => { state.smooth = Number(smooth.value); draw(); } });
  const filter = h("input", { type: "search", placeholder: "name, member or data", oninput: calm(WAIT, () => { state.query = filter.value; list(); }) });
  const none = h("button", { type: "button", onclick: () => { state.touched = true; state.ticked.clear(); draw(); paint(); } }, "Untick all");
  fill(
    place,
    h("h1", {}, "Runs"),
    progress,
    h("div", { className: "split" },
      h("div", { className: "panel" },
        h("div", { className: "bar" }, field("Find", filter), none),
        h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "All runs" },
          h("table", { className: "runs" },
            h("thead", {}, h("tr", {}, ["Show", "Run", "Step", "Last", "Best"].map((text) => h("th", { scope: "col" }, text)))),
            rows)),
        more),
      h("div", { className: "panel" },
        h("div", { className: "bar" }, field("Curve", names), field("Against", axes), field("Smoothing", smooth), tick("log scale", false, (on) => { state.log = on; draw(); })),
        chart.element,
        details)),
  );

  function place_of(id) {
    return state.ticked.get(id);
  }

  function toggle(id, on) {
    state.touched = true;
    if (on) {
      const used = new Set(state.ticked.values());
      let next = 0;
      while (used.has(next)) next += 1;
      state.ticked.set(id, next);
      load([id]);
    } else {
      state.ticked.delete(id);
      draw();
    }
    paint();
  }

  function paint() {
    const before = document.activeElement?.closest?.("tr")?.dataset.id;
    const which = document.activeElement?.tagName;
    fill(rows, state.runs.map((run) => {
      const at = place_of(run.id);
      const box = h("input", { type: "checkbox", checked: at !== undefined, "aria-label": `show the curve of ${run.id}`, onchange: () => toggle(run.id, box.checked) });
      const key = h("span", { className: "key", "aria-hidden": "true" });
      if (at !== undefined) key.style.setProperty("background", `var(--line-${at % PALETTE})`);
      const open = h("button", { type: "button", className: "link", title: run.error ?? `${run.member ?? ""} ${run.data ?? ""}`, onclick: () => focus(run.id) }, run.id);
      return h("tr", { dataset: { id: run.id }, className: run.id === state.focus ? "focused" : "" },
        h("td", {}, h("label", { className: "tick" }, box, key)),
        h("td", { className: "name" }, open, h("small", {}, `${run.member ?? ""} `, h("span", { className: `state ${run.status}` }, run.status))),
        h("td", { className: "number" }, run.step === undefined ? "" : short(run.step)),
        h("td", { className: "number" }, short(run.last)),
        h("td", { className: "number", title: run.best ? `at step ${run.best.step}` : "" }, run.best ? short(run.best.value) : "–"));
    }));
    if (before !== undefined) {
      const row = [...rows.children].find((each) => each.dataset.id === before);
      row?.querySelector(which === "BUTTON" ? "button" : "input")?.focus();
    }
    more.textContent = state.count > state.runs.length ? `The first ${state.runs.length} of ${state.count} runs; find others by their name.`
      : state.count ? "" : state.query ? "No run is called so." : "There is no run in this folder yet. Train one with `formers train`, and it appears here.";
  }

  async function list() {
    listed(await getJson("/api/runs", { query: state.query }));
  }

  function listed(found) {
    document.getElementById("folder").textContent = found.folder;
    state.runs = found.runs;
    state.count = found.count;
    state.version = found.version;
    tell(found.progress);
    const all = new Set(state.runs.flatMap((run) => run.names ?? []));
    const known = [...all].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
    if (!state.name || !all.has(state.name)) state.name = known[0] ?? "loss";
    fill(names, (known.length ? known : ["loss"]).map((name) => h("option", { value: name, selected: name === state.name }, name.replaceAll("_", " "))));
    paint();
  }

  function tell({ done, total }) {
    progress.textContent = done < total ? `reading metrics: ${done} of ${total} runs` : `${total} ${total === 1 ? "run" : "runs"}, live`;
  }

  async function load(ids) {
    for (let i = 0; i < ids.length; i += 100) {
      keep(await framed(await get("/api/curves", { run: ids.slice(i, i + 100), name: state.name, axis: state.axis })));
    }
    draw();
  }

  function keep({ header, buffer, start }) {
    let at = start;
    for (const { run, points } of header.curves) {
      state.curves.set(run, { x: new Float32Array(buffer, at, points), y: new Float32Array(buffer, at + 4 * points, points), name: header.name, axis: header.axis });
      at += 8 * points;
    }
  }

  function draw() {
    const shown = [];
    for (const [id, at] of state.ticked) {
      const curve = state.curves.get(id);
      if (!curve || curve.name !== state.name || curve.axis !== state.axis || !curve.x.length) continue;
      const y = smoothed(curve.y, state.smooth);
      shown.push({ label: id, x: curve.x, y, colour: colour(at), dash: dash(at), best: lowest(curve.x, y, state.name) });
    }
    const mark = state.axis === "step" && state.sample !== undefined ? state.sample : null;
    chart.show(shown, { x: state.axis === "step" ? "steps" : state.axis, y: state.name, log: state.log, mark });
    place.dataset.drawn = String(shown.length);
  }

  async function focus(id) {
    state.focus = id;
    paint();
    await detail();
  }

  async function detail() {
    if (!state.focus) return fill(details);
    let run;
    try {
      run = await getJson("/api/run", { run: state.focus });
    } catch (error) {
      return fill(details, h("h2", {}, state.focus), h("p", { role: "status" }, error.message));
    }
    const facts = [["member", run.member], ["data", run.data], ["parameters", run.parameters?.toLocaleString("en")], ["trained for", duration(run.seconds)],
      ["last " + (run.score ?? "").replaceAll("_", " "), run.score && short(run.last)],
      ["best " + (run.score ?? "").replaceAll("_", " "), run.best && `${short(run.best.value)} at step ${short(run.best.step)}`],
      ["device", run.device], ["command", run.command?.join(" ")]];
    const samples = run.samples ?? [];
    const text = h("pre", { className: "sample", tabIndex: 0, "aria-label": "sample" });
    const step = h("output", {});
    const slider = h("input", { type: "range", min: 0, max: Math.max(0, samples.length - 1), value: samples.length - 1, oninput: pick });
    function pick() {
      const one = samples[Number(slider.value)];
      state.sample = one?.step;
      step.textContent = one ? `step ${short(one.step)}` : "";
      fill(text, one ? [one.prompt && !one.text.startsWith(one.prompt) ? h("strong", {}, `${visible(one.prompt)} → `) : "", visible(one.text)] : []);
      draw();
    }
    fill(details,
      h("h2", {}, run.id),
      run.error && h("p", { className: "error" }, run.error),
      run.skipped_lines ? h("p", { className: "error" }, `${run.skipped_lines} lines of its metrics cannot be read.`) : null,
      h("dl", {}, facts.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))])),
      samples.length ? h("div", { className: "bar" }, field("Sample", slider), step) : null,
      samples.length ? text : null);
    if (samples.length) pick();
    else state.sample = undefined;
    return undefined;
  }

  const waiting = new Set();
  const update = async () => {
    const changed = [...waiting].filter((id) => state.ticked.has(id));
    waiting.clear();
    await list();
    if (!state.ticked.size && !state.touched) state.runs.filter((run) => run.names?.length).slice(0, 100).forEach((run, i) => { state.ticked.set(run.id, i); changed.push(run.id); });
    if (changed.length) {
      paint();
      await load(changed);
    }
  };
  let busy = Promise.resolve();
  const soon = calm(50, () => { busy = busy.then(update).catch(() => {}); });

  async function follow() {
    for (;;) {
      try {
        await events(await get("/api/live"), (data, name) => {
          const told = JSON.parse(data);
          if (name === "progress") return tell(told);
          // The first event says nothing of what changed before it.
          for (const id of state.joined ? told.changed.map((run) => run.id) : state.ticked.keys()) waiting.add(id);
          state.joined = true;
          for (const id of told.gone) {
            state.ticked.delete(id);
            state.curves.delete(id);
          }
          if (told.gone.length) draw();
          if (state.focus && (told.gone.includes(state.focus) || told.changed.some((run) => run.id === state.focus))) detail();
          if (told.version !== state.version) soon(); // else the list was made after this change
          return undefined;
        });
      } catch (error) {
        progress.textContent = `not connected: ${error.message}`;
      }
      state.joined = false;
      await new Promise((done) => { setTimeout(done, 2000); });
      await list().catch(() => {});
    }
  }

  const first = await framed(await get("/api/first"));
  first.header.curves.forEach(({ run }, i) => state.ticked.set(run, i));
  state.name = first.header.name;
  keep(first);
  draw();
  performance.mark("drawn");
  listed(first.header.list);
  follow();
  return {};
}

function rank(name) {
  const known = ["loss", "valid_loss", "mean_return", "bits_per_byte", "valid_bits_per_byte"];
  return known.includes(name) ? known.indexOf(name) : 99;
}

function lowest(x, y, name) {
  const up = /return|accuracy|exact|bleu|success/.test(name);
  let best = null;
  for (let i = 0; i < y.length; i += 1) {
    if (Number.isFinite(y[i]) && (best === null || (up ? y[i] > best[1] : y[i] < best[1]))) best = [x[i], y[i]];
  }
  return best;
}
