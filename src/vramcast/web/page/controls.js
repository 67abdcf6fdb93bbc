/** The left column: what matters for this job, and every other option in a drawer that can be searched. */

import { at, make } from "./dom.js";
import { fileOf } from "./state.js";
import { hasWord, say } from "./words.js";

/**
 * @typedef {import("./state.js").Job} Job
 * @typedef {import("./state.js").Value} Value
 * @typedef {{name: string, help: string, kind: string, choices: string[], group: string, group_label: string, default: any}} Field
 * @typedef {{models: {name: string, hf_id: string, params: number}[], gpus: {name: string, vendor: string, capacity_bytes: number}[], fields: Field[]}} Catalog
 * @typedef {(changes: Job, dragging?: boolean) => void} Change
 * @typedef {(job: Job, resolved: Record<string, any>, idle: Record<string, string>) => void} Refresh
 */

/** What says the same in other words is taken back. @type {Job} */
const OTHER_WORDS = { qlora: null, lora: null, quantize: null };
/** @type {Record<string, Job>} */
const METHODS = {
  full: { ...OTHER_WORDS, tuning: "full", "lora-rank": null },
  lora: { ...OTHER_WORDS, tuning: "lora" },
  qlora: { ...OTHER_WORDS, tuning: "qlora" },
};
/** What the model is for. Each has options of its own. */
const USES = ["train", "infer", "serve"];
const PASSES = ["generate", "score", "encode"];
const ENGINES = ["vllm", "sglang", "tgi", "llama.cpp"];
/** Controls that are always shown where a model is trained, and those of many cards. */
const SHOWN = ["framework", "precision", "optimizer", "attention", "checkpointing", "loss"];
const OF_MANY = ["strategy", "offload", "tp", "pp", "gpus-per-node"];
const OF_PASSES = ["precision", "quantize", "attention"];
const ROLLING = ["grpo", "ppo"];
const OF_ROLLOUTS = ["rollout-tokens", "rollout-engine", "rollout-share", "rollout-sleep", "rollout-offload", "critic"];
const OF_GENERATING = ["prompt", "new-tokens", "kv-cache", "prefill-chunk", "beams"];
/** Of serving: the engine's own flag of each of the job's keys. @type {Record<string, Record<string, string>>} */
const FLAGS = {
  vllm: {
    "max-model-len": "--max-model-len", "gpu-memory-utilization": "--gpu-memory-utilization", "kv-cache-dtype": "--kv-cache-dtype", "max-num-seqs": "--max-num-seqs",
    "max-num-batched-tokens": "--max-num-batched-tokens", tp: "--tensor-parallel-size", "enforce-eager": "--enforce-eager", quantize: "", "engine-version": "",
  },
  sglang: {
    "max-model-len": "--context-length", "gpu-memory-utilization": "--mem-fraction-static", "kv-cache-dtype": "--kv-cache-dtype", "max-num-seqs": "--max-running-requests",
    "max-num-batched-tokens": "--chunked-prefill-size", tp: "--tp-size", quantize: "", "engine-version": "",
  },
  tgi: {
    "max-model-len": "--max-total-tokens", "gpu-memory-utilization": "--cuda-memory-fraction", "kv-cache-dtype": "--kv-cache-dtype",
    "max-num-batched-tokens": "--max-batch-prefill-tokens", tp: "--num-shard", quantize: "", "engine-version": "",
  },
  "llama.cpp": {
    "max-model-len": "--ctx-size", gguf: "gguf", "gpu-layers": "--n-gpu-layers", "cpu-moe-layers": "--n-cpu-moe", "kv-cache-dtype": "--cache-type-k, -v",
    attention: "--flash-attn", "max-num-batched-tokens": "--ubatch-size", "max-num-seqs": "--parallel", "engine-version": "",
  },
};
const OF_SERVING = [...new Set(Object.values(FLAGS).flatMap((flags) => Object.keys(flags)))];
const IN_CONTROLS = [
  "model", "task", "tuning", "gpu", "gpus", "batch", "seq", "lora-rank", "engine", ...SHOWN, ...OF_MANY, ...OF_ROLLOUTS, ...OF_GENERATING, ...OF_SERVING,
];

/** @param {Job} job */
export const useOf = (job) => (job.engine ? "serve" : PASSES.includes(String(job.task)) ? "infer" : "train");
/** How a use begins. @type {Record<string, Job>} */
const FIRST = { train: {}, infer: { task: "generate", prompt: 2048, "new-tokens": 512 }, serve: { engine: "vllm" } };
/** The last job of each use, to come back to. @type {Map<string, Job>} */
const LAST = new Map();

