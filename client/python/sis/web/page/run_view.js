// One run: all of its draws as charts, the last of them in full, and what is worth a closer look.

import {call, Refused, tokenTexts} from "./api.js";
import {BarPanel, LinePanel} from "./charts.js";
import {Diagnosis} from "./diagnosis.js";
import {Export} from "./export.js";
import {figures, findingNotice, make, table, verdict} from "./elements.js";
import {bytes, count, number, share} from "./format.js";
import {AXES, HistoryPanel} from "./history_panel.js";
import {renderRun} from "./microscope.js";
import {BARS, FROM_ZERO, LINES, SHARE, SHARES} from "./run_panels.js";
import {purpose, runLink, sequenceLink} from "./runs_view.js";
import {stepValues, stretchValues} from "./step_values.js";

const ENCODINGS = {FLOAT32: "float32", FLOAT16: "float16", FIXED12: "12 bits"};
const RUNS_OFFERED = 100;  // to be drawn beside another

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
        LINES.map(panel => new HistoryPanel({about: runId, empty: "Nothing evaluated yet.", ...panel}));
    this.bars = BARS.map(panel => new BarPanel({...SHARES, about: runId,
      empty: "Nothing counted of the last draw.", ...panel}));
    this.curve = new LinePanel({title: "Accept rate against k", unit: "share of scored tokens",
      ...SHARES, about: runId,
      empty: "No evaluation has asked for it: prefix_curve=(1, 2, 4, 8), say.",
      note: "What would be accepted with only the k most probable recorded tokens, and the mass " +
        "of the current policy outside them. Where the curve is flat, fewer slots do."});
    this.facts = make("p", {class: "muted"});
    this.verdict = make("div");
    this.figures = make("div");
    this.draws = make("h2", {}, "By draw");
    this.chooseAxis = make("select", {onchange: () => this.choose()},
        Object.entries(AXES).map(([name, {title}]) =>
          make("option", {value: name, selected: this.axis === AXES[name] && ""}, title)));
    this.chooseBeside = make("select", {onchange: () => this.choose()});
    this.offerRuns([]);
    // Asked for once, as soon as the server has answered.
    this.others = null;
    this.inspecting = null;
    this.lastDraw = make("h2", {}, "The last draw");
    this.corrections = make("div");
    this.inspected = make("div", {class: "inspected"}, make("p", {}, "Loading…"));
    this.diagnosis = new Diagnosis(runId);
    this.export = new Export(runId);
    this.body = make("div", {}, this.facts, this.verdict, this.figures, this.diagnosis.element,
        make("div", {class: "line"}, this.draws, make("div", {class: "choices"},
            make("label", {}, "Axis ", this.chooseAxis),
            make("label", {}, "Beside ", this.chooseBeside))),
        make("div", {class: "panels"}, this.lines.map(panel => panel.element)),
        this.lastDraw,
        make("div", {class: "panels"}, this.bars.map(panel => panel.element), this.curve.element),
        this.corrections,
        make("div", {class: "line"}, make("h2", {}, "Worth a closer look"),
            make("button", {type: "button", onclick: () => this.inspect()}, "Look again")),
        this.inspected, this.export.element);
    this.element = make("div", {},
        make("p", {class: "crumbs"}, make("a", {href: "#/"}, "Runs"), " /"),
        make("h1", {}, runId), this.body);
  }

  async load() {
    let run, steps;
    try {
      [{run}, {steps}] = await Promise.all([
        call("GetRun", {run_id: this.runId}), call("ListSteps", {"run.run_id": this.runId})]);
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
    const {stretches} = await call("GetHistory", {"run.run_id": runId});
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
      purpose(config),
      `top-K ${config.topK} of ${count(config.vocabularySize)} tokens in ${encoding}`,
      `incarnation ${run.incarnation}`,
      `policy version ${run.policyVersion}`,
      `${count(Number(run.sequences))} sequences with ${count(Number(run.positions))} tokens ` +
        `held in ${bytes(Number(run.bytes))}`,
      run.sharesMetrics && "no metrics of its own: /metrics counts it as run=\"other\"",
    ].filter(Boolean).join(" · ");
  }

  showVerdict({verdict: name, findings}) {
    this.verdict.replaceChildren(make("p", {}, verdict(name)), ...findings.map(findingNotice));
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
    const all = runs.flatMap(run => run.stretches);
    LINES.forEach(({lines, range, note, beyond}, i) => {
      const drawn = typeof lines === "function" ? lines(all) : lines;
      this.lines[i].showRuns(runs, drawn, this.axis, {range});
      this.lines[i].say(stretches.length > 0 && beyond?.(stretches.at(-1)) || note);
    });
  }

  showLastDraw(last) {
    this.lastDraw.textContent = `The last draw${last === undefined ? "" : `: ${last.draw}`}`;
    BARS.forEach(({of}, i) => {
      const {names, series, ...options} = of(last);
      this.bars[i].show(names, series, {range: FROM_ZERO, ...options});
    });
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
          await Promise.all([call("InspectRun", {"run.run_id": this.runId}), tokenTexts()]);
      this.inspected.replaceChildren();
      renderRun(this.inspected, response, {tokenTexts: texts, onOpen: ({id, attempt}, position) => {
        location.hash = sequenceLink(this.runId, id, attempt ?? 0, position);
      }});
    } catch (error) {
      this.inspected.replaceChildren(make("p", {}, `Nothing to look at: ${error.message}`));
    }
  }

  stop() {
    for (const panel of [...this.lines, ...this.bars, this.curve]) panel.stop();
  }
}
