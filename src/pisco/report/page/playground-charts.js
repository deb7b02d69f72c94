// Curves and the plane of parameters, as plain SVG.
const NS = "http://www.w3.org/2000/svg";
function shape(tag, attributes, words) {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (words !== undefined) made.textContent = words;
  return made;
}
const round1 = (value) => Math.round(value * 10) / 10;
function path(points) {
  let pen = "M";
  return points.map(([x, y]) => { const part = `${pen}${round1(x)} ${round1(y)}`; pen = "L"; return part; }).join("");
}
function ticks(low, high, wanted) { // round numbers between two
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high * (1 + 1e-12); at++) found.push(at * step);
  return found;
}
const short = (value) => (value >= 1e4 ? `${Number((value / 1e3).toPrecision(3))}k` : String(Number(value.toPrecision(3))));
const thin = (rows, most = 500) => { // the last row stays
  const every = Math.ceil(rows.length / most);
  return rows.filter((_, at) => at % every === 0 || at === rows.length - 1);
};
// curves: [{rows: [[x, y]], colour, dashed}], marks: x of server rounds, level: a dotted line
function plot(id, curves, { marks = [], level = null, words }) {
  const box = byId(id), wide = box.clientWidth || 400, tall = box.clientHeight || 216;
  const edge = { left: 52, right: 12, top: 8, bottom: 30 };
  const values = curves.flatMap((curve) => curve.rows.map((row) => row[1])).filter((y) => y > 0 && Number.isFinite(y));
  const most = Math.max(...values, level ?? 0, 1e-30), least = Math.max(Math.min(...values, level || most), most * 1e-26, 1e-28);
  const high = Math.ceil(Math.log10(most) + 0.01), low = Math.min(Math.floor(Math.log10(least)), high - 2);
  const right = Math.max(...curves.flatMap((curve) => curve.rows.map((row) => row[0])).filter(Number.isFinite), 10);
  const atX = (x) => edge.left + (x / right) * (wide - edge.left - edge.right);
  const atY = (y) => edge.top + ((high - Math.log10(Math.max(y, 10 ** low))) / (high - low)) * (tall - edge.top - edge.bottom);
  const parts = [], every = Math.ceil((high - low) / 6);
  for (let power = high; power >= low; power -= every) {
    const y = round1(atY(10 ** power));
    parts.push(shape("line", { x1: edge.left, x2: wide - edge.right, y1: y, y2: y, stroke: "var(--grid)" }));
    const label = shape("text", { x: edge.left - 6, y: y + 4, "text-anchor": "end" }, "10");
    label.append(shape("tspan", { dy: -5, "font-size": 9 }, String(power).replace("-", "−")));
    parts.push(label);
  }
  for (const x of ticks(0, right, wide < 420 ? 4 : 7)) parts.push(shape("text", { x: round1(atX(x)), y: tall - 4, "text-anchor": "middle" }, short(x)));
  if (level > 0) parts.push(shape("line", { x1: edge.left, x2: wide - edge.right, y1: atY(level), y2: atY(level), stroke: "var(--quiet)", "stroke-dasharray": "2 3" }));
  if (marks.length) {
    const foot = tall - edge.bottom + 3, comb = marks.map((x) => `M${round1(atX(x))} ${foot}v7`).join("");
    parts.push(shape("path", { d: comb, stroke: "var(--mark)", "stroke-width": 1.5 }));
  }
  for (const { rows, colour: ink, dashed } of curves) {
    const points = thin(rows.filter((row) => Number.isFinite(row[1]))).map(([x, y]) => [atX(x), atY(y)]);
    parts.push(shape("path", { d: path(points), fill: "none", stroke: ink, "stroke-width": dashed ? 1.5 : 2.2, "stroke-linejoin": "round", "stroke-dasharray": dashed ?? "" }));
    const end = points.at(-1);
    if (end && !dashed) parts.push(shape("circle", { cx: end[0], cy: end[1], r: 3.5, fill: ink }));
  }
  box.replaceChildren(...parts);
  box.setAttribute("aria-label", words);
}
function drawPlane(run, labels, colours) {
  const box = byId("plane"), wide = box.clientWidth || 400, tall = box.clientHeight || 340;
  const points = [...run.agents.map((agent) => agent.minimizer), data.start, run.optimum];
  const [left, right, low, high] = [0, 1].flatMap((e) => [Math.min(...points.map((x) => x[e])), Math.max(...points.map((x) => x[e]))]);
  const scale = Math.min((wide - 60) / Math.max(right - left, 1e-9), (tall - 60) / Math.max(high - low, 1e-9));
  const clamp = (value, most) => Math.min(Math.max(value, 4), most - 4); // what flies off stays at the rim
  const at = ([x, y]) => [clamp(wide / 2 + (x - (left + right) / 2) * scale, wide), clamp(tall / 2 - (y - (low + high) / 2) * scale, tall)];
  const parts = [];
  run.agents.forEach((agent, i) => {
    const [x, y] = at(agent.minimizer), now = at(run.X[i]);
    parts.push(shape("line", { x1: x, y1: y, x2: now[0], y2: now[1], stroke: "var(--grid)" }));
    parts.push(shape("circle", { cx: x, cy: y, r: 6, fill: "none", stroke: "var(--link)", "stroke-width": 1.5 }));
    parts.push(shape("text", { x: x + 9, y: y + 4 }, labels[i]));
  });
  const trail = thin(run.rows.filter((row) => row.mean.every(Number.isFinite))).map((row) => at(row.mean));
  parts.push(shape("path", { d: path(trail), fill: "none", stroke: "var(--accent)", "stroke-width": 1.5 }));
  run.X.forEach((x, i) => {
    if (!x.every(Number.isFinite)) return;
    const [cx, cy] = at(x);
    parts.push(shape("circle", { cx, cy, r: 5.5, fill: colours[i], stroke: "var(--text)", "stroke-width": .8 }));
  });
  const [x, y] = at(run.optimum);
  parts.push(shape("path", { d: `M${x - 7} ${y - 7}l14 14m0 -14l-14 14`, stroke: "var(--mark)", "stroke-width": 2.5 }));
  box.replaceChildren(...parts);
}
