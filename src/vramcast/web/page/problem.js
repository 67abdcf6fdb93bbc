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
  const models = !isAbout(text, job.model) ? [] : named(text, catalog.models.map(({ name }) => name), String(job.model));
  const cards = isAbout(text, job.gpu) ? named(text, catalog.gpus.map(({ name }) => name), String(job.gpu)) : [];
  const unknownModel = isAbout(text, job.model);
  const buttons = [
    ...models.map((model) => make("button", { type: "button", onclick: () => change({ model }) }, model)),
    ...cards.map((gpu) => make("button", { type: "button", onclick: () => change({ gpu }) }, gpu)),
  ];
  return [
    ...(buttons.length ? [make("div", { class: "choices" }, ...buttons)] : []),
    ...(unknownModel ? [make("p", { class: "soft" }, say("drop_config"))] : []),
  ];
}

/** Does the line name this value as what is wrong? @param {string} text @param {import("./state.js").Value | undefined} value */
const isAbout = (text, value) => Boolean(value) && text.toLowerCase().includes(`'${String(value).toLowerCase()}'`);

/** As a word of its own, longer than a size. @param {string} word @param {string} text */
function stands(word, text) {
  const at = text.indexOf(word);
  return word.length > 3 && !/^\d+gi?b$/.test(word) && at >= 0 && !/[\w.-]/.test(text[at - 1] ?? " ") && !/[\w-]/.test(text[at + word.length] ?? " ");
}

/** Which of the names stand in the text as words, the longest first. @param {string} text @param {string[]} names @param {string} said */
function named(text, names, said) {
  let left = text.toLowerCase().replaceAll(`'${said.toLowerCase()}'`, " ");
  /** @type {string[]} */
  const found = [];
  for (const name of [...names].sort((one, other) => other.length - one.length)) {
    const words = name.toLowerCase().split(" ");
    const word = words.map((_, number) => words.slice(number).join(" ")).find((tail) => stands(tail, left)); // or without the maker
    if (word === undefined) continue;
    found.push(name);
    left = left.replaceAll(word, " ");
  }
  return found.slice(0, MOST_NAMES);
}
