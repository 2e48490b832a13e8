// All runs, and the current activity of the servers.

import {call} from "./api.js";
import {bar, figures, make, table, verdict} from "./elements.js";
import {bytes, count, number, perSecond, share} from "./format.js";
import {ratesNow, totalsValues} from "./step_values.js";

const RUNS_OF_A_PAGE = 50;

// For each name of an order: the number by which runs are sorted in ascending order.
const ORDERS = {
  "worst first": ({run}) => VERDICTS.indexOf(run.verdict),
  "evaluated last first": ({run}) => -run.lastEvaluatedAt,
  "lowest accept rate first": ({last}) => last?.acceptRate,
  "largest D first": ({last}) => -last?.d,
  "most missing first": ({last}) => -last?.missing,
  "most memory first": ({run}) => -run.bytes,
  "by name": () => 0,
};
const VERDICTS = ["VERDICT_BROKEN", "VERDICT_WORTH_A_LOOK", "VERDICT_HEALTHY", "VERDICT_UNSPECIFIED"];

export function runLink(runId) {
  return `#/run/${encodeURIComponent(runId)}`;
}

/** Returns task, algorithm and model, as far as the run has them. */
export function purpose({task, algorithm, model}) {
  return [task, algorithm, model].filter(Boolean).join(", ");
}

/** `position` is opened; null is none. */
export function sequenceLink(runId, sequence, attempt, position) {
  const place = `${runLink(runId)}/${encodeURIComponent(sequence)}/${attempt}`;
  return position === null ? place : `${place}/${position}`;
}

export class RunsView {
  title = "Runs";

  constructor() {
    this.offset = 0;
    this.input = make("input", {type: "search", placeholder: "Filter", "aria-label": "Filter runs",
      maxlength: 80, oninput: () => this.turnTo(0)});
    this.order = make("select", {onchange: () => this.turnTo(0)},
        Object.keys(ORDERS).map(words => make("option", {}, words)));
    this.choices = make("div", {class: "choices", hidden: ""}, this.input, make("label", {}, "Sorted ", this.order));
    this.figures = make("div");
    this.list = make("div", {}, make("p", {class: "words"}, "Loading…"));
    this.place = make("span", {role: "status"});
    this.before = make("button", {type: "button",
      onclick: () => this.turnTo(this.offset - RUNS_OF_A_PAGE)}, "Previous");
    this.after = make("button", {type: "button", onclick: () => this.turnTo(this.offset + RUNS_OF_A_PAGE)}, "Next");
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
    const [{runs}, {servers}] = await Promise.all([call("ListRuns"), call("GetServer")]);
    const text = this.input.value.toLowerCase();
    const place = ORDERS[this.order.value];
    const found = runs.filter(({runId, config: {task, algorithm, model}}) =>
      [runId, task, algorithm, model].some(name => name.toLowerCase().includes(text))).map(run => {
      const last = run.lastTotals && totalsValues(run.lastTotals);
      const rank = place({run, last});
      return {run, last, rank: Number.isFinite(rank) ? rank : Infinity};
    });
    found.sort((a, b) => (a.rank === b.rank ? 0 : a.rank - b.rank));  // stable: they come by name
    if (this.offset >= found.length) this.offset = 0;
    this.showFigures(runs, servers.filter(({error}) => error === undefined));
    this.showTable(found.slice(this.offset, this.offset + RUNS_OF_A_PAGE), runs.length);
    this.showPlace(found.length);
  }

  showPlace(found) {
    this.pages.hidden = found <= RUNS_OF_A_PAGE;
    const end = Math.min(found, this.offset + RUNS_OF_A_PAGE);
    const words = `${this.offset + 1} to ${end} of ${found}`;
    if (this.place.textContent !== words) this.place.textContent = words;
    this.before.disabled = this.offset === 0;
    this.after.disabled = end === found;
  }

  showFigures(runs, servers) {
    const sum = of => servers.reduce((all, server) => all + Number(of(server) ?? NaN), 0);
    const rates = new Map(servers.map(server => [server, ratesNow(server.history)]));
    const rate = name => sum(server => rates.get(server)?.[name]);
    const [held, budget] = [sum(server => server.cacheBytes), sum(server => server.cacheBudgetBytes)];
    const [broken, worthALook] = VERDICTS.map(name => runs.filter(({verdict}) => verdict === name).length);
    this.figures.replaceChildren(figures([
      {name: "Runs", value: count(runs.length),
        note: broken + worthALook === 0 ? "all healthy" :
          `${broken} broken, ${worthALook} worth a look`},
      {name: "Tokens recorded", value: perSecond(rate("ingestedPositions")), note: `${bytes(rate("ingestedBytes"))}/s`},
      {name: "Tokens evaluated", value: perSecond(rate("evaluatedPositions")), note: "once per draw"},
      {name: "Cache", value: share(held / budget), note: `${bytes(held)} of ${bytes(budget)}`},
      {name: "Calls", value: perSecond(rate("rpcs")),
        note: `${perSecond(rate("failedRpcs"))} failed; this page's included`},
    ]));
  }

  // `shown` are the runs of this page, `all` is the number of runs.
  showTable(shown, all) {
    this.choices.hidden = all < 2;
    if (shown.length === 0) {
      this.list.replaceChildren(make("p", {class: "words"}, all === 0 ?
        "No runs yet. A trainer opens one (client.create_run in Python). It shows up here by itself." :
        `No run has “${this.input.value}” in its name, task, algorithm or model.`));
      return;
    }
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
        [typeof last?.acceptRate === "number" ? bar(last.acceptRate) : "", share(last?.acceptRate)]},
      {title: "D", unit: "nats/token", cell: ({last}) => number(last?.d)},
      {title: "D_SIS", unit: "nats/token", cell: ({last}) => number(last?.dSis)},
      {title: "Missing", unit: "tokens", cell: ({last}) => share(last?.missing)},
      {title: "Sequences", unit: "held", cell: ({run}) => count(Number(run.sequences))},
      {title: "Tokens", unit: "held", cell: ({run}) => count(Number(run.positions))},
      {title: "Memory", cell: ({run}) => bytes(Number(run.bytes))},
    ], shown);
    replaceKeepingFocus(this.list, make("div", {class: "scroll cards"}, rows));
  }
}

// Replaces the content, and keeps the focus on the same link.
function replaceKeepingFocus(parent, ...children) {
  const active = document.activeElement;
  const href = parent.contains(active) ? active.getAttribute("href") : null;
  parent.replaceChildren(...children);
  if (href !== null) parent.querySelector(`a[href="${CSS.escape(href)}"]`)?.focus();
}
