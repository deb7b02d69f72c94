// The page of a running federation: one look a second at what its server knows. All text is put in as text.
const STATES = {
  works: "at work", waits: "waits", done: "done†", silent: "silent", unheard: "not heard yet", trouble: "cannot take part†",
};
const SVG = "http://www.w3.org/2000/svg";
const size = (bytes) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 1000 && at < units.length - 1) { bytes /= 1000; at += 1; }
  return `${at ? Number(bytes.toPrecision(3)) : bytes} ${units[at]}`;
};
function shape(tag, attributes, words) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (words !== undefined) made.textContent = words;
  return made;
}
function say(id, words) { if (byId(id).textContent !== words) byId(id).textContent = words; }

function status(lost) {
  const held = data.held, all = data.members.every((each) => each.state === "done");
  byId("line").classList.toggle("held", Boolean(lost || held));
  // Only who is waited for is read aloud; why changes every second.
  if (lost) say("status", "The server does not answer; this is the last that was heard of it.");
  else if (data.ended) say("status", all ? "The federation has finished." : "The server has stopped.");
  else if (all) say("status", "All rounds are done.");
  else say("status", held ? `${held.name} holds the others up.` : "Nobody is waited for.");
  const seen = data.members.some((each) => each.name === held?.name && ["silent", "unheard"].includes(each.state));
  say("why", held && !lost ? `${held.why}${seen ? "" : "†"}.` : "");
}
function rounds() {
  const speed = data.speed === null ? "" : `, ${number(data.speed)} a second`;
  say("progress", `Round ${number(data.front)} of ${number(data.rounds)}${speed}, as members report†.`);
  byId("bar").max = data.rounds;
  byId("bar").value = data.front;
  byId("recent").replaceChildren(...data.recent.map((each) => {
    const absent = each.absent ?? [], again = each.attempt ? `, attempt ${each.attempt + 1}` : "";
    const missing = absent.length ? `, without ${absent.join(", ")}` : "";
    return element("span", null, {
      class: `${each.server ? "server" : ""} ${absent.length ? "partly" : ""}`.trim(),
      title: `round ${each.round}: ${each.server ? "server" : "gossip"}${missing}${again}`,
    });
  }));
  const reached = data.recent.filter((each) => each.server).length, partly = data.recent.filter((each) => each.absent?.length).length;
  byId("recent").setAttribute("aria-label", `Of the last ${data.recent.length} rounds ${reached} reached the server`);
  const dotted = data.deadline === null ? "" : `; ${partly} went without somebody (striped)`;
  say("recent-note", data.recent.length ? `The last ${data.recent.length} rounds: ${reached} reached the server (tall)${dotted}.` : "No round is over yet.");
}
function places() {
  const count = data.members.length, far = count > 1 ? 38 : 0;
  return new Map(data.members.map((each, at) => {
    const turn = (2 * Math.PI * at) / count - Math.PI / 2;
    return [each.name, [50 + far * Math.cos(turn), 50 + far * Math.sin(turn)]];
  }));
}
function arrow(from, to, radius) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]], long = Math.hypot(dx, dy) || 1, [ux, uy] = [dx / long, dy / long];
  const point = (at, side) => `${(from[0] + at * ux - side * uy).toFixed(2)},${(from[1] + at * uy + side * ux).toFixed(2)}`;
  const [begin, end] = [radius, long - radius - 0.4];
  return [
    shape("path", { class: "wait", d: `M${point(begin, 0)} L${point(end - 2, 0)}` }),
    shape("path", { class: "tip", d: `M${point(end, 0)} L${point(end - 3, 1.4)} L${point(end - 3, -1.4)} Z` }),
  ];
}
function network() {
  const at = places(), radius = Math.max(1.2, Math.min(5, 60 / data.members.length)), drawn = [], hub = [50, 50];
  const alone = data.members.length === 1;
  if (!alone) for (const place of at.values()) drawn.push(shape("line", { class: "ray", x1: 50, y1: 50, x2: place[0], y2: place[1] }));
  for (const [one, other] of data.links) {
    const [from, to] = [at.get(one), at.get(other)];
    drawn.push(shape("line", { class: "link", x1: from[0], y1: from[1], x2: to[0], y2: to[1] }));
  }
  for (const each of data.members) {
    const to = each.told.waits_for === "server" ? hub : at.get(each.told.waits_for);
    if (each.state === "waits" && to && !alone) drawn.push(...arrow(at.get(each.name), to, radius));
  }
  if (!alone) drawn.push(shape("rect", { class: "hub", x: 47, y: 47, width: 6, height: 6, rx: 1 }), shape("text", { x: 50, y: 56, "font-size": 3.2 }, "server"));
  for (const each of data.members) {
    const place = at.get(each.name), held = data.held?.name === each.name;
    const group = shape("g", { class: `agent ${each.state}${held ? " held" : ""}${each.called === false ? " absent" : ""}` });
    group.append(shape("title", {}, `${each.name}: ${words(each)}`), shape("circle", { cx: place[0], cy: place[1], r: radius }));
    // Names stand outside of the ring, where there is room for them.
    if (data.members.length <= 24) {
      const short = each.name.length > 14 ? `${each.name.slice(0, 13)}…` : each.name;
      const y = place[1] + (place[1] > 50.1 || alone ? radius + 2.4 : -radius - 2.4);
      const x = Math.min(Math.max(place[0], short.length * 0.9 + 1), 99 - short.length * 0.9);
      group.append(shape("text", { x, y, "font-size": 3.2 }, short));
    }
    drawn.push(group);
  }
  byId("net").replaceChildren(...drawn);
  const said = data.members.filter((each) => each.state !== "works").map((each) => `${each.name} ${words(each)}`);
  byId("net").setAttribute("aria-label", `${data.members.length} members, ${data.links.length} links; ${said.slice(0, 20).join("; ") || "all at work"}`);
}
function words(each) {
  if (each.state === "waits") return `waits for ${each.told.waits_for}†`;
  return STATES[each.state];
}
function members() {
  const private_ = data.members.some((each) => each.told.epsilon !== null), rolls = data.deadline !== null;
  const columns = [
    ["member", (each) => each.name], ["state", words, "state"],
    ["heard", (each) => (each.silence === null ? "never" : `${Math.round(each.silence)} s ago`)],
    ...(rolls ? [["called", (each) => (each.called === null ? "–" : each.called ? "yes" : "no")]] : []),
    ["round†", ({ told }) => number(told.round)], ["behind†", ({ told }) => number(told.lag)],
    ["loss†", ({ told }) => (told.loss === null ? "–" : String(Number(told.loss.toPrecision(4))))],
    ...(private_ ? [["ε†", ({ told }) => number(told.epsilon)]] : []),
    ["a gradient†", ({ told }) => (told.compute === null ? "–" : `${number(1000 * told.compute)} ms`)],
    ["sent†", ({ told }) => size(told.sent)], ["received†", ({ told }) => size(told.received)],
    ["says†", ({ told }) => told.trouble, "told"],
  ];
  const some = data.members.some((each) => each.told.trouble) ? columns : columns.slice(0, -1);
  const seen = document.querySelector("#members .scroll")?.scrollLeft ?? 0;
  const moved = size(data.server.sent), taken = size(data.server.received);
  const caption = `The server sent ${moved}, received ${taken} and refused ${number(data.server.refusals)} requests.`;
  const made = table(caption, some.map(([head]) => head), data.members.map((each) => some.map(([, cell]) => cell(each))));
  [...made.querySelectorAll("tbody tr")].forEach((row, at) => {
    row.classList.toggle("held", data.held?.name === data.members[at].name);
    [...row.cells].forEach((cell, column) => {
      if (some[column][2]) cell.className = `${some[column][2]} ${data.members[at].state}`;
    });
  });
  const focused = document.activeElement?.closest?.("#members");
  byId("members").replaceChildren(made);
  made.scrollLeft = seen;
  if (focused) made.focus();
}
function show(lost) { status(lost); rounds(); network(); members(); }
async function follow() {
  while (!data.ended) {
    await new Promise((done) => setTimeout(done, 1000));
    try {
      const answer = await fetch("data.json", { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.statusText);
      data = await answer.json();
      show(false);
    } catch { status(true); } // the server may be started again
  }
}
themes();
show(false);
document.documentElement.dataset.ready = "yes";
follow();
