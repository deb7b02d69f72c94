// Curves against rounds, bytes, price and seconds.
const measure = () => data.measures.find((each) => each.name === byId("measure").value) ?? data.measures[0];
const price = (kind) => Math.max(0, Number(byId(`price-${kind}`).value) || 0);
function along(result, kind) {
  if (kind === "round") return result.x.round;
  if (kind === "bytes") return result.x.megabytes;
  if (kind === "seconds") return result.x.seconds;
  const { server, gossip, gradient } = result.x;
  if (!server || !gossip || (price("gradient") && !gradient)) return undefined;
  return server.map((count, at) => price("server") * count + price("gossip") * gossip[at] + price("gradient") * (gradient?.[at] ?? 0));
}
function traces(result, index, kind, name, log) {
  const x = along(result, kind), curve = result.y[name], tone = colour(index);
  if (!x || !curve) return [];
  const logX = byId("log-x").checked;
  const keep = x.map((_, at) => at).filter((at) => curve.median[at] !== null && (!log || curve.median[at] > 0) && (!logX || x[at] > 0));
  const label = plain(result.label), digits = measure().percent ? ".2%" : ".4~g";
  const line = {
    x: keep.map((at) => x[at]), y: keep.map((at) => curve.median[at]), name: label, mode: keep.length > 1 ? "lines" : "markers",
    line: { color: tone, dash: dash(index), width: 2 }, hovertemplate: `%{y:${digits}} at %{x:.5~g}<extra>${label}</extra>`,
  };
  if (!curve.low || !byId("band").checked) return [line];
  const floor = (at) => (log && curve.low[at] <= 0 ? curve.median[at] : curve.low[at]);
  const band = {
    x: [...line.x, ...line.x.toReversed()],
    y: [...keep.map((at) => curve.high[at]), ...keep.map(floor).reverse()],
    fill: "toself", fillcolor: faint(tone, 0.18), line: { width: 0 }, mode: "lines", hoverinfo: "skip", name: label,
  };
  return [band, line];
}
function range(drawn, log, percent) {
  // Where some results blew up, the others are what can be read: those that did leave through the top.
  const calm = drawn.filter(([result]) => !result.wild), some = calm.length && calm.length < drawn.length;
  if (!log && !some) return percent ? {} : { rangemode: "normal" };
  let low = Infinity, high = -Infinity;
  for (const [, own] of some ? calm : drawn) for (const trace of own) for (const y of trace.y) { low = Math.min(low, y); high = Math.max(high, y); }
  if (low > high || (log && !high)) return {};
  // A server round leaves a consensus error of rounding only, which would flatten everything else.
  if (log) { low = Math.log10(calm.length ? Math.max(low, high * 1e-10) : low); high = Math.log10(high); }
  const pad = 0.05 * Math.max(high - low, log ? 0.2 : 1e-9);
  return { range: [low - pad, high + pad] };
}
function drawCurves() {
  if (!data.results.length) return;
  const chosen = measure(), log = byId("log-y").checked, logX = byId("log-x").checked;
  const shown = data.results.map((result, index) => [result, index]).filter(([, index]) => !hidden.has(index));
  for (const [kind, id] of [["round", "by-round"], ["bytes", "by-bytes"], ["price", "by-price"], ["seconds", "by-seconds"]]) {
    const known = data.results.some((result) => along(result, kind));
    byId(id).parentElement.hidden = !known;
    if (!known) continue;
    const drawn = shown.map(([result, index]) => [result, traces(result, index, kind, chosen.name, log)]).filter(([, own]) => own.length);
    draw(id, drawn.flatMap(([, own]) => own), {
      // A thousandth of a megabyte is no "milli".
      xaxis: { type: logX ? "log" : "linear", rangemode: "tozero", exponentformat: kind === "bytes" ? "none" : "SI" },
      yaxis: { type: log ? "log" : "linear", tickformat: chosen.percent ? ".0%" : "", ...range(drawn, log, chosen.percent) },
    });
    const said = shown.slice(0, 6).filter(([result]) => result.y[chosen.name]).map(([result]) => {
      const values = result.y[chosen.name].median.filter((value) => value !== null);
      return `${result.label} from ${number(values[0] ?? null)} to ${number(values.at(-1) ?? null)}`;
    });
    const against = { round: "rounds", bytes: "megabytes sent", price: "the price paid", seconds: "seconds by the clock" }[kind];
    byId(`cap-${kind}`).textContent = `${chosen.title[0].toUpperCase()}${chosen.title.slice(1)} against ${against}`;
    byId(id).setAttribute("aria-label", `Chart of ${chosen.title} against ${against}: ${said.join("; ")}. The table below has numbers.`);
  }
  const thinned = data.results.some((result) => result.x.round.length < result.measured);
  const bands = data.results.some((result) => result.seeds > 1);
  byId("band-switch").hidden = !bands;
  byId("curves-note").textContent = [
    bands ? "Lines are medians over seeds, bands their 95% bootstrap intervals." : "",
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
      const { median, low, high } = result.y[chosen.name];
      const words = (value) => (chosen.percent && value !== null ? `${(100 * value).toFixed(1)}%` : number(value));
      return low && low[at] !== high[at] ? `${words(median[at])} (${words(low[at])} to ${words(high[at])})` : words(median[at]);
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
