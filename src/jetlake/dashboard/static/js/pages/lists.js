// Pages that are one table: pipelines, connections, events.

import { make } from "../elements.js";
import { bytes, count, rate, recent } from "../format.js";
import { state } from "../live.js";
import { command, head, isUnheard, loading, note, nothing, unheard } from "../parts.js";
import { localRows, table } from "../table.js";

const pipelineColumns = [
  { title: "Pipeline", cell: (row) => row.name ?? row.id, sort: "name", order: (row) => row.name ?? row.id, kind: "clip main" },
  { title: "State", cell: (row) => make("span", { class: row.state === "failed" ? "bad" : "" }, row.state ?? "running"), sort: "state", order: (row) => row.state ?? "" },
  { title: "Batch", cell: (row) => count(row.batch), sort: "batch", order: (row) => row.batch ?? 0, kind: "number optional" },
  { title: "Rows", cell: (row) => count(row.rows_total), sort: "rows", order: (row) => row.rows_total ?? 0, kind: "number" },
  { title: "Rate", cell: (row) => rate(row.rows_per_second), sort: "rate", order: (row) => row.rows_per_second ?? 0, kind: "number optional" },
  { title: "Lag", cell: (row) => (row.lag === undefined ? "–" : count(row.lag)), sort: "lag", order: (row) => row.lag ?? 0, kind: "number" },
  { title: "Done", cell: (row) => row.lag !== undefined && make("progress", {
    max: "1", value: row.rows_total ? row.rows_total / (row.rows_total + (row.lag ?? 0)) : 0, "aria-label": `progress of ${row.name ?? row.id}`,
  }), kind: "optional" },
  { title: "Last seen", cell: (row) => recent(row.seen), sort: "seen", order: (row) => row.seen, kind: "number optional" },
];

const connectionColumns = [
  { title: "Id", cell: (row) => String(row.cid), sort: "cid", order: (row) => row.cid, kind: "number" },
  { title: "Name", cell: (row) => row.name ?? "", sort: "name", order: (row) => row.name ?? "", kind: "clip main" },
  { title: "Address", cell: (row) => `${row.ip}:${row.port}`, sort: "ip", order: (row) => row.ip, kind: "optional" },
  { title: "Client", cell: (row) => `${row.lang ?? ""} ${row.version ?? ""}`, sort: "lang", order: (row) => row.lang ?? "", kind: "optional" },
  { title: "Subscriptions", cell: (row) => count(row.subscriptions), sort: "subs", order: (row) => row.subscriptions, descending: true, kind: "number optional" },
  { title: "In", cell: (row) => count(row.in_msgs), sort: "in", order: (row) => row.in_msgs, descending: true, kind: "number" },
  { title: "Out", cell: (row) => count(row.out_msgs), sort: "out", order: (row) => row.out_msgs, descending: true, kind: "number" },
  { title: "Pending bytes", cell: (row) => bytes(row.pending_bytes ?? 0), sort: "pending", order: (row) => row.pending_bytes ?? 0, descending: true, kind: "number optional" },
  { title: "Up", cell: (row) => row.uptime ?? "", kind: "optional" },
];

const eventColumns = [
  { title: "Time", cell: (row) => recent(row.time), sort: "time", order: (row) => row.time },
  { title: "Event", cell: (row) => row.title, sort: "title", order: (row) => row.title },
  { title: "About", cell: (row) => row.text, sort: "text", order: (row) => row.text, kind: "clip main wider" },
  { title: "Subject", cell: (row) => row.subject, sort: "subject", order: (row) => row.subject, kind: "clip optional" },
];

const listPage = (section, title, columns, search, empty, extra) => ({
  section,
  title: () => title,
  query: () => ({ page: section }),
  draw({ changed }) {
    if (!state.page) return loading(title);
    if (!state.page.rows) return [head(title), empty()];
    return [head(title), table(section, columns, localRows(section, state.page.rows, columns, search), { caption: title, changed, empty: nothing(...empty()) }), extra?.()];
  },
});

/** How many events and reports were not kept, and why. */
function dropped() {
  const reasons = Object.entries(state.page.dropped ?? {});
  return reasons.length > 0 && note("Dropped events and reports: ", reasons.map(([reason, number]) => `${count(number)} ${reason}`).join(", "), ".");
}

/** Why pipelines failed, each in its own words. */
function reasons() {
  return state.page.rows.filter((row) => row.error).map((row) => make("details", { class: "card bad-edge", open: true },
    make("summary", {}, `Why ${row.name ?? row.id} failed`), make("pre", { tabindex: "0" }, row.error)));
}

export const pipelines = listPage("pipelines", "Pipelines", pipelineColumns, (row) => `${row.name} ${row.id}`,
  () => ["No pipeline has reported in the last ten minutes. Run one: ", command("jetlake pipeline archive ORDERS ./lake --follow")], () => [reasons(), unheard("jetlake."), dropped()]);

export const connections = listPage("connections", "Connections", connectionColumns, (row) => `${row.cid} ${row.name ?? ""} ${row.ip}`,
  () => (state.page.rows ? ["No connections."] : [note("The server's monitoring address is not known here. Start with ", command("jetlake dashboard --monitor http://HOST:8222"))]));

export const events = listPage("events", "Events", eventColumns, (row) => `${row.title} ${row.kind} ${row.text} ${row.subject}`,
  () => [isUnheard("$JS.") ? "No events that this user may see." : "No events yet. Events on $JS.EVENT.> appear here as they arrive."], () => [unheard("$JS."), dropped()]);
