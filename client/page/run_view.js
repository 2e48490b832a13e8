// One run: all of its draws as charts, the last of them in full, and what is worth a closer look.

import {call, Refused, tokenTexts} from "./api.js";
import {BarPanel, LinePanel} from "./charts.js";
import {Diagnosis} from "./diagnosis.js";
import {figures, make, table, verdict} from "./elements.js";
import {bytes, count, number, share, wholeShare} from "./format.js";
import {AXES, HistoryPanel} from "./history_panel.js";
import {renderRun} from "./microscope.js";
import {runLink} from "./runs_view.js";
import {histogramShares, stepValues, stretchValues} from "./step_values.js";

const ENCODINGS = {FLOAT32: "float32", FLOAT16: "float16", FIXED12: "12 bits"};
const SHARE = {min: 0, max: 1};
const FROM_ZERO = {beginAtZero: true};
// Of the recorded models one slot alone leaves half of the mass outside. Lists that are one position
// off leave 0.86 or more, of whatever length.
const OTHER_TOKENS = 0.7;
const RUNS_OFFERED = 100;  // to be drawn beside another
const NOTHING_YET = "Nothing evaluated yet.";
const NOTHING_COUNTED = "Nothing counted of the last draw.";

// Panels of lines over the draws: what they show of a step, what is normal, and `beyond` what to say
// in its place of a step that is not.
const LINES = [
  {title: "Accept rate", unit: "share of scored tokens", format: share, tick: wholeShare,
    range: SHARE,
    lines: [{name: "sampled", of: v => v.acceptRate},
      {name: "expected", of: v => v.expectedAcceptRate, dashed: true}],
    note: "Sampled follows expected, to within sampling noise. A fall means that one of the " +
      "engines has changed, that the two policies drift apart, or that the top-K covers less."},
  {title: "D and D_SIS", unit: "nats per token", format: number, range: FROM_ZERO,
    lines: [{name: "D", of: v => v.d}, {name: "D_SIS", of: v => v.dSis}],
    note: "What importance ratios deviate by, before and after accepting. D_SIS should be well " +
      "below D; D above 1 says that the two engines don't compute the same thing."},
  {title: "Log-envelope", unit: "mean, nats", format: number, range: {},
    lines: [{name: "log M", of: v => v.logEnvelope}],
    note: "The largest log-ratio over the recorded set. 0 if the policies agree; the accept rate " +
      "falls by a factor of e per nat."},
  {title: "Residual mass", unit: "mean share", format: share, tick: wholeShare, range: FROM_ZERO,
    lines: [{name: "ξ", of: v => v.residualMass}],
    note: "What the current policy gives to tokens outside the recorded top-K: mostly a few " +
      "hundredths. If it limits the accept rate while D is low, record more slots.",
    beyond: v => v.residualMass > OTHER_TOKENS &&
      "What the current policy gives to tokens outside the recorded top-K. It hardly knows the " +
      "recorded tokens, so the two sides speak of different ones: rows shifted by one, ids of " +
      "another tokenizer, another prompt or template, another sequence's record. More slots " +
      "don't help."},
  {title: "k3", unit: "nats per token", format: number, range: FROM_ZERO,
    lines: [{name: "k3", of: v => v.k3}],
    note: "Estimates KL(behaviour ‖ current). Small and steady between policy updates."},
  {title: "Outside top-K", unit: "share of scored tokens", format: share, tick: wholeShare,
    range: FROM_ZERO,
    lines: [{name: "outside", of: v => v.outsideTopK}],
    note: "Sampled tokens that are not among the recorded K: never accepted. A larger K makes it " +
      "smaller.",
    beyond: v => v.outsideTopK > OTHER_TOKENS &&
      "Sampled tokens that are not among the recorded K: never accepted. So many can't be: the " +
      "worker records lists of other positions (shifted by one?), other ids, or a filter's. A " +
      "larger K doesn't help."},
  {title: "Tokens", unit: "per draw", format: count, range: FROM_ZERO,
    lines: [{name: "evaluated", of: v => v.tokensPerDraw}],
    note: "Scored and missing, each once per draw however many ranks evaluate it."},
];

