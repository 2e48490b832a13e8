// Read-only calls of the service through `sisctl web`, with responses in protobuf's JSON.

const PATIENCE_MILLISECONDS = 8000;

/** Dispatches an "answer" for each answer; `detail` lists the addresses of servers that did not contribute. */
export const answers = new EventTarget();

/**
 * Returns the Response of a call, whose body may be a file. `fields` are the request's, such as "run.run_id".
 * Throws an Error, with `status` if there is a response.
 */
export async function ask(method, fields, options = {}) {
  const query = new URLSearchParams(fields).toString();
  const answer = await fetch(`/api/${method}${query ? `?${query}` : ""}`, {cache: "no-store", ...options});
  if (answer.ok) return answer;
  const {message} = await answer.json();
  answers.dispatchEvent(new CustomEvent("answer", {detail: []}));
  throw Object.assign(new Error(message), {status: answer.status});
}

/** Returns the JSON that a call returns. */
export async function call(method, fields = {}, patience = PATIENCE_MILLISECONDS) {
  const answer = await ask(method, fields, {signal: AbortSignal.timeout(patience)});
  const body = await answer.json();
  const silent = body.servers?.filter(({error}) => error).map(({address}) => address);
  answers.dispatchEvent(new CustomEvent("answer", {detail: silent ?? body.unanswered ?? []}));
  return body;
}

/** Returns the JSON that a call returns, or null if the requested object does not exist. */
export async function callIfThere(method, fields) {
  try {
    return await call(method, fields);
  } catch (error) {
    if (error.status !== 404) throw error;
    return null;
  }
}

let asked = null;  // a promise

/** Returns the texts of tokens by id, requested once; null without a tokenizer. */
export function tokenTexts() {
  asked ??= fetch("/token_texts.json", {signal: AbortSignal.timeout(PATIENCE_MILLISECONDS)})
      .then(answer => answer.json()).catch(() => (asked = null));
  return asked;
}
