/** The page: state ↔ address, questions to the engine, answers into place. Start reading at `begin`. */

import { buildControls, useOf } from "./controls.js";
import { at, make, put } from "./dom.js";
import { Parts } from "./parts.js";
import { Line, Overtaken, startEngine } from "./engine.js";
import { VIEWS, addressOf, stateOf } from "./state.js";
import { Drops } from "./drops.js";
import { FrontView } from "./front.js";
import { TimelineView } from "./timelines.js";
import { LANGUAGES, language, say, setLanguage } from "./words.js";
import { showProblem } from "./problem.js";

/** @typedef {import("./state.js").Job} Job */

const SLOTS = ["read", "diagnose", "explore", "timeline", "compare", "changes", "growth", "effects", "front", "cards"];
const LATER = ["timeline", "compare", "changes", "growth", "effects", "front", "cards"];

const KINDS = ["free", "slower", "changes the training"];
const AT_ONCE = 2; // changes that one question prices: a newer job never waits for more

let state = stateOf(location.hash);
/** @type {Line} */
let line;
/** @type {TimelineView} */
let timelines;
/** @type {import("./controls.js").Refresh} */
let showControls = () => undefined;
/** @type {any} */
let catalog = null;
/** @type {any} */
let shown = null; // the last answer to `explore` that has a forecast
/** Keys of the shown job that change nothing here, and why. @type {Record<string, string>} */
let idle = {};
const parts = new Parts();
/** @type {{job: Job, what: string}[]} */
const undone = [];
let engineName = "";
let everything = 0; // counts jobs, so that a late answer knows it is late

// ---- state

/** @param {Job} changes @param {boolean} [dragging] */
function change(changes, dragging = false) {
  const job = { ...state.job };
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") delete job[name];
    else job[name] = value;
  }
  if (changes.params) delete job.model;
  go({ ...state, job }, dragging);
}

let dragged = false;

/** @param {import("./state.js").State} next @param {boolean} [dragging] */
function go(next, dragging = false) {
  state = next;
  const address = addressOf(state);
  if (address === location.hash && !dragged) return void (dragging || refresh());
  if (dragging || dragged) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  if (dragging && !dragged) dragged = true;
  if (!dragging) dragged = false;
  refresh();
}

/** @param {object} [more] */
const request = (more = {}) => ({ job: state.job, files: state.files, lang: language(), ...more });

// ---- showing

function refresh() {
  for (const view of VIEWS) {
    at(`view-${view}`).hidden = state.view !== view;
    at(`tab-${view}`).setAttribute("aria-selected", String(state.view === view));
    at(`tab-${view}`).tabIndex = state.view === view ? 0 : -1;
  }
  at("body").dataset.view = state.view;
  at("body").dataset.use = useOf(state.job);
  at("changes-title").textContent = say(state.job.engine ? "changes_serve" : "changes");
  at("body").classList.toggle("alone", state.view === "diagnose");
  at("controls").hidden = state.view === "diagnose";
  at("pin").textContent = state.pinned ? say("unpin") : say("pin");
  idle = {};
  showControls(state.job, shown?.decided ?? {}, idle);
  void explore();
}

async function explore() {
  if (!line) return;
  const mine = ++everything;
  const address = location.hash;
  line.forget([...LATER, "run"]);
  // What is offered for the job before would change this one.
  for (const button of document.querySelectorAll("#changes button")) button.setAttribute("disabled", "");
  at("result").setAttribute("aria-busy", "true");
  try {
    let answer = await line.ask("explore", "explore", request({ wait: false, pinned: state.pinned }));
    if (answer.pending && mine === everything) answer = await run(answer.pending);
    if (mine === everything) showAnswer(answer, mine);
  } catch (error) {
    if (!(error instanceof Overtaken) && mine === everything) problem(error);
  } finally {
    if (mine === everything) {
      at("result").dataset.of = address;
      at("result").removeAttribute("aria-busy");
    }
  }
}

/** @param {any} answer @param {number} mine */
function showAnswer(answer, mine) {
  const before = shown?.forecast;
  shown = answer;
  at("problem").hidden = true;
  at("result").classList.remove("stale", "starting");
  at("status").textContent = "";
  showForecast(answer, before);
  showMissing(answer.missing);
  showControls(state.job, answer.decided, idle);
  if (state.view === "timeline") void timelines.show();
  for (const more of [compare(mine), changes(mine), growth(mine), effects(mine)]) more.catch(() => undefined); // overtaken
}

