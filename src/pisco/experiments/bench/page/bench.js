  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const COLUMNS = ["server_rounds", "messages_gossip", "messages_server", "bytes_gossip", "bytes_server", "gradients", "seconds"];

  // What every seed had spent, from laws, single values and lists.
  function spent(entry, seeds) {
    const list = (value) => Array.isArray(value) ? value : Array(seeds).fill(value);
    const found = { round: list(entry.round) };
    for (const name of COLUMNS) {
      const given = entry[name];
      if (given === undefined || given === null) continue;
      const law = given.law;
      found[name] = law
        ? found.round.map((k, i) => law[0] + law[1] * k + (law[2] ? law[2] * found.server_rounds[i] : 0))
        : list(given);
    }
    return found;
  }

  // Kaplan and Meier's median, as pisco.statistics takes it.
  function median(values, missed) {
    const order = values.map((value, i) => ({ value, missed: missed[i] }))
      .sort((a, b) => a.value - b.value || a.missed - b.missed);
    const ends = [Infinity, Infinity];
    let alive = 1;
    order.forEach((each, i) => {
      if (!each.missed) alive *= 1 - 1 / (order.length - i);
      [0.5 + 1e-9, 0.5 - 1e-9].forEach((bound, which) => {
        if (alive <= bound && ends[which] === Infinity) ends[which] = each.value;
      });
    });
    return (ends[0] + ends[1]) / 2;
  }

  const packed = data.packed;
  const named = (row) => Object.fromEntries(row.map((value, i) =>
    [packed.columns[i], Array.isArray(value) && Array.isArray(value[0]) ? { law: value[0] } : value]));
  const groups = packed.groups.map((group) => ({
    ...group,
    scores: group.cells.flatMap((cell) => cell.entries.map(named).map((entry) => {
      const missed = Array.from({ length: group.seeds }, (_, seed) => entry.missed === "all" || entry.missed.includes(seed));
      const counts = spent(entry, group.seeds);
      const gossips = counts.messages_gossip.some((x) => x), serves = counts.messages_server.some((x) => x);
      const kind = !serves ? "gossip alone" : gossips ? "server and gossip" : "server alone";
      return { method: cell.method, p: entry.server_prob, lr: entry.local_lr, counts, missed, kind };
    })),
  }));

  function cost(score, currency, ratio) {
    if (score.missed.filter((x) => x).length > data.mayMiss * score.missed.length) return Infinity;
    if (currency === "bytes" || currency === "messages") {
      const server = score.counts[`${currency}_server`], gossip = score.counts[`${currency}_gossip`];
      return median(server.map((x, i) => ratio * x + gossip[i]), score.missed);
    }
    return score.counts[currency] ? median(score.counts[currency], score.missed) : Infinity;
  }

  function ranking(group, currency, ratio) {
    const best = new Map();
    for (const score of group.scores) {
      const found = { ...score, cost: cost(score, currency, ratio) };
      if (!best.has(score.method) || found.cost < best.get(score.method).cost) best.set(score.method, found);
    }
    return [...best.values()].sort((a, b) => (a.cost === b.cost ? 0 : a.cost - b.cost) || (a.method < b.method ? -1 : 1));
  }

  const show = (x) => x === Infinity ? "not reached" : x >= 1000 ? Math.round(x).toLocaleString("en") : String(+x.toPrecision(4));
  const fixed = (words) => words.replaceAll(" ", "\u00a0"); // "p = 0.1" stays on a line
  const label = (score) => score.method + (score.p === null ? "" : `, ${fixed(`p = ${score.p}`)}`);

  function cell(row, text, tag = "td") {
    const made = document.createElement(tag);
    made.textContent = text;
    row.append(made);
    return made;
  }

  function fill(select, names) {
    const before = select.value;
    select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.includes(before)) select.value = before;
  }

  function tinted(colour, margin) {
    const strength = Math.min(1, Math.log2(Math.max(margin, 1)));
    return colour + Math.round(255 * (0.15 + 0.5 * strength)).toString(16).padStart(2, "0");
  }

  // On some tasks and networks only a few methods were measured: the cheapest of these says less.
  const most = Math.max(...groups.map((group) => group.cells.length));
  const few = (group) => 2 * group.cells.length < most;

  function drawMap(task, currency) {
    const rows = groups.filter((group) => group.task === task).sort((a, b) => b.mixing_rate - a.mixing_rate);
    const priced = currency === "bytes" || currency === "messages";
    const ratios = priced ? data.ratios : [1];
    const head = document.createElement("tr");
    cell(head, priced ? "network; price of the server" : "network", "th");
    ratios.forEach((ratio) => cell(head, priced ? fixed(`× ${ratio}`) : "cheapest", "th"));
    at("map").tHead.replaceChildren(head);
    at("map").tBodies[0].replaceChildren(...rows.map((group) => {
      const row = document.createElement("tr");
      const methods = few(group) ? `, ${group.cells.length} methods` : "";
      cell(row, `${group.network}, ${fixed(`λ = ${+group.mixing_rate.toPrecision(2)}`)}${methods}`, "th");
      ratios.forEach((ratio) => {
        const [first, second] = ranking(group, currency, ratio);
        const none = !first || first.cost === Infinity;
        const margin = second && second.cost !== Infinity ? second.cost / first.cost : Infinity;
        const made = cell(row, none ? "–" : `${label(first)} ${fixed(`× ${margin === Infinity ? "∞" : margin.toFixed(2)}`)}`);
        if (!none) made.style.background = tinted(data.kinds[first.kind], margin);
      });
      return row;
    }));
  }

  function draw() {
    const task = at("task").value;
    fill(at("network"), groups.filter((group) => group.task === task).map((group) => group.network));
    const group = groups.find((each) => each.task === task && each.network === at("network").value);
    const currency = at("currency").value, ratio = 10 ** +at("ratio").value;
    const shown = +ratio.toPrecision(3);
    at("ratio-text").textContent = shown;
    at("price").hidden = currency !== "bytes" && currency !== "messages";
    const ranked = ranking(group, currency, shown), best = ranked[0] ? ranked[0].cost : Infinity;
    at("cost-head").textContent = at("currency").selectedOptions[0].textContent;
    at("ranking").tBodies[0].replaceChildren(...ranked.map((score) => {
      const row = document.createElement("tr");
      row.dataset.method = score.method;
      row.dataset.cost = score.cost;
      cell(row, score.method);
      cell(row, score.p === null ? "–" : score.p);
      cell(row, score.kind);
      const counted = score.counts[currency === "bytes" || currency === "messages" ? "round" : currency];
      cell(row, counted ? show(score.cost) : "not counted");
      cell(row, score.cost === Infinity ? "–" : (score.cost / best).toFixed(2));
      cell(row, show(median(score.counts.round, score.missed)));
      cell(row, `${score.missed.filter((x) => x).length} of ${group.seeds}`);
      cell(row, score.lr);
      return row;
    }));
    const refused = group.cells.filter((each) => !each.entries.length).map((each) => each.method);
    at("refused").textContent = refused.length ? `Cannot run on this network: ${refused.join(", ")}.` : "";
    const goal = `${group.target[0]} of ${group.target[1]}`;
    at("said").textContent = best === Infinity
      ? `No method reaches ${goal} in ${group.rounds} rounds.`
      : `To a ${goal}, ${label(ranked[0])} is the cheapest of ${ranked.length} methods that run on ${group.network}.`;
    if (few(group)) at("said").textContent += ` Only ${group.cells.length} of ${most} were measured here.`;
    drawMap(task, currency);
  }

  at("keys").replaceChildren(...Object.entries(data.kinds).map(([kind, colour]) => {
    const entry = document.createElement("span");
    entry.className = "entry";
    const key = document.createElement("span");
    key.className = "key";
    key.style.background = colour;
    entry.append(key, kind);
    return entry;
  }));
  fill(at("task"), [...new Set(groups.map((group) => group.task))]);
  for (const id of ["task", "network", "currency"]) at(id).addEventListener("change", draw);
  at("ratio").addEventListener("input", draw);
  draw();
  document.documentElement.dataset.ready = "yes";
