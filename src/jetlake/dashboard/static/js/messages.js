// The browser of a stream's messages: pages both ways, a search, a live tail. It manages its own elements, so that live
// numbers never close what a reader has opened.

import { copyButton } from "./copy.js";
import { decoded, FORMS, fromBase64, preview } from "./decode.js";
import { make, own } from "./elements.js";
import { bytes, count, moment, plural } from "./format.js";
import { get } from "./live.js";

const SHOWN_MAX = 500;
const field = (title, name, type, hint) => make("label", {}, make("span", {}, title), make("input", {
  name, type, placeholder: hint, autocomplete: "off", spellcheck: "false",
  min: type === "number" ? "1" : undefined, step: type === "datetime-local" ? "1" : undefined,
}));

export class MessageBrowser {
  /**
   * buttons(message, deleted): what can be done with a message; deleted is called when it is gone.
   * first: what is shown first, { subject, from, before, time, open }. changed: called when something else is shown.
   */
  constructor(stream, buttons, first, changed) {
    Object.assign(this, { stream, buttons, changed, messages: [], form: "auto", source: null, chosen: {} });
    this.root = own(make("div", { class: "browser" }));
    const { subject = "", open, ...query } = first;
    this.build(subject, query.from);
    // One message stands in the middle of a page: those before it, itself on top.
    this.show(open ? { before: Number(open) + 1 } : query, open);
  }

  url(part) { return `api/streams/${encodeURIComponent(this.stream)}/${part}`; }

  build(subject, from = "") {
    this.tailButton = make("button", { type: "button", "aria-pressed": "false", onclick: () => this.toggleTail() }, "Live tail");
    this.filters = make("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); this.jump(); } },
      field("Subject", "subject", "text", "orders.>"), field("From sequence", "from", "number", "1"), field("From time", "time", "datetime-local"),
      make("button", { type: "submit" }, "Show"), this.tailButton,
      make("label", {}, make("span", {}, "Payload as"), make("select", { onchange: (event) => { this.form = event.target.value; this.render(); } },
        FORMS.map((name) => make("option", { value: name }, { msgpack: "MessagePack", json: "JSON", schema: "by schema" }[name] ?? name)))));
    this.filters.elements.subject.value = subject;
    this.filters.elements.from.value = from;
    this.searchButton = make("button", { type: "submit" }, "Search");
    this.progress = make("progress", { max: "1", value: 0, "aria-label": "Progress of the search" });
    this.said = make("span", { role: "status" });
    const searching = make("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); this.source && this.isSearching ? this.stop("Cancelled. ") : this.search(new FormData(searching)); } },
      field("Search in payloads and headers", "text", "search", "text"), field("From sequence", "from", "number", "first"), field("To sequence", "to", "number", "last"),
      this.searchButton, this.progress, this.said);
    this.progress.hidden = true;
    this.pagers = [this.pager(), this.pager()];
    this.list = make("div", { class: "messages" });
    this.root.append(this.filters, searching, this.pagers[0], this.list, this.pagers[1]);
  }

  pager() {
    const newer = make("button", { type: "button", onclick: () => this.turn("newer") }, "‹ Newer");
    const older = make("button", { type: "button", onclick: () => this.turn("older") }, "Older ›");
    const newest = make("button", { type: "button", onclick: () => this.show({}) }, "« Newest");
    const oldest = make("button", { type: "button", onclick: () => this.show({ from: 1 }) }, "Oldest »");
    const place = make("span", { role: "status" });
    return Object.assign(make("p", { class: "pager" }, newest, newer, place, older, oldest), { newer, older, newest, oldest, place });
  }

  close() { this.source?.close(); this.source = null; this.asked = null; }

  get subject() { return this.filters.elements.subject.value.trim(); }

  jump() {
    const { from, time } = this.filters.elements;
    this.show(time.value ? { time: new Date(time.value).toISOString() } : { from: from.value });
  }

  turn(direction) {
    if (!this.messages.length) return this.show({});
    return this.show(direction === "older" ? { before: this.messages.at(-1).seq } : { from: this.messages[0].seq + 1 });
  }

  /** open: the sequence of a message whose content is shown. */
  async show(query, open) {
    this.stop();
    const asked = this.asked = {};
    const body = await get(this.url("messages"), { ...query, subject: this.subject });
    if (this.asked !== asked) return;
    if (!body.error && !body.messages.length && query.from && this.messages.length) {
      this.pagers.forEach((pager) => { pager.newer.disabled = true; });
      return;  // nothing newer: what is shown stays
    }
    this.messages = body.messages ?? [];
    this.bounds = body;
    this.render(body.error);
    const place = open ? { open } : query;
    this.chosen = Object.fromEntries(Object.entries({ ...place, subject: this.subject }).filter(([, value]) => value));
    this.changed();
    if (!open || body.error) return;
    const wanted = this.list.querySelector(`details[data-sequence="${Number(open)}"]`);
    if (wanted) wanted.open = true;
    else this.said.textContent = `The stream does not hold message ${open}.`;
  }

  stop(said = "") {
    this.close();
    this.isSearching = false;
    this.tailButton.setAttribute("aria-pressed", "false");
    this.searchButton.textContent = "Search";
    this.progress.hidden = true;
    this.said.textContent = said + (said && this.found !== undefined ? `${count(this.found)} found.` : "");
  }

