// Changes in three steps: what is wanted, what that would do with the command that does the same, what was done.

import { copyButton } from "./copy.js";
import { make } from "./elements.js";
import { post } from "./session.js";
import { durationText, parseDuration, parseSize, sizeText } from "./units.js";

function openDialog(title) {
  const content = make("div");
  // What was asked for on another page is not confirmed on this one.
  const close = () => dialog.close();
  addEventListener("hashchange", close);
  const dialog = make("dialog", { "aria-label": title, onclose: () => { removeEventListener("hashchange", close); dialog.remove(); } }, content);
  document.body.append(dialog);
  dialog.showModal();
  return { dialog, show: (...nodes) => content.replaceChildren(...nodes.flat().filter(Boolean)), close };
}

const TOLD_MS = 8000;

/** Tells what was done, without asking for an answer. */
function tell(text) {
  document.getElementById("told")?.remove();
  const told = make("p", { id: "told", class: "card good", role: "status" }, `✓ ${text}`);
  document.body.append(told);
  setTimeout(() => told.remove(), TOLD_MS);
}

/** A dialog with one thing in it, and a way out. make(close) gives the thing. */
export function show(title, content, out = "Cancel") {
  const box = openDialog(title);
  box.show(make("h2", {}, title), content(box.close), make("div", { class: "actions" }, make("button", { type: "button", onclick: box.close }, out)));
}

// How each kind of field is written and read. What can't be read throws what is said about it.
const kinds = {
  text: { write: (value) => value ?? "", read: (text) => text.trim() },
  list: { write: (value) => (value ?? []).join(", "), read: (text) => text.split(",").map((one) => one.trim()).filter(Boolean) },
  number: { write: (value) => (value > 0 ? String(value) : ""), read: (text) => (text.trim() === "" ? -1 : Number(text)), fails: "is not a number" },
  duration: { write: durationText, read: (text) => (text.trim() === "" ? 0 : parseDuration(text)), fails: "is not a duration such as 7d, 12h or 90s" },
  size: { write: sizeText, read: (text) => (text.trim() === "" ? -1 : parseSize(text)), fails: "is not a size such as 1GB" },
};

function control(field, value) {
  const common = { name: field.name, autocomplete: "off", spellcheck: "false", required: field.required };
  if (field.kind === "choice") return make("select", common, field.choices.map((one) => make("option", { value: one, selected: one === value }, one)));
  if (field.kind === "check") return make("input", { ...common, type: "checkbox", checked: Boolean(value) });
  if (field.kind === "lines") return Object.assign(make("textarea", { ...common, rows: field.rows ?? 4, placeholder: field.hint }), { value: value ?? "" });
  return make("input", { ...common, type: "text", value: kinds[field.kind ?? "text"].write(value), placeholder: field.hint });
}

function read(field, form) {
  const element = form.elements[field.name];
  if (field.kind === "check") return element.checked;
  if (field.kind === "choice" || field.kind === "lines") return element.value;
  const kind = kinds[field.kind ?? "text"];
  const value = kind.read(element.value);
  if (Number.isNaN(value)) throw new Error(`${field.label}: ${element.value} ${kind.fails}`);
  return value;
}

const isEqual = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/**
 * Asks for a change.
 * fields: { name, label, kind, hint, choices, required }; values: what they hold at first.
 * wanted(values, changed): the arguments of the change, from all fields and from those that are other than at first.
 * prepare(arguments, say): gives what is previewed, where that is no change of that kind; say(text) tells how far it is.
 * done(text): called when it is done. quick: the word on a button that makes a change at once, unless it has a warning.
 */
