// Critical path over its channels, and over the lanes of ranks.

const PATH_COLOURS = ["compute", "pause", "exposed"];

// Draw spans of `path` whose names begin with `kind`; `band` gives top and height of a row. Ends that meet are joined.
function drawPath(draw, plot, path, kind, band) {
  const { from, until } = plot.state;
  const [start, duration, row, group] = ["start", "duration", "row", "kind"].map((name) => path[`${kind}_${name}`]);
  const colours = PATH_COLOURS.map(cssColour);
  const ink = cssColour("ink");
  const order = Array.from(start.keys()).sort((a, b) => start[a] - start[b]);
  let before = null;
  for (const i of order) {
    const end = start[i] + duration[i];
    if (end >= from && start[i] <= until) {
      const x = Math.max(LEFT, plot.xOf(start[i]));
      const wide = Math.max(1, Math.min(plot.right, plot.xOf(end)) - x);
      const { top, tall } = band(row[i]);
      draw.fillStyle = colours[group[i]];
      draw.fillRect(x, top, wide, tall);
      // A line below distinguishes the path from other bars without colours.
      draw.fillStyle = ink;
      draw.fillRect(x, top + tall - 1.5, wide, 1.5);
      if (before !== null && row[before] !== row[i] && plot.xOf(start[i]) >= LEFT) {
        const [one, two] = [band(row[before]), band(row[i])].map((own) => own.top + own.tall / 2);
        draw.fillRect(x - 0.5, Math.min(one, two), 1, Math.abs(one - two));
      }
    }
    before = i;
  }
}

class Steps extends TimePlot {
  constructor(canvas, state, tip, overview) {
    super(canvas, state, tip);
    Object.assign(this, { header: overview.path, tall: 17, at: -1 });
    this.live = document.getElementById("said");
  }

  band(row) { return { top: row * this.tall + 3, tall: this.tall - 6 }; }

  draw() {
    const { path, from, until, pathShown } = this.state;
    const rows = this.header.rows;
    const bottom = this.tall * rows.length;
    const { draw } = context(this.canvas, bottom + AXIS);
    draw.textBaseline = "middle";
    draw.textAlign = "right";
    rows.forEach((name, row) => {
      draw.fillStyle = cssColour("rule");
      if (row && this.header.ranks[row] !== this.header.ranks[row - 1]) draw.fillRect(8, row * this.tall - 0.5, this.right - 8, 1);
      draw.fillStyle = cssColour("soft");
      draw.fillText(fitText(draw, name, LEFT - 16), LEFT - 8, (row + 0.5) * this.tall);
    });
    if (path) {
      draw.save();
      draw.beginPath();
      draw.rect(LEFT, 0, this.right - LEFT, bottom);
      draw.clip();
      this.slices(draw, path, from, until);
      if (pathShown) drawPath(draw, this, path, "steps", (row) => this.band(row));
      draw.restore();
    }
    timeAxis(draw, LEFT, this.right - LEFT, bottom + 1, from, until);
    this.overlay(draw, bottom);
  }

  slices(draw, path, from, until) {
    draw.fillStyle = cssColour("step");
    path.slices_start.forEach((start, i) => {
      const end = start + path.slices_duration[i];
      if (end < from || start > until) return;
      const x = Math.max(LEFT, this.xOf(start));
      const wide = Math.max(0.8, Math.min(this.right, this.xOf(end)) - x);
      draw.fillRect(x, path.slices_row[i] * this.tall + 1, wide - (wide > 3 ? 0.8 : 0), this.tall - 2);
    });
  }

  // Text of a segment of the path, or of a slice.
  words(kind, i) {
    const { path } = this.state;
    const [start, duration, count] = ["start", "duration", "count"].map((name) => path[`${kind}_${name}`][i]);
    const name = kind === "steps" ? this.header.whats[path.steps_name[i]] : this.header.primitives[path.slices_name[i]];
    const many = count > 1 ? `${count} steps: ` : "";
    const group = kind === "steps" ? `critical path, ${["work", "latency or fixed cost", "lost"][path.steps_kind[i]]}` : "step of the channel";
    return [this.header.rows[path[`${kind}_row`][i]], `${many}${name}`, group, `${showTime(start)} to ${showTime(start + duration)}: ${showTime(duration)}`];
  }

  find(kind, row, time, slack) {
    const { path } = this.state;
    return path[`${kind}_start`].findIndex((start, i) => path[`${kind}_row`][i] === row
      && time >= start - slack && time <= start + path[`${kind}_duration`][i] + slack);
  }

  hover(event) {
    const { path, pathShown, from, until } = this.state;
    if (!path || event.offsetX < LEFT) { this.tip.hide(); return; }
    const row = Math.floor(event.offsetY / this.tall);
    const time = this.timeAt(event.offsetX);
    const slack = (1.5 * (until - from)) / (this.right - LEFT);
    for (const kind of pathShown ? ["steps", "slices"] : ["slices"]) {
      const i = this.find(kind, row, time, slack);
      if (i >= 0) { this.tip.show(event, this.words(kind, i).join("\n")); return; }
    }
    this.tip.hide();
  }

  pick(event) { this.state.moveCursor(this.timeAt(event.offsetX)); }

  // Move to another segment of the path, as announced by a screen reader.
  otherKey(event) {
    const step = { ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10 }[event.key];
    const { path } = this.state;
    if (!step || !path || !path.steps_start.length) return false;
    const order = Array.from(path.steps_start.keys()).sort((a, b) => path.steps_start[a] - path.steps_start[b]);
    this.at = Math.min(order.length - 1, Math.max(0, this.at + step));
    const i = order[this.at];
    this.live.textContent = this.words("steps", i).join(", ");
    this.state.moveCursor(path.steps_start[i]);
    return true;
  }
}
