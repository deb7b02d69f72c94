// The network, played back.
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
  const lit = now.gossip ? css("--accent") : css("--link");
  const narrow = byId("graph").clientWidth < 420;
  const apart = (level) => number(Number((10 ** (low + (level / 255) * (high - low))).toPrecision(2)));
  draw("graph", [
    lines(net.links[0], net.links[1], lit, (now.gossip ? 2.5 : 1.2) * (agents > 60 ? 0.4 : 1)),
    ...(net.heads ? [{ ...lines(net.heads[0], net.heads[1], lit, 1), fill: "toself", fillcolor: lit }] : []),
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
    byId("agents-table").replaceChildren(table(`Agents after round ${frames ? frames.round[frame] : 0}`, ["Agent", ...(net.degrees.length > 1 ? ["Sends to", "Hears"] : net.degrees.length ? ["Neighbours"] : []), "‖xᵢ − x̄‖², about"],
      values.map((level, agent) => [String(agent), ...net.degrees.map((each) => String(each[agent])), frames ? (level ? apart(level) : `≤ ${apart(0)}`) : "–"])));
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