/** The same model on the same card for another use. @param {string} use @param {Job} job @returns {Job} */
function forUse(use, job) {
  LAST.set(useOf(job), job);
  const { model, gpu } = job;
  const kept = Object.fromEntries(Object.entries({ model, gpu }).filter(([, value]) => value !== undefined));
  return { ...(LAST.get(use) ?? FIRST[use]), ...kept };
}

/** What numbers are where nobody says any. @type {Record<string, number>} */
const USUAL = { prompt: 512, "new-tokens": 512 };

/** @param {Job} job */
function methodOf(job) {
  if (job.tuning) return String(job.tuning);
  if (job.qlora || (job.quantize && job.quantize !== "none")) return "qlora";
  return job["lora-rank"] || job.lora ? "lora" : "full";
}

/** @param {string} name */
const label = (name) => (hasWord(name) ? say(name) : name.replaceAll("-", " "));

/**
 * Builds the column; the function it returns shows another job in it.
 * @param {Catalog} catalog @param {Change} change @param {(job: Job) => void} replace @returns {Refresh}
 */
export function buildControls(catalog, change, replace) {
  const byName = new Map(catalog.fields.map((field) => [field.name, field]));
  const column = at("controls");
  column.replaceChildren(
    make("datalist", { id: "models" }, ...catalog.models.map((model) => make("option", { value: model.name }, model.hf_id))),
    make("datalist", { id: "cards" }, ...catalog.gpus.map((gpu) => make("option", { value: gpu.name }))),
  );
  /** @type {Refresh[]} */
  const refreshers = [];
  /** @param {[HTMLElement, Refresh]} made */
  const add = ([element, refresh]) => {
    column.append(element);
    refreshers.push(refresh);
  };
  add(textControl("model", change, { list: "models", spellcheck: "false", autocomplete: "off" }));
  const cards = make("div", { class: "pair" });
  for (const [element, refresh] of [
    textControl("gpu", change, { list: "cards", spellcheck: "false", autocomplete: "off" }),
    shownIf(numberControl("gpus", change, 1), (job) => useOf(job) === "train" || job.engine === "llama.cpp"),
  ]) {
    cards.append(element);
    refreshers.push(refresh);
  }
  column.append(cards);
  add(choiceControl("use", USES, useOf, (use, job) => use !== useOf(job) && replace(forUse(use, job))));
  /** @param {string} use @returns {(job: Job) => boolean} */
  const is = (use) => (job) => useOf(job) === use;
  const trains = is("train"), infers = is("infer"), serves = is("serve");
  /** @param {Job} job */
  const generates = (job) => job.task === "generate";
  add(shownIf(choiceControl("engine", ENGINES, (job) => String(job.engine), (engine) => change({ engine, "engine-version": null })), serves));
  add(shownIf(choiceControl("pass", PASSES, (job) => String(job.task), (task) => change({ ...nothingOf(OF_GENERATING), seq: null, task })), infers));
  add(shownIf(selectOf(byName, "task", (choice) => !PASSES.includes(choice), change), trains));
  add(shownIf(choiceControl("method", Object.keys(METHODS), methodOf, (name) => change(METHODS[name])), trains));
  add(shownIf(numberControl("lora-rank", change, 16), (job) => trains(job) && methodOf(job) !== "full"));
  add(shownIf(sliderControl("batch", change, 0, 8, 1), (job) => !serves(job)));
  add(shownIf(sliderControl("seq", change, 7, 17, 2048), (job) => trains(job) || (infers(job) && !generates(job))));
  for (const name of OF_GENERATING) add(shownIf(fieldControl(byName, name, change), generates));
  /** @param {Job} job @param {string} name */
  const rolls = (job, name) => trains(job) && (ROLLING.includes(String(job.task)) || Boolean(job[name]));
  for (const name of OF_ROLLOUTS) add(shownIf(fieldControl(byName, name, change), (job) => rolls(job, name)));
  for (const name of new Set([...SHOWN, ...OF_PASSES])) {
    const inTraining = (/** @type {Job} */ job) => SHOWN.includes(name) || methodOf(job) === "qlora";
    const shown = (/** @type {Job} */ job) => (trains(job) && inTraining(job)) || (infers(job) && OF_PASSES.includes(name));
    add(shownIf(fieldControl(byName, name, change), shown));
  }
  for (const name of OF_MANY) add(shownIf(fieldControl(byName, name, change), (job) => trains(job) && Number(job.gpus ?? 1) > 1));
  for (const name of OF_SERVING) add(servingControl(byName, name, change));
  add(drawer(catalog.fields.filter((field) => !IN_CONTROLS.includes(field.name)), byName, change));
  return (job, resolved, idle) => refreshers.forEach((refresh) => refresh(job, resolved, idle));
}

