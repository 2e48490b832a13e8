// State of each server, and its activity in the last half hour.

import {call} from "./api.js";
import {LinePanel} from "./charts.js";
import {figures, make} from "./elements.js";
import {bytes, clock, count, duration, perSecond, share, timeOfAxis} from "./format.js";
import {ratesBetween} from "./step_values.js";

const TIMES = {namesTitle: "Time", nameOf: clock, empty: "The first samples are taken every 5 s."};

const RATES = [
  {title: "Tokens recorded", unit: "per second", format: perSecond,
    lines: [{name: "recorded", of: rate => rate.ingestedPositions}],
    note: "What workers append, re-sent tokens not counted. 0 while rollouts rest."},
  {title: "Arrays received", unit: "bytes per second", binary: true,
    format: value => `${bytes(value)}/s`,
    lines: [{name: "received", of: rate => rate.ingestedBytes}],
    note: "Bytes of accepted blocks."},
  {title: "Tokens evaluated", unit: "per second", format: perSecond,
    lines: [{name: "evaluated", of: rate => rate.evaluatedPositions}],
    note: "Once per draw, missing ones included. Bursts, one per training step."},
  {title: "Calls", unit: "per second", format: perSecond,
    lines: [{name: "ended", of: rate => rate.rpcs}, {name: "failed", of: rate => rate.failedRpcs}],
    note: "Those of this page are among them. A few failed ones are normal when workers stop."},
  {title: "Sequences dropped", unit: "per second", format: perSecond,
    lines: [{name: "dropped", of: rate => rate.droppedSequences}],
    note: "Released, evicted, expired or stale. /metrics tells the reasons apart."},
];

// Splits a server's description into the name, and the rest after a comma or in brackets.
function described(name, words) {
  const [, value, note] = /^([^,(]*)[,(]?(.*?)\)?$/.exec(words);
  return {name, value: value.trim(), note: note.trim()};
}

// `times` are seconds since 1970.
function showTimes(panel, times, series) {
  const ticks = {callback: i => timeOfAxis(times[i], times.at(-1) - times[0])};
  panel.show({names: times, series, axis: {ticks}});
}

class Server {
  constructor() {
    this.figures = make("div", {}, make("p", {class: "words"}, "Loading…"));
    this.cache = new LinePanel({title: "Cache", unit: "bytes", binary: true, format: bytes, ...TIMES,
      note: "Recorded sequences. Near the budget, what was read and not used for longest is evicted."});
    this.rates = RATES.map(panel => new LinePanel({...panel, ...TIMES}));
    this.panels = make("div", {}, make("p", {class: "muted"}, "The last half hour:"),
        make("div", {class: "panels"}, this.cache.element, this.rates.map(panel => panel.element)));
  }

  show(server) {
    const {history} = server;
    const [held, budget] = [Number(server.cacheBytes), Number(server.cacheBudgetBytes)];
    this.figures.replaceChildren(figures([
      {name: "State", value: server.ready ? "Serving" : "Not serving", note: `version ${server.version}`},
      {name: "Running for", value: duration(history.at(-1).at - server.startedAt),
        note: `since ${clock(server.startedAt)}`},
      described("Backend", server.backend),
      described("Store", server.store),
      {name: "Cache", value: share(held / budget), note: `${bytes(held)} of ${bytes(budget)}`},
    ]));
    showTimes(this.cache, history.map(sample => sample.at), [
      {name: "held", values: history.map(sample => Number(sample.cacheBytes))},
      {name: "budget", dashed: true, values: history.map(() => budget)},
    ]);
    const rates =
      history.slice(1).map((sample, i) => ratesBetween(history[i], sample)).filter(Boolean);
    for (const panel of this.rates) {
      showTimes(panel, rates.map(rate => rate.at), panel.lines.map(line => ({...line, values: rates.map(line.of)})));
    }
  }
}

/** All servers, one after the other. */
export class ServerView {
  title = "Servers";

  constructor() {
    this.element = make("div", {}, make("p", {class: "words"}, "Loading…"));
    this.servers = new Map();  // by address
  }

  async load() {
    const {servers} = await call("GetServer");
    if (this.servers.size === 0) {
      this.element.replaceChildren(make("h1", {}, "Servers"), ...servers.flatMap(({address}) => {
        const server = new Server();
        this.servers.set(address, server);
        return [make("h2", {}, address), server.figures, server.panels];
      }));
    }
    for (const {address, error, ...server} of servers) {
      if (error === undefined) this.servers.get(address).show(server);
    }
  }
}
