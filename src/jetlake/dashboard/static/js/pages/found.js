// Pages of what is looked for when they are open: services and schedules.

import { make } from "../elements.js";
import { count, messagesPath, moment, streamPath } from "../format.js";
import { command, failed, head, link, loading, note, unread } from "../parts.js";
import { release, renew, resource } from "../resource.js";
import { localRows, table } from "../table.js";

const serviceColumns = [
  { title: "Service", cell: (row) => [row.service, " ", make("span", { class: "tag" }, row.version)], sort: "service", order: (row) => row.service, kind: "main" },
  { title: "Endpoint", cell: (row) => row.endpoint, sort: "endpoint", order: (row) => row.endpoint, kind: "clip" },
  { title: "Subject", cell: (row) => row.subject, kind: "clip optional" },
  { title: "Instance", cell: (row) => row.instance, sort: "instance", order: (row) => row.instance, kind: "clip optional wide" },
  { title: "Requests", cell: (row) => count(row.requests), sort: "requests", order: (row) => row.requests, descending: true, kind: "number" },
  { title: "Errors", cell: (row) => make("span", { class: row.errors ? "bad" : "", title: row.last_error }, count(row.errors)), sort: "errors", order: (row) => row.errors, descending: true, kind: "number" },
  { title: "Average time", cell: (row) => `${row.average_ms} ms`, sort: "time", order: (row) => row.average_ms, descending: true, kind: "number optional" },
  { title: "Up since", cell: (row) => moment(row.started), kind: "optional" },
];

const scheduleColumns = (actions, done) => [
  { title: "Schedule on", cell: (row) => row.subject, sort: "subject", order: (row) => row.subject, kind: "clip main" },
  { title: "When", cell: (row) => [row.schedule, row.time_zone && ` (${row.time_zone})`], kind: "" },
  { title: "Publishes to", cell: (row) => row.target, sort: "target", order: (row) => row.target, kind: "clip optional" },
  { title: "Stream", cell: (row) => link(streamPath(row.stream), row.stream), sort: "stream", order: (row) => row.stream, kind: "clip optional" },
  { title: "Stored", cell: (row) => moment(row.created), kind: "optional" },
  { title: "", cell: (row) => actions.deleteMessage(row.stream, row.seq, done), kind: "number" },
];

export const services = {
  section: "services",
  title: () => "Services",
  query: () => ({ page: "none" }),
  draw({ changed, redraw }) {
    const body = resource("api/services", {}, redraw, 3000);
    if (!body) return loading("Services");
    if (body.error) return failed("Services", body.error);
    return [head("Services"), table("services", serviceColumns, localRows("services", body.rows, serviceColumns, (row) => `${row.service} ${row.endpoint} ${row.subject}`), {
      caption: "Endpoints of services", changed, key: (row) => `${row.instance} ${row.endpoint}`, empty: ["No services respond. Try one: ", command("jetlake micro serve demo")],
    })];
  },
  leave: release,
};

export const schedules = {
  section: "schedules",
  title: () => "Schedules",
  query: () => ({ page: "none" }),
  draw({ changed, redraw, actions }) {
    const body = resource("api/schedules", {}, redraw, 5000);
    if (!body) return loading("Schedules");
    if (body.error) return failed("Schedules", body.error);
    const columns = scheduleColumns(actions, () => renew(redraw));
    return [head("Schedules"), !body.is_whole && note("These streams have more subjects than are checked here: ", body.streams.map((name) => [link(messagesPath(name), name), " "])), unread(body.unread),
      table("schedules", columns, localRows("schedules", body.rows, columns, (row) => `${row.subject} ${row.target} ${row.stream}`), {
        caption: "Schedules", changed, key: (row) => `${row.stream} ${row.subject}`,
        empty: body.streams.length ? ["No schedules. Add one: ", command("jetlake schedule add jobs.plan.clean clean --target jobs.run --every 1h")]
          : ["No stream allows schedules. Create one: ", command("jetlake stream add JOBS --subjects 'jobs.>' --allow-schedules")],
      })];
  },
  leave: release,
};
