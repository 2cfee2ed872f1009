// What a page has asked for once, or asks for again and again while it is open.

import { get } from "./live.js";

const kept = { key: "", body: null, timer: null, retry: null, isAsking: false };
// What could not be answered is asked for again: a server that was stopped comes back.
const RETRY_MS = 3000;

async function load(key, path, query, redraw) {
  if (kept.isAsking) return;
  kept.isAsking = true;
  const body = await get(path, query);
  kept.isAsking = false;
  if (kept.key !== key) { redraw(); return; }  // another page is open by now
  kept.body = body;
  clearTimeout(kept.retry);
  if (body.error) kept.retry = setTimeout(() => { if (kept.key === key) load(key, path, query, redraw); }, RETRY_MS);
  redraw();
}

/** The answer to a request; null until it came. every_ms: how often it is asked for anew. */
export function resource(path, query, redraw, every_ms = 0) {
  const key = `${path}?${new URLSearchParams(query)}`;
  if (kept.key !== key) {
    clearInterval(kept.timer);
    // A table that is filtered or turned shows its old rows until the new ones are there.
    const isSamePath = kept.key.split("?")[0] === path;
    Object.assign(kept, { key, body: isSamePath ? kept.body : null, timer: null });
    load(key, path, query, redraw);
    if (every_ms) kept.timer = setInterval(() => load(key, path, query, redraw), every_ms);
  } else if (!kept.body && !kept.isAsking) {
    load(key, path, query, redraw);
  }
  return kept.body;
}

/** Ask anew, because something changed. */
export function renew(redraw) {
  const [path, query] = kept.key.split("?");
  if (path) load(kept.key, path, Object.fromEntries(new URLSearchParams(query)), redraw);
}

/** Stop asking. */
export function release() {
  clearInterval(kept.timer);
  Object.assign(kept, { key: "", body: null, timer: null });
}
