"""The page and its two engines: `answers` is asked by both, in the browser under Pyodide and behind HTTP (`server`)."""
