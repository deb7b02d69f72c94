// The playground: a network that is drawn by hand, and PISCO running on it. The parts are joined by playground.py.
const ROUNDS = 3000;
const SERVER = [50, 6];
const DEEP = [[253, 233, 176], [243, 166, 90], [194, 65, 122], [75, 21, 105]]; // pale: agreed; deep: far apart
const SETTINGS = ["p", "local-steps", "local-lr", "comm-lr", "seed", "price-server", "price-gossip", "price-gradient", "target", "agents"];
let agents = []; // {slot, x, y}: the slot says whose data it has
let links = new Set(); // "3-7": slots, the smaller first
let picked = null, focused = null, dragged = null, run = null, kept = [], playing = null;
const valid = {};

const linkName = (a, b) => (a < b ? `${a}-${b}` : `${b}-${a}`);
const ends = (name) => name.split("-").map(Number);
const find = (slot) => agents.find((agent) => agent.slot === slot);
const tell = (words) => { byId("said").textContent = words; };
function circle(count, centre = [50, 55], size = 36) {
  return Array.from({ length: count }, (_, i) => {
    const angle = (2 * Math.PI * i) / count - Math.PI / 2;
    return [centre[0] + 1.15 * size * Math.cos(angle), centre[1] + size * Math.sin(angle)];
  });
}
function shaped(kind, count) { // places and pairs of a family
  const pairs = [], chain = (from, to) => { for (let i = from; i < to; i++) pairs.push([i, i + 1]); };
  let places = circle(count);
  if (kind === "ring") { chain(0, count - 1); if (count > 2) pairs.push([0, count - 1]); }
  if (kind === "path") chain(0, count - 1);
  if (kind === "star") { places = [[50, 55], ...circle(Math.max(count - 1, 1))].slice(0, count); for (let i = 1; i < count; i++) pairs.push([0, i]); }
  if (kind === "complete") for (let i = 0; i < count; i++) for (let j = i + 1; j < count; j++) pairs.push([i, j]);
  if (kind === "grid") {
    const across = Math.ceil(Math.sqrt(count)), down = Math.ceil(count / across);
    places = Array.from({ length: count }, (_, i) => [50 + 76 * (((i % across) + 0.5) / across - 0.5), 56 + 70 * ((Math.floor(i / across) + 0.5) / down - 0.5)]);
    for (let i = 0; i < count; i++) { if ((i + 1) % across && i + 1 < count) pairs.push([i, i + 1]); if (i + across < count) pairs.push([i, i + across]); }
  }
  if (kind === "clusters") {
    const half = Math.ceil(count / 2), ring = (from, size) => { chain(from, from + size - 1); if (size > 2) pairs.push([from, from + size - 1]); };
    places = [...circle(half, [24, 56], 17), ...circle(count - half, [76, 56], 17)];
    ring(0, half); ring(half, count - half);
  }
  return { places, pairs };
}
function reshape() {
  const { places, pairs } = shaped(byId("shape").value, valid.agents);
  agents = places.map(([x, y], slot) => ({ slot, x, y }));
  links = new Set(pairs.map(([i, j]) => linkName(i, j)));
  picked = null;
  restart();
}
function drawn() { byId("shape").value = "own"; byId("agents").value = valid.agents = agents.length; restart(); }

