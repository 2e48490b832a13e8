// Panels with a chart each, drawn by Chart.js. In addition to the picture, every panel has its latest
// values as text and all values in a table, and can save both.

import {color, make, table} from "./elements.js";
import {fileName, save, saveCsv, saveJson} from "./save.js";

const COLORS = ["--first", "--second", "--third", "--fourth", "--fifth", "--sixth"];
const DASH = [5, 4];

// Panels with a chart.
const panels = new Set();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const panel of panels) panel.paint();
});

/** Removes all charts, before another view is shown. */
export function removeCharts() {
  for (const panel of panels) panel.chart.destroy();
  panels.clear();
}

/**
 * Options of all panels. `unit` is the unit of the vertical axis (`binary` for bytes), `range` its ends,
 * `note` says what is normal, and `empty` is shown without values. `format` formats a value, `tick` one of the axis,
 * and `nameOf` a name; `namesTitle` is the title of the names. `about`, for example the run, is part of file names.
 */
class Panel {
  constructor(options) {
    const {title, unit, note, empty = "Nothing evaluated yet."} = options;
    const range = {beginAtZero: true};
    Object.assign(this, {tick: options.format, range, namesTitle: "Draw", nameOf: String}, options);
    this.legend = make("ul", {class: "legend"});
    this.canvas = make("canvas", {role: "img", "aria-label": title});
    this.emptyWords = make("p", {class: "empty"}, empty);
    this.values = make("div", {tabindex: "0"});
    this.words = make("p", {class: "note"}, note);
    this.details = make("details", {ontoggle: () => this.listValues()}, make("summary", {}, "Values"), this.values);
    this.saves = make("p", {class: "saves"}, "Save ", ["PNG", "CSV", "JSON"].map(kind =>
      make("button", {type: "button", "aria-label": `Save ${title} as ${kind}`,
        onclick: () => this.save(kind)}, kind)));
    this.element = make("section", {class: "panel", "aria-label": title},
        make("h3", {}, title, unit ? make("span", {class: "unit"}, ` (${unit})`) : null),
        this.legend, make("div", {class: "plot"}, this.canvas, this.emptyWords),
        this.words, this.details, this.saves);
  }

  /**
   * Shows `series` [{name, values, dashed, points, places}], with one value per element of `names`;
   * null is a gap. `places` are the values' positions on an `axis` of numbers.
   */
  show({names, series, axis = {}}) {
    Object.assign(this, {names, axis});
    this.series = series.map((line, i) => ({color: COLORS[i % COLORS.length], ...line}));
    const any = this.series.some(line => line.values.some(value => value !== null));
    this.emptyWords.hidden = any;
    this.saves.hidden = !any;
    this.paint();
    this.describe(any);
    this.listValues();
  }

  /** Returns all values, as numbers: {columns: [name], rows: [[value]]}. */
  exported() {
    return {
      columns: [this.namesTitle, ...this.series.map(line => line.name)],
      rows: this.names.map((name, i) => [name, ...this.series.map(line => line.values[i])]),
    };
  }

  save(kind) {
    const name = this.about ? `${this.about} ${this.title}` : this.title;
    if (kind === "CSV") saveCsv(name, this.exported());
    if (kind === "JSON") saveJson(name, this.title, this.unit, this.exported());
    if (kind === "PNG") this.savePng(name);
  }

  // Draws the chart once more, with its title and legend, as wide as the widest of them.
  savePng(name) {
    const text = [name, this.unit && `(${this.unit})`].filter(Boolean).join(" ");
    const canvas = make("canvas");
    const context = canvas.getContext("2d");
    const words = [text, ...this.series.map(line => line.name)];
    context.font = "bold 14px sans-serif";
    canvas.width = Math.max(this.canvas.clientWidth, ...words.map(line => 60 + context.measureText(line).width));
    canvas.height = this.canvas.clientHeight + 24 * words.length;
    const [ink, paper] = ["--ink", "--card"].map(color);
    const options = {...this.options(), responsive: false, layout: {padding: 12}, plugins: {
      title: {display: true, align: "start", color: ink, font: {size: 14}, text},
      legend: {display: !this.legend.hidden, align: "start", labels: {color: ink, boxWidth: 18, boxHeight: 2}}}};
    const background = {id: "background", beforeDraw() {
      context.fillStyle = paper;
      context.fillRect(0, 0, canvas.width, canvas.height);
    }};
    const chart = new Chart(canvas, {type: this.type, data: this.data(), options, plugins: [background]});
    canvas.toBlob(blob => {
      save(blob, fileName(name, "png"));
      chart.destroy();
    });
  }

