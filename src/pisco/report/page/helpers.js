// What the parts of the page of `pisco report` share: the numbers in #data, colours, tables, charts by plotly.js.
// Tables and text need no script. The parts are joined into one function by html.py.
const byId = (id) => document.getElementById(id);
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", null]; // null: the text's own
const DASHES = ["solid", "dash", "dot", "dashdot"];
const SVG_DASHES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3" };
const CONFIG = { displayModeBar: false, responsive: true };
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");
let data = JSON.parse(byId("data").textContent);
let hidden = new Set(); // results not shown, by number
let frame = 0;
let timer = null;
let touched = false; // whether the reader has chosen a scale, so that a measure's own no longer applies

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (index) => COLOURS[index % COLOURS.length] ?? css("--text");
const dash = (index) => DASHES[Math.floor(index / COLOURS.length) % DASHES.length];
const plain = (words) => words.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // plotly reads some HTML
const faint = (hex, alpha) => {
  const part = (at) => parseInt(hex.slice(at, at + 2), 16);
  return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
};
function theme(name) {
  if (name === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = name;
}
function themes() { // the switch, and what was chosen last; a page from disk may have no storage
  let chosen = null;
  try { chosen = localStorage.getItem("pisco-theme"); } catch { /* none */ }
  if (chosen) { byId("theme").value = chosen; theme(chosen); }
  byId("theme").addEventListener("change", () => {
    theme(byId("theme").value);
    try { localStorage.setItem("pisco-theme", byId("theme").value); } catch { /* none */ }
  });
}
function number(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (Math.abs(value) >= 1000) return Math.abs(value) < 1e15 ? Math.round(value).toLocaleString("en") : value.toExponential(2);
  return String(Number(value.toPrecision(3)));
}
function element(tag, words, attributes = {}) {
  const made = document.createElement(tag);
  if (words !== null) made.textContent = words;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
function table(caption, heads, rows) {
  const box = element("div", null, { class: "scroll", tabindex: "0", role: "region", "aria-label": caption });
  const made = element("table", null);
  made.append(element("caption", caption));
  const head = made.createTHead().insertRow();
  heads.forEach((words, at) => head.append(element("th", words, { scope: "col", class: at ? "number" : "" })));
  const body = made.createTBody();
  for (const cells of rows) {
    const row = body.insertRow();
    cells.forEach((words, at) => row.append(at ? element("td", words, { class: "number" }) : element("th", words, { scope: "row" })));
  }
  box.append(made);
  return box;
}
function layout(extra) {
  const axis = { gridcolor: css("--grid"), zeroline: false, linecolor: css("--rule"), automargin: true, exponentformat: "power" };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    font: { color: css("--text"), size: 12.5, family: getComputedStyle(document.body).fontFamily },
    margin: { l: 52, r: 12, t: 8, b: 42 }, dragmode: false,
    ...extra, xaxis: { ...axis, ...extra.xaxis }, yaxis: { ...axis, ...extra.yaxis },
  };
}
function draw(id, traces, extra) {
  // Sizes are left to plotly on a screen; paper is not laid out yet when it is drawn for.
  const paper = document.documentElement.classList.contains("paper");
  const size = paper ? { width: byId(id).clientWidth, height: byId(id).clientHeight, autosize: false } : { autosize: true };
  Plotly.react(byId(id), traces, layout({ ...extra, ...size }), CONFIG);
}
