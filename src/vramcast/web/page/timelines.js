/** Memory over time: of the job, of the pinned job, and of dropped traces and snapshots; one, or two on one scale. */

import { at, difference, make } from "./dom.js";
import { Overtaken } from "./engine.js";
import { Model } from "./timeline_model.js";
import { TimelineChart, sizeText } from "./timeline_chart.js";
import { language, say } from "./words.js";

/**
 * @typedef {import("./state.js").State} State
 * @typedef {{timeline: import("./timeline_model.js").Data, words: import("./timeline_chart.js").Words, notes: string[]}} Answer
 * @typedef {(slot: string, question: string, request: object) => Promise<any>} Send
 */

export class TimelineView {
  /** @param {Send} send @param {() => State} state */
  constructor(send, state) {
    this.send = send;
    this.state = state;
    /** Dropped files, newest last. @type {{name: string, file: string}[]} */
    this.files = [];
    this.first = "job";
    this.second = "";
    /** @type {Map<string, Promise<Answer>>} */
    this.known = new Map();
    this.shown = "";
    for (const which of ["first", "second"]) {
      const select = /** @type {HTMLSelectElement} */ (at(`timeline-${which}`));
      select.addEventListener("change", () => {
        if (which === "first") this.first = select.value;
        else this.second = select.value;
        void this.show();
      });
    }
  }

  /** A dropped file becomes the first; the one before it stays beside it. @param {string} name @param {string} file */
  add(name, file) {
    this.files = [...this.files.filter((each) => each.file !== file), { name, file }];
    if (this.first !== "job" && this.first !== file) this.second = this.first;
    this.first = file;
  }

  /** Questions by source. @param {string} source @returns {object} */
  request(source) {
    const { job, pinned, files } = this.state();
    if (source === "job") return { job, files, lang: language() };
    if (source === "pinned") return { job: pinned, files, lang: language() };
    return { file: source, lang: language() };
  }

  choices() {
    const found = [["job", say("this_job")]];
    if (this.state().pinned) found.push(["pinned", say("pinned_job")]);
    return [...found, ...this.files.map(({ name, file }) => [file, name])];
  }

  fill() {
    const choices = this.choices();
    const known = choices.map(([value]) => value);
    if (!known.includes(this.first)) this.first = "job";
    if (!known.includes(this.second)) this.second = "";
    for (const [which, chosen, more] of /** @type {[string, string, string[][]][]} */ ([["first", this.first, []], ["second", this.second, [["", say("nothing")]]]])) {
      const select = /** @type {HTMLSelectElement} */ (at(`timeline-${which}`));
      select.replaceChildren(...[...more, ...choices].map(([value, text]) => make("option", { value }, text)));
      select.value = chosen;
    }
  }

  async show() {
    this.fill();
    const asked = [this.first, this.second].filter(Boolean).map((source) => this.request(source));
    const key = JSON.stringify(asked);
    if (key === this.shown) return;
    this.wanted = key;
    at("timeline-problem").textContent = say("working");
    try {
      const answers = [];
      for (const request of asked) answers.push(await this.answer(request));
      if (this.wanted !== key) return;
      this.draw(answers);
      this.shown = key;
      at("timeline-problem").textContent = "";
    } catch (error) {
      if (error instanceof Overtaken || this.wanted !== key) return;
      this.shown = "";
      at("timelines").replaceChildren();
      at("timeline-problem").textContent = error instanceof Error ? error.message : String(error);
    }
  }

  /** @param {object} request @returns {Promise<Answer>} */
  answer(request) {
    const key = JSON.stringify(request);
    const known = this.known.get(key);
    if (known) return known;
    const asked = this.send("timeline", "timeline", request);
    this.known.set(key, asked);
    asked.catch(() => this.known.delete(key));
    if (this.known.size > 4) this.known.delete([...this.known.keys()][0]);
    return asked;
  }

  /** @param {Answer[]} answers */
  draw(answers) {
    const place = at("timelines");
    place.classList.toggle("two", answers.length > 1);
    const top = Math.max(...answers.map(({ timeline, words }) => new Model(timeline, words.order).top()));
    const hosts = answers.map(({ timeline, words, notes }) => {
      const host = make("div", { class: "timeline" });
      const caption = make("p", { class: "caption soft" }, make("b", {}, timeline.name), ` ${timeline.place}: ${notes.join(" · ")}`);
      return { block: make("div", {}, caption, host), start: () => new TimelineChart(host, timeline, words, top) };
    });
    place.replaceChildren(...hosts.map(({ block }) => block));
    for (const { start } of hosts) start();
    if (answers.length > 1) place.append(totals(answers));
  }
}

/** What holds memory at both peaks. @param {Answer[]} answers */
function totals(answers) {
  const sums = answers.map(({ timeline, words }) => {
    /** @type {Map<string, number>} */
    const found = new Map();
    for (const { label, bytes } of new Model(timeline, words.order).holders(timeline.peak.event)) found.set(label[4], (found.get(label[4]) ?? 0) + bytes);
    return found;
  });
  const { order, parts, say: named } = answers[0].words;
  const rows = order.filter((part) => sums.some((sum) => sum.has(part))).map((part) => [parts[part], ...sums.map((sum) => sum.get(part) ?? 0)]);
  rows.push([named.peak, ...answers.map(({ timeline }) => timeline.peak.bytes)]);
  const cells = rows.map(([name, one, other]) => {
    const change = Number(other) - Number(one);
    return make("tr", {}, make("th", { scope: "row" }, String(name)), make("td", { class: "number" }, sizeText(Number(one))), make("td", { class: "number" }, sizeText(Number(other))), make("td", { class: "number" }, change ? difference(change) : "·"));
  });
  const head = [say("first"), say("second"), say("difference_word")].map((text) => make("th", { scope: "col", class: "number" }, text));
  return make("div", { class: "totals" }, make("h2", {}, say("at_the_peaks")), make("table", {}, make("thead", {}, make("tr", {}, make("td"), ...head)), make("tbody", {}, ...cells)));
}
