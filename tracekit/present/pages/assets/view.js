// -- the view of whole runs: the chart of a step, of data that are asked for --
(() => {
const { Chart, channels, clipped, element, firstFrom, laneOf, lengthOf, merged, numberText, shortTime, size, timeOf, timeText } = tracekitChart;
const KEPT = "tracekit-token";

// The token comes in the address once, and is kept for this tab alone.
const given = new URLSearchParams(location.hash.slice(1));
if (given.has("token")) {
  sessionStorage.setItem(KEPT, given.get("token"));
  given.delete("token");
  history.replaceState(null, "", `${location.pathname}${given.size ? `#${given}` : ""}`);
}

async function ask(path, parameters, signal) {
  const found = await fetch(`/${path}?${new URLSearchParams(parameters)}`.replace(/\?$/, ""), {
    headers: { "X-Tracekit-Token": sessionStorage.getItem(KEPT) ?? "" }, signal, cache: "no-store",
  });
  const text = await found.text();
  if (found.ok) return JSON.parse(text);
  let told = { error: text };
  try { told = JSON.parse(text); } catch { /* a text is what it says */ }
  throw new Error([told.error, told.hint].filter(Boolean).join(": "));
}

function buttonOf(text, deed, more = {}) {
  const button = element("button", text, { type: "button", ...more });
  button.addEventListener("click", () => deed(button));
  return button;
}

// Asks again, and gives up what was asked before.
function asker(path) {
  let before = null;
  const again = async (parameters) => {
    before?.abort();
    const own = before = new AbortController();
    try { return await ask(path, parameters, own.signal); } catch (error) {
      if (own.signal.aborted) return null;
      throw error;
    }
  };
  return Object.assign(again, { giveUp: () => before?.abort() });
}

// Tells every second how far a long answer is, with a button to give it up.
function waiting(box, path, parameters, giveUp) {
  const began = Date.now(), told = element("p", "", { className: "hint" }), stop = buttonOf("Give up", giveUp);
  const timer = setInterval(async () => {
    const { [`/${path}?${new URLSearchParams(parameters)}`]: rows } = await ask("progress", {}).catch(() => ({}));
    told.textContent = `Searching for ${Math.round((Date.now() - began) / 1000)} s${rows ? `: ${rows.map(size).join(" of ")} rows read` : ""}.`;
    if (!isOver && !stop.isConnected) box.replaceChildren(told, stop);
  }, 1000);
  let isOver = false;
  return () => { isOver = true; clearInterval(timer); };
}

const state = document.getElementById("state");
function report(error) {
  state.hidden = false;
  state.textContent = error instanceof TypeError ? "The server has ended: start `tracekit view` again." : error.message;
}

// As Perfetto documents it: its window answers a ping once it is ready, and is handed the trace.
const PERFETTO = "https://ui.perfetto.dev";
const handOver = (page, buffer, title) => new Promise((done) => {
  const ping = setInterval(() => page.postMessage("PING", PERFETTO), 100);
  const end = (is) => { clearInterval(ping); clearTimeout(late); removeEventListener("message", heard); done(is); };
  const late = setTimeout(() => end(false), 15000);
  const heard = ({ source, origin, data }) => {
    if (source !== page || origin !== PERFETTO || data !== "PONG") return;
    page.postMessage({ perfetto: { buffer, title, fileName: title } }, PERFETTO);
    end(true);
  };
  addEventListener("message", heard);
});

// Integers come as the bytes, in base64, of the smallest type that holds them all.
const TYPES = { i1: Int8Array, i2: Int16Array, i4: Int32Array, f8: Float64Array };
function plain(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  if (!(value.type in TYPES)) return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, plain(each)]));
  const text = atob(value.base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = text.charCodeAt(i);
  return Array.from(new TYPES[value.type](bytes.buffer));
}

// Bins of a lane: what is drawn of each is how full it is of each stage.
function binsOf(lane, got, stages) {
  const start = new Float64Array(got.bin.length), end = new Float64Array(got.bin.length);
  let at = 0;
  got.bin.forEach((step, i) => { at += step; start[i] = got.begin + at * got.width; end[i] = start[i] + got.width; });
  const looks = Object.keys(got.busy);
  const most = (i) => looks.reduce((best, look) => (got.busy[look][i] > (got.busy[best]?.[i] ?? -1) ? look : best), looks[0]);
  const stage = Array.from(start, (_, i) => Math.max(stages.indexOf(most(i)), 0));
  return { ...lane, bins: got, start, end, stage, count: start.length, longest: got.width };
}

// Samples of a counter: each holds since the one before it, or, of memory, until the next.
function samplesOf(lane, got, last) {
  const { held } = lane, long = got.width || 1;
  let at = 0;
  const times = got.bin.map((step) => { at += step; return got.begin + at * long; });
  const start = got.width || held ? times : times.map((time, i) => times[i - 1] ?? time);
  const end = times.map((time, i) => (held ? times[i + 1] ?? last : got.width ? time + long : time));
  return { ...lane, samples: { ...got, times }, bins: got.width ? got : null, start, end, count: times.length, longest: got.width };
}

const valueText = (value, unit) => `${numberText(value)} ${unit === "percent" ? "%" : unit}`;

function valuesText({ held, unit }, low, mean, high) {
  const most = low === high ? "" : ` to ${valueText(high, unit)}${held ? "" : `, mean ${valueText(mean, unit)}`}`;
  return `${most ? numberText(low) : valueText(low, unit)}${most}`;
}

class RunChart extends Chart {
  get whole() { return "run"; }
  get number() { return this.views.indexOf(this.view); }
  get asks() { return this.askers ??= Object.fromEntries(["drawn", "idle", "flows", "findings", "op", "waited", "find", "hit", "table"].map((path) => [path, asker(path)])); }

  choose(number) {
    const view = this.data.views[number];
    this.have = null;
    if (this.flows) this.toggleFlows(true);
    this.find(".sight tbody").replaceChildren();
    this.find(".diagnosed").open = false;
    if (view.lanes) { super.choose(number); this.wantSteps().catch(report); return; }
    this.load(number).then(() => { this.choose(number); this.note(); }, report);
  }

  // Of a run that was not looked at yet.
  restore() {
    const asked = new URLSearchParams(location.hash.slice(1)), below = asked.get("below");
    this.flags = (asked.get("marks") ?? "").split(",").map(timeOf).filter((time) => time !== null);
    this.tellFlags();
    this.toggleFlows(asked.has("flows"));
    const number = this.views.findIndex((view) => view.step === asked.get("run"));
    const restore = () => {
      super.restore();
      this.chosen = (asked.get("lanes") ?? "").split(" or ").filter((own) => this.view.heads.some(({ where }) => where === own));
      this.tellLanes();
      if (below && !this.lower) this.beside(below);
    };
    if (number < 0 || this.data.views[number].lanes) restore();
    else this.load(number).then(restore, report);
  }

  async load(number) {
    state.hidden = false;
    state.textContent = `${this.data.views[number].step} is being read.`;
    fill(this.data.views[number], await ask("run", { run: number }));
    Object.assign(this.views[number], this.data.views[number], { lanes: null });
    tellLanes(this.data.views[number]);
  }

  // -- another run below, which goes to the same steps
  beside(name) {
    if (this.lower) { this.lower.figure.remove(); this.lower = null; this.note(); return; }
    const figure = this.figure.cloneNode(true), views = this.data.views.map((view) => ({ ...view }));
    for (const each of ["ready", "listed", "explained"]) delete figure.dataset[each];
    for (const each of figure.querySelectorAll("[aria-label]")) each.ariaLabel += ", of the run below";
    figure.querySelector(".both").remove();
    this.figure.after(figure);
    this.lower = new LowerChart(figure, { ...this.data, views });
    redraws.push(() => this.lower?.draw());
    const named = views.findIndex((view) => view.step === name);
    this.lower.choose(named < 0 ? (this.number + 1) % views.length : named);
    this.lower.upper = this;
    this.note();
  }

  show(from, length) {
    super.show(from, length);
    this.lower?.follow();
  }

  // -- own marks: kept in the address
  note() {
    super.note();
    this.tellFlags();
  }

  get address() {
    const said = super.address;
    if (this.lower) said.push(`below=${encodeURIComponent(this.lower.view.step)}`);
    if (this.chosen.length) said.push(`lanes=${encodeURIComponent(this.chosen.join(" or "))}`);
    if (this.flows) said.push("flows");
    if (this.flags.length) said.push(`marks=${this.flags.map(shortTime)}`);
    return said;
  }

  tellFlags() {
    const go = (time) => { this.show(time - (this.to - this.from) / 2, this.to - this.from); this.note(); };
    this.find(".marks").replaceChildren(...this.flags.map((time, number) => buttonOf(`mark ${number + 1}: ${timeText(time)}`, () => go(time))));
  }

  flag() {
    const at = Math.round(this.middle), near = 6 * (this.to - this.from) / this.plot;
    const others = this.flags.filter((time) => Math.abs(time - at) > near);
    this.flags = others.length < this.flags.length ? others : [...this.flags, at].sort((a, b) => a - b).slice(0, 20);
    this.draw();
  }

  // Own marks, and the ways from calls to the ops that they launched: all in sight, and the pinned one.
  marksOf(c, look, top, high) {
    super.marksOf(c, look, top, high);
    this.lanesChosen(c, look, top, high);
    c.strokeStyle = c.fillStyle = look.ink;
    for (const time of this.flags) {
      const x = this.x(time);
      if (x < this.labels || x > this.width) continue;
      c.fillRect(x, 14, 1, this.height);
      c.fillRect(x - 3, 14, 7, 4);
    }
    const y = (number) => top + (number + 0.5) * high;
    const flow = ([to, start, from, launched]) => {
      const first = this.x(launched), x = this.x(start);
      c.beginPath(); c.moveTo(first, y(from)); c.bezierCurveTo(first + 20, y(from), x - 20, y(to), x, y(to)); c.stroke();
      c.beginPath(); c.arc(first, y(from), 3, 0, 7); c.fill();
    };
    c.save();
    c.beginPath(); c.rect(this.labels, 0, this.plot, this.height); c.clip();
    c.globalAlpha = 0.45;
    this.flows?.forEach(flow);
    c.globalAlpha = 1;
    const { launch_start: from, launch_lane: lane = null, op } = this.told ?? {};
    if (this.picked && this.picked.lane.number?.[this.picked.i] === op && lane !== null) flow([this.view.lanes.indexOf(this.picked.lane), this.picked.lane.start[this.picked.i], lane, from]);
    c.restore();
  }

  // Chosen lanes have a bar before their name; what is selected of others is dimmed, too.
  lanesChosen(c, look, top, high) {
    if (!this.chosen.length) return;
    const [left, right] = (this.selected ?? [this.from, this.to]).map((time) => Math.min(Math.max(this.x(time), this.labels), this.width));
    this.view.lanes.forEach(({ where }, number) => {
      const isOwn = where && this.chosen.includes(where), y = top + number * high;
      if (isOwn) { c.fillStyle = look.ink; c.fillRect(0, y + 2, 3, high - 3); }
      if (this.chosen.some((own) => `${where} `.startsWith(`${own} `))) return;
      c.globalAlpha = 0.55; c.fillStyle = look.paper;
      c.fillRect(left, y, right - left, high);
      c.globalAlpha = 1;
    });
  }

  // -- steps: marks on the axis, and places to go to
  async wantSteps() {
    const view = this.view, list = this.find(".steps");
    list.replaceChildren();
    view.steps ??= await ask("steps", { run: this.number });
    if (view !== this.view) return;
    (this.lower ?? this).follow?.();
    const { unlike, iteration, lost } = view.steps, many = iteration.length + lost;
    const entry = ({ iteration: number, share, start, end }) =>
      buttonOf(`step ${number}: ${share.toFixed(2)} times the median`, () => { this.around(start, end); this.note(); });
    const told = iteration.length ? `${size(many)} step${many === 1 ? "" : "s"}, ${unlike.length ? "unlike the others: " : "no outliers found."}` : "No steps are known.";
    list.replaceChildren(element("span", told), ...unlike.map(entry));
    this.draw();
  }

  // -- findings of `diagnose`, once they are asked for
  listen() {
    super.listen();
    const box = this.find(".diagnosed"), list = box.querySelector("ol");
    const show = (error) => list.replaceChildren(element("li", error.message));
    box.addEventListener("toggle", () => { if (box.open) this.diagnose(list).catch(show); });
    const launches = buttonOf("Launches", () => { this.toggleFlows(!this.flows); this.note(); }, { className: "flows", ariaPressed: "false" });
    const told = element("span", "", { role: "status" }), hint = `Opens ${PERFETTO} in a new window, and hands it the steps in sight`;
    const write = (opens) => this.write(told, opens).catch((error) => { told.textContent = error.message; });
    this.canvas.addEventListener("click", (event) => {
      if (event.clientX - this.canvas.getBoundingClientRect().left < this.labels) { this.toggle(this.laneAt(event)); this.note(); }
    });
    this.find(".timeline").replaceChildren(launches, element("span", "", { className: "launches", role: "status" }), buttonOf("Open these steps in Perfetto", () => write(true), { title: hint }), buttonOf("Write them to a file", () => write(false)), told);
  }

  toggleFlows(isOn) {
    this.flows = isOn ? [] : null;
    this.flowing = null;
    this.find(".flows").ariaPressed = String(isOn);
    this.find(".launches").textContent = "";
    this.draw();
  }

  // Launches of the ops in sight, where they are few.
  async wantFlows() {
    const from = Math.floor(this.from), to = Math.ceil(this.to), key = `${this.number} ${from} ${to}`;
    if (!this.flows || key === this.flowing) return;
    this.flowing = key;
    const got = await this.asks.flows({ run: this.number, from, to }).catch((error) => { this.flowing = null; throw error; });
    if (!got || !this.flows) return;
    this.flows = (got.flows ?? []).filter((flow) => !flow.includes(null));
    this.find(".launches").textContent = got.flows ? `${size(this.flows.length)} of ${size(got.flows.length)} launches are drawn: those of threads with a lane.` : `More than ${size(got.most)} ops are in sight: zoom in to see their launches.`;
    this.draw();
  }

  // The steps in sight, for Perfetto: in its window, or as a file where that cannot be reached.
  async write(told, opens) {
    const page = opens && window.open(PERFETTO);
    told.textContent = "The steps are being written.";
    const asked = { run: this.number, from: Math.floor(this.from), to: Math.ceil(this.to) };
    const { file, content } = await ask("timeline", asked).catch((error) => { if (page) page.close(); throw error; });
    const { buffer } = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
    const link = element("a", file, { href: URL.createObjectURL(new Blob([buffer])), download: file });
    const isThere = page && await handOver(page, buffer, file);
    told.replaceChildren(isThere ? `Handed to Perfetto: ${file}` : opens ? `${PERFETTO} does not answer. To open there: ` : "To open in Perfetto: ", isThere ? "" : link);
  }

  async diagnose(list) {
    const view = this.view;
    if (!view.found) {
      list.replaceChildren(element("li", "…"));
      const waited = waiting(list.firstChild, "findings", { run: this.number }, () => { this.asks.findings.giveUp(); this.find(".diagnosed").open = false; });
      view.found = await this.asks.findings({ run: this.number }).finally(waited);
      if (!view.found) return;
    }
    if (view !== this.view) return;
    const { findings, empty } = view.found;
    list.replaceChildren(...findings.map(([text, where, [start, end]]) => {
      const entry = element("li", `${text} `), go = () => { this.select([start, end]); this.around(start, end); this.note(); };
      if (end) entry.append(buttonOf(where, go));
      return entry;
    }));
    if (!findings.length) list.replaceChildren(element("li", empty));
  }

  around(start, end) {
    const room = (end - start) * 0.05;
    this.show(start - room, Math.min(end - start + 2 * room, this.view.span));
  }

  toStep(by) {
    const { start, end } = this.view.steps ?? { start: [] };
    if (!start.length) return;
    const middle = (this.from + this.to) / 2;
    const now = firstFrom(start, middle + 1) - 1, isIn = now >= 0 && middle < end[now];
    const to = Math.min(Math.max(now + (by > 0 || isIn ? by : 0), 0), start.length - 1);
    this.around(start[to], end[to]);
  }

  axis(c, colour, height) {
    super.axis(c, colour, height);
    const { start, iteration } = this.view.steps ?? { start: [] };
    const first = firstFrom(start, this.from), last = firstFrom(start, this.to);
    if (last - first > this.plot / 6) return;
    c.fillStyle = colour("ink");
    c.textAlign = "left";
    c.font = "10px system-ui, sans-serif";
    for (let i = first; i < last; i += 1) {
      const x = Math.round(this.x(start[i]));
      c.fillRect(x, 14, 1, 8);
      if (last - first < this.plot / 60) c.fillText(iteration[i], x + 3, 17);
    }
  }

  key(event) {
    const deed = { "[": () => this.toStep(-1), "]": () => this.toStep(1), k: () => this.flag(), " ": () => this.toggle(this.lane) }[event.key];
    if (!deed || event.ctrlKey || event.metaKey || event.altKey) { super.key(event); return; }
    deed();
    this.note();
    event.preventDefault();
  }

  paint() {
    super.paint();
    this.want();
    clearTimeout(this.soon);
    this.soon = setTimeout(() => { this.list(); this.wantFlows().catch(report); }, 120);
  }

  // Half as much again is asked for on both sides, and nothing where what is there will do.
  want() {
    const length = this.to - this.from, perPixel = length / this.plot, have = this.have;
    const fits = have && have.from <= this.from && have.to >= this.to;
    if (fits && perPixel < 2 * have.perPixel && (have.isFinest || perPixel > have.perPixel / 2)) return;
    const from = Math.max(Math.floor(this.from - length / 2), this.begin), to = Math.min(Math.ceil(this.to + length / 2), this.end);
    const key = `${this.number} ${from} ${to} ${Math.round(this.plot)}`;
    if (key === this.wanting) return;
    this.wanting = key;
    this.asks.drawn(this.piece(from, to, perPixel)).then((got) => {
      if (!got || this.wanting !== key) return;
      this.wanting = null;
      this.take(got, { from, to, perPixel });
    }).catch((error) => { this.wanting = null; this.have = { from, to, perPixel, isFinest: true }; report(error); });
  }

  piece(from, to, perPixel) {
    return { run: this.number, from, to: Math.max(to, from + 1), pixels: Math.min(Math.max(Math.round((to - from) / perPixel), 1), 8192) };
  }

  take(got, have) {
    const chosen = this.picked && [this.view.lanes.indexOf(this.picked.lane), this.picked.lane.number?.[this.picked.i]];
    this.data.full = got.full;
    this.data.names = got.names;
    this.view.lanes = this.view.heads.map((lane, number) => {
      const own = plain(got.lanes[number]);
      if (lane.kind === "counter") return samplesOf(lane, own, this.end);
      return own.width ? binsOf(lane, own, this.data.stages) : laneOf({ ...lane, ...own }, own.begin);
    });
    this.have = { ...have, isFinest: this.view.lanes.every((lane) => !lane.bins) };
    clearTimeout(this.why);
    if (this.view.lanes.some((lane) => lane.kind === "idle")) this.why = setTimeout(() => this.explain(have).catch(report), 250);
    this.hovered = this.picked = null;
    if (chosen && chosen[1] >= 0) this.found(...chosen);
    this.mark();
    this.settle();
    this.closer();
    this.draw();
    this.figure.dataset.ready = "yes";
  }

  // Causes of idle time take longer than the picture, and come after it.
  async explain({ from, to, perPixel }) {
    const have = this.have, full = this.data.full;
    const got = await this.asks.idle(this.piece(from, to, perPixel));
    if (!got || have !== this.have) return;
    const before = full.length;
    full.push(...got.names);
    this.data.names.push(...got.names);
    for (const [number, own] of Object.entries(plain(got.lanes))) {
      const lane = { ...this.view.heads[number], isKnown: true };
      this.view.lanes[number] = own.width ? binsOf(lane, own, this.data.stages) : laneOf({ ...lane, ...own, name: own.name.map((name) => name + before) }, own.begin);
    }
    this.figure.dataset.explained = "yes";
    this.draw();
  }

  // Put the frame around an op again, where it is drawn.
  found(lane, number) {
    const own = this.view.lanes[lane], i = own?.number?.indexOf(number) ?? -1;
    if (i >= 0) this.picked = { lane: own, i };
    return i >= 0;
  }

  // Up to the least value, lighter up to the largest one; a line at the mean.
  samples(c, lane, top, high, look) {
    const { low, mean, high: most, last, width, times } = lane.samples, floor = top + high - 1;
    const tall = (value) => Math.min(Math.max(value / lane.top, 0), 1) * (high - 3) || 0;
    const bar = (from, to, low, high, strength) => {
      c.globalAlpha = strength;
      c.fillRect(this.x(from), floor - tall(high), Math.max(this.x(to) - this.x(from), 0.7), Math.max(tall(high) - tall(low), low === high ? 1 : 0));
    };
    c.fillStyle = look.ink;
    for (let i = Math.max(firstFrom(lane.start, this.from) - 1, 0); i < lane.count && lane.start[i] < this.to; i += 1) {
      const end = lane.held && width ? Math.min(times[i] + width, lane.end[i]) : lane.end[i];
      bar(lane.start[i], end, 0, low[i], 0.4);
      bar(lane.start[i], end, low[i], most[i], 0.2);
      if (!lane.held) bar(lane.start[i], end, mean[i], mean[i], 0.9);
      if (end < lane.end[i]) bar(end, lane.end[i], 0, last[i], 0.4);
    }
    c.globalAlpha = 1;
  }

  spans(c, lane, top, high, look) {
    if (lane.samples) { this.samples(c, lane, top, high, look); return; }
    if (!lane.bins) { super.spans(c, lane, top, high, look); return; }
    if (!lane.count) return;
    const tall = Math.round((high - 2) * devicePixelRatio), key = `${tall} ${look.stages}`;
    if (lane.drawnAs !== key) Object.assign(lane, { drawnAs: key, image: this.imageOf(lane, tall, look.stages.map(channels)) });
    const left = this.x(lane.start[0]);
    c.imageSmoothingEnabled = false;
    c.drawImage(lane.image, left, top + 1, this.x(lane.end.at(-1)) - left, high - 2);
  }

  // The bins of a lane as an image, a column of pixels for each, which is drawn at any zoom.
  imageOf({ bins: { busy, width }, start, end, count }, tall, colours) {
    const wide = Math.round((end.at(-1) - start[0]) / width), image = new OffscreenCanvas(wide, tall), c = image.getContext("2d");
    const picture = c.createImageData(wide, tall), pixels = new Uint32Array(picture.data.buffer), filled = new Float64Array(count);
    for (const [name, own] of Object.entries(busy)) {
      const [red, green, blue] = colours[this.data.stages.indexOf(name)], value = (255 << 24) | (blue << 16) | (green << 8) | red;
      for (let i = 0; i < count; i += 1) {
        if (!own[i]) continue;
        const column = Math.round((start[i] - start[0]) / width), floor = Math.round(filled[i]);
        filled[i] = Math.min(filled[i] + (own[i] / width) * tall, tall);
        for (let at = Math.min(Math.max(Math.round(filled[i]), floor + 1), tall); at > floor; at -= 1) pixels[(tall - at) * wide + column] = value;
      }
    }
    c.putImageData(picture, 0, 0);
    return image;
  }

  said(found) {
    const { lane, i } = found;
    if (lane.samples) {
      const { low, mean, high, count, width, last } = lane.samples, many = width && count[i] ? `, ${size(count[i])} samples in ${timeText(width)}` : "";
      const value = many ? valuesText(lane, low[i], mean[i], high[i]) : valueText(last[i], lane.unit);
      return `${value}${many} · from ${timeText(lane.start[i])} of the run · ${lane.label}`;
    }
    if (!lane.bins) return super.said(found);
    const { busy, width } = lane.bins;
    const parts = Object.keys(busy).filter((name) => busy[name][i]).map((name) => `${name} ${(100 * busy[name][i] / width).toFixed(1)} %`);
    const many = `${size(lane.bins.count[i])} start in ${timeText(width)}`;
    const longest = lane.bins.count[i] ? `, the longest of ${timeText(lane.bins.longest[i])}` : "";
    return `${many}${longest}; busy: ${parts.join(", ") || "nothing"} · from ${timeText(lane.start[i])} of the run · ${lane.label}. Zoom in to see each.`;
  }

  facts() { return []; }

  pick(found) {
    super.pick(found);
    if (!found || !["ops", "way"].includes(found.lane.kind) || found.lane.bins) return;
    const list = this.find(".picked .facts");
    this.asks.op({ run: this.number, op: found.lane.number[found.i] }).then((told) => {
      if (!told) return;
      this.told = told;
      this.draw();
      for (const [name, text] of factsOf(told)) list.append(element("dt", name), element("dd", text));
      if (told.name.length > 300) list.after(named(told.name));
      this.wait(told, list);
    }, report);
  }

  // What a pinned op waited for, and the other members of its collective.
  wait(told, list) {
    this.asks.waited({ run: this.number, op: told.op }).then((got) => {
      if (!got || this.told !== told) return;
      const idle = got.idle.map(({ cause, idle_ns: ns }) => `${timeText(ns)}: ${cause}`).join("; ");
      list.append(element("dt", "GPU idle before"), element("dd", idle || "no"));
      const others = got.members.filter(({ op }) => op !== told.op);
      if (!others.length) return;
      const box = element("dd", "");
      box.append(...others.map((place) => {
        const later = place.start - told.start;
        return buttonOf(`GPU ${place.device}: ${later ? `${timeText(Math.abs(later))} ${later > 0 ? "later" : "earlier"}` : "at once"}`, () => this.goTo(place));
      }));
      list.append(element("dt", "Other members"), box);
    }, report);
  }

  // -- search
  search(words) {
    this.words = words.trim();
    this.matching = new Set();
    this.mark();
    clearTimeout(this.typed);
    if (!this.words) { this.find(".hits").replaceChildren(); this.find(".found").textContent = ""; return; }
    this.typed = setTimeout(() => this.asks.find({ run: this.number, words: this.words }).then((got) => {
      if (!got) return;
      this.matching = new Set(got.full);
      const more = got.names > got.most.length ? `, of ${size(got.names)} names` : "";
      this.find(".found").textContent = `${size(got.ops)} found${more}`;
      this.find(".hits").replaceChildren(...got.most.map(({ name, ops, total }) => element("li", `${name.length > 120 ? `${name.slice(0, 120)}…` : name}: ${size(ops)}, ${timeText(total)} in all`, { title: name })));
      this.mark();
    }, report), 120);
  }

  mark() {
    const own = this.matching?.size ? this.view.lanes.filter((lane) => lane.kind === "ops" && !lane.bins) : [];
    const numbers = new Set((this.data.full ?? []).flatMap((name, number) => (this.matching?.has(name) ? [number] : [])));
    this.hits = own.flatMap((lane) => lane.name.flatMap((name, i) => (numbers.has(name) ? [{ lane, i }] : [])));
    this.draw();
  }

  longest() { this.hit("longest", 0); }

  next(by) {
    if (!this.words) { this.step(by); return; }
    const at = this.last ?? Math.round(by > 0 ? this.from : this.to);
    this.hit(by > 0 ? "next" : "previous", at);
  }

  hit(which, time) {
    if (!this.words) return;
    this.asks.hit({ run: this.number, words: this.words, which, time }).then((got) => {
      if (!got) return;
      if (!got.hit) { this.find(".found").textContent = which === "longest" ? "0 found" : "no more"; return; }
      this.last = got.hit.start;
      this.goTo(got.hit);
    }, report);
  }

  goTo(place) {
    this.sought = place;
    const wide = Math.max(20 * (place.end - place.start), 2000);
    const length = Math.min(this.to - this.from, wide, this.view.span);
    this.show((place.start + place.end - length) / 2, length);
    this.settle();
    this.note();
  }

  // Choose what was sought, once it is drawn.
  settle() {
    if (!this.sought || !this.found(this.sought.lane, this.sought.op)) return;
    this.sought = null;
    this.pick(this.picked);
  }

  // An op is chosen where ops are drawn singly: of its lane's bins a quarter of the time is shown next.
  closer() {
    const length = (this.to - this.from) / 4, at = this.sought?.start;
    if (this.view.lanes[this.sought?.lane]?.bins && at >= this.from && at <= this.to) this.show(at - length / 2, length);
  }

  // -- selection: of all lanes, or of chosen GPUs and streams
  select(span) {
    if (!span) this.chosen = [];
    super.select(span);
  }

  toggle(number) {
    const { where, label } = this.view.lanes[number] ?? {};
    if (!where) { say(`${label} cannot be chosen: choose GPUs and streams.`); return; }
    const order = this.view.lanes.map((lane) => lane.where), others = this.chosen.filter((each) => each !== where);
    this.chosen = others.length < this.chosen.length ? others : [...others, where].sort((a, b) => order.indexOf(a) - order.indexOf(b));
    this.tellLanes();
  }

  tellLanes() {
    const told = this.chosen.length ? `${this.lanesText} chosen. Select a time: drag, or press V.` : "";
    if (this.selected) this.select(this.selected); else this.find(".selection").textContent = told;
    this.draw();
  }

  get lanesText() { return this.chosen.map((own) => this.view.lanes.find(({ where }) => where === own).label).join(", "); }

  tell(box) {
    const [from, to] = this.selected, of = this.chosen.length ? `, on ${this.lanesText}` : "";
    box.append(element("p", `${timeText(to - from)} selected, from ${timeText(from)} of the run${of}:`));
    const keys = element("span", "", { role: "group", ariaLabel: "By" }), tools = element("div", "", { className: "tools" });
    const table = element("div", "", { className: "told" });
    tools.append(keys);
    box.append(tools, table);
    this.by ??= "stage";
    keys.append(...Object.entries(this.data.keys).map(([by, label]) => buttonOf(label, (button) => {
      this.by = by;
      for (const each of keys.children) each.ariaPressed = String(each === button);
      this.break(table, from, to);
    }, { ariaPressed: String(by === this.by) })));
    this.break(table, from, to);
  }

  break(box, from, to) {
    clearTimeout(this.breaking);
    this.waited?.();
    box.replaceChildren(element("p", "…", { className: "hint" }));
    this.breaking = setTimeout(() => {
      const parameters = { run: this.number, from, to, by: this.by, lanes: this.chosen.join(" or ") }, givenUp = element("p", "Given up.", { className: "hint" });
      const waited = this.waited = waiting(box, "table", parameters, () => { this.asks.table.giveUp(); show(givenUp); });
      const show = (...parts) => { if (waited === this.waited) { waited(); box.replaceChildren(...parts); } };
      this.asks.table(parameters).then((got) => { if (got) show(...tableOf(got, this.data.causes)); }, (error) => show(element("p", error.message, { className: "unknown" })));
    }, 150);
  }

  // -- what is in sight, as a table: to whole bins where a lane is drawn of bins
  list() {
    if (!this.have) return;
    const grain = Math.max(...this.view.lanes.map((lane) => lane.bins?.width ?? 0), 1);
    const from = this.begin + Math.floor((this.from - this.begin) / grain) * grain;
    const to = this.begin + Math.ceil((this.to - this.begin) / grain) * grain;
    const looks = new Set(), some = grain > 1 ? `, whole bins of ${timeText(grain)}` : "";
    this.find(".stretch").textContent = `From ${timeText(from)} to ${timeText(to)}${some}. Busy time is the sum over stages, on lanes of GPUs of their exposed time; idle time, over causes.`;
    this.find(".sight tbody").replaceChildren(...this.view.lanes.map((lane) => {
      if (lane.samples) return valuesRow(lane, from, to);
      const { busy, count, longest } = inSight(lane, from, to, this.data.stages);
      const all = Object.values(busy).reduce((sum, ns) => sum + ns, 0);
      const row = document.createElement("tr");
      row.append(element("th", lane.label, { scope: "row" }));
      if (lane.kind === "idle" && !lane.isKnown) { row.append(element("td", "being found", { colSpan: 5, className: "hint" })); return row; }
      const own = ["stages", "exposed", "idle"].includes(lane.kind) ? ["", ""] : [size(count), count ? timeText(longest) : ""];
      for (const text of [own[0], timeText(all), (100 * all / (to - from)).toFixed(1), own[1]]) row.append(element("td", text, { className: "number" }));
      row.cells[2].dataset.ns = all;
      row.append(element("td", Object.entries(busy).map(([name, ns]) => `${name}\u00a0${timeText(ns).replace(" ", "\u00a0")}`).join("; ")));
      for (const name in busy) looks.add(name);
      return row;
    }));
    this.legend([...looks]);
    this.figure.dataset.listed = "yes";
  }

  // Colours of communication, and of causes of idle time, are explained once they are in sight.
  legend(names) {
    const list = this.find(".legend"), known = Array.from(list.children, (entry) => entry.dataset.look);
    for (const look of names.filter((name) => name in this.data.colours && !known.includes(name))) {
      const entry = element("li", ""), mark = element("i", "", { className: "mark" });
      mark.style.background = `var(--${this.data.colours[look]})`;
      entry.dataset.look = look;
      entry.append(mark, Object.values(this.data.causes).includes(look) ? `idle: ${look}` : look);
      list.append(entry);
    }
  }
}

// Shows as long a time as the chart above, as far from the step of the same number.
class LowerChart extends RunChart {
  restore() { this.flags = []; this.tellFlags(); }
  note() { this.upper?.note(); }

  follow() {
    const upper = this.upper, [over, own] = [upper?.view.steps, this.view.steps];
    if (!over || !own || !this.view.lanes) return;
    const last = firstFrom(over.start, (upper.from + upper.to) / 2 + 1) - 1, number = Math.max(last, 0);
    const same = own.iteration.indexOf(over.iteration[number]);
    const [here, there] = same < 0 ? [upper.begin, this.begin] : [over.start[number], own.start[same]];
    this.show(upper.from - here + there, Math.min(upper.to - upper.from, this.view.span));
  }
}

function inSight(lane, from, to, stages) {
  const first = firstFrom(lane.start, from), last = firstFrom(lane.start, to), inside = (values) => values.slice(first, last);
  const sum = (values) => inside(values).reduce((all, each) => all + each, 0);
  const parts = lane.bins ? Object.entries(lane.bins.busy) : [...clipped(lane, from, to, stages)];
  const all = new Map(parts.map(([name, own]) => [name, lane.bins ? sum(own) : lengthOf(merged(own))]));
  const lengths = lane.bins ? inside(lane.bins.longest) : inside(lane.end).map((end, i) => end - lane.start[first + i]);
  const busy = Object.fromEntries(stages.filter((name) => all.get(name)).map((name) => [name, all.get(name)]));
  return { busy, count: lane.bins ? sum(lane.bins.count) : last - first, longest: Math.max(0, ...lengths) };
}

// The samples of a counter in sight: how many, and their values.
function valuesRow(lane, from, to) {
  const { times, count, mean, low, high } = lane.samples, row = document.createElement("tr");
  const own = times.flatMap((time, i) => (count[i] && time >= from && time < to ? [i] : []));
  const many = own.reduce((sum, i) => sum + count[i], 0), of = (values) => own.map((i) => values[i]);
  const average = own.reduce((sum, i) => sum + mean[i] * count[i], 0) / many;
  const before = lane.held ? times.findLastIndex((time) => time < from) : -1;
  const held = before < 0 ? [] : [lane.samples.last[before]];
  const text = many || held.length ? valuesText(lane, Math.min(...held, ...of(low)), average, Math.max(...held, ...of(high))) : "";
  row.append(element("th", lane.label, { scope: "row" }), element("td", size(many), { className: "number" }));
  row.append(element("td", ""), element("td", ""), element("td", ""), element("td", text));
  return row;
}

function named(text) {
  const box = document.createElement("details");
  box.append(element("summary", "Name in full"), element("p", text));
  return box;
}

function factsOf(told) {
  const way = told.source || told.destination ? `, ${told.source ?? "?"} → ${told.destination ?? "?"}` : "";
  const known = [
    ["Stage", `${told.stage}, ${told.stage_source === "none" ? "without evidence of its stage" : `known by ${told.stage_source}`}${told.iteration === null ? "" : `, step ${told.iteration}`}`],
    ["Launched by", told.launch === null ? "unknown" : `${told.launch}, ${timeText(told.delay_ns)} before it started`],
    ["Range", told.range ?? "none known"],
    ["Layer", told.layer],
    ["Bytes", told.bytes === null ? null : `${size(told.bytes)}${way}`],
    ["Threads", told.threads ? size(told.threads) : null],
    ["Of this name", told.ops === undefined ? null : `${size(told.ops)} in this run, ${timeText(told.total)} in all`],
  ];
  return known.filter(([, text]) => text !== null && text !== undefined);
}

const TITLES = { name: "kernel", share: "share (%)", window_share: "of the time (%)" };
const title = (column) => TITLES[column] ?? column.replace(/_ns$/, "").replaceAll("_", " ");

function cellText(column, value) {
  if (value === null) return "";
  if (column.endsWith("share")) return (100 * value).toFixed(1);
  if (/_ns$/.test(column)) return timeText(value);
  return typeof value === "number" && column !== "device" ? numberText(value) : String(value);
}

function tableOf(got, causes) {
  const columns = Object.keys(got.rows[0] ?? {}).filter((column) => got.rows.some((row) => row[column] !== null));
  const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  const isNumber = (column) => got.rows.some((row) => typeof row[column] === "number");
  for (const column of columns) head.append(element("th", title(column), { scope: "col", className: isNumber(column) ? "number" : "" }));
  for (const values of got.rows) {
    const row = body.insertRow();
    for (const column of columns) {
      const cell = row.insertCell();
      cell.textContent = column === "cause" ? causes[values.cause] : cellText(column, values[column]);
      cell.className = isNumber(column) ? "number" : "long";
      cell.dataset.column = column;
      if (/_ns$/.test(column) && values[column] !== null) cell.dataset.ns = values[column];
    }
  }
  const { window_ns: all, idle_ns: idle, sum_over: over } = got.meta;
  const text = all === undefined ? "" : `Idle: ${timeText(idle)} of ${timeText(all)} (${(100 * idle / all).toFixed(1)} %)${over ? `, sum over ${over}` : ""}`;
  const told = element("p", text, { className: "idle-time" });
  told.dataset.ns = idle ?? "";
  const shell = element("p", ""), copied = async (button) => { await copy(got.shell); say("Copied"); button.textContent = "Copied"; };
  shell.append(element("code", got.shell), " ", buttonOf("Copy the command", copied));
  const scroll = element("div", "", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "The selection" });
  scroll.append(table);
  const more = got.lost ? [element("p", `${size(got.lost)} more rows: the command prints them.`, { className: "hint" })] : [];
  return [scroll, ...more, told, ...got.warnings.map((text) => element("p", text, { className: "hint" })), shell];
}

