// Data of the page: messages as clusim.report.message packs them, embedded or fetched by window.

const ARRAYS = { uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, int32: Int32Array, float64: Float64Array };

function unpack(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const message = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  for (const column of message.columns) {
    message[column.name] = new ARRAYS[column.type](buffer, 4 + size + column.offset, column.count);
  }
  return message;
}

async function embedded(id) {
  const element = document.getElementById(id);
  if (!element) return null;
  const bytes = Uint8Array.from(atob(element.textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return unpack(await new Response(stream).arrayBuffer());
}

// One object with the same three queries for a report (from memory) and for `clusim view` (from the server).
function dataSource(live) {
  const memory = {};
  const ask = async (what, from, until, columns) => {
    if (!live) return (memory[what] ||= await embedded("data-" + what));
    const query = new URLSearchParams({ from: Math.floor(from), until: Math.ceil(until), columns });
    const answer = await fetch(`data/${what}?${query}`);
    if (!answer.ok) throw new Error(`${what}: the server answered ${answer.status}`);
    return unpack(await answer.arrayBuffer());
  };
  return {
    overview: () => ask("overview", 0, 0, 0),
    wires: (from, until, columns) => ask("wires", from, until, columns),
    lines: (from, until, columns) => ask("lines", from, until, columns),
    tasks: (from, until, columns) => ask("tasks", from, until, columns),
    steps: (from, until, columns) => ask("steps", from, until, columns),
  };
}

const TIME_UNITS = [["s", 1e12], ["ms", 1e9], ["us", 1e6], ["ns", 1e3], ["ps", 1]];

function timeUnit(ps) {
  return TIME_UNITS.find(([, scale]) => Math.abs(ps) >= scale) || TIME_UNITS[4];
}

function showTime(ps) {
  const [unit, scale] = timeUnit(ps);
  const value = ps / scale;
  return `${value >= 1000 ? value.toFixed(0) : Number(value.toPrecision(4))} ${unit}`;
}

function showSize(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (bytes >= 1024 && place < units.length - 1) { bytes /= 1024; place += 1; }
  return `${place && bytes < 1000 ? Number(bytes.toPrecision(4)) : Math.round(bytes)} ${units[place]}`;
}

// A rate in bytes/s, and the rate after faults.
function showRate(nominal, effective) {
  const shown = (rate) => Number((rate / 1e9).toPrecision(4));
  return `${shown(effective) < shown(nominal) ? `${shown(effective)} of ` : ""}${shown(nominal)} GB/s`;
}

const showPart = (part) => `${(100 * part).toFixed(1)} %`;

// Round times for an axis: at most `count` between two times.
function ticks(from, until, count) {
  const rough = (until - from) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-9)));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let t = Math.ceil(from / step) * step; t <= until + step * 1e-6; t += step) found.push(t);
  return found;
}

// Index of the column of `edges` that holds `time`.
function columnAt(edges, time) {
  let low = 0;
  let high = edges.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (edges[middle] <= time) low = middle; else high = middle - 1;
  }
  return Math.max(0, low);
}