  describe(any) {
    this.legend.hidden = this.type === "bar" && this.series.length === 1;
    this.legend.replaceChildren(...(any ? this.series : []).map(line => {
      const said = this.latest(line);
      const stroke = `3px ${line.dashed ? "dashed" : "solid"} var(${line.color})`;
      return make("li", {}, make("span", {style: {"border-top": stroke}}), line.name,
          said === null ? [] : [" ", make("b", {}, said)]);
    }));
    const words = this.series.map(line => `${line.name} ${this.latest(line) ?? ""}`).join(", ");
    this.canvas.setAttribute("aria-label", any ? `${this.title}: ${words}` : this.title);
  }

  listValues() {
    if (!this.details.open) return;
    const {columns, rows} = this.shownRows();
    this.values.replaceChildren(table(this.title, columns, rows));
  }

  /** Of the table. */
  shownRows() {
    const columns = [{title: this.namesTitle, left: true, cell: i => this.nameOf(this.names[i])},
      ...this.series.map(line => ({title: line.name, cell: i => this.format(line.values[i])}))];
    const rows = this.names.map((_, i) => i);
    if (this.type === "line") rows.reverse();
    return {columns, rows};
  }

  paint() {
    this.chart ??= new Chart(this.canvas, {type: this.type, data: {datasets: []}});
    panels.add(this);
    this.chart.data = this.data();
    this.chart.options = this.options();
    this.chart.update();
  }

  data() {
    return {labels: this.names, datasets: this.series.map(line => this.dataset(line, color(line.color)))};
  }

  options() {
    const [ink, muted, grid] = ["--ink", "--muted", "--grid"].map(color);
    const ticks = {color: muted, font: {size: 11}, maxRotation: 0, autoSkipPadding: 14};
    return {
      animation: false,
      maintainAspectRatio: false,
      // Draws of several runs don't lie at the same places.
      interaction: {mode: this.several ? "nearest" : "index", axis: "x", intersect: false},
      layout: {padding: {top: 4}},
      scales: {
        x: {grid: {display: false}, stacked: this.stacked, ...this.axis, ticks: {...ticks, ...this.axis.ticks}},
        y: {...this.range, stacked: this.stacked, grid: {color: grid, drawBorder: false},
          ticks: {...ticks, maxTicksLimit: 5, stepSize: this.stepSize(),
            callback: value => this.tick(value)}},
      },
      plugins: {
        legend: {display: false},
        tooltip: {
          backgroundColor: color("--card"), titleColor: ink, bodyColor: ink,
          borderColor: color("--line"), borderWidth: 1, padding: 8, boxWidth: 10, boxHeight: 2,
          callbacks: {
            title: items => this.tooltipTitle(items[0].dataIndex, items[0].datasetIndex),
            label: item => ` ${item.dataset.label}: ` +
              this.format(this.series[item.datasetIndex].values[item.dataIndex]),
          },
        },
      },
    };
  }

  // An axis of bytes has steps of powers of 2.
  stepSize() {
    if (!this.binary) return undefined;
    const most = Math.max(1, ...this.series.flatMap(line => line.values));
    return 2 ** Math.ceil(Math.log2(most / 4));
  }

  tooltipTitle(i) {
    return `${this.namesTitle} ${this.nameOf(this.names[i])}`;
  }
}

/** Lines of values. */
export class LinePanel extends Panel {
  type = "line";

  dataset(line, stroke) {
    const {values, places} = line;
    const data = places ? values.map((y, i) => ({x: places[i], y})) : values;
    return {label: line.name, data, borderColor: stroke, backgroundColor: stroke,
      borderWidth: 2, borderDash: line.dashed ? DASH : [], tension: 0,
      pointRadius: line.points || values.length < 2 ? 3 : 0, pointHitRadius: 8};
  }

  latest(line) {
    const last = line.values.findLast(value => value !== null);
    return last === undefined ? null : this.format(last);
  }
}

/** Shares in cells: a row for each series, the first at the bottom. Large shares have strong colours. */
export class HeatPanel extends LinePanel {
  type = "bar";

  stacked = true;

  show({names, series}) {
    this.tick = middle => series[Math.floor(middle)]?.name;
    this.range = {min: 0, max: series.length,
      afterBuildTicks: axis => { axis.ticks = series.map((_, i) => ({value: i + 0.5})); }};
    super.show({names, series: series.map(line => ({color: "--first", ...line}))});
    this.legend.hidden = true;
  }

  dataset(line, fill) {
    const shade = share => fill.replace("rgb(", "rgba(").replace(")", `, ${share === null ? 0 : 0.06 + 0.94 * share})`);
    return {label: line.name, data: line.values.map(() => 1), backgroundColor: line.values.map(shade),
      categoryPercentage: 1, barPercentage: 1};
  }
}

/** Bars of several series, grouped. */
export class BarPanel extends Panel {
  type = "bar";

  dataset(line, fill) {
    return {label: line.name, data: line.values, backgroundColor: fill, borderRadius: 2,
      categoryPercentage: 0.9, barPercentage: 0.95};
  }

  latest() {
    return null;
  }
}
