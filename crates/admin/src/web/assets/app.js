// The web console. No framework and no build: what is embedded is what runs. All data is text of clients and servers, so it
// reaches the page only through textContent and attributes, never as markup.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

/** Makes an element; children are elements or text. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

function svg(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// --- Text of values ---------------------------------------------------------------------------------------------------

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function count(value) {
  if (value == null) return "";
  if (value >= 1e7) return `${(value / 1e6).toFixed(1)} M`;
  return NUMBER.format(value);
}

function rate(value) {
  return value == null ? "" : value < 10 ? value.toFixed(1) : count(value);
}

/** A duration in milliseconds. */
function ms(value) {
  if (value == null || value === "") return "";
  if (value === 0) return "0";
  if (value < 1) return `${(value * 1000).toFixed(0)} µs`;
  if (value < 10) return `${value.toFixed(2)} ms`;
  if (value < 1000) return `${value.toFixed(0)} ms`;
  return seconds(value / 1000);
}

const us = (value) => (value == null ? "" : ms(value / 1000));

function seconds(value) {
  if (value == null) return "";
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`;
}

function bytes(value) {
  if (value == null) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
}

const percent = (value) => (value == null ? "" : `${(value * 100).toFixed(value < 0.1 ? 1 : 0)} %`);
const clock = (at) => new Date(at).toISOString().replace("T", " ").slice(0, 19);

/** Rows of `{columns, rows}` as objects. */
function objects(table) {
  const columns = table?.columns ?? [];
  return (table?.rows ?? []).map((row) => Object.fromEntries(columns.map((name, at) => [name, row[at]])));
}

// --- Requests ---------------------------------------------------------------------------------------------------------

class Refused extends Error {}

async function request(path, body) {
  const options = body === undefined ? {} : {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin" });
  } catch {
    throw new Refused("The gateway does not answer.");
  }
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401 && path !== "/api/login") showLogin("The login has ended.");
  if (!response.ok) throw new Refused(answer.error ?? `The gateway answers ${response.status}.`);
  return answer;
}

let statusTimer;
function say(text) {
  $("status").textContent = text;
  clearTimeout(statusTimer);
  statusTimer = setTimeout(() => { $("status").textContent = ""; }, 8000);
}

// --- Tables -----------------------------------------------------------------------------------------------------------

/**
 * A table that updates in place, so that focus, selection and scroll position stay. A column has `key`, `label`, and may
 * have `show(value, row)` for text or an element, `number`, `wide` (left out on narrow screens) and `sort(row)`.
 */
class Table {
  constructor(label, columns, { key, sort, descending = true, filter = true, actions, empty = "Nothing to show." } = {}) {
    Object.assign(this, { columns, key, sort, descending, actions, emptyText: empty });
    this.rows = [];
    this.known = new Map();
    this.search = el("input", {
      type: "search", placeholder: "Filter ( / )", "aria-label": `Filter: ${label}`, oninput: () => this.draw(),
    });
    this.counter = el("span", { class: "count" });
    this.body = el("tbody");
    this.heads = columns.map((column) => this.head(column));
    const last = actions ? [el("th", { scope: "col" }, "Actions")] : [];
    const head = el("thead", {}, el("tr", {}, ...this.heads, ...last));
    this.table = el("table", { "aria-label": label }, head, this.body);
    this.empty = el("p", { class: "empty", hidden: true }, empty);
    this.panel = el("div", { class: "panel", tabindex: 0, role: "region", "aria-label": `${label}: table` }, this.table, this.empty);
    this.node = el("div", {}, filter ? el("div", { class: "bar" }, this.search, this.counter) : null, this.panel);
  }

  head(column) {
    const button = el("button", { type: "button", onclick: () => this.sortBy(column) }, column.label);
    return el("th", { scope: "col", class: classes(column) }, button);
  }

  sortBy(column) {
    this.descending = this.sort === column.key ? !this.descending : Boolean(column.number);
    this.sort = column.key;
    this.draw();
  }

  update(rows, total) {
    this.rows = rows;
    this.total = total ?? rows.length;
    this.draw();
  }

  draw() {
    const needle = this.search.value.trim().toLowerCase();
    let rows = this.rows;
    if (needle) rows = rows.filter((row) => Object.values(row).some((v) => String(v ?? "").toLowerCase().includes(needle)));
    const column = this.columns.find((known) => known.key === this.sort);
    if (column) {
      const value = column.sort ?? ((row) => row[column.key]);
      const sign = this.descending ? -1 : 1;
      rows = [...rows].sort((a, b) => sign * compare(value(a), value(b)));
    }
    this.columns.forEach((known, at) => {
      const order = known.key === this.sort ? (this.descending ? "descending" : "ascending") : "none";
      this.heads[at].setAttribute("aria-sort", order);
    });
    const seen = new Set();
    rows.forEach((row, at) => {
      const key = this.key(row);
      seen.add(key);
      let line = this.known.get(key);
      if (!line) { line = this.line(row); this.known.set(key, line); }
      this.fill(line, row);
      if (this.body.children[at] !== line.node) this.body.insertBefore(line.node, this.body.children[at] ?? null);
    });
    for (const [key, line] of this.known) if (!seen.has(key)) { line.node.remove(); this.known.delete(key); }
    const hidden = this.total > this.rows.length ? `, the first ${this.rows.length} of ${count(this.total)}` : "";
    this.counter.textContent = needle ? `${rows.length} of ${this.rows.length} rows${hidden}` : `${count(rows.length)} rows${hidden}`;
    this.empty.hidden = rows.length > 0;
    this.empty.textContent = needle ? "No row matches the filter." : this.emptyText;
  }

  line(row) {
    const cells = this.columns.map((column) => el("td", { class: classes(column) }));
    const line = { cells, texts: [], row };
    const buttons = this.actions ? [el("td", {}, el("div", { class: "row" }, ...this.actions(row, () => line.row)))] : [];
    line.node = el("tr", {}, ...cells, ...buttons);
    return line;
  }

  fill(line, row) {
    line.row = row;
    this.columns.forEach((column, at) => {
      const raw = row[column.key];
      const shown = column.show ? column.show(raw, row) : String(raw ?? "");
      if (shown instanceof Node) {
        // Elements are compared by their text, which says everything that they show.
        const text = shown.textContent;
        if (line.texts[at] !== text) line.cells[at].replaceChildren(shown);
        line.texts[at] = text;
      } else if (line.texts[at] !== shown) {
        line.cells[at].textContent = shown;
        line.texts[at] = shown;
      }
    });
  }
}

const classes = (column) =>
  [column.number && "number", column.wide && "wide", column.text && "text", column.statement && "statement"].filter(Boolean).join(" ") || null;

function compare(a, b) {
  if (typeof a === "number" || typeof b === "number") return (a ?? -1) - (b ?? -1);
  return String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true });
}

/** A share with a meter; the text says the same. */
function share(value, warn = 0.8, bad = 0.95) {
  if (value == null || !Number.isFinite(value)) return "";
  const meter = el("meter", { min: 0, max: 1, low: warn, high: bad, optimum: 0, value: Math.min(1, value), "aria-hidden": "true" });
  return el("span", {}, meter, percent(value));
}

const KINDS = {
  up: "good", running: "good", active: "good", ready: "good", idle: "quiet", unwatched: "quiet", new: "quiet", finished: "quiet",
  waiting: "warn", paused: "warn", lagging: "warn", stopped: "warn", suspended: "warn", restarting: "warn", silent: "warn",
  down: "bad", failed: "bad", closed: "bad", deposed: "bad", ejected: "bad", "shutting down": "bad",
};
const badge = (text) => (text ? el("span", { class: `badge ${KINDS[text] ?? "quiet"}` }, text) : "");

// --- Charts -----------------------------------------------------------------------------------------------------------

/** A line chart of one or two values of the samples. */
class Chart {
  constructor(title, lines) {
    this.lines = lines;
    this.title = title;
    this.now = el("b");
    this.svg = svg("svg", { class: "chart", viewBox: "0 0 600 100", preserveAspectRatio: "none", role: "img" });
    this.area = svg("path", { class: "area" });
    this.paths = lines.map((_, at) => svg("path", { class: at ? "line second" : "line" }));
    this.svg.append(svg("path", { class: "base", d: "M0 99.5H600" }), this.area, ...this.paths);
    this.node = el("figure", {}, el("figcaption", {}, el("span", {}, title), this.now), this.svg);
  }

  update(points) {
    const values = this.lines.map((line) => points.map((point) => point[line.key] ?? 0));
    const top = Math.max(1e-9, ...values.flat()) * 1.08;
    const x = (at) => ((at * 600) / Math.max(1, points.length - 1)).toFixed(1);
    values.forEach((series, index) => {
      const path = series.map((v, at) => `${at ? "L" : "M"}${x(at)} ${(99 - (v / top) * 97).toFixed(1)}`).join("");
      this.paths[index].setAttribute("d", path);
      if (index === 0) this.area.setAttribute("d", path ? `${path}L600 99.5L${x(0)} 99.5Z` : "");
    });
    const last = this.lines.map((line, at) => `${line.label} ${line.show(values[at].at(-1) ?? 0)}`).join(" · ");
    this.now.textContent = last;
    const peak = this.lines.map((line, at) => `${line.label} at most ${line.show(Math.max(0, ...values[at]))}`).join(", ");
    this.svg.setAttribute("aria-label", `${this.title}, last ${seconds(points.length)}: ${peak}`);
  }
}

// --- Dialogs ----------------------------------------------------------------------------------------------------------

/** Asks before a change. With `typed`, the user has to type that name. Resolves to whether to go on. */
function confirmed(title, text, { typed, verb = title } = {}) {
  return new Promise((resolve) => {
    const dialog = $("dialog");
    const go = el("button", { class: "danger", value: "yes", disabled: Boolean(typed) }, verb);
    const input = typed && el("input", { autocomplete: "off", spellcheck: "false", oninput: () => { go.disabled = input.value !== typed; } });
    const form = el("form", { method: "dialog" },
      el("h2", { id: "dialog-title" }, title),
      el("p", {}, text),
      typed && el("label", {}, `Type ${typed} to confirm`, input),
      el("div", { class: "buttons" }, el("button", { value: "no", formnovalidate: true }, "Cancel"), go));
    dialog.replaceChildren(form);
    dialog.returnValue = "no";
    dialog.onclose = () => resolve(dialog.returnValue === "yes" && !go.disabled);
    dialog.showModal();
    (input ?? form.querySelector("button")).focus();
  });
}

async function act(body, ask) {
  if (ask && !(await confirmed(ask.title, ask.text, ask))) return;
  try {
    const answer = await request("/api/action", body);
    say(answer.done ? `${answer.command}: done` : `${answer.command}: waiting for transactions to end`);
  } catch (error) {
    say(error.message);
  }
}

function button(label, name, onclick, danger = false) {
  return el("button", { type: "button", class: danger ? "danger" : null, "aria-label": `${label} ${name}`, onclick }, label);
}

function showKeys() {
  const rows = [["1 – 9, 0", "screens"], ["/", "filter"], ["p", "pause updates"], ["?", "this list"], ["Esc", "close"]];
  const list = el("dl", { class: "keys" });
  for (const [key, text] of rows) list.append(el("dt", {}, el("kbd", {}, key)), el("dd", {}, text));
  $("dialog").replaceChildren(el("form", { method: "dialog" },
    el("h2", { id: "dialog-title" }, "Keys"), list, el("div", { class: "buttons" }, el("button", {}, "Close"))));
  $("dialog").onclose = null;
  $("dialog").showModal();
}

// --- Screens ----------------------------------------------------------------------------------------------------------

let session = null;
let points = [];

function addPoint(point) {
  if (!point || point.at <= (points.at(-1)?.at ?? 0)) return;
  points.push(point);
  if (points.length > 600) points.shift();
}

const POOL_COLUMNS = [
  { key: "database", label: "Database" },
  { key: "user", label: "User" },
  { key: "use", label: "In use", number: true, show: (value) => share(value) },
  { key: "sv_active", label: "Active", number: true, show: count },
  { key: "sv_idle", label: "Idle", number: true, wide: true, show: count },
  { key: "pool_size", label: "Size", number: true, wide: true, show: count },
  { key: "cl_waiting", label: "Waiting", number: true, show: count },
  { key: "wait", label: "Max wait", number: true, show: ms },
  { key: "cl_active", label: "Clients", number: true, wide: true, show: count },
  { key: "pool_mode", label: "Mode", wide: true },
  { key: "state", label: "State", show: badge },
];

function poolRows(table) {
  return objects(table).map((row) => ({
    ...row,
    use: row.pool_size ? row.sv_active / row.pool_size : null,
    wait: Number(row.maxwait ?? 0) * 1000 + Number(row.maxwait_us ?? 0) / 1000,
    state: row.paused ? "paused" : row.cl_waiting > 0 ? "waiting" : "active",
  }));
}

const poolKey = (row) => `${row.database} ${row.user}`;

function overview() {
  const tiles = {};
  const tile = (key, name) => {
    const value = el("span", { class: "value" });
    const note = el("span", { class: "note" });
    tiles[key] = { value, note };
    return el("li", { class: "tile" }, el("span", { class: "name" }, name), value, note);
  };
  const charts = [
    new Chart("Transactions and queries per second", [
      { key: "transactions", label: "transactions", show: rate }, { key: "queries", label: "queries", show: rate }]),
    new Chart("Mean duration of a query, and wait for a server", [
      { key: "query_ms", label: "query", show: ms }, { key: "wait_ms", label: "wait", show: ms }]),
    new Chart("Clients that wait", [{ key: "waiting", label: "waiting", show: count }]),
    new Chart("Servers", [{ key: "servers_active", label: "active", show: count }, { key: "servers_idle", label: "idle", show: count }]),
    new Chart("Clients", [{ key: "clients", label: "clients", show: count }]),
    new Chart("Checkout timeouts and refused logins per second", [{ key: "errors", label: "errors", show: rate }]),
  ];
  const pools = new Table("Busiest pools", POOL_COLUMNS, { key: poolKey, sort: "use", filter: false });
  const reasons = new Table("How sessions ended", [
    { key: "reason", label: "Reason" }, { key: "what", label: "Event" }, { key: "count", label: "Since the start", number: true, show: count },
  ], { key: (row) => row.what + row.reason, sort: "count", filter: false, empty: "No session has ended yet." });
  const draw = () => charts.forEach((chart) => chart.update(points));
  const node = el("div", {},
    el("h1", {}, "Overview"),
    el("ul", { class: "tiles" }, tile("tps", "Transactions/s"), tile("query", "Query, mean"), tile("wait", "Wait, mean"), tile("waiting", "Clients waiting"),
      tile("clients", "Clients"), tile("servers", "Servers in use"), tile("errors", "Checkout timeouts"), tile("uptime", "Running for")),
    el("div", { class: "charts" }, ...charts.map((chart) => chart.node)),
    el("h2", {}, "Busiest pools"), pools.node, el("h2", {}, "How sessions ended"), reasons.node);
  request("/api/history").then((answer) => { points = answer.points; draw(); }, () => {});
  const set = (key, value, note = "", kind = "") => {
    tiles[key].value.textContent = value;
    tiles[key].value.className = `value ${kind}`;
    tiles[key].note.textContent = note;
  };
  return {
    node, topic: "overview",
    update(data) {
      addPoint(data.point);
      const now = data.point ?? {};
      $("phase").textContent = data.phase;
      $("phase").className = `badge ${KINDS[data.phase] ?? "quiet"}`;
      const rows = poolRows(data.pools);
      const longest = Math.max(0, ...rows.map((row) => row.wait));
      set("tps", rate(now.transactions), `${rate(now.queries)} queries/s`);
      set("query", ms(now.query_ms));
      set("wait", ms(now.wait_ms));
      set("waiting", count(now.waiting), longest ? `longest ${ms(longest)}` : "", now.waiting > 0 ? "warn" : "");
      set("clients", count(data.clients), `of ${count(data.clients_max)}`, data.clients > data.clients_max * 0.9 ? "bad" : "");
      set("servers", count(now.servers_active), `${count(now.servers_idle)} idle`);
      set("errors", count(data.checkout_timeouts), `${count(data.failed_logins)} failed logins`, data.checkout_timeouts ? "bad" : "");
      set("uptime", seconds(data.uptime_s), data.reload_is_success ? `loaded ${clock(data.reloaded_at).slice(5, 16)}` : "last reload failed", data.reload_is_success ? "" : "bad");
      draw();
      pools.update(rows.sort((a, b) => (b.use ?? -1) - (a.use ?? -1)).slice(0, 8), rows.length);
      const of = (counts, what) => Object.entries(counts).map(([reason, number]) => ({ reason, what, count: number }));
      reasons.update([...of(data.disconnects, "disconnect"), ...of(data.refusals, "refused login")]);
    },
  };
}

function pools() {
  const actions = session.may_change && ((row) => [
    button("Pause", row.database, () => act({ action: "pause", name: row.database },
      { title: `Pause ${row.database}`, verb: "Pause", text: "Clients of all its pools wait until it is resumed. Running transactions end first." })),
    button("Resume", row.database, () => act({ action: "resume", name: row.database })),
    button("Reconnect", row.database, () => act({ action: "reconnect", name: row.database },
      { title: `Reconnect ${row.database}`, verb: "Reconnect", text: "Server connections are replaced when their transactions end." })),
    button("Kill", row.database, () => act({ action: "kill", name: row.database },
      { title: `Kill ${row.database}`, verb: "Kill", typed: row.database, text: "All clients of this database are disconnected, and it is paused." }), true),
  ]);
  const isConsole = (row) => row.database === "pgbouncer" || row.database === "tidegate";
  const table = new Table("Pools", POOL_COLUMNS, { key: poolKey, sort: "cl_waiting", actions: actions && ((row) => (isConsole(row) ? [] : actions(row))) });
  const all = session.may_change ? el("div", { class: "bar" },
    el("button", { type: "button", onclick: () => act({ action: "pause" }, { title: "Pause all databases", verb: "Pause all", typed: "all", text: "Every client waits until all databases are resumed." }) }, "Pause all"),
    el("button", { type: "button", onclick: () => act({ action: "resume" }) }, "Resume all")) : null;
  return { node: el("div", {}, el("h1", {}, "Pools"), all, table.node), topic: "pools", update: (data) => table.update(poolRows(data), data.total) };
}

function clients() {
  const table = new Table("Clients", [
    { key: "id", label: "Id", number: true },
    { key: "state", label: "State", show: badge },
    { key: "wait_ms", label: "Wait", number: true, show: ms },
    { key: "database", label: "Database" },
    { key: "user", label: "User" },
    { key: "application", label: "Application" },
    { key: "address", label: "Address", wide: true },
    { key: "pinned", label: "Pinned by" },
    { key: "server", label: "Server", number: true, wide: true },
    { key: "request_age_ms", label: "Last request", number: true, wide: true, show: ms },
    { key: "age_s", label: "Connected for", number: true, wide: true, show: seconds },
    { key: "tls", label: "TLS", wide: true },
  ], {
    key: (row) => row.id, sort: "wait_ms", empty: "No client is connected.",
    actions: session.may_change && ((row) => [button("Kill", `client ${row.id}`, () => act({ action: "kill_client", id: row.id },
      { title: `Kill client ${row.id}`, verb: "Kill", text: `${row.user} in ${row.database} from ${row.address} is disconnected, and its transaction rolled back.` }), true)]),
  });
  return { node: el("div", {}, el("h1", {}, "Clients"), table.node), topic: "clients", update: (data) => table.update(objects(data), data.total) };
}

function servers() {
  const table = new Table("Servers", [
    { key: "ptr", label: "Id" },
    { key: "state", label: "State", show: badge },
    { key: "database", label: "Database" },
    { key: "user", label: "User" },
    { key: "addr", label: "Address", show: (value, row) => `${value}:${row.port}` },
    { key: "link", label: "Client", wide: true },
    { key: "remote_pid", label: "Postgres pid", number: true },
    { key: "connect_time", label: "Connected at", wide: true },
    { key: "request_time", label: "Last request at", wide: true },
    { key: "application_name", label: "Application", wide: true },
    { key: "tls", label: "TLS", wide: true },
  ], { key: (row) => row.ptr, sort: "state", descending: false, empty: "No server connection is open." });
  return { node: el("div", {}, el("h1", {}, "Server connections"), table.node), topic: "servers", update: (data) => table.update(objects(data), data.total) };
}

function hosts() {
  const table = new Table("Hosts", [
    { key: "database", label: "Database" },
    { key: "host", label: "Host", show: (value, row) => `${value}:${row.port}` },
    { key: "role", label: "Role" },
    { key: "state", label: "State", show: badge },
    { key: "lag_ms", label: "Lag", number: true, show: ms },
    { key: "lag_bytes", label: "Lag, bytes", number: true, wide: true, show: bytes },
    { key: "in_flight", label: "Transactions", number: true, wide: true, show: count },
    { key: "servers", label: "Connections", number: true, show: count },
    { key: "ejections", label: "Ejections", number: true, wide: true, show: count },
    { key: "last_error", label: "Last error", text: true },
  ], { key: (row) => `${row.database} ${row.host} ${row.port}`, sort: "database", descending: false });
  const list = el("ol", { class: "timeline" });
  const none = el("p", { class: "empty" }, "No server has changed its role or state. Single servers are not watched.");
  let shown = -1;
  return {
    node: el("div", {}, el("h1", {}, "Hosts"), table.node, el("h2", {}, "Timeline"),
      el("p", { class: "lead" }, "Changes of role and state, newest first, in UTC."), el("div", { class: "panel" }, list, none)),
    topic: "hosts",
    update(data) {
      table.update(objects(data.table), data.table.total);
      const newest = data.changes.at(-1)?.at ?? 0;
      if (newest === shown) return;
      shown = newest;
      none.hidden = data.changes.length > 0;
      list.replaceChildren(...[...data.changes].reverse().map((change) => {
        const what = change.before && change.before.role !== change.role && change.role === "primary" ? "became primary" :
          change.before ? `${change.before.role} ${change.before.state} → ${change.role} ${change.state}` : `seen as ${change.role}`;
        return el("li", {}, el("time", { datetime: new Date(change.at).toISOString() }, clock(change.at)),
          el("b", {}, `${change.host}:${change.port}`), el("span", {}, what), badge(change.state), el("span", { class: "quiet" }, change.database));
      }));
    },
  };
}

function queries() {
  const table = new Table("Statements", [
    { key: "share", label: "Share of time", number: true, show: (value) => share(value, 1, 1) },
    { key: "calls", label: "Calls", number: true, show: count },
    { key: "mean_us", label: "Mean", number: true, wide: true, show: us },
    { key: "p50_us", label: "p50", number: true, show: us },
    { key: "p99_us", label: "p99", number: true, show: us },
    { key: "max_us", label: "Max", number: true, wide: true, show: us },
    { key: "wait_us", label: "Wait", number: true, wide: true, show: us },
    { key: "rows", label: "Rows", number: true, wide: true, show: count },
    { key: "errors", label: "Errors", number: true, wide: true, show: count },
    { key: "statement", label: "Statement", text: true, statement: true, show: (value, row) => value ?? row.fingerprint },
  ], { key: (row) => row.fingerprint + row.statement, sort: "share", empty: "No query was recorded in this time." });
  const note = el("p", { class: "lead" });
  const period = el("select", { "aria-label": "Period", onchange: () => load() },
    ...[["5", "5 minutes"], ["15", "15 minutes"], ["60", "1 hour"], ["360", "6 hours"]].map(([value, text]) => el("option", { value, selected: value === "15" }, text)));
  const load = async () => {
    note.textContent = "Reading the query log …";
    try {
      const answer = await request(`/api/queries?minutes=${period.value}`);
      table.update(answer.statements);
      const hidden = answer.statement_is_hidden ? " Texts are shown to users of admin.users only." : "";
      const more = answer.is_complete ? "" : " There are more records: the figures cover the first part of the period.";
      note.textContent = `${count(answer.calls)} calls, ${us(answer.total_us)} in total, ${count(answer.errors)} errors.${more}${hidden}`;
    } catch (error) {
      note.textContent = error.message;
      table.update([]);
    }
  };
  load();
  const again = el("button", { type: "button", onclick: load }, "Read again");
  return { node: el("div", {}, el("h1", {}, "Slow queries"), el("div", { class: "bar" }, period, again), note, table.node) };
}

/** State of the query log, from rows of key and value. */
function journalTiles() {
  const tiles = {};
  const tile = ([key, name]) => {
    tiles[key] = { value: el("span", { class: "value" }), note: el("span", { class: "note" }) };
    return el("li", { class: "tile" }, el("span", { class: "name" }, name), tiles[key].value, tiles[key].note);
  };
  const names = [["state", "State"], ["disk", "On disk"], ["lag", "Lag"], ["written", "Written"], ["lost", "Lost"], ["memory", "In memory"]];
  const node = el("ul", { class: "tiles" }, ...names.map(tile));
  const set = (key, value, note = "", kind = "") => {
    tiles[key].value.textContent = value;
    tiles[key].value.className = `value ${kind}`;
    tiles[key].note.textContent = note;
  };
  const update = (table) => {
    const values = Object.fromEntries(objects(table).map((row) => [row.key, row.value]));
    const number = (key) => Number(values[key] ?? 0);
    const sum = (part) => Object.keys(values).filter((key) => key.includes(part)).reduce((total, key) => total + number(key), 0);
    const place = values.folder === "" ? "no files: records become spans only" : values.folder;
    set("state", values.state, values.last_error || place, { healthy: "good", off: "quiet", closed: "quiet" }[values.state] ?? "bad");
    set("disk", bytes(number("disk_bytes")), `${count(number("segments"))} files`);
    set("lag", us(number("lag_us")), `${bytes(number("queued_bytes"))} wait to be written`);
    set("written", count(number("written")), bytes(number("written_bytes")));
    const sampled = sum(".lost.sampled");
    const lost = sum(".lost.") - sampled;
    set("lost", count(lost), sampled ? `${count(sampled)} left out by sampling` : "", lost > 0 ? "bad" : "");
    set("memory", bytes(number("reserved_bytes")), `at most ${bytes(number("reserved_bytes_max"))}`);
  };
  return { node, update };
}

function journal() {
  const state = journalTiles();
  const table = new Table("Records", [
    { key: "at", label: "Time", show: (value) => new Date(value).toISOString().slice(11, 23) },
    { key: "kind", label: "Event" },
    { key: "total_us", label: "Took", number: true, show: us },
    { key: "statement", label: "Statement", text: true, statement: true, show: (value, row) => value ?? row.fingerprint ?? "" },
    { key: "sqlstate", label: "Error or reason", text: true, show: (value, row) => [value, row.message ?? row.reason].filter(Boolean).join(" ") },
    { key: "user", label: "User" },
    { key: "database", label: "Database" },
    { key: "application", label: "Application", wide: true },
    { key: "client", label: "Client", wide: true },
    { key: "wait_us", label: "Wait", number: true, wide: true, show: us },
    { key: "rows", label: "Rows", number: true, wide: true, show: count },
  ], { key: (row) => row.number, sort: "at", empty: "No record of this kind was written in this time." });
  const note = el("p", { class: "lead" });
  const choice = (label, values, chosen) => el("select", { "aria-label": label, onchange: () => load() },
    ...values.map(([value, text]) => el("option", { value, selected: value === chosen }, text)));
  const period = choice("Period", [["1", "1 minute"], ["5", "5 minutes"], ["15", "15 minutes"], ["60", "1 hour"]], "5");
  const only = choice("Records", [["all", "all records"], ["errors", "errors"], ["10", "10 ms or longer"], ["100", "100 ms or longer"], ["1000", "1 s or longer"]], "all");
  const load = async () => {
    note.textContent = "Reading the query log …";
    try {
      const answer = await request(`/api/records?minutes=${period.value}&only=${only.value}`);
      table.update(answer.records.map((record, number) => ({ ...record, number })), answer.matches);
      const hidden = answer.statement_is_hidden ? " Texts are shown to users of admin.users only." : "";
      const more = answer.is_complete ? "" : " There are more records: those shown are from the first part of the period.";
      const lost = answer.lost ? ` ${count(answer.lost)} records are missing, because the log was overloaded.` : "";
      note.textContent = `${count(answer.matches)} records, the latest first, in UTC.${lost}${more}${hidden}`;
    } catch (error) {
      note.textContent = error.message;
      table.update([]);
    }
  };
  load();
  const again = el("button", { type: "button", onclick: load }, "Read again");
  return {
    node: el("div", {}, el("h1", {}, "Query log"), state.node, el("h2", {}, "Latest records"), el("div", { class: "bar" }, period, only, again), note, table.node),
    topic: "journal",
    update: state.update,
  };
}

function streams() {
  const table = new Table("Streams", [
    { key: "name", label: "Name" },
    { key: "state", label: "State", show: badge },
    { key: "rate", label: "Records/s", number: true, show: count },
    { key: "lag", label: "Lag", number: true, show: count },
    { key: "oldest_ms", label: "Oldest", number: true, show: ms },
    { key: "in_flight", label: "In flight", number: true, wide: true, show: count },
    { key: "done", label: "Done", number: true, wide: true, show: count },
    { key: "retried", label: "Retried", number: true, wide: true, show: count },
    { key: "dead_lettered", label: "Dead letters", number: true, show: count },
    { key: "parked", label: "Parked", number: true, wide: true, show: count },
    { key: "source", label: "Source", wide: true },
    { key: "sink", label: "Sink", wide: true },
    { key: "last_error", label: "Last error", text: true },
  ], {
    key: (row) => row.name, sort: "name", descending: false, empty: "No stream is configured: see [[streams]].",
    actions: session.may_change && ((row, current) => {
      const verb = (label, ask) => button(label, row.name, () => act({ action: `stream_${label.toLowerCase()}`, name: row.name },
        ask && { title: `${label} ${row.name}`, verb: label, text: ask() }));
      return [verb("Pause"), verb("Resume"), verb("Stop", () => "The stream stops until it is started again."), verb("Start"),
        verb("Unpark", () => `Its parked records (${count(current().parked)} now) are delivered again, in the order of each key.`)];
    }),
  });
  return { node: el("div", {}, el("h1", {}, "Streams"), table.node), topic: "streams", update: (data) => table.update(objects(data), data.total) };
}

function shapes() {
  const table = new Table("Live queries", [
    { key: "table", label: "Table" },
    { key: "where", label: "Where", text: true },
    { key: "state", label: "State", show: badge },
    { key: "wait", label: "Waiting", number: true, show: count },
    { key: "rows", label: "Rows", number: true, show: (value) => (value === null ? "" : count(value)) },
    { key: "bytes", label: "Log", number: true, show: bytes },
    { key: "idle_s", label: "Last change", number: true, show: (value) => (value === null ? "" : ms(value * 1000)) },
    { key: "handle", label: "Handle", wide: true },
  ], { key: (row) => row.handle, sort: "wait", empty: "No live query is loaded." });
  const note = el("p", { class: "lead" });
  return {
    node: el("div", {}, el("h1", {}, "Live queries"), note, table.node),
    topic: "shapes",
    update({ table: shown, server }) {
      table.update(objects(shown), shown.total);
      const held = server?.slot_lag_bytes == null ? "" : ` The database keeps ${bytes(server.slot_lag_bytes)} of WAL for the slot.`;
      note.textContent = !server ? "No live queries are served: see [shapes]." :
        server.status === "active" ? `${count(server.shapes)} shapes, ${count(server.waiting)} requests wait, ${bytes(server.disk_bytes)} on disk.${held}` :
        `No changes arrive (${server.status}): ${server.reason}`;
    },
  };
}

function configuration() {
  const note = el("p", { class: "lead" });
  const columns = (last) => [
    { key: "key", label: "Key" }, { key: "value", label: "In force", text: true }, { key: "other", label: last, text: true }, { key: "by", label: "Applied by", wide: true },
  ];
  const named = (rows) => rows.map(([key, value, other, by]) => ({ key, value, other, by }));
  const diff = new Table("Differences", columns("In the file"), {
    key: (row) => row.key, sort: "key", descending: false, filter: false, empty: "The file has no other settings than those in force.",
  });
  const settings = new Table("Settings", columns("Default"), { key: (row) => row.key, sort: null });
  const load = async () => {
    try {
      const answer = await request("/api/config");
      const last = answer.reload_is_success ? `Loaded ${clock(answer.reloaded_at)} UTC` : "The last reload FAILED";
      note.textContent = `${answer.file ?? "Configuration"}. ${last}.${answer.error ? ` The file cannot be used: ${answer.error}` : ""}`;
      diff.update(named(answer.diff));
      settings.update(named(answer.rows));
    } catch (error) { note.textContent = error.message; }
  };
  load();
  const reload = session.may_change ? el("button", { type: "button", class: "primary", onclick: async () => {
    await act({ action: "reload" }, { title: "Reload the configuration", verb: "Reload", text: "The file is read again. A file with an error changes nothing." });
    load();
  } }, "Reload") : null;
  return { node: el("div", {}, el("h1", {}, "Configuration"), note,
    el("div", { class: "bar" }, reload, el("button", { type: "button", onclick: load }, "Read the file again")),
    el("h2", {}, "Differences between the file and the settings in force"), diff.node, el("h2", {}, "Settings in force"), settings.node) };
}

const SCREENS = [
  ["overview", "Overview", overview], ["pools", "Pools", pools], ["clients", "Clients", clients], ["servers", "Servers", servers],
  ["hosts", "Hosts", hosts], ["queries", "Slow queries", queries], ["journal", "Query log", journal], ["streams", "Streams", streams], ["shapes", "Live queries", shapes],
  ["config", "Configuration", configuration],
];

// --- The page ---------------------------------------------------------------------------------------------------------

let current = null;
let source = null;
let held = false;

function unfollow() {
  source?.close();
  source = null;
}

/** Follows again after the stream has broken, unless the login has ended. */
async function resume() {
  const answer = await request("/api/session").catch(() => null);
  if (answer && !answer.user) showLogin("The login has ended.");
  else if (answer) follow();
  else setTimeout(resume, 5000);
}

/** Follows the table of the current screen while the page is visible. */
function follow() {
  unfollow();
  if (!current?.topic || document.hidden || held) return;
  source = new EventSource(`/api/events?topic=${current.topic}`);
  source.onmessage = (event) => {
    const data = JSON.parse(event.data);
    current?.update(data);
    document.body.dataset.live = "yes";
  };
  source.onerror = () => {
    // The browser connects again by itself; only an ended login needs the page.
    if (source?.readyState === EventSource.CLOSED) setTimeout(resume, 2000);
    document.body.dataset.live = "no";
  };
}

function show() {
  if (!session) return;
  const name = location.hash.slice(1);
  const screen = SCREENS.find(([known]) => known === name) ?? SCREENS[0];
  for (const link of $("nav").children) {
    if (link.hash === `#${screen[0]}`) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "center" });
    } else {
      link.removeAttribute("aria-current");
    }
  }
  document.title = `${screen[1]} · Tidegate`;
  current = screen[2]();
  $("main").replaceChildren(current.node);
  document.body.dataset.live = "no";
  follow();
}