// Changes by hand.
function addAgent(x, y) {
  if (agents.length >= LIMIT) { tell(`There is data for ${LIMIT} agents; remove one first.`); return; }
  let slot = 0;
  while (find(slot)) slot++;
  if (x === undefined) { // the free place furthest from the others
    const spots = Array.from({ length: 81 }, (_, i) => [10 + 10 * (i % 9), 18 + 8.5 * Math.floor(i / 9)]);
    const room = ([a, b]) => Math.min(...agents.map((agent) => Math.hypot(agent.x - a, agent.y - b)), Math.hypot(SERVER[0] - a, SERVER[1] - b));
    [x, y] = spots.reduce((best, spot) => (room(spot) > room(best) ? spot : best));
  }
  agents.push({ slot, x, y });
  agents.sort((a, b) => a.slot - b.slot);
  tell(`Agent ${slot} is new; link it with others.`);
  focused = slot;
  drawn();
}
function removeAgent(slot) {
  if (agents.length === 1) { tell("One agent has to stay."); return; }
  agents = agents.filter((agent) => agent.slot !== slot);
  links = new Set([...links].filter((name) => !ends(name).includes(slot)));
  focused = agents[0].slot;
  picked = null;
  tell(`Agent ${slot} is gone.`);
  drawn();
}
function pick(slot) {
  if (picked === null) { picked = slot; tell(`Agent ${slot} is picked; choose the other end of a link.`); drawNetwork(); return; }
  const first = picked;
  picked = null;
  if (first === slot) { tell(""); drawNetwork(); return; }
  const name = linkName(first, slot), gone = links.delete(name);
  if (!gone) links.add(name);
  tell(`The link between agents ${first} and ${slot} is ${gone ? "gone" : "there"}.`);
  drawn();
}
function where(event) {
  const box = byId("net"), spot = new DOMPoint(event.clientX, event.clientY).matrixTransform(box.getScreenCTM().inverse());
  return [Math.min(Math.max(spot.x, -3), 103), Math.min(Math.max(spot.y, 14), 96)];
}
function slotOf(event) { return Number(event.target.closest?.(".agent")?.dataset.slot ?? -1); }
byId("net").addEventListener("pointerdown", (event) => {
  const slot = slotOf(event);
  dragged = { slot, from: [event.clientX, event.clientY], moved: false };
  byId("net").setPointerCapture(event.pointerId);
  if (slot >= 0) focusAgent(slot);
});
byId("net").addEventListener("pointermove", (event) => {
  if (!dragged || dragged.slot < 0) return;
  if (!dragged.moved && Math.hypot(event.clientX - dragged.from[0], event.clientY - dragged.from[1]) < 6) return;
  dragged.moved = true;
  const agent = find(dragged.slot);
  [agent.x, agent.y] = where(event);
  drawNetwork();
});
byId("net").addEventListener("pointercancel", () => { dragged = null; });
byId("net").addEventListener("pointerup", (event) => {
  const done = dragged;
  dragged = null;
  if (!done || done.moved) return;
  if (done.slot >= 0) pick(done.slot);
  else if (picked !== null) { picked = null; tell(""); drawNetwork(); } else addAgent(...where(event));
});
byId("net").addEventListener("keydown", (event) => {
  const slot = slotOf(event), at = agents.findIndex((agent) => agent.slot === slot);
  if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (arrow && event.shiftKey) {
    const agent = agents[at];
    agent.x = Math.min(Math.max(agent.x + 3 * arrow[0], -3), 103);
    agent.y = Math.min(Math.max(agent.y + 3 * arrow[1], 14), 96);
    drawNetwork();
  } else if (arrow) focusAgent(agents[(at + agents.length + (arrow[0] + arrow[1])) % agents.length].slot);
  else if (event.key === "Enter" || event.key === " ") pick(slot);
  else if (event.key === "Delete" || event.key === "Backspace") removeAgent(slot);
  else if (event.key === "+") addAgent();
  else if (event.key === "Escape" && picked !== null) { picked = null; tell(""); drawNetwork(); } else return;
  event.preventDefault();
  focusAgent(focused);
});
function focusAgent(slot) {
  focused = slot;
  for (const made of byId("net").querySelectorAll(".agent")) made.setAttribute("tabindex", Number(made.dataset.slot) === slot ? 0 : -1);
  byId("net").querySelector(`[data-slot="${slot}"]`)?.focus();
  byId("remove").disabled = false;
}

