// Files that the browser saves: a chart's picture, its values, and the records of a run.

const MARGIN = 12;
const LINE_HEIGHT = 18;
const TITLE_FONT = "600 14px system-ui, sans-serif";
const LEGEND_FONT = "12px system-ui, sans-serif";
const SWATCH = 18;  // of the legend, with the room after it

export function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address));
}

// Returns a file name made of any words.
export function fileName(words, ending) {
  return `${words.toLowerCase().replace(/[^a-z0-9._-]+/g, "_")}.${ending}`;
}

// Returns CSV by RFC 4180. Missing values are empty.
function csvOf({columns, rows}) {
  const cell = value => {
    const text = String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll("\"", "\"\"")}"` : text;
  };
  return [columns, ...rows].map(row => `${row.map(cell).join(",")}\r\n`).join("");
}

/** `values` are {columns: [name], rows: [[value]]}; numbers as they are, not as they are shown. */
export function saveCsv(name, values) {
  save(new Blob([csvOf(values)], {type: "text/csv"}), fileName(name, "csv"));
}

export function saveJson(name, title, unit, {columns, rows}) {
  const objects = rows.map(row => Object.fromEntries(columns.map((column, i) => [column, row[i]])));
  const text = JSON.stringify({title, unit: unit ?? "", values: objects}, null, 1);
  save(new Blob([text], {type: "application/json"}), fileName(name, "json"));
}

/**
 * Returns the chart with its title and legend [{name, color}], which are not part of its canvas, on one
 * line each. The picture has the width of the widest of all.
 */
export function savePng(name, canvas, title, legend, {ink, paper}) {
  const scale = canvas.width / canvas.clientWidth;
  const picture = document.createElement("canvas");
  const drawn = picture.getContext("2d");
  const widthOf = (words, font) => {
    drawn.font = font;
    return drawn.measureText(words).width;
  };
  const width = Math.max(canvas.clientWidth, widthOf(title, TITLE_FONT),
      ...legend.map(line => SWATCH + widthOf(line.name, LEGEND_FONT)));
  const top = MARGIN + (1 + legend.length) * LINE_HEIGHT;  // of the chart
  picture.width = (2 * MARGIN + width) * scale;
  picture.height = (top + MARGIN) * scale + canvas.height;
  drawn.fillStyle = paper;
  drawn.fillRect(0, 0, picture.width, picture.height);
  drawn.scale(scale, scale);
  drawn.textBaseline = "top";
  drawn.fillStyle = ink;
  drawn.font = TITLE_FONT;
  drawn.fillText(title, MARGIN, MARGIN);
  drawn.font = LEGEND_FONT;
  legend.forEach((line, i) => {
    const y = MARGIN + (1 + i) * LINE_HEIGHT;
    drawn.fillStyle = line.color;
    drawn.fillRect(MARGIN, y + 6, 14, 3);
    drawn.fillStyle = ink;
    drawn.fillText(line.name, MARGIN + SWATCH, y);
  });
  drawn.drawImage(canvas, MARGIN, top, canvas.clientWidth, canvas.clientHeight);
  picture.toBlob(blob => save(blob, fileName(name, "png")));
}
