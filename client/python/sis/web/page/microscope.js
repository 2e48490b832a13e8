// The microscope: a sequence's tokens with the decisions about them, and the details of one position.
//
// Texts of tokens come from `tokenTexts`, an object from token id to text; without it tokens are shown by
// their ids.

import {color, make, shade, tokenText} from "./elements.js";
import {grouped, number, share, signed} from "./format.js";
import {showPosition} from "./one_position.js";
import {ACCEPTED, KINDS, ageOf, notKept, readPositions} from "./positions.js";

// Maximum number of tokens shown at once, because every token is an element of the page.
const TOKENS_SHOWN = 1500;

// Returns the end of the scale of log w: a round number that few positions exceed, so that the
// sequence's differences are visible; at least 0.1, so that rounding is not.
function limitOf(values) {
  const sizes = values.filter(Number.isFinite).map(Math.abs).sort((x, y) => x - y);
  const high = sizes.length ? sizes[Math.floor(0.95 * (sizes.length - 1))] : 0;
  return [0.1, 0.2, 0.5, 1, 2, 5].find(limit => high <= limit) || 10;
}

function colouringsOf(scored) {
  const logLimit = limitOf(scored.map(({logRatio}) => logRatio));
  const stale = Math.max(1, ...new Set(scored.map(({staleness}) => staleness)));
  return {
    "log w": {
      diverging: true, low: "−" + logLimit, high: "+" + logLimit,
      said: "log w, nats: blue is less probable now, orange more",
      of: ({logRatio}) => logRatio / logLimit,
    },
    "acceptance probability":
      {said: "a, the probability that the draw accepts", of: ({acceptance}) => acceptance},
    "residual mass":
      {said: "the current policy's mass outside the recorded tokens", of: ({residualMass}) => residualMass},
    "staleness":
      {said: "policy versions behind", high: stale, of: ({staleness}) => Math.max(0, staleness) / stale},
  };
}

function sequenceFacts(draw, positions, scored) {
  const mean = of => scored.reduce((sum, position) => sum + of(position), 0) / scored.length;
  const size = ({logRatio}) => Math.abs(logRatio);
  const [, , ...others] = KINDS;
  const counts = others.map(kind => [kind.fact ?? kind.said, positions.filter(one => one.kind === kind).length]);
  return [["draw", draw], ["positions", grouped(positions.length)],
    ["accepted", share(mean(({kind}) => kind === ACCEPTED))],
    ["accepted on average over draws", share(mean(({acceptance}) => acceptance))],
    ["D per token", number(mean(size))],
    ["D_SIS per token", number(mean(position => (position.kind === ACCEPTED ? 0 : size(position))))],
    ["residual mass", share(mean(({residualMass}) => residualMass))],
    ...counts.filter(([, count]) => count).map(([name, count]) => [name, grouped(count)])];
}

// The annotation of the seal; null without one.
function annotationOf({annotation}) {
  if (annotation === undefined) return null;
  const {prompt, text, group, reward} = annotation;
  const said = [["reward", reward === undefined ? "" : String(reward)], ["group", group],
    ["prompt", prompt], ["text", text]].filter(([, value]) => value);
  return make("dl", {class: "annotation"},
      said.map(([name, value]) => [make("dt", {}, name), make("dd", {tabindex: 0}, value)]).flat());
}

/**
 * Draws a sequence into `element`, and replaces its content. `response` is an InspectSequenceResponse in
 * protobuf's JSON; `tokenTexts` an object from id to text, or null. Opens `position` if the sequence has
 * it. Calls `onChoose(position)` when a position is opened.
 */
export class Sequence {
  constructor(element, response, {tokenTexts, position, onChoose}) {
    this.positions = readPositions(response);
    this.first = response.firstPosition;
    this.onChoose = onChoose;
    this.tokenTexts = tokenTexts;
    const scored = this.positions.filter(({kind}) => kind.scored);
    this.byRatio = [...scored].sort((one, other) => Math.abs(other.logRatio) - Math.abs(one.logRatio));
    this.colourings = colouringsOf(scored);
    this.colouring = "log w";
    this.shown = 0;
    this.chosen = -1;

    this.scale = make("span", {class: "scale"});
    this.overview = make("canvas", {class: "overview", title: "The whole sequence; click to go there",
      onclick: event => {
        const box = this.overview.getBoundingClientRect();
        const place = (event.clientX - box.left) / box.width;
        this.choose(Math.min(this.positions.length - 1, Math.floor(place * this.positions.length)));
      }});
    this.turn = make("div", {class: "turn"});
    this.tokens = make("div", {class: "tokens", tabindex: 0, role: "listbox",
      "aria-label": "tokens; arrow keys choose a position",
      onclick: event => {
        const token = event.target.closest("[data-index]");
        if (token) this.choose(Number(token.dataset.index));
      },
      onkeydown: event => this.key(event)});
    // tabindex: so that the keyboard can scroll it.
    this.panel = make("aside",
        {class: "position", "aria-live": "polite", "aria-label": "the chosen position", tabindex: 0});
    const cut = notKept(response);
    element.replaceChildren(make("section", {class: "microscope"},
        make("div", {class: "facts"}, sequenceFacts(response.draw, this.positions, scored).map(([name, value]) =>
          make("span", {}, `${name} `, make("b", {}, value)))),
        annotationOf(response),
        cut ? make("p", {class: "notice"}, "This sequence is cut: positions ", make("b", {}, cut),
            " were evaluated too, but --inspected_bytes has no room for their values.") : null,
        this.legend(), this.positions.length > 200 ? this.overview : null, this.turn,
        make("div", {class: "columns"}, this.tokens, this.panel)));
    new ResizeObserver(() => this.drawOverview()).observe(this.overview);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.drawOverview());

