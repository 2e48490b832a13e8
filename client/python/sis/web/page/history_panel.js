// Panels over all draws of a run, or of two runs together.

import {LinePanel} from "./charts.js";
import {clock} from "./format.js";

/**
 * What a chart over draws may have below it, of a stretch (stretchValues) of a run. A draw's time is
 * that of its last evaluation.
 */
export const AXES = {
  draw: {title: "Draw", of: stretch => Number(stretch.lastDraw), format: draw => String(draw)},
  time: {title: "Time", of: stretch => stretch.endedAt,
    // Seconds where all of it is within some minutes, dates where it is more than a day.
    format: (time, span) => (span < 300 ? clock(time) :
      span < 86400 ? clock(time).slice(0, 5) : timeName(time))},
  hours: {title: "Hours since the first draw",
    of: (stretch, first) => (stretch.endedAt - first.begunAt) / 3600,
    format: hours => `${Number(hours.toPrecision(3))} h`},
};

function timeName(seconds) {
  const date = new Date(1000 * seconds);
  const two = number => String(number).padStart(2, "0");
  return `${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(seconds).slice(0, 5)}`;
}

export class HistoryPanel extends LinePanel {
  /** `runs` [{id, stretches}], the page's own first, `lines` [{name, of, dashed}], `axis` of AXES. */
  showRuns(runs, lines, axis, {range = {}} = {}) {
    this.several = runs.length > 1;
    this.runs = runs.filter(({stretches}) => stretches.length > 0);
    this.lines = lines;
    const series = this.runs.flatMap(({id, stretches}) => lines.map(line => ({
      name: this.several ? `${id}: ${line.name}` : line.name,
      dashed: line.dashed,
      values: stretches.map(line.of),
      places: stretches.map(stretch => axis.of(stretch, stretches[0])),
      stretches,
    })));
    const places = series.flatMap(line => line.places);
    const span = Math.max(...places) - Math.min(...places);
    const names = (this.runs[0]?.stretches ?? []).map(stretch => stretch.name);
    const scale = {type: "linear", ticks: {maxTicksLimit: 6, precision: axis === AXES.draw ? 0 : undefined,
      callback: value => axis.format(value, span)}};
    this.show(names, series, {range, axis: scale});
  }

  // Draws of two runs don't lie at the same places.
  interaction() {
    return this.several ? {mode: "nearest", axis: "x", intersect: false} : super.interaction();
  }

  tooltipTitle(i, series) {
    const stretch = this.series[series].stretches[i];
    return `Draw ${stretch.name}, ${timeName(stretch.endedAt)}`;
  }

  exported() {
    const time = seconds => new Date(1000 * seconds).toISOString();
    const columns = ["run", "first draw", "last draw", "draws", "begun", "ended",
      ...this.lines.map(({name}) => name)];
    return {columns, rows: this.runs.flatMap(({id, stretches}) =>
      stretches.map(stretch => [id, stretch.firstDraw, stretch.lastDraw, stretch.draws,
        time(stretch.begunAt), time(stretch.endedAt), ...this.lines.map(line => line.of(stretch))]))};
  }

  shownRows() {
    const rows = this.runs.flatMap(({id, stretches}) =>
      stretches.map(stretch => ({id, stretch}))).reverse();
    return {rows, columns: [
      {title: "Draw", left: true, cell: ({stretch}) => stretch.name},
      ...this.several ? [{title: "Run", left: true, cell: ({id}) => id}] : [],
      ...this.lines.map(line => ({title: line.name,
        cell: ({stretch}) => this.format(line.of(stretch))})),
      {title: "Time", cell: ({stretch}) => timeName(stretch.endedAt)},
    ]};
  }
}
