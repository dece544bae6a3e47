// The two plots over time, which share window, cursor and pointer: wires as a heatmap, tasks as a timeline.

// Space for names, less on a phone.
const leftRoom = () => (window.innerWidth < 520 ? 108 : 168);
let LEFT = leftRoom();
const AXIS = 24;

// Common part of both plots: a time window, dragging to zoom, a cursor, keys.
class TimePlot {
  constructor(canvas, state, tip) {
    Object.assign(this, { canvas, state, tip, drag: null });
    canvas.tabIndex = 0;
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointerleave", () => { tip.hide(); });
    canvas.addEventListener("dblclick", () => state.show(0, state.time));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      state.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.timeAt(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  get right() { return (this.canvas.clientWidth || LEFT + 1) - 2; }

  xOf(time) {
    const { from, until } = this.state;
    return LEFT + ((time - from) / (until - from)) * (this.right - LEFT);
  }

  timeAt(x) {
    const { from, until } = this.state;
    const part = (x - LEFT) / (this.right - LEFT);
    return from + Math.min(1, Math.max(0, part)) * (until - from);
  }

  down(event) {
    if (event.button) return;
    this.drag = { x: event.offsetX, now: event.offsetX };
    this.canvas.setPointerCapture(event.pointerId);
  }

  move(event) {
    if (this.drag) {
      this.drag.now = event.offsetX;
      if (Math.abs(this.drag.now - this.drag.x) > 4) { this.tip.hide(); this.draw(); return; }
    }
    this.hover(event);
  }

  up(event) {
    const drag = this.drag;
    this.drag = null;
    if (!drag) return;
    if (Math.abs(event.offsetX - drag.x) > 4) {
      const ends = [this.timeAt(drag.x), this.timeAt(event.offsetX)].sort((a, b) => a - b);
      this.state.show(ends[0], ends[1]);
    } else {
      this.pick(event);
    }
  }

  key(event) {
    const { state } = this;
    const span = state.until - state.from;
    const at = state.cursor ?? (state.from + state.until) / 2;
    const moves = { ArrowLeft: -span / 100, ArrowRight: span / 100 };
    if (event.key in moves) state.moveCursor(at + moves[event.key] * (event.shiftKey ? 10 : 1));
    else if (event.key === "+" || event.key === "=") state.zoom(0.5, at);
    else if (event.key === "-") state.zoom(2, at);
    else if (event.key === "0" || event.key === "Home") state.show(0, state.time);
    else if (event.key === "Escape") state.moveCursor(null);
    else if (!this.otherKey(event)) return;
    event.preventDefault();
  }

  otherKey() { return false; }

  // Selection being dragged, and the cursor, above all else.
  overlay(draw, bottom) {
    const { cursor, from, until } = this.state;
    if (this.drag && Math.abs(this.drag.now - this.drag.x) > 4) {
      draw.fillStyle = cssColour("accent");
      draw.globalAlpha = 0.25;
      draw.fillRect(Math.min(this.drag.x, this.drag.now), 0, Math.abs(this.drag.now - this.drag.x), bottom);
      draw.globalAlpha = 1;
    }
    if (cursor !== null && cursor >= from && cursor <= until) {
      draw.fillStyle = cssColour("mark");
      draw.fillRect(this.xOf(cursor) - 0.75, 0, 1.5, bottom);
    }
  }
}

class Heatmap extends TimePlot {
  constructor(canvas, state, tip, overview) {
    super(canvas, state, tip);
    this.rows = overview.rows;
    this.order = [];
    this.image = document.createElement("canvas");
  }

  // Rows of the selected class or kind of links, in the selected order.
  arrange(wanted, byLoad) {
    const all = this.rows.labels.map((_, i) => i)
      .filter((i) => !wanted || this.rows.classes[i] === wanted || this.rows.classes[i].startsWith(`${wanted} `));
    if (byLoad) all.sort((a, b) => this.rows.busiest[b] - this.rows.busiest[a] || a - b);
    this.order = all;
    this.byLoad = byLoad;
    this.tall = Math.min(18, Math.max(1.5, 560 / Math.max(1, all.length)));
    // Classes of few wires, such as those of NICs, get visible rows.
    const counts = new Map();
    const kind = (row) => (byLoad ? "" : this.rows.classes[row]);
    for (const row of all) counts.set(kind(row), (counts.get(kind(row)) || 0) + 1);
    const tall = (row) => Math.max(this.tall, Math.min(18, 32 / counts.get(kind(row))));
    this.edges = [0];
    for (const row of all) this.edges.push(this.edges.at(-1) + tall(row));
  }

  draw() {
    const { data, measure, colours, from, until } = this.state;
    const bottom = Math.ceil(this.edges.at(-1));
    const { draw } = context(this.canvas, bottom + AXIS);
    const values = data && (data[measure] || data.load);
    if (values) this.cells(draw, data, values, colours, bottom);
    this.names(draw, bottom);
    timeAxis(draw, LEFT, this.right - LEFT, bottom + 1, from, until);
    const place = this.order.indexOf(this.state.chosen.row);
    if (place >= 0) {
      draw.strokeStyle = cssColour("mark");
      draw.lineWidth = 1.5;
      const [top, next] = this.edges.slice(place, place + 2);
      draw.strokeRect(LEFT - 1, top - 0.75, this.right - LEFT + 2, Math.max(3, next - top) + 1.5);
      draw.lineWidth = 1;
    }
    this.overlay(draw, bottom);
  }

  cells(draw, data, values, colours, bottom) {
    const columns = data.edges.length - 1;
    const { image, order } = this;
    image.width = Math.max(1, columns);
    image.height = Math.max(1, order.length);
    const paint = image.getContext("2d");
    const pixels = paint.createImageData(image.width, image.height);
    const words = new Uint32Array(pixels.data.buffer);
    const table = new Uint32Array(colours.bytes.buffer);
    for (let y = 0; y < order.length; y += 1) {
      const base = order[y] * columns;
      for (let x = 0; x < columns; x += 1) words[y * columns + x] = table[values[base + x]];
    }
    paint.putImageData(pixels, 0, 0);
    const first = this.xOf(data.edges[0]);
    // All columns have the same width except the last, which ends with the run.
    const regular = columns > 1 ? data.edges[1] - data.edges[0] : data.edges[1];
    const last = this.xOf(data.edges[0] + regular * columns);
    draw.save();
    draw.beginPath();
    draw.rect(LEFT, 0, Math.min(this.right, this.xOf(this.state.time)) - LEFT, bottom);
    draw.clip();
    draw.imageSmoothingEnabled = false;
    // Runs of rows of one height at once.
    const { edges } = this;
    for (let low = 0; low < order.length;) {
      const tall = edges[low + 1] - edges[low];
      let high = low + 1;
      while (high < order.length && Math.abs(edges[high + 1] - edges[high] - tall) < 1e-6) high += 1;
      draw.drawImage(image, 0, low, columns, high - low, first, edges[low], last - first, edges[high] - edges[low]);
      low = high;
    }
    draw.restore();
  }

  // Names of rows if there is room, else one name for each class with a line between them.
  names(draw, bottom) {
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    draw.fillStyle = cssColour("soft");
    const classes = this.rows.classes;
    if (this.tall >= 11) {
      this.order.forEach((row, i) => draw.fillText(fitText(draw, this.rows.labels[row], LEFT - 16), LEFT - 8, (this.edges[i] + this.edges[i + 1]) / 2));
      return;
    }
    if (this.byLoad) {
      draw.fillText("fullest", LEFT - 8, 8);
      draw.fillText("emptiest", LEFT - 8, bottom - 8);
      return;
    }
    const sections = [];
    let start = 0;
    for (let i = 1; i <= this.order.length; i += 1) {
      if (i < this.order.length && classes[this.order[i]] === classes[this.order[start]]) continue;
      const words = classes[this.order[start]].split(" ");
      const ends = words.pop().replace("->", " → ");
      const lines = this.edges[i] - this.edges[start] > 30 ? [words.join(" "), ends] : [`${words.join(" ")} ${ends}`];
      sections.push({ lines, room: 15 * lines.length, y: (this.edges[start] + this.edges[i]) / 2 });
      draw.fillStyle = cssColour("faint");
      if (i < this.order.length) draw.fillRect(8, this.edges[i] - 0.5, this.right - 8, 1);
      start = i;
    }
    // Names of flat sections move apart: down from the top, and up again at the bottom.
    const low = this.canvas.clientHeight || bottom;
    sections.forEach((own, i) => {
      const before = sections[i - 1];
      own.y = Math.max(own.y, before ? before.y + (before.room + own.room) / 2 : own.room / 2);
    });
    for (let i = sections.length - 1; i >= 0; i -= 1) {
      const after = sections[i + 1];
      sections[i].y = Math.min(sections[i].y, after ? after.y - (after.room + sections[i].room) / 2 : low - sections[i].room / 2);
    }
    draw.fillStyle = cssColour("soft");
    for (const { lines, y } of sections) {
      lines.forEach((text, i) => draw.fillText(fitText(draw, text, LEFT - 12), LEFT - 8, y + (i - (lines.length - 1) / 2) * 15));
    }
  }

  at(event) {
    const place = event.offsetY < 0 ? -1 : this.edges.findIndex((edge) => edge > event.offsetY) - 1;
    return place >= 0 ? this.order[place] : -1;
  }

  hover(event) {
    const row = this.at(event);
    const { data, measures } = this.state;
    if (row < 0 || event.offsetX < LEFT || !data) { this.tip.hide(); return; }
    const column = columnAt(data.edges, this.timeAt(event.offsetX));
    const lines = [this.rows.labels[row], `${showTime(data.edges[column])} to ${showTime(data.edges[column + 1])}`];
    for (const [name, title] of measures) {
      if (data[name]) lines.push(`${title}: ${this.state.word(name, data[name][row * (data.edges.length - 1) + column])}`);
    }
    this.tip.show(event, lines.join("\n"));
  }

  pick(event) {
    const row = this.at(event);
    if (event.offsetX >= LEFT) this.state.moveCursor(this.timeAt(event.offsetX));
    if (row >= 0) this.state.choose("row", row);
  }

  otherKey(event) {
    const step = { ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (!step) return false;
    const place = Math.max(0, this.order.indexOf(this.state.chosen.row)) + step;
    this.state.choose("row", this.order[Math.min(this.order.length - 1, Math.max(0, place))]);
    return true;
  }
}

class Timeline extends TimePlot {
  constructor(canvas, state, tip, overview) {
    super(canvas, state, tip);
    this.lanes = overview.lanes;
    this.tall = this.lanes.ranks.length > 80 ? 12 : 17;
    this.hits = [];
    this.marked = -1;
    canvas.addEventListener("blur", () => { tip.hide(); this.state.draw(); });
  }

  draw() {
    const { tasks, from, until } = this.state;
    const count = this.lanes.ranks.length;
    const bottom = this.tall * count;
    const { draw } = context(this.canvas, bottom + AXIS, Math.min(12, this.tall - 2));
    draw.textBaseline = "middle";
    for (let lane = 0; lane < count; lane += 1) {
      const y = lane * this.tall;
      const fresh = lane === 0 || this.lanes.ranks[lane] !== this.lanes.ranks[lane - 1];
      draw.fillStyle = cssColour("rule");
      if (fresh && lane) draw.fillRect(8, y - 0.5, this.right - 8, 1);
      draw.fillStyle = cssColour("soft");
      draw.textAlign = "left";
      if (fresh) draw.fillText(`rank ${this.lanes.ranks[lane]}`, 10, y + this.tall / 2);
      draw.textAlign = "right";
      if (LEFT > 120) draw.fillText(fitText(draw, this.lanes.streams[lane], LEFT - 80), LEFT - 8, y + this.tall / 2);
    }
    if (tasks) this.bars(draw, tasks);
    const { path, pathShown } = this.state;
    if (path && pathShown) {
      draw.save();
      draw.beginPath();
      draw.rect(LEFT, 0, this.right - LEFT, bottom);
      draw.clip();
      drawPath(draw, this, path, "over", (lane) => ({ top: (lane + 1) * this.tall - 5.5, tall: 4.5 }));
      draw.restore();
    }
    timeAxis(draw, LEFT, this.right - LEFT, bottom + 1, from, until);
    if (this.marked >= 0) {
      draw.strokeStyle = cssColour("mark");
      draw.strokeRect(1, this.marked * this.tall + 0.5, this.right - 1, this.tall - 1);
      const under = document.activeElement === this.canvas ? this.under : -1;
      const own = this.hits.find((hit) => hit[3] === under);
      if (own) {
        draw.strokeStyle = cssColour("focus");
        draw.lineWidth = 2;
        draw.strokeRect(own[0], this.marked * this.tall + 1, Math.max(4, own[1]), this.tall - 2);
        draw.lineWidth = 1;
      }
    }
    this.overlay(draw, bottom);
  }

  bars(draw, tasks) {
    const colours = ["compute", "communication", "pause", "ink"].map(cssColour);
    const { from, until } = this.state;
    this.hits = [];
    draw.save();
    draw.beginPath();
    draw.rect(LEFT, 0, this.right - LEFT, this.tall * this.lanes.ranks.length);
    draw.clip();
    draw.textAlign = "left";
    const words = cssColour("paper");
    for (let i = 0; i < tasks.start.length; i += 1) {
      const end = tasks.start[i] + tasks.duration[i];
      if (end < from || tasks.start[i] > until) continue;
      const x = Math.max(LEFT, this.xOf(tasks.start[i]));
      const wide = Math.max(0.8, Math.min(this.right, this.xOf(end)) - x);
      const y = tasks.lane[i] * this.tall + 1.5;
      const gap = wide > 3 ? 0.6 : 0;
      draw.fillStyle = colours[tasks.kind[i]];
      draw.fillRect(x, y, wide - gap, this.tall - 3);
      this.hits.push([x, wide, tasks.lane[i], i]);
      if (wide > 34 && this.tall > 13) {
        draw.fillStyle = words;
        const title = this.title(i);
        const shown = fitText(draw, title, wide - 8);
        if (shown === title || shown.length > 8) draw.fillText(shown, x + 4, y + this.tall / 2 - 1);
      }
    }
    draw.restore();
  }

  // Scroll to a lane and mark it.
  showLane(lane) {
    this.marked = lane;
    this.canvas.scrollIntoView({ block: "nearest" });
    this.canvas.parentElement.scrollTop = Math.max(0, (lane - 3) * this.tall);
    this.state.draw();
  }

  title(i) {
    const { tasks } = this.state;
    const name = this.lanes.names[tasks.name[i]];
    return tasks.count[i] > 1 ? `${tasks.count[i]} tasks: ${name}, ...` : name;
  }

  find(event) {
    const lane = Math.floor(event.offsetY / this.tall);
    const found = this.hits.find(([x, wide, l]) => l === lane && event.offsetX >= x - 1 && event.offsetX <= x + Math.max(3, wide));
    return found ? found[3] : -1;
  }

  hover(event) {
    const i = this.find(event);
    if (i < 0) { this.tip.hide(); return; }
    this.tip.show(event, this.numbers(i).join("\n"));
  }

  numbers(i) {
    const { tasks } = this.state;
    const lane = tasks.lane[i];
    return [
      this.title(i),
      `rank ${this.lanes.ranks[lane]}, stream ${this.lanes.streams[lane]}, ${this.lanes.kinds[tasks.kind[i]]}`,
      `${showTime(tasks.start[i])} to ${showTime(tasks.start[i] + tasks.duration[i])}: ${showTime(tasks.duration[i])}`,
    ];
  }

  pick(event) { this.state.moveCursor(this.timeAt(event.offsetX)); }

  // Active tasks of the marked lane at the cursor.
  get under() {
    const { tasks, cursor, from } = this.state;
    const time = cursor ?? from;
    return tasks ? tasks.lane.findLastIndex((lane, i) => lane === this.marked && tasks.start[i] <= time && (time < tasks.start[i] + tasks.duration[i] || time === tasks.start[i])) : -1;
  }

  // The bar of the marked lane that begins next to the cursor, before or after it.
  beside(after) {
    const { tasks, cursor, from } = this.state;
    const time = cursor ?? (after ? from - 1 : from);
    let found = -1;
    tasks.lane.forEach((lane, i) => {
      const start = tasks.start[i];
      if (lane !== this.marked || (after ? start <= time : start >= time)) return;
      if (found < 0 || (after ? start < tasks.start[found] : start > tasks.start[found])) found = i;
    });
    return found;
  }

  // Move to a bar, scroll it into view, and announce its tooltip.
  go(i) {
    const { state } = this;
    const start = state.tasks.start[i];
    const numbers = this.numbers(i);
    const span = state.until - state.from;
    if (start < state.from || start > state.until) {
      const low = Math.min(state.time - span, Math.max(0, start - span / 2));
      state.show(low, low + span);
    }
    state.moveCursor(start);
    const { left, top } = this.canvas.getBoundingClientRect();
    this.tip.show({ clientX: left + this.xOf(start), clientY: top + (this.marked + 1) * this.tall }, numbers.join("\n"));
    document.getElementById("said").textContent = numbers.join(", ");
  }

  // Select lanes, and bars with "," and "."; the active task at the cursor is announced.
  otherKey(event) {
    if (event.key === "," || event.key === ".") {
      if (this.marked < 0) this.showLane(0);
      const to = this.state.tasks ? this.beside(event.key === ".") : -1;
      if (to >= 0) this.go(to);
      return true;
    }
    const step = { ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (!step) return false;
    this.showLane(Math.min(this.lanes.ranks.length - 1, Math.max(0, this.marked + step)));
    const { tasks, cursor, from } = this.state;
    const time = cursor ?? from;
    const at = this.under;
    const what = at < 0 ? "nothing" : `${this.title(at)}, ${this.lanes.kinds[tasks.kind[at]]}`;
    const where = `rank ${this.lanes.ranks[this.marked]}, stream ${this.lanes.streams[this.marked]}`;
    document.getElementById("said").textContent = `${where}: ${what} at ${showTime(time)}`;
    return true;
  }
}
