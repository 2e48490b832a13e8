// Export of a run's records to a file.

import {ask} from "./api.js";
import {make, whileBusy} from "./elements.js";
import {fileName, save} from "./save.js";

// The endings of files, by format. JSON is lines of JSON.
const ENDINGS = {Parquet: "parquet", CSV: "csv", JSON: "jsonl"};

/** Returns the section with the buttons that save a run's records. */
export function exportSection(runId) {
  const said = make("div", {role: "status"});
  const buttons = Object.entries(ENDINGS).map(([format, ending]) => make("button", {type: "button",
    "aria-label": `Export as ${format}`,
    onclick: () => whileBusy(buttons, said, "Exporting…", "No export", async () => {
      const name = fileName(runId, ending);
      const answer = await ask("Export", {run_id: runId, format: format.toLowerCase()});
      save(await answer.blob(), name);
      said.replaceChildren(make("p", {}, `Saved as ${name}.`));
    })}, format));
  return make("div", {class: "export"},
      make("div", {class: "line"}, make("h2", {}, "Recorded tokens"),
          make("span", {class: "choices"}, "Export ", buttons)),
      make("p", {class: "muted"},
          "All that the server holds of this run, a row per position: recorded tokens and log-probs, and " +
          "where they are kept the decisions, ratios and current log-probs of the last evaluation."), said);
}
