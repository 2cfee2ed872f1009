// The first page: what needs attention, and all streams.

import { chart, lines, spark } from "../chart.js";
import { make } from "../elements.js";
import { bytes, consumerPath, count, rate, short, streamPath } from "../format.js";
import { state } from "../live.js";
import { attention, command, findingTag, head, isSeen, link, loading, nothing, ranges, tag, tiles } from "../parts.js";
import { listingQuery, table } from "../table.js";

const columns = [
  { title: "Stream", cell: (row) => link(streamPath(row.name), row.name), sort: "name", kind: "clip main" },
  { title: "State", cell: (row) => findingTag(row.finding), kind: "optional" },
  { title: "Subjects", cell: (row) => row.subjects.join(", "), kind: "clip optional" },
  { title: "Kind", cell: (row) => tag(`${row.retention} · ${row.storage}`), kind: "optional wide" },
  { title: "Messages", cell: (row) => count(row.messages), sort: "messages", descending: true, kind: "number" },
  { title: "Size", cell: (row) => bytes(row.bytes), sort: "bytes", descending: true, kind: "number optional" },
  { title: "Consumers", cell: (row) => count(row.consumers), sort: "consumers", descending: true, kind: "number optional" },
  { title: "Published", cell: (row) => rate(row.rate), sort: "rate", descending: true, kind: "number" },
  { title: "Last 5 minutes", cell: (row) => spark(row.chart, `published to ${row.name}`), kind: "optional extra" },
];
const leaderColumn = { title: "Leader", cell: (row) => row.cluster?.leader ?? "", kind: "clip optional" };

/** Which streams and consumers the sums come from, where there is more than one. */
function shares({ busiest, lagging }, perSecond, redraw) {
  const charts = [
    busiest.length > 1 && lines("busiest", "Published, the busiest streams", busiest.map(({ stream, ...series }) => ({ label: stream, href: streamPath(stream), series })), perSecond),
    lagging.length > 1 && lines("lagging", "Pending, the consumers furthest behind", lagging.map(({ stream, consumer, ...series }) => (
      { label: `${stream} > ${consumer}`, href: consumerPath(stream, consumer), series })), { redraw }),
  ].filter(Boolean);
  return charts.length > 0 && make("div", { class: "charts" }, charts);
}

/** What the server says of itself, where that is known. */
function serverTiles({ storage, storage_max: most, slow_consumers: slow }) {
  return [
    // Less than a hundredth says more in bytes.
    storage !== null && ["Disk", storage >= 0.01 * most && most > 0 ? make("span", { class: storage >= 0.9 * most ? "bad" : "" }, `${Math.floor(100 * storage / most)} %`) : bytes(storage),
      most > 0 ? `${bytes(storage)} of ${bytes(most)}` : "no limit"],
    slow !== null && ["Slow consumers", make("span", { class: slow ? "warn" : "" }, count(slow)), "clients that were disconnected since the server's start because they read too slowly"],
  ];
}

export default {
  section: "streams",
  title: () => "Streams",
  query: () => ({ page: "streams", range: state.range, ...listingQuery("streams") }),
  draw({ changed, redraw, actions }) {
    const { page } = state;
    if (!page) return loading("Streams");
    const { totals } = state.board;
    const perSecond = { redraw, show: (value) => `${short(value)}/s` };
    return [
      head("Streams", actions.restoreStream(), actions.createStream()),
      attention(),
      isSeen() && tiles(["Streams", count(totals.streams)], ["Messages", short(totals.messages), count(totals.messages)], ["Size", bytes(totals.bytes)],
        ["Published", rate(totals.rate)], ["Consumers", count(totals.consumers)], ["Pending", short(totals.pending), count(totals.pending)], ...serverTiles(state.board)),
      totals.streams > 0 && page.charts && [ranges(changed), make("div", { class: "charts three" },
        chart("all-published", "Published", page.charts.published, { ...perSecond, now: rate(totals.rate) }),
        totals.consumers > 0 && chart("all-delivered", "Delivered", page.charts.delivered, { ...perSecond, now: rate(page.delivered) }),
        totals.consumers > 0 && chart("all-pending", "Pending in all consumers", page.charts.pending, { redraw, now: count(totals.pending) })),
        shares(page, perSecond, redraw)],
      table("streams", page.rows.some((row) => row.cluster) ? [...columns.slice(0, 2), leaderColumn, ...columns.slice(2)] : columns, page, {
        caption: "Streams", changed, key: (row) => row.name,
        empty: nothing("No streams yet. Create one: ", command("jetlake stream add ORDERS --subjects 'orders.>'")),
      }),
    ];
  },
};
