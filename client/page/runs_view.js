// All runs, and what the server does at this moment.

import {call, Refused} from "./api.js";
import {bar, byVerdict, figures, make, table, verdict} from "./elements.js";
import {bytes, count, number, perSecond, share} from "./format.js";
import {ratesNow, stepValues} from "./step_values.js";

// Of more runs, those that do best, the last draws are not looked up.
const RUNS_LOOKED_UP = 64;

export function runLink(runId) {
  return `#/run/${encodeURIComponent(runId)}`;
}

export class RunsView {
  page = "runs";
  title = "Runs";

  constructor() {
    this.filter = "";
    this.input = make("input", {type: "search", placeholder: "Filter", "aria-label": "Filter runs",
      oninput: () => { this.filter = this.input.value.toLowerCase(); this.showTable(); }});
    this.figures = make("div");
    this.heading = make("div", {class: "line"}, make("h2", {}, "Runs"));
    this.list = make("div", {}, make("p", {class: "words"}, "Loading…"));
    this.element = make("div", {}, make("h1", {}, "Overview"), this.figures, this.heading,
        this.list);
  }

  async load() {
    const [{runs}, server] = await Promise.all([call("ListRuns"), call("GetServer")]);
    runs.sort(byVerdict);
    this.rows = await Promise.all(runs.map(async (run, i) => ({
      run, last: i < RUNS_LOOKED_UP ? await lastStep(run) : null,
    })));
    this.showFigures(runs, server);
    this.showTable();
  }

  showFigures(runs, server) {
    const now = ratesNow(server.history);
    const [held, budget] = [Number(server.cacheBytes), Number(server.cacheBudgetBytes)];
    this.figures.replaceChildren(figures([
      {name: "Runs", value: count(runs.length)},
      {name: "Tokens recorded", value: perSecond(now?.ingestedPositions),
        note: `${bytes(now?.ingestedBytes)}/s`},
      {name: "Tokens evaluated", value: perSecond(now?.evaluatedPositions), note: "once per draw"},
      {name: "Cache", value: share(held / budget), note: `${bytes(held)} of ${bytes(budget)}`},
      {name: "Calls", value: perSecond(now?.rpcs),
        note: `${perSecond(now?.failedRpcs)} failed; this page's included`},
    ]));
  }

  showTable() {
    if (this.rows === undefined) return;
    if (this.rows.length > 8 && !this.input.isConnected) this.heading.append(this.input);
    if (this.rows.length === 0) {
      this.list.replaceChildren(make("p", {class: "words"},
          "No runs yet. A trainer opens one (client.create_run in Python), or you do: ",
          make("code", {}, "sisctl runs create RUN --vocabulary_size=151936 --top_k=50"),
          ". It shows up here by itself."));
      return;
    }
    const words = ({run}) =>
      [run.runId, run.config.task, run.config.algorithm, run.config.model].join(" ").toLowerCase();
    const shown = this.rows.filter(row => words(row).includes(this.filter));
    if (shown.length === 0) {
      this.list.replaceChildren(
          make("p", {class: "words"}, `No run has “${this.filter}” in its name.`));
      return;
    }
    replaceKeepingFocus(this.list, make("div", {class: "scroll"}, table("Runs", [
      {title: "Run", left: true, className: "name",
        cell: ({run}) => make("a", {href: runLink(run.runId)}, run.runId)},
      {title: "Verdict", left: true, className: "name", cell: ({run}) =>
        make("div", {}, verdict(run.verdict),
            run.findings.length > 0 ? make("div", {class: "note"}, run.findings[0].reason) : null)},
      {title: "Task, algorithm, model", left: true, className: "name", cell: ({run: {config}}) =>
        [config.task, config.algorithm, config.model].filter(Boolean).join(", ") || "–"},
      {title: "Policy", unit: "version", cell: ({run}) => run.policyVersion},
      {title: "Last", unit: "draw", cell: ({run}) => run.lastDraw ?? "–"},
      {title: "Accept rate", unit: "of the last draw", cell: ({last}) =>
        (typeof last?.acceptRate !== "number" ? "–" :
          make("span", {}, bar(last.acceptRate), share(last.acceptRate)))},
      {title: "D", unit: "nats/token", cell: ({last}) => number(last?.d)},
      {title: "D_SIS", unit: "nats/token", cell: ({last}) => number(last?.dSis)},
      {title: "Missing", unit: "tokens", cell: ({last}) => share(last?.missing)},
      {title: "Sequences", unit: "held", cell: ({run}) => count(Number(run.sequences))},
      {title: "Tokens", unit: "held", cell: ({run}) => count(Number(run.positions))},
      {title: "Memory", cell: ({run}) => bytes(Number(run.bytes))},
    ], shown)));
  }

  stop() {}
}

// Replaces what is inside; who stood on a link there stands on the same link after it.
function replaceKeepingFocus(parent, ...children) {
  const active = document.activeElement;
  const href = parent.contains(active) ? active.getAttribute("href") : null;
  parent.replaceChildren(...children);
  if (href !== null) parent.querySelector(`a[href="${CSS.escape(href)}"]`)?.focus();
}

// Of the draw that was evaluated last; null if there is none, or it was forgotten meanwhile.
async function lastStep(run) {
  if (run.lastDraw === undefined || run.lastDraw === null) return null;
  try {
    const step = await call("GetStep", {run_id: run.runId, draw: run.lastDraw});
    return stepValues({draw: run.lastDraw, step});
  } catch (error) {
    if (error instanceof Refused && error.status === 404) return null;
    throw error;
  }
}