function fill(view, got) {
  const none = { start: [], length: [], stage: [], name: [], number: [] };
  Object.assign(view, got, { heads: got.lanes, lanes: got.lanes.map((lane) => ({ ...lane, ...none })) });
}

// What is missing is said above the chart.
function tellLanes({ lanes, lost, missing }) {
  const none = "This run has no GPU work, and no ranges of threads that drive steps.";
  const more = !lanes.length ? none : lost ? `${size(lost)} more lanes are not drawn.` : "";
  state.textContent = [...missing, more].join(" ").trim();
  state.hidden = !state.textContent;
}

async function begin() {
  const told = await ask("runs", {});
  const views = told.runs.map((name) => ({ step: name, begin: 0, span: 1, lanes: null }));
  const names = new URLSearchParams(location.hash.slice(1));
  const first = Math.max(told.runs.indexOf(names.get("run")), 0);
  for (const number of new Set([0, first])) fill(views[number], await ask("run", { run: number }));
  document.title = `${told.runs.join(", ")} · tracekit`;
  document.querySelector("h1").textContent = told.runs.join(", ");
  const figure = document.querySelector("[data-view]");
  if (views.length > 1) figure.querySelector(".runs").append(...told.runs.map((name, number) => {
    const button = element("button", name, { type: "button", className: "view" });
    button.dataset.view = number;
    return button;
  }));
  if (views.length > 1) figure.querySelector(".runs").after(buttonOf("Two runs", () => chart.beside(), { className: "both" }));
  tellLanes(views[first]);
  figure.hidden = false;
  const chart = new RunChart(figure, { views, stages: told.stages, order: told.order, keys: told.keys, causes: told.causes, colours: told.colours, names: [], full: [] });
  redraws.push(() => chart.draw());
  chart.canvas.focus({ preventScroll: true });
}

begin().catch(report);
})();
