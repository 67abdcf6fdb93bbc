/** Small helpers around the DOM. Texts become text nodes; markup comes only from the engine, which escapes it. */

/**
 * @param {string} tag @param {Record<string, any>} [props] @param {...(Node | string)} children
 * @returns {HTMLElement}
 */
export function make(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children);
  return element;
}

/** The element of an id. @param {string} id @returns {HTMLElement} */
export function at(id) {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`no element ${id}`);
  return element;
}

/** Markup of the engine's. @param {Element} element @param {string} markup */
export function put(element, markup) {
  element.innerHTML = markup;
}

const GiB = 2 ** 30;

/** @param {number} bytes */
export function gib(bytes) {
  const size = bytes / GiB;
  const digits = Math.abs(size) >= 10 ? 1 : 2;
  return `${size.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} GiB`;
}

/** With its sign. @param {number} bytes */
export function difference(bytes) {
  return `${bytes < 0 ? "−" : "+"}${gib(Math.abs(bytes))}`;
}
