// Key-value buckets: all of them, and one with its keys, their history, and a watch.

import { decoded, fromBase64, preview } from "../decode.js";
import { make } from "../elements.js";
import { bytes, count, duration, moment, path, rate } from "../format.js";
import { get, state } from "../live.js";
import { command, crumbs, failed, head, link, loading, nothing, tag, tiles } from "../parts.js";
import { release, renew, resource } from "../resource.js";
import { listingQuery, table } from "../table.js";

const PREFIX = "KV_";

const bucketColumns = [
  { title: "Bucket", cell: (row) => link(path("kv", row.name.slice(PREFIX.length)), row.name.slice(PREFIX.length)), sort: "name", kind: "clip main" },
  { title: "Keys", cell: (row) => count(row.num_subjects), kind: "number" },
  { title: "Values", cell: (row) => count(row.messages), sort: "messages", descending: true, kind: "number" },
  { title: "Size", cell: (row) => bytes(row.bytes), sort: "bytes", descending: true, kind: "number optional" },
  { title: "Changes", cell: (row) => rate(row.rate), sort: "rate", descending: true, kind: "number" },
  { title: "Last change", cell: (row) => moment(row.last_ts), kind: "optional" },
];

export const buckets = {
  section: "kv",
  title: () => "Key-value buckets",
  query: () => ({ page: "buckets", ...listingQuery("buckets") }),
  draw({ changed, actions }) {
    if (!state.page) return loading("Key-value buckets");
    return [head("Key-value buckets", actions.createBucket()), table("buckets", bucketColumns, state.page, {
      caption: "Key-value buckets", changed, key: (row) => row.name,
      empty: nothing("No buckets yet. Create one: ", command("jetlake kv add SETTINGS")),
    })];
  },
};

const watch = { source: null };
let opened = null;  // the key whose history is shown, { key, history }

function toggleWatch(bucket, redraw) {
  if (watch.source) { watch.source.close(); watch.source = null; redraw(); return; }
  watch.source = new EventSource(`api/streams/${encodeURIComponent(PREFIX + bucket)}/tail`);
  watch.source.onmessage = () => refresh(bucket, redraw);
  redraw();
}

function toggleHistory(bucket, key, { changed, redraw }) {
  opened = opened?.key === key ? null : { key, history: null };
  changed();
  if (opened) loadHistory(bucket, redraw);
}

async function loadHistory(bucket, redraw) {
  const asked = opened;
  const history = await get(`api/buckets/${encodeURIComponent(bucket)}/history`, { key: asked.key });
  if (opened !== asked) return;  // another key is open by now
  asked.history = history;
  redraw();
}

/** Ask for keys and the open history anew, because something changed. */
function refresh(bucket, redraw) {
  renew(redraw);
  if (opened) loadHistory(bucket, redraw);
}

const shown = (row) => (row.operation === "put" ? preview(fromBase64(row.data), 120) : make("span", { class: "warn" }, row.operation === "delete" ? "deleted" : "purged"));

function historyCard(bucket, actions, { changed, redraw }) {
  if (!opened) return null;
  const { key, history } = opened;
  const newest = history?.rows?.find((row) => row.operation === "put");
  return make("section", { class: "card", id: "history", "aria-label": `History of ${key}` },
    make("div", { class: "head" }, make("h2", {}, key), make("div", { class: "actions" }, actions.key(bucket, key, newest && decoded(fromBase64(newest.data), "text").text, () => refresh(bucket, redraw)),
      make("button", { type: "button", onclick: () => { opened = null; changed(); } }, "Close"))),
    !history ? "loading …" : history.error ? make("p", { class: "bad" }, history.error) : !history.rows.length ? "The bucket does not hold this key." : history.rows.map((row) => make("details", { class: "revision", open: row === history.rows[0], "data-key": String(row.revision) },
      make("summary", {}, make("b", {}, `revision ${count(row.revision)}`), " · ", row.operation, " · ", moment(row.time), " · ", bytes(row.size)),
      make("pre", { tabindex: "0" }, decoded(fromBase64(row.data), "auto").text + (row.cut ? "\n… (cut)" : "")))));
}

export const bucket = {
  section: "kv",
  title: ([, name]) => name,
  query: () => ({ page: "none" }),
  // A link leads to the history of the same key.
  chosen: () => (opened ? [["key", opened.key]] : []),
  draw({ route: [, name], link: from, changed, redraw, actions }) {
    const up = crumbs(link("#/kv", "Key-value buckets"));
    if (!opened && from.get("key")) toggleHistory(name, from.get("key"), { changed, redraw });
    const body = resource(`api/buckets/${encodeURIComponent(name)}/keys`, listingQuery(`keys-${name}`), redraw);
    if (!body) return [up, loading(name)];
    if (body.error) return [up, failed(name, body.error)];
    const { status } = body;
    const columns = [
      { title: "Key", cell: (row) => make("button", { type: "button", class: "link", "aria-expanded": String(opened?.key === row.key), onclick: () => toggleHistory(name, row.key, { changed, redraw }) }, row.key), kind: "clip main" },
      { title: "Value", cell: shown, kind: "clip wider" },
      { title: "Revision", cell: (row) => count(row.revision), kind: "number optional" },
      { title: "Size", cell: (row) => bytes(row.size), kind: "number optional" },
      { title: "Changed", cell: (row) => moment(row.time), kind: "optional" },
    ];
    return [
      up,
      head(name, make("button", { type: "button", "aria-pressed": String(Boolean(watch.source)), onclick: () => toggleWatch(name, redraw) }, "Watch"),
        make("a", { class: "button", href: path("streams", PREFIX + name) }, "Show stream"), actions.putKey(name, () => refresh(name, redraw))),
      tiles(["Keys", count(body.total)], ["Values", count(status.values)], ["Size", bytes(status.bytes)],
        ["History", count(status.history)], ["TTL", status.ttl_s ? duration(status.ttl_s) : "none"], ["Storage", status.storage]),
      status.mirror && tag(`a mirror of ${status.mirror}`),
      historyCard(name, actions, { changed, redraw }),
      table(`keys-${name}`, columns, body, { caption: "Keys", changed, key: (row) => row.key, empty: ["No keys yet. Put one: ", command(`jetlake kv put ${name} KEY VALUE`)] }),
    ];
  },
  leave() { watch.source?.close(); watch.source = null; opened = null; release(); },
};
