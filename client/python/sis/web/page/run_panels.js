// Charts of a run's draws.

import {count, number, share, wholeShare} from "./format.js";
import {histogramShares} from "./step_values.js";

const SHARE = {min: 0, max: 1};
const SHARES = {format: share, tick: wholeShare};
// One slot leaves half of the mass outside with the recorded models. Lists that are one position off leave 0.86 or
// more, with any length.
const OTHER_TOKENS = 0.7;

// Panels of lines over the draws: values of a step, a note about normal values, and `beyond`, which returns another
// note for other values.
export const LINES = [
  {title: "Accept rate", unit: "share of scored tokens", ...SHARES, range: SHARE,
    lines: [{name: "sampled", of: v => v.acceptRate}, {name: "expected", of: v => v.expectedAcceptRate, dashed: true}],
    note: "Sampled follows expected, to within sampling noise. A fall means that one of the " +
      "engines has changed, that the two policies drift apart, or that the top-K covers less."},
  {title: "D and D_SIS", unit: "nats per token", format: number,
    lines: [{name: "D", of: v => v.d}, {name: "D_SIS", of: v => v.dSis}],
    note: "What importance ratios deviate by, before and after accepting. D_SIS should be well " +
      "below D; D above 1 says that the two engines don't compute the same thing."},
  {title: "Log-envelope", unit: "mean, nats", format: number,
    lines: [{name: "log M", of: v => v.logEnvelope}],
    note: "The largest log-ratio over the recorded set. 0 if the policies agree; the accept rate " +
      "falls by a factor of e per nat."},
  {title: "Residual mass", unit: "mean share", ...SHARES,
    lines: [{name: "ξ", of: v => v.residualMass}],
    note: "What the current policy gives to tokens outside the recorded top-K: mostly a few " +
      "hundredths. If it limits the accept rate while D is low, record more slots.",
    beyond: v => v.residualMass > OTHER_TOKENS &&
      "What the current policy gives to tokens outside the recorded top-K. It hardly knows the recorded tokens, so " +
      "the two sides speak of different ones: rows shifted by one, ids of another tokenizer, another prompt or " +
      "template, another sequence's record. More slots don't help."},
  {title: "k3", unit: "nats per token", format: number,
    lines: [{name: "k3", of: v => v.k3}],
    note: "Estimates KL(behaviour ‖ current). Small and steady between policy updates."},
  {title: "Outside top-K", unit: "share of scored tokens", ...SHARES,
    lines: [{name: "outside", of: v => v.outsideTopK}],
    note: "Sampled tokens that are not among the recorded K: never accepted. A larger K makes it smaller.",
    beyond: v => v.outsideTopK > OTHER_TOKENS &&
      "Sampled tokens that are not among the recorded K: never accepted. So many can't be: the worker records lists " +
      "of other positions (shifted by one?), other ids, or a filter's. A larger K doesn't help."},
  {title: "Tokens", unit: "per draw", format: count,
    lines: [{name: "evaluated", of: v => v.tokens}],
    note: "Scored and missing, each once per draw however many ranks evaluate it."},
  {title: "Missing by reason", unit: "share of tokens", ...SHARES,
    range: {beginAtZero: true, suggestedMax: 0.01}, empty: "No token is missing.",
    lines: all => linesByName(all, "missingByReason", found => found?.share ?? 0),
    note: "Tokens without a record, which train with the trainer's own ratio. Never arrived: ask the workers; sisctl " +
      "sequence list shows what has come. Evicted: let trainers release, more memory, or a store. Expired: " +
      "time_to_live. Stale: max_staleness. Store down: a node of the store."},
  {title: "Effective sample size", unit: "share of tokens", ...SHARES, range: SHARE,
    empty: "No corrections counted yet.",
    lines: all => linesByName(all, "corrections", found => found?.effectiveSampleSize ?? null),
    note: "(Σw)² / (n Σw²): what n weighted tokens are worth. Higher is less variance; plain is the ratio as it is."},
  ...[
    {title: "Accept rate by age", unit: "share of scored tokens", ...SHARES, range: SHARE, value: "acceptRate",
      note: "Age: the policy versions that tokens are behind. Low at the youngest age already: the engines differ. " +
        "Where it falls below a half, the diagnosis says what max_staleness would leave out."},
    {title: "D by age", unit: "nats per token", format: number, value: "d",
      note: "Grows with age as the policy moves."},
    {title: "D_SIS by age", unit: "nats per token", format: number, value: "dSis", note: "What accepting leaves of D."},
    {title: "Effective sample size by age", unit: "share of tokens", ...SHARES, range: SHARE,
      value: "effectiveSampleSize", note: "Of the modified ratios. Low: few tokens carry the gradient."},
  ].map(({value, ...panel}) =>
    ({...panel, lines: all => linesByName(all, "ages", found => found?.[value] ?? null)})),
];

