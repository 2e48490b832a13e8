// The microscope: a sequence's tokens beside what was decided about them, and one position opened.
// It draws what the server's InspectRun and InspectSequence answer, in protobuf's JSON: names in
// lowerCamelCase, uint64 as strings, bytes in base64, and fields with their default value left out.
// It needs no library and no network, so that a page, or one file on disk, can carry it.
//
// Log-probs and log-ratios are in nats. Texts of tokens come from `tokenTexts`, an object from token
// id to text; without it tokens are shown by their ids.

// Values of sis.v1.Decision.
const UNSPECIFIED = 0;
const ACCEPTED = 1;
const REJECTED = 2;
const OUTSIDE_TOP_K = 3;
const MISSING = 4;
const MASKED = 5;

// More tokens than this are shown in turns: every token is an element of the page.
const TOKENS_SHOWN = 1500;

// --- The answer, as arrays ---

function bytesOf(base64) {
  const text = atob(base64 || "");
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// Copies little-endian values; every machine with a browser is little-endian.
function arrayOf(Type, base64) {
  const bytes = bytesOf(base64);
  return new Type(bytes.buffer, 0, Math.floor(bytes.length / Type.BYTES_PER_ELEMENT));
}

function numberOf(value) {
  return value === undefined || value === null ? 0 : Number(value);
}

/** The arrays of an InspectSequenceResponse in protobuf's JSON; [T, K] arrays are row-major. */
export function decodeSequence(response) {
  const decisions = bytesOf(response.decisions);
  return {
    draw: response.draw === undefined ? "0" : String(response.draw),
    firstPosition: numberOf(response.firstPosition),
    length: decisions.length,
    topK: numberOf(response.topK),
    decisions,
    sampledIds: arrayOf(Int32Array, response.sampledIds),
    sampledLogProbs: arrayOf(Float32Array, response.sampledLogProbs),
    logRatios: arrayOf(Float32Array, response.logRatios),
    acceptanceProbabilities: arrayOf(Float32Array, response.acceptanceProbabilities),
    logEnvelopes: arrayOf(Float32Array, response.logEnvelopes),
    residualMasses: arrayOf(Float32Array, response.residualMasses),
    uniforms: Float64Array.from(arrayOf(Uint32Array, response.uniforms), u => u / 2 ** 32),
    staleness: Float64Array.from(arrayOf(BigUint64Array, response.staleness), Number),
    topKIds: arrayOf(Int32Array, response.topKIds),
    topKLogProbs: arrayOf(Float32Array, response.topKLogProbs),
    currentLogProbs: arrayOf(Float32Array, response.currentLogProbs),
    notKept: notKept(response),
  };
}

// Which positions were evaluated but had no room; empty if all are kept.
function notKept({cutBegin, cutEnd}) {
  const last = numberOf(cutEnd) - 1;
  return last < 0 ? "" : `${numberOf(cutBegin)} to ${last}`;
}

function isScored(decision) {
  return decision === ACCEPTED || decision === REJECTED || decision === OUTSIDE_TOP_K;
}

// --- Elements and texts ---

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function format(value, digits = 4) {
  if (value === undefined || Number.isNaN(value)) return "unknown";
  if (value === Infinity) return "∞";
  if (value === -Infinity) return "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size < 1e-3 || size >= 1e5 ? value.toExponential(2) : value.toPrecision(digits);
  return text.replace("-", "−");
}

function formatSigned(value, digits) {
  return value > 0 ? "+" + format(value, digits) : format(value, digits);
}

function formatPercent(share) {
  return Number.isFinite(share) ? (100 * share).toFixed(1) + " %" : "–";
}

function formatCount(value) {
  return numberOf(value).toLocaleString("en-US");
}

const ESCAPES = {"\n": "↵", "\r": "␍", "\t": "⇥"};

// A token's text with its line ends and tabs made visible; its id where there is no text.
function textOf(id, tokenTexts) {
  const text = tokenTexts ? tokenTexts[id] : undefined;
  if (text === undefined || text === "") return [make("span", "escape", "#" + id)];
  const parts = [];
  for (const part of text.split(/([\n\r\t])/)) {
    if (part === "") continue;
    parts.push(ESCAPES[part] ? make("span", "escape", ESCAPES[part]) : part);
  }
  return parts;
}

function tokenLabel(id, tokenTexts) {
  if (id < 0) return make("span", "muted", "unknown");
  const known = tokenTexts && tokenTexts[id] !== undefined && tokenTexts[id] !== "";
  const label = make("span", "");
  if (known) {
    label.append(make("span", "text", ...textOf(id, tokenTexts)), " ");
    label.append(make("span", "muted", "#" + id));
  } else {
    label.append("#" + id);
  }
  return label;
}

// --- Colours ---

// The end of the scale of log w: a round number that few positions exceed, so that the sequence's
// own differences are visible, and at least 0.1, so that rounding is not.
function limitOf(values) {
  const sizes = values.filter(Number.isFinite).map(Math.abs).sort((x, y) => x - y);
  const high = sizes.length ? sizes[Math.floor(0.95 * (sizes.length - 1))] : 0;
  return [0.1, 0.2, 0.5, 1, 2, 5].find(limit => high <= limit) || 10;
}

function colouringsOf(data) {
  const scored = index => isScored(data.decisions[index]);
  const indices = [...data.decisions.keys()].filter(scored);
  const logLimit = limitOf(indices.map(i => data.logRatios[i]));
  const stale = Math.max(1, ...new Set(indices.map(i => data.staleness[i])));
  return {
    "log w": {
      diverging: true, low: "−" + logLimit, high: "+" + logLimit, middle: "0",
      said: "log w, nats: blue is less probable now, orange more",
      of: i => data.logRatios[i] / logLimit,
    },
    "acceptance probability": {
      low: "0", high: "1", said: "a, the probability that the draw accepts",
      of: i => data.acceptanceProbabilities[i],
    },
    "residual mass": {
      low: "0", high: "1", said: "the current policy's mass outside the recorded tokens",
      of: i => data.residualMasses[i],
    },
    "staleness": {
      low: "0", high: String(stale), said: "policy versions behind",
      of: i => data.staleness[i] / stale,
    },
  };
}

function colourOf(share, diverging) {
  if (Number.isNaN(share)) return "transparent";
  const opacity = 0.9 * Math.min(1, Math.abs(share));
  const pole = diverging ? (share < 0 ? "below" : "above") : "amount";
  return `rgb(var(--${pole}) / ${opacity.toFixed(3)})`;
}

// --- A sequence ---

const CLASS_OF = {[ACCEPTED]: "accepted", [REJECTED]: "rejected", [OUTSIDE_TOP_K]: "outside"};
const SAID_OF = {
  [ACCEPTED]: "accepted", [REJECTED]: "rejected", [OUTSIDE_TOP_K]: "outside the recorded tokens",
  [MISSING]: "missing: no record", [MASKED]: "not generated by the policy",
  [UNSPECIFIED]: "not evaluated",
};

function sequenceFacts(data) {
  const counts = [0, 0, 0, 0, 0, 0];
  let d = 0, dSis = 0, residual = 0, expected = 0;
  for (let i = 0; i < data.length; ++i) {
    ++counts[data.decisions[i]];
    if (!isScored(data.decisions[i])) continue;
    d += Math.abs(data.logRatios[i]);
    if (data.decisions[i] !== ACCEPTED) dSis += Math.abs(data.logRatios[i]);
    residual += data.residualMasses[i];
    expected += data.acceptanceProbabilities[i];
  }
  const scored = counts[ACCEPTED] + counts[REJECTED] + counts[OUTSIDE_TOP_K];
  const facts = [["draw", data.draw], ["positions", formatCount(data.length)],
    ["accepted", formatPercent(counts[ACCEPTED] / scored)],
    ["accepted on average over draws", formatPercent(expected / scored)],
    ["D per token", format(d / scored, 3)], ["D_SIS per token", format(dSis / scored, 3)],
    ["residual mass", formatPercent(residual / scored)]];
  if (counts[OUTSIDE_TOP_K]) facts.push(["outside", formatCount(counts[OUTSIDE_TOP_K])]);
  if (counts[MISSING]) facts.push(["missing", formatCount(counts[MISSING])]);
  if (counts[MASKED]) facts.push(["not generated", formatCount(counts[MASKED])]);
  if (counts[UNSPECIFIED]) facts.push(["not evaluated", formatCount(counts[UNSPECIFIED])]);
  if (data.notKept) facts.push(["evaluated, but no room in --inspected_bytes: positions", data.notKept]);
  return facts;
}

function factsElement(facts) {
  const element = make("div", "facts");
  for (const [name, value] of facts) element.append(make("span", "", name + " ", make("b", "", value)));
  return element;
}

class SequenceView {
  constructor(element, response, {tokenTexts = null, title = "", position = null} = {}) {
    this.data = decodeSequence(response);
    this.tokenTexts = tokenTexts;
    this.colourings = colouringsOf(this.data);
    this.colouring = "log w";
    this.shown = 0;
    this.chosen = -1;

    this.scale = make("span", "scale");
    this.overview = make("canvas", "overview");
    this.overview.title = "The whole sequence; click to go there";
    this.turn = make("div", "turn");
    this.tokens = make("div", "tokens");
    this.tokens.tabIndex = 0;
    this.tokens.setAttribute("role", "listbox");
    this.tokens.setAttribute("aria-label", "tokens; arrow keys choose a position");
    this.panel = make("aside", "position");
    this.panel.setAttribute("aria-live", "polite");

    const root = make("section", "microscope");
    if (title) root.append(make("h2", "", title));
    root.append(factsElement(sequenceFacts(this.data)), this.legend());
    if (this.data.length > 200) root.append(this.overview);
    root.append(this.turn, make("div", "columns", this.tokens, this.panel));
    element.replaceChildren(root);
    this.root = root;

    this.tokens.addEventListener("click", event => {
      const token = event.target.closest("[data-index]");
      if (token) this.choose(Number(token.dataset.index));
    });
    this.tokens.addEventListener("keydown", event => this.key(event));
    this.overview.addEventListener("click", event => {
      const box = this.overview.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      this.choose(Math.min(this.data.length - 1, Math.floor(share * this.data.length)));
    });
    if (typeof ResizeObserver !== "undefined") {
      new ResizeObserver(() => this.drawOverview()).observe(this.overview);
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.drawOverview());

    this.byRatio = [...this.data.decisions.keys()]
        .filter(i => isScored(this.data.decisions[i]))
        .sort((i, j) => Math.abs(this.data.logRatios[j]) - Math.abs(this.data.logRatios[i]));
    this.draw();
    const wanted = position === null ? -1 : position - this.data.firstPosition;
    if (wanted >= 0 && wanted < this.data.length) {
      this.choose(wanted);
    } else {
      this.panel.append(make("p", "muted",
          "Choose a token to see its recorded tokens, the current policy, and the draw. " +
          "Arrow keys go on from there."));
    }
  }

  legend() {
    const select = make("select", "");
    select.setAttribute("aria-label", "what the colour shows");
    for (const name of Object.keys(this.colourings)) select.append(make("option", "", name));
    select.addEventListener("change", () => {
      this.colouring = select.value;
      this.draw();
    });
    const sample = (className, text, said) => make("span", "",
        make("span", "token " + className, text), " " + said);
    const residual = make("span", "token accepted", "abcd");
    residual.style.setProperty("--residual", "0.5");
    const kinds = new Set(this.data.decisions);
    const element = make("div", "legend", make("label", "", "colour: ", select), this.scale,
        sample("accepted", "ab", "accepted"), sample("rejected", "ab", "rejected"));
    if (kinds.has(OUTSIDE_TOP_K)) element.append(sample("outside", "ab", "outside the recorded tokens"));
    element.append(make("span", "", residual, " residual mass (here half)"));
    if (kinds.has(MASKED)) {
      element.append(make("span", "", make("span", "absent", "ab"), " not generated by the policy"));
    }
    if (kinds.has(MISSING)) {
      element.append(make("span", "", make("span", "absent missing", "ab"), " missing"));
    }
    return element;
  }

  draw() {
    const colouring = this.colourings[this.colouring];
    this.scale.replaceChildren(colouring.low,
        make("span", "ramp " + (colouring.diverging ? "diverging" : "amount")), colouring.high);
    this.scale.title = colouring.said;
    this.drawTurn();
    this.drawTokens();
    this.drawOverview();
  }

  drawTurn() {
    const end = Math.min(this.data.length, this.shown + TOKENS_SHOWN);
    const go = (text, where, enabled) => {
      const button = make("button", "", text);
      button.type = "button";
      button.disabled = !enabled;
      button.addEventListener("click", where);
      return button;
    };
    const rank = this.byRatio.indexOf(this.chosen);
    const parts = [make("span", "muted", this.colourings[this.colouring].said + ".")];
    if (this.byRatio.length) {
      parts.push(go("largest |log w|", () => this.choose(this.byRatio[0]), true));
      parts.push(go("next largest", () => this.choose(this.byRatio[rank + 1]),
          rank >= 0 && rank + 1 < this.byRatio.length));
    }
    if (this.data.length > TOKENS_SHOWN) {
      parts.push(go("‹ before", () => this.show(this.shown - TOKENS_SHOWN), this.shown > 0));
      parts.push(make("span", "", `positions ${this.data.firstPosition + this.shown} to ` +
          `${this.data.firstPosition + end - 1}`));
      parts.push(go("after ›", () => this.show(this.shown + TOKENS_SHOWN), end < this.data.length));
    }
    this.turn.replaceChildren(...parts);
  }

  show(first) {
    this.shown = Math.max(0, Math.min(first, this.data.length - 1));
    this.draw();
  }

  drawTokens() {
    const data = this.data;
    const colouring = this.colourings[this.colouring];
    const end = Math.min(data.length, this.shown + TOKENS_SHOWN);
    const elements = [];
    let staleness = null;
    for (let i = this.shown; i < end; ++i) {
      const decision = data.decisions[i];
      if (!isScored(decision)) {
        let last = i;
        while (last + 1 < end && data.decisions[last + 1] === decision) ++last;
        elements.push(this.absent(i, last));
        i = last;
        continue;
      }
      if (data.staleness[i] !== staleness) {
        staleness = data.staleness[i];
        const mark = make("span", "behind", staleness === 0 ? "current" : `${staleness} behind`);
        mark.title = `from here on the tokens are ${staleness} policy versions behind`;
        if (staleness > 0 || elements.length) elements.push(mark);
      }
      const token = make("span", "token " + CLASS_OF[decision],
          ...textOf(data.sampledIds[i], this.tokenTexts));
      token.dataset.index = i;
      token.style.backgroundColor = colourOf(colouring.of(i), colouring.diverging);
      const residual = data.residualMasses[i];
      token.style.setProperty("--residual",
          Number.isFinite(residual) ? Math.min(1, Math.max(0, residual)).toFixed(4) : "0");
      token.title = `${data.firstPosition + i}: ${SAID_OF[decision]}, ` +
          `log w ${formatSigned(data.logRatios[i], 3)}, residual mass ${format(residual, 3)}`;
      token.setAttribute("role", "option");
      elements.push(token);
      const text = this.tokenTexts ? this.tokenTexts[data.sampledIds[i]] : undefined;
      if (text && text.includes("\n")) elements.push(make("br", ""));
    }
    this.tokens.replaceChildren(...elements);
    this.mark();
  }

  // Positions [first, last] that have no decision: one element, so that they can't be mistaken for
  // tokens on which the policies agree.
  absent(first, last) {
    const data = this.data;
    const decision = data.decisions[first];
    const length = last - first + 1;
    const element = make("span", "absent" + (decision === MISSING ? " missing" : ""));
    const texts = [];
    for (let i = first; i <= last && texts.length <= 40; ++i) {
      const text = this.tokenTexts && this.tokenTexts[data.sampledIds[i]];
      if (text) texts.push(text);
    }
    if (decision === MASKED && texts.length === length && length <= 40) {
      element.append(texts.join(""));
    } else {
      element.append(`${length} × ${SAID_OF[decision]}`);
    }
    element.title = `${data.firstPosition + first} to ${data.firstPosition + last}: ` +
        SAID_OF[decision];
    return element;
  }

  mark() {
    for (const token of this.tokens.querySelectorAll(".chosen")) token.classList.remove("chosen");
    const token = this.tokens.querySelector(`[data-index="${this.chosen}"]`);
    if (token) token.classList.add("chosen");
    return token;
  }

  choose(index) {
    if (index === undefined || index < 0 || index >= this.data.length) return;
    this.chosen = index;
    if (index < this.shown || index >= this.shown + TOKENS_SHOWN) {
      this.shown = Math.floor(index / TOKENS_SHOWN) * TOKENS_SHOWN;
      this.drawTokens();
    }
    this.drawTurn();
    this.drawOverview();
    const token = this.mark();
    renderPosition(this.panel, this.data, index, this.tokenTexts);
    if (token) token.scrollIntoView({block: "nearest"});
  }

  key(event) {
    const steps = {ArrowRight: 1, ArrowLeft: -1};
    let index = -1;
    if (event.key in steps) {
      index = (this.chosen < 0 ? this.shown - 1 : this.chosen) + steps[event.key];
      const step = steps[event.key];
      while (index >= 0 && index < this.data.length && !isScored(this.data.decisions[index])) {
        index += step;
      }
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      index = this.beside(event.key === "ArrowDown" ? 1 : -1);
    } else if (event.key === "Home") {
      index = this.data.decisions.findIndex(isScored);
    } else if (event.key === "End") {
      index = this.data.decisions.findLastIndex(isScored);
    } else {
      return;
    }
    event.preventDefault();
    this.choose(index);
  }

  // The token that stands nearest in the next line (direction 1), or in the one before (-1).
  beside(direction) {
    const chosen = this.tokens.querySelector(".chosen");
    if (!chosen) return this.data.decisions.findIndex(isScored);
    const from = chosen.getBoundingClientRect();
    let best = -1, least = Infinity;
    for (const token of this.tokens.querySelectorAll("[data-index]")) {
      const box = token.getBoundingClientRect();
      const lines = direction * (box.top - from.top);
      if (lines < 4) continue;
      const distance = 8 * lines + Math.abs(box.left - from.left);
      if (distance < least) {
        least = distance;
        best = Number(token.dataset.index);
      }
    }
    return best;
  }

  drawOverview() {
    const width = this.overview.clientWidth, height = this.overview.clientHeight;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    this.overview.width = Math.round(width * ratio);
    this.overview.height = Math.round(height * ratio);
    const context = this.overview.getContext("2d");
    context.scale(ratio, ratio);
    const style = getComputedStyle(this.root);
    const colour = name => style.getPropertyValue("--" + name).trim().split(/\s+/).join(",");
    const colouring = this.colourings[this.colouring];
    const data = this.data;
    for (let x = 0; x < width; ++x) {
      const from = Math.floor(x * data.length / width);
      const to = Math.max(from + 1, Math.floor((x + 1) * data.length / width));
      let most = 0, scored = false;
      for (let i = from; i < to && i < data.length; ++i) {
        if (!isScored(data.decisions[i])) continue;
        scored = true;
        const share = colouring.of(i);
        if (Math.abs(share) > Math.abs(most)) most = share;
      }
      if (!scored) {
        context.fillStyle = `rgba(${colour("line")},0.5)`;
        context.fillRect(x, height / 2 - 1, 1, 2);
        continue;
      }
      const size = Math.min(1, Math.abs(most));
      if (colouring.diverging) {
        context.fillStyle = `rgb(${colour(most < 0 ? "below" : "above")})`;
        const bar = size * height / 2;
        context.fillRect(x, most < 0 ? height / 2 : height / 2 - bar, 1, Math.max(0.5, bar));
      } else {
        context.fillStyle = `rgb(${colour("amount")})`;
        context.fillRect(x, height - size * height, 1, size * height);
      }
    }
    const place = index => index * width / data.length;
    context.strokeStyle = `rgb(${colour("ink")})`;
    if (data.length > TOKENS_SHOWN) {
      context.lineWidth = 2;
      context.strokeRect(place(this.shown) + 1, 1,
          place(Math.min(TOKENS_SHOWN, data.length - this.shown)) - 2, height - 2);
    }
    if (this.chosen >= 0) {
      context.fillStyle = context.strokeStyle;
      context.fillRect(place(this.chosen + 0.5) - 1, 0, 2, height);
    }
  }
}

// --- One position ---

function decisionSentence(data, i) {
  const a = format(data.acceptanceProbabilities[i]), u = format(data.uniforms[i]);
  const w = format(Math.exp(data.logRatios[i]));
  switch (data.decisions[i]) {
    case ACCEPTED:
      return `Accepted: the uniform ${u} is below a = ${a}. Its modified ratio is 1.`;
    case REJECTED:
      return `Rejected: the uniform ${u} is not below a = ${a}. It keeps its ratio w = ${w}.`;
    case OUTSIDE_TOP_K:
      return `Not among the recorded tokens, so never accepted. It keeps its ratio w = ${w}.`;
    case MISSING:
      return "Missing: there is no record that could be read. The trainer uses its own ratio.";
    case MASKED:
      return "Not generated by the policy (tool output or padding): no decision is made about it.";
    default:
      return "Not evaluated with this draw.";
  }
}

function gauge(data, i) {
  const a = data.acceptanceProbabilities[i], u = data.uniforms[i];
  const accepts = make("div", "accepts");
  accepts.style.width = `${100 * a}%`;
  const uniform = make("div", "uniform");
  uniform.style.left = `${100 * u}%`;
  const label = (text, at) => {
    const element = make("span", "label", text);
    element.style[at > 0.5 ? "right" : "left"] = `${100 * (at > 0.5 ? 1 - at : at)}%`;
    return element;
  };
  const element = make("div", "gauge", accepts, uniform);
  if (Math.abs(a - u) > 0.35) {
    element.append(label("a", a), label("uniform", u));
  } else {
    element.append(label(u < a ? "uniform, below a" : "uniform, above a", u));
  }
  element.title = "accepted where the uniform lies in the filled part";
  return element;
}

function valuesElement(rows) {
  const list = make("dl", "values");
  for (const [name, value, said] of rows) {
    const row = make("div", "", make("dt", "", name), make("dd", "", value));
    if (said) row.title = said;
    list.append(row);
  }
  return list;
}

function slotsTable(data, i, tokenTexts) {
  const row = i * data.topK;
  const envelope = Math.exp(data.logEnvelopes[i]);
  const slots = [];
  let behaviourMass = 0, told = false;
  for (let k = 0; k < data.topK; ++k) {
    const id = data.topKIds[row + k];
    if (id < 0) continue;
    const behaviour = data.topKLogProbs[row + k], current = data.currentLogProbs[row + k];
    behaviourMass += Math.exp(behaviour);
    told = told || !Number.isNaN(current);
    slots.push({id, behaviour, current});
  }
  if (!slots.length) return make("p", "muted", "The record holds no tokens at this position.");
  const residual = data.residualMasses[i];
  const rest = Math.max(0, 1 - behaviourMass);
  const largest = Math.max(rest, Number.isFinite(residual) ? residual : 0, ...slots.map(
      slot => Math.max(Math.exp(slot.behaviour), Math.exp(slot.current) || 0)));
  const most = Math.max(...slots.map(
      slot => Number.isNaN(slot.current) ? -Infinity : slot.current - slot.behaviour));
  const bars = (behaviour, current, limit) => {
    const pair = make("div", "pair");
    const bar = (kind, value) => {
      if (!Number.isFinite(value)) return;
      const element = make("div", "bar " + kind);
      element.style.width = `${100 * value / largest}%`;
      pair.append(element);
    };
    bar("behaviour", behaviour);
    bar("current", current);
    if (Number.isFinite(limit) && limit <= largest) {
      const element = make("div", "limit");
      element.style.left = `${100 * limit / largest}%`;
      pair.append(element);
    }
    return make("td", "bars", pair);
  };
  const table = make("table", "slots", make("tr", "", make("th", "words", "token"),
      make("th", "words", "probability"), make("th", "", "behaviour"), make("th", "", "current"),
      make("th", "", "log ratio")));
  const unknownOr = (known, value) => make("td", "", known ? value : "–");
  for (const {id, behaviour, current} of slots) {
    const sampled = id === data.sampledIds[i];
    const known = !Number.isNaN(current);
    const q = Math.exp(behaviour), p = Math.exp(current);
    const label = make("td", "words", sampled ? "▸ " : "", tokenLabel(id, tokenTexts));
    if (known && current - behaviour === most) {
      const mark = make("b", "", " M");
      mark.title = "this token sets the envelope";
      label.append(mark);
    }
    const line = make("tr", sampled ? "sampled" : "", label, bars(q, p, envelope * q),
        make("td", "", format(q, 3)), unknownOr(known, format(p, 3)),
        unknownOr(known, formatSigned(current - behaviour, 3)));
    table.append(line);
  }
  if (data.decisions[i] === OUTSIDE_TOP_K) {
    const q = Math.exp(data.sampledLogProbs[i]), logRatio = data.logRatios[i];
    table.append(make("tr", "sampled",
        make("td", "words", "▸ ", tokenLabel(data.sampledIds[i], tokenTexts)),
        bars(q, q * Math.exp(logRatio), NaN), make("td", "", format(q, 3)),
        make("td", "", format(q * Math.exp(logRatio), 3)),
        make("td", "", formatSigned(logRatio, 3))));
  }
  table.append(make("tr", "", make("td", "words muted", "all other tokens"),
      bars(rest, residual, NaN), make("td", "", format(rest, 3)),
      unknownOr(Number.isFinite(residual), format(residual, 3)), make("td", "", "")));
  const key = make("div", "key", make("span", "", make("span", "swatch behaviour"), "behaviour q"));
  if (told) {
    key.append(make("span", "", make("span", "swatch current"), "current p"),
        make("span", "", make("span", "swatch limit"), "M q, which p never exceeds"));
  }
  key.append(make("span", "", "▸ sampled"));
  const element = make("div", "wide", key, table);
  if (!told) {
    element.append(make("p", "muted",
        "The request did not send the current policy's values at these tokens."));
  }
  return element;
}

function renderPosition(panel, data, i, tokenTexts) {
  const decision = data.decisions[i];
  const recorded = data.sampledIds[i] >= 0;
  const parts = [make("h3", "", `position ${data.firstPosition + i}`, recorded ? ": " : "",
      recorded ? tokenLabel(data.sampledIds[i], tokenTexts) : "")];
  parts.push(make("p", "", decisionSentence(data, i)));
  if (isScored(decision)) {
    if (decision !== OUTSIDE_TOP_K) parts.push(gauge(data, i));
    const logRatio = data.logRatios[i];
    parts.push(valuesElement([
      ["log q", format(data.sampledLogProbs[i]), "behaviour log-prob of the sampled token, as recorded"],
      ["log p", format(data.sampledLogProbs[i] + logRatio), "current log-prob of the sampled token"],
      ["log w", formatSigned(logRatio), "log p − log q"],
      ["w", format(Math.exp(logRatio)), "importance ratio"],
      ["a", format(data.acceptanceProbabilities[i]), "probability that the draw accepts: w / M"],
      ["uniform", format(data.uniforms[i]), "accepted if below a"],
      ["log M", format(data.logEnvelopes[i]), "log of the envelope, the largest p / q among the recorded tokens"],
      ["residual mass", format(data.residualMasses[i]), "the current policy's mass outside the recorded tokens"],
      ["versions behind", String(data.staleness[i]), "policy versions between the one that generated it and the one current when it was evaluated"],
    ]));
    parts.push(slotsTable(data, i, tokenTexts));
  }
  panel.replaceChildren(...parts);
  panel.scrollTop = 0;
}

/**
 * Draws a sequence into `element`, in place of what it holds. `response` is an
 * InspectSequenceResponse in protobuf's JSON; `tokenTexts` an object from id to text, or null;
 * `title` is shown above; `position` is opened, if it is one of the sequence.
 */
export function renderSequence(element, response, {tokenTexts = null, title = "", position = null} = {}) {
  new SequenceView(element, response, {tokenTexts, title, position});
}

// --- A run ---

function headRow(names) {
  const row = make("tr", "");
  for (const name of names) {
    const words = name.startsWith("<");
    row.append(make("th", words ? "words" : "", words ? name.slice(1) : name));
  }
  return row;
}

function openingRow(onOpen, sequence, position, cells) {
  const row = make("tr", onOpen ? "opens" : "", ...cells);
  if (!onOpen) return row;
  const open = () => onOpen(sequence, position);
  row.tabIndex = 0;
  row.setAttribute("role", "link");
  row.addEventListener("click", open);
  row.addEventListener("keydown", event => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    open();
  });
  return row;
}

