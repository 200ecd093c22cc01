// Pages of text: consent, instructions, breaks, the end. Markup comes sanitized from the server.

/** An element with a class and children; strings become text. */
export function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** A button that acts once per press. */
export function button(text, act, className = "button") {
  const made = make("button", className, text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

/** Fill an element with markup that the server has sanitized. */
export function markup(box, text) {
  box.innerHTML = text ?? "";
  // The page's policy forbids style attributes; the server has checked each of these declarations.
  for (const element of box.querySelectorAll("[data-style]")) {
    for (const declaration of element.dataset.style.split(";")) {
      const [name, value] = declaration.split(":");
      if (value) element.style.setProperty(name.trim(), value.trim());
    }
  }
}

/** Sanitized markup as an element. */
export function prose(text) {
  const box = make("div", "prose");
  markup(box, text);
  return box;
}

/** Show a page of text on the stage, and start reading it at its title. */
export function reading(stage, title, ...content) {
  const heading = make("h1", "", title);
  heading.tabIndex = -1;
  stage.replaceChildren(make("section", "reading card", heading, ...content));
  scrollTo(0, 0);
  heading.focus({ preventScroll: true });
}

/** One line in the middle of the stage. */
export function waiting(stage, sentence) {
  stage.replaceChildren(make("p", "waiting", sentence));
}

/** Ask before something that cannot be undone; resolves with true or false. */
export function confirm(title, text, yes, no) {
  return new Promise((resolve) => {
    const dialog = make("dialog", "card");
    const close = (value) => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    const heading = make("h2", "", title);
    heading.id = "dialog-title";
    dialog.setAttribute("aria-labelledby", heading.id);
    dialog.append(
      heading,
      make("p", "", text),
      make("div", "actions", button(yes, () => close(true), "button danger"), button(no, () => close(false))),
    );
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      close(false);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Fill {names} in a text. */
export function fill(text, values) {
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}