    this.draw();
    const wanted = position === null ? -1 : position - this.first;
    if (wanted in this.positions) {
      this.choose(wanted);
    } else {
      this.panel.append(make("p", {class: "muted"},
          position === null ? "" : `Nothing is kept of position ${position}. `,
          "Choose a token to see its recorded tokens, the current policy, and the draw. Arrow keys go on from there."));
    }
  }

  legend() {
    const select = make("select", {"aria-label": "what the colour shows", onchange: () => {
      this.colouring = select.value;
      this.draw();
    }}, Object.keys(this.colourings).map(name => make("option", {}, name)));
    const present = new Set(this.positions.map(({kind}) => kind));
    const sample = (look, said, text = "ab", style = {}) =>
      make("span", {}, make("span", {class: look, style}, text), ` ${said}`);
    return make("div", {class: "key"}, make("label", {}, "colour: ", select), this.scale,
        KINDS.filter((kind, i) => i < 2 || present.has(kind))
            .map(({look, legend, said}) => sample(look, legend ?? said)),
        sample(ACCEPTED.look, "residual mass (here half)", "abcd", {"--residual": "0.5"}));
  }

  draw() {
    const {diverging, low = 0, high = 1, said} = this.colourings[this.colouring];
    this.scale.replaceChildren(low, make("span", {class: `ramp ${diverging ? "diverging" : "amount"}`}), high);
    this.scale.title = said;
    this.drawTurn();
    this.drawTokens();
    this.drawOverview();
  }

  drawTurn() {
    const {length} = this.positions;
    const end = Math.min(length, this.shown + TOKENS_SHOWN);
    const go = (text, onclick, enabled) =>
      make("button", {type: "button", disabled: !enabled, onclick}, text);
    const choose = position => () => this.choose(position.index);
    const rank = this.byRatio.indexOf(this.positions[this.chosen]);
    const parts = [make("span", {class: "muted"}, `${this.colourings[this.colouring].said}.`)];
    if (this.byRatio.length) {
      parts.push(go("largest |log w|", choose(this.byRatio[0]), true),
          go("next largest", choose(this.byRatio[rank + 1]), rank >= 0 && rank + 1 < this.byRatio.length));
    }
    if (length > TOKENS_SHOWN) {
      parts.push(go("‹ before", () => this.show(this.shown - TOKENS_SHOWN), this.shown > 0),
          `positions ${this.first + this.shown} to ${this.first + end - 1}`,
          go("after ›", () => this.show(this.shown + TOKENS_SHOWN), end < length));
    }
    this.turn.replaceChildren(...parts);
  }

  show(first) {
    this.shown = Math.max(0, first);
    this.draw();
  }

  drawTokens() {
    const elements = [];
    const absent = [];
    let staleness = null;
    for (const position of this.positions.slice(this.shown, this.shown + TOKENS_SHOWN)) {
      const {kind, said} = position;
      if (absent.length && (kind.token || said !== absent[0].said)) elements.push(this.absent(absent.splice(0)));
      if (!kind.token) {
        absent.push(position);
        continue;
      }
      if (position.staleness !== staleness) {
        staleness = position.staleness;
        if (staleness !== 0 || elements.length) {
          elements.push(make("span", {class: "behind",
            title: `from here on the tokens are ${ageOf(staleness, "policy versions ")}`}, ageOf(staleness)));
        }
      }
      elements.push(this.token(position));
      if (this.tokenTexts?.[position.sampledId]?.includes("\n")) elements.push(make("br"));
    }
    if (absent.length) elements.push(this.absent(absent));
    this.tokens.replaceChildren(...elements);
    this.mark();
  }

  token(position) {
    const {kind, logRatio, residualMass} = position;
    const {of, diverging} = this.colourings[this.colouring];
    const values = kind.scored ? `, log w ${signed(logRatio, 3)}, residual mass ${number(residualMass)}` : "";
    return make("span", {
      class: kind.look,
      "data-index": position.index,
      role: "option",
      title: `${position.number}: ${kind.said}${values}`,
      style: !kind.scored ? {} : {
        "background-color": shade(of(position), diverging),
        "--residual": Math.min(1, Math.max(0, residualMass || 0)).toFixed(4),
      },
    }, tokenText(position.sampledId, this.tokenTexts));
  }

  // Consecutive positions without a record or a decision are one element, so that nobody mistakes them for
  // tokens on which the policies agree.
  absent(positions) {
    const [{kind, said, number}] = positions;
    return make("span", {class: kind.look, title: `${number} to ${positions.at(-1).number}: ${said}`},
        `${positions.length} × ${said}`);
  }

  mark() {
    this.tokens.querySelector(".chosen")?.classList.remove("chosen");
    const token = this.tokens.querySelector(`[data-index="${this.chosen}"]`);
    token?.classList.add("chosen");
    return token;
  }

  choose(index) {
    if (!(index in this.positions)) return;
    this.chosen = index;
    if (index < this.shown || index >= this.shown + TOKENS_SHOWN) {
      this.shown = Math.floor(index / TOKENS_SHOWN) * TOKENS_SHOWN;
      this.drawTokens();
    }
    this.drawTurn();
    this.drawOverview();
    const token = this.mark();
    showPosition(this.panel, this.positions[index], this.tokenTexts);
    token?.scrollIntoView({block: "nearest"});
    this.onChoose(this.first + index);
  }

  key(event) {
    const from = this.chosen < 0 ? this.shown - 1 : this.chosen;
    const keys = {
      ArrowRight: () => this.next(from, 1), ArrowLeft: () => this.next(from, -1),
      ArrowDown: () => this.beside(1), ArrowUp: () => this.beside(-1),
      Home: () => this.next(-1, 1), End: () => this.next(this.positions.length, -1),
    };
    if (!(event.key in keys)) return;
    event.preventDefault();
    this.choose(keys[event.key]());
  }

  // The first token after `index` (step 1), or before it (-1).
  next(index, step) {
    do index += step; while (index in this.positions && !this.positions[index].kind.token);
    return index;
  }

  // Returns the nearest token in the next line (direction 1), or in the previous line (-1).
  beside(direction) {
    const chosen = this.tokens.querySelector(".chosen");
    if (!chosen) return this.next(-1, 1);
    const beyond = [...this.tokens.querySelectorAll("[data-index]")]
        .filter(({offsetTop}) => direction * (offsetTop - chosen.offsetTop) > 0);
    const line = beyond.at(direction > 0 ? 0 : -1)?.offsetTop;
    const away = ({offsetLeft}) => Math.abs(offsetLeft - chosen.offsetLeft);
    const [nearest] = beyond.filter(({offsetTop}) => offsetTop === line).sort((one, other) => away(one) - away(other));
    return Number(nearest?.dataset.index);
  }

  drawOverview() {
    const {clientWidth: width, clientHeight: height} = this.overview;
    if (!width) return;
    this.overview.width = Math.round(width * devicePixelRatio);
    this.overview.height = Math.round(height * devicePixelRatio);
    const context = this.overview.getContext("2d");
    context.scale(devicePixelRatio, devicePixelRatio);
    const [line, below, above, amount, ink] =
        ["--line", "--below", "--above", "--amount", "--ink"].map(color);
    const {of, diverging} = this.colourings[this.colouring];
    const {length} = this.positions;
    const base = diverging ? height / 2 : height;
    for (let x = 0; x < width; ++x) {
      const from = Math.floor(x * length / width);
      const to = Math.max(from + 1, Math.floor((x + 1) * length / width));
      const parts = this.positions.slice(from, to).filter(({kind}) => kind.scored).map(of);
      if (!parts.length) {
        context.fillStyle = line;
        context.fillRect(x, height / 2 - 1, 1, 2);
        continue;
      }
      const most = parts.reduce((most, part) => (Math.abs(part) > Math.abs(most) ? part : most), 0);
      const bar = base * Math.min(1, Math.abs(most));
      context.fillStyle = !diverging ? amount : most < 0 ? below : above;
      context.fillRect(x, most < 0 ? base : base - bar, 1, Math.max(0.5, bar));
    }
    const place = index => index * width / length;
    context.fillStyle = context.strokeStyle = ink;
    if (length > TOKENS_SHOWN) {
      context.lineWidth = 2;
      context.strokeRect(place(this.shown) + 1, 1, place(Math.min(TOKENS_SHOWN, length - this.shown)) - 2, height - 2);
    }
    if (this.chosen >= 0) context.fillRect(place(this.chosen + 0.5) - 1, 0, 2, height);
  }
}
