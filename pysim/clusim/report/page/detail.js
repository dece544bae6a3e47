// Numbers of a wire, or of several drawn as one, and its curves over time.

const CURVES = [["load", "Load", "compute", []], ["credit", "No credit", "exposed", [5, 3]], ["contended", "Contended", "both", [2, 2]]];

class Detail {
  constructor(state) {
    this.state = state;
    this.canvas = document.getElementById("curve");
    this.live = document.getElementById("said");
  }

  // `table` is overview.rows or the lines of the picture; `data` the history it belongs to.
  show(table, index, data) {
    const count = table.sizes[index];
    document.getElementById("wire-name").textContent = table.labels[index].replace("->", " → ");
    document.getElementById("wire-class").textContent = `${table.classes[index].replace("->", " → ")}${count > 1 ? `, ${count} wires` : ""}`;
    const many = count > 1;
    const lines = [
      [many ? "Rate of each" : "Rate", showRate(table.rate[index], table.effective[index])],
      [many ? "Busy, mean" : "Busy", showPart(table.busy[index])],
      ...(many ? [["Busy, fullest", showPart(table.busiest[index])]] : []),
      ["No credit", showPart(table.credit[index])],
      ["Contended", showPart(table.contended[index])],
      ["Payload", showSize(table.payload[index])],
      ["On the wire", showSize(table.bytes[index])],
      ["Packets", Math.round(table.packets[index]).toLocaleString("en")],
      ["Longest queue", showSize(table.queue[index])],
    ];
    const body = document.getElementById("wire-numbers");
    body.replaceChildren(...lines.map(([name, value]) => {
      const row = document.createElement("tr");
      const head = document.createElement("th");
      const cell = document.createElement("td");
      head.scope = "row";
      head.textContent = name;
      cell.className = "n";
      cell.textContent = value;
      row.append(head, cell);
      return row;
    }));
    // Announced once, not at every move of the cursor.
    const chosen = table.labels[index];
    if (chosen !== this.said) this.live.textContent = `${table.labels[index]}: ${lines.slice(0, 3).map((line) => line.join(" ")).join(", ")}`;
    this.said = chosen;
    this.curve(data, index);
  }

  curve(data, index) {
    const { draw, width, height } = context(this.canvas, 150);
    if (!data || !data.load) return;
    const { from, until, cursor } = this.state;
    const left = 46;
    const bottom = height - AXIS;
    const right = width - 4;
    const xOf = (time) => left + ((time - from) / (until - from)) * (right - left);
    draw.fillStyle = cssColour("soft");
    draw.textAlign = "right";
    draw.textBaseline = "middle";
    for (const part of [0, 0.5, 1]) {
      const y = bottom - part * (bottom - 8);
      draw.fillStyle = cssColour("rule");
      draw.fillRect(left, y - 0.5, right - left, 1);
      draw.fillStyle = cssColour("soft");
      draw.fillText(`${100 * part} %`, left - 5, y);
    }
    const columns = data.edges.length - 1;
    draw.save();
    draw.beginPath();
    draw.rect(left, 0, right - left, bottom + 1);
    draw.clip();
    for (const [name, , colour, dash] of [...CURVES].reverse()) {
      const values = data[name];
      draw.strokeStyle = cssColour(colour);
      draw.setLineDash(dash);
      draw.lineWidth = name === "load" ? 1.6 : 1.2;
      draw.beginPath();
      for (let x = 0; x < columns; x += 1) {
        const y = bottom - (values[index * columns + x] / 255) * (bottom - 8);
        draw.lineTo(xOf(data.edges[x]), y);
        draw.lineTo(xOf(data.edges[x + 1]), y);
      }
      draw.stroke();
    }
    draw.restore();
    draw.setLineDash([]);
    if (cursor !== null && cursor >= from && cursor <= until) {
      draw.fillStyle = cssColour("mark");
      draw.fillRect(xOf(cursor) - 0.75, 0, 1.5, bottom);
    }
    this.axis(draw, left, right, bottom);
  }

  axis(draw, left, right, bottom) {
    const { from, until } = this.state;
    draw.fillStyle = cssColour("soft");
    draw.textBaseline = "top";
    draw.textAlign = "left";
    draw.fillText(showTime(from), left, bottom + 6);
    draw.textAlign = "right";
    draw.fillText(showTime(until), right, bottom + 6);
  }
}
