// Files that the browser saves: a chart's picture, its values, and the records of a run.

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
