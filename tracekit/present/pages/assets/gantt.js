// -- Gantt charts ---------------------------------------------------------------------------------
const charts = [];
redraws.push(() => charts.forEach((chart) => chart.draw()));
const timeText = (ns) => {
  const size = Math.abs(ns);
  const [unit, name] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return `${(ns / unit).toLocaleString("en", { maximumFractionDigits: unit === 1 ? 0 : 3 })} ${name}`;
};

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// A lane's ops, and coarser and coarser levels in which neighbours that are too short and too near
// to be told apart are one: a picture never takes more marks than there are pixels.
function laneOf(data) {
  const count = data.start.length;
  const ops = { start: new Float64Array(count), end: new Float64Array(count), stage: data.stage };
  let at = 0;
  for (let i = 0; i < count; i += 1) {
    at += data.start[i];
    ops.start[i] = at;
    ops.end[i] = at + data.length[i];
  }
  const levels = [{ grain: 0, ...ops }];
  for (let grain = 256; count > 400 && levels.at(-1).start.length > 200; grain *= 4) {
    levels.push(coarser(levels.at(-1), grain));
  }
  let longest = 0;
  for (const level of levels) level.start.forEach((begin, i) => { longest = Math.max(longest, level.end[i] - begin); });
  return { ...data, ...ops, levels, count, longest };
}

function coarser(level, grain) {
  const start = [], end = [], stage = [], weight = [];
  for (let i = 0; i < level.start.length; i += 1) {
    const last = start.length - 1;
    const length = level.end[i] - level.start[i];
    const joins = last >= 0 && level.start[i] - end[last] < grain && level.end[i] - start[last] < 4 * grain;
    if (joins) {
      end[last] = Math.max(end[last], level.end[i]);
      if (length > weight[last]) { weight[last] = length; stage[last] = level.stage[i]; }
    } else {
      start.push(level.start[i]); end.push(level.end[i]); stage.push(level.stage[i]); weight.push(length);
    }
  }
  return { grain, start: Float64Array.from(start), end: Float64Array.from(end), stage };
}

// The first whose start is not before a time.
function firstFrom(starts, time) {
  let low = 0, high = starts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[middle] < time) low = middle + 1; else high = middle;
  }
  return low;
}

