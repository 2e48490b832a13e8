// One run: all of its draws as charts, the last draw in full, and inspected sequences.

import {call, callIfThere, tokenTexts} from "./api.js";
import {BarPanel, HeatPanel, LinePanel} from "./charts.js";
import {diagnosisSection} from "./diagnosis.js";
import {exportSection} from "./export.js";
import {figures, findingNotice, make, table, verdict} from "./elements.js";
import {bytes, count, number, share} from "./format.js";
import {renderRun} from "./run_inspection.js";
import {BARS, CURVE, HEATS, LINES} from "./run_panels.js";
import {purpose, runLink, sequenceLink} from "./runs_view.js";
import {stepValues} from "./step_values.js";
import {AXES, StepsPanel} from "./steps_panel.js";

const ENCODINGS = {LOG_PROB_ENCODING_FLOAT32: "float32", LOG_PROB_ENCODING_FIXED16: "16 bits"};
const RUNS_OFFERED = 100;  // to be drawn beside another
const MAY_GROW = 8;  // of the last draws; ranks may be that far apart

function factsOf(run) {
  const {config} = run;
  return [
    purpose(config),
    `top-K ${config.topK} of ${count(config.vocabularySize)} tokens in ${ENCODINGS[config.logProbEncoding]}`,
    `incarnation ${run.incarnation}`,
    `policy version ${run.policyVersion}`,
    `${count(Number(run.sequences))} sequences with ${count(Number(run.positions))} tokens ` +
      `held in ${bytes(Number(run.bytes))}`,
    run.sharesMetrics && "no metrics of its own: /metrics counts it as run=\"other\"",
  ].filter(Boolean).join(" · ");
}

// Figures of the last step.
function figuresOf(last) {
  if (last === undefined) {
    return make("p", {class: "notice"}, "Nothing evaluated yet. Numbers appear with the first Evaluate of this run.");
  }
  return figures([
    {name: "Accept rate", value: share(last.acceptRate), note: `${share(last.expectedAcceptRate)} expected`},
    {name: "D (nats/token)", value: number(last.d), note: "before"},
    {name: "D_SIS (nats/token)", value: number(last.dSis), note: "after accepting"},
    {name: "Removed", value: share(last.removed), note: "of D"},
    {name: "Missing", value: share(last.missing), note: "of all tokens"},
    {name: "Tokens", value: count(last.tokens), note: `of ${count(last.sequences)} sequences`},
  ]);
}

export class RunView {
  /** `settings` of the address: the axis, and the run to compare with. */
  constructor(runId, settings) {
    this.runId = runId;
    this.title = runId;
    // By run id: its steps by draw, and the time of the last evaluation. The last step of this run has distributions.
    this.known = new Map();
    this.lines = LINES.map(panel => new StepsPanel({about: runId, ...panel}));
    this.heats = HEATS.map(panel => new HeatPanel({about: runId, ...panel}));
    this.last = [...BARS.map(panel => new BarPanel({about: runId, ...panel})), new LinePanel({about: runId, ...CURVE})];
    this.summary = make("div");
    this.draws = make("h2", {}, "By draw");
    this.chooseAxis = make("select", {onchange: () => this.choose()},
        Object.entries(AXES).map(([name, {title}]) =>
          make("option", {value: name, selected: settings.get("axis") === name && ""}, title)));
    this.chooseBeside = make("select", {onchange: () => this.choose()});
    this.offerRuns([], settings.get("beside") ?? "");
    // Requested once, as soon as the server has answered.
    this.others = null;
    this.inspecting = null;
    this.lastDraw = make("h2", {}, "The last draw");
    this.corrections = make("div");
    this.inspected = make("div", {class: "inspected"}, make("p", {}, "Loading…"));
    this.body = make("div", {}, this.summary, diagnosisSection(runId),
        make("div", {class: "line"}, this.draws, make("div", {class: "choices"},
            make("label", {}, "Axis ", this.chooseAxis),
            make("label", {}, "Beside ", this.chooseBeside))),
        make("div", {class: "panels"}, [...this.lines, ...this.heats].map(panel => panel.element)),
        this.lastDraw,
        make("div", {class: "panels"}, this.last.map(panel => panel.element)),
        this.corrections,
        make("div", {class: "line"}, make("h2", {}, "Worth a closer look"),
            make("button", {type: "button", onclick: () => this.inspect()}, "Look again")),
        this.inspected, exportSection(runId));
    this.element = make("div", {},
        make("p", {class: "crumbs"}, make("a", {href: "#/"}, "Runs"), " /"),
        make("h1", {}, runId), this.body);
  }