/** @param {[HTMLElement, Refresh]} made @param {(job: Job) => boolean} holds @returns {[HTMLElement, Refresh]} */
function shownIf([element, refresh], holds) {
  return [element, (job, resolved, idle) => {
    element.hidden = !holds(job);
    refresh(job, resolved, idle);
  }];
}

/** @param {string[]} names @returns {Job} */
const nothingOf = (names) => Object.fromEntries(names.map((name) => [name, null]));

/** The control of a key that serving engines have, under the engine's own flag. @param {Map<string, Field>} byName @param {string} name @param {Change} change @returns {[HTMLElement, Refresh]} */
function servingControl(byName, name, change) {
  const [element, refresh] = fieldControl(byName, name, change);
  const title = element.querySelector("label"), input = element.querySelector("input, select");
  if (title && input) title.htmlFor = input.id = `control-serving-${name}`;
  return shownIf([element, (job, resolved, idle) => {
    refresh(job, resolved, idle);
    if (title) title.textContent = FLAGS[String(job.engine)]?.[name] || label(name);
  }], (job) => name in (FLAGS[String(job.engine)] ?? {}));
}

/** Tells where a value comes from, and whether it changes anything here. @param {HTMLElement} tag @param {Job} job @param {string} name @param {Record<string, string>} idle */
function tellOrigin(tag, job, name, idle) {
  const said = job[name] !== undefined && job[name] !== null;
  const file = said ? fileOf(name, job[name]) : "";
  const why = said ? idle[name] : "";
  const from = said ? file || say("from_you") : say("from_default");
  tag.textContent = why === "nothing" ? say("same_nothing") : why === "default" && !file ? say("same_default") : from;
  tag.title = file;
  tag.classList.toggle("idle", why === "nothing");
}

/** A labelled box; its tag tells who chose the value. @param {string} name @param {HTMLElement} input @returns {[HTMLElement, HTMLElement]} */
function box(name, input, help = "") {
  const tag = make("span", { class: "origin" });
  input.id = `control-${name}`;
  const title = make("label", { for: input.id, title: help }, label(name));
  return [make("div", { class: "control" }, make("span", { class: "title" }, title, tag), input), tag];
}

/** @param {string} name @param {Change} change @param {Record<string, string>} props @returns {[HTMLElement, Refresh]} */
function textControl(name, change, props, help = "") {
  const input = /** @type {HTMLInputElement} */ (make("input", { type: "text", ...props }));
  input.addEventListener("change", () => change({ [name]: input.value.trim() || null }));
  const [element, tag] = box(name, input, help);
  return [element, (job, resolved, idle) => {
    const value = job[name];
    if (document.activeElement !== input) input.value = value === undefined || value === null ? "" : String(value);
    if (name !== "model") input.placeholder = String(resolved[name] ?? "");
    input.title = input.value;
    if (name === "model" || name === "gpu") tag.textContent = value === undefined || value === null ? "" : fileOf(name, value);
    else tellOrigin(tag, job, name, idle);
  }];
}

/** @param {string} name @param {Change} change @param {number | null} usual @returns {[HTMLElement, Refresh]} */
function numberControl(name, change, usual, help = "") {
  const input = /** @type {HTMLInputElement} */ (make("input", { type: "number", min: "0", inputmode: "numeric" }));
  input.addEventListener("input", () => {
    if (input.value === "" || input.validity.valid) change({ [name]: input.value === "" ? null : Number(input.value) });
  });
  const [element, tag] = box(name, input, help);
  return [element, (job, resolved, idle) => {
    const value = job[name];
    if (document.activeElement !== input) input.value = value === undefined || value === null ? "" : String(value);
    input.placeholder = String(resolved[name] ?? usual ?? "");
    tellOrigin(tag, job, name, idle);
  }];
}

