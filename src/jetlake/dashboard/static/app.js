// The page: one live connection to the server, one state, one function that draws the section named by the address.
// Everything that comes from a message is put on the page as text, never as markup.

// --- elements -------------------------------------------------------------------------------------------------------

/** An element with properties and children; strings become text. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const number = new Intl.NumberFormat("en");
const count = (value) => number.format(value ?? 0);
const rate = (value) => `${number.format(Math.round((value ?? 0) * 10) / 10)}/s`;

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();
const moment = (text) => (!text || text.startsWith("0001-") ? "never" : new Date(text).toLocaleString());

/** A small chart of one series; it says its latest and highest value to those who cannot see it. */
function chart(values, label) {
  const svgns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(svgns, "svg");
  const top = Math.max(...values, 1e-9);
  svg.setAttribute("viewBox", "0 0 120 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${label}: now ${count(values.at(-1) ?? 0)}, highest ${count(values.length ? top : 0)}`);
  if (values.length > 1) {
    const points = values.map((value, index) =>
      `${(120 * index / (values.length - 1)).toFixed(1)},${(29 - 27 * value / top).toFixed(1)}`).join(" ");
    for (const [name, shape] of [["fill", `0,30 ${points} 120,30`], ["line", points]]) {
      const line = document.createElementNS(svgns, name === "fill" ? "polygon" : "polyline");
      line.setAttribute("class", name);
      line.setAttribute("points", shape);
      svg.append(line);
    }
  }
  return svg;
}

const tile = (name, value) => make("div", { class: "tile" }, make("dt", {}, name), make("dd", {}, value));
const tiles = (...pairs) => make("dl", { class: "tiles" }, pairs.map(([name, value]) => tile(name, value)));
const chartCard = (name, values, now) => make("div", { class: "card" },
  make("h3", {}, name, make("b", {}, now)), chart(values, name));
const facts = (pairs) => make("dl", { class: "facts" },
  pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
const streamPath = (name) => `#/streams/${encodeURIComponent(name)}`;
const consumerPath = (stream, name) => `${streamPath(stream)}/consumers/${encodeURIComponent(name)}`;

// --- tables ---------------------------------------------------------------------------------------------------------

/** What the reader has typed and chosen, kept while the numbers change under it. */
const chosen = { filter: {}, order: {} };

/** A table that can be sorted and filtered. Columns: [title, cell(row), sort(row), class]. */
function table(id, columns, rows, { search, empty, caption }) {
  const filter = (chosen.filter[id] ?? "").toLowerCase();
  const [sortColumn, sign] = chosen.order[id] ?? [0, 1];
  const sorting = columns[sortColumn][2];
  const shown = rows.filter((row) => !filter || search(row).toLowerCase().includes(filter));
  if (sorting) {
    shown.sort((one, other) => {
      const [left, right] = [sorting(one), sorting(other)];
      return sign * (typeof left === "string" ? left.localeCompare(right) : left - right);
    });
  }
  const head = columns.map(([title, , sort, kind], index) => make("th", {
    scope: "col", class: kind,
    "aria-sort": sort && index === sortColumn ? (sign > 0 ? "ascending" : "descending") : undefined,
  }, sort ? make("button", {
    type: "button",
    onclick: () => { chosen.order[id] = [index, index === sortColumn ? -sign : 1]; draw(); },
  }, title) : title));
  const body = shown.map((row) => make("tr", {}, columns.map(([, cell, , kind]) => {
    const made = make("td", { class: kind }, cell(row));
    if (kind?.includes("clip")) made.title = made.textContent;  // the whole of what may be cut
    return made;
  })));
  return [
    make("div", { class: "tools" },
      make("label", {}, `Filter (${shown.length} of ${rows.length})`, make("input", {
        type: "search", id: `filter-${id}`, value: chosen.filter[id] ?? "", autocomplete: "off",
        oninput: (event) => { chosen.filter[id] = event.target.value; draw(); },
      }))),
    make("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption },
      rows.length ? make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, body))
        : make("p", { class: "empty" }, empty)),
  ];
}