  toggleTail() {
    if (this.tailButton.getAttribute("aria-pressed") === "true") { this.stop(); return; }
    this.stop();
    this.tailButton.setAttribute("aria-pressed", "true");
    this.source = new EventSource(`${this.url("tail")}?${new URLSearchParams({ subject: this.subject })}`);
    this.source.onmessage = (event) => {
      const { messages, skipped } = JSON.parse(event.data);
      if (skipped) this.said.textContent = "Only the newest messages of each second are shown.";
      this.messages = [...messages, ...this.messages].slice(0, SHOWN_MAX);
      this.render();
    };
  }

  search(data) {
    this.stop();
    const query = new URLSearchParams([...data].filter(([, value]) => value));
    query.set("subject", this.subject);
    Object.assign(this, { isSearching: true, messages: [], found: 0 });
    this.render(null, "Searching …");
    this.searchButton.textContent = "Cancel";
    this.progress.hidden = false;
    this.progress.value = 0;
    this.source = new EventSource(`${this.url("search")}?${query}`);
    this.source.onmessage = (event) => this.searched(JSON.parse(event.data));
    this.source.addEventListener("failed", (event) => this.stop(`${JSON.parse(event.data).error} `));
    this.source.onerror = () => this.stop("The dashboard does not respond. ");
  }

  searched(report) {
    this.messages.push(...report.hits);
    this.found = this.messages.length;
    this.progress.value = report.total ? report.done / report.total : 1;
    this.said.textContent = `${plural(report.scanned, "message")} read, ${count(this.found)} found`;
    if (report.ended) {
      this.stop(report.more ? `Stopped at sequence ${count(report.next - 1)}: ` : `${plural(report.scanned, "message")} read: `);
    }
    if (report.hits.length || report.ended) this.render();
  }

  render(error, waiting) {
    const open = new Set([...this.list.querySelectorAll("details[open]")].map((one) => one.dataset.sequence));
    this.list.replaceChildren(...(error ? [make("p", { class: "card bad", role: "alert" }, error)]
      : this.messages.length ? this.messages.map((message) => this.row(message, open))
        : [make("p", { class: "card empty" }, waiting ?? (this.bounds?.last_seq ? "No message there." : "No messages yet."))]));
    const sequences = this.messages.map((message) => message.seq);
    const [newest, oldest] = this.messages.length ? [Math.max(...sequences), Math.min(...sequences)] : [];
    for (const pager of this.pagers) {
      pager.hidden = this.isSearching || this.found !== undefined && !this.bounds;
      pager.place.textContent = !newest ? "" : newest === oldest ? `#${count(newest)}` : `#${count(oldest)} – #${count(newest)}`;
      pager.newer.disabled = !newest || newest >= (this.bounds?.last_seq ?? 0);
      pager.older.disabled = !oldest || oldest <= (this.bounds?.first_seq ?? 0);
    }
  }

  remove(sequence) {
    this.messages = this.messages.filter((message) => message.seq !== sequence);
    this.render();
  }

  /** An address of this page with this message open. */
  link(message) {
    const { origin, pathname, hash } = location;
    return `${origin}${pathname}${hash.split("?")[0]}?open=${message.seq}`;
  }

  row(message, open) {
    const data = fromBase64(message.data);
    const details = make("details", { class: "message", "data-sequence": String(message.seq), open: open.has(String(message.seq)) },
      make("summary", {}, make("b", {}, `#${count(message.seq)}`), make("span", { class: "subject" }, message.subject),
        make("span", { class: "preview" }, preview(data)), make("span", { class: "soft whole" }, bytes(message.size)),
        make("time", { class: "soft whole", datetime: message.time }, moment(message.time))));
    // What is inside is made when somebody looks: two hundred payloads in hex would take a while.
    const body = () => { if (details.open && details.children.length === 1) details.append(this.body(message, data)); };
    details.ontoggle = body;
    body();
    return details;
  }

  /** The server decodes by the schema of the subject; without one the payload stays as it is. */
  async bySchema(message, shown, tag) {
    const found = await get(this.url(`messages/${message.seq}/value`));
    if (found.error || found.reason) {
      tag.textContent = found.error ?? `does not fit ${found.schema}: ${found.reason}`;
    } else if (found.schema) {
      tag.textContent = found.schema;
      shown.textContent = JSON.stringify(JSON.parse(found.text), null, 2);
    } else {
      tag.textContent = "no schema";
    }
  }

  body(message, data) {
    const { form, text } = decoded(data, this.form);
    const shown = make("pre", { tabindex: "0", "aria-label": `Payload as ${form}` }, text + (message.cut ? "\n… (truncated: download it to see all)" : ""));
    const tag = make("span", { class: "tag" }, form);
    if (this.form === "schema") this.bySchema(message, shown, tag);
    return make("div", {},
      message.headers.length > 0 && make("table", { class: "plain headers" }, make("tbody", {}, message.headers.map(([key, value]) =>
        make("tr", {}, make("th", { scope: "row" }, key), make("td", {}, value))))),
      shown,
      make("p", { class: "tools" }, tag, copyButton(text), copyButton(() => this.link(message), "Copy link"),
        make("a", { class: "button", href: `${this.url(`messages/${message.seq}/payload`)}`, download: "" }, "Download"),
        this.buttons(message, () => this.remove(message.seq))));
  }
}
