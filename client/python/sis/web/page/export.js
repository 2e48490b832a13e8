// What the server holds of a run, as a file.

import {ask} from "./api.js";
import {make} from "./elements.js";
import {fileName, save} from "./save.js";

export class Export {
  constructor(runId) {
    this.runId = runId;
    this.button = make("button", {type: "button", onclick: () => this.save()}, "Export as Parquet");
    this.said = make("p", {role: "status"});
    this.element = make("div", {class: "export"},
        make("div", {class: "line"}, make("h2", {}, "Recorded tokens"), this.button),
        make("p", {class: "muted"},
            "All that the server holds of this run, a row per position: recorded tokens and log-probs, and " +
            "where they are kept the decisions, ratios and current log-probs of the last evaluation."), this.said);
  }

  async save() {
    // Not disabled: it would lose the focus.
    if (this.saving) return;
    this.saving = true;
    this.button.setAttribute("aria-disabled", "true");
    this.said.textContent = "Exporting…";
    try {
      const name = fileName(this.runId, "parquet");
      save(await (await ask("Export", {run_id: this.runId})).blob(), name);
      this.said.textContent = `Saved as ${name}.`;
    } catch (error) {
      this.said.textContent = `No export: ${error.message}`;
    }
    this.button.removeAttribute("aria-disabled");
    this.saving = false;
  }
}
