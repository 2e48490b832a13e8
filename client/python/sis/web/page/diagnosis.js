// Why a run's two policies differ, with the texts of sisctl diagnose.

import {call} from "./api.js";
import {make, table, verdict as signOf, whileBusy} from "./elements.js";
import {clock, number, share} from "./format.js";

// The diagnosis requests many sequences.
const PATIENCE_MILLISECONDS = 60000;

const OUTCOMES = {fault: ["✖", "fault"], clear: ["✓", "ok"], untested: ["–", "not asked"]};

// Returns the measured value and its limit, or why nothing was measured.
function measured({outcome, value, limit, fault_if: side, statistic, finding}) {
  if (outcome === "untested") return finding;
  const number = value === null ? "" : `${Number(value.toPrecision(3))} `;
  return `${statistic}: ${number}(a fault if ${side === "at_least" ? "at least" : "at most"} ${limit})`;
}

function checkItem(check) {
  const [sign, word] = OUTCOMES[check.outcome];
  return make("li", {"data-outcome": check.outcome},
      make("b", {}, make("span", {"aria-hidden": "true"}, `${sign} `), `${word}: `),
      check.question, make("div", {class: "note"}, measured(check)));
}

// A table of the tokens that remain with each limit of the age.
function limits(rows) {
  return make("div", {class: "scroll", tabindex: 0}, table("Limits of the age", [
    {title: "max_staleness", cell: row => row.max_staleness ?? "none"},
    {title: "Tokens left out", cell: row => share(row.tokens_left_out)},
    {title: "Sequences left out", unit: "of the sample", cell: row => share(row.sequences_left_out)},
    {title: "Accept rate", unit: "of the others", cell: row => share(row.accept_rate)},
    {title: "D", unit: "nats per token", cell: row => number(row.d)},
    {title: "Effective sample size", unit: "share of tokens", cell: row => share(row.effective_sample_size)},
  ], rows));
}

// Returns what the diagnosis found. The server's findings are already shown above.
function resultOf({run_verdict: level, ages, verdict, checks, sequences, d}) {
  const named = [...new Set(checks.flatMap(check => check.sequences))].sort((a, b) => a - b);
  // One sentence each, before the others.
  const faults = checks.filter(({outcome}) => outcome === "fault").length;
  return [
    make("p", {}, `At ${clock(Date.now() / 1000)} the run was `, signOf(`VERDICT_${level}`), "."),
    make("p", {}, ages.text), ages.limits.length === 0 ? "" : limits(ages.limits),
    ...verdict.map((sentence, i) => make("p",
        {class: "notice", "data-verdict": i < faults ? "VERDICT_BROKEN" : null},
        i < faults ? make("span", {"aria-hidden": "true"}, "✖ ") : "", sentence)),
    named.length === 0 ? "" :
      make("p", {}, `Sequence ${named.map(i => `${i} is ${sequences[i]}`).join(", ")}.`),
    make("details", {}, make("summary", {}, `${checks.length} questions were asked`),
        make("ul", {class: "checks"}, checks.map(checkItem))),
    make("p", {class: "muted"}, `Of ${sequences.length} sequences, with a ratio at ${d.positions} tokens.`),
  ];
}

/** Returns the section that shows the diagnosis when the reader requests it, because it takes a moment. */
export function diagnosisSection(runId) {
  const said = make("div", {role: "status"});
  const button = make("button", {type: "button",
    onclick: () => whileBusy([button], said, "Asking…", "No diagnosis", async () =>
      said.replaceChildren(...resultOf(await call("Diagnose", {run_id: runId}, PATIENCE_MILLISECONDS))))}, "Diagnose");
  return make("div", {class: "diagnosis"},
      make("div", {class: "line"}, make("h2", {}, "Diagnosis"), button),
      make("p", {class: "muted"},
          "Asks why the two policies differ, of the tokens that were evaluated last: A is the " +
          "behaviour policy, as recorded, B the current one, as evaluated."), said);
}
