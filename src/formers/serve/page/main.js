// The frame of the page: which view is shown, and what goes wrong is said in one place.

import { takeToken } from "./api.js";
import { watch } from "./watch.js";

const VIEWS = {
  watch: async (place) => watch(place),
  try: async (place) => (await import("./try.js")).tryOut(place),
  look: async (place) => (await import("./look.js")).look(place),
  patterns: async (place) => (await import("./patterns.js")).patterns(place),
};
const made = {};

export function trouble(message) {
  const line = document.getElementById("trouble");
  line.hidden = !message;
  line.textContent = message ?? "";
}

async function show() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  if (location.hash === "#main") return;
  const name = path in VIEWS ? path : "watch";
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.id !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${name[0].toUpperCase()}${name.slice(1)} – formers`;
  try {
    made[name] ??= await VIEWS[name](document.getElementById(name));
    trouble(null);
    await made[name]?.enter?.(new URLSearchParams(query ?? ""));
  } catch (error) {
    trouble(error.message);
  }
}

addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError") return event.preventDefault();
  trouble(event.reason?.message ?? String(event.reason));
  return undefined;
});
addEventListener("hashchange", show);
takeToken();
show();
