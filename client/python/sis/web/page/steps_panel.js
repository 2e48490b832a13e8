// Panels over all draws of a run, or of two runs together.

import {LinePanel} from "./charts.js";
import {dayAndTime, timeOfAxis} from "./format.js";

/** The x axis of a chart over draws, of stepValues. A draw's time is that of its last evaluation. */
export const AXES = {
  draw: {title: "Draw", of: step => Number(step.draw), format: draw => String(draw)},
  time: {title: "Time", of: step => step.endedAt, format: timeOfAxis},
  hours: {title: "Hours since the first draw",
    of: (step, first) => (step.endedAt - first.begunAt) / 3600,
    format: hours => `${Number(hours.toPrecision(3))} h`},
};

/**
 * Options in addition: `lines` [{name, of(step), dashed}], or a function of all steps that returns them; and `beyond`,
 * which returns another note if the last step's value is not normal.
 */
export class StepsPanel extends LinePanel {
  /** `runs` [{id, steps}], the page's own first, `axis` of AXES. */
  showRuns(runs, axis) {
    this.several = runs.length > 1;
    this.runs = runs.filter(({steps}) => steps.length > 0);
    this.drawn = typeof this.lines === "function" ? this.lines(runs.flatMap(({steps}) => steps)) : this.lines;
    const [{steps: own}] = runs;
    const note = own.length > 0 && this.beyond?.(own.at(-1)) || this.note;
    if (this.words.textContent !== note) this.words.textContent = note;
    const series = this.runs.flatMap(({id, steps}) => this.drawn.map(line => ({
      name: this.several ? `${id}: ${line.name}` : line.name,
      dashed: line.dashed,
      values: steps.map(line.of),
      places: steps.map(step => axis.of(step, steps[0])),
      steps,
    })));
    const places = series.flatMap(line => line.places);
    const span = Math.max(...places) - Math.min(...places);
    const names = (this.runs[0]?.steps ?? []).map(step => step.draw);
    const scale = {type: "linear", ticks: {maxTicksLimit: 6, precision: axis === AXES.draw ? 0 : undefined,
      callback: value => axis.format(value, span)}};
    this.show({names, series, axis: scale});
  }

  tooltipTitle(i, series) {
    const step = this.series[series].steps[i];
    return `Draw ${step.draw}, ${dayAndTime(step.endedAt)}`;
  }

  exported() {
    const time = seconds => new Date(1000 * seconds).toISOString();
    const columns = ["run", "draw", "begun", "ended", ...this.drawn.map(({name}) => name)];
    return {columns, rows: this.runs.flatMap(({id, steps}) => steps.map(step =>
      [id, step.draw, time(step.begunAt), time(step.endedAt),
        ...this.drawn.map(line => line.of(step))]))};
  }

  shownRows() {
    const rows = this.runs.flatMap(({id, steps}) => steps.map(step => ({id, step}))).reverse();
    return {rows, columns: [
      {title: "Draw", left: true, cell: ({step}) => step.draw},
      ...this.several ? [{title: "Run", left: true, cell: ({id}) => id}] : [],
      ...this.drawn.map(line => ({title: line.name, cell: ({step}) => this.format(line.of(step))})),
      {title: "Time", cell: ({step}) => dayAndTime(step.endedAt)},
    ]};
  }
}
