// What the page says about the visitor: the browser, so that it is known again, and the kind of device.

/** A random number that this browser keeps. It proves that a later visit is by the same browser. */
export function browser(name) {
  const key = `accelerando.browser.${name}`;
  try {
    const kept = localStorage.getItem(key);
    if (/^[0-9a-f]{32}$/.test(kept ?? "")) return kept;
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    const made = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    localStorage.setItem(key, made);
    return made;
  } catch {
    return ""; // storage is off: the cookie has to do
  }
}

/** The kind of device, by its pointer and its screen. */
export function device() {
  if (!matchMedia("(pointer: coarse)").matches) return "computer";
  return Math.min(screen.width, screen.height) < 600 ? "phone" : "tablet";
}