// Returns one line per name that occurs in this list of any step.
function linesByName(steps, list, valueOf) {
  return namesIn(steps, list).map((name, i) => ({name, dashed: name === "plain" || i >= 6,
    of: step => valueOf(step[list].find(entry => entry.name === name))}));
}

function namesIn(steps, list) {
  const entries = steps.flatMap(step => step[list]);
  if (list === "ages") entries.sort((a, b) => a.order - b.order);
  return [...new Set(entries.map(({name}) => name))];
}

const MAX_COLUMNS = 64;

// Panels with a column per draw, or per range of draws, and a row per age.
export const HEATS = [
  {title: "Accept rate over age", ...overAge(found => found.accepted / found.scored),
    note: "Strong colour: most tokens are accepted. A row is an age, in policy versions behind; ahead is of a " +
      "version that the run does not have yet."},
  {title: "Tokens over age", ...overAge((found, all) => found.scored / all),
    note: "Shares of the scored tokens of these draws. They move up when rollouts wait longer."},
];

function overAge(cell) {
  return {...SHARES, of: steps => {
    const size = Math.ceil(steps.length / MAX_COLUMNS);
    const columns = steps.filter((_, i) => i % size === 0).map((_, i) => steps.slice(i * size, (i + 1) * size));
    const sums = columns.map(column => sumsByAge(column.flatMap(step => step.ages)));
    const series = namesIn(steps, "ages").map(name => ({name, values: sums.map(found => {
      const all = [...found.values()].reduce((sum, age) => sum + age.scored, 0);
      return found.has(name) ? cell(found.get(name), all) : null;
    })}));
    return {series, names: columns.map(column =>
      (column.length > 1 ? `${column[0].draw} to ${column.at(-1).draw}` : column[0].draw))};
  }};
}

function sumsByAge(ages) {
  const sums = new Map();
  for (const {name, accepted, scored} of ages) {
    const before = sums.get(name) ?? {accepted: 0, scored: 0};
    sums.set(name, {accepted: before.accepted + accepted, scored: before.scored + scored});
  }
  return sums;
}

/** A panel of the last draw that has a curve. */
export const CURVE = {title: "Accept rate against k", unit: "share of scored tokens", ...SHARES, range: SHARE,
  namesTitle: "k", of: curveOf,
  empty: "No evaluation has asked for it: prefix_curve=(1, 2, 4, 8), say.",
  note: "What would be accepted with only the k most probable recorded tokens, and the mass of the current policy " +
    "outside them. Where the curve is flat, fewer slots do."};

function curveOf(steps) {
  const {draw, prefixCurve: curve} = steps.findLast(step => step.prefixCurve.length > 0) ?? {prefixCurve: []};
  const of = draw === steps.at(-1)?.draw ? "" : ` of draw ${draw}`;
  return {names: curve.map(point => point.k), series: [
    {name: `expected accept rate${of}`, points: true, values: curve.map(point => point.acceptRate)},
    {name: "residual mass", points: true, dashed: true, values: curve.map(point => point.residualMass)},
  ]};
}

// Panels of bars of the last draw, if there is one.
export const BARS = [
  {title: "Ratios: |log w|", unit: "share of tokens", ...distribution("absLogRatio", "nats"),
    note: "How far single ratios are from 1. The tail on the right is what clipping and accepting are for."},
  {title: "Log-envelopes", unit: "share of tokens", ...distribution("logEnvelope", "nats"),
    note: "Where it is large, few tokens can be accepted."},
  {title: "Residual masses", unit: "share of tokens", ...distribution("residualMass", "share"),
    note: "Mass near 1 at a token says that its recorded set misses what the policy wants now."},
  {title: "Acceptance probability", unit: "share of tokens",
    ...distribution("acceptanceProbability", "share"), note: "Most tokens should be near 1."},
  {title: "Ratios beyond bounds", unit: "share of scored tokens", namesTitle: "w", of: ratiosBeyond,
    note: "What clipping at these bounds would touch."},
].map(panel => ({...SHARES, empty: "Nothing counted of the last draw.", ...panel}));

function distribution(field, unit) {
  return {namesTitle: `Value (${unit})`, of: steps => {
    const {names, values} = histogramShares(steps.at(-1)?.distributions?.[field]);
    return {names, series: [{name: "tokens", values}]};
  }};
}

function ratiosBeyond(steps) {
  const last = steps.at(-1);
  const beyond = last?.distributions?.ratiosBeyond ?? [];
  return {names: beyond.map(({bound}) => `${bound < 1 ? "<" : ">"} ${bound}`),
    series: [{name: "tokens", values: beyond.map(part => part.positions / last.scored)}]};
}