/** A run on the virtual GPU: seconds, which are counted; the next job ends it. @param {string} why */
async function run(why) {
  const began = Date.now();
  const tell = () => (at("status").textContent = say("running", { why, seconds: String(Math.round((Date.now() - began) / 1000)) }));
  at("problem").hidden = true;
  at("result").classList.add("stale");
  tell();
  const clock = setInterval(tell, 1000);
  try {
    return await line.alone("run", "explore", request({ wait: true, pinned: state.pinned }));
  } finally {
    clearInterval(clock);
  }
}

/** Where no engine here can run the model: the command that can. @param {{text: string, command: string} | null} missing */
function showMissing(missing) {
  at("missing").hidden = missing === null;
  if (missing) at("missing").replaceChildren(missing.text, " ", make("code", {}, missing.command));
}

/** @param {any} answer @param {any} before */
function showForecast({ html, forecast }, before) {
  for (const name of ["verdict", "bar", "served", "phases", "lines", "host", "notes"]) put(at(`part-${name}`), html[name]);
  at("served").hidden = !html.served;
  at("host-memory").hidden = !html.host;
  at("growth-axes").hidden = Boolean(state.job.engine);
  at("growth-seq").textContent = say(state.job.task === "generate" ? "prompt" : "seq");
  parts.show(before ? highest(forecast) - highest(before) : 0);
}

/** @param {any} forecast */
const highest = ({ verdict }) => verdict.process_bytes ?? verdict.reserved_bytes ?? verdict.allocated_bytes ?? 0;

/** @param {unknown} error */
function problem(error) {
  at("status").textContent = "";
  at("missing").hidden = true;
  showProblem(error instanceof Error ? error.message : String(error), catalog, state.job, change);
  at("result").classList.add("stale");
}

// ---- changes, growth, comparison: a few at a time, so that a newer job never waits long

/** The newest run of each slot: an older one (the other axis) ends at its next answer, and never takes its place. @type {Map<string, object>} */
const runs = new Map();

/** @param {number} mine @param {string} slot @param {string} question @param {object} more @param {(data: any) => void} show */
async function stepwise(mine, slot, question, more, show, step = 2) {
  const run = {};
  runs.set(slot, run);
  for (let count = step; ; count += step) {
    const data = await line.ask(slot, question, request({ ...more, count }));
    if (mine !== everything || runs.get(slot) !== run) return;
    show(data);
    if (!data.more) return;
  }
}

/** @param {number} mine */
async function changes(mine) {
  try {
    await listChanges(mine);
  } catch (error) {
    if (error instanceof Overtaken) throw error;
    at("changes").replaceChildren(make("li", { class: "soft" }, error instanceof Error ? error.message : String(error)));
  }
}

/** @param {number} mine */
async function listChanges(mine) {
  const list = at("changes");
  if (!state.job.gpu) {
    list.replaceChildren(make("li", { class: "soft" }, say("no_card")));
    return;
  }
  /** @type {any[]} */
  const rows = [];
  parts.learn(rows);
  /** Each row is made once: it must not vanish under a pointer while others arrive. @type {Map<string, HTMLElement>} */
  const made = new Map();
  for (let skip = 0, more = true; more; skip += AT_ONCE) {
    const data = await line.ask("changes", "changes", request({ skip, count: AT_ONCE }));
    if (mine !== everything) return;
    more = data.more;
    rows.push(...data.changes);
    parts.learn(rows);
    rows.sort((one, other) => KINDS.indexOf(one.kind) - KINDS.indexOf(other.kind) || Number(other.fits) - Number(one.fits) || other.frees_bytes - one.frees_bytes);
    for (const row of data.changes) made.set(row.name, changeRow(row));
    const shownRows = rows.slice(0, 12).map((row) => made.get(row.name) ?? changeRow(row));
    if (more) shownRows.push(make("li", { class: "soft" }, say("working")));
    else if (!rows.length) shownRows.push(make("li", { class: "soft" }, data.said || say("no_changes")));
    for (const old of [...list.children]) if (!shownRows.includes(/** @type {HTMLElement} */ (old))) old.remove();
    shownRows.forEach((row, place) => list.children[place] === row || list.insertBefore(row, list.children[place] ?? null));
  }
}

/** @param {any} row */
function changeRow(row) {
  const facts = [row.kind_label, say("then", { size: row.peak })];
  if (row.fits) facts.push(say("fits"));
  const time = row.slowdown ? (row.slowdown[0] + row.slowdown[1]) / 2 - 1 : 0;
  if (Math.abs(time) >= 0.005) facts.push(say(time > 0 ? "slower" : "faster", { percent: `${(100 * Math.abs(time)).toFixed(0)} %` }));
  const apply = make("button", { type: "button", "aria-label": `${say("apply")}: ${row.label}`, onclick: () => {
    applyChange(row.set, row.label);
  } }, say("apply"));
  return make("li", { class: row.fits ? "fits-then" : "" },
    make("b", { class: "frees" }, row.frees),
    make("span", { class: "what", title: row.why }, row.label, make("small", {}, facts.join(" · "))),
    apply);
}

