/** A mistake: the engine's one line, and what can be done about it here. */

import { at, make } from "./dom.js";
import { say } from "./words.js";

/**
 * @typedef {import("./state.js").Job} Job
 * @typedef {import("./controls.js").Catalog} Catalog
 */

const MOST_NAMES = 4;

/** @param {string} text @param {Catalog | null} catalog @param {Job} job @param {(changes: Job) => void} change */
export function showProblem(text, catalog, job, change) {
  const place = at("problem");
  place.hidden = false;
  place.replaceChildren(make("p", {}, text), ...waysOut(text, catalog, job, change));
}

/** Names of the catalog that the line proposes, as buttons. @param {string} text @param {Catalog | null} catalog @param {Job} job @param {(changes: Job) => void} change */
function waysOut(text, catalog, job, change) {
  if (!catalog) return [];
  const models = named(text, catalog.models.map(({ name }) => name), String(job.model));
  const cards = named(text, catalog.gpus.map(({ name }) => name), String(job.gpu));
  const unknownModel = models.length > 0 || (Boolean(job.model) && text.toLowerCase().includes(`'${String(job.model).toLowerCase()}'`));
  const buttons = [
    ...models.map((model) => make("button", { type: "button", onclick: () => change({ model }) }, model)),
    ...cards.map((gpu) => make("button", { type: "button", onclick: () => change({ gpu }) }, gpu)),
  ];
  return [
    ...(buttons.length ? [make("div", { class: "choices" }, ...buttons)] : []),
    ...(unknownModel ? [make("p", { class: "soft" }, say("drop_config"))] : []),
  ];
}

/** Which of the names stand in the text as words, the longest first. @param {string} text @param {string[]} names @param {string} said */
function named(text, names, said) {
  let left = text.toLowerCase().replaceAll(said.toLowerCase(), " ");
  /** @type {string[]} */
  const found = [];
  for (const name of [...names].sort((one, other) => other.length - one.length)) {
    const at = left.indexOf(name.toLowerCase());
    if (at < 0 || /[\w.-]/.test(left[at - 1] ?? " ") || /[\w-]/.test(left[at + name.length] ?? " ")) continue;
    found.push(name);
    left = left.replaceAll(name.toLowerCase(), " ");
  }
  return found.sort((one, other) => text.toLowerCase().indexOf(one.toLowerCase()) - text.toLowerCase().indexOf(other.toLowerCase())).slice(0, MOST_NAMES);
}