class Gantt {
  constructor(figure, data) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.data = data;
    this.views = data.views.map((view) => ({ ...view, lanes: view.lanes.map(laneOf) }));
    this.lane = 0;
    this.width = 0;
    this.picked = null;
    this.pending = false;
    this.choose(0);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
  }

  choose(number) {
    this.view = this.views[number];
    this.from = 0;
    this.to = this.view.span;
    this.picked = null;
    this.lane = 0;
    for (const button of this.figure.querySelectorAll(".view")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.view) === number));
    }
    this.draw();
  }

  // The width is asked for once a picture: a browser lays the page out anew to tell it.
  get labels() { return this.width < 600 ? 74 : 170; }
  get plot() { return Math.max(this.width - this.labels, 10); }
  x(time) { return this.labels + ((time - this.from) / (this.to - this.from)) * this.plot; }
  time(x) { return this.from + ((x - this.labels) / this.plot) * (this.to - this.from); }

  zoom(factor, around = (this.from + this.to) / 2) {
    const least = Math.min(200, this.view.span);
    const length = Math.min(Math.max((this.to - this.from) * factor, least), this.view.span);
    const share = (around - this.from) / (this.to - this.from);
    this.show(around - share * length, length);
  }

  show(from, length) {
    this.from = Math.min(Math.max(from, 0), this.view.span - length);
    this.to = this.from + length;
    this.draw();
  }

  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.paint(); });
  }

  paint() {
    const started = performance.now();
    const ROW = 17, TOP = 22;
    const style = getComputedStyle(root);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const width = this.canvas.parentElement.clientWidth;
    this.width = width;
    const height = TOP + this.view.lanes.length * ROW + 4;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.height = `${height}px`;
    }
    const c = this.context;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = colour("paper");
    c.fillRect(0, 0, width, height);
    this.marks = 0;
    this.axis(c, colour, height);
    const look = { paper: colour("paper"), ink: colour("ink"), muted: colour("muted"), raised: colour("raised"), hatch: colour("hatch") };
    look.stages = this.data.stages.map(colour);
    look.texts = look.stages.map(inkOn);
    this.view.lanes.forEach((lane, number) => this.row(c, lane, TOP + number * ROW, ROW, look, number));
    this.canvas.dataset.marks = this.marks;
    this.canvas.dataset.ms = (performance.now() - started).toFixed(1);
  }

  axis(c, colour, height) {
    const rough = (this.to - this.from) / Math.max(this.plot / 110, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "center";
    for (let time = Math.ceil(this.from / step) * step; time <= this.to; time += step) {
      const x = Math.round(this.x(time)) + 0.5;
      c.strokeStyle = colour("line");
      c.beginPath(); c.moveTo(x, 16); c.lineTo(x, height); c.stroke();
      c.fillStyle = colour("muted");
      if (x + 24 < this.width) c.fillText(timeText(time), x, 8);
    }
  }

  row(c, lane, top, high, look, number) {
    const edge = this.labels;
    const perPixel = (this.to - this.from) / this.plot;
    const level = lane.levels.findLast((each) => each.grain <= perPixel) ?? lane.levels[0];
    c.save();
    c.beginPath(); c.rect(edge, top, this.plot, high); c.clip();
    let i = Math.max(firstFrom(level.start, this.from - lane.longest) , 0);
    let right = -1;
    for (; i < level.start.length && level.start[i] < this.to; i += 1) {
      if (level.end[i] < this.from) continue;
      const x = this.x(level.start[i]);
      const end = this.x(level.end[i]);
      if (end < right && end - x < 1) continue;
      const wide = Math.max(end - x, 0.7);
      right = x + wide;
      this.marks += 1;
      c.fillStyle = look.stages[level.stage[i]];
      c.fillRect(x, top + 1, wide, high - 2);
      if (level.grain === 0) this.detail(c, lane, i, x, wide, top, high, look);
    }
    c.restore();
    c.fillStyle = number === this.lane && document.activeElement === this.canvas ? look.ink : look.muted;
    c.textAlign = "left";
    c.font = `${lane.is_first ? "600 " : ""}11px system-ui, sans-serif`;
    c.fillText(cut(c, edge < 100 ? lane.brief : lane.label, edge - 8), 4, top + high / 2);
    if (lane.is_first) {
      c.strokeStyle = look.muted;
      c.globalAlpha = 0.5;
      c.beginPath(); c.moveTo(0, top + 0.5); c.lineTo(edge + this.plot, top + 0.5); c.stroke();
      c.globalAlpha = 1;
    }
  }

  detail(c, lane, i, x, wide, top, high, look) {
    if (lane.hatched && lane.hatched[i] && wide > 2) hatch(c, x, top + 1, wide, high - 2, look.hatch);
    if (this.picked && this.picked.lane === lane && this.picked.i === i) {
      c.strokeStyle = look.ink; c.lineWidth = 2;
      c.strokeRect(x, top + 1, Math.max(wide, 3), high - 2); c.lineWidth = 1;
    }
    if (wide > 34) {
      const left = Math.max(x, this.labels);
      c.textAlign = "left"; c.font = "11px system-ui, sans-serif";
      const text = cut(c, this.data.names[lane.name[i]], x + wide - left - 6);
      if (lane.hatched && text) {
        c.fillStyle = look.stages[lane.stage[i]];
        c.fillRect(left + 1, top + 1, c.measureText(text).width + 4, high - 2);
      }
      c.fillStyle = look.texts[lane.stage[i]];
      c.fillText(text, left + 3, top + high / 2);
    }
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const lane = this.view.lanes[Math.floor((y - 22) / 17)];
    if (!lane || x < this.labels) return null;
    const time = this.time(x), reach = (this.to - this.from) / this.plot * 2;
    const last = firstFrom(lane.start, time + reach) - 1;
    for (let i = last; i >= Math.max(last - 400, 0); i -= 1) {
      if (lane.end[i] + reach >= time) return { lane, i };
    }
    return null;
  }

  pick(found) {
    this.picked = found;
    const told = this.figure.querySelector(".picked");
    if (found) {
      const { lane, i } = found;
      const hidden = lane.hatched && lane.hatched[i] ? ", communication" : "";
      told.textContent = `${this.data.full[lane.name[i]]} · ${this.data.stages[lane.stage[i]]}${hidden} · `
        + `${timeText(lane.end[i] - lane.start[i])}, from ${timeText(lane.start[i])} of the step · ${lane.label}`;
    }
    this.draw();
  }

  step(by) {
    const lanes = this.view.lanes;
    if (!this.picked) { this.pick({ lane: lanes[this.lane], i: 0 }); return; }
    const { lane, i } = this.picked;
    const next = Math.min(Math.max(i + by, 0), lane.count - 1);
    const length = this.to - this.from;
    if (lane.start[next] < this.from || lane.end[next] > this.to) this.show(lane.start[next] - length / 4, length);
    this.pick({ lane, i: next });
  }

  key(event) {
    const length = this.to - this.from;
    const lanes = this.view.lanes.length;
    const move = (by) => { this.lane = (this.lane + by + lanes) % lanes; this.pick({ lane: this.view.lanes[this.lane], i: firstFrom(this.view.lanes[this.lane].start, this.from) % this.view.lanes[this.lane].count }); };
    const done = {
      ArrowLeft: () => this.show(this.from - length / 5, length), ArrowRight: () => this.show(this.from + length / 5, length),
      ArrowUp: () => move(-1), ArrowDown: () => move(1), "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), "-": () => this.zoom(1 / 0.6),
      0: () => this.show(0, this.view.span), n: () => this.step(1), p: () => this.step(-1),
    }[event.key];
    if (done && !event.ctrlKey && !event.metaKey) { done(); event.preventDefault(); }
  }

  listen() {
    let grabbed = null;
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(event.clientX - this.canvas.getBoundingClientRect().left));
    }, { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => { grabbed = { x: event.clientX, from: this.from }; this.canvas.setPointerCapture(event.pointerId); });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!grabbed) { this.pick(this.at(event)); return; }
      const length = this.to - this.from;
      this.show(grabbed.from - ((event.clientX - grabbed.x) / this.plot) * length, length);
    });
    this.canvas.addEventListener("pointerup", () => { grabbed = null; });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => this.draw());
    this.canvas.addEventListener("blur", () => this.draw());
    const deeds = { in: () => this.zoom(0.6), out: () => this.zoom(1 / 0.6), all: () => this.show(0, this.view.span) };
    for (const button of this.figure.querySelectorAll("[data-do]")) button.addEventListener("click", deeds[button.dataset.do]);
    for (const button of this.figure.querySelectorAll(".view")) button.addEventListener("click", () => this.choose(Number(button.dataset.view)));
  }
}

