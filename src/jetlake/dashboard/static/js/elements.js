// Makes elements, and brings what is on the page up to date without touching what did not change:
// focus, selection, scrolling and what a reader has opened stay. Strings become text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element[name] = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An element with properties, handlers (`onclick`) and children. */
export const make = (tag, properties = {}, ...children) => fill(document.createElement(tag), properties, children);

/** The same for a drawing. */
export const draw = (tag, properties = {}, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

/** Marks an element that manages itself: it stays as it is until another takes its place. */
export function own(element) {
  element.isOwn = true;
  return element;
}

const HANDLERS = ["onclick", "oninput", "onchange", "onsubmit", "onkeydown", "onpointermove", "onpointerleave", "onblur", "ontoggle", "onclose"];
// What a reader changes, and a new drawing must not.
const KEPT = { DETAILS: ["open"], DIALOG: ["open"] };

function isSame(old, wanted) {
  return old.nodeType === wanted.nodeType && old.nodeName === wanted.nodeName && !old.isOwn && !wanted.isOwn
    && (old.id ?? "") === (wanted.id ?? "") && old.dataset?.key === wanted.dataset?.key;
}

function update(old, wanted) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  const kept = KEPT[old.nodeName] ?? [];
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && !kept.includes(name)) old.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) !== value && !kept.includes(name)) old.setAttribute(name, value);
  }
  for (const name of HANDLERS) {
    if (old[name] !== wanted[name]) old[name] = wanted[name];
  }
  if ("value" in wanted && wanted.nodeName !== "LI" && old !== document.activeElement && old.value !== wanted.value) old.value = wanted.value;
  patch(old, [...wanted.childNodes]);
}

/** Makes the children of an element what is wanted. */
export function patch(parent, wanted) {
  let place = parent.firstChild;
  for (const node of wanted) {
    if (place === node) { place = place.nextSibling; continue; }
    // What stood here is gone, and what is wanted comes a little later.
    let ahead = place;
    for (let steps = 0; ahead && steps < 4 && !(ahead === node || isSame(ahead, node)); steps += 1) ahead = ahead.nextSibling;
    if (ahead && (ahead === node || isSame(ahead, node))) {
      while (place !== ahead) { const next = place.nextSibling; place.remove(); place = next; }
      if (ahead !== node) update(ahead, node);
      place = ahead.nextSibling;
    } else {
      parent.insertBefore(node, place);
    }
  }
  while (place) { const next = place.nextSibling; place.remove(); place = next; }
}
