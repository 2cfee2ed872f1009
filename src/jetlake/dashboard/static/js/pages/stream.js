// One stream: its numbers, charts, consumers, subjects, copies, configuration.

import { chart } from "../chart.js";
import { make } from "../elements.js";
import { bytes, count, messagesPath, moment, plural, rate, short, streamPath } from "../format.js";
import { state } from "../live.js";
import { card, configCard, crumbs, facts, failed, findingCard, head, link, loading, ranges, replicas, settings, tiles } from "../parts.js";
import { listingQuery, localRows, table } from "../table.js";
import { consumerColumns } from "./consumers.js";

const subjectColumns = [
  { title: "Subject", cell: (row) => row[0], sort: "subject", order: (row) => row[0], kind: "clip main" },
  { title: "Messages", cell: (row) => count(row[1]), sort: "messages", order: (row) => row[1], descending: true, kind: "number" },
];

function subjects(page, changed) {
  if (!page.subjects_held) return null;
  if (!page.subjects_held.length) {
    return page.num_subjects ? [make("h2", {}, "Subjects"), card(`${count(page.num_subjects)} subjects are too many to list. Filter by subject on the Messages page.`)] : null;
  }
  const rows = localRows("subjects", page.subjects_held, subjectColumns, (row) => row[0]);
  return [make("h2", {}, "Subjects"), table("subjects", subjectColumns, rows, { caption: "Subjects of this stream", empty: "", isSmall: true, changed, key: (row) => row[0] })];
}

function copies(page) {
  if (!page.copies.length) return null;
  return [make("h2", {}, page.config.mirror ? "Mirror of" : "Sources"), card(facts(page.copies.map((copy) => [
    link(streamPath(copy.name), copy.name),
    copy.error ? make("span", { class: "bad" }, copy.error) : `${plural(copy.lag, "message")} behind`,
  ])))];
}

export default {
  section: "streams",
  title: ([, name]) => name,
  query: ([, name]) => ({ page: "stream", stream: name, range: state.range, ...listingQuery("stream-consumers") }),
  draw({ route: [, name], changed, redraw, actions }) {
    const { page } = state;
    const up = crumbs(link("#/", "Streams"));
    if (!page) return [up, loading(name)];
    if (page.error) return [up, failed(name, page.error)];
    const options = { redraw };
    return [
      up,
      head(name, make("a", { class: "button", href: messagesPath(name) }, "Messages"), actions.stream(page)),
      findingCard(page.finding),
      tiles(["Messages", short(page.messages), count(page.messages)], ["Size", bytes(page.bytes)], ["First", count(page.first_seq)],
        ["Last", count(page.last_seq)], ["Subjects", count(page.num_subjects)], ["Consumers", count(page.consumers)]),
      ranges(changed),
      make("div", { class: "charts" },
        chart("published", "Published", page.charts.published, { ...options, now: rate(page.rate), show: (value) => `${short(value)}/s` }),
        chart("messages", "Messages held", page.charts.messages, { ...options, now: count(page.messages) })),
      make("h2", {}, "Consumers"),
      table("stream-consumers", consumerColumns(false), page.consumers_list, { caption: "Consumers of this stream", empty: "No consumers.", isSmall: true, changed, key: (row) => row.name }),
      subjects(page, changed),
      copies(page),
      page.cluster && [make("h2", {}, `Replicas in ${page.cluster.name}`), card(replicas(page.cluster))],
      make("h2", {}, "Details"), make("div", { class: "two" },
        card(facts([["created", moment(page.created)], ["last message", moment(page.last_ts)],
          ["retention", page.retention], ["storage", page.storage], ["subjects", page.subjects.join(", ")], ...settings(page)])),
        configCard(page.config)),
    ];
  },
};
