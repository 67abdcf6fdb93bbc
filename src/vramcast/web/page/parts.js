/**
 * The parts of the bar: what is in the one that is pointed at, how its largest line is computed, when it is alive and what
 * would shrink it. A click or Enter keeps it, Escape lets it go. While none is chosen, what the last change did to each.
 */

import { at, difference, gib, make } from "./dom.js";
import { say } from "./words.js";

/** @typedef {{label: string, frees_bytes: number, parts?: Record<string, number>}} Change */

const MOST_LINES = 4;
const MOST_CHANGES = 3;
const WORTH = 0.02; // of a part: what frees less of it is not worth a word

export class Parts {
  constructor() {
    this.kept = "";
    this.pointed = "";
    /** What frees memory. @type {Change[]} */
    this.changes = [];
    /** Bytes of every part, of the job that is shown. @type {Map<string, number>} */
    this.bytes = new Map();
    this.said = "";
  }

  /** A new bar stands: its legend becomes buttons, and what has changed is marked. @param {number} total */
  show(total) {
    const before = this.bytes;
    this.bytes = new Map();
    /** @type {string[]} */
    const changed = [];
    for (const item of document.querySelectorAll("#part-bar .at-peak .legend li")) {
      const part = item.getAttribute("data-part") ?? "", bytes = Number(item.getAttribute("data-bytes"));
      const button = make("button", { type: "button", "data-part": part, "aria-pressed": "false" }, ...item.childNodes);
      item.replaceChildren(button);
      this.bytes.set(part, bytes);
      const change = bytes - (before.get(part) ?? 0);
      if (!before.size || !visible(change)) continue;
      button.classList.add("changed");
      changed.push(`${nameOf(part)} ${difference(change)}`);
    }
    for (const [part, bytes] of before) if (!this.bytes.has(part) && visible(bytes)) changed.push(`${this.names.get(part) ?? part} ${difference(-bytes)}`);
    this.names = new Map([...this.bytes.keys()].map((part) => [part, nameOf(part)]));
    this.said = total ? [say("difference", { size: difference(total) }), ...changed].join(" · ") : "";
    this.changes = [];
    if (!this.bytes.has(this.kept)) this.kept = "";
    this.draw();
  }

  /** @type {Map<string, string>} */
  names = new Map();

  /** @param {Change[]} changes */
  learn(changes) {
    this.changes = changes;
    if (this.kept || this.pointed) this.draw();
  }

  watch() {
    const result = at("result");
    const point = (/** @type {string} */ part) => {
      if (part === this.pointed) return;
      this.pointed = part;
      this.draw();
    };
    result.addEventListener("pointerover", (event) => event.pointerType !== "touch" && point(partOf(event)));
    result.addEventListener("pointerleave", () => point(""));
    result.addEventListener("focusin", (event) => point(partOf(event)));
    result.addEventListener("focusout", () => point(""));
    result.addEventListener("click", (event) => {
      const part = partOf(event);
      if (part) this.keep(part === this.kept ? "" : part);
    });
    addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !(this.kept || this.pointed)) return;
      this.pointed = "";
      this.keep("");
    });
  }

  /** @param {string} part */
  keep(part) {
    this.kept = part;
    for (const lines of document.querySelectorAll("#part-lines details[data-part]")) {
      if (lines instanceof HTMLDetailsElement) lines.open = lines.dataset.part === part;
    }
    this.draw();
  }

  draw() {
    const active = this.pointed || this.kept;
    at("result").classList.toggle("choosing", Boolean(active));
    for (const element of document.querySelectorAll("#result [data-part]")) {
      element.classList.toggle("chosen", element.getAttribute("data-part") === active);
      if (element.tagName === "BUTTON") element.setAttribute("aria-pressed", String(element.getAttribute("data-part") === this.kept));
    }
    at("tip").classList.toggle("kept", Boolean(this.kept));
    at("tip").replaceChildren(...(active ? this.about(active) : [make("p", this.said ? { id: "difference" } : {}, this.said || say("point_at"))]));
  }

  /** @param {string} part */
  about(part) {
    const all = [...document.querySelectorAll(`#part-lines details[data-part="${part}"]`)];
    const list = make("ul", { class: "plain" }, ...all.slice(0, MOST_LINES).map((each) => make("li", {}, make("b", {}, text(each, ".size")), ` ${text(each, ".name")}`, make("small", {}, fact(each, "formula")))));
    const more = all.length > MOST_LINES ? [make("p", { class: "soft" }, say("more_lines", { count: String(all.length - MOST_LINES) }))] : [];
    const alive = fact(all[0], "alive_in");
    const told = [make("p", {}, make("b", {}, `${nameOf(part)} ${gib(this.bytes.get(part) ?? 0)}`), alive ? ` · ${say("alive_in", { phases: alive })}` : ""), list, ...more];
    const helps = this.changes
      .map((change) => ({ label: change.label, bytes: change.parts?.[part] ?? 0 }))
      .filter(({ bytes }) => bytes > WORTH * (this.bytes.get(part) ?? 0))
      .sort((one, other) => other.bytes - one.bytes)
      .slice(0, MOST_CHANGES);
    if (helps.length) told.push(make("p", {}, say("shrinks", { what: helps.map(({ label, bytes }) => `${label} ${difference(-bytes)}`).join(" · ") })));
    return [make("div", { class: "about" }, ...told)];
  }
}

/** Would it be seen as a number? @param {number} bytes */
const visible = (bytes) => Math.abs(bytes) >= 0.005 * 2 ** 30;

/** @param {string} part */
function nameOf(part) {
  const button = document.querySelector(`#part-bar .at-peak .legend button[data-part="${part}"]`);
  return [...(button?.childNodes ?? [])].filter((node) => node.nodeName === "#text").map((node) => node.textContent ?? "").join("").trim();
}

/** @param {Element | undefined} element @param {string} inside */
const text = (element, inside) => element?.querySelector(inside)?.textContent ?? "";

/** Of a line: its formula, or when it is alive. @param {Element | undefined} line @param {string} name */
const fact = (line, name) => text(line, `dd[data-fact=${name}]`);

/** @param {Event} event */
function partOf(event) {
  const element = event.target instanceof Element ? event.target.closest("#part-bar [data-part], #part-phases [data-part]") : null;
  return element?.getAttribute("data-part") ?? "";
}
