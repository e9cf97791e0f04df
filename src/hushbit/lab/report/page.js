"use strict";
(() => {
  const root = document.documentElement;
  const touch = matchMedia("(pointer: coarse)");
  const DASHES = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4" };
  const PRINTED_WIDTH = 660;
  const config = {
    displaylogo: false,
    displayModeBar: touch.matches ? true : "hover",
    responsive: true,
    plotlyServerURL: "",
    // An explicit list: no button that sends data anywhere can be added by default.
    modeBarButtons: [["toImage"], ["zoom2d", "pan2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]],
  };

  // Colours are defined in the style sheet only; an element resolves a variable in the current theme.
  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const faint = (rgb) => rgb.replace("rgb(", "rgba(").replace(")", ", 0.16)");

  const plots = [...document.querySelectorAll("figure.plot")].map((figure) => ({
    figure,
    drawing: figure.querySelector(".drawing"),
    legend: figure.querySelector(".legend"),
    given: JSON.parse(figure.querySelector('script[type="application/json"]').textContent),
    hidden: new Set(),
  }));

  const keysOf = (trace) => trace.meta.keys.map((key, row) => `${row} ${key}`);

  function themedTrace(trace, hidden) {
    const ink = colour(`series-${trace.meta.series}`);
    const themed = { ...trace, visible: !keysOf(trace).some((key) => hidden.has(key)) };
    if (trace.meta.band) return { ...themed, fillcolor: faint(ink) };
    themed.marker = { ...trace.marker, color: ink };
    if (trace.marker.line) themed.marker.line = { ...trace.marker.line, color: ink };
    if (trace.line) themed.line = { ...trace.line, color: ink };
    for (const bars of ["error_x", "error_y"]) {
      if (trace[bars]) themed[bars] = { ...trace[bars], color: ink };
    }
    return themed;
  }

  function themedLayout(layout, printing) {
    const ink = colour("ink-soft");
    const axis = (given) => ({
      ...given, gridcolor: colour("rule"), linecolor: colour("rule"), tickcolor: colour("rule"),
      dividercolor: colour("rule"),
    });
    const themed = {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(probe).fontFamily, size: 13, color: ink },
      hoverlabel: {
        bgcolor: colour("raised"), bordercolor: colour("rule"), font: { color: colour("ink") },
      },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: ink, activecolor: colour("accent") },
      xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
      dragmode: touch.matches ? false : "zoom", // on touch screens, dragging scrolls the page
    };
    themed.shapes = (layout.shapes ?? []).map((shape) => ({
      ...shape, line: { ...shape.line, color: ink },
      label: { ...shape.label, font: { size: 12, color: ink } },
    }));
    return printing ? { ...themed, width: PRINTED_WIDTH } : themed;
  }

  function draw(plot) {
    const printing = "printing" in root.dataset;
    const traces = plot.given.data.map((trace) => themedTrace(trace, plot.hidden));
    const layout = themedLayout(plot.given.layout, printing);
    const done = Plotly.react(plot.drawing, traces, layout, config);
    for (const button of plot.legend.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(!plot.hidden.has(button.value)));
      const ink = button.dataset.series === "" ? "ink-soft" : `series-${button.dataset.series}`;
      button.querySelector("g").setAttribute("stroke", colour(ink));
    }
    // Screen readers use the caption and the table instead of the parts of the drawing.
    for (const svg of plot.drawing.querySelectorAll(".main-svg")) svg.ariaHidden = "true";
    return done;
  }

  const MARKS = {
    "diamond-open": "M14 2l4 4-4 4-4-4z", square: "M11 3h6v6h-6z",
    "x-thin-open": "M11 3l6 6m0-6l-6 6", "cross-thin-open": "M14 2v8m-4-4h8",
    circle: "M11 6a3 3 0 1 0 6 0a3 3 0 1 0-6 0",
  };

  function swatch(dash, symbol) {
    const line = dash === undefined ? "" : `<path d="M1 6h26" stroke-dasharray="${DASHES[dash]}"/>`;
    const mark = symbol === undefined ? "" : `<path d="${MARKS[symbol]}"/>`;
    return `<svg aria-hidden="true" width="28" height="12" viewBox="0 0 28 12">` +
      `<g fill="none" stroke-width="2">${line}${mark}</g></svg>`;
  }

  // With two rows, the first shows colours (schemes) and the second dashes (variants).
  function look(trace, row, rows) {
    const dash = trace.line && (trace.line.dash ?? "solid");
    const symbol = trace.mode === "lines" ? undefined : trace.marker.symbol;
    if (rows === 1) return { series: trace.meta.series, picture: swatch(dash, symbol) };
    if (row === 0) return { series: trace.meta.series, picture: swatch("solid") };
    return { series: "", picture: swatch(dash, symbol) };
  }

  function makeLegend(plot) {
    const traces = plot.given.data.filter((trace) => !trace.meta.band);
    const rows = Math.max(...traces.map((trace) => trace.meta.keys.length));
    for (let row = 0; row < rows; row += 1) {
      const line = plot.legend.appendChild(document.createElement("div"));
      const seen = new Set();
      for (const trace of traces) {
        const key = keysOf(trace)[row];
        if (seen.has(key)) continue;
        seen.add(key);
        line.append(makeButton(plot, key, trace.meta.keys[row], look(trace, row, rows)));
      }
    }
  }

  function makeButton(plot, key, text, { series, picture }) {
    const button = document.createElement("button");
    button.type = "button";
    button.value = key;
    button.title = "Click to hide or show; double-click to show alone";
    button.dataset.series = series;
    button.innerHTML = picture;
    button.append(Object.assign(document.createElement("span"), { textContent: text }));
    button.addEventListener("click", () => toggle(plot, key));
    button.addEventListener("dblclick", () => isolate(plot, button));
    return button;
  }

  function toggle(plot, key) {
    if (!plot.hidden.delete(key)) plot.hidden.add(key);
    draw(plot);
  }

  function isolate(plot, button) {
    const others = [...button.parentNode.children].map((b) => b.value)
      .filter((key) => key !== button.value);
    const alone = others.every((key) => plot.hidden.has(key));
    plot.hidden.delete(button.value);
    for (const key of others) alone ? plot.hidden.delete(key) : plot.hidden.add(key);
    draw(plot);
  }

  // A plot in a closed section has no width; it is drawn when the section opens.
  const drawShown = (within = document) => Promise.all(
    plots.filter((plot) => within.contains(plot.figure) && plot.figure.checkVisibility()).map(draw));
  document.addEventListener("toggle", (event) => drawShown(event.target), true);

  // A link to a section opens it.
  const reveal = (hash) => {
    const section = document.getElementById(hash.slice(1))?.querySelector(":scope > details");
    if (section) section.open = true;
  };
  document.addEventListener("click", (event) => reveal(event.target.closest("a")?.hash ?? ""));

  const button = document.getElementById("theme");
  const nextOf = { system: "light", light: "dark", dark: "system" };
  const chosen = () => root.dataset.theme ?? "system";
  const showTheme = () => { button.textContent = `Theme: ${chosen()}`; };
  button.addEventListener("click", () => {
    const next = nextOf[chosen()];
    if (next === "system") delete root.dataset.theme;
    else root.dataset.theme = next;
    try { localStorage.setItem("hushbit-theme", next); } catch { /* see theme.js */ }
    showTheme();
    drawShown();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawShown());

  let unfolded = [];
  addEventListener("beforeprint", () => {
    root.dataset.printing = "";
    unfolded = [...document.querySelectorAll(".part:not([open]), .entry > details:not([open])")];
    for (const part of unfolded) part.open = true;
    drawShown();
  });
  addEventListener("afterprint", () => {
    delete root.dataset.printing;
    for (const part of unfolded) part.open = false;
    drawShown();
  });

  showTheme();
  plots.forEach(makeLegend);
  reveal(location.hash);
  drawShown().then(() => { root.dataset.drawn = ""; });
})();
