// Durations and sizes as people type them.

const SECONDS = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86400 };
const BYTES = { "": 1, b: 1, k: 1024, kb: 1024, kib: 1024, m: 1024 ** 2, mb: 1024 ** 2, mib: 1024 ** 2, g: 1024 ** 3, gb: 1024 ** 3, gib: 1024 ** 3, t: 1024 ** 4, tb: 1024 ** 4, tib: 1024 ** 4 };

/** Seconds of a text such as 7d, 12h, 90s or 250ms; a bare number is seconds. NaN for anything else. */
export function parseDuration(text) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(ms|[smhd])?\s*$/.exec(text);
  return found ? Number(found[1]) * SECONDS[found[2] ?? "s"] : NaN;
}

/** The shortest text of a duration in nanoseconds. */
export function durationText(nanoseconds) {
  const seconds = (nanoseconds ?? 0) / 1e9;
  for (const unit of ["d", "h", "m", "s"]) {
    if (seconds && seconds % SECONDS[unit] === 0) return `${seconds / SECONDS[unit]}${unit}`;
  }
  return seconds ? `${seconds * 1000}ms` : "";
}

/** Bytes of a text such as 1GB or 512 KiB, -1 for no limit. NaN for anything else. */
export function parseSize(text) {
  if (text.trim() === "-1") return -1;
  const found = /^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(text);
  return found ? Math.round(Number(found[1]) * (BYTES[found[2].toLowerCase()] ?? NaN)) : NaN;
}

export const sizeText = (bytes) => {
  for (const [unit, factor] of [["GiB", 1024 ** 3], ["MiB", 1024 ** 2], ["KiB", 1024]]) {
    if (bytes > 0 && bytes % factor === 0) return `${bytes / factor}${unit}`;
  }
  return bytes > 0 ? String(bytes) : "";
};
