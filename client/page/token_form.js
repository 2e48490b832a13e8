// Asks who looks, where the server wants to know.

import {make} from "./elements.js";

const ASKS = "This server wants to know who looks. Whoever set it up has a token for you. It is kept " +
  "until you leave or reload this page.";
const UNKNOWN = "The server doesn't know this token.";
const IN_THE_CLEAR = "This server wants to know who looks, by a token. It isn't asked for here: this " +
  "page came over plain HTTP from another machine, so others on the way could read it. Open the " +
  "page over HTTPS, or through a tunnel: ssh -L 9464:localhost:9464 HOST, then http://localhost:9464.";

export class TokenForm {
  /** `take` is called with each token that is given. */
  constructor(take) {
    this.given = false;
    // What the server takes: printable ASCII without spaces.
    this.input = make("input", {type: "password", id: "token", autocomplete: "current-password",
      required: true, pattern: "[!-~]+", title: "Letters, digits and signs, without spaces"});
    this.problem = make("p", {role: "alert"});
    const form = make("form", {class: "notice token", onsubmit: event => {
      event.preventDefault();
      const token = this.input.value;
      this.input.value = "";
      this.given = true;
      take(token);
    }}, make("p", {}, ASKS), make("label", {for: "token"}, "Token"), this.input,
        make("button", {}, "Continue"), this.problem);
    // Secure is HTTPS, or this machine.
    this.element = isSecureContext ? form :
      make("form", {class: "notice token"}, make("p", {}, IN_THE_CLEAR));
  }

  /** Stands at the top of `parent` from now on. */
  ask(parent) {
    if (this.given) this.problem.textContent = UNKNOWN;
    this.given = false;
    if (this.element.isConnected) return;
    parent.prepend(this.element);
    this.input.focus();
  }

  /** No token is asked for any more. */
  close() {
    this.given = false;
    this.problem.textContent = "";
    this.element.remove();
  }
}
