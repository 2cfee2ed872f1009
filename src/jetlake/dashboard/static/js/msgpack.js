// Reads MessagePack. Throws when the bytes are not exactly one value.

const text = new TextDecoder("utf-8", { fatal: true });
const DEPTH_MAX = 64;

export function decodeMessagePack(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;

  const take = (length) => {
    if (at + length > bytes.length) throw new RangeError("the value is cut off");
    at += length;
    return at - length;
  };
  const string = (length) => text.decode(bytes.subarray(take(length), at));
  const hex = (length) => [...bytes.subarray(take(length), at)].map((one) => one.toString(16).padStart(2, "0")).join("");
  const whole = (value) => (value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER ? Number(value) : String(value));
  const list = (length, depth) => {
    if (length > bytes.length - at) throw new RangeError("the list is cut off");
    return Array.from({ length }, () => value(depth + 1));
  };
  const map = (length, depth) => {
    if (length > bytes.length - at) throw new RangeError("the map is cut off");
    const pairs = Array.from({ length }, () => {
      const key = value(depth + 1);
      return [typeof key === "string" ? key : JSON.stringify(key), value(depth + 1)];
    });
    return Object.fromEntries(pairs);
  };
  const extension = (length) => ({ extension: view.getInt8(take(1)), data: hex(length) });

  // By the first byte, from 0xc0 on; those below are told apart by their upper bits.
  const kinds = {
    0xc0: () => null, 0xc2: () => false, 0xc3: () => true,
    0xc4: () => hex(view.getUint8(take(1))), 0xc5: () => hex(view.getUint16(take(2))), 0xc6: () => hex(view.getUint32(take(4))),
    0xc7: () => extension(view.getUint8(take(1))), 0xc8: () => extension(view.getUint16(take(2))), 0xc9: () => extension(view.getUint32(take(4))),
    0xca: () => view.getFloat32(take(4)), 0xcb: () => view.getFloat64(take(8)),
    0xcc: () => view.getUint8(take(1)), 0xcd: () => view.getUint16(take(2)), 0xce: () => view.getUint32(take(4)), 0xcf: () => whole(view.getBigUint64(take(8))),
    0xd0: () => view.getInt8(take(1)), 0xd1: () => view.getInt16(take(2)), 0xd2: () => view.getInt32(take(4)), 0xd3: () => whole(view.getBigInt64(take(8))),
    0xd4: () => extension(1), 0xd5: () => extension(2), 0xd6: () => extension(4), 0xd7: () => extension(8), 0xd8: () => extension(16),
    0xd9: () => string(view.getUint8(take(1))), 0xda: () => string(view.getUint16(take(2))), 0xdb: () => string(view.getUint32(take(4))),
    0xdc: (depth) => list(view.getUint16(take(2)), depth), 0xdd: (depth) => list(view.getUint32(take(4)), depth),
    0xde: (depth) => map(view.getUint16(take(2)), depth), 0xdf: (depth) => map(view.getUint32(take(4)), depth),
  };

  function value(depth) {
    if (depth > DEPTH_MAX) throw new RangeError("nested too deeply");
    const first = view.getUint8(take(1));
    if (first < 0x80) return first;
    if (first < 0x90) return map(first & 0x0f, depth);
    if (first < 0xa0) return list(first & 0x0f, depth);
    if (first < 0xc0) return string(first & 0x1f);
    if (first >= 0xe0) return first - 0x100;
    const kind = kinds[first];
    if (!kind) throw new RangeError("not MessagePack");
    return kind(depth);
  }

  const result = value(0);
  if (at !== bytes.length) throw new RangeError("there is more after the value");
  return result;
}
