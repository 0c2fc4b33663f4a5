// The chart of a step: ops on lanes, which one searches, pins and selects by mouse or keys alone.
// Of its page it needs a figure with the elements of the macro `gantt` of blocks.jinja, and colours of
// stages as properties of the root. Nothing here makes markup of text.
globalThis.tracekitChart = (() => {
"use strict";
const UNITS = [[1e9, "s", 9], [1e6, "ms", 6], [1e3, "us", 3], [1, "ns", 0]];
const formats = new Map();

// A number in English; a formatter takes longer to make than thousands of numbers.
function numberText(value, most = 6, least = 0) {
  const key = 100 * most + least;
  if (!formats.has(key)) formats.set(key, new Intl.NumberFormat("en", { minimumFractionDigits: least, maximumFractionDigits: most }));
  return formats.get(key).format(value);
}

const size = (count) => numberText(count, 0);
const unitOf = (ns) => UNITS.find(([size]) => Math.abs(ns) >= size) ?? UNITS.at(-1);

// Exact: no digit of a nanosecond is lost.
function timeText(ns) {
  const [unit, name, digits] = unitOf(ns);
  return `${numberText(ns / unit, digits)} ${name}`;
}

// With as many digits as tell a mark of an axis from its neighbours.
function tickText(ns, step, last) {
  const [unit, name] = unitOf(last);
  const digits = Math.max(0, Math.ceil(Math.log10(unit / step) - 1e-9));
  return `${numberText(ns / unit, digits, digits)} ${name}`;
}

function timeOf(text) {
  const found = /^\s*(-?[\d.,]+)\s*(ns|us|µs|ms|s)\s*$/.exec(text);
  if (!found) return null;
  const size = { ns: 1, us: 1e3, "µs": 1e3, ms: 1e6, s: 1e9 }[found[2]];
  return Math.round(Number(found[1].replaceAll(",", "")) * size);
}

const shortTime = (ns) => `${Number((ns / 1e6).toFixed(6))}ms`;
const spanText = (from, to) => `${shortTime(from)}-${shortTime(to)}`;

// From one time to another, either of which may be below 0; or a length, which is laid around a middle.
function spanOf(text, middle) {
  const both = /^(.*?s)\s*-(.*)$/.exec(text), [from, to] = (both?.slice(1) ?? [text]).map(timeOf);
  if (from === null || to === null) return null;
  if (both) return [from, to];
  return from < 0 ? null : [middle - Math.floor(from / 2), middle + Math.ceil(from / 2)];
}

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// A lane's ops, and the length of the longest.
function laneOf(data, shift = 0) {
  const count = data.start.length, start = new Float64Array(count), end = new Float64Array(count);
  let at = shift;
  for (let i = 0; i < count; i += 1) {
    at += data.start[i];
    start[i] = at;
    end[i] = at + data.length[i];
  }
  return { ...data, start, end, count, longest: data.length.reduce((most, each) => Math.max(most, each), 0) };
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

// -- what a selection is made of --
function merged(pieces) {
  const ordered = pieces.filter(([from, to]) => to > from).sort((a, b) => a[0] - b[0]);
  const found = [];
  for (const [from, to] of ordered) {
    const last = found.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to); else found.push([from, to]);
  }
  return found;
}

const lengthOf = (pieces) => pieces.reduce((sum, [from, to]) => sum + to - from, 0);

function clipped(lane, from, to, names) {
  const found = new Map();
  for (let i = 0; i < lane.count && lane.start[i] < to; i += 1) {
    if (lane.end[i] <= from) continue;
    const name = names[lane.stage[i]];
    if (!found.has(name)) found.set(name, []);
    found.get(name).push([Math.max(lane.start[i], from), Math.min(lane.end[i], to)]);
  }
  return found;
}

// Busy and exposed time by stage, idle time and its causes, in ns, added up over GPUs: a stage is
// exposed while none of those before it in the order is busy on its GPU.
function breakdown(view, from, to, data) {
  const gpus = [...new Set(view.lanes.filter((lane) => lane.told).map((lane) => lane.device))];
  const busy = {}, exposed = {}, causes = {};
  let idle = 0;
  for (const gpu of gpus) {
    const parts = view.lanes.filter((lane) => lane.told && lane.device === gpu).map((lane) => clipped(lane, from, to, data.stages));
    let covered = [];
    for (const stage of data.order) {
      const own = merged(parts.flatMap((part) => part.get(stage) ?? []));
      if (!own.length) continue;
      const both = merged([...covered, ...own].map((piece) => [...piece]));
      busy[stage] = (busy[stage] ?? 0) + lengthOf(own);
      exposed[stage] = (exposed[stage] ?? 0) + lengthOf(both) - lengthOf(covered);
      covered = both;
    }
    idle += to - from - lengthOf(covered);
  }
  for (const lane of view.lanes.filter((each) => each.idle !== undefined)) {
    for (const [cause, pieces] of clipped(lane, from, to, data.stages)) causes[cause] = (causes[cause] ?? 0) + lengthOf(pieces);
  }
  return { gpus: gpus.length, window: (to - from) * gpus.length, busy, exposed, idle, causes };
}

const element = (name, text, more = {}) => Object.assign(document.createElement(name), { textContent: text, ...more });

// -- the chart --
class Chart {
  constructor(figure, data) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.data = data;
    this.views = data.views.map((view) => ({ ...view, lanes: null }));
    this.width = 0;
    this.pending = false;
    this.hits = [];
    this.words = "";
    this.choose(0);
    this.listen();
    this.restore();
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
  }

  // What is drawn a part of, in words and in the address; and when that begins and ends.
  get whole() { return "step"; }
  get called() { return this.view.step === null ? "recording" : this.whole; }
  get begin() { return this.view.begin ?? 0; }
  get end() { return this.begin + this.view.span; }

  find(name) { return this.figure.querySelector(name); }

  // Lanes are unfolded when they are first shown; views that only shift those of the first have none of their own.
  choose(number) {
    const { lanes = this.data.views[0].lanes, shift = {} } = this.data.views[number];
    this.view = this.views[number];
    this.view.lanes ??= lanes.map((lane) => laneOf(lane, shift[lane.side]));
    this.from = this.begin;
    this.to = this.end;
    this.picked = this.hovered = null;
    this.lane = 0;
    for (const button of this.figure.querySelectorAll(".view")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.view) === number));
    }
    this.find(".picked").textContent = "Choose an op to see what launched it.";
    this.select(null);
    this.search(this.words);
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
    this.from = Math.min(Math.max(from, this.begin), this.end - length);
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
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const box = this.canvas.parentElement, height = TOP + this.view.lanes.length * ROW + 4;
    box.style.setProperty("--high", `${height}px`);
    const width = box.clientWidth, [scrollTop, inSight] = this.isPrinted ? [0, height] : [box.scrollTop, Math.min(height, box.clientHeight)];
    Object.assign(this, { width, height });
    if (this.canvas.width !== Math.round(width * devicePixelRatio) || this.canvas.height !== Math.round(inSight * devicePixelRatio)) {
      this.canvas.width = Math.round(width * devicePixelRatio);
      this.canvas.height = Math.round(inSight * devicePixelRatio);
      this.canvas.style.height = `${inSight}px`;
    }
    const c = this.context;
    c.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, -scrollTop * devicePixelRatio);
    c.fillStyle = colour("paper");
    c.fillRect(0, 0, width, height);
    this.axis(c, colour, height);
    const look = { paper: colour("paper"), ink: colour("ink"), muted: colour("muted"), hatch: hatching(c, colour("hatch"), devicePixelRatio) };
    look.stages = this.data.stages.map((name) => colour((this.data.colours?.[name] ?? name).replace(" ", "-")));
    look.texts = look.stages.map(inkOn);
    this.view.lanes.forEach((lane, number) => {
      const top = TOP + number * ROW;
      if (top + ROW > scrollTop && top < scrollTop + inSight) this.row(c, lane, top, ROW, look, number);
    });
    this.band(c, look, height);
    this.marksOf(c, look, TOP, ROW);
    if (scrollTop) { // the axis stays in sight
      c.translate(0, scrollTop);
      c.fillStyle = look.paper;
      c.fillRect(0, 0, width, TOP);
      this.axis(c, colour, TOP);
    }
    this.canvas.dataset.ms = (performance.now() - started).toFixed(1);
  }

  // A line below each op that was found, and a frame around the one that is chosen.
  marksOf(c, look, top, high) {
    c.fillStyle = look.ink;
    let last = null;
    const rows = new Map(this.view.lanes.map((lane, number) => [lane, top + number * high]));
    for (const { lane, i } of this.hits) {
      if (lane.end[i] < this.from || lane.start[i] > this.to) continue;
      const x = Math.max(this.x(lane.start[i]), this.labels), wide = Math.max(this.x(lane.end[i]) - x, 1);
      const place = `${Math.round(x)} ${rows.get(lane)}`;
      if (place !== last || wide > 1) c.fillRect(x, rows.get(lane) + high - 3, wide, 2);
      last = place;
    }
    for (const chosen of [this.hovered, this.picked].filter(Boolean)) {
      const x = this.x(chosen.lane.start[chosen.i]), end = this.x(chosen.lane.end[chosen.i]);
      if (end < this.labels || x > this.width) continue;
      const left = Math.max(x, this.labels);
      c.strokeStyle = look.ink; c.lineWidth = 2;
      c.strokeRect(left, rows.get(chosen.lane) + 1, Math.max(Math.min(end, this.width) - left, 3), high - 2);
      c.lineWidth = 1;
    }
  }

  // What is selected stays as it is, all else is dimmed.
  band(c, look, height) {
    if (!this.selected) return;
    const [left, right] = this.selected.map((time) => Math.min(Math.max(this.x(time), this.labels), this.width));
    c.globalAlpha = 0.55;
    c.fillStyle = look.paper;
    c.fillRect(this.labels, 20, left - this.labels, height);
    c.fillRect(right, 20, this.width - right, height);
    c.globalAlpha = 1;
    c.strokeStyle = look.ink;
    for (const x of [left, right]) { c.beginPath(); c.moveTo(x, 18); c.lineTo(x, height); c.stroke(); }
  }

  axis(c, colour, height) {
    const rough = (this.to - this.from) / Math.max(this.plot / 130, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max([1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough), 1);
    c.font = "11px system-ui, sans-serif";
    c.textBaseline = "middle";
    c.textAlign = "center";
    for (let number = Math.ceil(this.from / step); number * step <= this.to; number += 1) {
      const x = Math.round(this.x(number * step)) + 0.5;
      c.strokeStyle = colour("line");
      c.beginPath(); c.moveTo(x, 16); c.lineTo(x, height); c.stroke();
      c.fillStyle = colour("muted");
      const text = tickText(number * step, step, this.to);
      const half = c.measureText(text).width / 2;
      if (x + half < this.width) c.fillText(text, Math.max(x, half + 2), 8);
    }
  }

  row(c, lane, top, high, look, number) {
    const edge = this.labels;
    c.save();
    c.beginPath(); c.rect(edge, top, this.plot, high); c.clip();
    this.spans(c, lane, top, high, look);
    c.restore();
    c.fillStyle = number === this.lane && document.activeElement === this.canvas ? look.ink : look.muted;
    c.textAlign = "left";
    c.font = `${lane.is_first ? "600 " : ""}11px system-ui, sans-serif`;
    c.fillText(cut(c, edge < 100 ? lane.brief : lane.label, edge - 8, lane.is_first ? "bold" : "normal"), 4, top + high / 2);
    if (lane.is_first) {
      c.strokeStyle = look.muted;
      c.globalAlpha = 0.5;
      c.beginPath(); c.moveTo(0, top + 0.5); c.lineTo(edge + this.plot, top + 0.5); c.stroke();
      c.globalAlpha = 1;
    }
  }

  spans(c, lane, top, high, look) {
    const { from, to, plot, labels } = this, perPixel = (to - from) / plot;
    const { start, end, stage } = lane;
    let left = 0, right = -1, shown = -1; // neighbours of one colour are one rectangle
    const fill = () => { c.fillStyle = look.stages[shown]; c.fillRect(left, top + 1, right - left, high - 2); };
    for (let i = firstFrom(start, from - lane.longest); i < start.length && start[i] < to; i += 1) {
      if (end[i] < from) continue;
      const x = labels + (start[i] - from) / perPixel, until = labels + (end[i] - from) / perPixel, wide = until - x;
      if (until < right && wide < 1) continue;
      if (stage[i] === shown && x - right < 0.5 && wide <= 2) { right = Math.max(right, until); continue; }
      if (shown >= 0) fill();
      left = x; right = x + Math.max(wide, 0.7); shown = stage[i];
      if (wide > 2) { fill(); this.detail(c, lane, i, x, wide, top, high, look); shown = -1; }
    }
    if (shown >= 0) fill();
  }

  detail(c, lane, i, x, wide, top, high, look) {
    if (lane.hatched?.[i]) { c.fillStyle = look.hatch; c.fillRect(x, top + 1, wide, high - 2); }
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

  // The number of the lane below the pointer; the axis stays above the lanes.
  laneAt({ clientY }) {
    const y = clientY - this.canvas.getBoundingClientRect().top - 22;
    return y < 0 ? -1 : Math.floor((y + this.canvas.parentElement.scrollTop) / 17);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, lane = this.view.lanes[this.laneAt(event)];
    if (!lane || x < this.labels) return null;
    const time = this.time(x), reach = (this.to - this.from) / this.plot * 2;
    const last = firstFrom(lane.start, time + reach) - 1;
    for (let i = last; i >= Math.max(last - 400, 0); i -= 1) {
      if (lane.end[i] + reach >= time) return { lane, i };
    }
    return null;
  }

  said({ lane, i }) {
    const name = this.data.full[lane.name[i]], stage = this.data.stages[lane.stage[i]];
    const hatched = !lane.hatched?.[i] ? "" : lane.kind === "link" ? ", modelled" : ", communication";
    return `${name === stage ? name : `${name} · ${stage}`}${hatched} · `
      + `${timeText(lane.end[i] - lane.start[i])}, from ${timeText(lane.start[i])} of the ${this.called} · ${lane.label}`;
  }

  hover(found) {
    this.hovered = found;
    this.find(".hovered").textContent = found ? this.said(found) : "";
    this.draw();
  }

  pick(found) {
    this.picked = found;
    const told = this.find(".picked");
    told.replaceChildren();
    if (!found) { told.textContent = "Choose an op to see what launched it."; this.draw(); return; }
    told.append(element("p", this.said(found), { className: "said" }));
    const facts = element("dl", "", { className: "facts" });
    for (const [name, text] of this.facts(found)) facts.append(element("dt", name), element("dd", text));
    told.append(facts);
    this.lane = this.view.lanes.indexOf(found.lane);
    const box = this.canvas.parentElement, top = 17 * this.lane;
    if (top < box.scrollTop || top + 39 > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 2;
    this.draw();
  }

  facts({ lane, i }) {
    const alike = this.view.lanes.filter((each) => each.kind === lane.kind).flatMap((each) =>
      each.name.map((name, j) => (name === lane.name[i] && each.start[j] >= 0 ? each.end[j] - each.start[j] : null))).filter((length) => length !== null);
    const sum = alike.reduce((all, each) => all + each, 0);
    const like = ["Of this name", `${size(alike.length)} in this ${this.called}, ${timeText(sum)} in all`];
    if (lane.bytes) return [["Bytes", size(lane.bytes[i])], like];
    if (!lane.told) return [like];
    const of = (name) => (lane.told[name][i] < 0 ? null : this.data.full[lane.told[name][i]]);
    const { delay, bytes, threads } = Object.fromEntries(["delay", "bytes", "threads"].map((name) => [name, lane.told[name][i]]));
    const call = of("launch");
    return [
      ["Launched by", call ? `${call}, ${timeText(delay)} before it started` : "unknown"],
      ["Range", of("inside") ?? "none known"],
      ...(of("layer") ? [["Layer", of("layer")]] : []),
      ...(bytes >= 0 ? [["Bytes", `${size(bytes)}${of("way") ? `, ${of("way")}` : ""}`]] : []),
      ...(threads > 0 ? [["Threads", size(threads)]] : []),
      like,
    ];
  }

  // Show an op, in the middle where it is not in sight.
  go(found) {
    const { lane, i } = found, length = this.to - this.from;
    if (lane.start[i] < this.from || lane.end[i] > this.to) {
      this.show((lane.start[i] + lane.end[i] - length) / 2, length);
    }
    this.pick(found);
  }

  step(by) {
    const lanes = this.view.lanes;
    if (!lanes.length) return;
    if (!this.picked) { if (lanes[this.lane].count) this.pick({ lane: lanes[this.lane], i: firstFrom(lanes[this.lane].start, this.from) % lanes[this.lane].count }); return; }
    const { lane, i } = this.picked;
    this.go({ lane, i: Math.min(Math.max(i + by, 0), lane.count - 1) });
  }

  // -- search
  search(words) {
    this.words = words.trim();
    const wanted = this.words.toLowerCase();
    const matching = new Set();
    if (wanted) this.data.full.forEach((name, number) => { if (name.toLowerCase().includes(wanted)) matching.add(number); });
    this.hits = matching.size ? this.view.lanes.filter((lane) => lane.kind !== "path").flatMap((lane) => lane.name.flatMap((name, i) => (matching.has(name) ? [{ lane, i }] : []))) : [];
    this.hits.sort((a, b) => a.lane.start[a.i] - b.lane.start[b.i]);
    const sums = new Map();
    for (const { lane, i } of this.hits) {
      const [number, sum] = sums.get(lane.name[i]) ?? [0, 0];
      sums.set(lane.name[i], [number + 1, sum + lane.end[i] - lane.start[i]]);
    }
    const most = [...sums].sort((a, b) => b[1][1] - a[1][1]);
    const list = this.find(".hits");
    list.replaceChildren(...most.slice(0, 8).map(([name, [number, sum]]) =>
      element("li", `${this.data.names[name]}: ${size(number)}, ${timeText(sum)} in all`)));
    const more = most.length > 8 ? `, of ${most.length} names` : "";
    this.find(".found").textContent = wanted ? `${size(this.hits.length)} found${more}` : "";
    this.draw();
  }

  longest() {
    const length = ({ lane, i }) => lane.end[i] - lane.start[i];
    const found = this.hits.reduce((most, hit) => (most && length(most) >= length(hit) ? most : hit), null);
    if (found) this.go(found);
  }

  next(by) {
    if (!this.hits.length) { this.step(by); return; }
    const now = this.hits.findIndex((hit) => this.picked && hit.lane === this.picked.lane && hit.i === this.picked.i);
    const from = now < 0 ? (by > 0 ? -1 : 0) : now;
    this.go(this.hits[(from + by + this.hits.length) % this.hits.length]);
  }

  // -- selection
  select(span) {
    const box = this.find(".selection");
    this.selected = span && [Math.max(Math.min(...span), this.begin), Math.min(Math.max(...span), this.end)].map(Math.round);
    box.replaceChildren();
    if (this.selected && this.selected[1] > this.selected[0]) this.tell(box); else this.selected = null;
    this.find(".span").value = this.selected ? spanText(...this.selected) : "";
    this.draw();
  }

  tell(box) {
    const [from, to] = this.selected;
    const found = breakdown(this.view, from, to, this.data);
    const over = found.gpus === 1 ? "1 GPU" : `${found.gpus} GPUs, added up`;
    box.append(element("p", `${timeText(to - from)} selected, from ${timeText(from)} of the ${this.called}; on ${over}:`));
    const table = document.createElement("table"), head = table.createTHead().insertRow();
    for (const name of ["", "busy", "exposed", "share (%)"]) head.append(element("th", name, { scope: "col", className: name ? "number" : "" }));
    const body = table.createTBody();
    const add = (name, busy, exposed) => {
      const row = body.insertRow();
      row.append(element("th", name, { scope: "row" }));
      for (const ns of [busy, exposed]) {
        const cell = row.insertCell();
        cell.className = "number";
        if (ns !== null) { cell.textContent = timeText(ns); cell.dataset.ns = ns; }
      }
      row.insertCell().textContent = found.window ? (100 * exposed / found.window).toFixed(1) : "";
      row.cells[3].className = "number";
    };
    for (const stage of this.data.order) if (stage in found.busy) add(stage, found.busy[stage], found.exposed[stage]);
    add("idle", null, found.idle);
    const causes = Object.entries(found.causes).sort((a, b) => b[1] - a[1]);
    for (const [cause, ns] of causes) add(`idle: ${cause}`, null, ns);
    box.append(table);
    if (this.view.lost.ops) box.append(element("p", `${size(this.view.lost.ops)} ops of this ${this.called} are not in the page: what they cover counts as idle here.`));
  }

  // -- address
  restore() {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (!asked.has(this.whole) && !asked.has("t") && !asked.has("select")) return;
    const number = this.views.findIndex((view) => String(view.step) === asked.get(this.whole));
    this.choose(Math.max(number, 0));
    const span = spanOf(asked.get("t") ?? "", 0), selected = spanOf(asked.get("select") ?? "", 0);
    if (span && span[1] > span[0]) this.show(span[0], Math.min(span[1] - span[0], this.view.span));
    if (selected) this.select(selected);
    if (asked.has("find")) { this.find(".search").value = asked.get("find"); this.search(asked.get("find")); if (!span) this.longest(); }
    this.figure.scrollIntoView({ block: "nearest" });
  }

  note() { // at rest: a change of the address takes ms, and Safari refuses more than 100 in 30 s
    clearTimeout(this.noting);
    this.noting = setTimeout(() => history.replaceState(null, "", `#${this.address.join("&")}`), 100);
  }

  get address() {
    const said = [`${this.whole}=${encodeURIComponent(this.view.step ?? "")}`];
    if (this.from > this.begin || this.to < this.end) said.push(`t=${spanText(this.from, this.to)}`);
    if (this.selected) said.push(`select=${spanText(...this.selected)}`);
    if (this.words) said.push(`find=${encodeURIComponent(this.words)}`);
    return said;
  }

  // -- keys and pointer
  get middle() {
    if (this.pointer !== undefined) return this.time(this.pointer);
    const at = this.picked;
    return at ? (at.lane.start[at.i] + at.lane.end[at.i]) / 2 : (this.from + this.to) / 2;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const length = this.to - this.from, lanes = this.view.lanes;
    const pan = (by) => this.show(this.from + by * length, length);
    const move = (by) => {
      if (!lanes.length) return;
      const lane = lanes[(this.lane + by + lanes.length) % lanes.length];
      if (!lane.count) { this.lane = lanes.indexOf(lane); this.draw(); return; }
      const i = firstFrom(lane.start, this.from);
      this.pick({ lane, i: i && lane.end[i - 1] > this.from ? i - 1 : Math.min(i, lane.count - 1) });
    };
    const fit = () => {
      const at = this.picked, span = this.selected ?? (at && [at.lane.start[at.i], at.lane.end[at.i]]);
      if (span) { const room = Math.max((span[1] - span[0]) * 0.2, 100); this.show(span[0] - room, Math.min(span[1] - span[0] + 2 * room, this.view.span)); }
    };
    const done = {
      ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), a: () => pan(-0.2), d: () => pan(0.2),
      ArrowUp: () => move(-1), ArrowDown: () => move(1), f: fit,
      w: () => this.zoom(0.6, this.middle), s: () => this.zoom(1 / 0.6, this.middle),
      "+": () => this.zoom(0.6, this.middle), "=": () => this.zoom(0.6, this.middle), "-": () => this.zoom(1 / 0.6, this.middle),
      0: () => this.show(this.begin, this.view.span), n: () => this.next(1), N: () => this.next(-1), p: () => this.step(-1), m: () => this.longest(),
      v: () => this.find(".span").focus(), Escape: () => { this.select(null); this.pick(null); },
    }[event.key];
    if (done) { done(); this.note(); event.preventDefault(); }
  }

  listen() {
    let grabbed = null;
    const canvas = this.canvas, left = () => canvas.getBoundingClientRect().left;
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(event.clientX - left()));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      grabbed = { x: event.clientX, from: this.from, time: this.time(event.clientX - left()), pans: event.shiftKey, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      this.pointer = Math.max(event.clientX - left(), this.labels);
      if (!grabbed) { this.hover(this.at(event)); return; }
      grabbed.moved ||= Math.abs(event.clientX - grabbed.x) > 3;
      const length = this.to - this.from;
      if (grabbed.pans) this.show(grabbed.from - ((event.clientX - grabbed.x) / this.plot) * length, length);
      else if (grabbed.moved) this.select([grabbed.time, this.time(this.pointer)]);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (grabbed && !grabbed.moved) this.pick(this.at(event));
      grabbed = null;
      this.note();
    });
    canvas.addEventListener("pointercancel", () => { grabbed = null; });
    canvas.addEventListener("pointerleave", () => { this.pointer = undefined; this.hover(null); });
    canvas.addEventListener("keydown", (event) => this.key(event));
    for (const event of ["beforeprint", "afterprint"]) addEventListener(event, () => { this.isPrinted = event === "beforeprint"; this.paint(); });
    for (const name of ["focus", "blur"]) canvas.addEventListener(name, () => this.draw());
    canvas.parentElement.addEventListener("scroll", () => this.draw());
    document.addEventListener("keydown", (event) => {
      if (event.defaultPrevented || event.key !== "/" || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
      this.find(".search").focus();
      event.preventDefault();
    });
    this.find(".search").addEventListener("input", (event) => this.search(event.target.value));
    this.find(".search").addEventListener("keydown", (event) => {
      if (event.key === "Enter") { this.longest(); this.canvas.focus(); this.note(); event.preventDefault(); }
    });
    this.find(".span").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      const at = this.picked;
      const span = spanOf(event.target.value, at ? Math.round((at.lane.start[at.i] + at.lane.end[at.i]) / 2) : Math.round(this.middle));
      event.target.setAttribute("aria-invalid", String(!span));
      if (span) { this.select(span); this.note(); }
      event.preventDefault();
    });
    const deeds = { in: () => this.zoom(0.6, this.middle), out: () => this.zoom(1 / 0.6, this.middle), all: () => this.show(this.begin, this.view.span), next: () => this.next(1), before: () => this.next(-1) };
    for (const button of this.figure.querySelectorAll("[data-do]")) button.addEventListener("click", () => { deeds[button.dataset.do](); this.note(); });
    for (const button of this.figure.querySelectorAll(".view")) button.addEventListener("click", () => { this.choose(Number(button.dataset.view)); this.note(); });
    addEventListener("hashchange", () => this.restore());
  }
}

