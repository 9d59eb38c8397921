"use strict";
const make = (parent, name, attributes, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  return parent.appendChild(element);
};
const html = (parent, name, kind, text) => {
  const element = document.createElement(name);
  element.className = kind;
  element.textContent = text;
  return parent.appendChild(element);
};
const number = value => {
  for (const [factor, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= factor * 0.99995) return +(value / factor).toPrecision(3) + unit;
  return String(+value.toPrecision(3));
};
const ticks = (low, high, count, whole) => {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].map(nice => nice * power).find(value => value >= rough * 0.999);
  if (whole) step = Math.max(Math.round(step), 1);
  const places = [];
  for (let at = Math.ceil(low / step - 1e-9); at <= Math.floor(high / step + 1e-9) && places.length < 50; at++) places.push(at * step);
  return places;
};
const within = (points, low, high) => {  // with the points where the line leaves the range
  const inside = [];
  points.forEach(([x, y], index) => {
    const [px, py] = points[index - 1] || [x, y];
    for (const edge of [low, high]) if (px < edge && edge < x) inside.push([edge, py + (y - py) * (edge - px) / (x - px), true]);
    if (low <= x && x <= high) inside.push([x, y]);
  });
  return inside;
};

const chart = group => {
  const {x, y, name, mark, curves} = JSON.parse(group.dataset.numbers);
  const svg = group.ownerSVGElement, figure = svg.closest("figure"), width = svg.viewBox.baseVal.width;
  const [begin, end, bottom, top] = [x[2], x[3], y[2], y[3]];
  const tip = html(figure, "div", "tip", ""), all = html(figure, "button", "all", "all epochs".replace("epoch", name));
  const over = make(svg, "g", {}), still = [...group.childNodes];
  let low = x[0], high = x[1], from = null;
  const at = value => begin + (value - low) / (high - low) * (end - begin);
  const draw = () => {
    all.style.display = low === x[0] && high === x[1] ? "none" : "block";
    figure.classList.toggle("zoomed", all.style.display === "block");
    if (all.style.display === "none") return group.replaceChildren(...still);
    const shown = curves.map(([, , , points]) => within(points, low, high));
    const values = shown.flat().map(point => point[1]);
    if (!values.length) return;
    let least = Math.min(...values), most = Math.max(...values);
    const room = (most - least) * 0.06 || Math.max(Math.abs(most) * 0.1, 1e-9);
    [least, most] = [least - room, most + room];
    const down = value => bottom + (value - least) / (most - least) * (top - bottom);
    group.replaceChildren();
    for (const tick of ticks(least, most, 5, false)) {
      make(group, "path", {d: `M${begin} ${down(tick)}H${end}`, style: "stroke:var(--grid);stroke-width:.8"});
      make(group, "text", {x: begin - 6, y: down(tick) + 4, "text-anchor": "end", style: "fill:var(--muted);font-size:11px"}, number(tick));
    }
    for (const tick of ticks(low, high, 6, true))
      make(group, "text", {x: at(tick), y: bottom + 15, "text-anchor": "middle", style: "fill:var(--muted);font-size:11px"}, number(tick));
    make(group, "text", {x: (begin + end) / 2, y: bottom + 29, "text-anchor": "middle", style: "fill:var(--muted);font-size:11px"}, name);
    if (mark && low <= mark[0] && mark[0] <= high) {
      make(group, "path", {d: `M${at(mark[0])} ${top}V${bottom}`, style: "stroke:var(--muted);stroke-dasharray:3 3"});
      const side = at(mark[0]) > (begin + end) / 2 ? "end" : "start";
      make(group, "text", {x: at(mark[0]), y: top - 4, "text-anchor": side, style: "fill:var(--ink);font-size:11px"}, mark[1]);
    }
    shown.forEach((points, index) => {
      const colour = `var(--${curves[index][1]})`, there = points.map(([px, py]) => `${at(px)},${down(py)}`);
      make(group, "polyline", {points: there.join(" "), style: `fill:none;stroke:${colour};stroke-width:1.6`});
      const real = points.filter(point => !point[2]);
      if (real.length < 60) for (const [px, py] of real) make(group, "circle", {cx: at(px), cy: down(py), r: 2.6, style: `fill:${colour}`});
    });
  };
  const place = event => {
    const box = svg.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - box.left) * width / box.width, begin), end);
  };
  const value = pixel => low + (pixel - begin) / (end - begin) * (high - low);
  const leave = () => { over.replaceChildren(); tip.style.display = "none"; };
  const hover = event => {
    const pointed = value(place(event));
    const near = points => points.reduce((best, point) => Math.abs(point[0] - pointed) < Math.abs(best[0] - pointed) ? point : best);
    const nearest = curves.map(curve => [curve, near(curve[3])]);
    const epoch = nearest.map(([, point]) => point[0]).reduce((best, x) => Math.abs(x - pointed) < Math.abs(best - pointed) ? x : best);
    over.replaceChildren();
    if (epoch >= low && epoch <= high) make(over, "path", {d: `M${at(epoch)} ${top}V${bottom}`, style: "stroke:var(--ink);stroke-width:.8"});
    tip.replaceChildren();
    html(tip, "b", "", `${name} ${+epoch.toPrecision(6)}`);
    for (const [[title, colour], [px, py]] of nearest) {
      const line = html(tip, "div", "", `${title} ${+py.toPrecision(4)}${px === epoch ? "" : ` (${name} ${+px.toPrecision(6)})`}`);
      line.style.borderLeft = `.6em solid var(--${colour})`;
    }
    tip.style.display = "block";
    const box = figure.getBoundingClientRect(), left = event.clientX - box.left + 14;
    tip.style.left = `${Math.max(left + tip.offsetWidth > box.width ? left - tip.offsetWidth - 28 : left, 0)}px`;
    tip.style.top = `${event.clientY - box.top + 14}px`;
  };
  svg.addEventListener("pointermove", event => {
    hover(event);
    if (from === null) return;
    const [one, other] = [from, place(event)].sort((a, b) => a - b);
    make(over, "rect", {x: one, y: top, width: other - one, height: bottom - top, style: "fill:var(--muted);fill-opacity:.25"});
  });
  svg.addEventListener("pointerdown", event => { from = place(event); event.preventDefault(); });
  svg.addEventListener("pointerup", event => {
    const [one, other] = [from === null ? 0 : from, from === null ? 0 : place(event)].sort((a, b) => a - b);
    from = null;
    if (other - one > 8) { [low, high] = [value(one), value(other)]; draw(); }
    leave();
  });
  svg.addEventListener("pointerleave", () => { from = null; leave(); });
  const reset = () => { [low, high] = [x[0], x[1]]; draw(); };
  svg.addEventListener("dblclick", reset);
  all.addEventListener("click", reset);
  draw();
  leave();
};

