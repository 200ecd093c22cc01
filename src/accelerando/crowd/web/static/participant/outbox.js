// Answers on their way to the server. An answer stays here, through reloads and lost connections, until
// the server has said that it is stored; the server stores each query's answer once, so that
// sending one again does no harm.

import { Refused } from "./api.js";

const FIRST_WAIT_MS = 1_000;
const LONGEST_WAIT_MS = 15_000;

/** Read the waiting answers; a browser that keeps nothing has an empty box. */
function read(key) {
  try {
    const found = JSON.parse(localStorage.getItem(key));
    return Array.isArray(found) ? found.filter((one) => typeof one?.body?.query === "string") : [];
  } catch {
    return [];
  }
}

export class Outbox {
  /**
   * send(entry) resolves with the server's answer or throws; `on.sent(result, entry)`, `on.refused(error, entry)`,
   * `on.waiting(true|false)` (the connection), `on.change(length)` tell the page.
   */
  constructor(key, send, on) {
    this.key = key;
    this.send = send;
    this.on = on;
    this.waiting = read(key);
    this.wait = FIRST_WAIT_MS;
    this.running = false;
    this.timer = null;
    on.change(this.waiting.length);
    addEventListener("online", () => this.flush());
    // Another tab may have sent or added some.
    addEventListener("storage", (event) => {
      if (event.key === key && !this.running) this.waiting = read(key);
    });
  }

  get length() {
    return this.waiting.length;
  }

  has(query) {
    return this.waiting.some((entry) => entry.body.query === query);
  }

  /** Keep an answer, then try to send it. */
  add(entry) {
    if (this.has(entry.body.query)) return;
    this.waiting.push(entry);
    this.#write();
    this.flush();
  }

  /** Forget everything: the participant has withdrawn. */
  clear() {
    this.waiting = [];
    this.#write();
  }

  /** Send what waits, oldest first, one at a time. */
  async flush() {
    if (this.running) return;
    this.running = true;
    clearTimeout(this.timer);
    let trouble = null;
    while (this.waiting.length > 0 && !trouble) {
      const entry = this.waiting[0];
      try {
        const result = await this.send(entry);
        this.#drop(entry);
        this.wait = FIRST_WAIT_MS;
        this.on.waiting(false);
        this.on.sent(result, entry);
      } catch (error) {
        if (error instanceof Refused) {
          this.#drop(entry);
          this.on.waiting(false);
          this.on.refused(error, entry);
        } else {
          trouble = error;
        }
      }
    }
    this.running = false;
    if (trouble) this.#later(trouble);
  }

  #later(trouble) {
    this.on.waiting(true);
    const asked = trouble.retryAfter ? trouble.retryAfter * 1000 : 0;
    // A little chance in the wait: a hundred browsers must not all come back in the same instant.
    const pause = Math.max(asked, this.wait * (0.75 + Math.random() / 2));
    this.wait = Math.min(LONGEST_WAIT_MS, this.wait * 2);
    this.timer = setTimeout(() => this.flush(), pause);
  }

  #drop(entry) {
    this.waiting = this.waiting.filter((one) => one !== entry);
    this.#write();
  }

  #write() {
    this.on.change(this.waiting.length);
    try {
      if (this.waiting.length === 0) localStorage.removeItem(this.key);
      else localStorage.setItem(this.key, JSON.stringify(this.waiting));
    } catch {
      // Private windows may refuse; then the answers wait in memory only.
    }
  }
}
