// The attention of heads on a text: all of them small, one of them large, and the text. Texts only ever go in as text.
(() => {
  "use strict";
  const page = JSON.parse(document.getElementById("data").textContent);
  const byId = (name) => document.getElementById(name);
  const html = (tag, attributes, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const shown = ([text]) => text;
  const named = ([text]) => /[\p{L}\p{N}]/u.test(text) ? text : `“${text}”`; // a comma in a list is told from the list's own
  const percent = (weight) => `${weight >= 0.1 || weight === 0 ? Math.round(100 * weight) : (100 * weight).toPrecision(weight >= 0.001 ? 2 : 1)} %`;
  const state = { kind: 0, row: 0, column: 0, values: false, from: true, asked: null, kept: null };

  // -- weights -------------------------------------------------------------------------------------------------------
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const unpacked = async (head) => {
    const content = bytes(byId(`w${head.blob}`).textContent);
    if (!head.packed) return content;
    const stream = new Blob([content]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  };
  const known = new Map(); // the heads looked at last
  const weightsOf = async (head) => {
    if (!known.has(head)) {
      if (known.size > 24) known.delete(known.keys().next().value);
      known.set(head, unpacked(head));
    }
    return known.get(head);
  };
  // bytes of attention -> bytes of attention times the norms of what is looked at, as shares of each row
  const weighted = (content, norms, keys) => {
    const out = new Uint8Array(content.length);
    for (let start = 0; start < content.length; start += keys) {
      let total = 0;
      for (let n = 0; n < keys; n++) total += content[start + n] ** 2 * norms[n];
      for (let n = 0; n < keys && total > 0; n++) out[start + n] = Math.round(255 * Math.sqrt(content[start + n] ** 2 * norms[n] / total));
    }
    return out;
  };
  const kindNow = () => page.kinds[state.kind];
  const headNow = () => kindNow().rows[state.row].heads[state.column];
  const valued = (head) => state.values && head.norms !== null;
  const share = (content, place) => (content[place] / 255) ** 2;

  // -- colours -------------------------------------------------------------------------------------------------------
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paletteNow = () => page.palettes[dark.matches ? "dark" : "light"];
  const rgb = (colour) => [1, 3, 5].map((n) => parseInt(colour.slice(n, n + 2), 16));
  const ramp = (palette) => {
    const low = rgb(palette["seq-low"]), high = rgb(palette["seq-high"]);
    return Array.from({ length: 256 }, (_, n) => low.map((one, c) => Math.round(one + (high[c] - one) * n / 255)));
  };
  const hidden = (kind, row, column) => kind.causal && column > row;

  // a canvas with a pixel for each weight
  const pixels = (content, rows, columns, palette, masked) => {
    const made = html("canvas", { width: columns, height: rows });
    const image = new ImageData(columns, rows), colours = ramp(palette), nothing = rgb(palette.surface);
    for (let n = 0; n < rows * columns; n++) {
      const colour = masked(Math.floor(n / columns), n % columns) ? nothing : colours[content[n]];
      image.data.set([...colour, 255], 4 * n);
    }
    made.getContext("2d").putImageData(image, 0, 0);
    return made;
  };

  // -- two ways to draw the same: on a canvas, and as SVG ----------------------------------------------------------------
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";
  const onCanvas = (canvas, width, height, scale) => {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const to = canvas.getContext("2d");
    to.setTransform(scale, 0, 0, scale, 0, 0);
    to.imageSmoothingEnabled = false;
    return {
      exact: false,
      rect(x, y, w, h, fill) { to.fillStyle = fill; to.fillRect(x, y, w, h); },
      line(x1, y1, x2, y2, stroke) { to.strokeStyle = stroke; to.lineWidth = 1; to.beginPath(); to.moveTo(x1, y1); to.lineTo(x2, y2); to.stroke(); },
      image(picture, x, y, w, h) { to.drawImage(picture, x, y, w, h); },
      text(x, y, words, size, fill, anchor = "start", turned = false) {
        to.save();
        to.translate(x, y);
        if (turned) to.rotate(-Math.PI / 2);
        to.font = `${size}px ${FONT}`;
        to.fillStyle = fill;
        to.textAlign = anchor;
        to.textBaseline = "middle";
        to.fillText(words, 0, 0);
        to.restore();
      },
    };
  };
  const escaped = (text) => String(text).replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "�");
  const asSvg = (width, height) => {
    const parts = [], round = (value) => Math.round(100 * value) / 100;
    return {
      exact: true,
      rect(x, y, w, h, fill) { parts.push(`<rect x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${round(h)}" fill="${fill}"/>`); },
      line(x1, y1, x2, y2, stroke) { parts.push(`<path d="M${round(x1)} ${round(y1)}L${round(x2)} ${round(y2)}" stroke="${stroke}"/>`); },
      image(picture, x, y, w, h) { parts.push(`<image x="${round(x)}" y="${round(y)}" width="${round(w)}" height="${round(h)}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${picture.toDataURL("image/png")}"/>`); },
      text(x, y, words, size, fill, anchor = "start", turned = false) {
        const turn = turned ? ` transform="rotate(-90 ${round(x)} ${round(y)})"` : "";
        parts.push(`<text x="${round(x)}" y="${round(y)}" font-size="${size}" fill="${fill}" text-anchor="${anchor}" dominant-baseline="central"${turn}>${escaped(words)}</text>`);
      },
      done: () => `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${round(width)} ${round(height)}" width="${round(width)}" height="${round(height)}" font-family="${FONT}">${parts.join("")}</svg>\n`,
    };
  };

  // -- one head, large -----------------------------------------------------------------------------------------------
  const ruler = document.createElement("canvas").getContext("2d");
  const clipped = (token, size, most) => {
    ruler.font = `${size}px ${FONT}`;
    const letters = [...shown(token)];
    while (letters.length > 1 && ruler.measureText(letters.join("")).width > most) letters.splice(-2, 2, "…");
    return letters.join("");
  };
  // the place of everything: `cell` pixels a weight, labels of every so many tokens
  const layout = (kind, room) => {
    const most = Math.min(110, room * 0.24), size = 11.5;
    ruler.font = `${size}px ${FONT}`;
    const wide = (tokens) => Math.min(most, Math.max(...tokens.map((token) => ruler.measureText(shown(token)).width))) + 8;
    const left = wide(kind.queries), top = wide(kind.keys);
    const cell = Math.min(30, (room - left - 4) / kind.keys.length, Math.max(1, 640 / kind.queries.length));
    const every = Math.max(1, Math.ceil(11.5 / cell));
    return { left, top, cell, every, size: Math.min(size, Math.max(9, cell * every - 1)), most, width: left + cell * kind.keys.length + 4, height: top + cell * kind.queries.length + 2 };
  };
  const paintOne = (to, kind, content, at, palette) => {
    const rows = kind.queries.length, columns = kind.keys.length, colours = ramp(palette);
    const masked = (row, column) => hidden(kind, row, column);
    if (to.exact && rows * columns <= 4096) {
      to.rect(at.left, at.top, at.cell * columns, at.cell * rows, palette.surface);
      for (let n = 0; n < rows * columns; n++) {
        const row = Math.floor(n / columns), column = n % columns;
        if (!masked(row, column)) to.rect(at.left + at.cell * column, at.top + at.cell * row, at.cell, at.cell, `rgb(${colours[content[n]]})`);
      }
    } else {
      to.image(pixels(content, rows, columns, palette, masked), at.left, at.top, at.cell * columns, at.cell * rows);
    }
    if (kind.causal) { // what comes later is hatched: it could not be looked at
      const side = at.cell * columns, step = 6;
      for (let d = step; d < 2 * side; d += step) { // along x + y = d, where x - y is more than a cell
        const from = (d + at.cell) / 2, until = Math.min(side, d);
        if (until > from) to.line(at.left + from, at.top + d - from, at.left + until, at.top + d - until, palette.band);
      }
    }
    const colour = (token) => token[2] ? palette.muted : palette.ink;
    kind.queries.forEach((token, n) => {
      if (n % at.every === 0) to.text(at.left - 5, at.top + at.cell * (n + 0.5), clipped(token, at.size, at.left - 7), at.size, colour(token), "end");
    });
    kind.keys.forEach((token, n) => {
      if (n % at.every === 0) to.text(at.left + at.cell * (n + 0.5), at.top - 5, clipped(token, at.size, at.top - 7), at.size, colour(token), "start", true);
    });
  };

  let now = null; // what is drawn: the kind, the weights, where
  let turn = 0;
  const drawOne = async () => {
    const mine = ++turn, kind = kindNow(), head = headNow();
    const raw = await weightsOf(head);
    if (mine !== turn) return; // another head was chosen in the meantime
    const content = valued(head) ? weighted(raw, head.norms, kind.keys.length) : raw;
    const at = layout(kind, byId("sheet").querySelector(".one").clientWidth);
    const canvas = byId("canvas"), scale = Math.max(1, devicePixelRatio || 1);
    paintOne(onCanvas(canvas, at.width, at.height, scale), kind, content, at, paletteNow());
    canvas.style.width = `${at.width}px`;
    canvas.style.height = `${at.height}px`;
    now = { kind, head, content, at };
    byId("one-title").textContent = `Head ${head.unit}${head.masked ? " (masked)" : ""}`;
    ask(state.asked, state.other);
    document.documentElement.dataset.ready = "yes";
  };

  // -- a token is asked ------------------------------------------------------------------------------------------------
  const own = (kind) => kind.kind !== "cross";
  const strongest = (weights, tokens) => weights.map((weight, n) => [weight, n]).filter(([weight]) => weight > 0)
    .sort((a, b) => b[0] - a[0]).slice(0, 6).map(([weight, n]) => `${named(tokens[n])} ${percent(weight)}`).join(", ");
  // `token` is {side: "queries" or "keys", n}; `other` the key of a cell that is pointed at
  const ask = (token, other = null) => {
    state.asked = token;
    state.other = other;
    if (!now) return;
    const { kind, content, at } = now, columns = kind.keys.length, rows = kind.queries.length;
    const across = byId("across"), down = byId("down"), told = byId("told");
    document.querySelectorAll(".token").forEach((one) => { one.style.background = ""; one.style.color = ""; one.classList.remove("asked"); });
    across.hidden = down.hidden = true;
    if (!token || token.n >= kind[token.side].length) {
      const hint = matchMedia("(hover: none)").matches ? "Tap" : "Point at";
      told.textContent = `${hint} a weight or a token to see where it looks; click to keep it.`;
      return;
    }
    const asking = token.side === "queries";
    const weights = asking ? Array.from({ length: columns }, (_, n) => share(content, token.n * columns + n))
      : Array.from({ length: rows }, (_, n) => share(content, n * columns + token.n));
    const box = (element, x, y, w, h) => {
      element.hidden = false;
      Object.assign(element.style, { left: `${x}px`, top: `${y}px`, width: `${w}px`, height: `${h}px` });
    };
    if (asking) box(across, at.left - 1, at.top + at.cell * token.n - 1, at.cell * columns + 2, at.cell + 2);
    if (!asking || other !== null) box(down, at.left + at.cell * (asking ? other : token.n) - 1, at.top - 1, at.cell + 2, at.cell * rows + 2);
    const far = asking ? "keys" : "queries", name = shown(kind[token.side][token.n]);
    const first = asking && other !== null ? ` → ${shown(kind.keys[other])}: ${hidden(kind, token.n, other) ? "masked, it comes later" : percent(weights[other])}. ` : "";
    const verb = asking ? "looks at" : "is looked at by";
    told.replaceChildren(html("b", {}, name), first || ` ${verb} `, first ? "Most: " : "", strongest(weights, kind[far]) || "nothing");
    const palette = paletteNow(), colours = ramp(palette), most = Math.max(...weights, 1e-9);
    weights.forEach((weight, n) => {
      const one = document.getElementById(`${own(kind) ? "queries" : far}-${n}`);
      const strength = Math.round(255 * Math.sqrt(weight / most));
      if (!one || weight < 0.002) return;
      one.style.background = `rgb(${colours[strength]})`;
      if (strength > 110) one.style.color = palette.surface;
    });
    document.getElementById(`${own(kind) ? "queries" : token.side}-${token.n}`)?.classList.add("asked");
  };
  const leave = () => ask(state.kept, null);
  const keep = (token) => {
    state.kept = state.kept && token && state.kept.side === token.side && state.kept.n === token.n ? null : token;
    ask(state.kept || token);
  };

  // -- the text --------------------------------------------------------------------------------------------------------
  const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -1e9, End: 1e9 };
  const drawText = (kind, side, title) => {
    const tokens = kind[side], block = html("div", { class: "block", role: "listbox", "aria-label": title }, html("h3", {}, title));
    const asked = (n) => ({ side: own(kind) ? (state.from ? "queries" : "keys") : side, n });
    tokens.forEach((token, n) => {
      const classes = token[2] ? "token special" : "token";
      const one = html("span", { class: classes, role: "option", id: `${side}-${n}`, tabindex: n ? "-1" : "0", "data-n": n }, shown(token));
      block.append(n && !token[1] ? " " : "", one);
    });
    const of = (event) => event.target.closest(".token");
    const pointed = (event) => { const one = of(event); if (one) ask(asked(Number(one.dataset.n))); };
    block.addEventListener("mouseover", pointed);
    block.addEventListener("focusin", pointed);
    block.addEventListener("mouseleave", leave);
    block.addEventListener("click", (event) => { const one = of(event); if (one) keep(asked(Number(one.dataset.n))); });
    block.addEventListener("keydown", (event) => {
      const one = of(event);
      if (!one) return;
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); keep(asked(Number(one.dataset.n))); }
      if (!(event.key in STEPS)) return;
      event.preventDefault();
      const next = document.getElementById(`${side}-${clamp(Number(one.dataset.n) + STEPS[event.key], 0, tokens.length - 1)}`);
      one.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
    return block;
  };
  const drawTexts = () => {
    const kind = kindNow();
    byId("direction").hidden = !own(kind);
    byId("texts").replaceChildren(...(own(kind) ? [drawText(kind, "queries", "The text")]
      : [drawText(kind, "queries", "What the decoder reads"), drawText(kind, "keys", "The source")]));
  };

  // -- all heads, small ------------------------------------------------------------------------------------------------
  const columnsOf = (kind) => [...new Set(kind.rows.flatMap((row) => row.heads.map((head) => Number(head.unit.split(":").pop()))))].sort((a, b) => a - b);
  const paintThumb = async (canvas, kind, head, palette = paletteNow()) => {
    const rows = kind.queries.length, columns = kind.keys.length;
    let content, [high, wide] = kind.thumb;
    if (!head.packed) {
      [high, wide] = [rows, columns];
      content = await weightsOf(head);
      if (valued(head)) content = weighted(content, head.norms, columns);
    } else content = bytes(valued(head) ? head.valueThumb : head.thumb);
    const masked = (row, column) => kind.causal && Math.floor(column * columns / wide) >= Math.ceil((row + 1) * rows / high);
    const made = pixels(content, high, wide, palette, masked);
    canvas.width = wide;
    canvas.height = high;
    canvas.getContext("2d").drawImage(made, 0, 0);
  };
  let seen = null; // thumbnails are painted when they come into sight
  const drawGrid = () => {
    const kind = kindNow(), columns = columnsOf(kind), grid = byId("grid");
    const room = grid.parentElement.clientWidth, names = Math.min(110, 9 + 7.2 * Math.max(...kind.rows.map((row) => row.name.length)));
    const cell = clamp((room - names - 8) / columns.length - 3, matchMedia("(pointer: coarse)").matches || innerWidth < 600 ? 26 : 13, 76);
    seen?.disconnect();
    seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
      if (!entry.isIntersecting) return;
      seen.unobserve(entry.target);
      const [row, column] = entry.target.dataset.place.split(" ").map(Number);
      paintThumb(entry.target.firstChild, kind, kind.rows[row].heads[column]);
    }), { rootMargin: "200px" });
    const numbers = html("div", { class: "row numbers", "aria-hidden": "true" }, html("span", { class: "name" }));
    numbers.firstChild.style.width = `${names}px`;
    columns.forEach((column) => {
      const one = html("span", { class: "number" }, String(column));
      one.style.width = `${cell}px`;
      numbers.append(one);
    });
    grid.replaceChildren(numbers, ...kind.rows.map((row, r) => {
      const line = html("div", { class: "row", role: "row" });
      const name = html("span", { class: "name", role: "rowheader", title: row.site }, row.name);
      name.style.width = `${names}px`;
      line.append(name);
      const places = new Map(row.heads.map((head, c) => [Number(head.unit.split(":").pop()), c]));
      for (const column of columns) {
        const c = places.get(column), head = c === undefined ? null : row.heads[c];
        const one = html("button", head ? { type: "button", class: `cell${head.masked ? " masked" : ""}`, role: "gridcell", tabindex: "-1",
          "data-place": `${r} ${c}`, "aria-label": head.unit + (head.masked ? ", masked" : ""), title: head.unit } : { class: "cell hole", disabled: "", "aria-hidden": "true" });
        const tall = cell * clamp(kind.queries.length / kind.keys.length, 0.4, 1.6);
        Object.assign(one.style, { width: `${cell}px`, height: `${tall}px` });
        if (head) { one.append(html("canvas")); seen.observe(one); }
        line.append(one);
      }
      return line;
    }));
    choose(state.row, state.column, false);
  };
  const cellAt = (row, column) => byId("grid").querySelector(`[data-place="${row} ${column}"]`);
  const choose = (row, column, focus) => {
    byId("grid").querySelectorAll('[aria-selected="true"]').forEach((one) => { one.setAttribute("aria-selected", "false"); one.tabIndex = -1; });
    Object.assign(state, { row, column });
    const one = cellAt(row, column);
    one.setAttribute("aria-selected", "true");
    one.tabIndex = 0;
    if (focus) one.focus();
    return drawOne();
  };
  const grid = byId("grid");
  grid.addEventListener("click", (event) => {
    const one = event.target.closest("[data-place]");
    if (one) choose(...one.dataset.place.split(" ").map(Number), true);
  });
  grid.addEventListener("keydown", (event) => {
    const rows = kindNow().rows, { row, column } = state, last = rows[row].heads.length - 1;
    const goals = { ArrowRight: [row, column + 1], ArrowLeft: [row, column - 1], ArrowDown: [row + 1, column], ArrowUp: [row - 1, column], Home: [row, 0], End: [row, last] };
    if (!(event.key in goals)) return;
    event.preventDefault();
    const to = clamp(goals[event.key][0], 0, rows.length - 1);
    choose(to, clamp(goals[event.key][1], 0, rows[to].heads.length - 1), true);
  });

  // -- the large drawing is pointed at -----------------------------------------------------------------------------------
  const matrix = byId("matrix"), canvas = byId("canvas");
  const placeOf = (event) => {
    if (!now) return null;
    const box = canvas.getBoundingClientRect(), { kind, at } = now;
    const row = Math.floor((event.clientY - box.top - at.top) / at.cell), column = Math.floor((event.clientX - box.left - at.left) / at.cell);
    if (row >= kind.queries.length || column >= kind.keys.length || (row < 0 && column < 0)) return null;
    if (row < 0) return [{ side: "keys", n: column }, null];
    return [{ side: "queries", n: row }, column < 0 ? null : column];
  };
  const point = (event) => { const place = placeOf(event); if (place) ask(...place); else leave(); };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") leave(); });
  canvas.addEventListener("click", (event) => { const place = placeOf(event); if (place) keep(place[0]); });
  matrix.addEventListener("keydown", (event) => {
    if (!now || !/^(Arrow|Escape)/.test(event.key)) return;
    event.preventDefault();
    if (event.key === "Escape") { state.kept = null; return ask(null); }
    const asked = state.asked?.side === "queries" ? state.asked.n : 0, other = state.other ?? 0;
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    ask({ side: "queries", n: clamp(asked + down, 0, now.kind.queries.length - 1) }, clamp(other + right, 0, now.kind.keys.length - 1));
  });

  // -- what the colours mean ---------------------------------------------------------------------------------------------
  const drawLegend = () => {
    const kind = kindNow(), wide = 190, scale = html("canvas", { width: wide, height: 10 }), to = scale.getContext("2d");
    ramp(paletteNow()).forEach((colour, n) => { to.fillStyle = `rgb(${colour})`; to.fillRect(n * wide / 256, 0, wide / 256 + 1, 10); });
    const ticks = html("div", { class: "ticks" });
    for (const weight of [0, 0.05, 0.25, 0.5, 1]) {
      const tick = html("span", {}, weight === 1 ? "100 %" : `${100 * weight}`);
      tick.style.left = `${100 * Math.sqrt(weight)}%`;
      ticks.append(tick);
    }
    const parts = [html("div", { class: "scale" }, scale, ticks)];
    if (kind.causal) parts.push(html("span", {}, html("i", { class: "hatch" }), "masked: later tokens"));
    if (state.values) parts.push(html("span", {}, "attention × norm of what is taken, share of the row"));
    byId("legend").replaceChildren(...parts);
    byId("all-about").textContent = "A row for each layer, a picture for each head: rows look at columns" +
      (page.kinds.some((one) => one.rows.some((row) => row.heads.some((head) => head.masked))) ? "; a stroke through masked ones." : ".") +
      (Math.max(kind.queries.length, kind.keys.length) > 32 ? " Each shows the largest weights of its blocks." : "");
  };

  // -- files ---------------------------------------------------------------------------------------------------------------
  const paintAll = async (make) => {
    const kind = kindNow(), columns = columnsOf(kind), cell = 64, gap = 4, palette = page.palettes.light, top = 30;
    const left = 16 + 7 * Math.max(...kind.rows.map((row) => row.name.length)), tall = cell * clamp(kind.queries.length / kind.keys.length, 0.4, 1.6);
    const width = left + columns.length * (cell + gap) + 6, height = top + kind.rows.length * (tall + gap) + 6;
    const to = make(width, height);
    to.rect(0, 0, width, height, "#ffffff");
    columns.forEach((column, n) => to.text(left + n * (cell + gap) + cell / 2, top - 12, String(column), 12, palette.muted, to.exact ? "middle" : "center"));
    for (const [r, row] of kind.rows.entries()) {
      to.text(left - 7, top + r * (tall + gap) + tall / 2, row.name, 12, palette.muted, "end");
      for (const head of row.heads) {
        const n = columns.indexOf(Number(head.unit.split(":").pop())), small = html("canvas");
        await paintThumb(small, kind, head, palette);
        to.image(small, left + n * (cell + gap), top + r * (tall + gap), cell, tall);
      }
    }
    return to;
  };
  const save = async (what, form) => {
    const light = page.palettes.light, sheet = html("canvas");
    const make = form === "svg" ? (w, h) => asSvg(w, h) : (w, h) => onCanvas(sheet, w, h, 2);
    let to;
    if (what === "all") to = await paintAll(make);
    else {
      const at = layout(now.kind, 760);
      to = make(at.width, at.height);
      to.rect(0, 0, at.width, at.height, "#ffffff");
      paintOne(to, now.kind, now.content, at, { ...light, surface: "#ffffff" });
    }
    const blob = form === "svg" ? new Blob([to.done()], { type: "image/svg+xml" }) : await new Promise((done) => sheet.toBlob(done, "image/png"));
    const name = (what === "all" ? kindNow().title : headNow().unit).replace(/[^\w.-]+/g, "-");
    const link = html("a", { href: URL.createObjectURL(blob), download: `attention-${name}${state.values ? "-values" : ""}.${form}` });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  document.querySelectorAll("[data-save]").forEach((one) => one.addEventListener("click", () => save(one.dataset.save, one.dataset.as)));

  // -- choices ---------------------------------------------------------------------------------------------------------------
  const hasValues = (kind) => kind.rows.some((row) => row.heads.some((head) => head.norms !== null));
  const show = () => {
    const values = document.querySelector('input[value="values"]');
    values.disabled = !hasValues(kindNow());
    if (values.disabled) { state.values = false; document.querySelector('input[value="attention"]').checked = true; }
    drawTexts();
    drawLegend();
    drawGrid();
  };
  const tabs = byId("tabs");
  tabs.hidden = page.kinds.length < 2;
  page.kinds.forEach((kind, n) => tabs.append(html("button", { type: "button", role: "tab", "aria-selected": String(!n), tabindex: n ? "-1" : "0", "data-n": n }, kind.title)));
  const openTab = (n, focus) => {
    [...tabs.children].forEach((one, place) => { one.setAttribute("aria-selected", String(place === n)); one.tabIndex = place === n ? 0 : -1; });
    if (focus) tabs.children[n].focus();
    Object.assign(state, { kind: n, row: 0, column: 0, asked: null, other: null, kept: null });
    show();
  };
  tabs.addEventListener("click", (event) => { const one = event.target.closest("[data-n]"); if (one) openTab(Number(one.dataset.n)); });
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) openTab((state.kind + step + page.kinds.length) % page.kinds.length, true);
  });
  byId("weighting").addEventListener("change", (event) => { state.values = event.target.value === "values"; drawLegend(); drawGrid(); });
  byId("direction").addEventListener("change", (event) => {
    state.from = event.target.value === "from";
    if (state.kept) state.kept = { ...state.kept, side: state.from ? "queries" : "keys" };
    leave();
  });
  dark.addEventListener("change", show);
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawGrid, 120); });
  byId("title").textContent = document.title;
  show();
})();