// Drawing.
function tone(apart, most) { // four powers of ten below the furthest
  const level = most > 0 && apart > 0 ? Math.min(Math.max(1 + Math.log10(apart / most) / 4, 0), 1) : 0;
  const at = Math.min(level * 3, 2.999), part = at % 1, [from, to] = DEEP.slice(Math.floor(at), Math.floor(at) + 2);
  return { ink: `rgb(${from.map((v, i) => Math.round(v + part * (to[i] - v)))})`, light: level > 0.5 };
}
function tones() {
  const mean = meanOf(run.X), apart = run.X.map((x) => x.reduce((sum, v, e) => sum + (v - mean[e]) ** 2, 0));
  run.most = Math.max(run.most ?? 1e-9, ...apart.filter(Number.isFinite));
  return apart.map((each) => tone(Number.isFinite(each) ? each : run.most, run.most));
}
function drawNetwork() {
  const box = byId("net"), now = run.rows.at(-1), inks = tones();
  if (!find(focused)) focused = agents[0].slot;
  const looks = JSON.stringify([agents, [...links], picked]);
  if (box.dataset.looks !== looks) rebuild(box); // otherwise only colours change, and what has the focus stays
  box.dataset.looks = looks;
  for (const made of box.querySelectorAll(".link")) made.classList.toggle("lit", now.round > 0 && !now.server);
  for (const made of box.querySelectorAll(".ray, .hub")) made.classList.toggle("lit", now.server);
  box.querySelectorAll(".agent").forEach((made, i) => {
    made.querySelector(".body").style.fill = inks[i].ink;
    made.querySelector("text").style.fill = inks[i].light ? "#fff" : "#1c2126";
  });
  byId("remove").disabled = agents.length < 2;
}
function rebuild(box) {
  const hadFocus = box.contains(document.activeElement), parts = [];
  for (const name of links) {
    const [a, b] = ends(name).map(find);
    parts.push(shape("line", { class: "link", x1: a.x, y1: a.y, x2: b.x, y2: b.y }));
  }
  for (const agent of agents) parts.push(shape("line", { class: "ray", x1: SERVER[0], y1: SERVER[1], x2: agent.x, y2: agent.y }));
  parts.push(shape("rect", { class: "hub", x: SERVER[0] - 3.4, y: SERVER[1] - 3.4, width: 6.8, height: 6.8, rx: 1 }));
  parts.push(shape("text", { x: SERVER[0] + 11, y: SERVER[1] }, "server"));
  for (const agent of agents) {
    const mates = [...links].map(ends).filter((pair) => pair.includes(agent.slot)).map(([a, b]) => (a === agent.slot ? b : a));
    const told = `Agent ${agent.slot}, ${mates.length ? `linked with ${mates.sort((a, b) => a - b).join(", ")}` : "without links"}${picked === agent.slot ? ", picked" : ""}`;
    const made = shape("g", { class: `agent${picked === agent.slot ? " picked" : ""}`, "data-slot": agent.slot, tabindex: agent.slot === focused ? 0 : -1, role: "button", "aria-label": told });
    made.append(shape("circle", { class: "reach", cx: agent.x, cy: agent.y, r: 6.2 }), shape("circle", { class: "body", cx: agent.x, cy: agent.y, r: 4 }));
    made.append(shape("text", { x: agent.x, y: agent.y }, agent.slot));
    parts.push(made);
  }
  box.replaceChildren(...parts);
  if (hadFocus) box.querySelector(`[data-slot="${focused}"]`)?.focus();
}
const priceOf = (counts) => valid["price-server"] * counts.server + valid["price-gossip"] * counts.gossip + valid["price-gradient"] * counts.gradients;
function curveOf(curve) {
  const measure = byId("measure").value, least = curve.least;
  const value = (row) => (measure === "gap" ? Math.max(row.loss - least, 0) : row[measure]);
  return { by: (x) => curve.rows.map((row) => [x(row), value(row)]), colour: curve.colour, dashed: curve.dashed };
}
const lossAt = (run) => run.agents.reduce((sum, agent) => {
  const away = run.optimum.map((v, e) => v - agent.minimizer[e]);
  return sum + 0.5 * run.gradient(agent, run.optimum).reduce((dot, v, e) => dot + v * away[e], 0);
}, 0) / run.agents.length;
const named = () => `p = ${valid.p}, Tₒ = ${valid["local-steps"]}, ${agents.length} agents, ${links.size} links`;
function drawCurves() {
  const own = { rows: run.rows, least: run.least, colour: "var(--accent)" }, all = [...kept, own].map(curveOf);
  const level = byId("measure").value === "grad_norm_sq" ? valid.target : null, words = byId("measure").selectedOptions[0].textContent;
  const lines = (x) => all.map((each) => ({ ...each, rows: each.by(x) }));
  plot("by-round", lines((row) => row.round), { level, marks: run.rows.filter((row) => row.server).map((row) => row.round), words: `${words} against rounds` });
  plot("by-price", lines((row) => priceOf(row.counts)), { level, words: `${words} against the price paid` });
}
function drawLegend() {
  const own = { name: named(), colour: "var(--accent)" };
  byId("kept").replaceChildren(...[...kept, own].map((each) => {
    const item = element("li", null), key = shape("svg", { width: 30, height: 10, "aria-hidden": "true" });
    key.append(shape("line", { x1: 1, x2: 29, y1: 5, y2: 5, stroke: each.colour, "stroke-width": 2.5, "stroke-dasharray": each.dashed ?? "" }));
    item.append(key, each.name);
    return item;
  }));
  byId("forget").disabled = !kept.length;
}
function drawWords() {
  const now = run.rows.at(-1), hit = run.rows.find((row) => row.grad_norm_sq <= valid.target), servers = run.rows.filter((row) => row.server).length;
  const kind = !now.round ? "Before the first round." : `Round ${now.round}: ${now.server ? "everybody reached the server" : links.size ? "neighbours gossiped" : "nobody to gossip with"}. ${servers} of ${now.round} rounds reached the server; price ${number(priceOf(now.counts))}.`;
  const goal = run.broken ? " It diverged: take a smaller step size." : hit ? ` Target met in round ${hit.round} for a price of ${number(priceOf(hit.counts))}.` : "";
  byId("words").setAttribute("aria-live", playing ? "off" : "polite");
  byId("words").textContent = kind + goal;
}
function drawRun() {
  drawNetwork();
  drawCurves();
  drawPlane(run, agents.map((agent) => String(agent.slot)), tones().map((each) => each.ink));
  drawWords();
  program();
}