const streamColumns = [
  ["Stream", (row) => make("a", { href: streamPath(row.name) }, row.name), (row) => row.name, "clip"],
  ["Subjects", (row) => row.subjects.join(", "), null, "clip optional"],
  ["Retention", (row) => make("span", { class: "tag" }, `${row.retention} · ${row.storage}`), null, "optional"],
  ["Messages", (row) => count(row.messages), (row) => row.messages, "number"],
  ["Size", (row) => bytes(row.bytes), (row) => row.bytes, "number optional"],
  ["Consumers", (row) => count(row.consumers), (row) => row.consumers, "number optional"],
  ["Published", (row) => rate(row.rate), (row) => row.rate, "number"],
  ["Last two minutes", (row) => chart(row.chart, `published to ${row.name}`), null, "optional"],
];

const consumerColumns = (withStream) => [
  ["Consumer", (row) => make("a", { href: consumerPath(row.stream, row.name) }, row.name), (row) => row.name, "clip"],
  ...(withStream ? [["Stream", (row) => make("a", { href: streamPath(row.stream) }, row.stream), (row) => row.stream, "clip"]] : []),
  ["State", (row) => findingTag(row.finding), (row) => findingRank(row.finding), ""],
  ["Kind", (row) => make("span", { class: "tag" }, `${row.kind} · ${row.ack_policy}${row.paused ? " · paused" : ""}`), null, "optional"],
  ["Pending", (row) => count(row.pending), (row) => row.pending, "number"],
  ["Awaiting ack", (row) => count(row.ack_pending), (row) => row.ack_pending, "number"],
  ["Redelivered", (row) => make("span", { class: row.redelivered ? "warn" : "" }, count(row.redelivered)), (row) => row.redelivered, "number"],
  ["Waiting pulls", (row) => count(row.waiting), (row) => row.waiting, "number optional"],
  ["Delivered", (row) => rate(row.rate), (row) => row.rate, "number"],
  ["Pending, two minutes", (row) => chart(row.chart, `pending of ${row.name}`), null, "optional"],
];

// --- sections -------------------------------------------------------------------------------------------------------

let board = null;      // the latest overview
let detail = null;     // the latest of the stream or consumer that is open
let canAct = false;    // the server was started with a token

/** What is wrong, in a sentence with a link to where it is; nothing when nothing is. */
function findingLine({ level, text, stream, consumer }, linked = true) {
  const where = consumer ? make("a", { href: consumerPath(stream, consumer) }, `${stream} > ${consumer}`)
    : stream ? make("a", { href: streamPath(stream) }, stream) : null;
  return [make("span", { class: level }, level === "bad" ? "●" : "▲", make("span", { class: "spoken" }, level === "bad" ? " problem: " : " warning: ")),
    " ", linked && where, linked && where && ": ", text];
}

function attention() {
  if (!board.streams.length) return null;
  if (!board.attention.length) return make("p", { class: "card calm", id: "attention" }, "Nothing is stuck, and nobody falls behind.");
  const more = board.attention_total - board.attention.length;
  return make("section", { class: "card", id: "attention", "aria-label": "Needs attention" },
    make("h2", {}, `Needs attention (${count(board.attention_total)})`),
    make("ul", {}, board.attention.map((one) => make("li", {}, findingLine(one))), more > 0 && make("li", {}, "and ", make("a", { href: "#/consumers" }, `${count(more)} more`))));
}

const findingCard = (finding) => finding && make("p", { class: "card", id: "finding" }, findingLine(finding, false));
const findingTag = (finding) => finding ? make("span", { class: finding.level, title: finding.text }, finding.state) : "ok";
// Sorted by state, the worst come first.
const findingRank = (finding) => ({ bad: 0, warn: 1 }[finding?.level] ?? 2);

/** While the server is away the latest numbers stay, with the time that they are of. */
function absence() {
  const { server } = board;
  if (server.connected) return null;
  return make("p", { class: "card bad", id: "absence" }, server.seen
    ? `The server does not answer. What is shown here is of ${clock(server.seen)}.`
    : "The server does not answer, or has no JetStream for this login.");
}

function overview() {
  const { account, streams, consumers } = board;
  const total = (name) => streams.reduce((sum, stream) => sum + stream[name], 0);
  return [
    make("h1", {}, "Streams"),
    attention(),
    tiles(["Streams", count(streams.length)], ["Messages", count(total("messages"))], ["Size", bytes(total("bytes"))],
      ["Published", rate(total("rate"))], ["Consumers", count(account.consumers)],
      ["Pending", count(consumers.reduce((sum, one) => sum + one.pending, 0))]),
    table("streams", streamColumns, streams, {
      search: (row) => `${row.name} ${row.subjects.join(" ")}`, caption: "Streams",
      empty: "No streams yet. Make one: jetlake stream add ORDERS --subjects 'orders.>'",
    }),
  ];
}