// Panels of one distribution each, of the last draw.
const DISTRIBUTIONS = [
  {title: "Ratios: |log w|", unit: "share of tokens", field: "absLogRatio", of: "nats",
    note: "How far single ratios are from 1. The tail on the right is what clipping and " +
      "accepting are for."},
  {title: "Log-envelopes", unit: "share of tokens", field: "logEnvelope", of: "nats",
    note: "Where it is large, few tokens can be accepted."},
  {title: "Residual masses", unit: "share of tokens", field: "residualMass", of: "share",
    note: "Mass near 1 at a token says that its recorded set misses what the policy wants now."},
  {title: "Acceptance probability", unit: "share of tokens", field: "acceptanceProbability",
    of: "share", note: "Most tokens should be near 1."},
];

export class RunView {
  page = "runs";

  /** `settings` of the address: the axis, and the run that is drawn beside this one. */
  constructor(runId, settings) {
    this.runId = runId;
    this.title = runId;
    const axis = settings.get("axis");
    this.axis = Object.hasOwn(AXES, axis) ? AXES[axis] : AXES.draw;
    this.beside = settings.get("beside") ?? "";
    // By run id: the stretches of its draws, and when the last of these was evaluated.
    this.histories = new Map();
    this.lines =
        LINES.map(panel => new HistoryPanel({...panel, about: runId, empty: NOTHING_YET}));
    this.sampleSizes = new HistoryPanel({title: "Effective sample size", unit: "share of tokens",
      format: share, tick: wholeShare, about: runId, empty: "No corrections counted yet.",
      note: "(Σw)² / (n Σw²): what n weighted tokens are worth. Higher is less variance; plain " +
        "is the ratio as it is."});
    const bars = {format: share, tick: wholeShare, about: runId, empty: NOTHING_COUNTED};
    this.distributions = DISTRIBUTIONS.map(panel => new BarPanel({...panel, ...bars}));
    this.beyond = new BarPanel({...bars, title: "Ratios beyond bounds",
      unit: "share of scored tokens",
      note: "What clipping at these bounds would touch."});
    this.staleness = new BarPanel({title: "Staleness", unit: "tokens", format: count,
      about: runId, empty: NOTHING_COUNTED,
      note: "By how many policy versions tokens are behind. Accept rates fall with it."});
    this.curve = new LinePanel({title: "Accept rate against k", unit: "share of scored tokens",
      format: share, tick: wholeShare, about: runId,
      empty: "No evaluation has asked for it: prefix_curve=(1, 2, 4, 8), say.",
      note: "What would be accepted with only the k most probable recorded tokens, and the mass " +
        "of the current policy outside them. Where the curve is flat, fewer slots do."});
    this.missing = new HistoryPanel({title: "Missing by reason", unit: "share of tokens",
      format: share, tick: wholeShare, about: runId, empty: "No token is missing.",
      note: "Tokens without a record, which train with the trainer's own ratio. Never arrived: " +
        "ask the workers; sisctl sequences lists what has come. Evicted: let trainers release, " +
        "more memory, or a store. Expired: time_to_live. Stale: max_staleness. Store down: a node " +
        "of the store."});
    this.facts = make("p", {class: "muted"});
    this.verdict = make("div");
    this.figures = make("div");
    this.draws = make("h2", {}, "By draw");
    this.chooseAxis = make("select", {onchange: () => this.choose()},
        Object.entries(AXES).map(([name, {title}]) =>
          make("option", {value: name, selected: this.axis === AXES[name] && ""}, title)));
    this.chooseBeside = make("select", {onchange: () => this.choose()});
    this.offerRuns([]);
    // Asked for once, as soon as the server has answered: it may want a token first.
    this.others = null;
    this.inspecting = null;
    this.lastDraw = make("h2", {}, "The last draw");
    this.corrections = make("div");
    this.inspected = make("div", {class: "inspected"}, make("p", {}, "Loading…"));
    this.diagnosis = new Diagnosis(runId);
    this.body = make("div", {}, this.facts, this.verdict, this.figures, this.diagnosis.element,
        make("div", {class: "line"}, this.draws, make("div", {class: "choices"},
            make("label", {}, "Axis ", this.chooseAxis),
            make("label", {}, "Beside ", this.chooseBeside))),
        make("div", {class: "panels"}, this.lines.map(panel => panel.element),
            this.missing.element, this.sampleSizes.element),
        this.lastDraw,
        make("div", {class: "panels"}, this.distributions.map(panel => panel.element),
            this.beyond.element, this.staleness.element, this.curve.element),
        this.corrections,
        make("div", {class: "line"}, make("h2", {}, "Worth a closer look"),
            make("button", {type: "button", onclick: () => this.inspect()}, "Look again")),
        this.inspected);
    this.element = make("div", {},
        make("p", {class: "crumbs"}, make("a", {href: "#/"}, "Runs"), " /"),
        make("h1", {}, runId), this.body);
  }

