/** Combinations of changes as points, memory against time: the change list of the one that is pointed at, applied on request. */

import { at, gib, make, put } from "./dom.js";
import { say } from "./words.js";

/** @typedef {{changes: string[], time: number, peak_bytes: number, fits: boolean, on_front: boolean, kind: string, set: import("./state.js").Job}} Point */

export class FrontView {
  /** @param {(values: import("./state.js").Job, what: string) => void} apply */
  constructor(apply) {
    this.apply = apply;
    /** @type {Point[]} */
    this.points = [];
    this.chosen = -1;
    const chart = at("front");
    for (const kind of ["pointerover", "focusin", "click"]) chart.addEventListener(kind, (event) => this.look(event, kind === "click"));
    chart.addEventListener("keydown", (event) => event.key === "Enter" && this.look(event, true));
  }

  /** @param {boolean} hasCard */
  begin(hasCard) {
    this.points = [];
    this.chosen = -1;
    at("front").replaceChildren();
    at("front-said").textContent = "";
    at("front-point").textContent = hasCard ? say("working") : say("front_none");
  }

  /** @param {{html: string, points: Point[], said: string}} data */
  show(data) {
    this.points = data.points;
    at("front-said").textContent = data.said;
    put(at("front"), data.html);
    document.querySelector("#front svg.chart")?.setAttribute("role", "group"); // an image has no parts to choose
    for (const dot of document.querySelectorAll("#front .dot")) {
      const point = this.points[Number(dot.getAttribute("data-point"))];
      dot.setAttribute("tabindex", "0");
      dot.setAttribute("role", "button");
      dot.setAttribute("aria-label", this.text(point));
    }
    if (this.chosen < 0) at("front-point").textContent = data.points.length ? say("front_pick") : "";
  }

  /** @param {string} text */
  fail(text) {
    at("front-point").textContent = text;
  }

  /** @param {Point} point */
  text(point) {
    return `${point.changes.join(" + ") || say("as_given")}: ${gib(point.peak_bytes)}, ×${point.time.toFixed(2)}`;
  }

  /** @param {Event} event @param {boolean} keeps */
  look(event, keeps) {
    const dot = event.target instanceof Element ? event.target.closest(".dot") : null;
    const number = dot ? Number(dot.getAttribute("data-point")) : -1;
    const point = this.points[number];
    if (!dot || !point) return;
    if (keeps) this.chosen = number;
    for (const other of document.querySelectorAll("#front .dot")) other.classList.toggle("chosen", other === dot);
    const list = make("ul", { class: "plain" }, ...(point.changes.length ? point.changes : [say("as_given")]).map((change) => make("li", {}, change)));
    const heading = make("b", {}, `${gib(point.peak_bytes)} · ×${point.time.toFixed(2)}${point.fits ? ` · ${say("fits")}` : ""}`);
    const parts = [heading, list];
    if (point.changes.length) {
      parts.push(make("button", { type: "button", id: "front-apply", onclick: () => this.apply(point.set, point.changes.join(" + ")) }, say("apply")));
    }
    at("front-point").replaceChildren(...parts);
  }
}
