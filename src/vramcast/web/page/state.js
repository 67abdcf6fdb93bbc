/**
 * The page's state and the address: everything that decides a picture is behind the # of the address, so that a link
 * is the whole question and the back button works. What is behind the # is never sent to a server.
 * @typedef {string | number | boolean | null | (string | number)[]} Value
 * @typedef {Record<string, Value>} Job
 * @typedef {{view: string, job: Job, pinned: Job | null, files: Record<string, string>}} State
 */

export const VIEWS = ["explore", "timeline", "compare", "diagnose"];

/** The worked example that a first visit shows. @type {Job} */
export const EXAMPLE = { model: "qwen3-8b", gpu: "rtx4090", tuning: "lora", checkpointing: "full", seq: 2048, batch: 1 };

const OWN = ["view", "pin", "file", "lang", "theme"];

/** Where values came from that files gave: key → value and `train.yaml:12`. @type {Map<string, {value: string, origin: string}>} */
const ORIGINS = new Map();

/** @param {Job} job @param {Record<string, string>} origins */
export function setOrigins(job, origins) {
  ORIGINS.clear();
  for (const [name, origin] of Object.entries(origins)) ORIGINS.set(name, { value: String(job[name]), origin });
}

/** Of a value that a file gave and nobody has changed since. @param {string} name @param {Value} value */
export function fileOf(name, value) {
  const known = ORIGINS.get(name);
  return known && known.value === String(value) ? known.origin : "";
}

/** @param {Job} job */
function jobText(job) {
  const said = Object.entries(job).filter(([, value]) => value !== null && value !== "" && value !== undefined);
  return new URLSearchParams(said.map(([name, value]) => [name, Array.isArray(value) ? value.join(",") : String(value)])).toString();
}

/** @param {URLSearchParams} words @returns {Job} */
function jobOf(words) {
  /** @type {Job} */
  const job = {};
  for (const [name, text] of words) {
    if (OWN.includes(name)) continue;
    job[name] = text === "true" ? true : text === "false" ? false : /^\d{1,15}$/.test(text) ? Number(text) : text;
  }
  return job;
}

/** @param {State} state */
export function addressOf(state) {
  const words = new URLSearchParams(jobText(state.job));
  if (state.view !== "explore") words.set("view", state.view);
  if (state.pinned) words.set("pin", jobText(state.pinned));
  for (const [name, text] of Object.entries(state.files)) words.append("file", `${name}:${toBase64(text)}`);
  return `#${words}`;
}

/** @param {string} address @returns {State} */
export function stateOf(address) {
  const words = new URLSearchParams(address.replace(/^#/, ""));
  const view = words.get("view") ?? "explore";
  const pin = words.get("pin");
  /** @type {Record<string, string>} */
  const files = {};
  for (const file of words.getAll("file")) {
    const at = file.indexOf(":");
    try {
      files[file.slice(0, at)] = fromBase64(file.slice(at + 1));
    } catch {
      // a link that was cut: the job says that its file is missing
    }
  }
  const job = jobOf(words);
  return {
    view: VIEWS.includes(view) ? view : "explore",
    job: Object.keys(job).length ? job : { ...EXAMPLE },
    pinned: pin ? jobOf(new URLSearchParams(pin)) : null,
    files,
  };
}

/** @param {string} text */
function toBase64(text) {
  let bytes = "";
  for (const byte of new TextEncoder().encode(text)) bytes += String.fromCharCode(byte);
  return btoa(bytes).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

/** @param {string} text */
function fromBase64(text) {
  const bytes = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return new TextDecoder().decode(Uint8Array.from(bytes, (letter) => letter.charCodeAt(0)));
}