  async load() {
    const found = await callIfThere("GetRun", {run_id: this.runId});
    if (found === null) {
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
    const {run} = found;
    this.others ??= this.listOthers().catch(() => { this.others = null; });
    this.inspecting ??= this.inspect();
    await Promise.all([this.loadSteps(run), this.loadBeside()]);
    const steps = this.stepsOf(this.runId);
    this.summary.replaceChildren(make("p", {class: "muted"}, factsOf(run)),
        make("p", {}, verdict(run.verdict)), ...run.findings.map(findingNotice), figuresOf(steps.at(-1)));
    this.showLines();
    for (const panel of [...this.heats, ...this.last]) panel.show(panel.of(steps));
    this.showLastDraw(steps.at(-1));
  }

  // If anything was evaluated since the last call, requests the newest known draws, which may have
  // grown, and all draws that began after them.
  async loadSteps({runId, incarnation, lastEvaluatedAt}) {
    const known = this.known.get(runId);
    const same = known?.incarnation === incarnation;
    if (same && known.at === lastEvaluatedAt) return;
    const steps = new Map(same ? known.steps : []);
    let after = [...steps.keys()].at(-1 - MAY_GROW);
    for (let more = true; more;) {
      const answer = await call("ListSteps", {"run.run_id": runId, ...after !== undefined && {after}});
      for (const step of answer.steps.map(stepValues)) {
        steps.delete(step.draw);  // so that it comes last
        steps.set(step.draw, step);
        after = step.draw;
      }
      ({more} = answer);
    }
    const draw = [...steps.keys()].at(-1);
    if (draw !== undefined && runId === this.runId) {
      const step = await callIfThere("GetStep", {"run.run_id": runId, draw});
      // Without a step the draw is no longer kept.
      if (step !== null) steps.set(draw, stepValues({draw, step}));
    }
    this.known.set(runId, {incarnation, at: lastEvaluatedAt, steps});
  }

  stepsOf(runId) {
    return [...this.known.get(runId)?.steps.values() ?? []];
  }

  async loadBeside() {
    const beside = this.chooseBeside.value;
    if (beside === "") return;
    const found = await callIfThere("GetRun", {run_id: beside});
    if (found === null) this.known.delete(beside);
    else await this.loadSteps(found.run);
  }

  // Offers the runs that were evaluated last.
  async listOthers() {
    const {runs} = await call("ListRuns");
    runs.sort((a, b) => (b.lastEvaluatedAt ?? 0) - (a.lastEvaluatedAt ?? 0));
    this.offerRuns(runs.map(({runId}) => runId).filter(id => id !== this.runId).slice(0, RUNS_OFFERED));
  }

  offerRuns(ids, beside = this.chooseBeside.value) {
    const offered = ["", ...new Set([...ids, beside].filter(Boolean))];
    this.chooseBeside.replaceChildren(...offered.map(id =>
      make("option", {value: id, selected: id === beside && ""}, id || "no other run")));
  }

  // Puts the choice into the address, so that it can be shared.
  choose() {
    const [axis, beside] = [this.chooseAxis.value, this.chooseBeside.value];
    const query = new URLSearchParams({...axis !== "draw" && {axis}, ...beside !== "" && {beside}}).toString();
    history.replaceState(null, "", `${runLink(this.runId)}${query && `?${query}`}`);
    this.showLines();
    this.element.dispatchEvent(new Event("outdated", {bubbles: true}));
  }

  showLines() {
    const runs = [this.runId, this.chooseBeside.value].filter(Boolean).map(id => ({id, steps: this.stepsOf(id)}));
    const [{steps}] = runs;
    this.draws.textContent = steps.length === 0 ? "By draw" :
      steps.length === 1 ? "By draw: one so far" : `By draw: all ${steps.length}`;
    for (const panel of this.lines) panel.showRuns(runs, AXES[this.chooseAxis.value]);
  }

  showLastDraw(last) {
    this.lastDraw.textContent = `The last draw${last === undefined ? "" : `: ${last.draw}`}`;
    this.corrections.replaceChildren();
    if (last === undefined || last.corrections.length === 0) return;
    this.corrections.append(
        make("h2", {}, "Corrections side by side"),
        make("p", {class: "muted"}, "What other corrections would have made of the same ratios. " +
          "“clipped” cuts them to [0.8, 1.2], “applied” is what this run asked for."),
        make("div", {class: "scroll", tabindex: 0}, table("Corrections side by side", [
          {title: "Correction", left: true, cell: row => row.name},
          {title: "Effective sample size", unit: "share of tokens", cell: row => share(row.effectiveSampleSize)},
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
      renderRun(this.inspected, response, {tokenTexts: texts, onOpen: ({id, attempt}, position) => {
        location.hash = sequenceLink(this.runId, id, attempt, position);
      }});
    } catch (error) {
      this.inspected.replaceChildren(make("p", {}, `Nothing to look at: ${error.message}`));
    }
  }
}
