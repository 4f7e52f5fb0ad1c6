// Curves on shared axes: gaps where a value is not finite, a cursor by mouse and by keys.

import { h, sharp, shade, short } from "./dom.js";

const LEFT = 56;
const BOTTOM = 34;
const TOP = 10;
const RIGHT = 12;

export class Chart {
  constructor(label) {
    this.canvas = h("canvas", { tabIndex: 0, className: "chart", "aria-label": label, role: "img" });
    this.says = h("p", { className: "says", role: "status" });
    this.element = h("div", { className: "chart-box" }, this.canvas, this.says);
    this.curves = [];
    this.cursor = null;
    this.options = { x: "step", y: "loss", log: false, mark: null };
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("blur", () => this.leave());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(curves, options) {
    this.curves = curves;
    Object.assign(this.options, options);
    this.draw();
  }

  bounds() {
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x, y } of this.curves) {
      for (let i = 0; i < x.length; i += 1) {
        const value = y[i];
        if (x[i] < x0) x0 = x[i];
        if (x[i] > x1) x1 = x[i];
        if (!Number.isFinite(value) || (this.options.log && value <= 0)) continue;
        if (value < y0) y0 = value;
        if (value > y1) y1 = value;
      }
    }
    if (!(x1 > x0)) [x0, x1] = Number.isFinite(x0) ? [x0 - 1, x0 + 1] : [0, 1];
    if (!Number.isFinite(y0)) [y0, y1] = this.options.log ? [0.1, 1] : [0, 1];
    if (!(y1 > y0)) [y0, y1] = this.options.log ? [y0 / 2, y0 * 2] : [y0 - 0.5, y0 + 0.5];
    return { x0, x1, y0, y1 };
  }

  draw() {
    if (!this.element.clientWidth) return; // not shown
    const width = Math.max(240, this.element.clientWidth);
    const height = Math.max(220, Math.min(420, Math.round(width * 0.5)));
    const pen = sharp(this.canvas, width, height);
    const { x0, x1, y0, y1 } = this.bounds();
    const scale = this.options.log ? Math.log10 : (v) => v;
    const low = scale(y0);
    const high = scale(y1);
    const pad = 0.04 * (high - low);
    this.toX = (v) => LEFT + ((v - x0) / (x1 - x0)) * (width - LEFT - RIGHT);
    this.fromX = (p) => x0 + ((p - LEFT) / (width - LEFT - RIGHT)) * (x1 - x0);
    this.toY = (v) => TOP + (1 - (scale(v) - low + pad) / (high - low + 2 * pad)) * (height - TOP - BOTTOM);
    this.range = [x0, x1];
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = shade("--quiet");
    pen.strokeStyle = shade("--line");
    pen.lineWidth = 1;
    pen.textAlign = "center";
    for (const at of ticks(x0, x1, Math.max(2, Math.floor(width / 110)))) {
      pen.beginPath();
      pen.moveTo(this.toX(at), TOP);
      pen.lineTo(this.toX(at), height - BOTTOM);
      pen.stroke();
      pen.fillText(short(at), Math.min(this.toX(at), width - 20), height - BOTTOM + 15);
    }
    pen.textAlign = "right";
    const rows = this.options.log ? logTicks(y0, y1) : ticks(y0, y1, 5);
    for (const at of rows) {
      pen.beginPath();
      pen.moveTo(LEFT, this.toY(at));
      pen.lineTo(width - RIGHT, this.toY(at));
      pen.stroke();
      pen.fillText(short(at, 3), LEFT - 6, this.toY(at) + 4);
    }
    pen.textAlign = "center";
    pen.fillText(this.options.x, (LEFT + width - RIGHT) / 2, height - 4);
    for (const curve of this.curves) this.line(pen, curve);
    if (this.options.mark !== null && this.options.mark >= x0 && this.options.mark <= x1) this.upright(pen, this.options.mark, height, "--mark");
    if (this.cursor !== null) this.upright(pen, this.cursor, height, "--quiet");
    if (!this.curves.length) {
      pen.fillText("no run is ticked", width / 2, height / 2);
    }
  }

  line(pen, { x, y, colour, dash, best }) {
    pen.strokeStyle = colour;
    pen.fillStyle = colour;
    pen.lineWidth = this.curves.length > 20 ? 1 : 1.75;
    pen.setLineDash(dash);
    pen.beginPath();
    let open = false;
    let alone = null;
    const dots = [];
    for (let i = 0; i < x.length; i += 1) {
      const value = y[i];
      if (!Number.isFinite(value) || (this.options.log && value <= 0)) {
        if (alone !== null) dots.push(alone);
        alone = null;
        open = false;
        continue;
      }
      const px = this.toX(x[i]);
      const py = this.toY(value);
      if (open) {
        pen.lineTo(px, py);
        alone = null;
      } else {
        pen.moveTo(px, py);
        alone = [px, py];
      }
      open = true;
    }
    if (alone !== null) dots.push(alone);
    pen.stroke();
    pen.setLineDash([]);
    for (const [px, py] of dots) {
      pen.beginPath();
      pen.arc(px, py, 2.5, 0, 7);
      pen.fill();
    }
    if (best && this.curves.length <= 20) {
      pen.beginPath();
      pen.arc(this.toX(best[0]), this.toY(best[1]), 4.5, 0, 7);
      pen.stroke();
    }
  }

  upright(pen, at, height, ink) {
    pen.strokeStyle = shade(ink);
    pen.setLineDash([3, 3]);
    pen.beginPath();
    pen.moveTo(this.toX(at), TOP);
    pen.lineTo(this.toX(at), height - BOTTOM);
    pen.stroke();
    pen.setLineDash([]);
  }

  point(place) {
    this.cursor = Math.max(this.range[0], Math.min(this.range[1], this.fromX(place)));
    this.draw();
    this.tell();
  }

  key(event) {
    const step = (this.range[1] - this.range[0]) / 50;
    const moves = { ArrowRight: step, ArrowLeft: -step, PageUp: 5 * step, PageDown: -5 * step };
    if (event.key === "Home") this.cursor = this.range[0];
    else if (event.key === "End") this.cursor = this.range[1];
    else if (event.key === "Escape") return this.leave();
    else if (event.key in moves) this.cursor = (this.cursor ?? this.range[0]) + moves[event.key];
    else return undefined;
    event.preventDefault();
    this.cursor = Math.max(this.range[0], Math.min(this.range[1], this.cursor));
    this.draw();
    this.tell();
    return undefined;
  }

  leave() {
    this.cursor = null;
    this.says.textContent = "";
    this.draw();
  }

  /** The values of the first few curves at the cursor, in words. */
  tell() {
    const told = [];
    for (const { label, x, y } of this.curves.slice(0, 6)) {
      const place = nearest(x, this.cursor);
      if (place >= 0) told.push(`${label} ${Number.isFinite(y[place]) ? short(y[place]) : "not finite"}`);
    }
    this.says.textContent = `${this.options.x} ${short(this.cursor)}: ${told.join(", ")}${this.curves.length > 6 ? ", …" : ""}`;
  }
}

function nearest(x, at) {
  if (!x.length) return -1;
  let [low, high] = [0, x.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < at) low = middle + 1;
    else high = middle;
  }
  return low > 0 && at - x[low - 1] < x[low] - at ? low - 1 : low;
}

function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const m of high / low < 30 ? [1, 2, 3, 5] : [1]) {
      const at = m * 10 ** power;
      if (at >= low && at <= high) found.push(at);
    }
  }
  return found.length ? found : [low, high];
}

/** A curve smoothed by an exponential mean; gaps stay gaps. */
export function smoothed(y, share) {
  if (!share) return y;
  const made = new Float32Array(y.length);
  let mean = NaN;
  for (let i = 0; i < y.length; i += 1) {
    if (!Number.isFinite(y[i])) made[i] = NaN;
    else {
      mean = Number.isNaN(mean) ? y[i] : share * mean + (1 - share) * y[i];
      made[i] = mean;
    }
  }
  return made;
}