/** A number and a slider over powers of two. @param {string} name @param {Change} change @returns {[HTMLElement, Refresh]} */
function sliderControl(name, change, /** @type {number} */ least, /** @type {number} */ most, /** @type {number} */ usual) {
  const [element, refresh] = numberControl(name, change, usual);
  const slider = /** @type {HTMLInputElement} */ (
    make("input", { type: "range", min: String(least), max: String(most), step: name === "seq" ? "0.5" : "1", "aria-label": label(name) })
  );
  const value = () => {
    const exact = 2 ** Number(slider.value);
    return name === "seq" ? Math.round(exact / 64) * 64 : Math.round(exact);
  };
  slider.addEventListener("input", () => change({ [name]: value() }, true));
  slider.addEventListener("change", () => change({ [name]: value() }));
  element.append(slider);
  return [element, (job, resolved, idle) => {
    refresh(job, resolved, idle);
    if (document.activeElement !== slider) slider.value = String(Math.log2(Number(job[name] ?? resolved[name] ?? usual)));
  }];
}

/** @param {string} name @param {string[]} choices @param {(job: Job) => string} read @param {(choice: string, job: Job) => void} choose @returns {[HTMLElement, Refresh]} */
function choiceControl(name, choices, read, choose) {
  /** @type {Job} */
  let current = {};
  const buttons = choices.map((choice) => make("button", { type: "button", "data-choice": choice, onclick: () => choose(choice, current) }, say(choice)));
  const element = make("div", { class: "control choices", role: "group", "aria-label": label(name), id: `control-${name}` }, ...buttons);
  return [element, (job) => {
    current = job;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.choice === read(job)));
  }];
}

/** A select with some of a field's choices. @param {Map<string, Field>} byName @param {string} name @param {(choice: string) => boolean} keeps @param {Change} change @returns {[HTMLElement, Refresh]} */
function selectOf(byName, name, keeps, change) {
  const field = byName.get(name);
  return field ? selectControl(field, field.choices.filter(keeps), change) : [make("div"), () => undefined];
}

/** The control of any of the job's keys. @param {Map<string, Field>} byName @param {string} name @param {Change} change @returns {[HTMLElement, Refresh]} */
function fieldControl(byName, name, change) {
  const field = byName.get(name);
  if (field === undefined) return [make("div"), () => undefined];
  if (field.kind === "flag") return selectControl(field, ["true", "false"], change);
  if (field.choices.length && field.kind !== "list") return selectControl(field, field.choices, change);
  if (field.kind === "int") return numberControl(name, change, field.default ?? USUAL[name] ?? null, field.help);
  return textControl(name, change, {}, field.help);
}

/** @param {Field} field @param {string[]} choices @param {Change} change @returns {[HTMLElement, Refresh]} */
function selectControl(field, choices, change) {
  const usual = make("option", { value: "" });
  const select = /** @type {HTMLSelectElement} */ (
    make("select", {}, usual, ...choices.map((choice) => make("option", { value: choice }, choice)))
  );
  select.addEventListener("change", () => {
    const value = select.value;
    change({ [field.name]: value === "" ? null : value === "true" ? true : value === "false" ? false : value });
  });
  const [element, tag] = box(field.name, select, field.help);
  return [element, (job, resolved, idle) => {
    const value = job[field.name];
    const decided = resolved[field.name] ?? field.default;
    const known = value === undefined || value === null;
    usual.textContent = known && decided !== null && decided !== undefined ? say("default_is", { value: String(decided) }) : say("default");
    select.value = known ? "" : String(value);
    tellOrigin(tag, job, field.name, idle);
  }];
}

/** Every other option, by group, with a search. @param {Field[]} fields @param {Map<string, Field>} byName @param {Change} change @returns {[HTMLElement, Refresh]} */
function drawer(fields, byName, change) {
  /** @type {Refresh[]} */
  const refreshers = [];
  /** @type {[HTMLElement, string][]} */
  const found = [];
  const groups = new Map();
  for (const field of fields) {
    const [element, refresh] = fieldControl(byName, field.name, change);
    element.append(make("p", { class: "help" }, field.help));
    refreshers.push(refresh);
    found.push([element, `${field.name} ${field.help}`.toLowerCase()]);
    if (!groups.has(field.group)) groups.set(field.group, make("fieldset", { "data-group": field.group }, make("legend", {}, field.group_label)));
    groups.get(field.group).append(element);
  }
  const search = /** @type {HTMLInputElement} */ (
    make("input", { type: "search", id: "search-options", placeholder: say("search_options"), "aria-label": say("search_options") })
  );
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const [element, text] of found) element.hidden = !words.every((word) => text.includes(word));
    for (const group of groups.values()) group.hidden = ![...group.querySelectorAll(".control")].some((each) => !each.hidden);
  });
  const element = make("details", { class: "more" }, make("summary", {}, say("more")), search, ...groups.values());
  return [element, (job, resolved, idle) => refreshers.forEach((refresh) => refresh(job, resolved, idle))];
}
