// Values per token of a draw's totals. Only scored tokens (accepted, rejected or outside the top-K)
// enter rates and means.

import {number} from "./format.js";

const scoredOf = ({accepted, rejected, outsideTopK}) => Number(accepted) + Number(rejected) + Number(outsideTopK);

// Returns the mean of the sum with a name over `positions`: null without positions.
const meansOf = (totals, positions) => name => (positions > 0 ? Number(totals[name]) / positions : null);

// The share of the positions that weigh as much as all do with their weights.
function effectiveSampleSize({weight, weightSquared}, positions) {
  return weightSquared > 0 ? weight ** 2 / weightSquared / positions : null;
}

/** Returns the values of Totals. Rates and means are null without scored tokens. */
export function totalsValues(totals) {
  const scored = scoredOf(totals);
  const missing = Number(totals.missing);
  const tokens = scored + missing;
  const mean = meansOf(totals, scored);
  const [d, dSis] = [mean("d"), mean("dSis")];
  return {
    tokens,
    scored,
    acceptRate: mean("accepted"),
    expectedAcceptRate: mean("expectedAcceptance"),
    outsideTopK: mean("outsideTopK"),
    d,
    dSis,
    // The part of D that accepting removes.
    removed: d > 0 ? 1 - dSis / d : null,
    logEnvelope: mean("logEnvelope"),
    residualMass: mean("residualMass"),
    k3: mean("k3"),
    missing: tokens > 0 ? missing / tokens : null,
  };
}

/** Returns the values of one entry of ListSteps. */
export function stepValues({draw, step}) {
  const values = totalsValues(step.totals);
  return {
    ...step,
    ...values,
    draw,
    sequences: Number(step.sequences),
    ages: step.ages.map(ageValues),
    corrections: step.corrections.map(correctionValues),
    missingByReason: step.missing.map(({reason, positions}) => ({
      name: reason.replace("MISSING_REASON_", "").toLowerCase().replaceAll("_", " "),
      share: Number(positions) / values.tokens,
    })),
    prefixCurve: step.prefixCurve.map(prefixValues),
  };
}

function ageValues({from, to, ahead, ...totals}) {
  const scored = scoredOf(totals);
  const mean = meansOf(totals, scored);
  return {
    name: ahead ? "ahead" : to === undefined ? `${from}+` : from === to ? from : `${from}-${to}`,
    // The key for sorting ages; ahead is last.
    order: ahead ? Infinity : Number(from),
    accepted: Number(totals.accepted),
    scored,
    acceptRate: mean("accepted"),
    d: mean("d"),
    dSis: mean("dSis"),
    effectiveSampleSize: effectiveSampleSize(totals, scored),
  };
}

function prefixValues(point) {
  const mean = meansOf(point, Number(point.positions));
  return {k: point.topK, acceptRate: mean("expectedAcceptance"), residualMass: mean("residualMass")};
}

function correctionValues(totals) {
  const positions = Number(totals.positions);
  const mean = meansOf(totals, positions);
  const means = ["touched", "zeroed", "weight", "absLogWeight", "gradientMass"].map(name => [name, mean(name)]);
  return {name: totals.correction, effectiveSampleSize: effectiveSampleSize(totals, positions),
    ...Object.fromEntries(means)};
}

/** Returns names and shares of a Histogram's buckets; nothing if it is empty. */
export function histogramShares({counts, upperBounds: bounds} = {counts: []}) {
  const all = counts.reduce((sum, part) => sum + Number(part), 0);
  if (all === 0) return {names: [], values: []};
  return {names: [...bounds.map(bound => `≤ ${number(bound)}`), `> ${number(bounds.at(-1))}`],
    values: counts.map(part => part / all)};
}

/** The rates per second between the last sample of GetServer's history and one some time before. */
export function ratesNow(history, seconds = 10) {
  const last = history.at(-1);
  const before = history.findLast(sample => sample.at <= last.at - seconds) ?? history[0];
  return ratesBetween(before, last);
}

const COUNTERS = ["ingestedPositions", "ingestedBytes", "evaluatedPositions", "droppedSequences", "rpcs", "failedRpcs"];

export function ratesBetween(before, after) {
  const time = after.at - before.at;
  if (!(time > 0)) return null;
  const rate = name => (after[name] - before[name]) / time;
  return {at: after.at, ...Object.fromEntries(COUNTERS.map(name => [name, rate(name)]))};
}
