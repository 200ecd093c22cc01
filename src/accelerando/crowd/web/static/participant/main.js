// The participant's way through a study: consent, instructions, practice, questions, breaks, the end.

import { call, Refused, Unreachable } from "./api.js";
import { ending } from "./ending.js";
import { preload, preloadPicture, spoken } from "./items.js";
import { Outbox } from "./outbox.js";
import { Question } from "./question.js";
import { button, confirm, fill, make, prose, reading, waiting } from "./reading.js";
import { oneTab } from "./tabs.js";
import { browser, device } from "./visitor.js";

const data = JSON.parse(document.getElementById("page-data").textContent);
const { texts } = data;
const stage = document.getElementById("stage");
const count = document.getElementById("count");
const bar = document.getElementById("progress");
const banner = document.getElementById("connection");
const announcement = document.getElementById("announcement");

const RETRY_MS = 2_000;
const PAUSED_MS = 5_000;
const MOST_PARAMETERS = 50;
const MOST_MISSING = 3; // queries in a row whose items did not load
const SLOW_NETWORK = 0.4; // seconds; beyond it one more query is kept ready

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const state = {
  token: null,
  session: null,
  ready: [], // queries that came with the last answers, not yet asked
  done: new Set(), // ids answered on this page
  current: null,
  reading: false, // a page of text is on; questions wait
  started: false, // the instructions have been read
  fetching: false,
  aside: false,
  latency: null, // of the last request, seconds
  lastKind: null,
  breakDue: false,
  missing: 0, // queries in a row whose items did not load
};

const outbox = new Outbox(`accelerando.outbox.${data.name}`, send, {
  sent: ({ data: session, seconds }, entry) => {
    state.latency = seconds;
    if (entry.token === state.token) absorb(session, seconds);
    advance();
  },
  refused: (error, entry) => {
    if (entry.token !== state.token) return;
    if (error.code === "no_participant") state.token = null; // let the cookie or the link say who it is
    if (error.code === "no_participant" || error.code === "consent_required") begin();
    else refill();
  },
  waiting: (lost) => tellConnection(lost),
  change: (length) => {
    document.body.dataset.waiting = length; // tests and custom styles look here
  },
});

const question = new Question(
  stage,
  { texts, slots: data.slots, skip: data.skip, keyboard: data.keyboard, foot: withdrawal() },
  choose,
  replace,
);

const takeOver = oneTab(data.name, () => {
  state.aside = true;
  question.leave();
  showCount(false);
  reading(stage, data.title, make("p", "", texts.other_tab), button(texts.use_this_tab, () => location.reload(), "button primary"));
});

addEventListener("beforeunload", (event) => {
  if (outbox.length > 0 && !state.session?.finished) event.preventDefault();
});
addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload(); // back to a page from the browser's memory: ask the server
});

takeOver();
outbox.flush();
begin();

// --- talking to the server -----------------------------------------------------------------------

async function send(entry) {
  try {
    return await call("POST", `${data.api}/answers`, { body: { ...entry.body, count: wanted() }, token: entry.token });
  } catch (error) {
    // A pause refuses nobody's answer for good.
    if (error instanceof Refused && error.code === "paused") throw new Unreachable("paused", PAUSED_MS / 1000);
    throw error;
  }
}

/** Call until the server is there; what it refuses is shown. Returns null then. */
async function insist(method, path, body) {
  for (;;) {
    try {
      const { data: session, seconds } = await call(method, `${data.api}${path}`, { body, token: state.token });
      tellConnection(outbox.length > 0 && !banner.hidden);
      state.latency = seconds;
      return absorb(session, seconds);
    } catch (error) {
      if (error instanceof Refused) return refuse(error);
      tellConnection(true);
      await sleep(error.retryAfter ? error.retryAfter * 1000 : RETRY_MS);
    }
  }
}

function refuse(error) {
  if (error.code === "no_participant" && state.token) {
    state.token = null;
    begin();
    return null;
  }
  if (error.code === "paused") {
    pause();
    return null;
  }
  state.reading = true;
  question.leave();
  reading(stage, data.title, make("p", "", texts[error.code] ?? (error.message || texts.error)));
  return null;
}

const wanted = () => (state.latency > SLOW_NETWORK ? 3 : 2);