// The run.
function restart() {
  const places = new Map(agents.map((agent, i) => [agent.slot, i]));
  const pairs = [...links].map((name) => ends(name).map((slot) => places.get(slot))).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const settings = { serverProb: valid.p, localSteps: valid["local-steps"], localLr: valid["local-lr"], commLr: valid["comm-lr"], seed: valid.seed, oneExchange: byId("one-exchange").checked };
  run = new Pisco(agents.map((agent) => data.agents[agent.slot]), pairs, data.start, settings);
  run.least = lossAt(run);
  const rate = mixingRate(run.weights);
  byId("facts").innerHTML = `Metropolis weights. Mixing rate λ<sub>w</sub> = ${number(rate)}; with the server λ<sub>p</sub> = ${number(rate + valid.p * (1 - rate))}.`
    + (rate < 1e-9 && !valid.p && agents.length > 1 ? " Parts of the network never hear of each other: without the server they cannot agree." : "");
  drawLegend();
  drawRun();
}
function advance() {
  run.next();
  const size = run.rows.at(-1).grad_norm_sq;
  run.broken = !Number.isFinite(size) || size > 1e30;
  if (run.broken || run.round >= ROUNDS) stop();
}
function stop() { clearInterval(playing); playing = null; byId("play").textContent = "Play"; }
const finished = () => run.broken || run.round >= ROUNDS;
function play() {
  if (playing) { stop(); drawWords(); return; }
  if (finished()) restart();
  const speed = Number(byId("speed").value), every = Math.max(1000 / speed, 33), most = Math.max(1, Math.round((speed * every) / 1000));
  byId("play").textContent = "Pause";
  playing = setInterval(() => { for (let turn = 0; turn < most && playing; turn++) advance(); drawRun(); }, every);
}
byId("play").addEventListener("click", play);
byId("step").addEventListener("click", () => { stop(); if (!finished()) advance(); drawRun(); });
byId("restart").addEventListener("click", () => { stop(); restart(); });
byId("speed").addEventListener("change", () => { if (playing) { stop(); play(); } });
byId("add").addEventListener("click", () => addAgent());
byId("remove").addEventListener("click", () => removeAgent(picked ?? focused));
byId("shape").addEventListener("change", reshape);
byId("measure").addEventListener("change", drawCurves);
byId("one-exchange").addEventListener("change", restart);
byId("keep").addEventListener("click", () => {
  const index = kept.length ? kept.at(-1).index + 1 : 1;
  kept = [...kept, { rows: run.rows, least: run.least, name: named(), colour: COLOURS[index % 6], dashed: "6 4", index }].slice(-5);
  drawLegend();
  drawCurves();
});
byId("forget").addEventListener("click", () => { kept = []; drawLegend(); drawCurves(); });
function read(id) { // a field that cannot be used keeps the value before, and says so
  const box = byId(id), value = Number(box.value), whole = box.step === "1";
  const good = box.value.trim() !== "" && value >= Number(box.min) && value <= Number(box.max) && (!whole || Number.isInteger(value));
  box.toggleAttribute("aria-invalid", !good);
  if (!good) box.setAttribute("aria-invalid", "true");
  else valid[id] = value;
  return good;
}
for (const id of SETTINGS) byId(id).addEventListener("input", () => {
  if (!read(id)) return;
  if (id === "p") byId("p-slide").value = valid.p;
  if (id === "agents") { if (byId("shape").value === "own") byId("shape").value = "ring"; reshape(); } else if (id.startsWith("price") || id === "target") drawRun();
  else restart();
});
byId("p-slide").addEventListener("input", () => { byId("p").value = byId("p-slide").value; read("p"); restart(); });