  async load() {
    let run, steps;
    try {
      [{run}, {steps}] = await Promise.all([
        call("GetRun", {run_id: this.runId}), call("ListSteps", {run_id: this.runId})]);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
      this.body.replaceChildren(make("p", {class: "words"},
          `There is no run “${this.runId}” here. It may have been deleted, or the server may `,
          "have restarted without a store; it comes back when a trainer opens it again."));
      this.gone = true;
      return;
    }
    if (this.gone) {  // and is there again
      location.reload();
      return;
    }
    this.others ??= this.listOthers().catch(() => { this.others = null; });
    this.inspecting ??= this.inspect();
    await Promise.all([this.loadHistory(run), this.loadBeside()]);
    const values = steps.map(stepValues);
    this.showFacts(run);
    this.showVerdict(run);
    this.showFigures(values);
    this.showDraws();
    this.showLastDraw(values.at(-1));
    this.showCurve(values);
  }

  // All draws, if any was evaluated since they were asked for. A server that has just started
  // evaluated none, but may have those of its former life.
  async loadHistory({runId, lastEvaluatedAt}) {
    const known = this.histories.get(runId);
    if (known !== undefined && known.at === lastEvaluatedAt) return;
    const {stretches} = await call("GetHistory", {run_id: runId});
    this.histories.set(runId, {at: lastEvaluatedAt, stretches: stretches.map(stretchValues)});
  }

  async loadBeside() {
    if (this.beside === "") return;
    try {
      await this.loadHistory((await call("GetRun", {run_id: this.beside})).run);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
      this.histories.delete(this.beside);  // it is gone
    }
  }

  // Those that were evaluated last.
  async listOthers() {
    const {runs} = await call("ListRuns", {order: "LATEST_FIRST", limit: RUNS_OFFERED});
    this.offerRuns(runs.map(({runId}) => runId).filter(id => id !== this.runId));
  }

  offerRuns(ids) {
    const offered = ["", ...new Set([...ids, this.beside].filter(Boolean))];
    this.chooseBeside.replaceChildren(...offered.map(id =>
      make("option", {value: id, selected: id === this.beside && ""}, id || "no other run")));
  }

  // Says so in the address, so that it can be handed on.
  choose() {
    this.axis = AXES[this.chooseAxis.value];
    this.beside = this.chooseBeside.value;
    const settings = new URLSearchParams();
    if (this.axis !== AXES.draw) settings.set("axis", this.chooseAxis.value);
    if (this.beside !== "") settings.set("beside", this.beside);
    const query = settings.toString();
    history.replaceState(null, "", `${runLink(this.runId)}${query && `?${query}`}`);
    this.showDraws();
    this.element.dispatchEvent(new Event("outdated", {bubbles: true}));
  }

