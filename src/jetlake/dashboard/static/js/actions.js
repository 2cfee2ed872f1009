// The buttons that change something. Without a login that allows changes there are none.

import { change, once, show } from "./dialog.js";
import { make } from "./elements.js";
import { bytes, streamPath } from "./format.js";
import { loginForm, logout, post, sendFile, session } from "./session.js";

// One character at a time: a payload may have more bytes than a function takes arguments.
const encode = (text) => btoa(Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join(""));
const button = (title, onclick, kind) => (session.may_change ? make("button", { type: "button", class: kind, onclick }, title) : null);

/** Options in JSON, for everything that has no field of its own. */
function withMore({ more, ...options }) {
  if (!more?.trim()) return options;
  try { return { ...options, ...JSON.parse(more) }; } catch { throw new Error("More options: not JSON"); }
}

const streamFields = (isNew) => [
  isNew && { name: "stream", label: "Name", required: true, hint: "ORDERS" },
  { name: "subjects", label: "Subjects, separated by commas", kind: "list", hint: "orders.>" },
  isNew && { name: "storage", label: "Storage", kind: "choice", choices: ["file", "memory"] },
  isNew && { name: "retention", label: "Retention", kind: "choice", choices: ["limits", "interest", "workqueue"] },
  { name: "discard", label: "Discard policy", kind: "choice", choices: ["old", "new"] },
  { name: "max_age", label: "Max age", kind: "duration", hint: "unlimited, or 7d" },
  { name: "max_msgs", label: "Max messages", kind: "number", hint: "unlimited" },
  { name: "max_bytes", label: "Max bytes", kind: "size", hint: "unlimited, or 1GB" },
  { name: "max_msgs_per_subject", label: "Max messages per subject", kind: "number", hint: "unlimited" },
  { name: "num_replicas", label: "Replicas", kind: "number", hint: "1" },
  { name: "description", label: "Description" },
  { name: "allow_direct", label: "Allow direct get", kind: "check" },
  { name: "more", label: "More options, as JSON (durations in seconds)", kind: "lines", rows: 3, hint: '{"duplicate_window": 60}' },
].filter(Boolean);

const consumerFields = (isNew) => [
  isNew && { name: "consumer", label: "Name", required: true, hint: "worker" },
  { name: "filter_subjects", label: "Filter subjects, separated by commas", kind: "list", hint: "all" },
  isNew && { name: "deliver_policy", label: "Deliver policy", kind: "choice", choices: ["all", "new", "last"] },
  isNew && { name: "ack_policy", label: "Acknowledgements", kind: "choice", choices: ["explicit", "all", "none"] },
  { name: "ack_wait", label: "Ack wait", kind: "duration", hint: "30s" },
  { name: "max_deliver", label: "Max deliveries", kind: "number", hint: "unlimited" },
  { name: "max_ack_pending", label: "Max ack pending", kind: "number", hint: "1000" },
  { name: "sample_freq", label: "Ack sampling (%)", hint: "none, or 100" },
  { name: "description", label: "Description" },
  { name: "more", label: "More options, as JSON (durations in seconds)", kind: "lines", rows: 3, hint: '{"max_waiting": 64}' },
].filter(Boolean);

/** What a new thing has when nothing is typed: options that say nothing are not sent. */
const said = (options) => Object.fromEntries(Object.entries(options).filter(([, value]) => value !== "" && value !== -1 && value !== 0 && value !== false && !(Array.isArray(value) && !value.length)));