function consumersSection() {
  const columns = consumerColumns(true);
  // Where the lag is comes first, until the reader wants it otherwise.
  chosen.order.consumers ??= [columns.findIndex(([title]) => title === "Pending"), -1];
  return [make("h1", {}, "Consumers"), table("consumers", columns, board.consumers, {
    search: (row) => `${row.name} ${row.stream}`, caption: "Consumers",
    empty: "No consumers yet. Make one: jetlake consumer add ORDERS worker --pull",
  })];
}

function pipelinesSection() {
  const columns = [
    ["Pipeline", (row) => row.name ?? row.id, (row) => row.name ?? row.id, "clip"],
    ["State", (row) => make("span", { class: row.state === "failed" ? "bad" : "" }, row.state ?? "running"), (row) => row.state ?? "", ""],
    ["Batch", (row) => count(row.batch), (row) => row.batch ?? 0, "number"],
    ["Rows", (row) => count(row.rows_total), (row) => row.rows_total ?? 0, "number"],
    ["Rate", (row) => rate(row.rows_per_second), (row) => row.rows_per_second ?? 0, "number"],
    ["Lag", (row) => count(row.lag), (row) => row.lag ?? 0, "number"],
    ["Done", (row) => make("progress", {
      max: "1", value: String(row.rows_total ? row.rows_total / (row.rows_total + (row.lag ?? 0)) : 0),
      "aria-label": `progress of ${row.name ?? row.id}`,
    }), null, "optional"],
    ["Last seen", (row) => clock(row.seen), (row) => row.seen, "number optional"],
  ];
  return [make("h1", {}, "Pipelines"), table("pipelines", columns, board.pipelines, {
    search: (row) => `${row.name} ${row.id}`, caption: "Pipelines",
    empty: "No pipeline has reported in the last ten minutes. Run one: jetlake pipeline archive ORDERS ./lake --follow",
  })];
}

function connectionsSection() {
  if (!board.connections) {
    return [make("h1", {}, "Connections"), make("p", { class: "card" },
      "The server's monitoring address is not known here. Start with jetlake dashboard --monitor http://HOST:8222.")];
  }
  const columns = [
    ["Id", (row) => String(row.cid), (row) => row.cid, "number"],
    ["Name", (row) => row.name ?? "", (row) => row.name ?? "", "clip"],
    ["Address", (row) => `${row.ip}:${row.port}`, (row) => row.ip, ""],
    ["Client", (row) => `${row.lang ?? ""} ${row.version ?? ""}`, (row) => row.lang ?? "", "optional"],
    ["Subscriptions", (row) => count(row.subscriptions), (row) => row.subscriptions, "number optional"],
    ["In", (row) => count(row.in_msgs), (row) => row.in_msgs, "number"],
    ["Out", (row) => count(row.out_msgs), (row) => row.out_msgs, "number"],
    ["Waiting to go out", (row) => bytes(row.pending_bytes ?? 0), (row) => row.pending_bytes ?? 0, "number optional"],
    ["Up", (row) => row.uptime ?? "", null, "optional"],
  ];
  return [make("h1", {}, "Connections"), table("connections", columns, board.connections.connections ?? [], {
    search: (row) => `${row.cid} ${row.name ?? ""} ${row.ip}`, caption: "Connections", empty: "Nobody is connected.",
  })];
}

function advisoriesSection() {
  const columns = [
    ["Time", (row) => clock(row.time), (row) => -row.time, ""],
    ["Event", (row) => row.kind, (row) => row.kind, ""],
    ["About", (row) => row.text, (row) => row.text, "clip"],
    ["Subject", (row) => row.subject, (row) => row.subject, "clip optional"],
  ];
  return [make("h1", {}, "Advisories"), table("advisories", columns, board.advisories, {
    search: (row) => `${row.kind} ${row.text} ${row.subject}`, caption: "Advisories",
    empty: "Nothing yet. What the server announces on $JS.EVENT.> appears here as it happens.",
  })];
}

function configCard(config) {
  return make("details", { class: "card" }, make("summary", {}, "Configuration"),
    make("pre", { tabindex: "0" }, JSON.stringify(config, null, 2)));
}

