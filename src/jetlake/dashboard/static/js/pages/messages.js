// The messages of a stream, on a page of their own.

import { streamPath } from "../format.js";
import { MessageBrowser } from "../messages.js";
import { crumbs, head, link } from "../parts.js";

let browser = null;

export default {
  section: "streams",
  title: ([, name]) => `Messages of ${name}`,
  query: () => ({ page: "none" }),
  // A link leads to the same messages.
  chosen: () => Object.entries(browser?.chosen ?? {}),
  draw({ route: [, name], link: from, changed, actions }) {
    if (browser?.stream !== name) {
      browser?.close();
      browser = new MessageBrowser(name, (message, deleted) => actions.message(name, message, deleted), Object.fromEntries(from), changed);
    }
    return [crumbs(link("#/", "Streams"), link(streamPath(name), name)), head("Messages", actions.publish("", () => browser?.show({}))), browser.root];
  },
  leave() { browser?.close(); browser = null; },
};
