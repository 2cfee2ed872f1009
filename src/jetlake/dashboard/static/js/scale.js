// The arithmetic of charts: what the axes show, where lines are broken, and which spikes are cut.

/** A round number at or above the value: 1, 2 or 5 times a power of ten. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * (1 - 1e-9));
}

/**
 * The top of the value axis. A few values far above all others would press the rest to the ground: then the axis ends
 * above the rest, and `isCut` says that the spikes reach beyond it.
 */
export function top(values) {
  const known = values.filter((value) => value !== null && value !== undefined).sort((one, other) => one - other);
  if (!known.length) return { top: 1, isCut: false };
  const highest = known.at(-1);
  const most = known[Math.floor((known.length - 1) * 0.95)];
  if (known.length >= 20 && most > 0 && highest > most * 4) return { top: roundUp(most * 1.5), isCut: true };
  return { top: roundUp(highest), isCut: false };
}

/** The runs of known values, as lists of indexes: between them the line is broken. */
export function runs(values) {
  const found = [];
  let run = null;
  values.forEach((value, index) => {
    if (value === null || value === undefined) { run = null; return; }
    if (!run) found.push(run = []);
    run.push(index);
  });
  return found;
}

/** Times for the axis: a handful of whole minutes, hours or days of the reader's own clock, oldest first. */
export function timeTicks(start, end, most = 6) {
  const steps = [60, 120, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800];
  const step = steps.find((one) => (end - start) / one <= most) ?? steps.at(-1);
  const shift = new Date(start * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let time = Math.ceil((start - shift) / step) * step + shift; time <= end; time += step) ticks.push(time);
  return ticks;
}