function streamSection(name) {
  if (!detail) return [make("h1", {}, name), make("p", { class: "empty" }, "loading …")];
  if (detail.error) return [make("h1", {}, name), make("p", { class: "card bad" }, detail.error)];
  return [
    make("p", { class: "crumbs" }, make("a", { href: "#/" }, "Streams"), " /"),
    make("h1", {}, name),
    findingCard(detail.finding),
    tiles(["Messages", count(detail.messages)], ["Size", bytes(detail.bytes)], ["First", count(detail.first_seq)],
      ["Last", count(detail.last_seq)], ["Subjects", count(detail.num_subjects)], ["Consumers", count(detail.consumers)]),
    make("div", { class: "charts" },
      chartCard("Published", detail.chart, rate(detail.rate)), chartCard("Messages held", detail.backlog, count(detail.messages))),
    make("h2", {}, "Consumers"),
    table("stream-consumers", consumerColumns(false), detail.consumers_list, {
      search: (row) => row.name, caption: "Consumers of this stream", empty: "No consumers.",
    }),
    make("h2", {}, "Subjects"),
    table("subjects", [
      ["Subject", (row) => row[0], (row) => row[0], "clip"],
      ["Messages", (row) => count(row[1]), (row) => row[1], "number"],
    ], detail.subjects_held ?? [], { search: (row) => row[0], caption: "Subjects of this stream", empty: "No messages." }),
    make("h2", {}, "Messages"), browser.element(name),
    make("h2", {}, "Details"), make("div", { class: "two" },
      make("div", { class: "card" }, facts([["created", moment(detail.created)], ["last message", moment(detail.last_ts)],
        ["retention", detail.retention], ["storage", detail.storage], ["subjects", detail.subjects.join(", ")]])),
      configCard(detail.config)),
    canAct && make("p", {}, actionButton("Purge all messages", `purge/${encodeURIComponent(name)}`,
      `Remove all ${count(detail.messages)} messages of ${name}?`)),
  ];
}

function consumerSection(stream, name) {
  if (!detail) return [make("h1", {}, name), make("p", { class: "empty" }, "loading …")];
  if (detail.error) return [make("h1", {}, name), make("p", { class: "card bad" }, detail.error)];
  const times = detail.ack_times;
  const path = `${encodeURIComponent(stream)}/${encodeURIComponent(name)}`;
  return [
    make("p", { class: "crumbs" }, make("a", { href: "#/" }, "Streams"), " / ",
      make("a", { href: streamPath(stream) }, stream), " /"),
    make("h1", {}, name),
    findingCard(detail.finding),
    tiles(["Pending", count(detail.pending)], ["Awaiting ack", count(detail.ack_pending)],
      ["Redelivered", count(detail.redelivered)], ["Waiting pulls", count(detail.waiting)],
      ["Delivered", `${count(detail.delivered.consumer_seq)} / ${count(detail.delivered.stream_seq)}`],
      ["Ack floor", `${count(detail.ack_floor.consumer_seq)} / ${count(detail.ack_floor.stream_seq)}`]),
    make("div", { class: "charts" },
      chartCard("Delivered", detail.charts.delivered, rate(detail.charts.delivered.at(-1))),
      chartCard("Ack floor moves", detail.charts.acked, rate(detail.charts.acked.at(-1))),
      chartCard("Pending", detail.charts.pending, count(detail.pending)),
      chartCard("Redelivered", detail.charts.redelivered, count(detail.redelivered))),
    make("h2", {}, "Ack times"),
    make("div", { class: "card" }, times.samples
      ? facts([["median", `${times.p50} ms`], ["95 %", `${times.p95} ms`], ["99 %", `${times.p99} ms`], ["samples", count(times.samples)]])
      : make("p", {}, detail.config.sample_freq
        ? "No samples yet. They are taken from acks that come while the dashboard runs."
        : "No samples. Set sample_freq on the consumer to have a share of its acks measured.")),
    detail.priority_groups.length > 0 && [make("h2", {}, "Priority group"), make("div", { class: "card" },
      detail.priority_groups.map((group) => facts([["group", group.group],
        ["pinned client", group.pinned_client_id ?? "nobody"], ["pinned at", moment(group.pinned_ts)]])))],
    make("h2", {}, "Details"), make("div", { class: "two" },
      make("div", { class: "card" }, facts([["created", moment(detail.created)], ["kind", detail.kind],
        ["ack policy", detail.ack_policy], ["state", detail.paused ? "paused" : "running"]])),
      configCard(detail.config)),
    canAct && make("p", { class: "tools" },
      detail.paused ? actionButton("Resume", `resume/${path}`) : actionButton("Pause for an hour", `pause/${path}`, `Pause ${name} for an hour?`),
      detail.priority_groups.length > 0 && actionButton("Unpin", `unpin/${path}`, `Give the pin of ${name} to another client?`)),
  ];
}

