// The last page: debrief, completion code, the way back to where the participant came from.

import { button, fill, make, prose } from "./reading.js";

/**
 * Fill in {NAMES} that the server does not store: with pseudonyms, only the URL of this page contains
 * the participant's ID, which the redirect may need.
 */
function complete(template, write) {
  const parameters = new URLSearchParams(location.search);
  return template?.replace(/\{(\w+)\}/g, (_, name) => write(parameters.get(name) ?? ""));
}

/** What the last page says, as a list of elements. */
export function ending(texts, { outcome, completion, participant }) {
  const code = complete(completion?.code, String);
  const redirect = complete(completion?.redirect, encodeURIComponent);
  const content = [completion?.text_html ? prose(completion.text_html) : make("p", "", texts[outcome] ?? "")];
  if (code) content.push(make("div", "", make("p", "muted", texts.code_label), codeBox(texts, code)));
  if (/^https?:\/\//.test(redirect ?? "")) {
    const link = make("a", "button primary", texts.redirect);
    link.href = redirect;
    link.rel = "noreferrer";
    content.push(make("p", "actions", link));
  }
  if (outcome === "done" && participant) content.push(make("p", "muted small participant-id", fill(texts.participant_id, { participant })));
  return content;
}

function codeBox(texts, code) {
  const box = make("code", "code", code);
  const copy = button(texts.copy, async () => {
    try {
      await navigator.clipboard.writeText(code);
    } catch {
      getSelection().selectAllChildren(box); // plain http: at least it is marked
      document.execCommand("copy");
    }
    copy.textContent = texts.copied;
  }, "button small");
  return make("div", "code-row", box, copy);
}