/** Take in what the server said: where we are and what comes next. */
function absorb(session, seconds) {
  state.session = session;
  state.token = session.token ?? state.token;
  const known = new Set(state.ready.map((query) => query.id));
  for (const query of session.queries ?? []) {
    if (known.has(query.id) || state.done.has(query.id) || outbox.has(query.id) || state.current?.id === query.id) continue;
    state.ready.push({ ...query, latency: seconds });
    [query.head, query.left, query.right].forEach(preload);
  }
  return session;
}

async function refill() {
  if (state.fetching || state.aside) return;
  state.fetching = true;
  const session = await insist("POST", "/queries", { count: wanted() });
  state.fetching = false;
  if (session) advance();
}

// --- the way ----------------------------------------------------------------------------------------

async function begin() {
  // The server limits the number and length of parameters; a link with more still works.
  const found = [...new URLSearchParams(location.search)].slice(0, MOST_PARAMETERS);
  const parameters = Object.fromEntries(found.map(([name, value]) => [name.slice(0, 100), value.slice(0, 1000)]));
  const session = await insist("POST", "/participants", { parameters, device: device(), browser: browser(data.name) });
  if (!session || state.aside) return;
  (data.preload ?? []).forEach(preloadPicture);
  if (session.finished) finish();
  else if (session.consent_required) consent();
  else if (session.outcome === "paused") pause();
  else if (hasStarted(session)) ask();
  else instructions();
}

/** Whether somebody has read the instructions before, in this tab or another one. */
function hasStarted({ progress, practice_left: practiceLeft }) {
  const mine = outbox.waiting.some((entry) => entry.token === state.token);
  return state.started || mine || progress.answered + progress.skipped > 0 || practiceLeft < data.practice;
}

function consent() {
  state.reading = true;
  showCount(false);
  const decide = async (agreed) => {
    waiting(stage, texts.loading);
    const session = await insist("POST", "/consent", { agreed });
    if (!session || state.aside) return;
    if (session.finished) finish();
    else instructions();
  };
  reading(
    stage,
    texts.consent_title,
    prose(data.consent_html),
    make("div", "actions", button(texts.agree, () => decide(true), "button primary"), button(texts.disagree, () => decide(false))),
  );
}

function instructions() {
  state.reading = true;
  showCount(false);
  reading(stage, texts.instructions_title, prose(data.instructions_html), make("div", "actions", button(texts.start, ask, "button primary")), withdrawal());
  if (state.ready.length === 0) refill(); // while they read
}

/** Leave the pages of text and continue with questions. */
function ask() {
  state.reading = false;
  state.started = true;
  waiting(stage, texts.loading);
  advance();
}

/** Do whatever comes next; harmless to call at any time. */
function advance() {
  const { session } = state;
  showCount(!state.reading);
  if (state.aside || state.reading || !session) return;
  if (session.finished && outbox.length === 0) {
    finish(); // also in the middle of a question: the study may be full, or the checks failed
    return;
  }
  if (state.current) return;
  if (session.outcome === "paused" && state.ready.length === 0) {
    pause();
    return;
  }
  if (state.breakDue && outbox.length + state.ready.length > 0) {
    rest();
    return;
  }
  const next = state.ready.shift();
  if (!next) {
    question.leave();
    idle();
    if (outbox.length === 0 && !session.finished) refill();
    return;
  }
  if (state.lastKind === "practice" && next.kind !== "practice") {
    state.ready.unshift(next);
    practiceOver();
    return;
  }
  present(next);
}

async function present(query) {
  state.current = query;
  state.lastKind = query.kind;
  showCount(true);
  await question.ask(query);
  if (state.current !== query || state.done.has(query.id)) return;
  announcement.textContent = `${count.textContent}. ${texts.target}: ${spoken(query.head)}. ${texts.left}: ${spoken(query.left)}. ${texts.right}: ${spoken(query.right)}.`;
  if (state.ready.length === 0 && outbox.length === 0 && !state.session.finished) refill();
}

/** Ask for another query in place of one whose items did not load; nothing about it is stored. */
async function replace(query, failed) {
  state.done.add(query.id);
  state.missing += 1;
  waiting(stage, texts.loading);
  const session = await insist("POST", "/queries/replace", { query: query.id, failed, count: wanted() });
  if (state.current === query) state.current = null;
  if (!session || state.aside) return;
  if (state.missing >= MOST_MISSING && !session.finished) unloadable();
  else advance();
}

function unloadable() {
  state.reading = true;
  state.missing = 0;
  showCount(false);
  reading(stage, texts.media_title, make("p", "prose", texts.media_missing), make("div", "actions", button(texts.try_again, ask, "button primary")), withdrawal());
}

