// Items on the screen, and their pictures loaded before they are needed.

const LONG_WORDS = 60;
const MEDIA_PATIENCE_MS = 8_000;

const loading = new Map(); // address → promise; keeps the decoded pictures alive

/** Start loading a picture, film or sound; resolves when it can be shown, also if it cannot be had. */
export function preload(item) {
  if (!item.src) return Promise.resolve();
  if (!loading.has(item.src)) loading.set(item.src, load(item));
  return loading.get(item.src);
}

/** Start loading a picture whose address is all that is known. */
export const preloadPicture = (src) => preload({ kind: "image", src });

function load(item) {
  if (item.kind === "image") {
    const picture = new Image();
    picture.src = item.src;
    return picture.decode().then(
      () => picture,
      () => {
        loading.delete(item.src); // the next question with it tries again
      },
    );
  }
  const player = document.createElement(item.kind === "audio" ? "audio" : "video");
  return new Promise((resolve) => {
    const done = () => resolve(player);
    player.preload = "auto";
    player.muted = true;
    player.addEventListener("canplaythrough", done, { once: true });
    player.addEventListener("error", done, { once: true });
    setTimeout(done, MEDIA_PATIENCE_MS); // some phones load films only when they are played
    player.src = item.src;
  });
}

/** Resolve when all three items of a query can be shown. */
export const prepare = (query) => Promise.all([query.head, query.left, query.right].map(preload));

/** What a screen reader says for an item. */
export const spoken = (item) => item.alt || item.text;

/** The element that shows an item. */
export function show(item) {
  const box = document.createElement("div");
  box.className = "item";
  box.append(content(item));
  return box;
}

function content(item) {
  if (item.kind === "image") {
    const picture = document.createElement("img");
    picture.alt = spoken(item);
    picture.draggable = false;
    picture.src = item.src;
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
  if (item.kind === "html") words.innerHTML = item.html; // sanitized by the server
  else words.textContent = item.text;
  if (words.textContent.length > LONG_WORDS) words.classList.add("long");
  return words;
}
