// One sequence under the microscope: the values that were evaluated last.

import {call, tokenTexts} from "./api.js";
import {make} from "./elements.js";
import {Sequence} from "./microscope.js";
import {runLink, sequenceLink} from "./runs_view.js";

export class SequenceView {
  /** `position` is opened; null is none. */
  constructor(runId, sequence, attempt, position) {
    Object.assign(this, {runId, sequence, attempt});
    this.position = position;
    this.title = sequence;
    this.shown = make("div", {class: "inspected"}, make("p", {}, "Loading…"));
    this.element = make("div", {},
        make("p", {class: "crumbs"}, make("a", {href: "#/"}, "Runs"), " / ",
            make("a", {href: runLink(runId)}, runId), " /"),
        make("div", {class: "line"},
            make("h1", {}, attempt === "0" ? sequence : `${sequence}, attempt ${attempt}`),
            make("button", {type: "button", onclick: () => this.inspect()}, "Look again")),
        this.shown);
  }

  // Loaded once, so that the view does not change while somebody reads it.
  async load() {
    if (!this.loaded) await this.inspect();
  }

  async inspect() {
    try {
      const [response, texts] = await Promise.all([call("InspectSequence", {
        "run.run_id": this.runId, "sequence.id": this.sequence, "sequence.attempt": this.attempt}), tokenTexts()]);
      new Sequence(this.shown, response, {tokenTexts: texts, position: this.position, onChoose: position => {
        this.position = position;
        // The position is in the address, so that it can be shared.
        history.replaceState(null, "", sequenceLink(this.runId, this.sequence, this.attempt, position));
      }});
    } catch (error) {
      if (error.status === undefined || error.status === 503) throw error;
      this.shown.replaceChildren(make("p", {}, `Nothing is kept of this sequence: ${error.message}`));
    }
    this.loaded = true;
  }
}
