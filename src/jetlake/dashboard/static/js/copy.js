// Copying to the clipboard, with a word that it worked.

import { make } from "./elements.js";

async function put(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Pages that did not come over TLS from elsewhere have no clipboard: what is selected can still be copied.
  const area = make("textarea", { class: "spoken" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  return undefined;
}

export function copyButton(text, title = "Copy") {
  const button = make("button", {
    type: "button",
    onclick: async () => {
      try { await put(typeof text === "function" ? text() : text); button.textContent = "Copied"; } catch { button.textContent = "Can't copy here"; }
      setTimeout(() => { button.textContent = title; }, 1500);
    },
  }, title);
  return button;
}