function channels(colour) {
  const digits = colour.length === 4 ? [...colour.slice(1)].map((d) => d + d) : colour.slice(1).match(/../g);
  return digits.map((d) => parseInt(d, 16));
}

// Black or white, whichever is read better on a colour.
function inkOn(colour) {
  const [r, g, b] = channels(colour).map((each) => (each / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#111" : "#fff";
}

// Each letter is measured once: to measure texts takes longer than to draw them.
const letters = { normal: {}, bold: {} };

function cut(c, text, room, weight = "normal") {
  if (room < 12) return "";
  const known = letters[weight], widthOf = (letter) => known[letter] ??= c.measureText(letter).width, most = room - widthOf("…");
  let wide = 0, fits = 0;
  for (const letter of text) {
    wide += widthOf(letter);
    if (wide > room) return fits ? `${text.slice(0, fits)}…` : "";
    if (wide <= most) fits += letter.length;
  }
  return text;
}

// Diagonal lines as a pattern.
const patterns = new Map();

function hatching(c, colour, ratio) {
  const key = `${colour} ${ratio}`;
  if (patterns.has(key)) return patterns.get(key);
  const side = Math.round(7 * ratio), tile = new OffscreenCanvas(side, side), lines = tile.getContext("2d");
  lines.strokeStyle = colour; lines.lineWidth = 2 * ratio;
  for (const at of [0, side, 2 * side]) { lines.moveTo(at + side, -side); lines.lineTo(at - side, side); }
  lines.stroke();
  const pattern = c.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  patterns.set(key, pattern);
  return pattern;
}

return { Chart, channels, clipped, element, firstFrom, laneOf, lengthOf, merged, numberText, shortTime, size, timeOf, timeText, unpacked };
})();
