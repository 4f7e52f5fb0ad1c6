"use strict";
// Draws the attention over an image that `formers` recorded. Everything is in the page; it loads nothing.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const MEAN = -1; // the head that is the mean of all
  const SHOWN = 8; // strongest pixels in the list
  const { height, width, layers, heads } = data, pixels = height * width;
  const WEIGHT = [236, 112, 0], QUERY = [0, 45, 130], LATER = [150, 178, 214];
  const MODES = ["attention over image", "attention", "image"];
  const now = { layer: data.begin.layer, head: heads === 1 ? 0 : data.begin.head, pixel: data.begin.pixel, mode: 0 };
  const queryOf = new Map(data.queries.map((pixel, place) => [pixel, place]));

  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const bytesOf = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const image = bytesOf(data.image), weights = bytesOf(data.weights);
  const light = Float32Array.from({ length: pixels }, (_, i) => 0.299 * image[3 * i] + 0.587 * image[3 * i + 1] + 0.114 * image[3 * i + 2]);
  const headsOf = (head) => (head === MEAN ? [...Array(heads).keys()] : [head]);

  // The shares of all pixels, and that of the start, in a layer and a head. Stored is the square root over the row's largest.
  const mapOf = (layer, head) => {
    const map = new Float32Array(pixels), chosen = headsOf(head);
    let begin = 0;
    for (const h of chosen) {
      const row = (layer * heads + h) * data.queries.length + queryOf.get(now.pixel);
      for (let i = 0; i < pixels; i++) map[i] += (weights[row * pixels + i] / 255) ** 2 * data.tops[row];
      begin += data.start[row];
    }
    for (let i = 0; i < pixels; i++) map[i] /= chosen.length;
    return { map, start: begin / chosen.length };
  };
  const largest = (map) => map.reduce((most, share) => Math.max(most, share), 0);
  const percent = (share) => {
    const value = 100 * share, digits = value >= 10 ? 1 : 2, least = 10 ** -digits;
    return value > 0 && value < least / 2 ? `< ${least} %` : `${value.toFixed(digits)} %`;
  };
  const placeName = (pixel) => `row ${Math.floor(pixel / width)}, column ${pixel % width}`;
  const headName = (head) => (head === MEAN ? "mean of heads" : `head ${head}`);

  // A picture of one pixel for each pixel: the image in grey, orange by the square root of the share, later pixels pale blue.
  const draw = (canvas, map, top, mode) => {
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d"), picture = context.createImageData(width, height), time = data.place[now.pixel];
    for (let i = 0; i < pixels; i++) {
      const cover = mode === 2 || top <= 0 ? 0 : Math.sqrt(map[i] / top) * (i === now.pixel ? 0.5 : 1);
      for (let c = 0; c < 3; c++) {
        let value = mode === 2 ? image[3 * i + c] : mode === 1 ? 238 : 95 + (light[i] * 145) / 255;
        if (mode !== 2 && data.place[i] > time) value = 0.3 * value + 0.7 * LATER[c];
        if (mode !== 2 && i === now.pixel) value = QUERY[c];
        picture.data[4 * i + c] = value + cover * (WEIGHT[c] - value);
      }
      picture.data[4 * i + 3] = 255;
    }
    context.putImageData(picture, 0, 0);
  };

  let current, hovered = null; // the maps that are shown, and where the pointer is: { pixel, x, y }
  const showTip = () => {
    const tip = $("tip");
    tip.hidden = hovered === null;
    if (hovered === null) return;
    const { pixel, x, y } = hovered, frame = $("frame").getBoundingClientRect();
    const later = data.place[pixel] > data.place[now.pixel];
    tip.textContent = `${placeName(pixel)} [${data.values[pixel].join(", ")}]: ${later ? "later" : percent(current.map[pixel])}`;
    tip.style.left = "0";
    tip.style.left = `${Math.max(0, Math.min(x + 14, frame.width - tip.offsetWidth))}px`;
    tip.style.top = `${y + 16}px`;
  };
  const show = () => {
    current = mapOf(now.layer, now.head);
    const top = largest(current.map), small = make("canvas"), canvas = $("picture");
    draw(small, current.map, top, now.mode);
    const scale = Math.max(1, Math.ceil((544 * (window.devicePixelRatio || 1)) / width));
    canvas.width = width * scale;
    canvas.height = height * scale;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
    const x = (now.pixel % width) * scale, y = Math.floor(now.pixel / width) * scale, line = Math.max(2, scale / 8);
    for (const [colour, thick] of [["#ffffff", 2 * line], ["#002d82", line]]) {
      context.strokeStyle = colour;
      context.lineWidth = thick;
      context.strokeRect(x, y, scale, scale);
    }
    $("layer").value = String(now.layer);
    $("head").value = String(now.head);
    for (const button of $("grid").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.layer) === now.layer && Number(button.dataset.head) === now.head));
    }
    const title = `Layer ${now.layer}, ${headName(now.head)}`;
    $("picture-title").textContent = title;
    canvas.setAttribute("aria-label", `${title}: attention of the pixel at ${placeName(now.pixel)} over the image of ${height} x ${width} pixels.`);
    $("top").textContent = `attention, 0 to ${percent(top)}; shade by the square root`;
    const order = [...current.map.keys()].filter((i) => current.map[i] > 0).sort((a, b) => current.map[b] - current.map[a] || a - b);
    const channel = data.channel === null ? "" : `, channel ${data.channel}`;
    $("says").textContent = `The pixel at ${placeName(now.pixel)}${channel} attends to`;
    const items = order.slice(0, SHOWN).map((pixel) => [placeName(pixel), data.values[pixel].join(", "), current.map[pixel]]);
    $("list").replaceChildren(...[...items, ["start", "before the first pixel", current.start]].map(([name, value, share]) => {
      const label = make("span", { className: "name", textContent: name }, make("small", { textContent: ` [${value}]` }));
      const item = make("li", {}, label, make("span", { className: "number", textContent: percent(share) }));
      item.style.setProperty("--share", String(share));
      return item;
    }));
    showTip();
  };

  const choose = (change) => {
    const moved = change.pixel !== undefined && change.pixel !== now.pixel;
    Object.assign(now, change);
    if (moved) drawGrid();
    show();
  };

  // All layers and heads, small, shaded on one scale; a click chooses one.
  const columns = heads > 1 ? [MEAN, ...Array(heads).keys()] : [0];
  const buildGrid = () => {
    const cells = [make("span"), ...columns.map((head) => make("span", { textContent: head === MEAN ? "mean" : String(head) }))];
    $("grid").style.gridTemplateColumns = `1.4rem repeat(${columns.length}, minmax(34px, 110px))`;
    $("grid").style.setProperty("--shape", String(width / height));
    for (let layer = 0; layer < layers; layer++) {
      cells.push(make("span", { textContent: String(layer) }));
      for (const head of columns) {
        const button = make("button", { type: "button", title: `layer ${layer}, ${headName(head)}` }, make("canvas"));
        Object.assign(button.dataset, { layer, head });
        button.setAttribute("aria-label", button.title);
        button.addEventListener("click", () => choose({ layer, head }));
        cells.push(button);
      }
    }
    $("grid").replaceChildren(...cells);
  };
  const drawGrid = () => {
    const buttons = [...$("grid").querySelectorAll("button")];
    const maps = buttons.map(({ dataset }) => mapOf(Number(dataset.layer), Number(dataset.head)).map);
    const top = Math.max(...maps.map(largest));
    buttons.forEach((button, place) => draw(button.firstChild, maps[place], top, 0));
  };

  const pixelAt = (event) => {
    const box = $("picture").getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left) / box.width) * width), row = Math.floor(((event.clientY - box.top) / box.height) * height);
    return column >= 0 && row >= 0 && column < width && row < height ? row * width + column : null;
  };
  $("picture").addEventListener("pointermove", (event) => {
    const pixel = pixelAt(event), frame = $("frame").getBoundingClientRect();
    hovered = pixel === null ? null : { pixel, x: event.clientX - frame.left, y: event.clientY - frame.top };
    showTip();
  });
  $("picture").addEventListener("pointerleave", () => {
    hovered = null;
    showTip();
  });
  $("picture").addEventListener("click", (event) => {
    const pixel = pixelAt(event);
    if (pixel !== null && queryOf.has(pixel)) choose({ pixel });
  });
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.matches?.("select, input")) return;
    if (event.shiftKey) {
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!step || data.queries.length === 1) return;
      event.preventDefault();
      const row = Math.floor(now.pixel / width) + step[0], column = (now.pixel % width) + step[1];
      if (row >= 0 && row < height && column >= 0 && column < width) choose({ pixel: row * width + column });
      return;
    }
    const least = heads > 1 ? MEAN : 0;
    const moves = { ArrowLeft: ["head", -1, least, heads], ArrowRight: ["head", 1, least, heads], ArrowUp: ["layer", -1, 0, layers], ArrowDown: ["layer", 1, 0, layers] };
    if (!moves[event.key]) return;
    const [what, step, first, end] = moves[event.key];
    event.preventDefault();
    choose({ [what]: Math.max(first, Math.min(end - 1, now[what] + step)) });
  });

  for (const [id, options] of [["layer", [...Array(layers).keys()]], ["head", columns]]) {
    $(id).replaceChildren(...options.map((value) => make("option", { value: String(value), textContent: value === MEAN ? "mean of heads" : String(value) })));
    $(id).addEventListener("change", () => choose({ [id]: Number($(id).value) }));
  }
  $("shown").replaceChildren(...MODES.map((text, mode) => {
    const input = make("input", { type: "radio", name: "shown", value: String(mode), checked: mode === now.mode });
    input.addEventListener("change", () => choose({ mode }));
    return make("label", {}, input, make("span", { textContent: text }));
  }));
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("click").textContent = data.queries.length > 1 ? " \u2002click, or Shift and an arrow, chooses another pixel" : "";
  $("model").textContent = data.model ? ` of ${data.model}` : "";
  $("footer").textContent =
    `${layers} layer${layers > 1 ? "s" : ""} of ${heads} head${heads > 1 ? "s" : ""}, ${height} × ${width} pixels, ` +
    `${data.queries.length > 1 ? "every pixel can be chosen" : "one pixel"}. ` +
    `The small pictures share one scale. Made by formers ${data.version}; this page works offline and loads nothing.`;
  buildGrid();
  drawGrid();
  show();
})();
