"use strict";
(() => {
  const EVERY = 2000; // milliseconds between two questions
  const $ = (id) => document.getElementById(id);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text !== undefined && text !== null) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) if (value) element.setAttribute(name, value);
    return element;
  };
  const percent = (value) => value === null || value === undefined ? "–" : (100 * value).toFixed(1);
  const bytes = (value) => value === null || value === undefined ? "–"
    : value < 1e5 ? `${value.toLocaleString("en")} B` : value < 1e8 ? `${(value / 1e6).toFixed(2)} MB` : `${(value / 1e9).toFixed(2)} GB`;
  const span = (seconds) => {
    if (seconds === null || seconds === undefined) return "–";
    const whole = Math.max(0, Math.round(seconds));
    if (whole < 90) return `${whole} s`;
    return whole < 5400 ? `${Math.round(whole / 60)} min` : whole < 172800 ? `${(whole / 3600).toFixed(1)} h` : `${Math.round(whole / 86400)} days`;
  };
  const ago = (moment, now) => moment === null || moment === undefined ? "–" : `${span(now - moment)} ago`;
  const moment = (text) => Date.parse(text) / 1000;
  const BAD = ["away", "left out", "stopped", "unreachable", "refused", "replaced", "failed"];

  const fill = (id, heads, rows) => {
    const head = make("tr");
    heads.forEach((text) => head.append(make("th", text, { scope: "col", "data-head": text })));
    const body = make("tbody");
    rows.forEach(([name, ...cells]) => {
      const row = make("tr");
      row.append(make("th", name, { scope: "row" }));
      cells.forEach((cell, i) => {
        const shown = cell instanceof Node ? cell : make("td", cell);
        shown.dataset.head = heads[i + 1];
        row.append(shown);
      });
      body.append(row);
    });
    const top = make("thead");
    top.append(head);
    $(id).replaceChildren(top, body);
  };
  const show = (id, is) => { if ($(id)) $(id).hidden = !is; return is && $(id); };

  const away = (state) => state.clients.filter((row) => row.state === "away");
  const summary = (state) => {
    const parts = [];
    const right = (found) => `${percent(found.overall)}% right overall, ${percent(found.minority)}% of minority nodes`;
    if (state.server === "stopped") parts.push("The server is stopped.");
    if (state.state === "asking") parts.push("Sites are asked whether they take part.");
    (state.asking || []).forEach((run) => parts.push(`${run} waits for your answer: fedspray site accept KIT ${run}, or refuse.`));
    if ((state.waiting_for || []).length && state.now - state.waiting_since > 2) parts.push(`Waiting for ${state.waiting_for.join(", ")}, for ${span(state.now - state.waiting_since)}.`);
    away(state).forEach((row) => parts.push(`${row.name} is away, for ${span(state.now - moment(row.since))}.`));
    if (state.result) parts.unshift(`Done, ${state.rounds} rounds. On test nodes: ${right(state.result)}.`);
    else if (state.accuracy) parts.push(`Round ${state.round} of ${state.rounds}. On validation nodes: ${right(state.accuracy)}.`);
    if (state.seconds_left !== null && state.seconds_left !== undefined) parts.push(`About ${span(state.seconds_left)} left.`);
    if (state.reason) parts.push(state.reason);
    Object.entries(state.certificates || {}).forEach(([kit, days]) => {
      if (days < 30) parts.push(`The certificate of ${kit} ends in ${days} days.`);
    });
    return parts.join(" ") || state.state;
  };
  const subtitle = (state) => [state.name, state.state, state.seeds && state.seeds.length > 1 ? `seed ${state.seed} of ${state.seeds.length} seeds` : null,
    state.bytes ? `${bytes(state.bytes.up)} sent to the server` : null, state.bytes && state.bytes.down !== undefined ? `${bytes(state.bytes.down)} sent back` : null]
    .filter(Boolean).join(" · ");

  const draw = (id, title, traces) => {
    if (!window.Plotly) return;
    const few = Math.max(...traces[0].x) < 10; // else half rounds are marked
    const axis = { gridcolor: css("--grid"), zeroline: false, linecolor: css("--line") };
    window.Plotly.react($(id), traces, {
      autosize: true, margin: { l: 48, r: 12, t: 8, b: 40 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: css("--text"), size: 13 }, legend: { orientation: "h", y: 1.12 },
      xaxis: { ...axis, title: { text: "round" }, ...(few ? { dtick: 1 } : {}) }, yaxis: { ...axis, title: { text: title }, rangemode: "tozero" } },
    { responsive: true, displayModeBar: false });
  };
  const line = (name, x, y, color) => ({ type: "scatter", mode: x.length < 3 ? "lines+markers" : "lines", name, x, y, line: { color, width: 2.4 } });

  const paint = (state) => {
    $("title").textContent = state.title;
    $("subtitle").textContent = subtitle(state);
    $("summary").textContent = summary(state);
    $("summary").classList.toggle("bad", away(state).length > 0 || state.server === "stopped");
    if (show("report", state.kind === "project" && state.result)) $("report").firstElementChild.href = `report${location.search}`;
    if (show("progress", state.rounds && state.kind !== "site")) $("progress").value = state.round / state.rounds;
    if (show("curves", state.curve && state.curve.rounds.length)) {
      draw("curve", "accuracy, %", [line("overall", state.curve.rounds, state.curve.overall.map((v) => v === null ? null : 100 * v), css("--gain")),
        line("minority", state.curve.rounds, state.curve.minority.map((v) => v === null ? null : 100 * v), css("--loss"))]);
    }
    if (show("sent", state.sent && state.sent.rounds.length)) draw("sent-chart", "bytes", [line("bytes", state.sent.rounds, state.sent.bytes, css("--gain"))]);
    const deployed = state.kind !== "run" || state.clients.some((row) => row.since !== undefined);
    if (show("sites", state.clients.length)) {
      $("sites-title").textContent = deployed ? "Sites" : "Clients";
      const label = (row) => {
        const cell = make("td", null, { class: BAD.includes(row.state) ? "bad" : "" });
        const since = row.since ? ` for ${span(state.now - moment(row.since))}` : "";
        cell.append(make("b", row.state + (row.state === "never seen" || row.state === "removed" ? "" : since)));
        if (row.reason) cell.append(make("small", row.reason));
        return cell;
      };
      const figures = state.kind !== "site"; // its ledger has none
      const heads = [deployed ? "site" : "client", "state", ...(deployed ? ["last answer"] : []), ...(figures ? ["overall, %", "minority, %"] : []), "sent", ...(state.left_bytes ? ["in the last round"] : [])];
      fill("site-table", heads, state.clients.map((row) => [row.name, label(row),
        ...(deployed ? [ago(row.last_answer, state.now)] : []), ...(figures ? [percent(row.overall), percent(row.minority)] : []), bytes(row.bytes_up), ...(state.left_bytes ? [bytes(row.bytes_last)] : [])]));
    }
    if (show("cells", state.cells && state.cells.length)) {
      fill("cell-table", ["cell", "state", "round", "overall, %", "minority, %"], state.cells.map((cell) =>
        [cell.name, cell.state, `${cell.round} of ${cell.rounds}`, percent(cell.overall), percent(cell.minority)]));
    }
    if (show("left", state.left && state.left.length)) {
      const columns = Object.entries({ bytes: "bytes", server_gets: "the server gets", reveals: "it reveals", protection: "protection" })
        .filter(([key]) => state.left.some((row) => row[key])); // a coordinator does not know the bytes of a field
      fill("left-table", ["what", ...columns.map(([, head]) => head)], state.left.map((row) =>
        [row.what, ...columns.map(([key]) => key === "bytes" ? bytes(row[key]) : row[key] || "")]));
      const sum = state.left_bytes;
      $("left-title").textContent = sum ? "What leaves in each round" : "What left in the last round";
      $("left-bytes").textContent = sum ? `In the last one, ${bytes(sum.up)} of updates and ${bytes(sum.evaluation)} of counts for the evaluation left all ${deployed ? "sites" : "clients"} together.` : "";
    }
    if (show("events", state.events.length)) {
      $("event-list").replaceChildren(...state.events.map((event) => {
        const item = make("li");
        item.append(make("time", new Date(event.time).toLocaleTimeString(), { datetime: event.time, title: event.time }),
          make("b", event.sender), make("span", event.what.startsWith(event.event) ? event.what : `${event.event}: ${event.what}`));
        return item;
      }));
    }
    document.documentElement.dataset.ready = window.Plotly ? "charts" : "tables";
  };

  let last = JSON.parse($("data").textContent);
  let heard = Date.now();
  const ask = async () => {
    try {
      const answer = await fetch(`state.json${location.search}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(await answer.text());
      const state = await answer.json();
      heard = Date.now();
      if (state.done && !last.done) { location.reload(); return; } // a finished run's page is its report
      last = state;
      paint(state);
      $("age").textContent = "";
    } catch (error) {
      $("age").textContent = `No answer for ${span((Date.now() - heard) / 1000)}: ${error.message}`;
    }
    setTimeout(ask, EVERY);
  };
  const start = async () => {
    paint(last);
    setTimeout(ask, EVERY);
    if (!$("plotly").textContent) { ["curves", "sent"].forEach((id) => $(id).remove()); return; }
    const packed = Uint8Array.from(atob($("plotly").textContent), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    document.head.append(make("script", await new Response(stream).text()));
    paint(last);
  };
  start();
})();
