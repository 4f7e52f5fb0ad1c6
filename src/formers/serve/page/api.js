// Requests to this server alone. A token, where the server asks for one, comes with the address behind # and is kept for the tab.

const TOKEN = "formers-token";

export function takeToken() {
  const found = location.hash.match(/^#token=([\w-]+)/);
  if (!found) return;
  sessionStorage.setItem(TOKEN, found[1]);
  history.replaceState(null, "", "#/watch");
}

function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { ...more, authorization: `Bearer ${token}` } : more;
}

export class Refused extends Error {
  constructor(message, status, wait = null) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

async function checked(response) {
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // not in the API's form
  }
  throw new Refused(message, response.status, response.headers.get("retry-after"));
}

export async function get(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) for (const each of [value].flat()) query.append(name, each);
  const text = query.toString();
  return checked(await fetch(text ? `${path}?${text}` : path, { headers: headers(), signal }));
}

export async function getJson(path, parameters, signal) {
  return (await get(path, parameters, signal)).json();
}

export async function post(path, body, signal) {
  return checked(await fetch(path, { method: "POST", headers: headers({ "content-type": "application/json" }), body: JSON.stringify(body), signal }));
}

export async function postJson(path, body, signal) {
  return (await post(path, body, signal)).json();
}

/** A JSON header and the bytes behind it. */
export async function framed(response) {
  const buffer = await response.arrayBuffer();
  const size = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  return { header, buffer, start: 4 + size };
}

/** Calls `told(data, name)` for every event of a stream, until it ends or the signal stops it. */
export async function events(response, told) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      let name = "message";
      const data = [];
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data.push(line.slice(6));
      }
      if (data.length) told(data.join("\n"), name);
    }
  }
}

/** A text in JSON that may be an error in the API's form. */
export function parsed(data) {
  const found = JSON.parse(data);
  if (found.error) throw new Refused(found.error.message, 500);
  return found;
}
