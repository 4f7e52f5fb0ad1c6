
"use strict";
// Draws what `formers` recorded. Everything is in the page: it asks for nothing, and text reaches it only as text.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const MEAN = -1; // the head that is the mean of all
  const SHOWN = 6; // how many of the strongest are labelled with numbers
  const now = { view: data.start.view, layer: data.start.layer, head: data.start.head, reverse: false, token: 0, pinned: false, cell: null };
  const views = data.views.map((view) => ({ ...view, values: null }));

  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };

  // The weights. Small views have 16 bits a weight and large ones 8; 0 is 0 and the largest number is 100 %.
  const valuesOf = (view) => {
    if (!view.values) {
      const text = atob(view.weights);
      const bytes = new Uint8Array(text.length);
      for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
      if (view.bits === 8) view.values = bytes;
      else {
        view.values = new Uint16Array(bytes.length / 2);
        for (let i = 0; i < view.values.length; i++) view.values[i] = bytes[2 * i] | (bytes[2 * i + 1] << 8);
      }
      view.weights = null;
    }
    return view.values;
  };
  const full = (view) => 2 ** view.bits - 1;

  // The map (queries x keys) of a layer and head, as shares from 0 to 1.
  const mapOf = (view, layer, head) => {
    const values = valuesOf(view), size = view.queries.length * view.keys.length, map = new Float32Array(size);
    const heads = head === MEAN ? [...Array(view.heads).keys()] : [head];
    for (const h of heads) {
      const start = (layer * view.heads + h) * size;
      for (let i = 0; i < size; i++) map[i] += values[start + i];
    }
    const most = full(view) * heads.length;
    for (let i = 0; i < size; i++) map[i] /= most;
    return map;
  };

  const view = () => views[now.view];
  const sameSides = (v) => v.same;
  const shade = (share) => Math.sqrt(Math.max(0, Math.min(1, share))); // a square root shows the small ones, too
  const percent = (share) => {
    const value = 100 * share, digits = view().bits === 8 ? 0 : 1, least = 10 ** -digits;
    if (value > 0 && value < least / 2) return `< ${least} %`;
    return `${value.toFixed(value === 100 ? 0 : digits)} %`;
  };
  const named = (labels, place) => `${labels[place]} [${place}]`;
  const headName = (head) => (head === MEAN ? "mean of heads" : `head ${head}`);

  // Colours come from the style sheet, so that light and dark are decided in one place.
  let low, ink, colour = {};
  const readColours = () => {
    const style = getComputedStyle(document.documentElement), get = (name) => style.getPropertyValue(name).trim();
    [low, ink] = ["--low", "--ink"].map((name) => get(name).split(" ").map(Number));
    colour = { text: get("--text"), quiet: get("--quiet"), mark: get("--mark"), line: get("--line") };
  };
  const paint = (pixels, at, share) => {
    const t = shade(share);
    for (let c = 0; c < 3; c++) pixels[4 * at + c] = low[c] + t * (ink[c] - low[c]);
    pixels[4 * at + 3] = 255;
  };

  // A picture of a map, a pixel a pair; where there are more pairs than `most` a side, a pixel is the strongest of its pairs.
  const picture = (map, rows, columns, most) => {
    const step = Math.max(1, Math.ceil(Math.max(rows, columns) / most));
    const height = Math.ceil(rows / step), width = Math.ceil(columns / step), strongest = new Float32Array(height * width);
    for (let r = 0; r < rows; r++) {
      const to = Math.floor(r / step) * width, from = r * columns;
      for (let c = 0; c < columns; c++) {
        const at = to + Math.floor(c / step);
        if (map[from + c] > strongest[at]) strongest[at] = map[from + c];
      }
    }
    const canvas = make("canvas", { width, height }), context = canvas.getContext("2d"), image = context.createImageData(width, height);
    strongest.forEach((share, at) => paint(image.data, at, share));
    context.putImageData(image, 0, 0);
    return canvas;
  };

  // What is being shown: the chosen map, its picture, and where it stands on the canvas.
  let map, drawn, frame, tokens = { queries: [], keys: [] };

  const radios = (group, name, options, chosen, choose) => {
    $(group).replaceChildren(...options.map((text, value) => {
      const input = make("input", { type: "radio", name, value: String(value), checked: value === chosen });
      input.addEventListener("change", () => choose(value));
      return make("label", {}, input, make("span", { textContent: text }));
    }));
    $(group).hidden = options.length < 2;
  };

  const buildControls = () => {
    radios("views", "view", views.map((v) => v.title), now.view, (value) => {
      now.view = value;
      now.reverse = false;
      openView();
    });
    radios("direction", "direction", ["attends to", "is attended by"], Number(now.reverse), (value) => turn(value === 1));
    for (const [id, key] of [["layer", "layer"], ["head", "head"]]) {
      $(id).addEventListener("change", () => choose({ [key]: Number($(id).value) }));
    }
  };

  const openView = () => {
    const v = view();
    now.layer = Math.min(now.layer, v.layers - 1);
    now.head = v.heads === 1 ? 0 : Math.min(now.head, v.heads - 1);
    now.token = v.queries.length - 1;
    now.pinned = false;
    now.cell = null;
    const option = (value, text) => make("option", { value: String(value), textContent: text });
    $("layer").replaceChildren(...Array.from({ length: v.layers }, (_, l) => option(l, `${l}`)));
    const heads = Array.from({ length: v.heads }, (_, h) => option(h, `${h}`));
    $("head").replaceChildren(...(v.heads > 1 ? [option(MEAN, "mean of heads")] : []), ...heads);
    buildTokens(v);
    buildGrid(v);
    $("footer").textContent =
      `${v.layers} layer${v.layers > 1 ? "s" : ""} of ${v.heads} head${v.heads > 1 ? "s" : ""}, ${v.queries.length} × ${v.keys.length}${v.projected ? "" : " tokens"}. ` +
      `Weights are stored to ±${(50 / full(v)).toPrecision(1)} %. Shades follow the square root of the share. ` +
      (v.note ? `${v.note} ` : "") +
      `Made by formers ${data.version}; this page works offline and loads nothing.`;
    choose({});
    reveal();
  };

  // Tokens: one panel if they stand on both sides, else one for each side.
  const buildTokens = (v) => {
    const sides = sameSides(v) ? [["queries", ""]] : [["queries", "which looks"], ["keys", "which is looked at"]];
    tokens = { queries: [], keys: [] };
    $("panels").replaceChildren(...sides.map(([side, title]) => {
      const letters = v[side].reduce((sum, label) => sum + label.length, 0) / v[side].length;
      const box = make("div", { className: letters < 2 ? "tokens small" : "tokens" });
      box.dataset.side = side;
      v[side].forEach((label, place) => {
        if (side === "keys" && place === v.memory && place) box.append(make("div", { className: "break past", textContent: "↑ memory, segment ↓" }));
        const token = make("button", { type: "button", className: "token", textContent: label });
        token.dataset.place = String(place);
        tokens[side].push(token);
        box.append(token);
        if (label.endsWith("⏎")) box.append(make("div", { className: "break" }));
      });
      const panel = make("div", { className: "panel" });
      if (title) panel.append(make("h2", { textContent: `${v.names[side]}, ${title}` }));
      panel.append(box);
      return panel;
    }));
    if (sameSides(v)) tokens.keys = tokens.queries;
  };

  const tokenOf = (event) => event.target.closest?.(".token");
  const look = (token, pin) => {
    const side = token.parentElement.dataset.side, place = Number(token.dataset.place);
    if (pin) now.pinned = !(now.pinned && token.classList.contains("pinned"));
    if (!sameSides(view())) now.reverse = side === "keys"; // a token of the other side can only be asked the other way
    now.token = place;
    now.cell = null;
    showTokens();
    drawMap();
  };
  $("panels").addEventListener("pointerover", (event) => {
    const token = tokenOf(event);
    if (token && !now.pinned && event.pointerType !== "touch") look(token, false);
  });
  $("panels").addEventListener("focusin", (event) => {
    const token = tokenOf(event);
    if (token && !now.pinned && token.matches(":focus-visible")) look(token, false);
  });
  $("panels").addEventListener("click", (event) => {
    const token = tokenOf(event);
    if (token) look(token, true);
  });

  const turn = (reverse) => {
    now.reverse = reverse;
    now.token = Math.min(now.token, (reverse ? view().keys : view().queries).length - 1);
    now.cell = null;
    showTokens();
    drawMap();
  };

  const choose = (change) => {
    Object.assign(now, change);
    const v = view();
    map = mapOf(v, now.layer, now.head);
    drawn = picture(map, v.queries.length, v.keys.length, 2048);
    $("layer").value = String(now.layer);
    $("head").value = String(now.head);
    for (const button of $("grid").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.layer) === now.layer && Number(button.dataset.head) === now.head));
    }
    $("matrix-title").textContent = `${v.title}, layer ${now.layer}, ${headName(now.head)}`;
    $("map").setAttribute("aria-label",
      `Heat map of ${v.title}, layer ${now.layer}, ${headName(now.head)}: ${v.queries.length} rows of tokens that look, ${v.keys.length} columns of ${v.projected ? "projected keys" : "tokens"} looked at.`);
    showTokens();
    drawMap();
  };

  // The shares of the active token, forward a row of the map and turned around a column.
  const sharesOf = () => {
    const v = view(), columns = v.keys.length;
    if (!now.reverse) return map.subarray(now.token * columns, (now.token + 1) * columns);
    return Float32Array.from(v.queries, (_, row) => map[row * columns + now.token]);
  };

  const showTokens = () => {
    const v = view(), shares = sharesOf();
    const [from, to] = now.reverse ? ["keys", "queries"] : ["queries", "keys"];
    const order = [...shares.keys()].filter((i) => shares[i] > 0).sort((a, b) => shares[b] - shares[a] || a - b).slice(0, SHOWN);
    const strongest = new Set(order);
    for (const token of [...tokens.queries, ...tokens.keys]) {
      token.classList.remove("active", "pinned");
      if (!sameSides(v)) clear(token);
    }
    tokens[to].forEach((token, place) => {
      const share = shares[place], depth = shade(share);
      token.style.setProperty("--shade", depth.toFixed(4));
      token.classList.toggle("deep", depth > 0.64);
      // Where tokens are letters there is no room for a fraction: the list beside has it.
      if (strongest.has(place) && share >= 0.005) token.dataset.percent = token.parentElement.classList.contains("small") ? String(Math.round(100 * share)) : percent(share).replace(" %", "");
      else delete token.dataset.percent;
    });
    const active = tokens[from][now.token];
    active.classList.add("active");
    active.classList.toggle("pinned", now.pinned);
    for (const token of [...tokens.queries, ...tokens.keys]) token.setAttribute("aria-pressed", String(token === active && now.pinned));
    for (const input of document.querySelectorAll('input[name="direction"]')) input.checked = (input.value === "1") === now.reverse;

    const verb = now.reverse ? "is attended by" : "attends to";
    $("says").textContent = `${named(v[from], now.token)} ${order.length ? verb : now.reverse ? "is attended by nothing" : "attends to nothing"}`;
    $("list").replaceChildren(...order.map((place) => {
      const past = to === "keys" && place < v.memory ? ", memory" : "";
      const name = make("span", { className: "name", textContent: v[to][place] }, make("small", { textContent: ` [${place}${past}]` }));
      const item = make("li", {}, name, make("span", { className: "number", textContent: percent(shares[place]) }));
      item.style.setProperty("--share", String(shares[place]));
      return item;
    }));
  };
  // Scrolls the active token into its box, and nothing else.
  const reveal = () => {
    const token = (now.reverse ? tokens.keys : tokens.queries)[now.token], box = token.parentElement;
    if (token.offsetTop < box.scrollTop || token.offsetTop + token.offsetHeight > box.scrollTop + box.clientHeight) {
      box.scrollTop = token.offsetTop - box.clientHeight / 2;
    }
  };
  const clear = (token) => {
    token.style.removeProperty("--shade");
    token.classList.remove("deep");
    delete token.dataset.percent;
  };

  // The matrix. Labels stand beside it where a cell is wide enough for them, numbers otherwise.
  const drawMap = () => {
    const v = view(), rows = v.queries.length, columns = v.keys.length, canvas = $("map"), context = canvas.getContext("2d");
    const room = $("matrix").clientWidth, font = "11px ui-monospace, Menlo, 'DejaVu Sans Mono', monospace", small = "10px system-ui, sans-serif";
    context.font = font;
    const cut = (label) => (label.length > 14 ? `${label.slice(0, 13)}…` : label);
    const widest = (labels) => Math.ceil(Math.max(...labels.map((label) => context.measureText(cut(label)).width)));
    // Labels need 11 pixels; a map with many more rows than columns is squeezed, so that it stays on a screen.
    const fit = (left) => {
      const wide = Math.min(44, (room - left) / columns);
      return [left, wide, Math.min(wide, Math.max(rows <= 120 ? 11 : 0, 800 / rows))];
    };
    let [left, wide, tall] = fit(widest(v.queries) + 8);
    if (tall < 11) [left, wide, tall] = fit(34);
    const top = wide >= 11 ? widest(v.keys) + 8 : 20;
    const width = wide * columns, height = tall * rows, ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round((left + width) * ratio);
    canvas.height = Math.round((top + height) * ratio);
    canvas.style.width = `${left + width}px`;
    canvas.style.height = `${top + height}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.imageSmoothingEnabled = tall * ratio < 2;
    context.drawImage(drawn, left, top, width, height);
    frame = { left, top, wide, tall };

    const at = now.cell ?? (now.reverse ? { column: now.token } : { row: now.token });
    context.textBaseline = "middle";
    const write = (labels, across) => {
      const step = across ? wide : tall, labelled = step >= 11;
      const every = labelled ? 1 : Math.max(1, 2 ** Math.ceil(Math.log2((across ? 44 : 30) / step)));
      context.font = labelled ? font : small;
      labels.forEach((label, i) => {
        if (i % every) return;
        context.fillStyle = i === (across ? at.column : at.row) ? colour.mark : colour.text;
        context.save();
        if (across) context.translate(left + (i + 0.5) * wide, labelled ? top - 5 : top - 8);
        else context.translate(left - 5, top + (i + 0.5) * tall);
        if (across && labelled) context.rotate(-Math.PI / 2);
        context.textAlign = across ? (labelled || !i ? "left" : "center") : "right";
        context.fillText(labelled ? cut(label) : String(i), 0, 0);
        context.restore();
      });
    };
    write(v.queries, false);
    write(v.keys, true);

    context.lineWidth = 1;
    context.strokeStyle = colour.line;
    context.strokeRect(left + 0.5, top + 0.5, Math.max(0, width - 1), Math.max(0, height - 1));
    context.lineWidth = tall < 4 ? 1 : 1.5;
    context.strokeStyle = colour.mark;
    if (v.memory) {
      context.beginPath();
      context.moveTo(left + v.memory * wide, 0);
      context.lineTo(left + v.memory * wide, top + height);
      context.stroke();
    }
    if (at.row !== undefined) context.strokeRect(left, top + at.row * tall, width, Math.max(tall, 2));
    if (at.column !== undefined) context.strokeRect(left + at.column * wide, top, Math.max(wide, 2), height);
  };

  const cellAt = (event) => {
    const box = $("map").getBoundingClientRect(), v = view();
    const column = Math.floor((event.clientX - box.left - frame.left) / frame.wide), row = Math.floor((event.clientY - box.top - frame.top) / frame.tall);
    return column >= 0 && row >= 0 && column < v.keys.length && row < v.queries.length ? { row, column } : null;
  };
  const showTip = (event) => {
    const cell = cellAt(event), tip = $("tip"), v = view();
    now.cell = cell;
    tip.hidden = !cell;
    drawMap();
    if (!cell) return;
    const share = map[cell.row * v.keys.length + cell.column];
    tip.textContent = `${named(v.queries, cell.row)} → ${named(v.keys, cell.column)}: ${percent(share)}`;
    const x = frame.left + (cell.column + 1) * frame.wide + 8, y = frame.top + (cell.row + 1) * frame.tall + 8;
    tip.style.left = "0";
    tip.style.left = `${Math.max(0, Math.min(x, $("matrix").clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${y}px`;
  };
  const hideTip = () => {
    if (!now.cell && $("tip").hidden) return;
    now.cell = null;
    $("tip").hidden = true;
    drawMap();
  };
  $("map").addEventListener("pointermove", showTip);
  $("map").addEventListener("pointerdown", showTip);
  $("map").addEventListener("pointerleave", (event) => event.pointerType !== "touch" && hideTip());
  $("map").addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (!cell) return;
    now.token = now.reverse ? cell.column : cell.row;
    now.pinned = true;
    showTokens();
    reveal();
  });

  // All layers and heads, small; a click chooses one.
  const buildGrid = (v) => {
    const heads = v.heads > 1 ? [MEAN, ...Array(v.heads).keys()] : [0], cells = [make("span")];
    $("grid").style.gridTemplateColumns = `1.4rem repeat(${heads.length}, minmax(30px, 96px))`;
    $("grid").style.setProperty("--shape", String(Math.max(0.5, Math.min(2, v.keys.length / v.queries.length))));
    for (const head of heads) cells.push(make("span", { textContent: head === MEAN ? "mean" : String(head) }));
    for (let layer = 0; layer < v.layers; layer++) {
      cells.push(make("span", { textContent: String(layer) }));
      for (const head of heads) {
        const button = make("button", { type: "button" }, picture(mapOf(v, layer, head), v.queries.length, v.keys.length, 128));
        button.firstChild.style.imageRendering = v.keys.length < 64 ? "pixelated" : "auto";
        button.dataset.layer = String(layer);
        button.dataset.head = String(head);
        button.setAttribute("aria-label", `layer ${layer}, ${headName(head)}`);
        button.title = `layer ${layer}, ${headName(head)}`;
        button.addEventListener("click", () => choose({ layer, head }));
        cells.push(button);
      }
    }
    $("grid").replaceChildren(...cells);
  };

  const drawScale = () => {
    const canvas = $("scale"), width = (canvas.width = 256), context = canvas.getContext("2d"), image = context.createImageData(width, 1);
    for (let x = 0; x < width; x++) paint(image.data, x, (x / (width - 1)) ** 2);
    for (let y = 0; y < canvas.height; y++) context.putImageData(image, 0, y);
    $("ticks").replaceChildren(...[0, 0.01, 0.05, 0.2, 0.5, 1].map((share) => {
      const tick = make("span", { textContent: share === 1 ? "100 %" : `${100 * share}` });
      tick.style.left = `${100 * shade(share)}%`;
      return tick;
    }));
  };

  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.target.matches?.("select, input")) return;
    const v = view(), least = v.heads > 1 ? MEAN : 0;
    const moves = { ArrowLeft: ["head", -1, least, v.heads], ArrowRight: ["head", 1, least, v.heads], ArrowUp: ["layer", -1, 0, v.layers], ArrowDown: ["layer", 1, 0, v.layers] };
    if (event.key === "Escape") {
      now.pinned = false;
      hideTip();
      showTokens();
    } else if (moves[event.key]) {
      const [what, step, first, end] = moves[event.key];
      event.preventDefault();
      choose({ [what]: Math.max(first, Math.min(end - 1, now[what] + step)) });
    }
  });
  // A control that was used with the mouse lets the arrow keys go again.
  let pointing = false;
  document.addEventListener("pointerdown", () => (pointing = true), true);
  document.addEventListener("keydown", () => (pointing = false), true);
  $("controls").addEventListener("change", (event) => pointing && event.target.blur());
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("resize", drawMap);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    readColours();
    drawScale();
    buildGrid(view());
    choose({});
  });

  $("model").textContent = data.model ? ` of ${data.model}` : "";
  readColours();
  drawScale();
  buildControls();
  openView();
})();

