// A program of nats.js, run by test_nats_js.py: each part uses one side of the client and prints what it saw as JSON.
"use strict";

const { connect, delay, headers, nanos } = require("@nats-io/transport-node");
const { AckPolicy, DeliverPolicy, jetstream, jetstreamManager } = require("@nats-io/jetstream");
const { startFastIngest } = require("@nats-io/jetstream/internal");
const { Kvm } = require("@nats-io/kv");
const { Objm } = require("@nats-io/obj");

const [url, part] = process.argv.slice(2);
// A busy machine is no reason to fail; the client's own limit is a second.
const patient = { timeout: 30_000 };

async function said(promise) {
  try {
    return await promise;
  } catch (error) {
    return error.code ? `${error.code}: ${error.message}` : error.message;
  }
}

async function take(messages, count, each = (message) => message.ack()) {
  const seen = [];
  for await (const message of messages) {
    seen.push([message.seq, message.info.deliveryCount, message.info.pending]);
    each(message);
    if (seen.length === count) break;
  }
  return seen;
}

async function fill(js, count) {
  for (let number = 0; number < count; number++) await js.publish(`s.${number % 2}`, String(number));
}

const parts = {
  async core(nc) {
    const seen = {};
    const subscription = nc.subscribe("words.*");
    const sent = headers();
    sent.append("Many", "b");
    sent.append("Many", "c");
    nc.publish("words.one", "1", { headers: sent, reply: "back" });
    for await (const message of subscription) {
      seen.message = [message.subject, message.reply, message.string(), message.headers.values("Many")];
      break;
    }
    nc.subscribe("reverse", {
      callback: (_, message) => message.respond(message.string().split("").reverse().join("")),
    });
    seen.reply = (await nc.request("reverse", "abc", patient)).string();
    seen.nobody = await said(nc.request("nobody", "", patient));
    return seen;
  },

  async streams(nc) {
    const seen = {};
    const [js, jsm] = [jetstream(nc), await jetstreamManager(nc)];
    await jsm.streams.add({ name: "S", subjects: ["s.>"], allow_direct: true, max_msgs_per_subject: 5 });
    seen.acks = [];
    for (let number = 0; number < 4; number++) seen.acks.push((await js.publish(`s.${number % 2}`, String(number))).seq);
    const once = () => js.publish("s.1", "x", { msgID: "once" });
    seen.once = [await once(), await once()].map((ack) => [ack.seq, ack.duplicate]);
    seen.expected = await said(js.publish("s.1", "", { expect: { lastSequence: 1 } }));
    seen.nobody = await said(js.publish("elsewhere", ""));
    const shown = (message) => [message.seq, message.subject, message.string()];
    seen.direct = [
      shown(await jsm.direct.getMessage("S", { seq: 2 })),
      shown(await jsm.direct.getMessage("S", { last_by_subj: "s.0" })),
      shown(await jsm.streams.getMessage("S", { next_by_subj: "s.1", seq: 3 })),
    ];
    seen.batch = [];
    for await (const message of await jsm.direct.getBatch("S", { seq: 1, batch: 3 })) seen.batch.push(message.seq);
    seen.missing = await said(jsm.streams.getMessage("S", { seq: 99 }));
    seen.purged = (await jsm.streams.purge("S", { filter: "s.0" })).purged;
    const { state } = await jsm.streams.info("S", { subjects_filter: ">" });
    seen.state = [state.messages, state.first_seq, state.last_seq, state.subjects];
    seen.updated = (await jsm.streams.update("S", { description: "other" })).config.description;
    seen.inUse = await said(jsm.streams.add({ name: "S", subjects: ["t.>"] }));
    seen.deleted = [await jsm.streams.delete("S"), await said(jsm.streams.info("S"))];
    return seen;
  },

  async consumers(nc) {
    const seen = {};
    const [js, jsm] = [jetstream(nc), await jetstreamManager(nc)];
    await jsm.streams.add({ name: "S", subjects: ["s.>"] });
    await fill(js, 20);
    await jsm.consumers.add("S", { durable_name: "pull", ack_policy: AckPolicy.Explicit, filter_subject: "s.1" });
    const pull = await js.consumers.get("S", "pull");
    seen.fetch = await take(await pull.fetch({ max_messages: 3 }), 3, (message) =>
      message.seq === 4 ? message.nak() : message.ack());
    // When the nakked message comes again is up to the server.
    const next = await pull.next();
    next.ack();
    const rest = [[next.seq, next.info.deliveryCount, 0], ...(await take(await pull.consume({ max_messages: 2 }), 7))];
    seen.rest = rest.map(([seq, deliveries]) => [seq, deliveries]).sort(([one], [other]) => one - other);
    do {
      seen.empty = await said(pull.next({ expires: 1000 }));
    } while (seen.empty === "heartbeats missed");
    const ordered = await js.consumers.get("S", { filter_subjects: "s.0" });
    seen.ordered = (await take(await ordered.consume(), 10, () => {})).map(([seq]) => seq);
    await jsm.consumers.add("S", {
      durable_name: "push",
      ack_policy: AckPolicy.None,
      deliver_policy: DeliverPolicy.StartSequence,
      opt_start_seq: 18,
      deliver_subject: "deliver",
      idle_heartbeat: nanos(5000),
      flow_control: true,
    });
    const push = await js.consumers.getPushConsumer("S", "push");
    seen.push = (await take(await push.consume(), 3, () => {})).map(([seq]) => seq);
    seen.paused = (await jsm.consumers.pause("S", "pull", new Date(Date.now() + 60_000))).paused;
    seen.resumed = (await jsm.consumers.resume("S", "pull")).paused;
    const { num_pending, ack_floor, delivered } = await pull.info();
    seen.info = [num_pending, ack_floor.stream_seq, delivered.stream_seq];
    seen.names = (await jsm.consumers.list("S").next()).map(({ name }) => name).filter((name) => /^pu/.test(name));
    seen.deleted = [await pull.delete(), await said(jsm.consumers.info("S", "pull"))];
    return seen;
  },

  async copies(nc) {
    const seen = {};
    const [js, jsm] = [jetstream(nc), await jetstreamManager(nc)];
    await jsm.streams.add({ name: "S", subjects: ["s.>"] });
    await fill(js, 10);
    await jsm.streams.add({ name: "M", mirror: { name: "S", filter_subject: "s.1" } });
    await jsm.streams.add({
      name: "T",
      sources: [{ name: "S", subject_transforms: [{ src: "s.*", dest: "copy.{{wildcard(1)}}" }] }],
    });
    for (const [name, count] of [["M", 5], ["T", 10]]) {
      while ((await jsm.streams.info(name)).state.messages < count) await delay(5);
    }
    const { state } = await jsm.streams.info("M");
    seen.mirror = [state.messages, state.last_seq, (await jsm.streams.getMessage("M", { seq: 4 })).subject];
    const copy = await jsm.streams.getMessage("T", { seq: 10 });
    seen.source = [copy.subject, copy.header.get("Nats-Stream-Source").split(" ").slice(0, 2)];
    const reader = await js.consumers.get("M");
    seen.read = (await take(await reader.consume(), 5, () => {})).map(([seq]) => seq);
    return seen;
  },

  async batches(nc) {
    const seen = {};
    const [js, jsm] = [jetstream(nc), await jetstreamManager(nc)];
    await jsm.streams.add({ name: "S", subjects: ["s.>"], allow_atomic: true, allow_batched: true });
    const batch = await js.startBatch("s.1", "1");
    batch.add("s.2", "2");
    await batch.add("s.3", "3", { ack: true });
    seen.hidden = (await jsm.streams.info("S")).state.messages;
    const { count, seq } = await batch.commit("s.4", "4");
    seen.committed = [count, seq, (await jsm.streams.info("S")).state.messages];
    const ingest = await startFastIngest(nc, "s.1", "5", { allowGaps: false });
    for (let number = 0; number < 50; number++) await ingest.add("s.2", String(number));
    const end = await ingest.last("s.3", "end");
    seen.ingested = [end.count, end.seq];
    return seen;
  },

  async schedules(nc) {
    const seen = {};
    const [js, jsm] = [jetstream(nc), await jetstreamManager(nc)];
    await jsm.streams.add({ name: "S", subjects: ["s.>", "due.>"], allow_msg_schedules: true });
    const reader = await js.consumers.get("S", { filter_subjects: "due.>" });
    const due = await reader.consume();
    await js.publish("s.once", "tea", { schedule: { specification: new Date(Date.now() + 200), target: "due.once" } });
    for await (const message of due) {
      seen.fired = [message.subject, message.string(), message.headers.get("Nats-Scheduler")];
      break;
    }
    seen.left = (await jsm.streams.info("S", { subjects_filter: "s.>" })).state.subjects ?? {};
    await js.publish("s.later", "", { schedule: { specification: { every: "1h" }, target: "due.later" } });
    await js.publish("due.cancelled", "", { cancelSchedule: { scheduleSubject: "s.later" } });
    seen.cancelled = (await jsm.streams.info("S", { subjects_filter: "s.>" })).state.subjects ?? {};
    const bad = { specification: "@every 1ms", target: "due.never" };
    seen.bad = await said(js.publish("s.bad", "", { schedule: bad }));
    return seen;
  },

  async kv(nc) {
    const seen = {};
    const bucket = await new Kvm(nc).create("B", { history: 5, markerTTL: 60_000 });
    const shown = (entry) => entry && [entry.key, entry.string(), entry.revision, entry.operation];
    seen.revisions = [await bucket.put("a", "1"), await bucket.create("b", "2"), await bucket.update("b", "3", 2)];
    seen.taken = await said(bucket.create("a", "x"));
    seen.late = await said(bucket.update("a", "x", 7));
    seen.got = [shown(await bucket.get("b")), shown(await bucket.get("b", { revision: 2 })), await bucket.get("none")];
    const watch = await bucket.watch();
    await bucket.delete("a");
    await bucket.put("c", "5");
    seen.watched = [];
    for await (const entry of watch) {
      seen.watched.push([...shown(entry), entry.isUpdate]);
      if (entry.key === "c") break;
    }
    await bucket.purge("b");
    seen.keys = [];
    for await (const key of await bucket.keys()) seen.keys.push(key);
    seen.history = [];
    for await (const entry of await bucket.history({ key: "a" })) seen.history.push(shown(entry));
    const { values, history, streamInfo } = await bucket.status();
    seen.status = [values, history, streamInfo.config.allow_msg_ttl];
    return seen;
  },

  async objects(nc) {
    const seen = {};
    const store = await new Objm(nc).create("O", {});
    const data = new Uint8Array(2 * 1024 * 1024).map((_, place) => place % 251);
    const info = await store.putBlob({ name: "large", description: "two megabytes" }, data);
    seen.info = [info.size, info.chunks, info.digest, info.description];
    seen.same = Buffer.compare(Buffer.from(await store.getBlob("large")), Buffer.from(data)) === 0;
    await store.putBlob({ name: "empty" }, new Uint8Array());
    await store.link("link", await store.info("large"));
    seen.linked = (await store.getBlob("link")).length;
    seen.list = (await store.list()).map(({ name }) => name).sort();
    await store.delete("large");
    seen.gone = await store.getBlob("large");
    await store.seal();
    seen.sealed = (await store.status()).sealed;
    return seen;
  },

  // Reads what another client has written, and writes what that one reads.
  async exchange(nc) {
    const store = await new Objm(nc).open("O");
    const content = await store.getBlob("ours");
    const info = await store.info("ours");
    await store.putBlob({ name: "theirs", description: "copied" }, content);
    await store.link("link", await store.info("theirs"));
    await store.delete("gone");
    const bucket = await new Kvm(nc).open("K");
    await bucket.put("theirs", (await bucket.get("ours")).string() + "!");
    return [info.size, info.chunks, info.description, info.headers.get("H"), info.metadata, (await store.getBlob("near")).length];
  },

  // The same for a batch and a schedule.
  async publishing(nc) {
    const seen = [];
    const js = jetstream(nc);
    const reader = await js.consumers.get("X", { filter_subjects: ["x.ours", "due.ours"] });
    for await (const message of await reader.consume()) {
      const { subject, headers: received } = message;
      seen.push(subject === "x.ours" ? message.string() : [subject, message.string(), received.get("Nats-Scheduler")]);
      if (seen.length === 4) break;
    }
    const batch = await js.startBatch("x.theirs", "a");
    await batch.commit("x.theirs", "b");
    const plan = { specification: new Date(Date.now() + 100), target: "due.theirs" };
    await js.publish("x.plan.theirs", "coffee", { schedule: plan });
    return seen;
  },

  // Calls and finds another client's service, which then finds and calls this one.
  async services(nc) {
    const seen = {};
    const { Svcm } = require("@nats-io/services");
    const manager = new Svcm(nc);
    const service = await manager.add({ name: "theirs", version: "2.0.0", description: "theirs" });
    const group = service.addGroup("theirs");
    group.addEndpoint("up", (_, message) => message.respond(message.string().toUpperCase()));
    group.addEndpoint("broken", (_, message) => message.respondError(402, "pay"));
    await nc.flush();
    seen.double = (await nc.request("ours.double", "21", patient)).string();
    const failed = await nc.request("ours.fail", "", patient);
    seen.failed = [failed.headers.get("Nats-Service-Error"), failed.headers.get("Nats-Service-Error-Code"), failed.string()];
    const finder = manager.client({ strategy: "count", maxMessages: 1, maxWait: 30_000 });
    const first = async (found) => {
      for await (const one of await found) return one;
    };
    const { name, version, metadata } = await first(finder.ping("ours"));
    seen.ping = [name, version, metadata];
    const info = await first(finder.info("ours"));
    seen.info = [info.description, info.endpoints.map(({ subject }) => subject)];
    const stats = await first(finder.stats("ours"));
    seen.stats = stats.endpoints.map((one) => [one.name, one.num_requests, one.num_errors]);
    seen.check = (await nc.request("ours.check", "", patient)).json();
    await service.stop();
    return seen;
  },
};

async function main() {
  const nc = await connect({ servers: url });
  const seen = await parts[part](nc);
  console.log(JSON.stringify(seen));
  await nc.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
