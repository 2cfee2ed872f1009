// All consumers, those with the most pending messages first.

import { spark } from "../chart.js";
import { make } from "../elements.js";
import { consumerPath, count, rate, streamPath } from "../format.js";
import { state } from "../live.js";
import { command, findingTag, head, link, loading, nothing, tag } from "../parts.js";
import { listingQuery, table } from "../table.js";

const DEFAULTS = { sort: "pending", descending: true };

export const consumerColumns = (withStream) => [
  { title: "Consumer", cell: (row) => link(consumerPath(row.stream, row.name), row.name), sort: "name", kind: "clip main" },
  ...(withStream ? [{ title: "Stream", cell: (row) => link(streamPath(row.stream), row.stream), sort: "stream", kind: "clip" }] : []),
  { title: "State", cell: (row) => findingTag(row.finding, row.is_known), sort: "state" },
  { title: "Kind", cell: (row) => tag(`${row.kind} · ${row.ack_policy}${row.paused ? " · paused" : ""}`), kind: "optional wide" },
  { title: "Pending", cell: (row) => count(row.pending), sort: "pending", descending: true, kind: "number" },
  { title: "Awaiting ack", cell: (row) => count(row.ack_pending), sort: "ack_pending", descending: true, kind: "number optional" },
  { title: "Redelivered", cell: (row) => make("span", { class: row.redelivered ? "warn" : "" }, count(row.redelivered)), sort: "redelivered", descending: true, kind: "number optional" },
  { title: "Waiting pulls", cell: (row) => count(row.waiting), sort: "waiting", descending: true, kind: "number optional wide" },
  { title: "Delivered", cell: (row) => rate(row.rate), sort: "rate", descending: true, kind: "number optional" },
  { title: "Pending, 5 minutes", cell: (row) => spark(row.chart, `pending of ${row.name}`), kind: "optional extra" },
];

export default {
  section: "consumers",
  title: () => "Consumers",
  query: () => ({ page: "consumers", ...listingQuery("consumers", DEFAULTS) }),
  draw({ changed }) {
    if (!state.page) return loading("Consumers");
    return [head("Consumers"), table("consumers", consumerColumns(true), state.page, {
      caption: "Consumers", changed, key: (row) => `${row.stream} ${row.name}`,
      empty: nothing("No consumers yet. Create one: ", command("jetlake consumer add ORDERS worker --pull")),
    })];
  },
};