function actionButton(title, path, question) {
  return make("button", {
    type: "button", class: question ? "danger" : undefined,
    onclick: async () => {
      if (question && !confirm(question)) return;
      const token = sessionStorage.getItem("token") ?? prompt("Token that the dashboard was started with:");
      if (!token) return;
      const answer = await fetch(`api/actions/${path}`, { method: "POST", headers: { "X-Jetlake-Token": token } });
      if (answer.ok) sessionStorage.setItem("token", token);
      else { sessionStorage.removeItem("token"); alert((await answer.json()).error); }
    },
  }, title);
}

// --- messages of a stream -------------------------------------------------------------------------------------------

/** Shows a payload as text, JSON or hex; `auto` takes JSON when it is JSON, text when it is readable, else hex. */
function payloadText(base64, form) {
  const data = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  let text = null;
  try { text = new TextDecoder("utf-8", { fatal: true }).decode(data); } catch { /* not text */ }
  // Text that a person can read has no control characters but tabs and line ends.
  const readable = text !== null && !/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/.test(text);
  if (form === "json" || form === "auto") {
    try { return JSON.stringify(JSON.parse(text), null, 2); } catch { if (form === "json") return "(not JSON)"; }
  }
  if (form === "auto" && readable) return text;
  if (form === "text") return new TextDecoder().decode(data);
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.subarray(at, at + 16)];
    lines.push(`${at.toString(16).padStart(6, "0")}  ${row.map((one) => one.toString(16).padStart(2, "0")).join(" ").padEnd(47)}  `
      + row.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : ".")).join(""));
  }
  return lines.join("\n");
}

/** The message browser keeps its own elements, so that live numbers never close what a reader has opened. */
const browser = {
  stream: null, root: null, list: null, form: "auto", tail: null,
  element(stream) {
    if (this.stream !== stream) { this.close(); this.stream = stream; this.build(); this.load({ last: "20" }); }
    return this.root;
  },
  close() {
    this.tail?.close();
    Object.assign(this, { tail: null, stream: null, root: null });
  },
  build() {
    const field = (name, title, type, hint) => make("label", {}, title,
      make("input", { name, type, placeholder: hint, autocomplete: "off", min: type === "number" ? "1" : undefined, step: type === "datetime-local" ? "1" : undefined }));
    this.live = make("button", { type: "button", "aria-pressed": "false", onclick: () => this.toggleTail() }, "Live tail");
    const form = make("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); this.search(new FormData(form)); } },
      field("seq", "From sequence", "number", "1"), field("subject", "Subject", "text", "orders.>"),
      field("time", "From time", "datetime-local"),
      make("button", { type: "submit" }, "Show"), this.live,
      make("label", {}, "Payload as", make("select", { onchange: (event) => { this.form = event.target.value; this.render(); } },
        ["auto", "text", "json", "hex"].map((name) => make("option", { value: name }, name)))));
    this.list = make("div", { "aria-live": "off" });
    this.root = make("div", {}, form, this.list);
    this.messages = [];
  },
  search(data) {
    const query = {};
    for (const name of ["seq", "subject"]) if (data.get(name)) query[name] = data.get(name);
    if (data.get("time")) query.time = new Date(data.get("time")).toISOString();
    this.load(Object.keys(query).length ? query : { last: "20" });
  },
  async load(query) {
    const stream = this.stream;
    const answer = await fetch(`api/streams/${encodeURIComponent(stream)}/messages?${new URLSearchParams(query)}`);
    const body = await answer.json();
    if (this.stream !== stream) return;
    this.messages = body.messages ?? [];
    this.render(body.error);
  },
  toggleTail() {
    const on = !this.tail;
    this.live.setAttribute("aria-pressed", String(on));
    if (!on) { this.tail.close(); this.tail = null; return; }
    this.tail = new EventSource(`api/streams/${encodeURIComponent(this.stream)}/tail`);
    this.tail.onmessage = (event) => {
      this.messages = [...JSON.parse(event.data).reverse(), ...this.messages].slice(0, 200);
      this.render();
    };
  },
  render(error) {
    const open = new Set([...this.list.querySelectorAll("details[open]")].map((one) => one.dataset.sequence));
    this.list.replaceChildren(...(error ? [make("p", { class: "card bad" }, error)]
      : this.messages.length ? this.messages.map((message) => this.row(message, open))
        : [make("p", { class: "card empty" }, "No message there.")]));
  },
  row(message, open) {
    return make("details", { class: "message", "data-sequence": String(message.seq), open: open.has(String(message.seq)) },
      make("summary", {}, make("b", {}, `#${message.seq}`), make("span", {}, message.subject),
        make("span", { class: "tag" }, bytes(message.size)), make("span", { class: "time" }, moment(message.time))),
      make("div", {},
        message.headers.length > 0 && make("pre", { tabindex: "0" }, message.headers.map(([key, value]) => `${key}: ${value}`).join("\n")),
        make("pre", { tabindex: "0" }, payloadText(message.data, this.form) + (message.cut ? "\n… (cut)" : ""))));
  },
};

