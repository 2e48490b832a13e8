
// What sisctl compare --html adds to the microscope, which stands before it in the same script.
{
  const {sequences, tokenTexts} = JSON.parse(document.getElementById("data").textContent);
  const sequence = document.getElementById("sequence");
  const direction = document.getElementById("direction");
  sequences.forEach((_, i) => sequence.add(new Option(i, i)));

  const show = () => {
    if (!sequences.length) return;
    const element = document.createElement("div");
    document.getElementById("microscope").replaceChildren(element);
    const [behaviour, current] = direction.value === "0" ? ["A", "B"] : ["B", "A"];
    renderSequence(element, sequences[sequence.value][direction.value], {
      tokenTexts,
      title: `Sequence ${sequence.value}: ${behaviour} as behaviour, ${current} as current policy`,
    });
  };
  sequence.addEventListener("change", show);
  direction.addEventListener("change", show);
  show();

  // Numbers by size, others by letters; what has no value goes last. A second click turns it round.
  const table = document.getElementById("positions");
  let sortedBy = null;
  table.querySelectorAll("th button").forEach((button, column) => button.addEventListener("click", () => {
    const sign = sortedBy === column ? -1 : 1;
    sortedBy = sign === 1 ? column : null;
    const key = row => {
      const text = row.cells[column].textContent;
      const number = Number(text);
      return text === "–" ? null : Number.isNaN(number) ? text : number;
    };
    const rows = [...table.tBodies[0].rows].map(row => [key(row), row]);
    rows.sort(([x], [y]) => x === null || y === null ? (x === null) - (y === null)
      : sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y))));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }));
}
