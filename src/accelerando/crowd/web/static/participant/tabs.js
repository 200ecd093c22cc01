// One study, several tabs: the newest one is in use, the others step aside until asked back.

/** Call `stepAside()` when another tab takes over; returns a function that takes over. */
export function oneTab(name, stepAside) {
  const me = `${Date.now()}-${Math.random()}`;
  if (typeof BroadcastChannel === "undefined") return () => {};
  const channel = new BroadcastChannel(`accelerando ${name}`);
  channel.addEventListener("message", (event) => {
    if (event.data !== me) stepAside();
  });
  return () => channel.postMessage(me);
}
