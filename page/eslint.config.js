import js from "@eslint/js";

const BROWSER = [
  "document", "window", "location", "history", "navigator", "localStorage", "fetch", "Worker", "URL", "URLSearchParams",
  "addEventListener", "matchMedia", "HTMLElement", "HTMLDetailsElement", "Element", "postMessage", "onmessage",
  "TextEncoder", "TextDecoder", "atob", "btoa", "console", "process", "setTimeout", "setInterval", "clearInterval", "AbortController", "requestAnimationFrame", "ResizeObserver", "getComputedStyle",
];

export default [
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2023, sourceType: "module", globals: Object.fromEntries(BROWSER.map((name) => [name, "writable"])) },
    rules: { eqeqeq: "error", "no-var": "error", "prefer-const": "error", "no-implicit-globals": "error", "no-eval": "error", complexity: ["error", 12] },
  },
];
