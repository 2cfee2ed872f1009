// Object stores: all of them, and one with its objects.

import { make } from "../elements.js";
import { bytes, count, moment, path } from "../format.js";
import { state } from "../live.js";
import { command, crumbs, failed, head, link, loading, nothing } from "../parts.js";
import { release, renew, resource } from "../resource.js";
import { listingQuery, table } from "../table.js";

const PREFIX = "OBJ_";

const storeColumns = [
  { title: "Object store", cell: (row) => link(path("objects", row.name.slice(PREFIX.length)), row.name.slice(PREFIX.length)), sort: "name", kind: "clip main" },
  { title: "Size", cell: (row) => bytes(row.bytes), sort: "bytes", descending: true, kind: "number" },
  { title: "Chunks and descriptions", cell: (row) => count(row.messages), sort: "messages", descending: true, kind: "number optional" },
  { title: "Last change", cell: (row) => moment(row.last_ts), kind: "" },
];

export const stores = {
  section: "objects",
  title: () => "Object stores",
  query: () => ({ page: "object-stores", ...listingQuery("stores") }),
  draw({ changed, actions }) {
    if (!state.page) return loading("Object stores");
    return [head("Object stores", actions.createStore()), table("stores", storeColumns, state.page, {
      caption: "Object stores", changed, key: (row) => row.name, empty: nothing("No object stores yet. Create one: ", command("jetlake object add FILES")),
    })];
  },
};

export const store = {
  section: "objects",
  title: ([, name]) => name,
  query: () => ({ page: "none" }),
  draw({ route: [, name], changed, redraw, actions }) {
    const up = crumbs(link("#/objects", "Object stores"));
    const base = `api/object-stores/${encodeURIComponent(name)}`;
    const body = resource(`${base}/objects`, listingQuery(`objects-${name}`, { sort: "name" }), redraw);
    if (!body) return [up, loading(name)];
    if (body.error) return [up, failed(name, body.error)];
    const columns = [
      { title: "Object", cell: (row) => row.name, sort: "name", kind: "clip main" },
      { title: "Size", cell: (row) => (row.link ? `link to ${row.link}` : bytes(row.size)), sort: "size", descending: true, kind: "number" },
      { title: "Chunks", cell: (row) => count(row.chunks), kind: "number optional" },
      { title: "Stored", cell: (row) => moment(row.time), sort: "time", descending: true, kind: "optional" },
      { title: "Description", cell: (row) => row.description, kind: "clip optional" },
      { title: "", cell: (row) => [!row.link && make("a", { class: "button", href: `${base}/content?${new URLSearchParams({ name: row.name })}`, download: "" }, "Download"), " ", actions.deleteObject(name, row.name, () => renew(redraw))], kind: "number" },
    ];
    return [up, head(name, make("a", { class: "button", href: path("streams", PREFIX + name) }, "Show stream"), actions.upload(name, () => renew(redraw))),
      table(`objects-${name}`, columns, body, { caption: "Objects", changed, key: (row) => row.name, empty: ["No objects yet. Put one: ", command(`jetlake object put ${name} FILE`)] })];
  },
  leave: release,
};
