// The state of the page: the latest that the server sent for what is open, over one live connection.

export const state = {
  board: null,     // what every page shows
  page: null,      // what the open page shows; null until it came
  range: localStorage.getItem("range") ?? "5m",
  isLost: false,   // the dashboard itself does not respond
};

let source = null;
let asked = "";
let pending = null;
let losing = null;
// A browser opens a connection that ended again by itself, after three seconds: only then is something wrong.
const LOST_MS = 5000;

/** Asks for a page by its query; nothing happens when that is what is open. soon: while somebody types. */
export function ask(query, redraw, { soon = false } = {}) {
  const wanted = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== undefined));
  if (asked === String(wanted)) return;
  const isOther = new URLSearchParams(asked).get("page") !== wanted.get("page")
    || ["stream", "consumer"].some((name) => new URLSearchParams(asked).get(name) !== wanted.get(name));
  if (isOther) {
    state.page = null;
    source?.close();  // what it still sends is for another page
  }
  asked = String(wanted);
  clearTimeout(pending);
  pending = setTimeout(() => open(redraw), soon ? 150 : 0);
}

function open(redraw) {
  source?.close();
  source = new EventSource(`api/live?${asked}`);
  source.onmessage = (event) => {
    const data = JSON.parse(event.data);
    Object.assign(state, { board: data.board, page: data.page, isLost: false });
    document.body.dataset.samples = String(Number(document.body.dataset.samples ?? 0) + 1);
    redraw();
  };
  source.onopen = () => { clearTimeout(losing); losing = null; };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) {  // a refusal ends it for good
      refused();
      pending = setTimeout(() => { if (asked) open(redraw); }, 3000);
    }
    losing ??= setTimeout(() => { state.isLost = true; redraw(); }, LOST_MS);
  };
}

/** Forgets what came for whoever used the page before. */
export function forget() {
  source?.close();
  clearTimeout(pending);
  clearTimeout(losing);
  asked = "";
  losing = null;
  Object.assign(state, { board: null, page: null, isLost: false });
}

let refused = () => {};
export const onRefused = (handler) => { refused = handler; };

/** The answer to one request; errors come as `{ error }`. */
export async function get(path, query = {}) {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== undefined));
  try {
    const answer = await fetch(`${path}?${text}`);
    return await answer.json();
  } catch {
    return { error: "The dashboard does not respond." };
  }
}
