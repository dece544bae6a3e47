// Search: wires, links, lanes of ranks, tasks and causes of the critical path, by words of their names.

class Search {
  constructor(state, overview) {
    Object.assign(this, { state, overview, found: [], at: -1, words: "" });
    this.output = document.getElementById("found");
    const input = document.getElementById("find");
    document.getElementById("search").addEventListener("submit", (event) => {
      event.preventDefault();
      this.next(input.value, 1);
    });
    input.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      this.next(input.value, step);
    });
    input.addEventListener("input", () => { this.output.textContent = ""; });
  }

  // Entries with every word in their names.
  matches(text) {
    const words = text.toLowerCase().replaceAll("→", "->").split(/\s+/).filter(Boolean);
    const { rows, lines, lanes, path } = this.overview;
    const found = [];
    const look = (kind, names) => names.forEach((name, index) => {
      const own = name.toLowerCase();
      if (words.length && words.every((word) => own.includes(word))) found.push({ kind, index, name });
    });
    look("row", rows.labels);
    look("line", lines.labels.map((name, i) => (lines.sizes[i] > 1 || !rows.labels.includes(name) ? name : "")));
    look("lane", lanes.ranks.map((rank, i) => `rank ${rank} ${lanes.streams[i]}`));
    look("task", lanes.names);
    if (path) look("what", path.whats);
    return found;
  }

  next(text, step) {
    if (text !== this.words) Object.assign(this, { words: text, found: this.matches(text), at: step > 0 ? -1 : 0 });
    const { found } = this;
    if (!found.length) {
      this.output.textContent = text.trim() ? "nothing of that name" : "";
      return;
    }
    this.at = (this.at + step + found.length) % found.length;
    const { kind, index, name } = found[this.at];
    this.output.textContent = `${this.at + 1} of ${found.length}: ${name}`;
    this[kind](index);
  }

  row(index) {
    const { state } = this;
    if (!state.heat.order.includes(index)) {
      document.getElementById("class").value = "";
      state.heat.arrange("", state.heat.byLoad);
    }
    state.choose("row", index);
    state.heat.canvas.scrollIntoView({ block: "nearest" });
  }

  line(index) {
    this.state.choose("line", index);
    document.getElementById("machine").scrollIntoView({ block: "nearest" });
  }

  lane(index) { this.state.timeline.showLane(index); }

  task(index) { this.first("tasks", this.state.tasks, "name", "start", index, this.state.timeline); }

  what(index) { this.first("path", this.state.path, "steps_name", "steps_start", index, this.state.steps); }

  // Move the cursor to the first entry of a name in the window.
  first(what, data, name, start, index, plot) {
    const at = data ? data[name].indexOf(index) : -1;
    if (at >= 0) this.state.moveCursor(data[start][at]);
    if (at >= 0 && what === "tasks") plot.showLane(data.lane[at]);
    else plot.canvas.scrollIntoView({ block: "nearest" });
  }
}
