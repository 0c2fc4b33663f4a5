// -- figures --
// A figure is drawn as wide as its place. Title, legend and notes are part of the page, and wrap.
const NARROWEST = 140;
const LETTER = 6.6;
const SIDE = 0.4;
const LEAST_NAMES = 94;
const SMALLEST = 0.75;
const printing = matchMedia("print");

class Figure {
  constructor(box) {
    this.box = box;
    this.place = box.querySelector(".drawn");
    this.text = box.querySelector("script").textContent;
    this.colours = JSON.parse(document.getElementById("dark-colours").textContent);
    this.hidden = new Set();
    this.draw();
    this.legend();
    new ResizeObserver(() => { if (this.place.clientWidth !== this.wide) this.draw(); }).observe(this.place);
  }

  themed() {
    if (!isDark() || printing.matches) return JSON.parse(this.text);
    const dark = (text) => (this.colours[text.slice(1, -1)] ? `"${this.colours[text.slice(1, -1)]}"` : text);
    return JSON.parse(this.text.replace(/"(white|#[0-9A-F]{6}|rgba[^"]*)"/g, dark));
  }

  draw() {
    this.wide = this.place.clientWidth;
    const { data, layout, config } = this.themed();
    data.forEach((trace) => { if (this.hidden.has(groupOf(trace))) trace.visible = false; });
    if (layout.meta.is_fluid) fit(layout, this.wide); else shrink(layout, this.wide);
    hideNumbers(data, layout);
    this.data = data;
    Plotly.react(this.place, data, layout, config).then(() => { this.box.dataset.ready = "yes"; });
  }

  // An entry turns what it names off and on.
  legend() {
    const list = this.box.querySelector(".legend");
    if (!list) return;
    const named = this.data.filter((trace) => trace.showlegend !== false && trace.name);
    const groups = new Map(named.map((trace) => [groupOf(trace), trace]));
    for (const [group, trace] of groups) {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(swatch(trace), plain(trace.name));
      button.addEventListener("click", () => {
        const isOn = this.hidden.delete(group);
        if (!isOn) this.hidden.add(group);
        button.setAttribute("aria-pressed", String(isOn));
        this.draw();
      });
      const item = document.createElement("li");
      item.append(button);
      list.append(item);
    }
  }
}

const groupOf = (trace) => trace.legendgroup || trace.name;

// Names of figures are markup of plotly's, in which all of a trace is escaped: this is their text.
function plain(text) {
  return new DOMParser().parseFromString(text, "text/html").body.textContent;
}

// Where the place is narrow, names at the side give way first; then the place scrolls.
function fit(layout, wide) {
  const { across, least } = layout.meta;
  const most = least ? Math.max(wide - layout.margin.r - least, LEAST_NAMES) : wide;
  narrowNames(layout, Math.round(Math.min(wide * SIDE, most)));
  const { l, r } = layout.margin;
  layout.width = Math.max(wide, l + r + (least || NARROWEST * across));
  if (layout.width >= layout.meta.width) return;
  const room = (layout.width - l - r) / across;
  for (const [name, axis] of Object.entries(layout)) {
    if (!name.startsWith("xaxis")) continue;
    axis.nticks = Math.max(Math.floor(room / 40), 4);
    const texts = axis.ticktext || [];
    const longest = Math.max(0, ...texts.flatMap((text) => text.split("<br>").map((line) => plain(line).length))) * LETTER + 8;
    if (longest <= room / texts.length) continue;
    if (texts.every((text) => /^\d+$/.test(text))) {
      const every = Math.ceil(longest * texts.length / room);
      for (const part of ["ticktext", "tickvals"]) axis[part] = axis[part].filter((_, place) => place % every === 0);
    } else { axis.tickangle = -60; axis.automargin = true; }
  }
}

// Where axes share a scale both become shorter, as far as boxes hold their names.
function shrink(layout, wide) {
  const { l, r, t, b } = layout.margin, across = layout.width - l - r;
  const share = Math.min(Math.max((wide - l - r) / across, SMALLEST), 1);
  layout.width = l + r + share * across;
  layout.height = t + b + share * (layout.height - t - b);
}

// Numbers of a map are left to the pointer where its cells are too narrow for them.
function hideNumbers(data, { width, margin }) {
  for (const trace of data.filter((each) => each.type === "heatmap" && each.texttemplate)) {
    const longest = Math.max(0, ...trace.text.flat().map((text) => (text || "").length));
    if ((width - margin.l - margin.r) / trace.x.length < longest * LETTER) delete trace.texttemplate;
  }
}