function sequenceName(sequence) {
  const attempt = numberOf(sequence.attempt);
  return attempt ? `${sequence.id} (attempt ${attempt})` : sequence.id;
}

function cell(text, className = "") {
  return make("td", className, text);
}

function sequencesTable(sequences, onOpen) {
  const table = make("table", "rows", headRow(["<sequence", "draw", "positions", "accepted",
    "D per token", "D_SIS per token", "missing", "<not kept"]));
  for (const kept of sequences) {
    const {sequence, draw, positions, totals = {}} = kept;
    const accepted = numberOf(totals.accepted);
    const scored = accepted + numberOf(totals.rejected) + numberOf(totals.outsideTopK);
    table.append(openingRow(onOpen, sequence, null, [cell(sequenceName(sequence), "words"),
      cell(String(numberOf(draw))), cell(formatCount(positions)),
      cell(formatPercent(accepted / scored)),
      cell(scored ? format(numberOf(totals.d) / scored, 3) : "–"),
      cell(scored ? format(numberOf(totals.dSis) / scored, 3) : "–"),
      cell(formatCount(totals.missing)), cell(notKept(kept), "words")]));
  }
  return table;
}

// Of a token's occurrences the share that was rejected, from least to most: each count is too high by
// at most maxError.
function rejectedShare(counts) {
  const accepted = numberOf(counts.accepted), rejected = numberOf(counts.rejected);
  const error = numberOf(counts.maxError);
  const share = (part, rest) => (part + rest ? part / (part + rest) : 0);
  return {
    least: share(Math.max(0, rejected - error), accepted),
    said: share(rejected, accepted),
    most: share(rejected, Math.max(0, accepted - error)),
  };
}

