// The card of a head: what it does in sentences, and its attention drawn on sentences. Texts only ever go in as text.
const headCard = (() => {
  "use strict";
  const ROW = 21, SIDE = 112, WIDTH = 340; // of a drawing: the height of a token, the width of a column of them, of it all
  const LEAST = 0.05; // weights below it are left out
  const LONGEST = 14; // letters of a token

  const html = (tag, text, ...children) => {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    made.append(...children);
    return made;
  };
  const svg = (tag, attributes, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const shown = (token) => token.trim() || "␣";
  const clipped = (token) => {
    const letters = [...shown(token)];
    return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : letters.join("");
  };
  const percent = (weight) => `${Math.round(100 * weight)} %`;
  const middle = (row) => ROW * (row + 0.5);

  // two hexadecimal digits for each weight, row by row -> a list of weights for each query
  const weightsOf = (hex, keys) => {
    const all = (hex.match(/../g) || []).map((pair) => parseInt(pair, 16) / 255);
    return Array.from({ length: all.length / keys }, (_, row) => all.slice(row * keys, (row + 1) * keys));
  };
  const largest = (weights) => weights.indexOf(Math.max(...weights));

  const tokenOf = (token, row, side, muted) => {
    const at = side === "query" ? { x: SIDE - 6, "text-anchor": "end" } : { x: WIDTH - SIDE + 6, "text-anchor": "start" };
    const text = svg("text", { ...at, y: middle(row), class: muted ? "token muted" : "token" });
    text.textContent = clipped(token);
    const whole = svg("title", {});
    whole.textContent = shown(token);
    return svg("g", { class: side }, whole, text);
  };

  const lineOf = (weight, from, to, muted) => svg("path", {
    d: `M${SIDE} ${middle(from)}C${WIDTH / 2} ${middle(from)} ${WIDTH / 2} ${middle(to)} ${WIDTH - SIDE} ${middle(to)}`,
    class: muted ? "muted" : "",
    "stroke-width": (0.75 + 4.25 * weight).toFixed(2),
    "stroke-opacity": (0.2 + 0.8 * weight).toFixed(2),
  });

  // queries on the left, keys on the right; a query that is pointed at or has the focus shows its own lines alone
  const drawn = (example, weights, label) => {
    const height = ROW * Math.max(example.queries.length, example.keys.length);
    const keys = example.keys.map((token, n) => tokenOf(token, n, "key", example.special[n]));
    const lines = weights.map((row, from) => svg("g", { class: "from" }, ...row.flatMap((weight, to) =>
      weight < LEAST ? [] : [lineOf(weight, from, to, example.special[to])])));
    const queries = example.queries.map((token, n) => tokenOf(token, n, "query", false));
    const frame = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "attention", role: "group", "aria-label": label }, ...lines, ...keys, ...queries);

    const ask = (row) => {
      frame.classList.toggle("asked", row !== null);
      lines.forEach((one, n) => one.classList.toggle("own", n === row));
      queries.forEach((one, n) => one.classList.toggle("own", n === row));
      keys.forEach((one, n) => one.classList.toggle("own", row !== null && weights[row][n] >= LEAST));
    };
    const step = { ArrowDown: 1, ArrowUp: -1, Home: -queries.length, End: queries.length };
    queries.forEach((one, n) => {
      const own = weights[n].map((weight, to) => [weight, to]).filter(([weight]) => weight >= LEAST).sort((a, b) => b[0] - a[0]);
      const told = own.map(([weight, to]) => `${shown(example.keys[to])} ${percent(weight)}`).join(", ");
      one.setAttribute("role", "img");
      one.setAttribute("aria-label", `${shown(example.queries[n])}: ${told || "nothing above 5 %"}`);
      one.setAttribute("tabindex", n ? "-1" : "0");
      one.prepend(svg("rect", { x: 0, y: ROW * n, width: SIDE, height: ROW, rx: 4 }));
      one.addEventListener("mouseenter", () => ask(n));
      one.addEventListener("mouseleave", () => ask(queries.includes(document.activeElement) ? queries.indexOf(document.activeElement) : null));
      one.addEventListener("focus", () => ask(n));
      one.addEventListener("blur", () => ask(null));
      one.addEventListener("click", () => one.focus());
      one.addEventListener("keydown", (event) => {
        if (!(event.key in step)) return;
        event.preventDefault();
        const next = queries[Math.min(queries.length - 1, Math.max(0, n + step[event.key]))];
        queries.forEach((other) => other.setAttribute("tabindex", other === next ? "0" : "-1"));
        next.focus();
      });
    });
    return frame;
  };

  const inWords = (example, weights) => {
    const lines = weights.map((row, n) => {
      const to = largest(row);
      return html("li", `${shown(example.queries[n])} → ${shown(example.keys[to])} ${percent(row[to])}`);
    });
    return html("details", "", html("summary", "As text: the largest weight of each token"), html("ol", "", ...lines));
  };

  // letters that are wider than ours (other scripts, emoji) are squeezed into their column
  const squeeze = (frame) => {
    for (const text of frame.querySelectorAll("text")) {
      if (text.getComputedTextLength() <= SIDE - 10) continue;
      text.setAttribute("textLength", SIDE - 10);
      text.setAttribute("lengthAdjust", "spacingAndGlyphs");
    }
  };

  // fill `place` with the card of one unit, and hide it where nothing is known about that
  return (place, cards, n, unit) => {
    const roles = cards.heads?.[n];
    place.replaceChildren();
    place.hidden = !roles;
    if (!roles) return;
    place.append(html("h3", `What ${unit} does`));
    const told = roles.map((role) => html("li", role.text + (role.sure === false ? " (its interval reaches below what the role asks for)" : "")));
    place.append(told.length ? html("ul", "", ...told) : html("p", "It has earned no role."));
    const own = cards.examples.filter((example) => example.attention[n]);
    if (!own.length) return;
    place.append(html("h4", "Where it looks"));
    const apart = own.some((example) => example.keys.join(" ") !== example.queries.join(" "));
    const sides = apart ? "On the left what the decoder reads, each token while it writes the next; on the right the source. " : "";
    const about = html("p", `From a token on the left to those on the right that it looks at: the wider the line, the more. ${sides}Special tokens are grey. `);
    const hint = html("span", "Point at a token, or choose it with the arrow keys, to see its lines alone.");
    const figures = html("div");
    about.className = "about";
    hint.className = "hint"; // which is not printed
    figures.className = "examples";
    about.append(hint);
    place.append(about, figures);
    for (const example of own) {
      const weights = weightsOf(example.attention[n], example.keys.length);
      const frame = drawn(example, weights, `Attention of ${unit} in ${example.name}`);
      figures.append(html("figure", "", frame, html("figcaption", example.name), inWords(example, weights)));
      squeeze(frame);
    }
  };
})();
