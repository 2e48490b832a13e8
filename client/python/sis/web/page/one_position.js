// The details of one position of a sequence: the decision, its values and the recorded tokens.

import {make, percent, table, tokenLabel} from "./elements.js";
import {number, signed} from "./format.js";
import {OUTSIDE, ageOf} from "./positions.js";

function gauge({acceptance: a, uniform: u}) {
  const label = (text, at) => make("span", {class: "label",
    style: at > 0.5 ? {right: percent(1 - at)} : {left: percent(at)}}, text);
  return make("div", {class: "gauge", title: "accepted where the uniform lies in the filled part"},
      make("div", {class: "accepts", style: {width: percent(a)}}),
      make("div", {class: "uniform", style: {left: percent(u)}}),
      Math.abs(a - u) > 0.35 ? [label("a", a), label("uniform", u)]
        : label(u < a ? "uniform, below a" : "uniform, above a", u));
}

function slotsTable(position, tokenTexts) {
  const {kind, sampledId: sampled} = position;
  const slots = position.slots().map(({id, logQ, logP}) => ({id, q: Math.exp(logQ), p: Math.exp(logP),
    logRatio: logP - logQ, limit: Math.exp(position.logEnvelope + logQ)}));
  if (!slots.length) {
    return make("p", {class: "muted"}, "The record holds no tokens at this position.");
  }
  const ratios = slots.map(({logRatio}) => logRatio).filter(ratio => !Number.isNaN(ratio));
  const told = ratios.length > 0;
  const most = Math.max(...ratios);
  const rows = [...slots];
  if (kind === OUTSIDE) {
    const {logQ, logRatio} = position;
    rows.push({id: sampled, q: Math.exp(logQ), p: Math.exp(logQ + logRatio), logRatio});
  }
  rows.push({id: null, q: Math.max(0, 1 - slots.reduce((sum, {q}) => sum + q, 0)),
    p: position.residualMass, logRatio: null});
  const largest = Math.max(...rows.flatMap(({q, p}) => [q, p]).filter(Number.isFinite));

  const token = ({id, logRatio, limit}) => {
    if (id === null) return make("span", {class: "muted"}, "all other tokens");
    const setsEnvelope = limit !== undefined && logRatio === most;
    return [id === sampled ? "▸ " : "", tokenLabel(id, tokenTexts),
      setsEnvelope ? make("b", {title: "this token sets the envelope"}, " M") : ""];
  };
  const part = (kind, value) => (Number.isFinite(value)
    ? make("div", {class: kind, style: {width: percent(value / largest)}}) : null);
  const mark = limit => (limit <= largest
    ? make("div", {class: "limit", style: {left: percent(limit / largest)}}) : null);
  const bars = ({q, p, limit}) =>
    make("div", {class: "pair"}, part("behaviour", q), part("current", p), mark(limit));
  const swatch = (kind, said) => make("span", {}, make("span", {class: `swatch ${kind}`}), said);
  return make("div", {class: "scroll slots", tabindex: 0},
      make("div", {class: "key"}, swatch("behaviour", "behaviour q"),
          told ? [swatch("current", "current p"), swatch("limit", "M q, which p never exceeds")] : [],
          make("span", {}, "▸ sampled")),
      table("recorded tokens", [
        {title: "token", left: true, className: "name", cell: token},
        {title: "probability", left: true, className: "bars", cell: bars},
        {title: "behaviour", cell: ({q}) => number(q)},
        {title: "current", cell: ({p}) => number(p)},
        {title: "log ratio", cell: ({logRatio}) => (logRatio === null ? "" : signed(logRatio, 3))},
      ], rows, ({id}) => ({class: id === sampled ? "sampled" : null})),
      told ? null : make("p", {class: "muted"}, kind.scored ?
        "The request did not send the current policy's values at these tokens." :
        "Where the mask is 0 the current policy's values are not read."));
}

// [name, value, title] of each value.
function valuesOf({kind, logQ, logRatio, acceptance, uniform, logEnvelope, residualMass, staleness}) {
  const four = value => number(value, 4);
  return [
    ["log q", four(logQ), "behaviour log-prob of the sampled token, as recorded"],
    ...kind.scored ? [
      ["log p", four(logQ + logRatio), "current log-prob of the sampled token"],
      ["log w", signed(logRatio), "log p − log q"],
      ["w", four(Math.exp(logRatio)), "importance ratio"],
      ["a", four(acceptance), "probability that the draw accepts: w / M"],
      ["uniform", four(uniform), "accepted if below a"],
      ["log M", four(logEnvelope), "log of the envelope, the largest p / q among the recorded tokens"],
      ["residual mass", four(residualMass), "the current policy's mass outside the recorded tokens"],
    ] : [],
    ["age", ageOf(staleness),
      "policy versions between the one that generated it and the one current when it was evaluated"],
  ];
}

/** Shows a position in `panel`. */
export function showPosition(panel, position, tokenTexts) {
  const {kind, sampledId} = position;
  panel.replaceChildren(
      make("h2", {}, `position ${position.number}`, sampledId < 0 ? [] : [": ", tokenLabel(sampledId, tokenTexts)]),
      make("p", {}, kind.sentence(position)),
      ...kind.scored && kind !== OUTSIDE ? [gauge(position)] : [],
      ...kind.token ? [
        make("dl", {class: "values"}, valuesOf(position).map(([name, value, title]) =>
          make("div", {title}, make("dt", {}, name), make("dd", {}, value)))),
        slotsTable(position, tokenTexts),
      ] : []);
  panel.scrollTop = 0;
}
