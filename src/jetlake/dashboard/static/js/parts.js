// The parts that pages are made of.

import { copyButton } from "./copy.js";
import { change } from "./dialog.js";
import { make } from "./elements.js";
import { consumerPath, count, duration, plural, recent, streamPath } from "./format.js";
import { state } from "./live.js";
import { session } from "./session.js";

export const link = (href, ...text) => make("a", { href }, ...text);
export const tag = (text, level) => make("span", { class: `tag ${level ?? ""}` }, text);
export const card = (...content) => make("div", { class: "card" }, ...content);
export const note = (...content) => make("p", { class: "card note" }, ...content);
/** Streams that a page could not look into, each with the reason. */
export const unread = (streams) => streams?.length > 0 && note(`Streams that could not be read: ${count(streams.length)}. `,
  streams.slice(0, 10).map(({ stream, error }) => `${stream}: ${error}`).join("; "));
/** A command to copy from. */
export const command = (text) => make("code", { class: "command" }, text);

const tile = (name, value, hint) => make("div", { class: "tile", title: hint }, make("dt", {}, name), make("dd", {}, value));
export const tiles = (...pairs) => make("dl", { class: "tiles" }, pairs.filter(Boolean).map((pair) => tile(...pair)));
export const facts = (pairs) => make("dl", { class: "facts" },
  pairs.filter(Boolean).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));

/** Two numbers that belong together, each on a line of its own where there is no room for both. */
export const pair = (one, other) => [make("span", { class: "whole" }, `${count(one)} /`), " ", make("span", { class: "whole" }, count(other))];

export const crumbs = (...links) => make("nav", { class: "crumbs", "aria-label": "Breadcrumb" },
  links.flatMap((one) => [one, " / "]));

export const head = (title, ...actions) => make("div", { class: "head" }, make("h1", {}, title), make("div", { class: "actions" }, actions));

export const loading = (title) => [head(title), make("p", { class: "empty", role: "status" }, "loading …")];
export const failed = (title, error) => [head(title), make("p", { class: "card bad", role: "alert" }, error)];

const spoken = (level) => make("span", { class: level }, level === "bad" ? "●" : "▲",
  make("span", { class: "spoken" }, level === "bad" ? " problem: " : " warning: "));

/** What to do about it: a sentence, a command that says more, and a button that shows a change before it is made. */
function wayOut({ advice, command: text, remedy }) {
  return advice && make("div", { class: "way-out" }, advice, text && [" ", command(text), " ", copyButton(text, "Copy")],
    remedy && session.may_change && [" ", make("button", {
      type: "button", onclick: () => change({ title: remedy.title, kind: remedy.kind, wanted: () => remedy.arguments }),
    }, `${remedy.title} …`)]);
}

/** What is wrong, in a sentence with a link to where it is. */
export function findingLine(finding) {
  const { level, text, stream, consumer } = finding;
  const where = consumer ? link(consumerPath(stream, consumer), `${stream} > ${consumer}`) : stream ? link(streamPath(stream), stream) : null;
  return [spoken(level), " ", where, where && ": ", text, wayOut(finding)];
}

/** The same on the page of what it is about. reasons: what the server knows beside it. */
export const findingCard = (finding, reasons = []) => finding && make("section", { class: `card ${finding.level}-edge`, id: "finding", "aria-label": "Needs attention" },
  spoken(finding.level), " ", finding.text, reasons.length > 0 && make("ul", {}, reasons.map((reason) => make("li", {}, reason))), wayOut(finding));
export const findingTag = (finding, isKnown = true) => (finding ? make("span", { class: finding.level, title: finding.text }, finding.state) : make("span", { class: "soft" }, isKnown ? "ok" : "not known yet"));

