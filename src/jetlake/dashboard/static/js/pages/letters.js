// Dead letters: the streams that hold them, and one with its letters, what happened to each, and a replay.

import { decoded, fromBase64 } from "../decode.js";
import { make } from "../elements.js";
import { bytes, consumerPath, count, moment, path, plural } from "../format.js";
import { command, crumbs, facts, failed, head, link, loading, note, unread } from "../parts.js";
import { release, renew, resource } from "../resource.js";
import { localRows, table } from "../table.js";

const streamColumns = [
  { title: "Stream", cell: (row) => link(path("dead-letters", row.stream), row.stream), sort: "stream", order: (row) => row.stream, kind: "clip main" },
  { title: "Letters", cell: (row) => count(row.letters), sort: "letters", order: (row) => row.letters, descending: true, kind: "number" },
  { title: "Size", cell: (row) => bytes(row.bytes), kind: "number optional" },
  { title: "Newest", cell: (row) => moment(row.last), kind: "" },
];

export const letterStreams = {
  section: "dead-letters",
  title: () => "Dead letters",
  query: () => ({ page: "none" }),
  draw({ changed, redraw }) {
    const body = resource("api/dead-letters", {}, redraw, 10000);
    if (!body) return loading("Dead letters");
    if (body.error) return failed("Dead letters", body.error);
    return [head("Dead letters"), !body.is_whole && note("Only the first 200 streams were checked."), unread(body.unread),
      table("letter-streams", streamColumns, localRows("letter-streams", body.rows, streamColumns, (row) => row.stream), {
        caption: "Streams with dead letters", changed, key: (row) => row.stream,
        empty: ["No dead letters. Collect the messages that consumers give up: ", command("jetlake pipeline dead-letters ORDERS --to DEAD")],
      })];
  },
  leave: release,
};

let before = "";

const letterRow = (stream, actions, done) => (row) => make("details", { class: "message", "data-key": String(row.seq) },
  make("summary", {}, make("b", {}, `#${count(row.seq)}`), make("span", { class: "bad" }, row.reason || "no letter"),
    make("span", { class: "subject" }, row.subject), make("span", { class: "preview" }, row.description), make("span", { class: "soft whole" }, moment(row.died || row.time))),
  make("div", {},
    facts([["from", row.stream && row.consumer ? link(consumerPath(row.stream, row.consumer), `${row.stream} > ${row.consumer}`) : row.stream],
      ["sequence there", row.sequence], ["deliveries", row.deliveries], row.missing && ["message", "missing"]]),
    row.traceback && make("pre", { tabindex: "0" }, row.traceback),
    make("pre", { tabindex: "0" }, decoded(fromBase64(row.data), "auto").text),
    make("p", { class: "tools" }, actions.replay(stream, row.seq, row.seq, "Replay", done))));

export const letters = {
  section: "dead-letters",
  title: ([, name]) => `Dead letters of ${name}`,
  query: () => ({ page: "none" }),
  draw({ route: [, name], redraw, actions }) {
    const up = crumbs(link("#/dead-letters", "Dead letters"));
    const body = resource(`api/dead-letters/${encodeURIComponent(name)}`, { before }, redraw, before ? 0 : 5000);
    if (!body) return [up, loading(name)];
    if (body.error) return [up, failed(name, body.error)];
    const turn = (sequence) => () => { before = sequence; redraw(); };
    const oldest = body.rows.at(-1)?.seq ?? 0;
    const done = () => renew(redraw);
    return [up, head(name, body.rows.length > 0 && actions.replay(name, body.first_seq, body.last_seq, "Replay all", done)),
      make("p", { class: "pager" }, make("button", { type: "button", disabled: !before, onclick: turn("") }, "« Newest"),
        make("span", { role: "status" }, plural(body.total, "letter")),
        make("button", { type: "button", disabled: oldest <= body.first_seq, onclick: turn(oldest) }, "Older ›")),
      body.rows.length ? make("div", { class: "messages" }, body.rows.map(letterRow(name, actions, done))) : make("p", { class: "card empty" }, "No letters.")];
  },
  leave() { before = ""; release(); },
};
