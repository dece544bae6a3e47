// State of the page, its changes, and the redrawing after a change.

class Tip {
  constructor() { this.element = document.getElementById("tip"); }

  show(event, text) {
    const { element } = this;
    element.textContent = text;
    element.style.visibility = "visible";
    const { width, height } = element.getBoundingClientRect();
    element.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - width - 8))}px`;
    element.style.top = `${event.clientY + height + 24 > window.innerHeight ? event.clientY - height - 12 : event.clientY + 16}px`;
  }

  hide() { this.element.style.visibility = "hidden"; }
}

const PALEST = 30;

class Page {
  constructor(source, overview) {
    Object.assign(this, {
      source, overview, time: overview.time_ps, from: 0, until: overview.time_ps, cursor: null, measure: "load",
      measures: overview.measures, chosen: { row: -1, line: -1 }, data: null, lines: null, tasks: null, playing: null,
      asked: 0, path: null, pathShown: true, queue_max: overview.queue_max,
    });
    this.theme(document.documentElement.dataset.theme || "auto");
    const tip = new Tip();
    const heat = document.getElementById("heat");
    const timeline = document.getElementById("timeline");
    this.heat = heat && new Heatmap(heat, this, tip, overview);
    this.timeline = timeline && new Timeline(timeline, this, tip, overview);
    const steps = document.getElementById("steps");
    this.steps = steps && new Steps(steps, this, tip, overview);
    this.detail = document.getElementById("curve") && new Detail(this);
    this.slider = document.getElementById("slider");
    if (document.getElementById("find")) new Search(this, overview);
    this.svgLines = [...document.querySelectorAll("#machine .seen")];
    const machine = document.getElementById("machine");
    if (machine) new Lines(machine, this, tip);
    this.controls();
  }

  async start() {
    if (this.heat) this.heat.arrange("", false);
    await this.load();
    if (this.heat && this.overview.rows.labels.length) {
      const busiest = this.overview.rows.busiest;
      this.choose("row", busiest.indexOf(Math.max(...busiest)));
    }
    this.drawNow();
    document.documentElement.dataset.ready = "true";
  }

  // Fetch the data of the present window; late answers to older requests are dropped.
  async load() {
    const ticket = (this.asked += 1);
    const { from, until } = this;
    const columns = Math.min(1024, Math.max(200, document.body.clientWidth));
    const [data, lines, tasks, path] = await Promise.all([
      this.source.wires(from, until, columns), this.source.lines(from, until, columns),
      this.timeline ? this.source.tasks(from, until, columns) : null,
      this.steps ? this.source.steps(from, until, columns) : null,
    ]);
    if (ticket !== this.asked) return;
    Object.assign(this, { data, lines, tasks, path });
    this.draw();
  }

  show(from, until) {
    const least = Math.min(this.time, Math.max(1000, this.time / 1e6));
    const middle = (from + until) / 2;
    const half = Math.max(least, until - from) / 2;
    this.from = Math.max(0, middle - half);
    this.until = Math.min(this.time, middle + half);
    this.draw();
    if (this.overview.live) this.load();
  }

  zoom(factor, at) {
    this.show(at - (at - this.from) * factor, at + (this.until - at) * factor);
  }

  moveCursor(time) {
    this.cursor = time === null ? null : Math.min(this.time, Math.max(0, time));
    if (this.slider && time !== null) this.slider.value = Math.round((1000 * this.cursor) / this.time);
    this.draw();
  }

  choose(kind, index) {
    this.chosen = { row: -1, line: -1, [kind]: index };
    this.draw();
  }

  // Line of the picture that contains the selection.
  get chosenLine() {
    const { row, line } = this.chosen;
    return row >= 0 ? this.overview.rows.line[row] : line;
  }

  word(measure, value) {
    return measure === "queue" ? `up to ${showSize((value / 255) * this.queue_max)}` : `${Math.round(value / 2.55)} %`;
  }

  // Redraw once before the next frame, for any number of changes.
  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.drawNow(); });
  }

  drawNow() {
    if (this.heat) this.heat.draw();
    if (this.timeline) this.timeline.draw();
    if (this.steps) this.steps.draw();
    this.drawMachine();
    if (!this.detail) return;
    const { row, line } = this.chosen;
    if (row >= 0) this.detail.show(this.overview.rows, row, this.data);
    else if (line >= 0) this.detail.show(this.overview.lines, line, this.lines);
  }

  // Colour the lines of the picture: at the cursor, or over the whole run.
  drawMachine() {
    const { lines, cursor, colours } = this;
    const stats = this.overview.lines;
    const values = lines && (lines[this.measure] || lines.load);
    const columns = lines ? lines.edges.length - 1 : 0;
    const whole = { load: "busy", peak: "busiest", credit: "credit", contended: "contended", queue: "queue" }[this.measure];
    const { chosenLine } = this;
    const column = cursor !== null && lines ? columnAt(lines.edges, cursor) : 0;
    const idle = cssColour("rule");
    this.svgLines.forEach((element, i) => {
      let value = cursor !== null && values && columns ? values[i * columns + column] : 255 * stats[whole][i];
      if (cursor === null && this.measure === "queue") value /= Math.max(1, this.queue_max);
      const shade = Math.min(255, Math.max(0, Math.round(value)));
      // On paper a thin line of little load would be paler than an idle one.
      element.style.stroke = value > 0 ? colours.text[Math.max(PALEST, shade)] : idle;
      element.classList.toggle("chosen", i === chosenLine);
    });
    const moment = document.getElementById("moment");
    if (moment) moment.textContent = cursor === null ? "whole run" : `at ${showTime(cursor)}`;
    const button = document.getElementById("whole");
    if (button) button.setAttribute("aria-pressed", String(cursor === null));
  }

  theme(name) {
    const shown = setTheme(name);
    this.colours = colourTable(shown);
    for (const element of document.querySelectorAll(".legend i")) element.style.background = this.colours.css;
    this.shown = shown;
  }

  play() {
    const button = document.getElementById("play");
    if (this.playing) {
      cancelAnimationFrame(this.playing);
      this.playing = null;
      button.textContent = "Play";
      return;
    }
    button.textContent = "Pause";
    let last = performance.now();
    let at = this.cursor === null || this.cursor >= this.until ? this.from : this.cursor;
    const step = (now) => {
      // The window is played in twelve seconds.
      at += ((now - last) / 12000) * (this.until - this.from);
      last = now;
      this.moveCursor(at);
      if (at >= this.until) { this.play(); return; }
      this.playing = requestAnimationFrame(step);
    };
    this.playing = requestAnimationFrame(step);
  }

  controls() {
    const on = (id, kind, act) => document.getElementById(id)?.addEventListener(kind, act);
    on("slider", "input", () => this.moveCursor((this.slider.value / 1000) * this.time));
    on("whole", "click", () => this.moveCursor(null));
    on("play", "click", () => this.play());
    on("zoom-in", "click", () => this.zoom(0.5, this.cursor ?? (this.from + this.until) / 2));
    on("zoom-out", "click", () => this.zoom(2, this.cursor ?? (this.from + this.until) / 2));
    on("zoom-all", "click", () => this.show(0, this.time));
    on("theme", "click", () => { this.theme(this.shown === "dark" ? "light" : "dark"); this.draw(); });
    on("measure", "change", (event) => { this.measure = event.target.value; this.legend(); this.draw(); });
    const arrange = () => {
      this.heat.arrange(document.getElementById("class").value, document.getElementById("order").value === "load");
      this.draw();
    };
    on("class", "change", arrange);
    on("path-on", "change", (event) => { this.pathShown = event.target.checked; this.draw(); });
    on("order", "change", arrange);
    window.addEventListener("resize", () => { LEFT = leftRoom(); this.draw(); });
    const scheme = window.matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", () => { this.theme("auto"); this.draw(); });
    let before = null;
    window.addEventListener("beforeprint", () => { before = this.shown; this.theme("light"); this.drawNow(); });
    window.addEventListener("afterprint", () => { this.theme(before || "auto"); this.drawNow(); });
  }

  legend() {
    const most = document.querySelectorAll(".legend .most");
    for (const element of most) element.textContent = this.measure === "queue" ? showSize(this.queue_max) : "100 %";
  }
}

(async () => {
  try {
    const source = dataSource(document.documentElement.dataset.live === "true");
    const page = new Page(source, await source.overview());
    window.clusim = page;
    await page.start();
  } catch (error) {
    const box = document.getElementById("trouble");
    box.textContent = `The pictures cannot be drawn: ${error.message}`;
    box.hidden = false;
    throw error;
  }
})();
