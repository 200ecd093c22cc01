// Talk to the server. Every call says how long it took; trouble comes in two kinds.

/** The server could not be reached or asks for patience: try the same again later. */
export class Unreachable extends Error {
  constructor(message, retryAfter = null) {
    super(message);
    this.retryAfter = retryAfter;
  }
}

/** The server understood and said no: trying again would not help. */
export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const PATIENCE = new Set([408, 425, 429]);
const TIMEOUT_MS = 20_000;

/** Call `method path` with a JSON body; returns {data, seconds} or throws one of the above. */
export async function call(method, url, { body, token } = {}) {
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(), TIMEOUT_MS);
  const start = performance.now();
  let response;
  let text;
  try {
    response = await fetch(url, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      // An answer on its way is sent even if the page is being closed.
      keepalive: method === "POST",
      cache: "no-store",
      signal: stop.signal,
    });
    text = await response.text();
  } catch (error) {
    throw new Unreachable(String(error));
  } finally {
    clearTimeout(timer);
  }
  const seconds = (performance.now() - start) / 1000;
  let data = null;
  try {
    data = JSON.parse(text);
  } catch {
    // A proxy's own page, most likely: not our server speaking.
    if (response.ok || response.status < 500) throw new Unreachable(`not JSON (${response.status})`);
  }
  if (response.ok) return { data, seconds };
  if (response.status >= 500 || PATIENCE.has(response.status)) {
    const wait = Number(response.headers.get("Retry-After"));
    throw new Unreachable(`status ${response.status}`, wait > 0 ? wait : null);
  }
  throw new Refused(response.status, data?.error?.code ?? "unknown", data?.error?.message ?? "");
}
