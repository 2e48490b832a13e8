
// What sisctl compare --html adds to modules of the page, which stand before it in the same script.

const {report, summary, sequences, tokenTexts} = data;
const of = id => document.getElementById(id);
const fixed = (value, digits) => (value === null ? "–" : value.toFixed(digits));

of("checks").append(table("Evidence", [
  {title: "question", left: true, className: "name", cell: check => check.question},
  {title: "", left: true, cell: check => check.outcome},
  {title: "measured", cell: ({outcome, value}) => number(outcome === "untested" ? null : value)},
  {title: "a fault if", cell: ({fault_if, limit}) => `${fault_if === "at_least" ? "≥" : "≤"} ${limit}`},
  {title: "what is measured, and why the limit is there", left: true, className: "name",
    cell: ({outcome, finding, statistic, reason}) =>
      (outcome === "untested" ? `Not tested: ${finding}.` : `${statistic}; ${reason}.`)},
], report.checks, ({outcome}) => ({class: outcome})));

of("summary").append(table("What would be accepted", [
  {title: "behaviour, then current policy", left: true, cell: row => row.title},
  {title: "A, B", cell: row => fixed(row.a_to_b, row.digits)},
  {title: "B, A", cell: row => fixed(row.b_to_a, row.digits)},
], summary));
of("notes").append(...report.notes.map(note => make("p", {}, note)));

class PercentilePanel extends LinePanel {
  latest() {
    return null;  // the last value is the largest
  }
}

// The value that 0, 1, ..., 100 percent of them don't exceed, between neighbours in proportion.
function percentilesOf(values) {
  const sorted = values.filter(Number.isFinite).sort((x, y) => x - y);
  return Array.from({length: 101}, (_, percent) => {
    if (!sorted.length) return null;
    const place = percent / 100 * (sorted.length - 1), below = Math.floor(place);
    return sorted[below] + (place - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
  });
}

const AXIS = {
  ticks: {autoSkip: false},
  afterBuildTicks: axis => { axis.ticks = [0, 25, 50, 75, 90, 100].map(value => ({value})); },
};

// On a logarithmic axis values below this count as it.
const FLOOR = 1e-6;
for (const {title, unit, logarithmic, series} of [
  {title: "|log w| of the sampled token", unit: "nats", logarithmic: true,
    series: {"all positions": at => at.a_to_b.log_ratio}},
  {title: "Total variation of the lists", unit: "0 to 1", logarithmic: true,
    series: {"all positions": at => at.total_variation}},
  {title: "Acceptance probability", unit: "0 to 1",
    series: {"A, then B": at => at.a_to_b.acceptance_probability,
      "B, then A": at => at.b_to_a.acceptance_probability}},
  {title: "Log-prob of the sampled token", unit: "nats",
    series: {A: at => at.a_sampled_log_prob, B: at => at.b_sampled_log_prob}},
]) {
  const panel = new PercentilePanel({title, unit, format: number, empty: "no values", note: ""});
  of("percentiles").append(panel.element);
  const shown = value => (logarithmic && value !== null ? Math.max(FLOOR, Math.abs(value)) : value);
  panel.show(Array.from({length: 101}, (_, percent) => percent),
      Object.entries(series).map(([name, value]) =>
        ({name, values: percentilesOf(report.positions.map(value).map(shown))})),
      {range: logarithmic ? {type: "logarithmic"} : {beginAtZero: true}, axis: AXIS,
        namesTitle: "Percentile"});
}

function showSequence() {
  if (!sequences.length) return;
  const [sequence, direction] = [of("sequence").value, of("direction").value];
  const [behaviour, current] = direction === "0" ? ["A", "B"] : ["B", "A"];
  renderSequence(of("microscope"), sequences[sequence][direction], {tokenTexts,
    title: `Sequence ${sequence}: ${behaviour} as behaviour, ${current} as current policy`});
}
sequences.forEach((_, i) => of("sequence").add(new Option(i, i)));
of("sequence").addEventListener("change", showSequence);
of("direction").addEventListener("change", showSequence);
showSequence();

const POSITION_COLUMNS = [
  {name: "sequence", value: at => at.sequence, digits: 0},
  {name: "position", value: at => at.position, digits: 0},
  {name: "token", value: at => JSON.stringify(at.token)},
  {name: "log p A", value: at => at.a_sampled_log_prob},
  {name: "log p B", value: ({a_sampled_log_prob: a, a_to_b: {log_ratio: logRatio}}) =>
    (a === null || logRatio === null ? null : a + logRatio)},
  {name: "log w", value: at => at.a_to_b.log_ratio},
  {name: "total variation", value: at => at.total_variation},
  {name: "a", value: at => at.a_to_b.acceptance_probability},
  {name: "decision", value: at => at.a_to_b.decision},
  {name: "a (B, A)", value: at => at.b_to_a.acceptance_probability},
];
let sortedBy = null;

// Numbers by size, others by letters; what has no value goes last. A second click turns it round.
function sortBy({name, value}) {
  const sign = sortedBy === name ? -1 : 1;
  sortedBy = sign === 1 ? name : null;
  report.positions.sort((left, right) => {
    const [x, y] = [value(left), value(right)];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (typeof x === "number" ? x - y : x.localeCompare(y));
  });
  // Not the head, in which the button has the focus.
  of("positions").querySelector("tbody").replaceWith(positionsTable().tBodies[0]);
}

function positionsTable() {
  return table("Positions", POSITION_COLUMNS.map(column => ({
    title: make("button", {type: "button", onclick: () => sortBy(column)}, column.name),
    left: typeof column.value(report.positions[0]) === "string",
    cell: at => {
      const value = column.value(at);
      return typeof value === "string" ? value : fixed(value, column.digits ?? 4);
    },
  })), report.positions);
}
if (report.positions.length) of("positions").append(positionsTable());
