// Headless Chromium over the DevTools protocol, without packages: needs `node --experimental-websocket` before Node 22.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Starts a browser with a profile of its own. */
export async function startChromium() {
  const profile = mkdtempSync(join(tmpdir(), "tidegate-browser-"));
  const process = spawn("chromium", [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0", `--user-data-dir=${profile}`,
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-extensions", "about:blank",
  ], { stdio: ["ignore", "ignore", "pipe"] });
  const socketUrl = await new Promise((resolve, reject) => {
    let text = "";
    process.stderr.on("data", (chunk) => {
      text += chunk;
      const found = /DevTools listening on (ws:\S+)/.exec(text);
      if (found) resolve(found[1]);
    });
    process.on("error", reject);
    process.on("exit", () => reject(new Error(text)));
  });
  const socket = new WebSocket(socketUrl);
  await new Promise((resolve) => socket.addEventListener("open", resolve));
  return new Chromium(process, profile, socket);
}

class Chromium {
  #process;
  #profile;
  #socket;
  #number = 0;
  #waiting = new Map();
  #pages = new Map();

  constructor(process, profile, socket) {
    this.#process = process;
    this.#profile = profile;
    this.#socket = socket;
    socket.addEventListener("message", ({ data }) => this.#receive(JSON.parse(data)));
  }

  #receive({ id, error, result, sessionId, method, params }) {
    if (!id) return this.#pages.get(sessionId)?.receive(method, params);
    const { resolve, reject } = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (error) reject(new Error(error.message));
    else resolve(result);
  }

  send(method, params = {}, sessionId = undefined) {
    this.#number += 1;
    this.#socket.send(JSON.stringify({ id: this.#number, method, params, sessionId }));
    return new Promise((resolve, reject) => this.#waiting.set(this.#number, { resolve, reject }));
  }

  /** Opens a window with cookies and storage of its own. */
  async open() {
    const { browserContextId } = await this.send("Target.createBrowserContext");
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank", browserContextId });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page((method, params) => this.send(method, params, sessionId));
    this.#pages.set(sessionId, page);
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await page.send(`${domain}.enable`);
    return page;
  }

  async close() {
    await this.send("Browser.close").catch(() => {});
    this.#process.kill();
    await new Promise((resolve) => (this.#process.exitCode === null ? this.#process.on("exit", resolve) : resolve()));
    // Processes of the browser may write for a moment longer.
    for (let tries = 0; tries < 50; tries += 1) {
      try {
        return rmSync(this.#profile, { recursive: true, force: true });
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 100));
      }
    }
  }
}

class Page {
  /** Errors of the page, and the origins that it has asked. */
  errors = [];
  requests = new Set();

  constructor(send) {
    this.send = send;
  }

  receive(method, params) {
    if (method === "Log.entryAdded" && params.entry.level === "error") this.errors.push(params.entry.text);
    if (method === "Runtime.exceptionThrown") this.errors.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === "Network.requestWillBeSent" && !params.request.url.startsWith("data:")) this.requests.add(new URL(params.request.url).origin);
  }

  async evaluate(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  /** Waits until an expression is true. */
  async until(expression, what = expression) {
    for (let tries = 0; tries < 400; tries += 1) {
      if (await this.evaluate(`Boolean(${expression})`).catch(() => false)) return;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    throw new Error(`never: ${what}; ${JSON.stringify(this.errors)}`);
  }
}
