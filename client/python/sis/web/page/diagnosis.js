// Why a run's two policies differ: what sisctl diagnose says of it, in its words.

import {call} from "./api.js";
import {make, verdict as signOf, whileBusy} from "./elements.js";
import {clock} from "./format.js";

// Many sequences are asked for.
const PATIENCE_MILLISECONDS = 60000;

const OUTCOMES = {fault: ["✖", "fault"], clear: ["✓", "ok"], untested: ["–", "not asked"]};

// The measured value and its limit, or why nothing was measured.
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

/** Shows it in `element`, asked for by the reader: it takes a moment. */
export class Diagnosis {
  constructor(runId) {
    this.runId = runId;
    this.button = make("button", {type: "button", onclick: () => this.ask()}, "Diagnose");
    this.said = make("div", {role: "status"});
    this.element = make("div", {class: "diagnosis"},
        make("div", {class: "line"}, make("h2", {}, "Diagnosis"), this.button),
        make("p", {class: "muted"},
            "Asks why the two policies differ, of the tokens that were evaluated last: A is the " +
            "behaviour policy, as recorded, B the current one, as evaluated."), this.said);
  }

  ask() {
    return whileBusy([this.button], this.said, "Asking…", "No diagnosis", async () =>
      this.show(await call("Diagnose", {run_id: this.runId}, PATIENCE_MILLISECONDS)));
  }

  // The server's findings stand above already.
  show({run_verdict: level, verdict, checks, sequences, profile}) {
    const named = [...new Set(checks.flatMap(check => check.sequences))].sort((a, b) => a - b);
    // A sentence for each, before others.
    const faults = checks.filter(({outcome}) => outcome === "fault").length;
    this.said.replaceChildren(
        make("p", {}, `At ${clock(Date.now() / 1000)} the run was `,
            signOf(`VERDICT_${level}`), "."),
        ...verdict.map((sentence, i) => make("p",
            {class: "notice", "data-verdict": i < faults ? "VERDICT_BROKEN" : null},
            i < faults ? make("span", {"aria-hidden": "true"}, "✖ ") : "", sentence)),
        named.length === 0 ? "" :
          make("p", {}, `Sequence ${named.map(i => `${i} is ${sequences[i]}`).join(", ")}.`),
        make("details", {}, make("summary", {}, `${checks.length} questions were asked`),
            make("ul", {class: "checks"}, checks.map(checkItem))),
        make("p", {class: "muted"}, `Of ${sequences.length} sequences, with ` +
          `${profile.sequences.reduce((sum, row) => sum + row.positions, 0)} tokens.`));
  }
}