// The same in Python.
function program() {
  const s = run.settings, list = JSON.stringify;
  byId("python").value = `import jax

jax.config.update("jax_enable_x64", True)

import pisco

hessians = ${list(run.agents.map((agent) => agent.hessian))}
minimizers = ${list(run.agents.map((agent) => agent.minimizer))}
problem = pisco.problems.quadratic(hessians, minimizers, init=${list(data.start)})
graph = pisco.networks.graphs.from_edges(${list(run.links)}, num_agents=${run.agents.length})
network = pisco.Network(graph, weights="metropolis", server=pisco.bernoulli(${s.serverProb}))
rule = pisco.algorithms.pisco(
    local_lr=${s.localLr}, comm_lr=${s.commLr}, local_steps=${s.localSteps}, one_exchange=${s.oneExchange ? "True" : "False"}
)
result = pisco.run(rule, problem, network, rounds=${Math.max(run.round, 1)}, seed=${s.seed})
print(result.history["grad_norm_sq"][-1], result.history["consensus_error"][-1])
`;
}
byId("copy").addEventListener("click", async () => {
  byId("python").select();
  try { await navigator.clipboard.writeText(byId("python").value); } catch { document.execCommand("copy"); }
  byId("copy").textContent = "Copied";
  setTimeout(() => { byId("copy").textContent = "Copy"; }, 1500);
});
themes();
addEventListener("resize", () => { drawCurves(); drawPlane(run, agents.map((agent) => String(agent.slot)), tones().map((each) => each.ink)); });
SETTINGS.forEach(read);
reshape();
window.playground = { rows: () => run.rows, rate: () => mixingRate(run.weights), advance: (count) => { for (let k = 0; k < count; k++) advance(); drawRun(); } };
document.documentElement.dataset.ready = "yes";