async function choose(query, side, seconds) {
  state.missing = 0;
  const winner = side ? query[side].item : null;
  state.done.add(query.id);
  outbox.add({
    token: state.token,
    kind: query.kind,
    body: { query: query.id, winner, response_time: round(seconds), network_latency: round(query.latency) },
  });
  if (query.kind === "query" && side) {
    const { every } = data.breaks;
    state.breakDue = Boolean(every) && shownAnswers() % every === 0 && shownAnswers() !== data.total;
  }
  showCount(true);
  if (query.kind === "practice" && query.feedback && side) await feedback(winner === query.feedback.winner);
  else await sleep(data.pause_between);
  if (state.current !== query) return;
  state.current = null;
  advance();
}

function feedback(right) {
  return new Promise((resolve) => {
    const go = button(texts.continue, () => {
      question.below.querySelector(".feedback-row").remove();
      resolve();
    }, "button primary small");
    const line = make("p", `feedback notice ${right ? "good" : "warn"}`, right ? texts.practice_right : texts.practice_wrong);
    line.setAttribute("role", "status");
    question.below.append(make("div", "actions feedback-row", line, go));
    go.focus();
  });
}

function practiceOver() {
  state.reading = true;
  state.lastKind = null;
  question.leave();
  showCount(false);
  reading(stage, texts.practice_title, make("p", "prose", texts.practice_done), make("div", "actions", button(texts.start, ask, "button primary")), withdrawal());
}

function rest() {
  state.reading = true;
  state.breakDue = false;
  question.leave();
  const go = button(texts.break_continue, ask, "button primary");
  const note = make("p", "muted");
  reading(stage, texts.break_title, prose(data.breaks.text_html), note, make("div", "actions", go), withdrawal());
  let left = data.breaks.seconds ?? 0;
  const tick = () => {
    go.disabled = left > 0;
    note.textContent = left > 0 ? fill(texts.break_wait, { seconds: left }) : "";
    if (left > 0) setTimeout(tick, 1000);
    left -= 1;
  };
  tick();
}

async function pause() {
  question.leave();
  showCount(false);
  waiting(stage, texts.paused);
  await sleep(PAUSED_MS);
  if (state.started) refill();
  else begin();
}

async function withdraw() {
  if (!(await confirm(texts.withdraw_title, texts.withdraw_confirm, texts.withdraw, texts.cancel))) return;
  question.leave();
  state.reading = true;
  outbox.clear();
  waiting(stage, texts.loading);
  const session = await insist("POST", "/withdraw", {});
  if (session) finish();
}

function finish() {
  const { session } = state;
  state.reading = true;
  state.current = null;
  question.leave();
  showCount(false);
  tellConnection(false);
  const content = ending(texts, session);
  if (session.outcome === "done") content.push(withdrawal());
  reading(stage, texts.finished_title, ...content);
}

// --- small things -----------------------------------------------------------------------------------

function withdrawal() {
  if (!data.withdraw) return null;
  return make("p", "foot", button(texts.withdraw, withdraw, ""));
}

/** Answers as the participant counts them: stored ones and those on their way. */
function shownAnswers() {
  const onTheWay = outbox.waiting.filter((entry) => entry.token === state.token && entry.kind === "query" && entry.body.winner !== null);
  return state.session.progress.answered + onTheWay.length;
}

function showCount(visible) {
  const show = visible && state.session && !state.session.finished;
  count.hidden = !show;
  if (!show) return;
  const { total } = state.session.progress;
  const answered = shownAnswers();
  const practice = state.current?.kind === "practice";
  const words = fill(total ? texts.progress : texts.progress_open, { answered, total });
  count.replaceChildren(...(practice ? [make("span", "practice-mark", texts.practice_title)] : [words]));
  bar.value = total ? Math.min(1, answered / total) : 0;
}

function tellConnection(lost) {
  banner.hidden = !lost;
  if (lost) banner.textContent = texts.waiting;
  if (!state.reading && outbox.length > 0 && stage.querySelector(".waiting")) idle();
}

/** While there is no question to show: say what the page waits for. */
function idle() {
  const sending = banner.hidden ? texts.sending : `${texts.sending} ${texts.offline_saved}`;
  waiting(stage, outbox.length > 0 ? sending : texts.loading);
}

function round(seconds) {
  return seconds === null || seconds === undefined ? null : Math.round(seconds * 10_000) / 10_000;
}
