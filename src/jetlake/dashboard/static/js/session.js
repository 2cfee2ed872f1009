// Who uses the page: logging in and out, and requests that change something.

import { make } from "./elements.js";

export const session = { user: null, may_change: false, csrf: "", can_login: false, needs_login: false };

/** Sends JSON; errors come as `{ error }`. The token proves that it is this page that asks. */
export async function post(path, body) {
  try {
    const answer = await fetch(path, {
      method: "POST", headers: { "Content-Type": "application/json", "X-Jetlake-Csrf": session.csrf }, body: JSON.stringify(body ?? null),
    });
    return await answer.json();
  } catch {
    return { error: "The dashboard does not respond." };
  }
}

const PIECE = 1024 * 1024;

/** Sends a file in pieces, and gives `{ upload }` to name it by. progress: called with the share that is sent. */
export async function sendFile(file, progress) {
  let upload = "";
  for (let from = 0; from === 0 || from < file.size; from += PIECE) {
    progress(file.size ? from / file.size : 1);
    try {
      const answer = await (await fetch(`api/uploads?upload=${upload}`, {
        method: "POST", headers: { "Content-Type": "application/octet-stream", "X-Jetlake-Csrf": session.csrf }, body: file.slice(from, from + PIECE),
      })).json();
      if (answer.error) return answer;
      ({ upload } = answer);
    } catch {
      return { error: "The dashboard does not respond." };
    }
  }
  return { upload };
}

export async function loadSession() {
  try { Object.assign(session, await (await fetch("api/session")).json()); } catch { /* the live connection says so */ }
}

/** A form to log in. done: called when somebody is in. */
export function loginForm(done) {
  const said = make("p", { class: "bad", role: "alert" });
  const field = (label, name, type, complete) => make("label", {}, make("span", {}, label), make("input", { name, type, autocomplete: complete }));
  const form = make("form", {
    class: "login",
    onsubmit: async (event) => {
      event.preventDefault();
      const data = new FormData(form);
      button.disabled = true;
      const answer = await post("api/login", {
        user: data.get("user"), password: data.get("password"), token: data.get("token"), change: data.get("change") === "on",
      });
      button.disabled = false;
      if (answer.error) { said.textContent = answer.error; return; }
      Object.assign(session, answer);
      form.reset();
      done();
    },
  });
  const button = make("button", { type: "submit", class: "primary" }, "Log in");
  form.append(
    field("User", "user", "text", "username"), field("Password", "password", "password", "current-password"),
    make("details", {}, make("summary", {}, "Use a token"), field("Token", "token", "password", "off")),
    make("label", { class: "check" }, make("input", { name: "change", type: "checkbox" }), make("span", {}, "Allow changes, within my permissions on the server")),
    said, make("div", { class: "actions" }, button));
  return form;
}

export async function logout() {
  const answer = await post("api/logout");
  if (!answer.error) Object.assign(session, answer);
}