  showFacts(run) {
    const {config} = run;
    const encoding = ENCODINGS[config.logProbEncoding];
    this.facts.textContent = [
      [config.task, config.algorithm, config.model].filter(Boolean).join(", "),
      `top-K ${config.topK} of ${count(config.vocabularySize)} tokens in ${encoding}`,
      `incarnation ${run.incarnation}`,
      `policy version ${run.policyVersion}`,
      `${count(Number(run.sequences))} sequences with ${count(Number(run.positions))} tokens ` +
        `held in ${bytes(Number(run.bytes))}`,
      run.sharesMetrics && "no metrics of its own: /metrics counts it as run=\"other\"",
    ].filter(Boolean).join(" · ");
  }

  showVerdict({verdict: name, findings}) {
    this.verdict.replaceChildren(make("p", {}, verdict(name)), ...findings.map(finding =>
      make("div", {class: "notice", "data-verdict": finding.verdict},
          make("b", {}, finding.reason), make("p", {class: "note"}, finding.action,
              ` (${finding.rule})`))));
  }

  showFigures(values) {
    const last = values.at(-1);
    if (last === undefined) {
      const past = this.histories.get(this.runId).stretches.length > 0;
      this.figures.replaceChildren(make("p", {class: "notice"},
          past ? "Nothing evaluated since the server has started. Below are the draws before."
            : "Nothing evaluated yet. Numbers appear with the first Evaluate of this run."));
      return;
    }
    this.figures.replaceChildren(figures([
      {name: "Accept rate", value: share(last.acceptRate),
        note: `${share(last.expectedAcceptRate)} expected`},
      {name: "D (nats/token)", value: number(last.d), note: "before"},
      {name: "D_SIS (nats/token)", value: number(last.dSis), note: "after accepting"},
      {name: "Removed", value: share(last.removed), note: "of D"},
      {name: "Missing", value: share(last.missing), note: "of all tokens"},
      {name: "Tokens", value: count(last.tokens), note: `of ${count(last.sequences)} sequences`},
    ]));
  }

  showDraws() {
    const runs = [this.runId, this.beside].filter(Boolean).map(id =>
      ({id, stretches: this.histories.get(id)?.stretches ?? []}));
    const [{stretches}] = runs;
    const draws = stretches.reduce((sum, stretch) => sum + stretch.draws, 0);
    this.draws.textContent = draws === 0 ? "By draw" : draws === 1 ? "By draw: one so far" :
      `By draw: all ${draws}` +
        (draws > stretches.length ? `, older ones together in ${stretches.length} points` : "");
    LINES.forEach(({lines, range, note, beyond}, i) => {
      this.lines[i].showRuns(runs, lines, this.axis, {range});
      this.lines[i].say(stretches.length > 0 && beyond?.(stretches.at(-1)) || note);
    });
    const all = runs.flatMap(run => run.stretches);
    const names = [...new Set(all.flatMap(stretch => stretch.corrections.map(({name}) => name)))];
    const size = (stretch, name) => stretch.corrections.find(
        correction => correction.name === name)?.effectiveSampleSize ?? null;
    this.sampleSizes.showRuns(runs, names.map(name => ({
      name, dashed: name === "plain", of: stretch => size(stretch, name),
    })), this.axis, {range: SHARE});
    const reasons =
        [...new Set(all.flatMap(stretch => stretch.missingByReason.map(({reason}) => reason)))];
    const missing = (stretch, name) =>
      stretch.missingByReason.find(({reason}) => reason === name)?.share ?? 0;
    this.missing.showRuns(runs,
        reasons.map(name => ({name, of: stretch => missing(stretch, name)})), this.axis,
        {range: {...FROM_ZERO, suggestedMax: 0.01}});
  }

