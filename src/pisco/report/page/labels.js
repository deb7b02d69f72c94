// Labels of every agent.
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