function headersOf(text) {
  return text.split("\n").filter((line) => line.trim()).map((line) => {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`Headers: ${line} is not Name: value`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
}

export const actions = {
  createStream: () => button("Create stream", () => change({
    title: "Create stream", kind: "stream.create", quick: "Create", fields: streamFields(true), values: { storage: "file", retention: "limits", discard: "old" },
    wanted: ({ stream, ...options }) => ({ stream, options: withMore(said(options)) }),
  }), "primary"),

  stream(page) {
    const { name, config } = page;
    const simple = (title, kind, extra = {}) => button(title, () => change({ title: `${title} ${name}`, kind, wanted: () => ({ stream: name }), ...extra }), kind === "stream.delete" ? "danger" : "");
    return session.may_change && [
      button("Edit", () => change({
        title: `Edit stream ${name}`, kind: "stream.edit", fields: streamFields(false), values: config,
        wanted: (_, changed) => ({ stream: name, options: withMore(changed) }),
      })),
      button("Add consumer", () => change({
        title: `Create consumer on ${name}`, kind: "consumer.create", quick: "Create", fields: consumerFields(true), values: { ack_policy: "explicit", deliver_policy: "all" },
        wanted: ({ consumer, ...options }) => ({ stream: name, consumer, options: withMore(said(options)) }),
      })),
      button("Purge", () => change({
        title: `Purge stream ${name}`, kind: "stream.purge",
        fields: [{ name: "subject", label: "Only this subject", hint: "all" }, { name: "before", label: "Only messages before sequence", kind: "number", hint: "all" }, { name: "keep", label: "Keep the newest", kind: "number", hint: "none" }],
        wanted: (values) => ({ stream: name, ...said(values) }),
      })),
      simple("Seal", "stream.seal"),
      simple("Back up", "stream.backup"),
      simple("Delete", "stream.delete", { done: () => { location.hash = "#/"; } }),
    ];
  },

  consumer(page) {
    const { stream, name, config } = page;
    const where = { stream, consumer: name };
    const simple = (title, kind, extra = {}) => button(title, () => change({ title: `${title} ${name}`, kind, wanted: () => where, ...extra }), kind === "consumer.delete" ? "danger" : "");
    return session.may_change && [
      button("Edit", () => change({
        title: `Edit consumer ${name}`, kind: "consumer.edit", fields: consumerFields(false),
        values: { ...config, filter_subjects: config.filter_subjects?.length ? config.filter_subjects : [config.filter_subject].filter(Boolean) },
        wanted: (_, { filter_subjects: filters, ...changed }) => ({ ...where, options: withMore({ ...changed, ...(filters && { filter_subjects: filters, ...(config.filter_subject && { filter_subject: "" }) }) }) }),
      })),
      page.paused ? button("Resume", () => once({ title: `Resume ${name}`, kind: "consumer.resume", wanted: () => where })) : button("Pause", () => change({
        title: `Pause ${name}`, kind: "consumer.pause", quick: "Pause", fields: [{ name: "seconds", label: "Pause for", kind: "duration", required: true, hint: "1h" }], values: { seconds: 3600e9 },
        wanted: ({ seconds }) => ({ ...where, seconds }),
      })),
      button("Reset", () => change({
        title: `Reset ${name}`, kind: "consumer.reset", fields: [{ name: "sequence", label: "Resume at sequence", kind: "number", hint: "after the ack floor" }],
        wanted: (values) => ({ ...where, ...said(values) }),
      })),
      page.priority_groups.length > 0 && simple("Unpin", "consumer.unpin"),
      simple("Delete", "consumer.delete", { done: () => { location.hash = streamPath(stream); } }),
    ];
  },

  publish: (subject, done) => button("Publish", () => change({
    title: "Publish a message", kind: "message.publish", quick: "Publish", values: { subject },
    fields: [{ name: "subject", label: "Subject", required: true, hint: "orders.new" }, { name: "headers", label: "Headers, one a line", kind: "lines", rows: 2, hint: "Kind: order" }, { name: "payload", label: "Payload", kind: "lines", rows: 6 }],
    wanted: (values) => ({ subject: values.subject, payload: encode(values.payload), headers: headersOf(values.headers) }), done,
  }), "primary"),

  message: (stream, message, deleted) => session.may_change && [
    button("Publish again", () => once({ title: "Publish again", kind: "message.again", wanted: () => ({ stream, sequence: message.seq }) })),
    button("Delete", () => change({ title: "Delete message", kind: "message.delete", wanted: () => ({ stream, sequence: message.seq }), done: deleted }), "danger"),
  ],
};

const storeFields = (isBucket) => [
  { name: "bucket", label: "Name", required: true, hint: isBucket ? "SETTINGS" : "FILES" },
  isBucket && { name: "history", label: "Values kept of each key, 1 to 64", kind: "number", hint: "1" },
  { name: "ttl", label: "TTL", kind: "duration", hint: "none, or 7d" },
  { name: "max_bytes", label: "Maximum size", kind: "size", hint: "unlimited, or 1GB" },
  { name: "storage", label: "Storage", kind: "choice", choices: ["file", "memory"] },
  { name: "description", label: "Description" },
].filter(Boolean);
// A change has to fit into one request, in base64.
const UPLOAD_MAX = 1024 * 1024;

async function upload(bucket, input, done) {
  const [file] = input.files;
  input.value = "";
  if (!file) return;
  if (file.size > UPLOAD_MAX) {
    show(`${file.name} is too large for this page`, () => [make("p", {}, `It has ${bytes(file.size)}; up to ${bytes(UPLOAD_MAX)} are uploaded here. The command takes any size:`),
      make("pre", { tabindex: "0" }, `jetlake object put ${bucket} FILE`)], "Close");
    return;
  }
  const content = btoa(Array.from(new Uint8Array(await file.arrayBuffer()), (byte) => String.fromCharCode(byte)).join(""));
  once({ title: `Upload ${file.name}`, kind: "object.put", wanted: () => ({ bucket, name: file.name, content }), done });
}

/** Restores a stream from a file; it is sent once, also when another name is tried. */
function restore(input) {
  const [file] = input.files;
  input.value = "";
  if (!file) return;
  let upload = "";
  change({
    title: `Restore ${file.name}`,
    fields: [{ name: "name", label: "Name of the stream", hint: "the name in the backup" }, { name: "subjects", label: "Subjects, separated by commas", kind: "list", hint: "those in the backup" }],
    wanted: said,
    prepare: async (given, say) => {
      if (!upload) {
        const sent = await sendFile(file, (share) => say(`Sending ${file.name}: ${Math.round(100 * share)} %`));
        if (sent.error) return sent;
        ({ upload } = sent);
      }
      say("");
      return post("api/restores", { upload, ...given });
    },
  });
}

Object.assign(actions, {
  restoreStream: () => session.may_change && make("label", { class: "button upload" }, "Restore",
    make("input", { type: "file", accept: ".tar", "aria-label": "Restore a stream from the tar file of a backup", onchange: (event) => restore(event.currentTarget) })),
  createBucket: () => button("Create bucket", () => change({
    title: "Create key-value bucket", kind: "bucket.create", quick: "Create", fields: storeFields(true), values: { storage: "file" }, wanted: said,
  }), "primary"),
  createStore: () => button("Create object store", () => change({
    title: "Create object store", kind: "store.create", quick: "Create", fields: storeFields(false), values: { storage: "file" }, wanted: said,
  }), "primary"),
  upload: (bucket, done) => session.may_change && make("label", { class: "button primary upload" }, "Upload",
    make("input", { type: "file", onchange: (event) => upload(bucket, event.currentTarget, done) })),
  putKey: (bucket, done, key = "", value = "") => button(key ? "Edit" : "Put a key", () => change({
    title: key ? `Edit ${key}` : `Put a key in ${bucket}`, kind: "key.put", quick: "Save", values: { key, value },
    fields: [!key && { name: "key", label: "Key", required: true }, { name: "value", label: "Value", kind: "lines", rows: 8 }].filter(Boolean),
    wanted: (values) => ({ bucket, key: key || values.key, value: encode(values.value) }), done,
  }), key ? "" : "primary"),
  key: (bucket, key, value, done) => session.may_change && [
    actions.putKey(bucket, done, key, value ?? ""),
    button("Delete", () => change({ title: `Delete ${key}`, kind: "key.delete", wanted: () => ({ bucket, key }), done }), "danger"),
    button("Purge", () => change({ title: `Purge ${key}`, kind: "key.purge", wanted: () => ({ bucket, key }), done }), "danger"),
  ],
  deleteObject: (bucket, name, done) => button("Delete", () => change({ title: `Delete ${name}`, kind: "object.delete", wanted: () => ({ bucket, name }), done }), "danger"),
  deleteMessage: (stream, sequence, done) => button("Delete", () => change({ title: "Delete message", kind: "message.delete", wanted: () => ({ stream, sequence }), done }), "danger"),
  replay: (stream, first, last, title, done) => button(title, () => change({ title, kind: "letters.replay", wanted: () => ({ stream, first, last }), done })),
});

/** Who is logged in, in the header. changed: called when that is somebody else. */
export function drawWho(changed) {
  const who = document.getElementById("who");
  who.replaceChildren(...(session.user !== null
    ? [make("span", {}, session.user, " ", make("span", { class: "tag" }, session.may_change ? "can change" : "read-only")),
      make("button", { type: "button", onclick: async () => { await logout(); changed(); } }, "Log out")]
    : session.needs_login ? [] : session.can_login ? [make("button", { type: "button", onclick: () => show("Log in", (close) => loginForm(() => { close(); changed(); })) }, "Log in")]
      : [make("button", { type: "button", class: "link", onclick: () => show("This page is read-only", () => [
        make("p", {}, "Changes are made as a user of the NATS server, within that user's permissions, and this page has no login."),
        make("p", {}, "Configure users on the server, or start a dashboard with a login: "), make("pre", { tabindex: "0" }, "jetlake dashboard --login")], "Close") }, "read-only: why?")]));
}