  showLastDraw(last) {
    this.lastDraw.textContent = `The last draw${last === undefined ? "" : `: ${last.draw}`}`;
    DISTRIBUTIONS.forEach(({field, of}, i) => {
      const shares = histogramShares(last?.distributions[field]);
      this.distributions[i].show(shares.map(({name}) => name),
          [{name: "tokens", values: shares.map(part => part.share)}],
          {range: FROM_ZERO, namesTitle: `Value (${of})`});
    });
    const beyond = last?.distributions.ratiosBeyond ?? [];
    this.beyond.show(beyond.map(({bound}) => `${bound < 1 ? "<" : ">"} ${bound}`),
        [{name: "tokens", values: beyond.map(part => Number(part.positions ?? 0) / last.scored)}],
        {range: FROM_ZERO, namesTitle: "w"});
    const buckets = last?.distributions.staleness ?? [];
    const counts = name => buckets.map(bucket => Number(bucket[name] ?? 0));
    this.staleness.show(buckets.map(stalenessName), [
      {name: "accepted", values: counts("accepted")},
      {name: "rejected", values: counts("rejected")},
      {name: "outside top-K", values: counts("outsideTopK")},
    ], {stacked: true, namesTitle: "Versions behind"});
    this.showCorrections(last);
  }

  // Of the last draw that has one.
  showCurve(values) {
    const of = values.findLast(value => value.prefixCurve.length > 0);
    const curve = of?.prefixCurve ?? [];
    const draw = of === values.at(-1) ? "" : ` of draw ${of?.draw}`;
    this.curve.show(curve.map(point => point.k), [
      {name: `expected accept rate${draw}`, points: true,
        values: curve.map(point => point.acceptRate)},
      {name: "residual mass", points: true, dashed: true,
        values: curve.map(point => point.residualMass)},
    ], {range: SHARE, namesTitle: "k"});
  }

  showCorrections(last) {
    if (last === undefined || last.corrections.length === 0) {
      this.corrections.replaceChildren();
      return;
    }
    this.corrections.replaceChildren(
        make("h2", {}, "Corrections side by side"),
        make("p", {class: "muted"}, "What other corrections would have made of the same ratios. " +
          "“clipped” cuts them to [0.8, 1.2], “applied” is what this run asked for."),
        make("div", {class: "scroll", tabindex: 0}, table("Corrections side by side", [
          {title: "Correction", left: true, cell: row => row.name},
          {title: "Effective sample size", unit: "share of tokens",
            cell: row => share(row.effectiveSampleSize)},
          {title: "Touched", unit: "share of tokens", cell: row => share(row.touched)},
          {title: "Set to 0", unit: "share of tokens", cell: row => share(row.zeroed)},
          {title: "Weight", unit: "mean", cell: row => number(row.weight)},
          {title: "|log weight|", unit: "mean, nats", cell: row => number(row.absLogWeight)},
          {title: "Gradient mass", unit: "per token", cell: row => number(row.gradientMass)},
        ], last.corrections)));
  }

  async inspect() {
    try {
      const [response, texts] =
          await Promise.all([call("InspectRun", {run_id: this.runId}), tokenTexts()]);
      this.inspected.replaceChildren();
      renderRun(this.inspected, response, {tokenTexts: texts, onOpen: ({id, attempt}, position) => {
        location.hash = `${runLink(this.runId)}/${encodeURIComponent(id)}/${attempt ?? 0}` +
          (position === null ? "" : `/${position}`);
      }});
    } catch (error) {
      this.inspected.replaceChildren(make("p", {}, `Nothing to look at: ${error.message}`));
    }
  }

  stop() {
    for (const panel of [...this.lines, this.sampleSizes, ...this.distributions, this.beyond,
      this.staleness, this.curve, this.missing]) panel.stop();
  }
}

function stalenessName({from, to}) {
  const [first, last] = [Number(from ?? 0), to === undefined || to === null ? null : Number(to)];
  if (last === null) return `${first} or more`;
  return first === last ? String(first) : `${first} to ${last}`;
}
