// Shows the view of the address (#/, #/run/RUN, #/run/RUN/SEQUENCE/ATTEMPT/POSITION, #/server, with
// settings after a question mark), keeps it up to date, and shows whether the server answers.

import {answers} from "./api.js";
import {removeCharts} from "./charts.js";
import {make} from "./elements.js";
import {clock} from "./format.js";
import {RunView} from "./run_view.js";
import {RunsView} from "./runs_view.js";
import {SequenceView} from "./sequence_view.js";
import {ServerView} from "./server_view.js";

const PERIOD_MILLISECONDS = 2000;
// A server without an answer for this time is called silent until it answers; with the period, 3 s after it stopped.
const SLOW_MILLISECONDS = 1000;

const content = document.getElementById("content");
const status = document.getElementById("status");
// Announced once; the time in `status` would be announced repeatedly.
const notice = make("p", {class: "notice", role: "status"});
let view = null;
let turn = 0;  // the number of the last update; one that isn't the last is of no interest any more
let timer = null;  // of the next one
let answeredAt = null;  // when the server answered last, seconds since 1970

function viewOf(hash) {
  const [path, settings] = hash.split("?");
  let names = [];
  try {
    names = path.replace(/^#?\/?/, "").split("/").map(decodeURIComponent);
  } catch {}  // not what encodeURIComponent writes
  const [place, run, sequence, attempt = "0", position] = names;
  if (place === "server") return new ServerView();
  if (place !== "run" || run === undefined) return new RunsView();
  if (sequence === undefined) return new RunView(run, new URLSearchParams(settings));
  return new SequenceView(run, sequence, attempt, /^\d+$/.test(position) ? Number(position) : null);
}

function say(state, words) {
  status.dataset.state = state;
  status.textContent = words;
}

function notify(words) {
  if (notice.textContent !== words) notice.textContent = words;
  if (words === "") notice.remove();
  else if (!notice.isConnected) content.prepend(notice);
}

/** `silent` has the addresses of unreachable servers, while others answered. */
function answered(silent) {
  answeredAt = Date.now() / 1000;
  say("live", `Live, updated ${clock(answeredAt)}`);
  notify(silent.length === 0 ? "" : `No answer from ${silent.join(", ")}. You see what the other servers hold.`);
  content.classList.remove("old");
}

/** `error` is null while an answer may still come. */
function failed(error) {
  const since = answeredAt === null ? "" : ` since ${clock(answeredAt)}`;
  const refused = error?.status && error.status !== 503;
  say("silent", `${refused ? "Refused" : "No answer"}${since}`);
  const who = error === null || error.status ? "The server" : "sisctl web, which serves this page,";
  const what = refused ? `The server can't answer this: ${error.message}.` : `${who} gives no answer${since}.`;
  const seen = answeredAt === null ? "" : "What you see is as of then. ";
  notify(`${what} ${seen}This page tries again every ${PERIOD_MILLISECONDS / 1000} seconds.`);
  content.classList.add("old");
}

async function update() {
  clearTimeout(timer);
  const mine = ++turn;
  if (!document.hidden) {
    let slow = null;
    const silent = new Set();
    // Each answer restarts the time, because a view may make several requests in turn.
    const listen = event => {
      event?.detail.forEach(address => silent.add(address));
      clearTimeout(slow);
      slow = setTimeout(() => { if (mine === turn) failed(null); }, SLOW_MILLISECONDS);
    };
    listen();
    answers.addEventListener("answer", listen);
    try {
      await view.load();
      if (mine === turn) answered([...silent].sort());
    } catch (error) {
      if (mine !== turn) return;
      failed(error);
    } finally {
      answers.removeEventListener("answer", listen);
      clearTimeout(slow);
    }
  }
  if (mine === turn) timer = setTimeout(update, PERIOD_MILLISECONDS);
}

function open() {
  removeCharts();
  view = viewOf(location.hash);
  document.title = `${view.title} – SIS ratio service`;
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = (link.hash === "#/server") === view instanceof ServerView;
    link.ariaCurrent = isHere ? "page" : null;
  }
  content.replaceChildren(view.element);
  content.classList.remove("old");
  update();
}

// The default action would replace the view in the address.
document.querySelector(".skip").addEventListener("click", event => {
  event.preventDefault();
  content.focus();
});
addEventListener("hashchange", open);
// A view sends this when it no longer shows the reader's choice.
content.addEventListener("outdated", update);
document.addEventListener("visibilitychange", () => { if (!document.hidden) update(); });
open();
