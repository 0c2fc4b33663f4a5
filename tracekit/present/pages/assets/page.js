"use strict";
// Nothing here makes markup of text: what a trace says is set as textContent or drawn on a canvas.
const root = document.documentElement;
const say = (text) => { document.getElementById("said").textContent = text; };
const redraws = [];
const redrawAll = () => redraws.forEach((redraw) => redraw());
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);

// -- theme --
const themes = ["system", "light", "dark"];
const themeButton = document.getElementById("theme");
themeButton.hidden = false;
themeButton.addEventListener("click", () => {
  const next = themes[(themes.indexOf(root.dataset.theme || "system") + 1) % themes.length];
  if (next === "system") delete root.dataset.theme; else root.dataset.theme = next;
  themeButton.textContent = `Theme: ${next}`;
  redrawAll();
});
systemDark.addEventListener("change", redrawAll);

// -- tables: sort, filter, copy --
const FEW = 12;
const valueOf = (cell) => {
  const raw = cell.dataset.v;
  if (raw === undefined) return cell.classList.contains("number") ? null : cell.textContent;
  return Number(raw);
};

function compare(a, b) {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
  return typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
}

function sortBy(table, place) {
  const header = table.tHead.rows[0].cells[place];
  const isNumber = header.classList.contains("number");
  const now = header.getAttribute("aria-sort");
  const up = now === null ? !isNumber : now === "descending";
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row.cells[place]), row]);
  rows.sort(([a], [b]) => (a === null || b === null || up ? compare(a, b) : -compare(a, b)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
  limit(table);
}

// Of a long table the first rows are shown until more is asked for; a filter looks at all of them.
function limit(table) {
  let shown = 0;
  for (const row of table.tBodies[0].rows) {
    if (!row.classList.contains("out")) shown += 1;
    row.classList.toggle("more", shown > FEW);
  }
  const isWhole = table.classList.contains("whole");
  const box = table.closest("details");
  const rows = shown === 1 ? "row" : "rows";
  const text = shown > FEW && !isWhole ? `${FEW} of ${shown} rows shown` : `${shown} ${rows} shown`;
  box.querySelector(".shown").textContent = text;
  const all = box.querySelector(".all");
  if (all) all.hidden = shown <= FEW || isWhole;
}

function filterBy(table, text) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of table.tBodies[0].rows) {
    const all = [...row.cells].map((c) => `${c.textContent} ${c.title}`).join(" ").toLowerCase();
    row.classList.toggle("out", !wanted.every((word) => all.includes(word)));
  }
  limit(table);
}

const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function csvOf(table) {
  const names = [...table.tHead.rows[0].cells].map((cell) => quoted(cell.dataset.name));
  const rows = [...table.tBodies[0].rows].filter((row) => !row.classList.contains("out"));
  const lines = rows.map((row) => [...row.cells].map((cell) => {
    const raw = cell.dataset.v ?? (cell.classList.contains("number") ? "" : cell.title || cell.textContent);
    return quoted(raw);
  }).join(","));
  return [names.join(","), ...lines].join("\n") + "\n";
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

for (const table of document.querySelectorAll("table[data-key]")) {
  const box = table.closest("details");
  const tools = box.querySelector(".tools");
  tools.hidden = false;
  [...table.tHead.rows[0].cells].forEach((cell, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = cell.textContent;
    button.addEventListener("click", () => sortBy(table, place));
    cell.replaceChildren(button);
  });
  box.querySelector(".filter").addEventListener("input", (event) => filterBy(table, event.target.value));
  box.querySelector(".copy").addEventListener("click", async () => {
    await copy(csvOf(table));
    say("Copied as CSV");
    box.querySelector(".shown").textContent = "Copied";
  });
  if (table.tBodies[0].rows.length > FEW) {
    const all = document.createElement("button");
    all.type = "button";
    all.className = "all";
    all.textContent = "Show all rows";
    all.addEventListener("click", () => { table.classList.add("whole"); limit(table); });
    tools.insertBefore(all, tools.querySelector(".shown"));
  }
  limit(table);
}