/** A change that can be undone. @param {Job} values @param {string} what */
function applyChange(values, what) {
  undone.push({ job: state.job, what });
  showUndo();
  state = { ...state, view: "explore" };
  change(values);
}

function showUndo() {
  const last = undone.at(-1);
  at("undo").hidden = last === undefined;
  if (last) at("undo").textContent = say("undo_what", { what: last.what });
}

/** @param {number} mine */
async function growth(mine) {
  const axis = at("growth-batch").getAttribute("aria-pressed") === "true" ? "batch" : "seq";
  if (!at("growth").hasChildNodes()) at("growth").replaceChildren(make("p", { class: "soft" }, say("working")));
  try {
    await stepwise(mine, "growth", "growth", { axis }, (data) => put(at("growth"), data.html));
  } catch (error) {
    if (error instanceof Overtaken) throw error;
    at("growth").replaceChildren(make("p", { class: "soft" }, error instanceof Error ? error.message : String(error)));
  }
}

/** What was said and changes nothing here: its control says so. @param {number} mine */
async function effects(mine) {
  for (let skip = 0, more = true; more; skip += 1) {
    const data = await line.ask("effects", "effects", request({ skip, count: 1 }));
    if (mine !== everything) return;
    more = data.more;
    idle = { ...idle, ...data.same };
  }
  showControls(state.job, shown?.decided ?? {}, idle);
}

/** @param {number} mine */
async function compare(mine) {
  at("nothing-pinned").hidden = state.pinned !== null;
  at("both").hidden = state.pinned === null;
  if (state.pinned === null) return;
  try {
    const answer = await line.ask("compare", "compare", request({ pinned: state.pinned }));
    if (mine === everything) put(at("both"), answer.html);
  } catch (error) {
    if (!(error instanceof Overtaken)) at("both").textContent = error instanceof Error ? error.message : String(error);
  }
}

const frontView = new FrontView((values, what) => applyChange(values, what));

async function front() {
  frontView.begin(Boolean(state.job.gpu));
  if (!state.job.gpu) return;
  try {
    await stepwise(everything, "front", "front", {}, (data) => frontView.show(data));
  } catch (error) {
    if (!(error instanceof Overtaken)) frontView.fail(error instanceof Error ? error.message : String(error));
  }
}

async function cards() {
  try {
    await stepwise(everything, "cards", "cards", {}, (data) => put(at("cards-chart"), data.html));
  } catch (error) {
    if (!(error instanceof Overtaken)) at("cards-chart").textContent = error instanceof Error ? error.message : String(error);
  }
}

// ---- copying, dropping, diagnosing

/** @param {string} kind */
async function copy(kind) {
  const text = kind === "link" ? location.href : (shown?.copies[kind] ?? "");
  const told = at("copied");
  const box = /** @type {HTMLTextAreaElement} */ (at("copy-text"));
  box.value = text;
  try {
    await navigator.clipboard.writeText(text);
    told.textContent = say("copied");
    box.hidden = true;
  } catch {
    told.textContent = say("not_copied");
    box.hidden = false;
    box.select();
  }
}

const drops = new Drops({
  ask: (question, asked) => line.ask("read", question, { ...asked, lang: language() }),
  takeModel: (name, text) => go({ ...state, view: "explore", job: { ...state.job, model: name }, files: { [name]: text } }),
  takeJob: (job) => {
    const kept = job.model ? { gpu: state.job.gpu } : state.job;
    go({ ...state, view: "explore", job: { ...kept, ...job }, files: job.model ? {} : state.files });
  },
  takeRecording: async (name, file, isSnapshot) => {
    timelines.add(name, file);
    if (state.view === "diagnose" && isSnapshot) await diagnose(file);
    else go({ ...state, view: "timeline" });
  },
  showLog,
  problem,
});

/** @param {string} text */
function showLog(text) {
  /** @type {HTMLTextAreaElement} */ (at("log")).value = text;
  go({ ...state, view: "diagnose" });
  void diagnose();
}

