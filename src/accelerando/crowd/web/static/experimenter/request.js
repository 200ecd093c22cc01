// Calls of a signed-in experimenter.

export const data = JSON.parse(document.getElementById("page-data").textContent);

/** What the server refused, with the list of problems of an experiment's files if there is one. */
export class Problem extends Error {
  constructor(status, message, problems) {
    super(message);
    this.status = status;
    this.problems = problems;
  }
}

/** Send a request; `body` is a FormData or anything JSON can say. Returns the JSON, or null if there is none. */
export async function request(method, url, body) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-CSRF-Token"] = data.csrf;
  const form = body instanceof FormData;
  if (body !== undefined && !form) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(url, { method, headers, cache: "no-store", body: body === undefined || form ? body : JSON.stringify(body) });
  } catch {
    throw new Problem(0, "The server cannot be reached. Is it still running?", []);
  }
  const text = await response.text();
  let answer = null;
  try {
    answer = text ? JSON.parse(text) : null;
  } catch {
    answer = null;
  }
  if (response.ok) return answer;
  if (response.status === 401) location.reload(); // leads to the sign-in page and back
  throw new Problem(response.status, answer?.error?.message ?? `The server answered ${response.status}.`, answer?.error?.problems ?? []);
}