export function change({ title, kind, fields = [], values = {}, wanted, prepare, done, quick }) {
  const box = openDialog(title);
  const cancel = () => make("button", { type: "button", onclick: box.close }, "Cancel");
  const said = make("p", { class: "bad", role: "alert" });

  async function preview(given, back, atOnce = null) {
    const say = (text) => { said.className = "soft"; said.textContent = text; };
    if (atOnce) atOnce.disabled = true;  // a second click would do it twice
    const prepared = prepare ? await prepare(given, say) : await post("api/changes", { kind, arguments: given });
    if (atOnce) atOnce.disabled = false;
    if (prepared.error) {
      said.className = "bad";
      if (back) said.textContent = prepared.error;
      else box.show(make("h2", {}, title), make("p", { class: "bad", role: "alert" }, prepared.error), make("div", { class: "actions" }, cancel()));
      return;
    }
    if (atOnce && !prepared.warning) { run(prepared, atOnce, back, true); return; }
    const confirm = make("button", { type: "button", class: `primary ${prepared.warning ? "danger" : ""}`, onclick: () => run(prepared, confirm, back) }, prepared.warning ? prepared.title : "Confirm");
    box.show(
      make("h2", {}, prepared.title),
      make("table", { class: "plain" },
        make("thead", {}, make("tr", {}, ["", "Now", "Then"].map((one) => make("th", { scope: "col" }, one)))),
        make("tbody", {}, prepared.changes.map(([name, before, after]) => make("tr", {}, make("th", { scope: "row" }, name.replaceAll("_", " ")),
          make("td", {}, before || "–"), make("td", { class: "new" }, after || "–"))))),
      prepared.warning && make("p", { class: "bad" }, prepared.warning),
      make("p", { class: "soft" }, "Equivalent command:"),
      make("pre", { tabindex: "0" }, prepared.command), copyButton(prepared.command, "Copy command"),
      prepared.file && make("details", {}, make("summary", {}, prepared.command.includes("--config") ? "Input file" : "Details"), make("pre", { tabindex: "0" }, prepared.file)),
      make("div", { class: "actions" }, back && make("button", { type: "button", onclick: back }, "Back"), cancel(), confirm));
    confirm.focus();
  }

  async function run(prepared, button, back, isInForm = false) {
    const word = button.textContent;
    Object.assign(button, { disabled: true, textContent: "…" });
    const answer = await post(`api/changes/${prepared.id}`);
    Object.assign(button, { disabled: false, textContent: word });  // it is there again after a way back
    if (answer.error && isInForm) { said.textContent = answer.error; return; }
    if (!answer.error && !answer.download) {
      box.close();
      tell(answer.done);
      done?.(answer.done);
      return;
    }
    const close = make("button", { type: "button", class: "primary", onclick: box.close }, "Close");
    box.show(make("h2", {}, prepared.title),
      make("p", { class: answer.error ? "bad" : "good", role: "alert" }, answer.error ?? answer.done),
      answer.download && make("p", {}, make("a", { class: "button", href: answer.download, download: "" }, "Download")),
      make("div", { class: "actions" }, answer.error && back && make("button", { type: "button", onclick: back }, "Back"), close));
    close.focus();
    if (!answer.error) done?.(answer.done);
  }

  if (!fields.length) { preview(wanted({}, {})); return; }
  const submit = make("button", { type: "submit", class: "primary" }, quick ?? "Preview");
  const form = make("form", {
    onsubmit: (event) => { event.preventDefault(); send(quick ? submit : null); },
  }, make("h2", {}, title), make("div", { class: "fields" }, fields.map((field) => make("label", { class: field.kind === "check" ? "check" : field.kind === "lines" ? "wide-field" : "" },
    field.kind === "check" ? [control(field, values[field.name]), make("span", {}, field.label)] : [make("span", {}, field.label), control(field, values[field.name])]))),
  said, make("div", { class: "actions" }, cancel(),
    quick && make("button", { type: "button", onclick: () => form.reportValidity() && send(null) }, "Preview"), submit));
  const first = Object.fromEntries(fields.map((field) => [field.name, read(field, form)]));
  /** Previews what is typed, or makes the change at once with this button. */
  function send(atOnce) {
    Object.assign(said, { className: "bad", textContent: "" });
    try {
      const now = Object.fromEntries(fields.map((field) => [field.name, read(field, form)]));
      const changed = Object.fromEntries(Object.entries(now).filter(([name, value]) => !isEqual(value, first[name])));
      preview(wanted(now, changed), ask, atOnce);
    } catch (error) {
      said.textContent = error.message;
    }
  }

  function ask() { box.show(form); form.elements[0]?.focus(); }
  ask();
}

/** A change that needs no question: it is made at once; what a warning or an error says is shown first. */
export async function once({ title, kind, wanted, done }) {
  if (isUnderway) return;  // a second click would do it twice
  isUnderway = true;
  try { await makeOnce({ title, kind, wanted, done }); } finally { isUnderway = false; }
}

let isUnderway = false;

async function makeOnce({ title, kind, wanted, done }) {
  const prepared = await post("api/changes", { kind, arguments: wanted() });
  if (prepared.warning) { change({ title, kind, wanted, done }); return; }
  const answer = prepared.error ? prepared : await post(`api/changes/${prepared.id}`);
  if (answer.error) { show(title, () => make("p", { class: "bad", role: "alert" }, answer.error), "Close"); return; }
  tell(answer.done);
  done?.(answer.done);
}