function start(answer) {
  session = answer;
  $("top").hidden = false;
  $("who").textContent = `${answer.user}${answer.may_change ? "" : " (read only)"} · ${answer.version}`;
  if ($("nav").children.length === 0) {
    $("nav").append(...SCREENS.map(([name, label]) => el("a", { href: `#${name}` }, label)));
  }
  show();
}

function showLogin(text = "") {
  unfollow();
  session = null;
  current = null;
  points = [];
  $("top").hidden = true;
  if ($("dialog").open) $("dialog").close();
  const user = el("input", { name: "user", autocomplete: "username", required: true });
  const password = el("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const error = el("p", { class: "error", role: "alert" }, text);
  const enter = el("button", { class: "primary" }, "Log in");
  const form = el("form", { class: "login", onsubmit: async (event) => {
    event.preventDefault();
    enter.disabled = true;
    error.textContent = "";
    try {
      start(await request("/api/login", { user: user.value, password: password.value }));
    } catch (refused) {
      error.textContent = refused.message;
      password.value = "";
      password.focus();
    }
    enter.disabled = false;
  } }, el("h1", {}, "Tidegate"), el("label", {}, "User", user), el("label", {}, "Password", password), error, enter);
  $("main").replaceChildren(form);
  user.focus();
}

function hold() {
  held = !held;
  $("hold").setAttribute("aria-pressed", String(held));
  $("hold").textContent = held ? "Updates paused" : "Pause updates";
  follow();
}

document.addEventListener("keydown", (event) => {
  if (!session || event.ctrlKey || event.metaKey || event.altKey || $("dialog").open) return;
  if (event.target instanceof HTMLElement && event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const digit = "1234567890".indexOf(event.key);
  if (digit >= 0 && digit < SCREENS.length) location.hash = SCREENS[digit][0];
  else if (event.key === "/") { event.preventDefault(); document.querySelector("main input[type=search]")?.focus(); }
  else if (event.key === "p") hold();
  else if (event.key === "?") showKeys();
});
document.addEventListener("visibilitychange", follow);
window.addEventListener("hashchange", () => { show(); $("main").focus(); });
$("hold").addEventListener("click", hold);
$("help").addEventListener("click", showKeys);
$("logout").addEventListener("click", async () => { await request("/api/logout", {}).catch(() => {}); showLogin(); });

fetch("/api/session", { credentials: "same-origin" })
  .then((response) => (response.ok ? response.json() : null))
  .then((answer) => (answer?.user ? start(answer) : showLogin()), () => showLogin("The gateway does not answer."));
