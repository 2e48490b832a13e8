// Shows sequences, tokens and positions that stand out in a run: InspectRun's response in protobuf's JSON.

import {bar, make, shade, table, tokenLabel} from "./elements.js";
import {grouped, number, share, signed} from "./format.js";
import {notKept} from "./positions.js";
import {totalsValues} from "./step_values.js";

const sequenceName = ({sequence: {id, attempt}}) => (attempt ? `${id} (attempt ${attempt})` : id);

const SEQUENCE_COLUMNS = [
  {title: "sequence", left: true, cell: sequenceName},
  {title: "draw", cell: ({draw}) => draw},
  {title: "positions", cell: ({positions}) => grouped(positions)},
  {title: "accepted", cell: ({totals}) => share(totalsValues(totals).acceptRate)},
  {title: "D per token", cell: ({totals}) => number(totalsValues(totals).d)},
  {title: "D_SIS per token", cell: ({totals}) => number(totalsValues(totals).dSis)},
  {title: "missing", cell: ({totals}) => grouped(totals.missing)},
  {title: "not kept", left: true, cell: notKept},
];

// Bounds of the share of a token's occurrences that were rejected: each count is too high by at most maxError.
function rejectedShare(token) {
  const [accepted, rejected, maxError] = [token.accepted, token.rejected, token.maxError].map(Number);
  const of = (part, rest) => (part + rest ? part / (part + rest) : 0);
  return {
    least: of(Math.max(0, rejected - maxError), accepted),
    said: of(rejected, accepted),
    most: of(rejected, Math.max(0, accepted - maxError)),
  };
}

/**
 * Draws the response of InspectRun into `element`: the sequences that can be opened, the tokens that are
 * accepted or rejected more often than others, and the largest |log w|. Calls `onOpen(sequence, position)`
 * when a sequence is chosen, with its SequenceRef, and the position to open or null.
 */
export function renderRun(element, {sequences, deviations, tokens}, {tokenTexts, onOpen}) {
  const opens = ({sequence, position = null}) => {
    const open = () => onOpen(sequence, position);
    return {class: "opens", tabindex: 0, role: "link", onclick: open, onkeydown: event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      open();
    }};
  };
  const section = (title, said, rows, columns, attributes) => [make("h3", {}, title),
    make("p", {class: "muted"}, rows.length ? said : "Nothing yet."),
    // tabindex: so that the keyboard can scroll it.
    rows.length ? make("div", {class: "scroll rows", tabindex: 0},
        table(title, columns, rows, attributes)) : null];
  const token = {title: "token", left: true, cell: ({tokenId}) => tokenLabel(tokenId, tokenTexts)};
  const deviationColumns = [
    {title: "sequence", left: true, cell: sequenceName},
    {title: "position", cell: ({position}) => position},
    token,
    {title: "draw", cell: ({draw}) => draw},
    {title: "log w", cell: ({logRatio}) =>
      make("span", {class: "tint", style: {"background-color": shade(logRatio / 10, true)}}, signed(Number(logRatio)))},
  ];
  const tokenColumns = [
    token,
    {title: "accepted", cell: ({accepted}) => grouped(accepted)},
    {title: "rejected", cell: ({rejected}) => grouped(rejected)},
    {title: "too high by at most", cell: ({maxError}) => grouped(maxError)},
    {title: "rejected of these", cell: counts => {
      const {least, said, most} = rejectedShare(counts);
      return [bar(said), least === most ? share(said) : `${share(least)} to ${share(most)}`];
    }},
  ];
  const sum = name => sequences.reduce((all, {totals}) => all + Number(totals[name]), 0);
  const usual = sum("rejected") / Math.max(1, sum("accepted") + sum("rejected"));
  const said = `Of the tokens of these sequences ${share(usual)} are rejected. The counts are kept ` +
      "in bounded memory, so each may be too high, by no more than is said.";
  const standsOut = counts => rejectedShare(counts).said > usual;
  element.replaceChildren(make("section", {class: "microscope"},
      section("Sequences", "A sample, chosen by a hash of the id: the last evaluated values of these " +
          "are kept, as far as --inspected_bytes has room.", sequences, SEQUENCE_COLUMNS, opens),
      section("Largest |log w|", "Where the two policies differ most.", deviations, deviationColumns, opens),
      // Tokens that stand out most come first.
      section("Tokens over-represented among the rejected", said, tokens.filter(standsOut), tokenColumns),
      section("Tokens over-represented among the accepted", said,
          tokens.filter(counts => !standsOut(counts)).reverse(), tokenColumns)));
}
