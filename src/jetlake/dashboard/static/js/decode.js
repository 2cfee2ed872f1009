// Payloads as people read them: JSON, text, hex, MessagePack.

import { decodeMessagePack } from "./msgpack.js";

export const FORMS = ["auto", "json", "text", "hex", "msgpack", "schema"];

export const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

function asText(data) {
  try { return new TextDecoder("utf-8", { fatal: true }).decode(data); } catch { return null; }
}

/** Text that a person can read has no control characters but tabs and line ends. */
export const isReadable = (text) => text !== null && !/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/.test(text);

export function hex(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.subarray(at, at + 16)];
    lines.push(`${at.toString(16).padStart(6, "0")}  ${row.map((one) => one.toString(16).padStart(2, "0")).join(" ").padEnd(47)}  `
      + row.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : ".")).join(""));
  }
  return lines.join("\n");
}

const indented = (value) => JSON.stringify(value, null, 2);

const forms = {
  json: (data) => { try { return indented(JSON.parse(asText(data) ?? "")); } catch { return null; } },
  text: (data) => new TextDecoder().decode(data),
  hex,
  msgpack: (data) => { try { return indented(decodeMessagePack(data)); } catch { return null; } },
};

/** The payload in a form, and which that is. `auto` takes the first that fits. */
export function decoded(data, form) {
  if (form !== "auto" && form !== "schema") {
    const text = forms[form](data);
    return { form, text: text ?? `(not ${form === "json" ? "JSON" : "MessagePack"})` };
  }
  const json = forms.json(data);
  if (json !== null) return { form: "json", text: json };
  const text = asText(data);
  if (isReadable(text)) return { form: "text", text };
  // A single small number is MessagePack too, and tells nobody anything.
  const packed = data.length > 1 ? forms.msgpack(data) : null;
  if (packed !== null && /^[{[]/.test(packed)) return { form: "msgpack", text: packed };
  return { form: "hex", text: hex(data) };
}

/** One line for a list. */
export function preview(data, length = 160) {
  const { form, text } = decoded(data.subarray(0, 4 * length), "auto");
  const line = form === "hex" ? [...data.subarray(0, 32)].map((one) => one.toString(16).padStart(2, "0")).join(" ") : text.replace(/\s+/g, " ");
  return line.length > length ? `${line.slice(0, length)}…` : line;
}
