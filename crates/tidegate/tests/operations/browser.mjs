// Drives headless Chromium over the DevTools protocol: `node --experimental-websocket browser.mjs URL FOLDER USER PASSWORD`. Visits
// every screen at two widths and at a zoom of 200 %, light and dark, with the keyboard only where that is possible, and prints a
// JSON object with what a test asserts. With a FOLDER other than `-` it also writes screenshots there. Rules of WCAG are checked
// by axe-core, if `npm ci` has installed it in testkit/chromium; `cargo xtask test` does.

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { startChromium } from "../../../../testkit/chromium/chromium.mjs";

const [url, folder, user, password, hostile = ""] = process.argv.slice(2);
const browser = await startChromium();
const tab = await browser.open();
const { errors, requests } = tab;
const page = tab.send.bind(tab);
const evaluate = tab.evaluate.bind(tab);
const until = tab.until.bind(tab);

async function key(name, text = undefined, modifiers = 0) {
  const codes = { Tab: 9, Enter: 13, Escape: 27 };
  const common = { key: name, code: name, windowsVirtualKeyCode: codes[name] ?? name.toUpperCase().charCodeAt(0), modifiers };
  await page("Input.dispatchKeyEvent", { type: "keyDown", text: text ?? (name === "Enter" ? "\r" : undefined), ...common });
  await page("Input.dispatchKeyEvent", { type: "keyUp", ...common });
}

