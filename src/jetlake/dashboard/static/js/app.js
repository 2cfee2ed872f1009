// The page: reads the address, asks for what it names, and draws it, at most once a frame.

import { make, patch } from "./elements.js";
import { ask, state } from "./live.js";
import { absence, failed } from "./parts.js";
import consumer from "./pages/consumer.js";
import consumers from "./pages/consumers.js";
import { connections, events, pipelines } from "./pages/lists.js";
import messages from "./pages/messages.js";
import stream from "./pages/stream.js";
import streams from "./pages/streams.js";

const pages = { streams, consumers, pipelines, connections, events };
const none = () => null;
const actions = { createStream: none, stream: none, consumer: none, publish: none, publishAgain: none };

function route() {
  try {
    return location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    return [""];  // an address that somebody typed wrong
  }
}

function pageOf([first, name, part, inner]) {
  if (first === "streams" && name && part === "consumers" && inner) return consumer;
  if (first === "streams" && name && part === "messages") return messages;
  if (first === "streams" && name) return stream;
  return pages[first] ?? streams;
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

function changed() {
  ask(open.query(route()), redraw, { soon: document.activeElement?.type === "search" });
  redraw();
}

function render() {
  drawServer();
  const context = { route: route(), changed, redraw, actions };
  const content = state.board ? open.draw(context) : state.isLost ? failed("jetlake", "The dashboard does not answer; trying again.") : [make("h1", {}, "connecting …")];
  patch(document.getElementById("main"), [absence(), ...content].flat(4).filter(Boolean));
}

function drawServer() {
  const status = document.getElementById("server");
  const server = state.board?.server;
  const isUp = server?.connected && !state.isLost;
  const name = server?.name && server.name.length < 40 ? server.name : server?.url;
  const text = state.isLost ? "the dashboard does not answer" : !server ? "connecting …"
    : isUp ? `${name} · ${server.version ?? ""}${server.cluster ? ` · cluster ${server.cluster}` : ""}` : `not connected to ${server.url ?? "the server"}`;
  if (status.textContent !== text) status.textContent = text;
  status.classList.toggle("down", Boolean(server) && !isUp || state.isLost);
}

function navigate() {
  const next = pageOf(route());
  if (open && open !== next) open.leave?.();
  open = next;
  document.title = `${open.title(route())} · jetlake`;
  for (const one of document.querySelectorAll("#sections a")) {
    if (one.dataset.section === open.section) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  changed();
}

addEventListener("hashchange", () => {
  navigate();
  scrollTo(0, 0);
  document.getElementById("main").focus({ preventScroll: true });
});
navigate();
