// Mirrors and sources as a graph: origins on the left, copies on the right, each edge with how far behind it is.

import { draw, make } from "../elements.js";
import { count, duration, streamPath } from "../format.js";
import { state } from "../live.js";
import { command, head, link, loading, note, nothing } from "../parts.js";
import { localRows, table } from "../table.js";

const [WIDTH, HEIGHT, GAP_X, GAP_Y] = [200, 34, 110, 18];

const isStale = (edge) => edge.active < 0 || edge.active > 30e9;
const level = (edge) => (edge.error ? "bad" : edge.lag && isStale(edge) ? "warn" : "good");
const saying = (edge) => edge.error || `${count(edge.lag)} behind${edge.active < 0 ? ", no contact yet" : `, last contact ${duration(edge.active / 1e9)} ago`}`;

const columns = [
  { title: "Stream", cell: (row) => link(streamPath(row.to), row.to), sort: "to", order: (row) => row.to, kind: "clip main" },
  { title: "Kind", cell: (row) => row.kind, sort: "kind", order: (row) => row.kind, kind: "optional" },
  { title: "Copies", cell: (row) => row.from, sort: "from", order: (row) => row.from, kind: "clip" },
  { title: "Filter", cell: (row) => row.filter, kind: "clip optional" },
  { title: "Behind", cell: (row) => count(row.lag), sort: "lag", order: (row) => row.lag, descending: true, kind: "number optional" },
  { title: "State", cell: (row) => make("span", { class: level(row) === "good" ? "" : level(row) }, saying(row)), kind: "wrapped" },
];

function graph({ nodes, edges }) {
  const rows = {};
  const places = Object.fromEntries(nodes.map((node) => {
    const row = rows[node.depth] = (rows[node.depth] ?? -1) + 1;
    return [node.name, { x: node.depth * (WIDTH + GAP_X), y: row * (HEIGHT + GAP_Y) }];
  }));
  const width = Math.max(...Object.values(places).map((place) => place.x)) + WIDTH;
  const height = Math.max(...Object.values(places).map((place) => place.y)) + HEIGHT;
  const clip = (text) => (text.length > 19 ? `${text.slice(0, 18)}…` : text);
  return make("div", { class: "card graph", tabindex: "0", role: "group", "aria-label": "Graph of mirrors and sources; the table below shows the same data" },
    draw("svg", { viewBox: `-2 -2 ${width + 4} ${height + 4}`, width: width + 4, height: height + 4 },
      edges.map((edge) => {
        const [one, other] = [places[edge.from], places[edge.to]];
        const [x1, y1, x2, y2] = [one.x + WIDTH, one.y + HEIGHT / 2, other.x, other.y + HEIGHT / 2];
        const middle = (x1 + x2) / 2;
        // Nearer to the origin than to the copy: in the middle edges cross, and nobody could tell whose label is whose.
        const [labelX, labelY] = [x1 + 0.384 * (x2 - x1), y1 + 0.282 * (y2 - y1)];
        return draw("g", { class: `edge ${level(edge)}` }, draw("title", {}, `${edge.to} ${edge.kind === "mirror" ? "mirrors" : "sources"} ${edge.from}: ${saying(edge)}`),
          draw("path", { d: `M${x1},${y1} C${middle},${y1} ${middle},${y2} ${x2},${y2}`, "stroke-dasharray": edge.kind === "source" ? "5 4" : undefined }),
          draw("path", { class: "arrow", d: `M${x2},${y2} l-8,-4 v8 z` }),
          draw("text", { x: labelX, y: labelY - 5, "text-anchor": "middle" }, edge.error ? "✕" : edge.lag ? `−${count(edge.lag)}` : "✓"));
      }),
      nodes.map((node) => {
        const place = places[node.name];
        const box = [draw("title", {}, node.name), draw("rect", { x: place.x, y: place.y, width: WIDTH, height: HEIGHT, rx: 7 }),
          draw("text", { x: place.x + WIDTH / 2, y: place.y + HEIGHT / 2 + 4, "text-anchor": "middle" }, clip(node.name))];
        return node.is_here ? draw("a", { class: "node", href: streamPath(node.name) }, box) : draw("g", { class: "node away" }, box);
      })));
}

export default {
  section: "copies",
  title: () => "Mirrors and sources",
  query: () => ({ page: "copies" }),
  draw({ changed }) {
    const { page } = state;
    if (!page) return loading("Mirrors and sources");
    const { edges = [] } = page;
    return [head("Mirrors and sources"),
      page.total > edges.length && note(`Only ${count(edges.length)} of ${count(page.total)} copies are shown.`),
      edges.length > 0 && graph(page),
      edges.length > 0 && make("p", { class: "soft" }, "Solid: a mirror. Dashed: a source."),
      table("copies", columns, localRows("copies", edges, columns, (row) => `${row.to} ${row.from}`), {
        caption: "Mirrors and sources", changed, key: (row) => `${row.to} ${row.from}`, empty: nothing("No mirrors or sources. Create a mirror: ", command("jetlake stream add COPY --mirror ORDERS")),
      })];
  },
};
