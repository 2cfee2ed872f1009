// Tables that are filtered, sorted and paged: by the server where there may be thousands of rows, else here.

import { make } from "./elements.js";
import { count } from "./format.js";

export const PAGE_ROWS = 50;

/** What the reader has typed and chosen, by table, kept while the numbers change under it. */
const chosen = {};

export function listing(id, defaults = {}) {
  const choice = chosen[id] ??= { filter: "", sort: "", descending: false, offset: 0, ...defaults };
  if (shown.includes(id)) return choice;
  shown.push(id);
  const read = (field) => linked.get(linkName(id, field));
  const fields = Object.keys(choice).filter((field) => read(field) !== null);
  // What a link says is all that it says: what was chosen here before does not stay beside it.
  if (fields.length) Object.assign(choice, { filter: "", sort: "", descending: false, offset: 0 });
  for (const field of fields) {
    choice[field] = field === "descending" ? read(field) === "1" : field === "offset" ? Number.parseInt(read(field), 10) || 0 : read(field);
  }
  return choice;
}

// The tables of the open page, and what the link that was followed says about them. The first table's choices have
// plain names, those of others begin with the table's.
let shown = [];
let linked = new URLSearchParams();
const linkName = (id, field) => (shown[0] === id ? field : `${id}.${field}`);

/** Another page is open, by a link that may say what is chosen in its tables. */
export function follow(query) {
  shown = [];
  linked = query;
}

/** What is chosen in the tables of the open page, for a link to it. */
export function choices() {
  return shown.flatMap((id) => Object.entries(chosen[id]).filter(([, value]) => value)
    .map(([field, value]) => [linkName(id, field), value === true ? "1" : String(value)]));
}

/** The part of a query that asks the server for what is chosen. */
export function listingQuery(id, defaults) {
  const { filter, sort, descending, offset } = listing(id, defaults);
  return { filter, sort, descending: descending ? "1" : "", offset: offset || "", limit: PAGE_ROWS };
}

/** The same choice applied to rows that are all here. */
export function localRows(id, rows, columns, search) {
  const { filter, sort, descending, offset } = listing(id);
  const wanted = filter.toLowerCase();
  const found = rows.filter((row) => !wanted || search(row).toLowerCase().includes(wanted));
  const order = columns.find((column) => column.sort === sort)?.order;
  if (order) {
    found.sort((one, other) => {
      const [left, right] = [order(one), order(other)];
      return (descending ? -1 : 1) * (typeof left === "string" ? left.localeCompare(right) : left - right);
    });
  }
  const from = Math.max(0, Math.min(offset, Math.floor((found.length - 1) / PAGE_ROWS) * PAGE_ROWS));
  return { rows: found.slice(from, from + PAGE_ROWS), total: rows.length, found: found.length, offset: from };
}

/**
 * A table. columns: { title, cell(row), sort: name, kind: classes }. data: { rows, total, found, offset }.
 * changed: called when the reader has chosen something else. empty: what is said when there is nothing at all.
 * isSmall: one of several on a page, which needs no filter while a glance shows all of it.
 */
export function table(id, columns, data, { caption, empty, changed, key, isSmall }) {
  const choice = listing(id);
  const choose = (change) => { Object.assign(choice, { offset: 0 }, change); changed(); };
  if (!data.total) return [make("div", { class: "card empty", id: `table-${id}` }, empty)];
  const head = columns.map(({ title, sort, kind, descending }) => make("th", {
    scope: "col", class: kind,
    "aria-sort": sort && sort === choice.sort ? (choice.descending ? "descending" : "ascending") : undefined,
  }, sort ? make("button", {
    type: "button", onclick: () => choose({ sort, descending: sort === choice.sort ? !choice.descending : Boolean(descending) }),
  }, title) : title));
  const body = data.rows.map((row) => make("tr", { "data-key": key?.(row) }, columns.map(({ cell, kind }) => {
    if (!kind?.includes("clip")) return make("td", { class: kind }, cell(row));
    const made = make("td", { class: kind }, make("span", {}, make("span", {}, cell(row))));
    made.title = made.textContent;  // the whole of what may be cut
    return made;
  })));
  const last = data.offset + data.rows.length;
  const needsTools = !isSmall || data.total > 8 || choice.filter;
  return [
    needsTools && make("div", { class: "tools", id: `tools-${id}` },
      make("label", { class: "grow" }, make("span", {}, "Filter"), make("input", {
        type: "search", id: `filter-${id}`, value: choice.filter, autocomplete: "off", spellcheck: "false",
        oninput: (event) => choose({ filter: event.target.value }),
      })),
      make("p", { class: "pager", role: "status" },
        make("span", {}, data.found ? `${count(data.offset + 1)}–${count(last)} of ${count(data.found)}` : `none of ${count(data.total)}`),
        make("button", { type: "button", "aria-label": "Previous page", disabled: data.offset === 0, onclick: () => choose({ offset: Math.max(0, data.offset - PAGE_ROWS) }) }, "‹"),
        make("button", { type: "button", "aria-label": "Next page", disabled: last >= data.found, onclick: () => choose({ offset: data.offset + PAGE_ROWS }) }, "›"))),
    make("div", { class: "table", id: `table-${id}`, tabindex: "0", role: "region", "aria-label": caption },
      make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, body))),
  ];
}
