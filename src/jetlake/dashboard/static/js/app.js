// The page: reads the address, asks for what it names, and draws it, at most once a frame.

import { actions, drawWho } from "./actions.js";
import { show } from "./dialog.js";
import { make, own, patch } from "./elements.js";
import { ask, forget, onRefused, state } from "./live.js";
import { absence, command, failed, RANGES } from "./parts.js";
import { bucket, buckets } from "./pages/buckets.js";
import consumer from "./pages/consumer.js";
import consumers from "./pages/consumers.js";
import copies from "./pages/copies.js";
import { schedules, services } from "./pages/found.js";
import { letters, letterStreams } from "./pages/letters.js";
import { connections, events, pipelines } from "./pages/lists.js";
import messages from "./pages/messages.js";
import { store, stores } from "./pages/objects.js";
import stream from "./pages/stream.js";
import streams from "./pages/streams.js";
import { loadSession, loginForm, session } from "./session.js";
import { choices, follow } from "./table.js";

// What an address names by its first part; with a second part, one thing of that kind.
const pages = { streams, consumers, kv: buckets, objects: stores, schedules, "dead-letters": letterStreams, copies, pipelines, services, connections, events };
const things = { streams: stream, kv: bucket, objects: store, "dead-letters": letters };

const address = () => location.hash.replace(/^#\/?/, "").split("?");

function route() {
  try {
    return address()[0].split("/").map(decodeURIComponent);
  } catch {
    return [""];  // an address that somebody typed wrong
  }
}

function pageOf([first, name, part, inner]) {
  if (first === "streams" && name && part === "consumers" && inner) return consumer;
  if (first === "streams" && name && part === "messages") return messages;
  if (name && Object.hasOwn(things, first)) return things[first];
  return Object.hasOwn(pages, first) ? pages[first] : streams;
}

let open = null;
let isDrawing = false;

function redraw() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    render();
  });
}

/** The reader chose something: the address says so, and can be sent to somebody. */
function changed() {
  const query = new URLSearchParams([...("range" in open.query(route()) ? [["range", state.range]] : []), ...choices(), ...(open.chosen?.() ?? [])]);
  history.replaceState(null, "", `#/${address()[0]}${query.size ? `?${query}` : ""}`);
  look();
}

function look() {
  if (session.needs_login) { redraw(); return; }
  ask(open.query(route()), redraw, { soon: document.activeElement?.type === "search" });
  redraw();
}

/** What there is to see for somebody to whom nothing is shown. */
function entrance() {
  return make("section", { id: "login", class: "card" }, ...(session.can_login
    ? [make("h1", {}, "Log in"), make("p", { class: "soft" }, "Log in as a user of the NATS server. The permissions of this user decide what you can see and change."), loginForm(entered)]
    : [make("h1", {}, "Not connected"), make("p", {}, "The dashboard on this port can't connect to its own server, which may ask for TLS. Start one that can: ", command("jetlake dashboard --tlsca FILE --login"))]));
}

function render() {
  drawServer();
  if (session.needs_login) {
    if (document.getElementById("login")) return;
    patch(document.getElementById("main"), [own(entrance())]);
    document.querySelector("#login input")?.focus();
    return;
  }
  const context = { route: route(), link: new URLSearchParams(address()[1]), changed, redraw, actions };
  const content = state.board ? open.draw(context) : state.isLost ? failed("jetlake", "The dashboard does not respond; trying again.") : [make("h1", {}, "connecting …")];
  patch(document.getElementById("main"), [absence(), ...content].flat(4).filter(Boolean));
}

function drawServer() {
  const status = document.getElementById("server");
  const server = state.board?.server;
  const isUp = server?.connected && !state.isLost;
  const name = server?.name && server.name.length < 40 ? server.name : server?.url;
  const text = session.needs_login ? "" : state.isLost ? "the dashboard does not respond" : !server ? "connecting …"
    : isUp ? `${name} · ${server.version ?? ""}${server.cluster ? ` · cluster ${server.cluster}` : ""}`
    : server.refusal ? `${name} refuses` : `not connected to ${server.url ?? "the server"}`;
  if (status.textContent !== text) status.textContent = text;
  status.classList.toggle("down", Boolean(server) && !isUp || state.isLost);
}

function navigate() {
  const next = pageOf(route());
  open?.leave?.();  // also for another thing of the same kind: what was opened there is not here
  open = next;
  const query = new URLSearchParams(address()[1]);
  if (RANGES.some(([name]) => name === query.get("range"))) state.range = query.get("range");
  follow(query);
  document.title = `${open.title(route())} · jetlake`;
  for (const one of document.querySelectorAll("#sections a")) {
    if (one.dataset.section !== open.section) { one.removeAttribute("aria-current"); continue; }
    one.setAttribute("aria-current", "page");
    one.scrollIntoView({ block: "nearest", inline: "center" });  // on a phone the sections are a strip
  }
  look();
}

/** Somebody else uses the page from now on, or nobody any more. */
function entered() {
  open.leave?.();
  forget();
  drawWho(entered);
  navigate();
}

/** The server refuses what it gave before: a session ended, or the server asks for a login since its restart. */
onRefused(async () => {
  const { user, needs_login } = session;
  await loadSession();
  if (session.user !== user || session.needs_login !== needs_login) entered();
});

addEventListener("hashchange", () => {
  navigate();
  scrollTo(0, 0);
  document.getElementById("main").focus({ preventScroll: true });
});

// g and the first letter of a section go there.
const KEYS = { s: "", c: "consumers", k: "kv", o: "objects", h: "schedules", d: "dead-letters", m: "copies", p: "pipelines", v: "services", n: "connections", e: "events" };
const GO_MS = 1500;
let wentAt = -GO_MS;

function help() {
  const row = (keys, text) => make("tr", {}, make("th", { scope: "row" }, keys.map((key) => [make("kbd", {}, key), " "])), make("td", {}, text));
  const name = (section) => document.querySelector(`#sections a[data-section="${section || "streams"}"]`).textContent;
  show("Keyboard", () => [make("table", { class: "plain keys" }, make("tbody", {},
    row(["/"], "search or filter"), row(["?"], "this help"), row(["Esc"], "close a dialog"),
    row(["←", "→"], "read single values of the chart that has the focus"),
    Object.entries(KEYS).map(([key, section]) => row(["g", key], name(section)))))], "Close");
}

addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, textarea, select, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || session.needs_login) return;
  const goes = event.timeStamp - wentAt < GO_MS && Object.hasOwn(KEYS, event.key);
  wentAt = event.key === "g" ? event.timeStamp : -GO_MS;
  if (goes) {
    location.hash = `#/${KEYS[event.key]}`;
  } else if (event.key === "?") {
    help();
  } else if (event.key === "/") {
    const search = document.querySelector("#main input[type=search]");
    if (!search) return;
    search.focus();
  } else {
    return;
  }
  event.preventDefault();
});

// An address names a page here, so the link that skips the sections can't be one.
document.querySelector(".skip").onclick = (event) => { event.preventDefault(); document.getElementById("main").focus(); };

await loadSession();
drawWho(entered);
navigate();
