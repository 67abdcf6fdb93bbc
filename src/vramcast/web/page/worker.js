/** Python in the browser: Pyodide with the engine's archive from the same folder; asks only `vramcast.web.answers`. */

/** @typedef {{engine: string, pyodide: string, packages: string[]}} Settings */

async function start() {
  const settings = /** @type {Settings} */ (await (await fetch("engine.json")).json());
  postMessage({ kind: "progress", text: "python" });
  const { loadPyodide } = await import(new URL(`${settings.pyodide}pyodide.mjs`, import.meta.url).href);
  const [python, ...archives] = await Promise.all([
    loadPyodide({ indexURL: new URL(settings.pyodide, import.meta.url).href }),
    ...settings.packages.map(async (name) => (await fetch(name)).arrayBuffer()),
  ]);
  postMessage({ kind: "progress", text: "engine" });
  for (const archive of archives) python.unpackArchive(archive, "bztar", { extractDir: "/engine" });
  const [answer, keep] = python.runPython(PROGRAM).toJs();
  onmessage = ({ data }) => {
    const told = data.question === "file" ? keep(data.name, new Uint8Array(data.bytes)) : answer(data.question, data.request);
    const [kind, text] = told.toJs();
    postMessage({ kind, text, number: data.number });
  };
  postMessage({ kind: "ready" });
}

const PROGRAM = `
import sys
sys.path.insert(0, "/engine")
import json
from pathlib import Path
from vramcast.errors import VramcastError
from vramcast.report.as_json import json_text
from vramcast.web.answers import answer
from vramcast.web.given import Place
from vramcast.web.recordings import Keeper

place = Place(folder=Path("/dropped"))

def told(make):
    try:
        return ["ok", json_text(make())]
    except VramcastError as error:
        return ["error", str(error)]
    except Exception as error:
        return ["error", f"a mistake of vramcast's own: {type(error).__name__}: {error}"]

def kept(name, data):
    keeper = Keeper(place, name)
    keeper.add(data.to_bytes())
    return {"file": keeper.close()}

[
    lambda question, request: told(lambda: answer(question, json.loads(request), place)),
    lambda name, data: told(lambda: kept(name, data)),
]
`;

start().catch((error) => postMessage({ kind: "broken", text: String(error?.message ?? error) }));
