"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const MAX_ROWS = 40; // of the detailed card before a button asks for more; longer tables scroll on their own
  const FULL = 25; // points of difference with the strongest colour

  // Okabe and Ito's colours, and lighter ones of the same hue where the background is dark. The reference is grey.
  const COLOURS = {
    light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#882255", "#332288", "#7F7F00"],
    dark: ["#4FA8E0", "#F07F35", "#2CC295", "#E29BC4", "#E8B93E", "#8FD0F7", "#D46A9F", "#9C8DF0", "#C9C94A"],
  };
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "hexagon"];
  const shown = data.methods.map(() => true);
  const view = { group: "minority", order: "gain", card: 0, rows: MAX_ROWS, part: "test", metric: "minority",
    proxy: 0, plane: 0, what: "moves" };
  const drawn = {}; // chart id -> function that draws it again

  // ---- small things -----------------------------------------------------------------------------
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === undefined || value === null) continue;
      if (name === "text") element.textContent = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  };
  const minus = (text) => text.replace("-", "−");
  const signed = (value) => Math.abs(value) < 0.05 ? "0.0" : (value > 0 ? "+" : "−") + Math.abs(value).toFixed(1);
  const percent = (value) => value === null || value === undefined ? null : 100 * value;
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;"); // plotly reads some HTML
  const bucket = (b) => data.buckets[b].replace("-", "–");
  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  let printing = false;
  const theme = () => isDark() && !printing ? "dark" : "light";
  const colour = (index) => {
    const palette = COLOURS[theme()];
    if (data.methods[index].reference) return theme() === "dark" ? "#A3ADB8" : "#6B7280";
    const rank = data.methods.slice(0, index).filter((method) => !method.reference).length;
    return palette[rank % palette.length];
  };
  const classColour = (c) => COLOURS[theme()][c % COLOURS.light.length];
  const faded = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");
  const visible = () => data.methods.map((_, i) => i).filter((i) => shown[i]);

  // ---- controls ---------------------------------------------------------------------------------
  const segment = (title, key, choices, act) => {
    const name = `choice-${key}`;
    const box = make("div", { class: "segment" });
    for (const [value, text] of choices) {
      const input = make("input", { type: "radio", name, value, onchange: () => { view[key] = value; act(); } });
      if (view[key] === value) input.checked = true;
      box.append(make("label", {}, input, make("span", { text })));
    }
    return make("fieldset", { class: "control", role: "radiogroup", "aria-label": title }, make("span", { text: title }), box);
  };
  const picker = (title, key, choices, act) => {
    const select = make("select", { id: `pick-${key}`, onchange: (event) => { view[key] = Number(event.target.value); act(); } });
    choices.forEach(([value, text]) => select.append(make("option", { value, text })));
    select.value = view[key];
    return make("label", { class: "control" }, make("span", { text: title }), select);
  };
  const paintDots = () => document.querySelectorAll("[data-colour]").forEach((dot) => {
    dot.style.background = dot.style.borderColor = colour(Number(dot.dataset.colour));
  });
  const chartLegends = () => document.querySelectorAll(".chart-legend").forEach((box) => data.methods.forEach((method, i) => {
    const mark = box.closest("#curves") ? `line ${method.reference ? "dashed" : ""}` : "dot";
    box.append(make("span", { "data-method": i }, make("i", { class: mark, "data-colour": i }), document.createTextNode(method.label)));
  }));
  // Tables that go on beyond the edge fade out there, and say so.
  const showMore = () => document.querySelectorAll(".scroll").forEach((box) => {
    const more = box.scrollWidth - box.clientWidth - box.scrollLeft > 2;
    if (more === box.hasAttribute("data-more")) return;
    box.toggleAttribute("data-more", more);
    if (more) box.after(make("p", { class: "more-columns", "aria-hidden": "true", text: "more columns →" }));
    else box.nextElementSibling.remove();
  });
  const watchEdges = () => {
    const observer = new ResizeObserver(showMore);
    document.querySelectorAll(".scroll, .scroll > table").forEach((box) => observer.observe(box));
    document.addEventListener("scroll", showMore, true);
  };
  const methodChips = () => {
    if (data.methods.length < 2) { $("methods").hidden = true; return; }
    $("methods").append(make("span", { text: "Show" }));
    data.methods.forEach((method, i) => {
      const chip = make("button", { type: "button", class: "chip", "aria-pressed": "true", onclick: () => {
        shown[i] = !shown[i];
        chip.setAttribute("aria-pressed", String(shown[i]));
        document.querySelectorAll(`[data-method="${i}"]`).forEach((row) => row.classList.toggle("off", !shown[i]));
        drawTables();
        drawCharts();
      } }, make("span", { class: "dot", "data-colour": i }), document.createTextNode(method.label));
      $("methods").append(chip);
    });
  };

  // ---- the report card --------------------------------------------------------------------------
  const single = data.cards.length > 0 && data.cards[0].reference === null;
  const shade = (cell) => {
    if (single) return `color-mix(in oklab, var(--gain) ${Math.round(6 + 0.54 * cell.value)}%, var(--surface))`;
    const strength = Math.min(1, Math.abs(cell.value) / FULL);
    const most = cell.verdict === "unclear" ? 16 : 62;
    const least = cell.verdict === "unclear" ? 0 : 20;
    const tone = cell.value >= 0 ? "var(--gain)" : "var(--loss)";
    return `color-mix(in oklab, ${tone} ${Math.round(least + (most - least) * strength)}%, var(--surface))`;
  };
  const describe = (where, card, cell) => {
    const nodes = `${cell.nodes.toLocaleString("en")} node${cell.nodes === 1 ? "" : "s"}`
      + (cell.tests > cell.nodes ? `, tested ${cell.tests.toLocaleString("en")} times in ${card.seeds.length} seeds` : "");
    const method = data.methods[card.method].label;
    if (single) {
      return `${where}\n${method}: ${cell.value.toFixed(1)}% right (95% interval ${cell.low.toFixed(1)} to ${cell.high.toFixed(1)})\n${nodes}`;
    }
    return `${where}\n${method} ${cell.accuracy.toFixed(1)}% against ${card.reference} ${cell.reference.toFixed(1)}%: `
      + `${signed(cell.value)} points (95% interval ${signed(cell.low)} to ${signed(cell.high)})\n${nodes}`;
  };
  const heatCell = (where, card, cell, interval) => {
    if (!cell) return make("td", { class: "empty", text: "·", "aria-label": `${where}: no node` });
    const mark = cell.verdict === "gain" ? "▲" : cell.verdict === "loss" ? "▼" : "";
    const text = single ? cell.value.toFixed(0) : signed(cell.value);
    const td = make("td", { class: cell.verdict || "rate", "data-tip": describe(where, card, cell),
      "aria-label": describe(where, card, cell).replace(/\n/g, ". "), tabindex: "-1", text: mark ? `${mark} ${text}` : text });
    td.style.background = shade(cell);
    if (interval) {
      const range = single ? `${cell.low.toFixed(0)}–${cell.high.toFixed(0)}` : `${signed(cell.low)} to ${signed(cell.high)}`;
      td.append(make("small", { text: range }));
    }
    return td;
  };
  const clientOrder = () => {
    // By the best method's difference (or by accuracy): the clients with most to tell come first.
    const ids = data.clients.map((_, k) => k);
    if (view.order === "name") return ids;
    const top = (k) => {
      const values = data.cards.filter((card) => shown[card.method]).map((card) => card.clients[view.group][k]).filter(Boolean);
      return values.length ? Math.max(...values.map((cell) => cell.value)) : -Infinity;
    };
    return ids.sort((a, b) => top(b) - top(a) || a - b);
  };
  const drawOverview = () => {
    const gain = (card) => card.total[view.group] ? card.total[view.group].value : -Infinity;
    const cards = data.cards.filter((card) => shown[card.method]).sort((a, b) => gain(b) - gain(a));
    const table = $("overview");
    const head = make("tr", {}, make("th", { scope: "col", text: "client" }));
    const references = single ? [] : [...new Set(cards.map((card) => card.reference))]; // one for each backbone
    references.forEach((name) => head.append(make("th", { scope: "col", text: `${name}, %` })));
    cards.forEach((card) => {
      const index = data.cards.indexOf(card);
      const name = data.methods[card.method].label;
      const pick = single ? document.createTextNode(name) : make("button", { type: "button", text: name,
        "aria-pressed": String(index === view.card), title: `Show ${name} below`, onclick: () => { choose(index); } });
      head.append(make("th", { scope: "col", class: index === view.card && !single ? "on" : null }, pick));
    });
    const body = make("tbody");
    const row = (label, pickCell, kind) => {
      const first = cards.map(pickCell).find(Boolean);
      const count = first ? `${first.nodes.toLocaleString("en")} nodes` : "no node";
      const tr = make("tr", { class: kind }, make("th", { scope: "row" }, document.createTextNode(label), make("small", { text: count })));
      references.forEach((name) => {
        const cell = cards.filter((card) => card.reference === name).map(pickCell).find(Boolean);
        tr.append(make("td", { class: "base", text: cell ? cell.reference.toFixed(1) : "" }));
      });
      cards.forEach((card) => tr.append(heatCell(`${label}, ${groupName()}`, card, pickCell(card), true)));
      body.append(tr);
    };
    row("all clients", (card) => card.total[view.group], "sum");
    body.append(gap());
    clientOrder().forEach((k) => row(data.clients[k], (card) => card.clients[view.group][k]));
    table.replaceChildren(make("thead", {}, head), body);
    rove(table);
  };
  const gap = () => make("tr", { class: "gap", "aria-hidden": "true" }, make("td"));
  const groupName = () => view.group === "all" ? "all nodes" : `${view.group} nodes`;
  const drawDetail = () => {
    const card = data.cards[view.card];
    const table = $("detail");
    if (!table) return; // known from counts alone
    if (!card) { table.replaceChildren(); return; }
    const name = data.methods[card.method].label;
    $("detail-title").textContent = single ? "By client, class and local homophily" : `${name} by client, class and local homophily`;
    $("detail-where").textContent = view.group === "minority" ? card.where : "";
    const used = data.buckets.map((_, b) => b).filter((b) => card.buckets[view.group][b]);
    const head = make("tr", {}, make("th", { scope: "col", text: "client, class" }), make("th", { scope: "col", text: "all" }));
    used.forEach((b) => head.append(make("th", { scope: "col", text: bucket(b) })));
    const body = make("tbody");
    const sum = make("tr", { class: "sum" }, make("th", { scope: "row", text: "all clients" }),
      heatCell(`all clients, ${groupName()}`, card, card.total[view.group], false));
    used.forEach((b) => sum.append(heatCell(`all clients, ${groupName()}, homophily ${bucket(b)}`, card, card.buckets[view.group][b], false)));
    body.append(sum, gap());
    const position = new Map(clientOrder().map((k, i) => [k, i]));
    const rows = card.rows.filter((row) => view.group === "all" || row.group === view.group);
    rows.sort(view.order === "rows"
      ? (a, b) => b.all.value - a.all.value
      : (a, b) => position.get(a.client) - position.get(b.client) || b.all.value - a.all.value);
    let last = null;
    rows.slice(0, view.rows).forEach((row) => {
      const label = `${data.clients[row.client]}, ${data.classes[row.class]}`;
      const th = make("th", { scope: "row" }, document.createTextNode(data.clients[row.client]),
        make("small", { text: `${data.classes[row.class]}${row.group === "majority" ? " (majority)" : ""} · ${row.all.nodes}` }));
      if (last !== null && last !== row.client && view.order !== "rows") body.append(gap());
      const tr = make("tr", {}, th, heatCell(label, card, row.all, false));
      used.forEach((b) => tr.append(heatCell(`${label}, homophily ${bucket(b)}`, card, row.cells[b], false)));
      body.append(tr);
      last = row.client;
    });
    table.replaceChildren(make("thead", {}, head), body);
    $("detail-more").hidden = rows.length <= view.rows;
    $("detail-more").textContent = `Show all ${rows.length} rows`;
    rove(table);
  };
  const choose = (index) => {
    view.card = index;
    const select = $("pick-card");
    if (select) select.value = index;
    drawOverview();
    drawDetail();
  };
  const legend = () => {
    const ramp = make("span", { class: "ramp" });
    const steps = single ? [0, 25, 50, 75, 100] : [-FULL, -FULL / 2, 0, FULL / 2, FULL];
    steps.forEach((value) => {
      const piece = make("i");
      piece.style.background = shade({ value, verdict: value > 0 ? "gain" : value < 0 ? "loss" : "unclear" });
      ramp.append(piece);
    });
    const ends = single ? ["0%", "100% right"] : [minus(`-${FULL} points`), `+${FULL}`];
    $("card-legend").append(make("span", {}, document.createTextNode(ends[0]), ramp, document.createTextNode(ends[1])));
    if (!single) $("card-legend").append(make("span", { text: "▲ ▼ bold: the 95% interval leaves out 0 · pale: unclear" }));
    $("card-legend").append(make("span", { text: "Hover, tap or use the arrow keys for numbers." }));
  };
  const cardControls = () => {
    if (!data.cards.length) return;
    const again = () => { drawOverview(); drawDetail(); };
    $("card-controls").append(segment("Nodes", "group", [["minority", "minority"], ["majority", "majority"], ["all", "all"]], again));
    const rows = $("detail") ? [["rows", "best row"]] : [];
    $("card-controls").append(segment("Order", "order", [["gain", single ? "best client" : "largest gain"], ...rows, ["name", "name"]], again));
    if (data.cards.length > 1 && $("detail")) {
      $("card-controls").append(picker("Second table", "card", data.cards.map((card, i) => [i, data.methods[card.method].label]), () => choose(view.card)));
    }
    if ($("detail")) $("detail-more").addEventListener("click", () => { view.rows = Infinity; drawDetail(); });
    legend();
  };

  // Arrow keys move between the cells of a table, of which one is in the tab order.
  const rove = (table) => {
    table.parentElement.classList.toggle("long", table.rows.length > MAX_ROWS);
    const cells = [...table.querySelectorAll("tbody tr")].map((row) => [...row.querySelectorAll("td[data-tip]")]);
    if (cells.flat().length) cells.flat()[0].tabIndex = 0;
    table.onkeydown = (event) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      const at = document.activeElement;
      if (event.key === "Escape") hideTip();
      if (!step || !at.matches("td[data-tip]")) return;
      event.preventDefault();
      const r = cells.findIndex((row) => row.includes(at));
      let next = null;
      if (step[1]) next = cells[r][cells[r].indexOf(at) + step[1]];
      for (let i = r + step[0]; step[0] && i >= 0 && i < cells.length && !next; i += step[0]) {
        next = cells[i].find((cell) => cell.cellIndex === at.cellIndex);
      }
      if (next) { at.tabIndex = -1; next.tabIndex = 0; next.focus(); }
    };
  };
  const tip = $("tip");
  const showTip = (cell) => {
    tip.textContent = cell.dataset.tip;
    tip.hidden = false;
    const box = cell.getBoundingClientRect();
    const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 56 ? above : box.bottom + 8}px`;
  };
  const hideTip = () => { tip.hidden = true; };
  const tips = () => {
    const find = (event) => event.target.closest && event.target.closest("td[data-tip]");
    ["mouseover", "focusin", "click"].forEach((kind) => document.addEventListener(kind, (event) => {
      const cell = find(event);
      if (cell) showTip(cell); else if (kind !== "focusin") hideTip();
    }));
    document.addEventListener("focusout", hideTip);
    document.addEventListener("scroll", () => { // a focused cell may have been scrolled into view
      if (document.activeElement.matches("td[data-tip]:focus-visible")) showTip(document.activeElement); else hideTip();
    }, true);
  };

  // ---- charts -----------------------------------------------------------------------------------
  const css = (name) => printing && PRINT[name] ? PRINT[name] : getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const PRINT = { "--text": "#000000", "--muted": "#444444", "--grid": "#e4e4e4", "--surface": "#ffffff", "--line": "#cccccc" };
  const narrow = () => innerWidth < 640 && !printing;
  const layout = (extra) => {
    const axis = { gridcolor: css("--grid"), zerolinecolor: css("--line"), linecolor: css("--line"), tickfont: { size: 12 }, automargin: true };
    return {
      font: { family: "system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, DejaVu Sans, sans-serif", size: 12.5, color: css("--text") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
      margin: { l: 46, r: 12, t: 8, b: 38 }, dragmode: narrow() ? false : "zoom",
      hoverlabel: { bgcolor: css("--surface"), bordercolor: css("--line"), font: { color: css("--text"), size: 12.5 } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--muted"), activecolor: css("--text") },
      ...extra,
      xaxis: { ...axis, ...(extra.xaxis || {}) }, yaxis: { ...axis, ...(extra.yaxis || {}) },
    };
  };
  // The buttons are named one by one: plotly's own choice offers to send the chart to a server.
  const config = () => ({ responsive: true, displaylogo: false, displayModeBar: !narrow(), plotlyServerURL: "",
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]] });
  const PRINT_WIDTH = 690;
  const draw = (id, label, traces, options) => {
    const box = $(id);
    if (!box || !window.Plotly) return;
    box.setAttribute("role", "group"); // no image: its buttons can be reached
    box.setAttribute("aria-label", `Chart: ${label}`);
    const full = layout(options);
    if (printing) {
      const columns = box.closest(".charts") ? 2 : 1;
      Object.assign(full, { autosize: false, width: PRINT_WIDTH / columns - (columns - 1) * 12, height: Math.min(box.offsetHeight || 260, columns === 1 ? 260 : 230) });
    } else full.autosize = true;
    window.Plotly.react(box, traces, full, config());
  };
  // Where room is short, clients are named by what comes after their common beginning.
  const shortNames = () => {
    const names = data.clients;
    let same = 0;
    while (names.length > 1 && same < names[0].length && names.every((name) => name[same] === names[0][same])) same += 1;
    const cut = 1 + Math.max(...["_", "-", "."].map((mark) => names[0].lastIndexOf(mark, same - 1)));
    return names.map((name) => plain(same ? name.slice(cut) : name));
  };
  const NAMES = { type: "category" }; // whatever they look like: 1001 and 2021-05-01 are no places on a scale
  const clientAxis = () => narrow() || printing || data.clients.length > 12
    ? { ...NAMES, tickvals: data.clients.map(plain), ticktext: shortNames(), tickangle: data.clients.length > 20 ? -90 : 0 } : NAMES;
  const axisTitle = (text) => ({ text, font: { size: 12.5, color: css("--muted") }, standoff: 6 });

  const drawCurves = () => ["overall", "minority", "loss"].forEach((metric) => {
    const scale = metric === "loss" ? 1 : 100;
    const unit = metric === "loss" ? "" : "%";
    const times = (values) => values.map((value) => value === null ? null : scale * value);
    const traces = [];
    visible().forEach((i) => {
      const curve = data.curves[i], band = curve[view.part][metric], name = plain(data.methods[i].label);
      if (curve.best.length > 1) {
        traces.push({ x: [...curve.rounds, ...[...curve.rounds].reverse()], y: [...times(band.high), ...times(band.low).reverse()],
          type: "scatter", mode: "lines", fill: "toself", fillcolor: faded(colour(i), 0.15), line: { width: 0 }, hoverinfo: "skip", showlegend: false });
      }
      const range = curve.best.length > 1 ? band.mean.map((_, r) => band.low[r] === null ? "" : ` (${(scale * band.low[r]).toFixed(2)}–${(scale * band.high[r]).toFixed(2)})`) : undefined;
      traces.push({ x: curve.rounds, y: times(band.mean), name, type: "scatter", mode: "lines", customdata: range,
        line: { color: colour(i), width: 2, dash: data.methods[i].reference ? "dash" : DASHES[Math.floor(i / 9) % DASHES.length] },
        hovertemplate: `${name} %{y:.2f}${unit}%{customdata}<extra></extra>`.replace("%{customdata}", range ? "%{customdata}" : "") });
      const at = curve.best.map((round) => curve.rounds.findIndex((r) => r >= round));
      traces.push({ x: at.map((r) => curve.rounds[r]), y: at.map((r) => times(band.mean)[r]), type: "scatter", mode: "markers", hoverinfo: "skip", showlegend: false,
        marker: { color: colour(i), size: 8, symbol: SYMBOLS[i % SYMBOLS.length], line: { color: css("--surface"), width: 1.5 } } });
    });
    const range = ranges[view.part];
    draw(`curve-${metric}`, `${metric} by round for ${visible().map((i) => data.methods[i].label).join(", ")}`, traces, {
      hovermode: "x unified", xaxis: { title: axisTitle("round"), ...(range ? { range: [...range], autorange: false } : { autorange: true }) },
      yaxis: metric === "loss" ? { type: "log", dtick: 1, minor: { showgrid: true, gridcolor: css("--grid") } } : {} });
  });
  const ranges = {}; // zoomed rounds, shared by the three curves
  let following = false;
  const linkCurves = () => ["overall", "minority", "loss"].forEach((metric) => {
    $(`curve-${metric}`)?.on("plotly_relayout", (change) => {
      if (following) return;
      const from = change["xaxis.range[0]"] ?? (change["xaxis.range"] || [])[0];
      const to = change["xaxis.range[1]"] ?? (change["xaxis.range"] || [])[1];
      if (from === undefined && !change["xaxis.autorange"]) return;
      ["test", "val", "train"].forEach((part) => { if (from === undefined) delete ranges[part]; else ranges[part] = [from, to]; });
      following = true;
      const others = ["overall", "minority", "loss"].filter((other) => other !== metric)
        .map((other) => window.Plotly.relayout($(`curve-${other}`), from === undefined ? { "xaxis.autorange": true, "yaxis.autorange": true } : { "xaxis.range": [from, to] }));
      Promise.all(others).then(() => { following = false; });
    });
  });

  const drawClients = () => {
    const traces = visible().map((i) => {
      const rows = data.perClient[view.metric][i];
      const several = rows.some((row) => row.std !== null);
      return { type: "bar", name: plain(data.methods[i].label), x: data.clients.map(plain), y: rows.map((row) => percent(row.mean)),
        marker: { color: colour(i), pattern: { shape: data.methods[i].reference ? "/" : "", size: 5, solidity: 0.35, fillmode: "overlay" } },
        error_y: several ? { type: "data", array: rows.map((row) => percent(row.std) ?? 0), thickness: 1.2, width: 2, color: css("--muted") } : undefined,
        hovertemplate: `%{x}, ${plain(data.methods[i].label)}: %{y:.1f}%<extra></extra>` };
    });
    draw("client-bars", `${view.metric} test accuracy of each client by method`, traces, {
      barmode: "group", bargap: 0.22, bargroupgap: 0.06, xaxis: clientAxis(), yaxis: { title: axisTitle(`${view.metric} accuracy, %`), rangemode: "tozero" } });
  };
  const clientTable = () => {
    const head = make("tr", {}, make("th", { scope: "col", text: "client" }));
    visible().forEach((i) => head.append(make("th", { scope: "col", text: data.methods[i].label })));
    const body = make("tbody");
    data.clients.forEach((client, k) => {
      const rows = visible().map((i) => data.perClient[view.metric][i][k]);
      const best = Math.max(...rows.map((row) => row.mean ?? -1));
      const tr = make("tr", {}, make("th", { scope: "row", text: client }));
      rows.forEach((row) => tr.append(make("td", { class: row.mean === best && rows.length > 1 ? "best" : null,
        text: row.mean === null ? "n/a" : percent(row.mean).toFixed(2) + (row.std === null ? "" : ` ± ${percent(row.std).toFixed(2)}`) })));
      body.append(tr);
    });
    $("client-table")?.replaceChildren(make("thead", {}, head), body);
  };

  const drawFederation = () => {
    const federation = data.federation;
    if (!federation) return;
    const names = data.clients.map(plain);
    const counts = data.classes.map((label, c) => ({ type: "bar", name: plain(label), x: names, y: federation.clients.map((client) => client.label_counts[c]),
      marker: { color: classColour(c) }, hovertemplate: `%{x}, ${plain(label)}: %{y:,} nodes<extra></extra>` }));
    if (federation.unlabelled_nodes) {
      counts.push({ type: "bar", name: "no label", x: names, y: federation.clients.map((client) => client.unlabelled_nodes), marker: { color: css("--line") },
        hovertemplate: "%{x}, no label: %{y:,} nodes<extra></extra>" });
    }
    const legendBelow = { showlegend: data.classes.length <= 12, legend: { orientation: "h", y: -0.16, yanchor: "top", x: 0, font: { size: 12 } } };
    draw("label-counts", "labels of each client by class", counts, { barmode: "stack", bargap: 0.3, ...legendBelow, margin: { l: 46, r: 12, t: 8, b: 60 }, xaxis: clientAxis() });
    const dots = data.classes.map((label, c) => ({ type: "scatter", mode: "markers", name: plain(label), x: names,
      y: federation.clients.map((client) => percent(client.class_homophily[c])),
      customdata: federation.clients.map((client) => client.majority_class === c ? "majority class" : "minority class"),
      marker: { color: classColour(c), symbol: SYMBOLS[c % SYMBOLS.length], size: federation.clients.map((client) => client.majority_class === c ? 16 : 9),
        line: { color: css("--surface"), width: 1 } },
      hovertemplate: `%{x}, ${plain(label)} (%{customdata}): %{y:.1f}%<extra></extra>` }));
    draw("homophily", "average homophily of each class at each client", dots, { ...legendBelow, margin: { l: 46, r: 12, t: 8, b: 60 }, xaxis: clientAxis(), yaxis: { range: [-4, 106] } });
  };

  const proxyControls = () => {
    if (!data.proxies.length || !$("proxy-controls")) return;
    const runs = data.proxies.map((entry, i) => [i, `${data.methods[entry.method].label}, seed ${entry.seed}`]);
    $("proxy-controls").append(picker("Run", "proxy", runs, drawProxies));
    $("proxy-controls").append(picker("Class", "plane", [[0, "all"], ...data.classes.map((label, c) => [c + 1, label])], drawProxies));
    $("proxy-controls").append(segment("Similarity of", "what", [["moves", "moves"], ["proxies", "proxies"]], drawProxies));
  };
  const drawProxies = () => {
    const entry = data.proxies[view.proxy];
    if (!entry) return;
    drawPlane(entry);
    drawSimilarity(entry);
  };
  const part = (entry) => entry.clients.length < entry.of ? ` (the ${entry.clients.length} largest of ${entry.of} clients)` : "";
  const drawPlane = (entry) => {
    const plane = entry.planes[view.plane];
    const one = view.plane > 0;
    const few = entry.clients.length <= 15;
    $("proxy-caption").textContent = `Before and after alignment, round ${entry.round}` + (one ? `, ${data.classes[view.plane - 1]}` : "") + part(entry);
    const traces = [];
    (plane ? plane.classes : []).forEach((c, index) => {
      const own = plane.own.filter((point) => point.class === c);
      const name = plain(data.classes[c]);
      const ink = classColour(c);
      const [start, end] = [plane.sent[index], plane.aligned[index]];
      own.forEach((point) => traces.push({ type: "scatter", mode: "lines", x: [start[0], point.at[0]], y: [start[1], point.at[1]],
        line: { color: faded(ink, 0.35), width: 1 }, hoverinfo: "skip", showlegend: false }));
      traces.push({ type: "scatter", mode: "markers", x: [end[0]], y: [end[1]], showlegend: false, hovertemplate: `${name}, aligned<extra></extra>`,
        marker: { color: faded(ink, 0.55), size: 17, symbol: "diamond", line: { color: css("--text"), width: 1.5 } } });
      traces.push({ type: "scatter", mode: one && few ? "markers+text" : "markers", name, x: own.map((point) => point.at[0]), y: own.map((point) => point.at[1]),
        text: own.map((point) => plain(data.clients[point.client])), textposition: "top center", textfont: { size: 11 }, cliponaxis: false,
        customdata: own.map((point) => point.moved.toFixed(3)), hovertemplate: `%{text}, ${name}, before alignment<br>moved by %{customdata}<extra></extra>`,
        marker: { color: ink, size: 9, symbol: "circle", line: { color: css("--surface"), width: 1 } }, showlegend: true });
      traces.push({ type: "scatter", mode: "markers", x: [start[0]], y: [start[1]], showlegend: false, hovertemplate: `${name}, start of the round<extra></extra>`,
        marker: { color: css("--surface"), size: 10, symbol: "circle", line: { color: ink, width: 2 } } });
    });
    const share = (plane ? plane.explained : []).map((value) => `${(100 * value).toFixed(0)}%`);
    draw("proxy-plane", "class proxies of every client before and after alignment in two dimensions", traces, {
      showlegend: !one && data.classes.length <= 12, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, margin: { l: 46, r: 16, t: 30, b: 42 },
      xaxis: { title: axisTitle(`1st component (${share[0] || "0%"} of the variance)`), zeroline: false },
      yaxis: { title: axisTitle(`2nd component (${share[1] || "0%"})`), zeroline: false, scaleanchor: "x" } });
  };
  const drawSimilarity = (entry) => {
    const names = entry.clients.map((k) => plain(data.clients[k]));
    const values = entry.similarity[view.what][view.plane];
    $("similarity-caption").textContent = `Similarity of clients' ${view.what}, ${view.plane ? data.classes[view.plane - 1] : "mean over classes"}` + part(entry);
    const few = names.length <= 12;
    draw("proxy-similarity", "cosine similarity between clients", [{ type: "heatmap", x: names, y: names, z: values, zmin: -1, zmax: 1, xgap: 2, ygap: 2,
      colorscale: theme() === "dark" ? [[0, "#E08A2E"], [0.5, "#181D23"], [1, "#3F97E0"]] : [[0, "#D4700A"], [0.5, "#F4F5F6"], [1, "#1F78C1"]],
      text: values.map((row) => row.map((value) => value === null ? "" : minus(value.toFixed(2)))), texttemplate: few ? "%{text}" : "",
      textfont: { size: narrow() || printing ? 9 : 11 }, colorbar: { thickness: 10, len: 0.9, outlinewidth: 0, tickvals: [-1, 0, 1], ticktext: ["−1", "0", "1"] },
      hovertemplate: "%{x} and %{y}: %{text}<extra></extra>" }], {
      margin: { l: 60, r: 6, t: 30, b: 60 }, xaxis: { ...NAMES, showgrid: false, tickangle: few && !narrow() && !printing ? 0 : -90 }, yaxis: { ...NAMES, showgrid: false, autorange: "reversed" } });
  };

  const drawCost = () => {
    const order = [...visible()].reverse(); // horizontal bars are drawn from below
    const names = order.map((i) => plain(data.methods[i].label));
    const bars = (name, values, options, unit) => ({ type: "bar", orientation: "h", name, y: names, x: values, hovertemplate: `%{y}, ${name}: %{x:,.4~g} ${unit}<extra></extra>`, ...options });
    const tones = order.map((i) => colour(i));
    const kilo = (key) => order.map((i) => data.cost[i][key] / 1000);
    const below = { margin: { l: 60, r: 12, t: 8, b: 38 }, bargap: 0.35, yaxis: NAMES };
    draw("bytes", "kilobytes per client and round by method", [bars("up", kilo("up"), { marker: { color: tones } }, "kB"),
      bars("down", kilo("down"), { marker: { color: tones.map((tone) => faded(tone, 0.45)) } }, "kB")], { barmode: "stack", ...below, xaxis: { title: axisTitle("kB") } });
    draw("seconds", "seconds per round by method", [bars("CPU", order.map((i) => data.cost[i].cpu_seconds), { marker: { color: tones.map((tone) => faded(tone, 0.45)) } }, "s"),
      bars("wall", order.map((i) => data.cost[i].seconds), { marker: { color: tones } }, "s")], { barmode: "group", ...below, xaxis: { title: axisTitle("seconds") } });
  };

  Object.assign(drawn, { curves: drawCurves, clients: drawClients, federation: drawFederation, proxies: drawProxies, cost: drawCost });
  const drawCharts = () => Object.values(drawn).forEach((again) => again());
  const drawTables = () => {
    if (data.cards.length) { drawOverview(); drawDetail(); }
    clientTable();
  };
  const repaint = () => { paintDots(); drawCharts(); };

  // ---- start ------------------------------------------------------------------------------------
  const unpack = async () => {
    const bytes = Uint8Array.from(atob($("plotly").textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    document.head.append(make("script", { text: await new Response(stream).text() }));
    $("plotly").remove();
  };
  const begin = async () => {
    methodChips();
    chartLegends();
    cardControls();
    const best = data.cards.map((card) => card.total.minority ? card.total.minority.value : -Infinity);
    view.card = Math.max(0, best.indexOf(Math.max(...best)));
    if ($("pick-card")) $("pick-card").value = view.card;
    drawTables();
    tips();
    watchEdges();
    paintDots();
    $("curve-controls")?.append(segment("Nodes", "part", [["test", "test"], ["val", "validation"], ["train", "training"]], drawCurves));
    $("client-controls")?.append(segment("Accuracy", "metric", [["minority", "minority"], ["majority", "majority"], ["overall", "overall"]], () => { drawClients(); clientTable(); }));
    proxyControls();
    $("theme").addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; repaint(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    addEventListener("beforeprint", () => { printing = true; repaint(); });
    addEventListener("afterprint", () => { printing = false; repaint(); });
    try {
      await unpack();
      drawCharts();
      linkCurves();
      document.documentElement.dataset.ready = "charts";
    } catch (error) {
      document.querySelectorAll(".chart").forEach((box) => box.replaceChildren(make("p", { class: "fallback", text: "This browser cannot unpack the charts; results, report card, clients, federation and cost are in the tables too." })));
      document.documentElement.dataset.ready = "tables";
      console.warn(error);
    }
  };
  begin();
})();
