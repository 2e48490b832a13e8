// Values per token of a draw's totals. Only scored tokens (accepted, rejected or outside the top-K)
// enter rates and means.

import {number} from "./format.js";

// The sums of a message, by name, and the mean of a sum over `positions`: null without positions. Absent sums are 0.
function sumsOf(totals, positionsOf) {
  const of = name => Number(totals[name] ?? 0);
  const positions = positionsOf(of);
  return {of, positions, mean: sum => (positions > 0 ? sum / positions : null)};
}

const scoredOf = of => of("accepted") + of("rejected") + of("outsideTopK");

// The share of the positions that weigh as much as all do with their weights.
function effectiveSampleSize({of, mean}) {
  return of("weightSquared") > 0 ? mean(of("weight") ** 2 / of("weightSquared")) : null;
}

/** Returns the values of one entry of ListSteps. Rates and means are null without scored tokens. */
export function stepValues({draw, step}) {
  const {of, positions: scored, mean: meanOf} = sumsOf(step.totals ?? {}, scoredOf);
  const tokens = scored + of("missing");
  const mean = name => meanOf(of(name));
  const [d, dSis] = [mean("d"), mean("dSis")];
  return {
    draw: String(draw ?? 0),
    begunAt: step.begunAt,
    endedAt: step.endedAt,
    sequences: Number(step.sequences ?? 0),
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
    missing: tokens > 0 ? of("missing") / tokens : null,
    ages: (step.ages ?? []).map(ageValues),
    distributions: step.distributions ?? {},
    corrections: (step.corrections ?? []).map(correctionValues),
    missingByReason: (step.missing ?? []).map(({reason, positions}) => ({
      name: reason.replace("MISSING_REASON_", "").toLowerCase().replaceAll("_", " "),
      share: Number(positions) / tokens,
    })),
    prefixCurve: (step.prefixCurve ?? []).map(prefixValues),
  };
}

function ageValues({from, to, ahead, ...totals}) {
  const sums = sumsOf(totals, scoredOf);
  const {of, positions: scored, mean} = sums;
  const first = Number(from ?? 0);
  const accepted = of("accepted");
  return {
    name: ahead ? "ahead" : to == null ? `${first}+` :
      first === Number(to) ? String(first) : `${first}-${to}`,
    // The key for sorting ages; ahead is last.
    order: ahead ? Infinity : first,
    accepted, scored,
    acceptRate: mean(accepted),
    d: mean(of("d")),
    dSis: mean(of("dSis")),
    effectiveSampleSize: effectiveSampleSize(sums),
  };
}

function prefixValues(point) {
  const {of, mean} = sumsOf(point, of => of("positions"));
  return {k: point.topK, acceptRate: mean(of("expectedAcceptance")), residualMass: mean(of("residualMass"))};
}

function correctionValues(totals) {
  const sums = sumsOf(totals, of => of("positions"));
  const means = ["touched", "zeroed", "weight", "absLogWeight", "gradientMass"].map(
      name => [name, sums.mean(sums.of(name))]);
  return {name: totals.correction, effectiveSampleSize: effectiveSampleSize(sums), ...Object.fromEntries(means)};
}

/** Shares of a Histogram's buckets, with a name each; empty if nothing is in it. */
export function histogramShares(histogram) {
  const counts = (histogram?.counts ?? []).map(Number);
  const bounds = histogram?.upperBounds ?? [];
  const all = counts.reduce((sum, part) => sum + part, 0);
  if (all === 0) return [];
  return counts.map((part, i) => ({
    name: i < bounds.length ? `≤ ${number(bounds[i])}` : `> ${number(bounds[bounds.length - 1])}`,
    share: part / all,
  }));
}

/** The rates per second between the last sample of GetServer's history and one some time before. */
export function ratesNow(history, seconds = 10) {
  if (history.length < 2) return null;
  const last = history[history.length - 1];
  const before = history.findLast(sample => sample.at <= last.at - seconds) ?? history[0];
  return ratesBetween(before, last);
}

const COUNTERS = ["ingestedPositions", "ingestedBytes", "evaluatedPositions", "droppedSequences",
  "rpcs", "failedRpcs"];

export function ratesBetween(before, after) {
  const time = after.at - before.at;
  if (!(time > 0)) return null;
  const rate = name => (Number(after[name] ?? 0) - Number(before[name] ?? 0)) / time;
  return {at: after.at, ...Object.fromEntries(COUNTERS.map(name => [name, rate(name)]))};
}
