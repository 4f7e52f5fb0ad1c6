// Elements from plain values. Text reaches the page as text only: there is no markup anywhere in the scripts.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "style") for (const [key, part] of Object.entries(value)) element.style.setProperty(key, part);
    else if (name in element && name !== "list" && name !== "form") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

let numbered = 0;

/** A labelled control: text above, control below. */
export function field(text, control, hint = null) {
  control.id ||= `f${(numbered += 1)}`;
  const note = hint && h("small", { id: `${control.id}-hint` }, hint);
  if (note) control.setAttribute("aria-describedby", note.id);
  return h("div", { className: "field" }, h("label", { htmlFor: control.id }, text), control, note);
}

export function choice(options, value, onchange) {
  const select = h("select", { onchange: () => onchange?.(select.value) });
  fill(select, options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text)));
  return select;
}

export function tick(text, checked, onchange, properties = {}) {
  const box = h("input", { type: "checkbox", checked, ...properties, onchange: () => onchange?.(box.checked) });
  return h("label", { className: "tick" }, box, text);
}

/** A number for people: few digits, thousands apart. */
export function short(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size >= 1e6) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

export function percent(value) {
  return value < 0.001 ? "<0.1 %" : `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;
}

export function duration(seconds) {
  const s = Math.round(seconds ?? 0);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

/** The value of a CSS variable, for canvases. */
export function shade(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export const PALETTE = 8;
export function colour(place) {
  return shade(`--line-${place % PALETTE}`);
}
export const DASHES = [[], [6, 3], [2, 2], [8, 3, 2, 3]];
export function dash(place) {
  return DASHES[Math.floor(place / PALETTE) % DASHES.length];
}

/** Prepares a canvas for sharp drawing at its size on the page. */
export function sharp(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

/** A token as people can see it. */
export function visible(text) {
  if (text.startsWith("bytes:")) return text.slice(6);
  return text.replace(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (c) => `\\x${c.charCodeAt(0).toString(16).padStart(2, "0")}`);
}

export function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** Runs a function at most once in so many milliseconds, the last call counts. */
export function calm(wait, act) {
  let timer = null;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), wait);
  };
}
