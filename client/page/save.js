// Files that the browser saves: a chart's picture, and its values.

const MARGIN = 12;
const LINE_HEIGHT = 18;

function save(blob, name) {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address));
}

/** A name of a file, of any words. */
export function fileName(words, ending) {
  return `${words.toLowerCase().replace(/[^a-z0-9._-]+/g, "_")}.${ending}`;
}

/** By RFC 4180; what isn't there is empty. */
export function csvOf({columns, rows}) {
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

/** The chart with its title and legend [{name, color}], which are no part of its canvas. */
export function savePng(name, canvas, title, legend, {ink, paper}) {
  const scale = canvas.width / canvas.clientWidth;
  const picture = document.createElement("canvas");
  picture.width = canvas.width + 2 * MARGIN * scale;
  picture.height = canvas.height + (2 * MARGIN + 2 * LINE_HEIGHT) * scale;
  const drawn = picture.getContext("2d");
  drawn.fillStyle = paper;
  drawn.fillRect(0, 0, picture.width, picture.height);
  drawn.scale(scale, scale);
  drawn.textBaseline = "top";
  drawn.fillStyle = ink;
  drawn.font = "600 14px system-ui, sans-serif";
  drawn.fillText(title, MARGIN, MARGIN);
  drawn.font = "12px system-ui, sans-serif";
  let x = MARGIN;
  for (const {name: words, color} of legend) {
    drawn.fillStyle = color;
    drawn.fillRect(x, MARGIN + LINE_HEIGHT + 6, 14, 3);
    drawn.fillStyle = ink;
    drawn.fillText(words, x + 18, MARGIN + LINE_HEIGHT);
    x += 32 + drawn.measureText(words).width;
  }
  drawn.drawImage(canvas, MARGIN, MARGIN + 2 * LINE_HEIGHT, canvas.clientWidth, canvas.clientHeight);
  picture.toBlob(blob => save(blob, fileName(name, "png")));
}
