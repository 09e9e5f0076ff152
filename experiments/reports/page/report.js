/* Hover values, sorting and filtering of tables, and the timeline, of the page of a run. */
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  document.documentElement.classList.add("scripted");

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);

  function tell(text, x, y) {
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18}px`;
  }

  function node(name, attributes, parent, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  /* Values of a drawing: the nearest point, or the bar below the pointer. */
  for (const holder of document.querySelectorAll("script.hover")) {
    const { points, boxes } = JSON.parse(holder.textContent);
    const figure = holder.parentElement, image = figure.querySelector("img");
    const dot = document.createElement("div");
    dot.className = "dot";
    dot.hidden = true;
    figure.append(dot);
    image.addEventListener("pointermove", (event) => {
      const box = image.getBoundingClientRect(), outer = figure.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
      let best = null, least = 20;
      for (const point of points) {
        const away = Math.hypot((point[0] - x) * box.width, (point[1] - y) * box.height);
        if (away < least) [best, least] = [point, away];
      }
      const bar = boxes.find(([left, top, right, low]) => left <= x && x <= right && top <= y && y <= low);
      dot.hidden = !best;
      if (best) {
        dot.style.left = `${box.left - outer.left + figure.scrollLeft + best[0] * box.width}px`;
        dot.style.top = `${box.top - outer.top + best[1] * box.height}px`;
      }
      tell(best ? best[2] : bar ? bar[4] : "", event.clientX, event.clientY);
    });
    image.addEventListener("pointerleave", () => { dot.hidden = true; tell(""); });
  }

  /* Tables: click on a heading to sort, type to filter. */
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v);
  };
  for (const box of document.querySelectorAll(".table")) {
    const body = box.querySelector("tbody"), rows = [...body.rows];
    if (rows.length < 2) continue;
    box.querySelectorAll("th").forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.title = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of box.querySelectorAll("th")) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        rows.sort((a, b) => {
          const [x, y] = [value(a, column), value(b, column)];
          const both = typeof x === "number" && typeof y === "number";
          return (up ? 1 : -1) * (both ? x - y : String(x).localeCompare(String(y)));
        });
        body.append(...rows);
      });
    });
    if (!("filter" in box.dataset)) continue;
    const input = document.createElement("input"), count = document.createElement("span");
    input.type = "search";
    input.placeholder = "filter rows by words";
    input.setAttribute("aria-label", "filter rows");
    count.className = "count";
    box.prepend(input, count);
    const heads = [...box.querySelectorAll("th")].map((head) => head.textContent.toLowerCase());
    const texts = new Map(rows.map((row) => [row,
      [...row.cells].map((cell, k) => `|${heads[k]} ${cell.textContent.toLowerCase()}|`).join("")]));
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase().split(/\s*[,;]\s*/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        row.hidden = !wanted.every((word) => texts.get(row).includes(word));
        shown += !row.hidden;
      }
      count.textContent = wanted.length ? `${shown} of ${rows.length} rows` : "";
    });
  }

  /* The timeline: wheel with Ctrl or the buttons zoom, dragging moves. */
  const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"], [1e-12, "ps"]];
  const unitOf = (seconds) => units.find(([size]) => Math.abs(seconds) >= size) || units[4];
  const time = (seconds) => {
    const [size, name] = seconds ? unitOf(seconds) : units[0];
    return `${Number((seconds / size).toPrecision(4))} ${name}`;
  };

  for (const holder of document.querySelectorAll("script.slices")) timeline(holder);

  function timeline(holder) {
    const data = JSON.parse(holder.textContent), box = holder.parentElement;
    const row = data.lanes.length > 24 ? 14 : 20, height = data.lanes.length * row + 24;
    let from = 0, to = data.end_s;
    const tools = document.createElement("div");
    tools.className = "tools";
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("role", "img");
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("aria-label", `Timeline of ${data.lanes.length} lanes over ${time(data.end_s)}`);
    const legend = document.createElement("ul");
    legend.className = "legend";
    data.categories.forEach((name, k) => {
      const item = document.createElement("li"), mark = document.createElement("i");
      mark.style.background = data.colors[k];
      item.append(mark, name);
      legend.append(item);
    });
    box.append(tools, svg, legend);
    const window_ = document.createElement("span");

    function zoom(factor, share = 0.5) {
      const middle = from + share * (to - from);
      const width = Math.min(data.end_s, Math.max((to - from) * factor, data.end_s * 1e-6));
      from = Math.max(0, Math.min(middle - share * width, data.end_s - width));
      to = from + width;
      draw();
    }
    function move(seconds) {
      const width = to - from;
      from = Math.max(0, Math.min(from + seconds, data.end_s - width));
      to = from + width;
      draw();
    }
    const named = [
      ["−", "zoom out", () => zoom(2)], ["+", "zoom in", () => zoom(0.5)],
      ["◀", "earlier", () => move((from - to) / 3)], ["▶", "later", () => move((to - from) / 3)],
      ["all", "whole run", () => { from = 0; to = data.end_s; draw(); }],
    ];
    for (const [text, title, act] of named) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.title = title;
      button.addEventListener("click", act);
      tools.append(button);
    }
    tools.append(window_);

    /* As wide as the longest name of a lane, but not more than a third of the page. */
    const longest = Math.max(...data.lanes.map((name) => Math.min(20, name.length)));
    const left = () => Math.min(longest * 6.4 + 6, svg.clientWidth / 3);
    const place = (seconds) => left() + (seconds - from) / (to - from) * (svg.clientWidth - left());

    function draw() {
      svg.replaceChildren();
      svg.setAttribute("height", height);
      axis();
      data.lanes.forEach((name, lane) => {
        node("text", { x: 0, y: lane * row + row * 0.7 }, svg, name.length > 20 ? `${name.slice(0, 19)}…` : name);
      });
      const least = (to - from) / 4000, edge = svg.clientWidth;
      for (const [lane, category, start, end] of data.slices) {
        if (end < from || start > to || end - start < least / 4) continue;
        const x = Math.max(left(), place(start)), right = Math.min(edge, place(end));
        const bar = node("rect", { x, y: lane * row + 1, width: Math.max(0.4, right - x),
          height: row - 3, fill: data.colors[category] }, svg);
        bar.dataset.text = `${data.lanes[lane]}\n${data.categories[category]}: ${time(end - start)}\n`
          + `from ${time(start)} to ${time(end)}`;
      }
      window_.textContent = `${time(from)} to ${time(to)}${data.note ? ` · ${data.note}` : ""}`;
    }
    function axis() {
      const group = node("g", { class: "axis" }, svg), [size, name] = unitOf(to);
      const rough = (to - from) / size / Math.max(2, Math.floor(svg.clientWidth / 130));
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough);
      for (let k = Math.ceil(from / size / step); k * step <= to / size; k += 1) {
        const x = place(k * step * size);
        const text = `${Number((k * step).toPrecision(6))} ${name}`;
        const cut = x + 2 + 7 * text.length > svg.clientWidth;
        node("line", { x1: x, x2: x, y1: 0, y2: height - 18 }, group);
        node("text", { x: cut ? x - 2 : x + 2, y: height - 6, "text-anchor": cut ? "end" : "start" }, group, text);
      }
    }
    svg.addEventListener("pointermove", (event) => {
      if (event.buttons & 1 && grabbed !== null) {
        move((grabbed - event.clientX) / (svg.clientWidth - left()) * (to - from));
        grabbed = event.clientX;
      } else tell(event.target.dataset ? event.target.dataset.text || "" : "", event.clientX, event.clientY);
    });
    let grabbed = null;
    svg.addEventListener("pointerdown", (event) => { grabbed = event.clientX; tell(""); });
    svg.addEventListener("pointerup", () => { grabbed = null; });
    svg.addEventListener("pointerleave", () => { grabbed = null; tell(""); });
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const at = event.clientX - svg.getBoundingClientRect().left - left();
      zoom(event.deltaY > 0 ? 1.4 : 0.7, Math.max(0, at / (svg.clientWidth - left())));
    }, { passive: false });
    svg.addEventListener("keydown", (event) => {
      const act = { "+": () => zoom(0.5), "-": () => zoom(2),
        ArrowLeft: () => move((from - to) / 5), ArrowRight: () => move((to - from) / 5) }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
    addEventListener("resize", draw);
    draw();
  }
})();