export function attention() {
  const { attention: found, attention_total: total, totals, unknown } = state.board;
  if (!totals.streams && !found.length) return null;
  if (!found.length && !isKnown()) return null;
  const unclear = unknown > 0 && `Not known yet for ${plural(unknown, "consumer")}, watched for less than ten seconds.`;
  if (!found.length && unclear) return make("p", { class: "card", id: "attention" }, unclear);
  if (!found.length) return make("p", { class: "card calm", id: "attention" }, "✓ No consumer is stuck or falling behind.");
  const more = total - found.length;
  return make("section", { class: `card ${found[0].level}-edge`, id: "attention", "aria-label": "Needs attention" },
    make("h2", {}, `Needs attention (${count(total)})`),
    make("ul", {}, found.map((one) => make("li", {}, findingLine(one))),
      more > 0 && make("li", {}, "and ", link("#/consumers", `${count(more)} more`)), unclear && make("li", { class: "soft" }, unclear)));
}

/** While something does not respond, the page says so, and from when its numbers are. */
export function absence() {
  const { board, isLost } = state;
  if (isLost) {
    return make("p", { class: "card bad bad-edge", id: "absence", role: "alert" }, "The dashboard does not respond; trying again. ",
      board && `The data shown is from ${recent(board.time)}.`);
  }
  const server = board?.server;
  if (!server || server.connected) return null;
  const away = server.refusal ? `The server refuses: ${server.refusal}.` : `The server at ${server.url ?? "its address"} does not respond.`;
  return make("p", { class: "card bad bad-edge", id: "absence", role: "alert" }, away, server.seen ? ` The data shown is from ${recent(server.seen)}.` : "");
}

/** What an empty table says: a server that is away has not no streams, it has not said which. */
export const nothing = (...text) => (isKnown() ? text : [`Not known: the server ${state.board?.server.refusal ? "refuses to say" : "does not respond"}.`]);

/** Whether the server has ever said what it has; before that, a zero would be a guess. */
export const isSeen = () => Boolean(state.board?.server.seen);

/** What the user may not subscribe to, and so never sees. */
const refused = (prefix) => state.page.unheard?.filter((subject) => subject.startsWith(prefix)) ?? [];
export const isUnheard = (prefix) => refused(prefix).length > 0;
export const unheard = (prefix) => isUnheard(prefix) && note("Not shown: this user may not subscribe to ", refused(prefix).join(", "), ".");

/** Whether what is shown is of now. */
const isKnown = () => Boolean(state.board?.server.connected) && !state.isLost;

/** Leader and replicas, for a server in a cluster. */
export function replicas(cluster) {
  if (!cluster) return null;
  return make("table", { class: "plain" },
    make("thead", {}, make("tr", {}, ["Server", "Role", "State", "Lag"].map((title) => make("th", { scope: "col" }, title)))),
    make("tbody", {},
      make("tr", {}, make("td", {}, cluster.leader || "none"), make("td", {}, "leader"),
        make("td", {}, cluster.leader ? "leads" : make("span", { class: "bad" }, "no leader")), make("td", { class: "number" }, "0")),
      cluster.replicas.map((peer) => make("tr", {}, make("td", {}, peer.name), make("td", {}, "replica"),
        make("td", {}, peer.offline ? make("span", { class: "bad" }, "offline") : peer.current ? "current" : make("span", { class: "warn" }, "catching up")),
        make("td", { class: "number", title: `last contact ${duration(peer.active / 1e9)} ago` }, count(peer.lag))))));
}

export const RANGES = [["5m", "5 min"], ["1h", "1 hour"], ["6h", "6 hours"], ["24h", "24 hours"], ["7d", "7 days"]];
export function ranges(changed) {
  return make("div", { class: "ranges", role: "group", "aria-label": "Time that charts show" }, RANGES.map(([name, title]) => make("button", {
    type: "button", "aria-pressed": String(state.range === name),
    onclick: () => { state.range = name; localStorage.setItem("range", name); changed(); },
  }, title)));
}

/** The configuration in the units that people read. */
export const settings = (page) => page.settings.map(([name, text]) => [name.replaceAll("_", " "), text]);

export const configCard = (config) => make("details", { class: "card" }, make("summary", {}, "Configuration as JSON"),
  make("pre", { tabindex: "0" }, JSON.stringify(config, null, 2)));