// --- address, drawing, live data ------------------------------------------------------------------------------------

const route = () => location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);

function section() {
  const [first, stream, , consumer] = route();
  if (first === "streams" && consumer) return ["streams", () => consumerSection(stream, consumer)];
  if (first === "streams" && stream) return ["streams", () => streamSection(stream)];
  return {
    consumers: ["consumers", consumersSection], pipelines: ["pipelines", pipelinesSection],
    connections: ["connections", connectionsSection], advisories: ["advisories", advisoriesSection],
  }[first] ?? ["streams", overview];
}

let drawing = false;

/** Draws once per frame at most, and keeps the focus and the cursor where they are. */
function draw() {
  if (drawing || !board) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    const [current, content] = section();
    const main = document.getElementById("main");
    const focused = document.activeElement;
    const [id, cursor] = [focused?.id, focused?.selectionStart];
    const scrolled = main.querySelector(".table")?.scrollLeft;
    const openDetails = [...main.querySelectorAll("details.card")].map((one) => one.open);
    main.replaceChildren(...[absence(), ...content()].flat(3).filter(Boolean));
    main.querySelectorAll("details.card").forEach((one, index) => { one.open = openDetails[index] ?? false; });
    if (scrolled) main.querySelector(".table").scrollLeft = scrolled;
    if (id?.startsWith("filter-")) {
      const input = document.getElementById(id);
      input?.focus();
      input?.setSelectionRange(cursor, cursor);
    }
    for (const link of document.querySelectorAll("nav a")) {
      if (link.dataset.section === current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  });
}

/** A reader in the middle of something is not disturbed by new numbers. */
function busy() {
  const focused = document.activeElement;
  return !document.getSelection()?.isCollapsed
    || (focused?.closest("#main") && ["INPUT", "SELECT", "PRE"].includes(focused.tagName) && !focused.id.startsWith("filter-"))
    || (focused?.closest("#main th, #main td, .message"));
}

let live = null;

/** Opens the live connection for what the address names: the overview, or one stream or consumer beside it. */
function connect() {
  live?.close();
  detail = null;
  const [first, stream, , consumer] = route();
  const query = new URLSearchParams();
  if (first === "streams" && stream) query.set("stream", stream);
  if (first === "streams" && consumer) query.set("consumer", consumer);
  live = new EventSource(`api/live?${query}`);
  live.onmessage = (event) => {
    const data = JSON.parse(event.data);
    board = data.board;
    detail = data.detail ?? null;
    canAct = data.can_act;
    const status = document.getElementById("server");
    const server = board.server;
    const text = server.connected ? `${server.name && server.name.length < 40 ? server.name : server.url} · ${server.version ?? ""}` : `not connected to ${server.url ?? "the server"}`;
    if (status.textContent !== text) status.textContent = text;
    status.classList.toggle("down", !server.connected);
    document.body.dataset.samples = String(Number(document.body.dataset.samples ?? 0) + 1);
    if (!busy()) draw();
  };
  live.onerror = () => {
    const status = document.getElementById("server");
    status.textContent = "the dashboard's server does not answer; trying again";
    status.classList.add("down");
  };
}

addEventListener("hashchange", () => {
  if (route()[0] !== "streams" || route()[1] !== browser.stream || route()[3]) browser.close();
  connect();
  draw();
  scrollTo(0, 0);
  document.getElementById("main").focus({ preventScroll: true });
});
connect();
