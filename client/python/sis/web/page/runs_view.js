// All runs, and what the server does at this moment.

import {call} from "./api.js";
import {bar, figures, make, table, verdict} from "./elements.js";
import {bytes, count, number, perSecond, share} from "./format.js";
import {ratesNow, stepValues} from "./step_values.js";

const RUNS_OF_A_PAGE = 50;

// How the server can sort them.
const ORDERS = {
  RUN_ORDER_WORST_FIRST: "worst first",
  RUN_ORDER_LATEST_FIRST: "evaluated last first",
  RUN_ORDER_LOWEST_ACCEPT_RATE_FIRST: "lowest accept rate first",
  RUN_ORDER_LARGEST_D_FIRST: "largest D first",
  RUN_ORDER_MOST_MISSING_FIRST: "most missing first",
  RUN_ORDER_MOST_BYTES_FIRST: "most memory first",
  RUN_ORDER_BY_RUN_ID: "by name",
};

export function runLink(runId) {
  return `#/run/${encodeURIComponent(runId)}`;
}

/** Task, algorithm and model, as far as somebody has said them. */
export function purpose({task, algorithm, model}) {
  return [task, algorithm, model].filter(Boolean).join(", ");
}

/** `position` is opened; null is none. */
export function sequenceLink(runId, sequence, attempt, position) {
  const place = `${runLink(runId)}/${encodeURIComponent(sequence)}/${attempt}`;
  return position === null ? place : `${place}/${position}`;
}

export class RunsView {
  page = "runs";
  title = "Runs";

  constructor() {
    this.offset = 0;
    this.input = make("input", {type: "search", placeholder: "Filter", "aria-label": "Filter runs",
      maxlength: 80, oninput: () => this.turnTo(0)});
    this.order = make("select", {onchange: () => this.turnTo(0)},
        Object.entries(ORDERS).map(([value, words]) => make("option", {value}, words)));
    this.choices = make("div", {class: "choices", hidden: ""}, this.input,
        make("label", {}, "Sorted ", this.order));
    this.figures = make("div");
    this.list = make("div", {}, make("p", {class: "words"}, "Loading…"));
    this.place = make("span", {role: "status"});
    this.before = make("button", {type: "button",
      onclick: () => this.turnTo(this.offset - RUNS_OF_A_PAGE)}, "Previous");
    this.after = make("button", {type: "button",
      onclick: () => this.turnTo(this.offset + RUNS_OF_A_PAGE)}, "Next");
    this.pages = make("div", {class: "line", hidden: ""}, this.place,
        make("span", {class: "choices"}, this.before, this.after));
    this.element = make("div", {}, make("h1", {}, "Overview"), this.figures,
        make("div", {class: "line"}, make("h2", {}, "Runs"), this.choices), this.list, this.pages);
  }

  turnTo(offset) {
    this.offset = Math.max(0, offset);
    this.element.dispatchEvent(new Event("outdated", {bubbles: true}));
  }

  async load() {
    const containing = this.input.value;
    const wanted = {containing, order: this.order.value, offset: this.offset,
      limit: RUNS_OF_A_PAGE};
    this.wanted = wanted;
    const [listed, server] = await Promise.all([call("ListRuns", wanted), call("GetServer")]);
    if (this.wanted !== wanted) return;  // something else by now
    // Those of this page may be gone.
    if (listed.runs.length === 0 && listed.containingRuns > 0) return this.turnTo(0);
    this.showFigures(listed, server);
    this.showTable(listed, containing);
    this.showPlace(listed);
  }

  showPlace({runs, containingRuns}) {
    this.pages.hidden = containingRuns <= RUNS_OF_A_PAGE;
    const words = `${this.offset + 1} to ${this.offset + runs.length} of ${containingRuns}`;
    if (this.place.textContent !== words) this.place.textContent = words;
    this.before.disabled = this.offset === 0;
    this.after.disabled = this.offset + runs.length >= containingRuns;
  }

  showFigures({allRuns, broken, worthALook}, server) {
    const now = ratesNow(server.history);
    const [held, budget] = [Number(server.cacheBytes), Number(server.cacheBudgetBytes)];
    this.figures.replaceChildren(figures([
      {name: "Runs", value: count(allRuns),
        note: broken + worthALook === 0 ? "all healthy" :
          `${broken} broken, ${worthALook} worth a look`},
      {name: "Tokens recorded", value: perSecond(now?.ingestedPositions),
        note: `${bytes(now?.ingestedBytes)}/s`},
      {name: "Tokens evaluated", value: perSecond(now?.evaluatedPositions), note: "once per draw"},
      {name: "Cache", value: share(held / budget), note: `${bytes(held)} of ${bytes(budget)}`},
      {name: "Calls", value: perSecond(now?.rpcs),
        note: `${perSecond(now?.failedRpcs)} failed; this page's included`},
    ]));
  }

  showTable({runs, allRuns}, containing) {
    this.choices.hidden = allRuns < 2;
    if (allRuns === 0) {
      this.list.replaceChildren(make("p", {class: "words"},
          "No runs yet. A trainer opens one (client.create_run in Python). It shows up here by itself."));
      return;
    }
    if (runs.length === 0) {
      this.list.replaceChildren(make("p", {class: "words"},
          `No run has “${containing}” in its name, task, algorithm or model.`));
      return;
    }
    const shown = runs.map(run => ({run, last: run.lastTotals === undefined ? null :
      stepValues({draw: run.lastDraw, step: {totals: run.lastTotals}})}));
    const notes = ({config, sharesMetrics}) =>
      [purpose(config), sharesMetrics && "no metrics of its own"].filter(Boolean);
    const rows = table("Runs", [
      {title: "Run", left: true, className: "name",
        cell: ({run}) => make("div", {}, make("a", {href: runLink(run.runId)}, run.runId),
            notes(run).map(note => make("div", {class: "note"}, note)))},
      {title: "Verdict", left: true, className: "name", cell: ({run}) =>
        make("div", {}, verdict(run.verdict),
            run.findings.length > 0 ? make("div", {class: "note"}, run.findings[0].reason) : null)},
      {title: "Version", unit: "policy", cell: ({run}) => run.policyVersion},
      {title: "Draw", unit: "last", cell: ({run}) => run.lastDraw ?? "–"},
      {title: "Accept rate", unit: "last draw", cell: ({last}) =>
        (typeof last?.acceptRate !== "number" ? "–" :
          make("span", {}, bar(last.acceptRate), share(last.acceptRate)))},
      {title: "D", unit: "nats/token", cell: ({last}) => number(last?.d)},
      {title: "D_SIS", unit: "nats/token", cell: ({last}) => number(last?.dSis)},
      {title: "Missing", unit: "tokens", cell: ({last}) => share(last?.missing)},
      {title: "Sequences", unit: "held", cell: ({run}) => count(Number(run.sequences))},
      {title: "Tokens", unit: "held", cell: ({run}) => count(Number(run.positions))},
      {title: "Memory", cell: ({run}) => bytes(Number(run.bytes))},
    ], shown);
    // For those whose window has no room for the heads (page.css).
    const titles = [...rows.tHead.rows[0].cells].map(cell => cell.firstChild.textContent);
    for (const row of rows.tBodies[0].rows) {
      titles.forEach((title, i) => { row.cells[i].dataset.title = title; });
    }
    replaceKeepingFocus(this.list, make("div", {class: "scroll cards"}, rows));
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