// Black or white, whichever is read better on a colour.
function inkOn(colour) {
  const digits = colour.length === 4 ? [...colour.slice(1)].map((d) => d + d) : colour.slice(1).match(/../g);
  const [r, g, b] = digits.map((d) => (parseInt(d, 16) / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#111" : "#fff";
}

function cut(c, text, room) {
  if (room < 12) return "";
  if (c.measureText(text).width <= room) return text;
  let low = 0, high = Math.min(text.length, 200);
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (c.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle; else high = middle - 1;
  }
  return low ? `${text.slice(0, low)}…` : "";
}

function hatch(c, x, y, wide, high, colour) {
  c.save();
  c.beginPath(); c.rect(x, y, wide, high); c.clip();
  c.strokeStyle = colour; c.lineWidth = 2;
  c.beginPath();
  const first = Math.max(x, 0) - high, last = Math.min(x + wide, c.canvas.width);
  for (let at = Math.floor(first / 7) * 7; at < last; at += 7) { c.moveTo(at, y + high); c.lineTo(at + high, y); }
  c.stroke();
  c.restore();
  c.lineWidth = 1;
}

for (const figure of document.querySelectorAll("[data-gantt]")) {
  unpacked(figure.querySelector("script").textContent).then((data) => {
    charts.push(new Gantt(figure, data));
    figure.dataset.ready = "yes";
  }, () => { figure.querySelector(".picked").textContent = "This browser is too old to draw the chart."; });
}
for (const event of ["beforeprint", "afterprint"]) {
  addEventListener(event, () => charts.forEach((chart) => chart.paint()));
}
