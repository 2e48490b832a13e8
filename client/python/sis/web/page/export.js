// Export of a run's records to a file.

import {ask} from "./api.js";
import {make, whileBusy} from "./elements.js";
import {fileName, save} from "./save.js";

// Lines of JSON.
const ENDINGS = {Parquet: "parquet", CSV: "csv", JSON: "jsonl"};

/** Returns the buttons that save a run's records. */
export class Export {
  constructor(runId) {
    this.runId = runId;
    this.buttons = Object.keys(ENDINGS).map(format =>
      make("button", {type: "button", "aria-label": `Export as ${format}`, onclick: () => this.save(format)}, format));
    this.said = make("div", {role: "status"});
    this.element = make("div", {class: "export"},
        make("div", {class: "line"}, make("h2", {}, "Recorded tokens"),
            make("span", {class: "choices"}, "Export ", this.buttons)),
        make("p", {class: "muted"},
            "All that the server holds of this run, a row per position: recorded tokens and log-probs, and " +
            "where they are kept the decisions, ratios and current log-probs of the last evaluation."), this.said);
  }

  save(format) {
    return whileBusy(this.buttons, this.said, "Exporting…", "No export", async () => {
      const name = fileName(this.runId, ENDINGS[format]);
      const answer = await ask("Export", {run_id: this.runId, format: format.toLowerCase()});
      save(await answer.blob(), name);
      this.said.replaceChildren(make("p", {}, `Saved as ${name}.`));
    });
  }
}