function tokensTable(tokens, tokenTexts) {
  const table = make("table", "rows", headRow(["<token", "accepted", "rejected", "too high by at most",
    "rejected of these", "<"]));
  for (const counts of tokens) {
    const accepted = numberOf(counts.accepted), rejected = numberOf(counts.rejected);
    const {least, said, most} = rejectedShare(counts);
    const split = make("div", "split");
    for (const [kind, count] of [["accepted", accepted], ["rejected", rejected]]) {
      const part = make("span", kind);
      part.style.width = `${100 * count / Math.max(1, accepted + rejected)}%`;
      split.append(part);
    }
    split.title = `${formatPercent(said)} rejected`;
    const range = least === most ? formatPercent(said) :
      `${formatPercent(least)} to ${formatPercent(most)}`;
    table.append(make("tr", "", make("td", "words", tokenLabel(numberOf(counts.tokenId), tokenTexts)),
        cell(formatCount(accepted)), cell(formatCount(rejected)), cell(formatCount(counts.maxError)),
        cell(range), make("td", "words", split)));
  }
  return table;
}

// Tokens more and less often rejected than `usual` in the sequences that are kept, those that stand
// out most first.
function tokensByKind(tokens, sequences) {
  let accepted = 0, rejected = 0;
  for (const {totals = {}} of sequences) {
    accepted += numberOf(totals.accepted);
    rejected += numberOf(totals.rejected);
  }
  const usual = accepted + rejected ? rejected / (accepted + rejected) : 0;
  const stands = tokens.map(counts => rejectedShare(counts).said > usual);
  return {
    usual,
    rejected: tokens.filter((_, i) => stands[i]),
    accepted: tokens.filter((_, i) => !stands[i]).reverse(),
  };
}

