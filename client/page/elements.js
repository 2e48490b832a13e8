// Elements of the page, made without markup in strings: what comes from clients is text.

/** An element; attributes whose value is null or false are left out. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(child => child !== null));
  return element;
}

/** The same of SVG. */
export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Replaces what is inside; who stood on a link there stands on the same link after it. */
export function replaceKeepingFocus(parent, ...children) {
  const active = document.activeElement;
  const href = parent.contains(active) ? active.getAttribute("href") : null;
  parent.replaceChildren(...children);
  if (href !== null) parent.querySelector(`a[href="${CSS.escape(href)}"]`)?.focus();
}

/** A table of `columns` [{title, unit, left, cell(row)}], each cell text or an element. */
export function table(caption, columns, rows) {
  const side = column => (column.left ? `left ${column.className ?? ""}` : null);
  return make("table", {"aria-label": caption},
      make("thead", {}, make("tr", {},
          columns.map(column => make("th", {scope: "col", class: side(column)}, column.title,
              column.unit ? make("span", {}, column.unit) : null)))),
      make("tbody", {}, rows.map(row => make("tr", {},
          columns.map(column => make("td", {class: side(column)}, column.cell(row)))))));
}

/** Figures in a row: [{name, value, note}]. */
export function figures(list) {
  return make("dl", {class: "figures"}, list.map(({name, value, note}) =>
    make("div", {class: "figure"}, make("dt", {}, name),
        make("dd", {class: String(value).length > 16 ? "long" : null}, value),
        note ? make("dd", {class: "note"}, note) : null)));
}

/** A share as a bar, for a cell of a table. */
export function bar(share) {
  const width = Math.max(0, Math.min(1, share)) * 56;
  return makeSvg("svg", {class: "bar", viewBox: "0 0 56 8", "aria-hidden": "true"},
      makeSvg("rect", {class: "back", width: 56, height: 8, rx: 2}),
      makeSvg("rect", {class: "front", width, height: 8, rx: 2}));
}
