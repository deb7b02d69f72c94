// Prices, theme, keys, news of a run that is still going on, and the start.
// ---- prices, theme, everything together
// The median where some seeds missed a target, as pisco.statistics has it.
function median(paid, missed) {
  const spent = paid.filter((_, at) => missed[at]);
  if (spent.length && 2 * spent.length >= paid.length) return `more than ${number(Math.min(...spent))}`;
  const order = paid.map((_, at) => at).sort((a, b) => paid[a] - paid[b] || missed[a] - missed[b]), found = [Infinity, Infinity];
  let alive = 1;
  order.forEach((at, before) => {
    if (!missed[at]) alive *= 1 - 1 / (paid.length - before);
    if (alive <= 0.5 + 1e-9) found[0] = Math.min(found[0], paid[at]);
    if (alive <= 0.5 - 1e-9) found[1] = Math.min(found[1], paid[at]);
  });
  const middle = (found[0] + found[1]) / 2;
  return middle === Infinity ? `more than ${number(Math.max(...paid))}` : number(middle);
}
function reprice() {
  for (const cell of document.querySelectorAll("td[data-server]")) {
    const list = (name) => cell.dataset[name].split(",").map(Number), gossip = list("gossip"), gradient = list("gradient");
    const paid = list("server").map((count, at) => price("server") * count + price("gossip") * gossip[at] + price("gradient") * gradient[at]);
    cell.textContent = median(paid, cell.dataset.missed ? list("missed") : paid.map(() => 0));
  }
}
function options(select, pairs) {
  const before = select.value;
  select.replaceChildren(...pairs.map(([value, words]) => element("option", words, { value })));
  if (pairs.some(([value]) => value === before)) select.value = before;
}
function scaleOf() { if (!touched && data.measures.length) byId("log-y").checked = measure().log; }
function drawAll() { legend(); drawCurves(); drawNetwork(); drawLabels(); }
function show() {
  options(byId("measure"), data.measures.map((each) => [each.name, each.title]));
  options(byId("which"), data.results.map((result, index) => [String(index), result.label]));
  document.querySelector(".which").hidden = data.results.length < 2;
  for (const id of ["curves", "network", "labels", "targets", "ending", "settings"]) byId(id).hidden = !data.results.length;
  scaleOf();
  drawAll();
}
function listen() {
  byId("measure").addEventListener("change", () => { touched = false; scaleOf(); drawCurves(); });
  byId("log-y").addEventListener("change", () => { touched = true; drawCurves(); });
  for (const id of ["log-x", "band"]) byId(id).addEventListener("change", drawCurves);
  for (const kind of ["server", "gossip", "gradient"]) byId(`price-${kind}`).addEventListener("input", () => { reprice(); drawCurves(); });
  byId("which").addEventListener("change", () => { pause(); frame = 0; drawNetwork(); drawLabels(); });
  byId("play").addEventListener("click", toggle);
  byId("back").addEventListener("click", () => step(-1));
  byId("forward").addEventListener("click", () => step(1));
  byId("frame").addEventListener("input", () => { frame = Number(byId("frame").value); drawFrame(); });
  byId("network").addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("select, summary, .scroll, input")) {
      if (!(event.key === " " && event.target.id === "frame")) return; // a slider moves by arrows itself
    }
    const act = { " ": event.target.closest("button") ? null : toggle, ArrowLeft: () => step(-1), ArrowRight: () => step(1) }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  byId("curve-details").addEventListener("toggle", () => byId("curve-details").open && curveTable());
  byId("agents-details").addEventListener("toggle", drawFrame);
  byId("labels-details").addEventListener("toggle", () => byId("labels-details").open && labelTable());
  byId("theme").addEventListener("change", drawAll);
  dark.addEventListener("change", drawAll);
  let before = null; // paper is white, and narrower than most screens
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details.words")) each.open = true;
    before = document.documentElement.dataset.theme ?? "auto"; theme("light");
    document.documentElement.classList.add("paper");
    drawAll();
  });
  addEventListener("afterprint", () => { theme(before ?? "auto"); document.documentElement.classList.remove("paper"); drawAll(); });
  if (calm.matches) byId("speed").value = "2";
  document.addEventListener("visibilitychange", () => document.hidden && pause());
}

// ---- a run that is still going on
const WORDS = { waiting: "The run is being compiled; the first rounds will appear here.", finished: "The run has finished.", interrupted: "The run was interrupted." };
function status(lost) {
  const live = data.live;
  if (!live) return;
  const kept = live.saved ? ` This page was saved as ${live.saved}.` : "";
  // Only changes of state are read aloud; the count of rounds stands beside them.
  say(lost ? "The run cannot be reached any more; this is the last that was heard of it." : (WORDS[live.state] ?? "The run goes on.") + kept);
  byId("progress").textContent = `Round ${number(live.done)} of ${number(live.rounds)}.`;
}
function say(words) {
  byId("status-line").hidden = false;
  if (byId("status").textContent !== words) byId("status").textContent = words;
}
async function follow() {
  while (data.live && ["waiting", "running"].includes(data.live.state)) {
    await new Promise((done) => setTimeout(done, 1500));
    try {
      const answer = await fetch(`data.json?seen=${data.version}`, { cache: "no-store" });
      if (answer.status === 204) continue;
      if (!answer.ok) throw new Error(answer.statusText);
      data = await answer.json();
      for (const [id, html] of Object.entries(data.html)) byId(id).innerHTML = html;
      reprice();
      show();
      status(false);
    } catch { status(true); return; }
  }
}

// ---- start
async function unpack(id) {
  const packed = byId(id).textContent.trim();
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(packed) : Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
async function start() {
  themes();
  status(false);
  try {
    const script = element("script", await unpack("plotly"));
    document.head.append(script);
  } catch (error) {
    say(`The charts could not be unpacked by this browser (${error.message}); the text and the tables are whole.`);
    return;
  }
  listen();
  show();
  document.documentElement.dataset.ready = "yes";
  follow();
}
start();
