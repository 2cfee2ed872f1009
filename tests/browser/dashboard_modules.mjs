// The pure modules of the pages, under Node: copied beside this file by the test that runs it.

import assert from "node:assert/strict";
import { decoded, preview } from "./js/decode.js";
import { bytes, count, duration, moment, path, short } from "./js/format.js";
import { decodeMessagePack } from "./js/msgpack.js";
import { durationText, parseDuration, parseSize, sizeText } from "./js/units.js";
import { roundUp, runs, timeTicks, top } from "./js/scale.js";

const hex = (text) => Uint8Array.from(text.match(/../g) ?? [], (one) => parseInt(one, 16));
const utf8 = (text) => new TextEncoder().encode(text);

// Axes end at round numbers.
assert.deepEqual([0, 0.3, 1, 1.2, 37, 100, 340, 7001].map(roundUp), [1, 0.5, 1, 2, 50, 100, 500, 10000]);

// One spike is cut, and the rest is not pressed to the ground; what is high for long is not a spike.
const calm = Array.from({ length: 149 }, (_, index) => 90 + index % 10);
assert.deepEqual(top([...calm, 100_000]), { top: 200, isCut: true });
assert.deepEqual(top(calm), { top: 100, isCut: false });
assert.deepEqual(top([...calm.slice(0, 75), ...Array(75).fill(100_000)]), { top: 100_000, isCut: false });
assert.deepEqual(top([null, null]), { top: 1, isCut: false });
assert.deepEqual(top([0, 0, 5]), { top: 5, isCut: false });

// Lines are broken where nothing was sampled.
assert.deepEqual(runs([null, 1, 2, null, null, 3]), [[1, 2], [5]]);
assert.deepEqual(runs([null]), []);

// Times of the axis are whole minutes or hours within the range.
for (const [length, most] of [[300, 4], [3600, 4], [21600, 4], [86400, 4], [604800, 7]]) {
  const ticks = timeTicks(1_000_000_007, 1_000_000_007 + length, most);
  assert.ok(ticks.length >= 2 && ticks.length <= most + 1, `${length}: ${ticks.length}`);
  assert.ok(ticks.every((time) => time >= 1_000_000_007 && time <= 1_000_000_007 + length && time % 60 === 0));
}

// MessagePack: every kind, and nothing that is cut, nested without end, or followed by more.
const packed = [
  ["c0", null], ["c2", false], ["c3", true], ["7f", 127], ["e0", -32], ["cc80", 128], ["cd0100", 256], ["ce00010000", 65536],
  ["cf0000000100000000", 4294967296], ["cfffffffffffffffff", "18446744073709551615"], ["d0df", -33], ["d1ff00", -256], ["d2ffff0000", -65536],
  ["d3ffffffff00000000", -4294967296], ["ca3fc00000", 1.5], ["cb3ff8000000000000", 1.5], ["a0", ""], ["a568656c6c6f", "hello"],
  ["d90568656c6c6f", "hello"], ["da000568656c6c6f", "hello"], ["db0000000568656c6c6f", "hello"], ["c403010203", "010203"],
  ["93010203", [1, 2, 3]], ["dc0001c0", [null]], ["dd00000001c0", [null]], ["82a1610180c0", { a: 1, "{}": null }],
  ["de0001a16101", { a: 1 }], ["df00000001a16101", { a: 1 }], ["d6ff00000001", { extension: -1, data: "00000001" }], ["c70205aabb", { extension: 5, data: "aabb" }],
];
for (const [bytes, value] of packed) assert.deepEqual(decodeMessagePack(hex(bytes)), value, bytes);
for (const bad of ["", "c1", "a5", "93 01".replace(" ", ""), "c0c0", "ddffffffff", "dfffffffff", "91".repeat(100) + "c0", "a1ff"]) {
  assert.throws(() => decodeMessagePack(hex(bad)), bad);
}

// A payload is shown as what it is.
assert.equal(decoded(utf8('{"id": 7}'), "auto").form, "json");
assert.equal(decoded(utf8("hello\tthere"), "auto").form, "text");
assert.deepEqual(decoded(hex("82a26964cd1234a46e616d65a5616c696365"), "auto"), { form: "msgpack", text: '{\n  "id": 4660,\n  "name": "alice"\n}' });
assert.equal(decoded(hex("0809ff"), "auto").text, "000000  08 09 ff" + " ".repeat(39) + "  ...");
assert.equal(decoded(hex("07"), "auto").form, "hex");
assert.equal(decoded(utf8("x"), "json").text, "(not JSON)");
assert.equal(decoded(utf8("hello"), "msgpack").text, "(not MessagePack)");
assert.equal(decoded(hex("ff41"), "text").text, "\ufffdA");
assert.equal(preview(utf8('{"a":\n 1}')), '{ "a": 1 }');
assert.equal(preview(utf8("x".repeat(500))).length, 161);
assert.equal(preview(new Uint8Array()), "");

// Numbers and names as people read them.
assert.deepEqual([moment(""), moment("0001-01-01T00:00:00Z"), moment("soon")], ["never", "never", "soon"]);
assert.deepEqual([count(33949), short(33949), short(3394.96), bytes(1536), bytes(0), duration(0.25), duration(90), duration(600), duration(90000)],
  ["33,949", "33.9K", "3,395", "1.5 KiB", "0 B", "250 ms", "90 s", "10 min", "25 h"]);
assert.equal(path("streams", "a/b c"), "#/streams/a%2Fb%20c");

// Durations and sizes as people type them.
assert.deepEqual(["7d", "12h", "90s", "250ms", "5 m", "30", "1.5h"].map(parseDuration), [604800, 43200, 90, 0.25, 300, 30, 5400]);
assert.deepEqual([0, 90e9, 3600e9, 604800e9, 25e7].map(durationText), ["", "90s", "1h", "7d", "250ms"]);
assert.deepEqual(["1GB", "512 KiB", "10", "-1", "2m"].map(parseSize), [1073741824, 524288, 10, -1, 2097152]);
assert.deepEqual([1073741824, 1536, 10, -1].map(sizeText), ["1GiB", "1536", "10", ""]);
for (const bad of ["soon", "1x", "", "-5s", "1h30m"]) assert.ok(Number.isNaN(parseDuration(bad)), bad);
for (const bad of ["much", "1XB", "-5"]) assert.ok(Number.isNaN(parseSize(bad)), bad);
console.log("ok");
