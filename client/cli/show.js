
// What sisctl show --html adds to the microscope, which stands before it in the same script: the
// overview, and below it the sequence that was chosen.

const nameOf = ({id, attempt}) => JSON.stringify([id, Number(attempt ?? 0)]);
const kept = new Map(data.sequences.map(each => [nameOf(each.sequence), each.response]));

function openSequence(sequence, position = null) {
  const response = kept.get(nameOf(sequence));
  if (!response) return;
  const element = document.getElementById("sequence");
  renderSequence(element, response,
      {tokenTexts: data.tokenTexts, title: sequenceName(sequence), position});
  if (data.overview) element.scrollIntoView();
}

if (data.overview) {
  renderRun(document.getElementById("run"), data.overview,
      {tokenTexts: data.tokenTexts, onOpen: openSequence});
} else {
  openSequence(data.sequences[0].sequence);
}