const sortable = table => [...table.tHead.rows[0].cells].forEach((head, column) => {
  const key = row => row.cells[column].querySelector("data")?.value ?? row.cells[column].textContent.replaceAll(",", "");
  const sort = () => {
    const falls = head.ariaSort !== "descending", rows = [...table.tBodies[0].rows];
    const numeric = rows.every(row => key(row).trim() === "" || !isNaN(key(row)));
    const compare = (a, b) => numeric ? a - b : a.localeCompare(b, undefined, {numeric: true});
    const empty = rows.filter(row => key(row).trim() === ""), rest = rows.filter(row => key(row).trim() !== "");
    rest.sort((a, b) => compare(key(a), key(b)) * (falls ? -1 : 1));
    for (const cell of table.tHead.rows[0].cells) cell.ariaSort = null;
    head.ariaSort = falls ? "descending" : "ascending";
    table.tBodies[0].append(...rest, ...empty);
  };
  head.tabIndex = 0;
  head.addEventListener("click", sort);
  head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
});

const choose = figure => figure.querySelectorAll("input").forEach((input, index, inputs) => input.addEventListener("change", () =>
  figure.querySelectorAll("g.layer").forEach((layer, number) => { layer.style.display = inputs[number].checked ? "" : "none"; })));

const begin = () => {
  document.documentElement.classList.add("script");
  document.querySelectorAll("g.plot").forEach(chart);
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("figure").forEach(choose);
};
begin();
