"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const [steps, layers, heads] = data.shape;
const weights = Uint8Array.from(atob(data.weights), (c) => c.charCodeAt(0));
const slider = document.getElementById("step");
const cell = Math.max(3, Math.min(16, Math.floor(700 / Math.max(steps, 1))));
const canvases = [];
for (let layer = 0; layer < layers; layer++) {
  const title = document.createElement("p");
  title.textContent = `layer ${layer}`;
  const canvas = document.createElement("canvas");
  canvas.width = cell * steps;
  canvas.height = 14 * heads;
  canvas.setAttribute("aria-label", `attention of layer ${layer}`);
  document.getElementById("layers").append(title, canvas);
  canvases.push(canvas);
}
if (!layers) document.getElementById("layers").textContent = "This policy has no attention.";
function show() {
  const t = Number(slider.value);
  document.getElementById("heading").textContent = data.headings[t];
  document.getElementById("frame").textContent = data.frames[t];
  const picture = document.getElementById("picture");
  picture.hidden = !data.pictures.length;
  if (data.pictures.length) picture.src = data.pictures[t];
  canvases.forEach((canvas, layer) => {
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#ffffff";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    for (let head = 0; head < heads; head++) {
      for (let j = 0; j <= t; j++) {
        const weight = weights[((t * layers + layer) * heads + head) * steps + j] / 255;
        pen.fillStyle = `rgba(30, 40, 60, ${Math.sqrt(weight)})`;
        pen.fillRect(cell * j, 14 * head, cell - 1, 13);
      }
    }
    pen.strokeStyle = "#c83c28";
    pen.strokeRect(cell * t + 0.5, 0.5, cell - 1, canvas.height - 1);
  });
}
slider.max = String(steps - 1);
slider.addEventListener("input", show);
show();
