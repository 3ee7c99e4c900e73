(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (root, selector) => root.querySelector(selector);
  const every = (root, selector) => [...root.querySelectorAll(selector)];

  // -- charts: colours are custom properties, so light, dark and print need no redrawing ---------------------------------
  const painted = (spec) => {
    if (Array.isArray(spec)) return spec.map(painted);
    if (spec && typeof spec === "object") {
      return Object.fromEntries(Object.entries(spec).map(([key, one]) =>
        [key, key === "values" || key === "datasets" ? one : painted(one)]));
    }
    if (typeof spec !== "string" || !spec.startsWith("theme:")) return spec;
    if (spec.startsWith("theme:seq:")) return `color-mix(in srgb, var(--seq-high) ${Number(spec.slice(10))}%, var(--seq-low))`;
    return `var(--${spec.slice(6)})`;
  };
  const views = new Map();
  const linkers = []; // what a chapter does with a chart of its own, once that is drawn
  const draw = async (element) => {
    const spec = painted(data.charts[element.dataset.chart]);
    const made = await window.vegaEmbed(element, spec, { actions: false, renderer: "svg", tooltip: { theme: "custom" } });
    views.set(element, made.view);
    for (const link of linkers) link(element);
    return element;
  };
  // a chart takes the width that there is, and behind a fold there is none: it is drawn when it is unfolded
  const waiting = new Set(every(document, "[data-chart]"));
  const drawSeen = () => Promise.all([...waiting].filter((element) => !element.closest("details:not([open])")).map((element) => {
    waiting.delete(element);
    return draw(element);
  }));

  const signal = (root, name, value) => {
    for (const [element, view] of views) {
      if (!root.contains(element)) continue;
      try { view.signal(name, value).runAsync(); } catch { /* a chart without that signal */ }
    }
  };

  // -- one chapter: a map, its panel, its slider ---------------------------------------------------------------------------
  const chapter = (root) => {
    const found = data.maps[root.dataset.chapter];
    if (!found) return;
    const cells = every(root, ".map .cell");
    const look = find(root, ".legend template").content.firstChild.childNodes; // the same for every cell, so it is not in the page 144 times
    for (const cell of cells) {
      cell.append(...[...look].map((one) => one.cloneNode(true)));
      find(cell, "title").textContent = cell.getAttribute("aria-label");
    }
    const at = new Map(cells.map((cell) => [Number(cell.dataset.unit), cell]));
    const number = new Map(found.units.map((unit, n) => [unit, n]));
    const rows = new Map(every(root, "[data-row]").map((row) => [row.dataset.row, row]));
    let picked = -1;
    let track = found.tracks[0];
    let stop = null;

    // kinds of units have a colour and letters each; a legend says how many there are
    const kinds = (view, legend) => {
      for (const [n, cell] of at) {
        const key = view && view.keys[view.places[n]];
        cell.classList.toggle("kind", Boolean(key));
        find(cell, "text").textContent = key ? key.mark : "";
        find(cell, "title").textContent = found.units[n] + (key ? `: ${key.name}` : "");
        if (!key) { cell.removeAttribute("aria-description"); continue; }
        cell.setAttribute("aria-description", key.name);
        cell.style.setProperty("--kind", `var(--${key.colour})`);
      }
      find(legend, "[data-keys]").replaceChildren(...(view ? view.keys : []).map((key) => {
        const entry = document.createElement("span");
        const swatch = document.createElement("i");
        swatch.style.setProperty("--kind", `var(--${key.colour})`);
        swatch.textContent = key.mark;
        entry.className = "key";
        entry.title = key.about;
        entry.append(swatch, `${key.name.replace(/ \(.*\)$/, "")} ${key.many}`);
        return entry;
      }));
    };

    const colour = (which) => {
      const view = found.views[which];
      const named = Boolean(view && view.keys.length);
      for (const [n, cell] of at) {
        const place = view && !named ? view.places[n] : null;
        cell.classList.toggle("unknown", place === null && !(named && view.places[n] !== null));
        cell.classList.toggle("loses", Boolean(view && view.diverging && place > 0));
        cell.classList.toggle("gains", Boolean(view && view.diverging && place <= 0));
        cell.classList.toggle("marked", Boolean(view && view.marked.includes(n)));
        cell.style.setProperty("--place", place === null ? 0 : Math.min(1, Math.abs(place)));
      }
      const legend = find(root, ".legend");
      kinds(named ? view : null, legend);
      for (const part of every(legend, "[data-low], [data-high], [data-ramp]")) part.hidden = !view || named;
      if (!view) return;
      find(legend, "[data-low]").textContent = view.low;
      find(legend, "[data-high]").textContent = view.high;
      find(legend, "[data-ramp]").classList.toggle("diverging", view.diverging);
      find(legend, "[data-marked]").hidden = view.marked.length === 0;
      find(root, "[data-about]").textContent = view.about;
    };

    const pick = (n, focus) => {
      if (!at.has(n)) return;
      for (const [other, cell] of at) {
        cell.classList.toggle("picked", other === n);
        cell.setAttribute("aria-selected", String(other === n));
        cell.setAttribute("tabindex", other === n ? "0" : "-1");
      }
      picked = n;
      if (focus) at.get(n).focus();
      find(root, "[data-name]").textContent = found.units[n];
      const facts = [];
      for (const fact of found.facts) {
        if (!fact.texts[n]) continue;
        const pair = document.createElement("div");
        const term = document.createElement("dt");
        const text = document.createElement("dd");
        term.textContent = fact.label;
        text.textContent = fact.texts[n];
        pair.append(term, text);
        facts.push(pair);
      }
      find(root, "[data-facts]").replaceChildren(...facts);
      headCard(find(root, "[data-card]"), found.card, n, found.units[n]);
      for (const [unit, row] of rows) {
        if (unit === found.units[n]) row.setAttribute("aria-current", "true");
        else row.removeAttribute("aria-current");
      }
      reveal();
      signal(root, "picked", found.units[n]);
    };

    // the row of the chosen unit, in the middle of its table; the page itself stays where it is
    const reveal = () => {
      const row = rows.get(found.units[picked]);
      const frame = row && row.closest(".scroll");
      if (frame) frame.scrollTop = row.offsetTop - (frame.clientHeight - row.offsetHeight) / 2;
    };
    for (const one of every(root, "details")) one.addEventListener("toggle", reveal);

    const move = (n, key) => {
      const spot = (cell) => cell.getBoundingClientRect();
      const from = spot(at.get(n));
      const row = every(at.get(n).parentNode, ".cell");
      if (key === "Home" || key === "End") return Number(row.at(key === "Home" ? 0 : -1).dataset.unit);
      if (key === "ArrowLeft" || key === "ArrowRight") {
        const next = row[row.indexOf(at.get(n)) + (key === "ArrowRight" ? 1 : -1)];
        return next ? Number(next.dataset.unit) : n;
      }
      const rows = every(root, ".map [role=row]").filter((one) => one.children.length);
      const next = rows[rows.indexOf(at.get(n).parentNode) + (key === "ArrowDown" ? 1 : -1)];
      if (!next) return n;
      const nearest = every(next, ".cell").reduce((best, cell) =>
        Math.abs(spot(cell).left - from.left) < Math.abs(spot(best).left - from.left) ? cell : best);
      return Number(nearest.dataset.unit);
    };

    const slide = (place) => {
      stop = track.stops[place];
      const gone = new Set(stop.gone);
      for (const [n, cell] of at) cell.classList.toggle("gone", gone.has(n));
      find(root, "[data-removed]").textContent =
        `${stop.removed} of ${track.of} gone${stop.chosen ? ", as chosen" : ""}:`;
      find(root, "[data-value]").textContent = stop.value;
      find(root, "[data-detail]").textContent = stop.detail;
      find(root, "[data-slider]").setAttribute("aria-valuetext", `${stop.removed} of ${track.of} removed, ${stop.value}`);
      signal(root, "track", track.name);
      signal(root, "step", stop.removed);
    };

    const follow = (which) => {
      track = found.tracks[which];
      const slider = find(root, "[data-slider]");
      const chosen = track.stops.findIndex((one) => one.chosen);
      slider.max = track.stops.length - 1;
      slider.value = Math.max(0, chosen);
      slide(Number(slider.value));
    };

    for (const [n, cell] of at) {
      cell.addEventListener("click", () => pick(n, true));
      cell.addEventListener("keydown", (event) => {
        if (["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) {
          event.preventDefault();
          pick(move(n, event.key), true);
        } else if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          pick(n, true);
        }
      });
    }
    find(root, "[data-view]")?.addEventListener("change", (event) => colour(Number(event.target.value)));
    find(root, "[data-track]")?.addEventListener("change", (event) => follow(Number(event.target.value)));
    find(root, "[data-slider]")?.addEventListener("input", (event) => slide(Number(event.target.value)));
    colour(0);
    pick(found.first, false);
    if (found.tracks.length) follow(0);

    // a mark of a chart that is a unit can be chosen there, too
    const link = (element) => {
      const view = views.get(element);
      view.addEventListener("click", (event, item) => {
        const unit = item && item.datum && item.datum.unit;
        if (number.has(unit)) pick(number.get(unit), false);
      });
      if (picked >= 0) signal(root, "picked", found.units[picked]);
      if (stop) { signal(root, "track", track.name); signal(root, "step", stop.removed); }
    };
    linkers.push((element) => { if (root.contains(element)) link(element); });
  };
  every(document, "[data-chapter]").forEach(chapter);
  const ready = drawSeen();

  // -- folds and the menu ----------------------------------------------------------------------------------------------------
  document.addEventListener("toggle", (event) => { if (event.target.open) drawSeen(); }, true);
  const unfoldAround = (element) => {
    for (let fold = element && element.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  };
  const follow = () => {
    const name = decodeURIComponent(location.hash.slice(1));
    const target = name && document.getElementById(name);
    if (target) { unfoldAround(target); target.scrollIntoView(); }
  };
  window.addEventListener("hashchange", follow);
  if (location.hash) ready.then(follow);
  const shut = (menu) => { menu.classList.remove("shown"); find(menu, "[data-menu]").setAttribute("aria-expanded", "false"); };
  for (const menu of every(document, ".menu")) {
    find(menu, "[data-menu]").addEventListener("click", (event) => {
      event.currentTarget.setAttribute("aria-expanded", String(menu.classList.toggle("shown")));
    });
    menu.addEventListener("keydown", (event) => { if (event.key === "Escape") shut(menu); });
    for (const link of every(menu, "a")) link.addEventListener("click", () => shut(menu));
    const unfold = find(menu, "[data-unfold]");
    unfold.addEventListener("click", () => {
      const open = unfold.textContent === "Unfold all";
      for (const fold of every(menu.parentNode, "details.section")) fold.open = open;
      unfold.textContent = open ? "Fold all" : "Unfold all";
    });
  }
  // the group that is being read is marked in the menu
  const marks = new Map(every(document, ".menu a").map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      const link = marks.get(entry.target.id);
      for (const other of every(link.closest(".menu"), "a")) other.removeAttribute("aria-current");
      link.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-30% 0px -65% 0px" });
  for (const name of marks.keys()) {
    const target = document.getElementById(name);
    if (target && target.matches(".group, .explorer")) seen.observe(target);
  }

  // -- copying ---------------------------------------------------------------------------------------------------------------
  const toast = find(document, ".toast");
  let fading = 0;
  const say = (text) => {
    toast.textContent = text;
    toast.hidden = false;
    clearTimeout(fading);
    fading = setTimeout(() => { toast.hidden = true; }, 2200);
  };
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // no permission, or not a secure context
      const area = document.createElement("textarea");
      area.value = text;
      area.style.position = "fixed";
      area.style.opacity = "0";
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      if (!done) throw new Error("not copied");
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy], [data-command]");
    if (!button) return;
    const command = button.matches("[data-command]");
    try {
      await copy(command ? find(button.parentNode, "code").textContent : data.tables[button.dataset.table][button.dataset.copy]);
      say(command ? "Copied the command" : `Copied as ${button.textContent}`);
    } catch {
      say("The browser did not allow copying");
    }
  });

  ready.then(() => { document.documentElement.dataset.ready = "yes"; });
})();