function narrowNames(layout, most) {
  const axes = Object.entries(layout).filter(([name, axis]) => name.startsWith("yaxis") && axis.ticktext);
  if (layout.margin.l <= most || !axes.length) return;
  const letters = Math.max(Math.floor((most - 14) / 7.2), 4);
  for (const [, axis] of axes) axis.ticktext = cutApart(axis.ticktext, letters);
  layout.margin.l = most;
}

// Names are cut in the middle; those that are then alike are cut to where they begin to differ.
function cutApart(texts, letters) {
  const cuts = texts.map((text) => cutText(text, letters));
  return texts.map((text, place) => {
    const alike = texts.filter((other, at) => other !== text && cuts[at] === cuts[place]);
    if (!alike.length) return cuts[place];
    const bare = plain(text), begin = Math.min(...alike.map((other) => differsAt(bare, plain(other))));
    const from = Math.max(Math.min(begin - 1, bare.length - letters + 1), 0);
    const cut = from + letters - 2 < bare.length ? `${bare.slice(from, from + letters - 2)}…` : bare.slice(from);
    return escaped(from ? `…${cut}` : cut);
  });
}

function differsAt(text, other) {
  let place = 0;
  while (place < text.length && text[place] === other[place]) place += 1;
  return place;
}

// Markup is taken off with what is cut; the text is escaped again, as it was.
function cutText(text, letters) {
  const bare = plain(text);
  if (bare.length <= letters) return text;
  const end = Math.floor((letters - 1) / 2);
  return escaped(`${bare.slice(0, letters - 1 - end)}…${bare.slice(-end)}`);
}

const escaped = (text) => text.replace(/[&<>$]/g, (letter) => `&#${letter.charCodeAt(0)};`);

const SVG = "http://www.w3.org/2000/svg";
const DASHES = { dot: "2 3", dash: "6 4", dashdot: "6 3 2 3", longdash: "10 4", longdashdot: "10 3 2 3" };
const MARKS = {
  circle: "M12 3a4 4 0 1 0 .01 0", square: "M8 3h8v8h-8z", diamond: "M12 2l5 5l-5 5l-5-5z", cross: "M10 2h4v3h3v4h-3v3h-4v-3h-3v-4h3z",
  "triangle-up": "M12 2l5 9h-10z", "triangle-down": "M12 12l5-9h-10z", x: "M7 3l2-2l3 4l3-4l2 2l-3 4l3 4l-2 2l-3-4l-3 4l-2-2l3-4z",
};

function swatch(trace) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", "0 0 24 14");
  drawing.setAttribute("aria-hidden", "true");
  const add = (shape, look) => {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", shape);
    for (const [name, value] of Object.entries(look)) path.setAttribute(name, value);
    drawing.append(path);
  };
  const first = (value) => (Array.isArray(value) ? value[0] : value);
  const mark = trace.marker || {}, line = trace.line || {};
  const mode = trace.mode || "";
  if (trace.type === "bar") {
    const colour = first(mark.color) || "#999";
    const shape = mark.pattern && first(mark.pattern.shape);
    add("M3 1h18v12h-18z", { fill: colour, stroke: "currentColor", "stroke-width": 0.4 });
    if (shape) add("M5 13l8-12M11 13l8-12M17 13l4-6M3 7l4-6", { fill: "none", stroke: "currentColor", "stroke-width": 1.2 });
  }
  if (mode.includes("lines")) {
    add("M0 7h24", { stroke: line.color || mark.color || "currentColor", "stroke-width": line.width || 2, "stroke-dasharray": DASHES[line.dash] || "" });
  }
  if (mode.includes("markers")) {
    const symbol = String(first(mark.symbol) || "circle");
    const isOpen = symbol.includes("-open");
    const colour = first(mark.color) || (mark.line && mark.line.color) || line.color || "currentColor";
    if (symbol.startsWith("line-")) add("M12 2v10", { stroke: (mark.line && mark.line.color) || colour, "stroke-width": 2 });
    else add(MARKS[symbol.replace("-open", "")] || MARKS.circle, { fill: isOpen ? "none" : colour, stroke: colour, "stroke-width": 1.2 });
  }
  if (trace.fill && !mode.includes("lines")) add("M3 1h18v12h-18z", { fill: trace.fillcolor || "#999" });
  return drawing;
}

// The library is held compressed. It is text until here, and the policy of the page names its digest.
async function loadLibrary() {
  const packed = document.getElementById("library").textContent.trim();
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

loadLibrary().then(() => {
  const figures = [...document.querySelectorAll("[data-figure]")].map((box) => new Figure(box));
  const draw = () => figures.forEach((figure) => figure.draw());
  redraws.push(draw);
  printing.addEventListener("change", draw);
}, () => say("This browser is too old to draw the figures."));