function deviationsTable(deviations, tokenTexts, onOpen) {
  const table = make("table", "rows", headRow(["<sequence", "position", "<token", "draw", "log w"]));
  for (const {sequence, position, tokenId, draw, logRatio} of deviations) {
    const value = cell(formatSigned(numberOf(logRatio), 4));
    value.style.backgroundColor = colourOf(numberOf(logRatio) / 10, true);
    table.append(openingRow(onOpen, sequence, numberOf(position), [
      cell(sequenceName(sequence), "words"), cell(String(numberOf(position))),
      make("td", "words", tokenLabel(numberOf(tokenId), tokenTexts)), cell(String(numberOf(draw))),
      value]));
  }
  return table;
}

/**
 * Draws what InspectRun answers into `element`: the sequences that can be opened, the tokens that are
 * accepted or rejected more often than others, and the largest |log w|. `onOpen(sequence, position)`
 * is called when a sequence is chosen, with its SequenceRef, and position null or the one to open.
 */
export function renderRun(element, response, {tokenTexts = null, onOpen = null} = {}) {
  const root = make("section", "microscope");
  const section = (title, said, rows, table) => {
    root.append(make("h3", "", title));
    root.append(make("p", "muted", rows && rows.length ? said : "Nothing yet."));
    if (!rows || !rows.length) return;
    const list = make("div", "wide", table(rows));
    list.tabIndex = 0;  // so that the keyboard can scroll it
    root.append(list);
  };
  section("Sequences", "A sample, chosen by a hash of the id: the last evaluated values of these are " +
      "kept, as far as --inspected_bytes has room.", response.sequences, rows => sequencesTable(rows, onOpen));
  section("Largest |log w|", "Where the two policies differ most.", response.deviations,
      rows => deviationsTable(rows, tokenTexts, onOpen));
  const kinds = tokensByKind(response.tokens ?? [], response.sequences ?? []);
  const usual = `Of the tokens of these sequences ${formatPercent(kinds.usual)} are rejected. The counts ` +
      "are kept in bounded memory, so each may be too high, by no more than is said.";
  section("Tokens over-represented among the rejected", usual, kinds.rejected,
      rows => tokensTable(rows, tokenTexts));
  section("Tokens over-represented among the accepted", usual, kinds.accepted,
      rows => tokensTable(rows, tokenTexts));
  element.replaceChildren(root);
}
