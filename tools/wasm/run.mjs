// Runs a script on MicroPython in WebAssembly, a 32-bit MicroPython, on node:
//
//   node run.mjs PACKAGE [--heapsize BYTES] [--path DIR]... [--see DIR]... SCRIPT [ARGUMENT]...
//
// PACKAGE is the folder of @micropython/micropython-webassembly-pyscript. The script's folder, and every folder named by
// --path (looked through for modules) and --see, is copied into the interpreter's file system, at the same path. What
// the script prints goes to stdout as it comes; the exit status is the script's, 1 after an uncaught exception.

import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const COPIED = new Set([".py", ".mpy", ".json"]);

function fail(text) {
  fs.writeSync(2, `run.mjs: ${text}\n`);
  process.exit(2);
}

function parse(words) {
  const chosen = { heapsize: 1 << 20, path: [], see: [] };
  const [folder, ...rest] = words;
  while (rest.length > 0 && rest[0].startsWith("--")) {
    const name = rest.shift().slice(2);
    const value = rest.shift();
    if (value === undefined) fail(`--${name} wants a value`);
    if (name === "heapsize") {
      chosen.heapsize = Number(value);
      if (!Number.isInteger(chosen.heapsize) || chosen.heapsize < 65536) fail(`not a heap size in bytes: ${value}`);
    } else if (name === "path" || name === "see") {
      chosen[name].push(path.resolve(value));
    } else {
      fail(`there is no option --${name}`);
    }
  }
  if (folder === undefined || rest.length === 0) fail("usage: PACKAGE [options] SCRIPT [ARGUMENT]...");
  const [script, ...args] = rest;
  return { ...chosen, folder, script: path.resolve(script), args };
}

function copy(FS, folder) {
  FS.mkdirTree(folder);
  for (const entry of fs.readdirSync(folder, { withFileTypes: true })) {
    const name = path.join(folder, entry.name);
    if (entry.isDirectory()) {
      if (entry.name !== "__pycache__") copy(FS, name);
    } else if (COPIED.has(path.extname(name))) {
      FS.writeFile(name, fs.readFileSync(name));
    }
  }
}

// The package was built with assertions: each call through its function table, so each `try`, reads the table again,
// which takes a quarter of the time. Entries that were read are kept until the table changes.
function rememberEntries(table) {
  const { get, set, grow } = table;
  let entries = [];
  table.get = function (index) {
    return (entries[index] ??= get.call(this, index));
  };
  for (const [name, change] of Object.entries({ set, grow })) {
    table[name] = function (...args) {
      entries = [];
      return change.apply(this, args);
    };
  }
}

const chosen = parse(process.argv.slice(2));
rememberEntries(WebAssembly.Table.prototype);
const { loadMicroPython } = await import(pathToFileURL(path.join(chosen.folder, "micropython.mjs")));
const micropython = await loadMicroPython({
  heapsize: chosen.heapsize,
  linebuffer: false,
  stdout: (bytes) => fs.writeSync(1, bytes),
});
const scriptFolder = path.dirname(chosen.script);
for (const folder of new Set([scriptFolder, ...chosen.path, ...chosen.see])) copy(micropython.FS, folder);

const names = JSON.stringify([chosen.script, ...chosen.args]);
const folders = JSON.stringify([scriptFolder, ...chosen.path]);
// The script gets a __main__ with its own path in __file__, as on a computer.
const start = `
import sys
sys.path[:] = ${folders} + [".frozen"]
sys.argv[:] = ${names}
__file__ = sys.argv[0]
with open(__file__) as _script:
    _script = compile(_script.read(), __file__, "exec")
exec(_script)
`;
try {
  micropython.runPython(start);
} catch (error) {
  if (error.name !== "PythonError") throw error;
  const exit = /^SystemExit:? ?(.*)$/m.exec(error.message);
  if (error.type === "SystemExit" && exit) {
    process.exitCode = exit[1] === "" || exit[1] === "None" ? 0 : Number(exit[1]) || (exit[1] === "0" ? 0 : 1);
  } else {
    fs.writeSync(1, error.message.endsWith("\n") ? error.message : `${error.message}\n`);
    process.exitCode = 1;
  }
}
