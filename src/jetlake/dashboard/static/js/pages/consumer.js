// One consumer: how far it is, how quickly, and what holds it up.

import { chart } from "../chart.js";
import { make } from "../elements.js";
import { count, duration, moment, rate, short, streamPath } from "../format.js";
import { state } from "../live.js";
import { card, command, configCard, crumbs, facts, failed, findingCard, head, link, loading, note, pair, ranges, replicas, settings, tiles } from "../parts.js";

function ackTimes({ ack_times: times, config }) {
  if (times.samples) return facts([["median", `${times.p50} ms`], ["95 %", `${times.p95} ms`], ["99 %", `${times.p99} ms`], ["samples", count(times.samples)]]);
  return config.sample_freq ? "No samples yet. Acks are sampled while the dashboard runs."
    : ["No samples. Enable ack sampling: ", command(`jetlake consumer edit ${config.stream ?? "STREAM"} ${config.name ?? "CONSUMER"} --sample 100`)];
}

export default {
  section: "consumers",
  title: ([, , , name]) => name,
  query: ([, stream, , name]) => ({ page: "consumer", stream, consumer: name, range: state.range }),
  draw({ route: [, stream, , name], changed, redraw, actions }) {
    const { page } = state;
    const up = crumbs(link("#/", "Streams"), link(streamPath(stream), stream));
    if (!page) return [up, loading(name)];
    if (page.error) return [up, failed(name, page.error)];
    const perSecond = { redraw, show: (value) => `${short(value)}/s` };
    return [
      up,
      head(name, actions.consumer(page)),
      findingCard(page.finding, page.reasons) ?? (!page.is_known && note("Not known yet whether it is stuck: it has been watched for less than ten seconds.")),
      tiles(["Pending", short(page.pending), count(page.pending)], ["Awaiting ack", count(page.ack_pending)],
        ["Redelivered", count(page.redelivered)], ["Waiting pulls", count(page.waiting)],
        ["Delivered", pair(page.delivered.consumer_seq, page.delivered.stream_seq), "sequence of the consumer / of the stream"],
        ["Ack floor", pair(page.ack_floor.consumer_seq, page.ack_floor.stream_seq), "sequence of the consumer / of the stream"]),
      ranges(changed),
      make("div", { class: "charts" },
        chart("delivered", "Delivered", page.charts.delivered, { ...perSecond, now: rate(page.rate) }),
        chart("acked", "Acknowledged", page.charts.acked, { ...perSecond, now: rate(page.ack_rate) }),
        chart("pending", "Pending", page.charts.pending, { redraw, now: count(page.pending) }),
        chart("redelivered", "Redelivered", page.charts.redelivered, { redraw, now: count(page.redelivered) })),
      make("h2", {}, "Ack times"), card(ackTimes({ ...page, config: { ...page.config, stream, name } })),
      page.priority_groups.length > 0 && [make("h2", {}, "Priority group"), card(page.priority_groups.map((group) => facts([
        ["group", group.group], ["pinned client", group.pinned_client_id ?? "none"], ["pinned at", moment(group.pinned_ts)]])))],
      page.cluster && [make("h2", {}, `Replicas in ${page.cluster.name}`), card(replicas(page.cluster))],
      make("h2", {}, "Details"), make("div", { class: "two" },
        card(facts([["created", moment(page.created)], ["kind", page.kind], ["ack policy", page.ack_policy],
          ["state", page.paused ? `paused for another ${duration(page.pause_remaining_s)}` : "running"], ...settings(page)])),
        configCard(page.config)),
    ];
  },
};