async function view(width, height, dark) {
  await page("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 600 });
  await page("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }] });
}

async function picture(name) {
  if (folder === "-") return;
  const { data } = await page("Page.captureScreenshot", { format: "webp", quality: 80 });
  writeFileSync(join(folder, `${name}.webp`), Buffer.from(data, "base64"));
}

/** Width beyond the window, contrast of every text, and names of controls. */
const AUDIT = `(() => {
  const problems = [];
  const overflow = document.documentElement.scrollWidth - innerWidth;
  if (overflow > 1) problems.push("the page is " + overflow + " px wider than the window");
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => { const f = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const ground = (node) => { for (let at = node; at; at = at.parentElement) { const c = rgb(getComputedStyle(at).backgroundColor); if (c[3] > 250) return c; } return [255, 255, 255, 255]; };
  for (const node of document.querySelectorAll("body *")) {
    if (!node.checkVisibility?.() || ![...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim())) continue;
    if (node.closest("[disabled]")) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(ground(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) problems.push("contrast " + contrast.toFixed(2) + ": " + node.textContent.slice(0, 30));
  }
  for (const node of document.querySelectorAll("button, input, select, a")) {
    const name = node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.[0]?.textContent;
    if (!name) problems.push("a control without a name: " + node.outerHTML.slice(0, 60));
  }
  return problems;
})()`;

const AXE = new URL("../../../../testkit/chromium/node_modules/axe-core/axe.min.js", import.meta.url);
const axe = existsSync(AXE) ? readFileSync(AXE, "utf8") : null;

/** What the rules of WCAG 2.2, levels A and AA, find on the page. */
async function violations(where) {
  if (!axe) return [];
  if (!(await evaluate("Boolean(window.axe)"))) await evaluate(`${axe}; 0`);
  const tags = JSON.stringify(["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]);
  const ids = await evaluate(`axe.run({ runOnly: { type: "tag", values: ${tags} }, resultTypes: ["violations"] }).then((result) =>
    result.violations.map((rule) => rule.id + ": " + rule.nodes.map((node) => node.html.slice(0, 100)).slice(0, 3).join(" | ")))`);
  return ids.map((id) => `${where}: ${id}`);
}

const found = { errors, problems: [], violations: [], axe: Boolean(axe), screens: [], origins: [] };
try {
  await view(1280, 800, false);
  await page("Page.navigate", { url });
  await until("document.querySelector('form.login')", "the login form");
  found.violations.push(...await violations("login"));
  // The login works with the keyboard alone: the first field has the focus.
  await page("Input.insertText", { text: user });
  await key("Tab");
  await page("Input.insertText", { text: password });
  await key("Enter");
  await until("!document.getElementById('top').hidden", "the page after the login");
  const screens = ["overview", "pools", "clients", "servers", "hosts", "queries", "journal", "streams", "shapes", "config"];
  for (const [width, height] of [[1280, 800], [640, 400], [390, 844]]) {
    for (const dark of [false, true]) {
      await view(width, height, dark);
      for (const [at, screen] of screens.entries()) {
        await key(String((at + 1) % 10), String((at + 1) % 10));
        await until(`location.hash === '#${screen}' && document.querySelector('h1')`, screen);
        const followed = !["queries", "config"].includes(screen);
        await until(followed ? "document.body.dataset.live === 'yes'" : "!document.querySelector('.lead').textContent.includes('…')", `data of ${screen}`);
        for (const problem of await evaluate(AUDIT)) found.problems.push(`${screen} ${width}${dark ? " dark" : ""}: ${problem}`);
        // 640 pixels are 1280 at a zoom of 200 %.
        if (width !== 640) found.violations.push(...await violations(`${screen} ${width}${dark ? " dark" : ""}`));
        await picture(`${screen}-${width}${dark ? "-dark" : ""}`);
        if (width === 1280 && !dark) found.screens.push(await evaluate("document.querySelector('h1').textContent"));
      }
    }
  }
  await view(1280, 800, false);
  await key("2", "2");
  await until("[...document.querySelectorAll('td button')].some((b) => b.textContent === 'Kill')", "buttons of a pool");
  // Every control can be reached with Tab.
  const controls = await evaluate("[...document.querySelectorAll('a, button, input, select')].filter((n) => n.checkVisibility() && !n.disabled && !n.closest('dialog')).length");
  await evaluate("document.activeElement.blur()");
  const reached = new Set();
  for (let presses = 0; presses < controls + 10; presses += 1) {
    await key("Tab");
    reached.add(await evaluate("(() => { const a = document.activeElement; return a.tagName + '|' + (a.getAttribute('aria-label') || a.textContent); })()"));
  }
  found.controls = controls;
  found.reached = [...reached].filter((name) => /^(A|BUTTON|INPUT|SELECT)/.test(name)).length;
  // A table is sorted with the keyboard.
  await evaluate("document.querySelector('th button').focus()");
  await key("Enter");
  found.sorts = await evaluate("document.querySelector('th').getAttribute('aria-sort')");
  // A change asks first; the button stays disabled until the name is typed. The focus returns to the button.
  await evaluate("[...document.querySelectorAll('td button')].find((b) => b.textContent === 'Kill').focus()");
  await key("Enter");
  await until("document.getElementById('dialog').open", "the question");
  found.violations.push(...await violations("question"));
  const isDisabled = () => evaluate("document.querySelector('dialog .danger').disabled");
  found.asks = await isDisabled();
  await picture("kill-dialog");
  await page("Input.insertText", { text: await evaluate("document.querySelector('dialog label').textContent.split(' ')[1]") });
  found.asks = found.asks && !(await isDisabled());
  await key("Escape");
  await until("!document.getElementById('dialog').open", "the end of the question");
  found.returns = await evaluate("document.activeElement.textContent");
  await key("?", "?");
  await until("document.getElementById('dialog').open", "the list of keys");
  found.violations.push(...await violations("keys"));
  await key("Escape");
  await until("!document.getElementById('dialog').open", "the end of the list");
  // Names of clients are text.
  await key("3", "3");
  if (hostile) {
    await until(`document.querySelector('td')?.closest('table').textContent.includes(${JSON.stringify(hostile)})`, "the hostile name");
    found.injected = await evaluate("Boolean(window.injected) || Boolean(document.querySelector('main img, main script'))");
  }
  await evaluate("document.getElementById('logout').click()");
  await until("document.querySelector('form.login')", "the login form after logout");
  await picture("login");
} catch (error) {
  found.failure = String(error.stack);
}
found.origins = [...requests];
process.stdout.write(JSON.stringify(found));
await browser.close();
process.exit(0);
