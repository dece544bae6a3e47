// Lines of the system's picture: pointer and arrow keys show their names and select them.

class Lines {
  constructor(svg, state, tip) {
    Object.assign(this, { state, tip, hits: [...svg.querySelectorAll(".hit")] });
    svg.addEventListener("keydown", (event) => this.key(event));
    svg.addEventListener("blur", () => tip.hide());
    this.hits.forEach((line, i) => {
      line.addEventListener("click", () => state.choose("line", i));
      line.addEventListener("pointermove", (event) => tip.show(event, this.title(i)));
      line.addEventListener("pointerleave", () => tip.hide());
    });
  }

  title(i) {
    const { labels, busy } = this.state.overview.lines;
    return `${labels[i].replace("->", " → ")}\nbusy ${showPart(busy[i])} of the run`;
  }

  // Move to another line; the selected one is announced with its numbers.
  key(event) {
    const last = this.hits.length - 1;
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, PageUp: -10, PageDown: 10, Home: -last, End: last }[event.key];
    if (event.key === "Escape") this.tip.hide();
    if (!step) return;
    event.preventDefault();
    const to = Math.min(last, Math.max(0, this.state.chosenLine + step));
    this.state.choose("line", to);
    this.hits[to].scrollIntoView({ block: "nearest", inline: "nearest" }); // a phone shows part of the picture
    this.tip.show(this.middle(to), this.title(to));
  }

  // Position of a line's middle in the window.
  middle(i) {
    const line = this.hits[i];
    const { x, y } = line.getPointAtLength(line.getTotalLength() / 2).matrixTransform(line.getScreenCTM());
    return { clientX: x, clientY: y };
  }
}
