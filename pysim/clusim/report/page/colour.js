// Colours. Loads use one scale of growing contrast to the page, readable without colour vision.

const SCALES = {
  light: ["#eceae6", "#fbdfae", "#f9b66a", "#ee8549", "#d5503f", "#a82a55", "#6f1560", "#34094a"],
  dark: ["#272a34", "#3d1d5e", "#6b2173", "#a02c74", "#d34465", "#f2704f", "#fba95a", "#fdeaae"],
};

function channels(hex) {
  return [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
}

// Return 256 colours as bytes, and as text.
function colourTable(theme) {
  const stops = SCALES[theme].map(channels);
  const bytes = new Uint8ClampedArray(256 * 4);
  const text = [];
  for (let value = 0; value < 256; value += 1) {
    const place = (value / 255) * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(place));
    const mix = stops[low].map((c, i) => Math.round(c + (stops[low + 1][i] - c) * (place - low)));
    bytes.set([...mix, 255], value * 4);
    text.push(`rgb(${mix.join(",")})`);
  }
  return { bytes, text, css: `linear-gradient(90deg, ${SCALES[theme].join(", ")})` };
}

function cssColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Fit a canvas to its size on the page and return its context, in units of CSS pixels.
function context(canvas, height, letters = 12) {
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const draw = canvas.getContext("2d");
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw.font = `${letters}px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif`;
  return { draw, width, height };
}

// Cut `text` with an ellipsis so that it fits `room`.
function fitText(draw, text, room) {
  if (draw.measureText(text).width <= room) return text;
  let length = text.length;
  while (length > 1 && draw.measureText(`${text.slice(0, length)}…`).width > room) length -= 1;
  return `${text.slice(0, length)}…`;
}

// The time axis below a plot: ticks from `left` on, `width` wide, at height `y`.
function timeAxis(draw, left, width, y, from, until) {
  const [unit, scale] = timeUnit(until);
  draw.strokeStyle = cssColour("rule");
  draw.fillStyle = cssColour("soft");
  draw.textAlign = "center";
  draw.textBaseline = "top";
  const marks = ticks(from / scale, until / scale, Math.max(2, width / 110));
  const digits = marks.length > 1 ? Math.max(0, -Math.floor(Math.log10(marks[1] - marks[0]) + 1e-9)) : 0;
  for (const mark of marks) {
    const x = left + ((mark * scale - from) / (until - from)) * width;
    draw.beginPath();
    draw.moveTo(x, y);
    draw.lineTo(x, y + 4);
    draw.stroke();
    const text = `${mark.toFixed(digits)} ${unit}`;
    const half = draw.measureText(text).width / 2;
    draw.fillText(text, Math.min(Math.max(x, left + half - 8), left + width - half), y + 6);
  }
}
