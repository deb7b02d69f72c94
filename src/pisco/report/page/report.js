"use strict";
// The page of `pisco report`: charts from the numbers in #data, drawn by plotly.js. Tables and text need no script.
(() => {
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

  // ---- small helpers -------------------------------------------------------------------------------------------
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (index) => COLOURS[index % COLOURS.length] ?? css("--text");
  const dash = (index) => DASHES[Math.floor(index / COLOURS.length) % DASHES.length];
  const plain = (words) => words.replaceAll("&", "&amp;").replaceAll("<", "&lt;"); // plotly reads some HTML
  const faint = (hex, alpha) => {
    const part = (at) => parseInt(hex.slice(at, at + 2), 16);
    return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
  };
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

  // ---- curves --------------------------------------------------------------------------------------------------
  const measure = () => data.measures.find((each) => each.name === byId("measure").value) ?? data.measures[0];
  const price = (kind) => Math.max(0, Number(byId(`price-${kind}`).value) || 0);
  function along(result, kind) {
    if (kind === "round") return result.x.round;
    if (kind === "bytes") return result.x.megabytes;
    const { server, gossip } = result.x;
    return server && gossip && server.map((count, at) => price("server") * count + price("gossip") * gossip[at]);
  }
  function traces(result, index, kind, name, log) {
    const x = along(result, kind), curve = result.y[name], tone = colour(index);
    if (!x || !curve) return [];
    const logX = byId("log-x").checked;
    const keep = x.map((_, at) => at).filter((at) => curve.mean[at] !== null && (!log || curve.mean[at] > 0) && (!logX || x[at] > 0));
    const label = plain(result.label), digits = measure().percent ? ".2%" : ".4~g";
    const line = {
      x: keep.map((at) => x[at]), y: keep.map((at) => curve.mean[at]), name: label, mode: keep.length > 1 ? "lines" : "markers",
      line: { color: tone, dash: dash(index), width: 2 }, hovertemplate: `%{y:${digits}} at %{x:.5~g}<extra>${label}</extra>`,
    };
    if (!curve.low || !byId("band").checked) return [line];
    const floor = (at) => (log && curve.low[at] <= 0 ? curve.mean[at] : curve.low[at]);
    const band = {
      x: [...line.x, ...line.x.toReversed()],
      y: [...keep.map((at) => curve.high[at]), ...keep.map(floor).reverse()],
      fill: "toself", fillcolor: faint(tone, 0.18), line: { width: 0 }, mode: "lines", hoverinfo: "skip", name: label,
    };
    return [band, line];
  }
  function range(all, log, percent) {
    if (!log) return percent ? {} : { rangemode: "normal" };
    let low = Infinity, high = 0;
    for (const trace of all) for (const y of trace.y) { low = Math.min(low, y); high = Math.max(high, y); }
    if (!high) return {};
    // A server round leaves a consensus error of rounding only, which would flatten everything else.
    low = Math.log10(Math.max(low, high * 1e-10)); high = Math.log10(high);
    const pad = 0.05 * Math.max(high - low, 0.2);
    return { range: [low - pad, high + pad] };
  }
  function drawCurves() {
    if (!data.results.length) return;
    const chosen = measure(), log = byId("log-y").checked, logX = byId("log-x").checked;
    const shown = data.results.map((result, index) => [result, index]).filter(([, index]) => !hidden.has(index));
    for (const [kind, id] of [["round", "by-round"], ["bytes", "by-bytes"], ["price", "by-price"]]) {
      const known = data.results.some((result) => along(result, kind));
      byId(id).parentElement.hidden = !known;
      if (!known) continue;
      const all = shown.flatMap(([result, index]) => traces(result, index, kind, chosen.name, log));
      draw(id, all, {
        xaxis: { type: logX ? "log" : "linear", rangemode: "tozero", exponentformat: "SI" },
        yaxis: { type: log ? "log" : "linear", tickformat: chosen.percent ? ".0%" : "", ...range(all, log, chosen.percent) },
      });
      const said = shown.slice(0, 6).filter(([result]) => result.y[chosen.name]).map(([result]) => {
        const values = result.y[chosen.name].mean.filter((value) => value !== null);
        return `${result.label} from ${number(values[0] ?? null)} to ${number(values.at(-1) ?? null)}`;
      });
      const against = { round: "rounds", bytes: "megabytes sent", price: "the price paid" }[kind];
      byId(`cap-${kind}`).textContent = `${chosen.title[0].toUpperCase()}${chosen.title.slice(1)} against ${against}`;
      byId(id).setAttribute("aria-label", `Chart of ${chosen.title} against ${against}: ${said.join("; ")}. The table below has numbers.`);
    }
    const thinned = data.results.some((result) => result.x.round.length < result.measured);
    const bands = data.results.some((result) => result.seeds > 1);
    byId("band-switch").hidden = !bands;
    byId("curves-note").textContent = [
      bands ? "Lines are means over seeds; bands reach from the least to the greatest seed." : "",
      thinned ? "Long runs are drawn at a few hundred of their measured rounds, peaks of the loss among them; tables use all rounds." : "",
    ].join(" ");
    if (byId("curve-details").open) curveTable();
  }
  function curveTable() {
    const chosen = measure(), shown = data.results.filter((result, index) => !hidden.has(index) && result.y[chosen.name]);
    const last = Math.max(0, ...shown.map((result) => result.x.round.at(-1)));
    const rows = [];
    for (let part = 0; part <= 10; part++) {
      const round = Math.round((last * part) / 10);
      rows.push([number(round), ...shown.map((result) => {
        const at = result.x.round.findLastIndex((each) => each <= round);
        if (round > result.x.round.at(-1) || at < 0) return "–";
        const { mean, low, high } = result.y[chosen.name];
        const words = (value) => (chosen.percent && value !== null ? `${(100 * value).toFixed(1)}%` : number(value));
        return low && low[at] !== high[at] ? `${words(mean[at])} (${words(low[at])} to ${words(high[at])})` : words(mean[at]);
      })]);
    }
    byId("curve-table").replaceChildren(table(`${chosen.title} at the last drawn round up to each`, ["Round", ...shown.map((r) => r.label)], rows));
  }
  function legend() {
    byId("shown").hidden = data.results.length < 2;
    byId("legend").replaceChildren(...data.results.map((result, index) => {
      const label = element("label", null), box = element("input", null, { type: "checkbox" });
      box.checked = !hidden.has(index);
      box.addEventListener("change", () => { box.checked ? hidden.delete(index) : hidden.add(index); drawCurves(); });
      label.append(box);
      label.insertAdjacentHTML("beforeend", `<svg width="30" height="8" aria-hidden="true"><line x1="0" y1="4" x2="30" y2="4"
        stroke="${colour(index)}" stroke-width="3" stroke-dasharray="${SVG_DASHES[dash(index)]}"/></svg>`);
      label.append(element("span", result.label));
      return label;
    }));
  }

  // ---- the network ---------------------------------------------------------------------------------------------
  const SERVER = [0, 1.45];
  const SCALE = [[0, "#fde9b0"], [0.35, "#f3a65a"], [0.7, "#c2417a"], [1, "#4b1569"]]; // pale: agreed; deep: far apart
  const chosenResult = () => data.results[Number(byId("which").value) || 0];
  function levels(frames) {
    if (!frames.bytes) frames.bytes = Uint8Array.from(atob(frames.levels), (letter) => letter.charCodeAt(0));
    const agents = frames.bytes.length / frames.round.length;
    return frames.bytes.subarray(frame * agents, (frame + 1) * agents);
  }
  function kinds(frames) {
    const first = frame ? frames.round[frame - 1] + 1 : 0, last = frames.round[frame];
    const { server: { [frame]: server }, gossip: { [frame]: gossip }, part: { [frame]: part } } = frames;
    if (!last) return { server: 0, gossip: 0, words: "Round 0: the start, before anything was sent." };
    const when = first === last ? `Round ${number(last)}` : `Rounds ${number(first)} to ${number(last)}`;
    if (first === last) {
      const what = part ? `a server round for some agents${gossip ? ", gossip for others" : ""}`
        : server && gossip ? "server and gossip" : server ? "a server round" : gossip ? "a gossip round" : "nothing was sent";
      return { server, gossip, part, words: `${when}: ${what}.` };
    }
    return { server, gossip, part, words: `${when}: ${number(server)} reached the server, ${number(gossip)} gossiped.` };
  }
  function drawNetwork() {
    const result = chosenResult(), net = result?.network;
    const known = net && !net.absent;
    byId("network-present").hidden = !known;
    byId("network-absent").hidden = known || !result;
    if (!known) { byId("network-absent").textContent = net ? `There is no picture: ${net.absent}.` : ""; return; }
    const frames = net.frames, moving = Boolean(frames && frames.round.length > 1);
    byId("player").hidden = !moving;
    byId("strip").parentElement.hidden = !moving;
    frame = frames ? Math.min(frame, frames.round.length - 1) : 0;
    byId("frame").max = frames ? frames.round.length - 1 : 0;
    if (moving) {
      const reached = frames.round.map((_, at) => at).filter((at) => frames.server[at] && frames.error[at] !== null);
      const floor = 10 ** frames.low; // what is left after a server round is rounding
      const lifted = frames.error.map((error) => (error === null ? null : Math.max(error, floor)));
      draw("strip", [
        { x: frames.round, y: lifted, mode: "lines", line: { color: css("--accent"), width: 1.5 }, hovertemplate: "%{y:.3~g} after round %{x}<extra></extra>" },
        { x: reached.map((at) => frames.round[at]), y: reached.map((at) => lifted[at]), mode: "markers", hoverinfo: "skip",
          marker: { color: css("--mark"), size: 5, symbol: "diamond" } },
      ], { yaxis: { type: "log", nticks: 5 }, xaxis: { rangemode: "tozero" }, margin: { l: 52, r: 12, t: 4, b: 26 }, shapes: [cursor(frames)] });
    }
    drawFrame();
  }
  const cursor = (frames) => ({
    type: "line", x0: frames.round[frame], x1: frames.round[frame], yref: "paper", y0: 0, y1: 1, line: { color: css("--text"), width: 1.5, dash: "dot" },
  });
  function drawFrame() {
    const result = chosenResult(), net = result.network, frames = net.frames, agents = net.x.length;
    const now = frames ? kinds(frames) : { server: 0, gossip: 0, words: "How far the agents were apart is not in this result." };
    const values = frames ? Array.from(levels(frames)) : new Array(agents).fill(0);
    const error = frames ? frames.error[frame] : null;
    const words = [now.words, error === null ? "" : `Consensus error ${number(error)}.`, net.note ?? ""].join(" ").trim();
    const size = agents <= 20 ? 26 : agents <= 50 ? 19 : Math.max(5, 150 / Math.sqrt(agents));
    const rays = [[], []];
    for (let agent = 0; agent < agents; agent++) { rays[0].push(SERVER[0], net.x[agent], null); rays[1].push(SERVER[1], net.y[agent], null); }
    const low = frames ? frames.low : 0, high = frames ? frames.high : 1;
    const ticks = [];
    for (let power = Math.ceil(low); power <= high; power++) ticks.push(power);
    const lines = (x, y, color, width, dash = "solid") => ({ x, y, mode: "lines", line: { color, width, dash }, hoverinfo: "skip" });
    const narrow = byId("graph").clientWidth < 420;
    const apart = (level) => number(Number((10 ** (low + (level / 255) * (high - low))).toPrecision(2)));
    draw("graph", [
      lines(net.links[0], net.links[1], now.gossip ? css("--accent") : css("--link"), (now.gossip ? 2.5 : 1.2) * (agents > 60 ? 0.4 : 1)),
      // Which agents it was is not kept, where it was not all of them.
      lines(rays[0], rays[1], now.server ? css("--mark") : "rgba(0,0,0,0)", agents > 60 ? 0.8 : 1.8, now.part ? "dot" : "solid"),
      { x: [SERVER[0]], y: [SERVER[1]], mode: "markers+text", text: ["server"], textposition: "top center", hoverinfo: "skip",
        marker: { symbol: "square", size: 20, color: now.server ? css("--mark") : css("--link") } },
      { x: net.x, y: net.y, mode: agents <= 50 ? "markers+text" : "markers", text: net.x.map((_, agent) => String(agent)),
        textfont: { size: agents <= 20 ? 12 : 10, color: values.map((level) => (level > 130 ? "#ffffff" : "#1c2126")) },
        customdata: values.map((level) => (level ? `about ${apart(level)}` : `at most ${apart(0)}`)),
        hovertemplate: "agent %{text}: ‖xᵢ − x̄‖² %{customdata}<extra></extra>",
        marker: { size, color: values, cmin: 0, cmax: 255, colorscale: SCALE, line: { color: css("--quiet"), width: 1 },
          showscale: Boolean(frames), colorbar: { thickness: 12, len: 0.85, outlinewidth: 0, tickvals: ticks.map((power) => (255 * (power - low)) / (high - low)),
            ticktext: ticks.map((power) => `10<sup>${String(power).replace("-", "−")}</sup>`), title: { text: narrow ? "" : "‖xᵢ − x̄‖²", side: "right" } } } },
    ], { xaxis: { visible: false, range: [-1.2, 1.2], fixedrange: true }, yaxis: { visible: false, range: [-1.2, 1.75], fixedrange: true, scaleanchor: narrow ? undefined : "x" },
      margin: { l: 4, r: 4, t: 4, b: 4 } });
    byId("frame-text").textContent = words;
    byId("graph").setAttribute("aria-label", `The network of ${agents} agents. ${words}`);
    const slider = byId("frame");
    slider.value = frame;
    slider.setAttribute("aria-valuetext", words);
    if (frames && frames.round.length > 1) Plotly.relayout(byId("strip"), { shapes: [cursor(frames)] });
    if (byId("agents-details").open) {
      byId("agents-table").replaceChildren(table(`Agents after round ${frames ? frames.round[frame] : 0}`, ["Agent", "Neighbours", "‖xᵢ − x̄‖², about"],
        values.map((level, agent) => [String(agent), String(net.degrees[agent]), frames ? (level ? apart(level) : `≤ ${apart(0)}`) : "–"])));
    }
  }
  function step(by) {
    const count = chosenResult()?.network?.frames?.round.length ?? 0;
    if (!count) return;
    frame = Math.min(Math.max(frame + by, 0), count - 1);
    drawFrame();
    if (timer && frame === count - 1) pause();
  }
  function pause() {
    clearTimeout(timer);
    timer = null;
    byId("play").textContent = "Play";
    byId("frame-text").setAttribute("aria-live", "polite");
  }
  function play() {
    const count = chosenResult()?.network?.frames?.round.length ?? 0;
    if (frame >= count - 1) frame = 0;
    byId("play").textContent = "Pause";
    byId("frame-text").setAttribute("aria-live", "off"); // twenty rounds a second are not for reading aloud
    const next = () => { timer = setTimeout(() => { step(1); if (timer) next(); }, 1000 / Number(byId("speed").value)); };
    next();
  }
  const toggle = () => (timer ? pause() : play());

  // ---- labels --------------------------------------------------------------------------------------------------
  function drawLabels() {
    const result = chosenResult(), labels = result?.labels;
    byId("labels-present").hidden = !labels;
    byId("labels-absent").hidden = Boolean(labels) || !result;
    if (!labels) { byId("labels-absent").textContent = "The data has no labels that were counted, or the result is an older one."; return; }
    const { names, counts } = labels, agents = counts.map((_, agent) => agent);
    const xaxis = { title: { text: "agent" }, dtick: agents.length <= 30 ? 1 : undefined, showgrid: false };
    if (names.length <= 10) {
      const tone = (index) => (names.length <= COLOURS.length ? colour(index) : `hsl(${Math.round((360 * index) / names.length)} 55% ${index % 2 ? 45 : 62}%)`);
      draw("label-chart", names.map((name, index) => ({
        type: "bar", x: agents, y: counts.map((row) => row[index]), name: `label ${plain(name)}`, marker: { color: tone(index) },
        hovertemplate: "agent %{x}: %{y} samples<extra>label " + plain(name) + "</extra>",
      })), { barmode: "stack", bargap: 0.15, xaxis, yaxis: { title: { text: "samples" } }, showlegend: true, legend: { orientation: "h", traceorder: "normal", y: 1.02, yanchor: "bottom" }, margin: { l: 52, r: 12, t: 30, b: 42 } });
    } else {
      draw("label-chart", [{ type: "heatmap", x: agents, y: names, z: names.map((_, index) => counts.map((row) => row[index])), colorscale: "Cividis",
        hovertemplate: "agent %{x}, label %{y}: %{z} samples<extra></extra>", colorbar: { title: { text: "samples" }, thickness: 12 } }],
      { xaxis, yaxis: { title: { text: "label" }, type: "category" } });
    }
    const kinds = counts.map((row) => row.filter(Boolean).length);
    byId("label-chart").setAttribute("aria-label", `Chart of the labels of ${agents.length} agents; an agent has between ${Math.min(...kinds)} and ${Math.max(...kinds)} of the ${names.length} labels. The table below has the counts.`);
    if (byId("labels-details").open) labelTable();
  }
  function labelTable() {
    const { names, counts } = chosenResult().labels;
    byId("labels-table").replaceChildren(table("Samples of every label", ["Agent", ...names.map((name) => `label ${name}`)], counts.map((row, agent) => [String(agent), ...row.map(number)])));
  }

  // ---- prices, theme, everything together ----------------------------------------------------------------------
  function reprice() {
    for (const cell of document.querySelectorAll("td[data-server]")) {
      const list = (name) => cell.dataset[name].split(",").map(Number), gossip = list("gossip");
      const paid = list("server").map((count, at) => price("server") * count + price("gossip") * gossip[at]);
      const mean = number(paid.reduce((a, b) => a + b, 0) / paid.length), low = number(Math.min(...paid)), high = number(Math.max(...paid));
      cell.textContent = low === high ? mean : `${mean} (${low} to ${high})`;
    }
  }
  function theme(name) {
    if (name === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.dataset.theme = name;
  }
  function remember(name) { try { localStorage.setItem("pisco-theme", name); } catch { /* a page from disk may have no storage */ } }
  function remembered() { try { return localStorage.getItem("pisco-theme"); } catch { return null; } }
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
    for (const kind of ["server", "gossip"]) byId(`price-${kind}`).addEventListener("input", () => { reprice(); drawCurves(); });
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
    byId("theme").addEventListener("change", () => { theme(byId("theme").value); remember(byId("theme").value); drawAll(); });
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

  // ---- a run that is still going on ------------------------------------------------------------------------------
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

  // ---- start -----------------------------------------------------------------------------------------------------
  async function unpack(id) {
    const packed = byId(id).textContent.trim();
    const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(packed) : Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }
  async function start() {
    const chosen = remembered();
    if (chosen) { byId("theme").value = chosen; theme(chosen); }
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
})();