/** @param {string} [file] a snapshot that was sent, in place of the text */
async function diagnose(file) {
  const text = /** @type {HTMLTextAreaElement} */ (at("log")).value;
  const withJob = /** @type {HTMLInputElement} */ (at("with-job")).checked;
  at("diagnosis").textContent = say("working");
  try {
    const what = file ? { file } : { text };
    const answer = await line.ask("diagnose", "diagnose", withJob ? { ...request(), ...what } : { ...what, lang: language() });
    at("diagnosis").textContent = answer.text;
  } catch (error) {
    if (!(error instanceof Overtaken)) at("diagnosis").textContent = error instanceof Error ? error.message : String(error);
  }
}

// ---- words and colours

function translate() {
  for (const element of document.querySelectorAll("[data-say]")) element.textContent = say(element.getAttribute("data-say") ?? "");
  for (const element of document.querySelectorAll("[data-label]")) element.setAttribute("aria-label", say(element.getAttribute("data-label") ?? ""));
  if (engineName) at("where").textContent = say(engineName === "server" ? "in_server" : "in_browser");
  if (catalog) showControls = buildControls(catalog, change, (job) => go({ ...state, job }));
  showUndo();
}

/** @param {string} name @param {string} value */
function remember(name, value) {
  try {
    localStorage.setItem(`vramcast-${name}`, value);
  } catch {
    // a browser may refuse to remember; the page works without
  }
}

/** @param {string} name */
function remembered(name) {
  try {
    return localStorage.getItem(`vramcast-${name}`);
  } catch {
    return null;
  }
}

/** @param {string} theme */
function setTheme(theme) {
  document.body.classList.toggle("dark", theme === "dark");
  document.body.classList.toggle("light", theme === "light");
}

function watch() {
  addEventListener("popstate", () => {
    state = stateOf(location.hash);
    refresh();
  });
  VIEWS.forEach((view, number) => {
    at(`tab-${view}`).addEventListener("click", () => go({ ...state, view }));
    at(`tab-${view}`).addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step === undefined) return;
      const next = VIEWS[(number + step + VIEWS.length) % VIEWS.length];
      go({ ...state, view: next });
      at(`tab-${next}`).focus();
    });
  });
  at("language").addEventListener("click", () => {
    setLanguage(LANGUAGES[(LANGUAGES.indexOf(language()) + 1) % LANGUAGES.length]);
    remember("lang", language());
    void readCatalog().then(() => {
      translate();
      refresh();
    });
  });
  at("theme").addEventListener("click", () => {
    const dark = document.body.classList.contains("dark") || (!document.body.classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
    setTheme(dark ? "light" : "dark");
    remember("theme", dark ? "light" : "dark");
  });
  at("undo").addEventListener("click", () => {
    const last = undone.pop();
    if (last) go({ ...state, job: last.job });
    showUndo();
  });
  at("pin").addEventListener("click", () => go({ ...state, pinned: state.pinned ? null : state.job }));
  for (const kind of ["command", "yaml", "python", "markdown", "link"]) at(`copy-${kind}`).addEventListener("click", () => void copy(kind));
  for (const axis of ["seq", "batch"]) {
    at(`growth-${axis}`).addEventListener("click", () => {
      for (const other of ["seq", "batch"]) at(`growth-${other}`).setAttribute("aria-pressed", String(other === axis));
      growth(everything).catch(() => undefined);
    });
  }
  at("ask-front").addEventListener("click", () => void front());
  at("ask-cards").addEventListener("click", () => void cards());
  at("ask-log").addEventListener("click", () => void diagnose());
  const chooser = /** @type {HTMLInputElement} */ (at("file"));
  chooser.addEventListener("change", () => void drops.take(chooser.files));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    void drops.take(event.dataTransfer?.files ?? null);
  });
  parts.watch();
}

/** In the page's language. */
async function readCatalog() {
  if (line) catalog = await line.ask("read", "catalog", { lang: language() });
}

async function begin() {
  const asked = new URLSearchParams(location.hash.slice(1)).get("lang");
  setLanguage(asked ?? remembered("lang") ?? (navigator.language.startsWith("zh") ? "zh" : "en"));
  setTheme(remembered("theme") ?? "");
  translate();
  watch();
  const status = at("status");
  status.textContent = say("starting");
  try {
    const engine = await startEngine((step) => (status.textContent = say(`starting_${step}`)));
    engineName = engine.name;
    line = new Line(engine.ask, SLOTS, LATER, engine.name === "server" ? 2 : 1);
    timelines = new TimelineView((slot, question, more) => line.ask(slot, question, more), () => state);
    await readCatalog();
  } catch (error) {
    status.textContent = `${say("failed")}: ${error instanceof Error ? error.message : String(error)}`;
    return;
  }
  status.textContent = say("working");
  document.body.dataset.engine = engineName;
  translate();
  refresh();
}

void begin();
