// What /metrics says of one run, for what no call of the service tells.

const SAMPLE = /^(sis_(?:tokens|missing_tokens|prefix_\w+)_total)\{(.*)\} (\S+)$/gm;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

function unescaped(text) {
  return text.replace(/\\(.)/g, (_, character) => (character === "n" ? "\n" : character));
}

function labelsOf(text) {
  return Object.fromEntries([...text.matchAll(LABEL)].map(([, name, value]) =>
    [name, unescaped(value)]));
}

/**
 * Since the server started: tokens missing by reason, [{reason, share}] of all tokens, those that
 * occur; and what the accept rate is expected to be with the k most probable slots,
 * [{k, acceptRate, residualMass}]. Null of a run without metrics of its own.
 */
export function runMetrics(text, runId) {
  const samples = [...text.matchAll(SAMPLE)]
    .map(([, name, labels, value]) => ({name, labels: labelsOf(labels), value: Number(value)}))
    .filter(({labels}) => labels.run === runId);
  if (samples.length === 0) return null;
  const of = name => samples.filter(sample => sample.name === name);
  const tokens = of("sis_tokens_total").reduce((sum, {value}) => sum + value, 0);
  const missing = of("sis_missing_tokens_total").filter(({value}) => value > 0)
    .map(({labels, value}) =>
      ({reason: labels.reason.replaceAll("_", " "), share: value / tokens}));
  const at = (name, k) => of(name).find(({labels}) => labels.top_k === k)?.value;
  const curve = of("sis_prefix_tokens_total").filter(({value}) => value > 0)
    .map(({labels: {top_k: k}, value}) => ({
      k: Number(k),
      acceptRate: at("sis_prefix_expected_acceptance_total", k) / value,
      residualMass: at("sis_prefix_residual_mass_total", k) / value,
    }))
    .sort((a, b) => a.k - b.k);
  return {missing, curve};
}
