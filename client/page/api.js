// The service's calls that change nothing, over HTTP: protobuf's JSON of what the RPC answers.

const PATIENCE_MILLISECONDS = 8000;

/** The server answered, but not with what was asked for. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Tells of each "answer", whatever it says. */
export const answers = new EventTarget();

let token = "";  // nowhere else: it goes with the page

/** Says who asks from now on; "" is nobody. */
export function useToken(text) {
  token = text;
}

/** Throws Refused, or another Error if there is no answer. */
export async function call(method, fields = {}) {
  const query = new URLSearchParams(fields).toString();
  const answer = await fetch(`/api/${method}${query ? `?${query}` : ""}`, {
    cache: "no-store",
    // Who wants JSON isn't asked for a password by the browser, over and over.
    headers: {accept: "application/json", ...token && {authorization: `Bearer ${token}`}},
    signal: AbortSignal.timeout(PATIENCE_MILLISECONDS),
  });
  const body = await answer.json();
  answers.dispatchEvent(new Event("answer"));
  if (!answer.ok) throw new Refused(answer.status, body.message);
  return body;
}

let asked = null;  // a promise

async function askForTokenTexts() {
  const answer = await fetch("/token_texts.json", {
    signal: AbortSignal.timeout(PATIENCE_MILLISECONDS),
  });
  return answer.ok ? answer.json() : null;
}

/** The texts of tokens by id, asked for once; null of a server that has no tokenizer. */
export function tokenTexts() {
  asked ??= askForTokenTexts().catch(() => (asked = null));
  return asked;
}
