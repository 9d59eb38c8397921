"use strict";
const css = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
const nearest = (values, index) => {
  for (let step = 0; step < values.length; step++)
    for (const at of [index - step, index + step]) if (values[at] != null) return at;
  return index;
};
const plots = [], WHOLE = [...Array(8).keys()].flatMap(power => [1, 2, 5].map(factor => factor * 10 ** power));

const chart = element => {
  const {x, xName, mark, joined, series} = JSON.parse(element.dataset.numbers);
  const number = (plot, value) => value == null ? "" : String(+value.toPrecision(4));
  const axis = {stroke: () => css("muted"), grid: {stroke: () => css("grid"), width: 1}, ticks: {show: false}, font: "12px system-ui"};
  const drawMark = plot => {
    const at = mark ? plot.valToPos(mark[0], "x", true) : NaN, {left, top, width, height} = plot.bbox;
    if (!(left <= at && at <= left + width)) return;
    Object.assign(plot.ctx, {strokeStyle: css("muted"), fillStyle: css("ink"), textAlign: at > left + width / 2 ? "right" : "left"});
    plot.ctx.setLineDash([6, 6]);
    plot.ctx.stroke(new Path2D(`M${at} ${top}V${top + height}`));
    plot.ctx.setLineDash([]);
    plot.ctx.fillText(mark[1], at, top - 6);
  };
  const plot = new uPlot({
    width: element.clientWidth, height: 260, padding: [24, 16, 0, 0],
    cursor: {dataIdx: (plot, row, index) => row ? nearest(plot.data[row], index) : index},
    scales: {x: {time: false, range: (plot, low, high) => [low, high].map((end, side) => end + (joined ? 0 : (side - 0.5) * 0.12 * (high - low || high || 1)))}},
    axes: [{...axis, label: xName, labelFont: axis.font, labelSize: 18, ...(joined ? {incrs: WHOLE} : {})}, {...axis, size: 62}],
    series: [{label: xName, value: number}, ...series.map(([label, colour]) => ({
      label, value: number, stroke: () => css(colour), width: 1.6, spanGaps: true,
      points: {size: 6, fill: () => css(colour), ...(joined ? {} : {show: true})}, ...(joined ? {} : {paths: () => null}),
    }))],
    hooks: {draw: [drawMark]},
  }, [x, ...series.map(([, , values]) => values)], element);
  new ResizeObserver(() => plot.setSize({width: element.clientWidth, height: 260})).observe(element);
  plots.push(plot);
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
  figure.querySelectorAll("svg, :scope").forEach(parent => parent.querySelectorAll(":scope > .layer").forEach((layer, number) => {
    layer.style.display = inputs[number].checked ? "" : "none";
  }))));

document.documentElement.classList.add("script");
document.querySelectorAll(".plot").forEach(chart);
document.querySelectorAll("table.sortable").forEach(sortable);
document.querySelectorAll("figure").forEach(choose);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(plot => plot.redraw()));
