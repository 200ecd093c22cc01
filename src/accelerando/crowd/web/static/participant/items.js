// Items on the screen, and their pictures loaded before they are needed.

import { markup } from "./reading.js";

const LONG_WORDS = 60;
const MEDIA_PATIENCE_MS = 8_000;
const PAUSES_MS = [0, 500, 2_000]; // before each attempt to load a file
const PICTURE_PATIENCE_MS = 40_000; // a connection that hangs never fails by itself

const loading = new Map(); // address → promise of a Boolean; keeps the decoded pictures alive

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Without a connection nothing loads, and that says nothing about a file. */
const connected = () =>
  navigator.onLine ? Promise.resolve() : new Promise((resolve) => addEventListener("online", resolve, { once: true }));

/**
 * The address of a picture: a smaller copy if that has enough pixels for this screen, where an item is at most
 * as wide as the window and about half as wide as its longer side.
 */
function address(item) {
  const width = Math.min(innerWidth, 0.45 * Math.max(innerWidth, innerHeight)) * devicePixelRatio;
  const enough = (item.widths ?? []).find((one) => one >= width);
  return enough ? `${item.src}?width=${enough}` : item.src;
}

/** Start loading an item; resolves with true when it can be shown, and with false if it cannot be had. */
export function preload(item) {
  if (item.kind === "html") return Promise.all(within(item.html).map(preload)).then((all) => all.every(Boolean));
  if (!item.src) return Promise.resolve(true);
  if (!loading.has(item.src)) {
    const done = load(item);
    loading.set(item.src, done);
    // The next question with it tries again.
    done.then((shown) => shown || loading.delete(item.src));
  }
  return loading.get(item.src);
}

/** Start loading a picture before it is known in which question it comes. */
export const preloadPicture = (picture) => preload({ kind: "image", ...picture });

/** The pictures, films and sounds inside of HTML. */
function within(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  const kinds = { IMG: "image", VIDEO: "video", AUDIO: "audio" };
  return [...holder.content.querySelectorAll("img[src], video[src], audio[src]")].map((one) => ({
    kind: kinds[one.tagName],
    src: one.getAttribute("src"),
  }));
}

async function load(item) {
  for (const pause of PAUSES_MS) {
    await sleep(pause);
    await connected();
    if (await (item.kind === "image" ? picture(address(item)) : player(item))) return true;
  }
  return false;
}

const kept = []; // decoded pictures

async function picture(src) {
  const image = new Image();
  image.src = src;
  let timer;
  const patience = new Promise((_, reject) => {
    timer = setTimeout(() => {
      image.removeAttribute("src"); // ends the request, so that the next attempt makes a new one
      reject(new Error("too slow"));
    }, PICTURE_PATIENCE_MS);
  });
  try {
    await Promise.race([image.decode(), patience]);
  } catch {
    if (!image.complete || image.naturalWidth === 0) return false;
  } finally {
    clearTimeout(timer);
  }
  kept.push(image);
  return true;
}

function player(item) {
  const made = document.createElement(item.kind === "audio" ? "audio" : "video");
  return new Promise((resolve) => {
    made.preload = "auto";
    made.muted = true;
    made.addEventListener("canplaythrough", () => resolve(item.kind === "audio" || made.videoWidth > 0), { once: true });
    made.addEventListener("error", () => resolve(false), { once: true });
    // Some phones load films only when they are played; what then fails is noticed on the screen.
    setTimeout(() => resolve(made.error === null), MEDIA_PATIENCE_MS);
    made.src = item.src;
  });
}

/** Resolve with the numbers of the items of a query that cannot be shown. */
export async function prepare(query) {
  const items = [query.head, query.left, query.right];
  const shown = await Promise.all(items.map(preload));
  return items.filter((_, k) => !shown[k]).map((item) => item.item);
}

/** What a screen reader says for an item. */
export const spoken = (item) => item.alt || item.text;

/** The element that shows an item; `broken()` is called if a part of it cannot be shown after all. */
export function show(item, broken) {
  const box = document.createElement("div");
  box.className = "item";
  // Errors of pictures do not bubble, but they can be captured.
  box.addEventListener("error", broken, { capture: true, once: true });
  box.append(content(item));
  return box;
}

function content(item) {
  if (item.kind === "image") {
    const picture = document.createElement("img");
    picture.alt = spoken(item);
    picture.draggable = false;
    picture.src = address(item);
    return picture;
  }
  if (item.kind === "video") {
    const film = document.createElement("video");
    Object.assign(film, { src: item.src, muted: true, loop: true, autoplay: true, playsInline: true });
    film.setAttribute("aria-label", spoken(item));
    return film;
  }
  if (item.kind === "audio") {
    const sound = document.createElement("audio");
    Object.assign(sound, { src: item.src, controls: true, preload: "auto" });
    sound.setAttribute("aria-label", spoken(item));
    return sound;
  }
  const words = document.createElement("div");
  words.className = "words";
  words.dir = "auto";
  if (item.kind === "html") markup(words, item.html);
  else words.textContent = item.text;
  if (words.textContent.length > LONG_WORDS) words.classList.add("long");
  return words;
}
