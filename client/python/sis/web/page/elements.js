// Elements of the page, made without markup in strings, so that clients' data is only text.

/** Returns an element. Omits attributes whose value is null or false; `style` is an object. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.entries(value).forEach(pair => element.style.setProperty(...pair));
    else if (value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(child => child !== null));
  return element;
}

const probe = make("span", {hidden: ""});
document.body.append(probe);

/** Returns the current value of a colour of page.css, such as "--ink". */
export function color(variable) {
  probe.style.color = `var(${variable})`;
  return getComputedStyle(probe).color;
}

// Text on a stronger colour would be unreadable; --strongest of microscope.css.
const STRONGEST_PERCENT = 70;

/** Returns the colour of `part`: in [-1, 1] on the diverging scale, otherwise in [0, 1]. */
export function shade(part, diverging) {
  if (Number.isNaN(part)) return "transparent";
  const pole = diverging ? (part < 0 ? "below" : "above") : "amount";
  const opacity = STRONGEST_PERCENT * Math.min(1, Math.abs(part));
  return `color-mix(in srgb, var(--${pole}) ${opacity.toFixed(1)}%, transparent)`;
}

/** Returns a part of a length, for a style. */
export function percent(part) {
  return `${100 * part}%`;
}

const ESCAPES = {"\n": "↵", "\r": "␍", "\t": "⇥"};

/** Returns a token's text with visible line ends and tabs; its id without a text. */
export function tokenText(id, tokenTexts) {
  const parts = (tokenTexts?.[id] || `#${id}`).split(/([\n\r\t])/).filter(Boolean);
  return parts.map(part => (ESCAPES[part] ? make("span", {class: "escape"}, ESCAPES[part]) : part));
}

/** Returns a token's text and id. */
export function tokenLabel(id, tokenTexts) {
  if (!tokenTexts?.[id]) return make("span", {}, `#${id}`);
  return make("span", {}, make("span", {class: "text"}, tokenText(id, tokenTexts)), " ",
      make("span", {class: "muted"}, `#${id}`));
}

/**
 * Returns a table of `columns` [{title, unit, left, className, cell(row)}]. Titles and cells are text or
 * elements. `attributes(row)` returns the attributes of the row's element.
 */
export function table(caption, columns, rows, attributes = () => ({})) {
  const side = ({left, className}) => [left && "left", className].filter(Boolean).join(" ") || null;
  return make("table", {"aria-label": caption},
      make("thead", {}, make("tr", {},
          columns.map(column => make("th", {scope: "col", class: side(column)}, column.title,
              column.unit ? make("span", {}, column.unit) : null)))),
      make("tbody", {}, rows.map(row => make("tr", attributes(row),
          // data-title: for windows that are too narrow for the headings (page.css).
          columns.map(column => make("td", {class: side(column), "data-title": column.title}, column.cell(row)))))));
}

/** Returns figures side by side: [{name, value, note}]. */
export function figures(list) {
  return make("dl", {class: "figures"}, list.map(({name, value, note}) =>
    make("div", {class: "figure"}, make("dt", {}, name),
        make("dd", {class: String(value).length > 16 ? "long" : null}, value),
        note ? make("dd", {class: "note"}, note) : null)));
}

// For each of the server's verdicts: a sign, so that readers don't depend on the colour, and our word.
const VERDICTS = {
  VERDICT_BROKEN: ["✖", "broken"], VERDICT_WORTH_A_LOOK: ["▲", "worth a look"], VERDICT_HEALTHY: ["✓", "healthy"],
};

/** Returns the server's verdict on a run; a dash without one. */
export function verdict(name) {
  const [sign, word] = VERDICTS[name] ?? ["–", ""];
  return make("span", {class: "verdict", "data-verdict": name},
      make("span", {"aria-hidden": "true"}, sign), ` ${word}`);
}

/** Returns the server's findings about a run, and what to do. */
export function findingNotice({verdict: name, reason, action, rule}) {
  return make("div", {class: "notice", "data-verdict": name},
      make("b", {}, reason), make("p", {class: "note"}, `${action} (${rule})`));
}

/**
 * Runs an action of one of `buttons`, which do nothing until it ends. `said` shows `words` until then,
 * and after an error `failed` with the error's message. The buttons are not disabled, because they
 * would lose the focus.
 */
export async function whileBusy(buttons, said, words, failed, work) {
  if (buttons.some(button => button.hasAttribute("aria-disabled"))) return;
  buttons.forEach(button => button.setAttribute("aria-disabled", "true"));
  said.replaceChildren(make("p", {}, words));
  try {
    await work();
  } catch (error) {
    said.replaceChildren(make("p", {}, `${failed}: ${error.message}`));
  }
  buttons.forEach(button => button.removeAttribute("aria-disabled"));
}

/** A share in [0, 1] as a bar, for a cell of a table. */
export function bar(share) {
  return make("span", {class: "bar"}, make("span", {style: {width: percent(share)}}));
}
