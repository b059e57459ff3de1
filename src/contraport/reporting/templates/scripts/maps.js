// Maps of test items: hover text, coloring, and the neighbors of the chosen point.
const CONTINUOUS = [2, 3, 4, 5, 6];
const STRIP = 10;

function describe(known, item) {
  const lines = [known.classes.length ? known.classes[known.labels[item]] : "", `${known.noun} ${known.ids ? known.ids[item] : item}`];
  for (const [name, { values, of, names }] of Object.entries(known.colors)) {
    if (values) lines.push(`${name} ${values[item].toPrecision(3)}`);
    if (of) lines.push(names[of[item]]);
  }
  if (known.texts) lines.push(known.texts[item]);
  return lines.filter(Boolean).join("\n");
}

LISTENERS.map.push((box) => {
  const known = DATA.maps[box.id];
  box.on("plotly_hover", ({ event, points: [point] }) => showTip(event, describe(known, point.customdata), known.sheet, point.customdata));
  box.on("plotly_unhover", hideTip);
  box.on("plotly_click", ({ points: [point] }) => pick(box.id, point.customdata));
});

// A point that is chosen in one map is chosen in all that show the same items.
function pick(id, item) {
  for (const [other, known] of Object.entries(DATA.maps)) {
    const same = other === id || (known.data === DATA.maps[id].data && String(known.ids) === String(DATA.maps[id].ids));
    const strip = document.querySelector(`[data-strip="${other}"]`);
    if (same && strip) lay(strip, document.getElementById(other), known, item);
  }
}

function lay(strip, box, known, item) {
  document.querySelector(`.pick[data-map="${box.id}"]`).value = item + 1;
  const near = known.neighbors[item].slice(0, STRIP);
  strip.replaceChildren(one(known, item), then(), ...near.map((other) => one(known, other, known.labels && known.labels[other] !== known.labels[item])));
  const ring = PLOTS[box.id].data.at(-1);
  const at = [item, ...near].map((wanted) => place(box.id, wanted)).filter(Boolean);
  const [x, y, size] = [at.map(([across]) => across), at.map(([, up]) => up), at.map((_, k) => (k ? 9 : 16))];
  Object.assign(ring, { x, y, marker: { ...ring.marker, size } });
  if (box.data) Plotly.restyle(box, { x: [x], y: [y], "marker.size": [size] }, [box.data.length - 1]);
}

function place(id, item) {
  for (const { customdata, x, y } of PLOTS[id].data) {
    const index = customdata ? customdata.indexOf(item) : -1;
    if (index >= 0) return [x[index], y[index]];
  }
  return null;
}

function one(known, item, other = false) {
  const text = describe(known, item).replaceAll("\n", ", ") + (other ? ", of another class" : "");
  const element = document.createElement(known.sheet ? "i" : "span");
  if (known.sheet) {
    show(element, known.sheet, item);
    element.setAttribute("role", "img");
    element.setAttribute("aria-label", text);
  } else {
    element.className = "word";
    const name = known.classes.length ? known.classes[known.labels[item]] : `point ${item + 1}`;
    element.textContent = known.texts?.[item] ?? (/^\d+$/.test(name) ? `class ${name}` : name);
  }
  element.classList.toggle("other", other);
  element.title = text;
  return element;
}

function then() {
  const arrow = document.createElement("span");
  arrow.className = "then";
  arrow.setAttribute("aria-hidden", "true");
  arrow.textContent = "→";
  return arrow;
}

let coloredBy = "label"; // as the figures are drawn

function recolor() {
  const by = document.querySelector('input[name="color"]:checked')?.value ?? "label";
  if (by === coloredBy && by === "label") return;
  coloredBy = by;
  const style = getComputedStyle(document.documentElement);
  const steps = CONTINUOUS.map((step) => style.getPropertyValue(`--mass-${step}`).trim());
  const ends = [];
  for (const [id, known] of Object.entries(DATA.maps ?? {})) {
    const box = document.getElementById(id);
    if (!box.data) continue;
    const { values, of, colors } = known.colors[by] ?? {};
    const sorted = values && [...values].sort((a, b) => a - b);
    const range = sorted && [sorted[Math.floor(sorted.length * 0.02)], sorted[Math.ceil(sorted.length * 0.98) - 1]];
    if (range) ends.push(range);
    const painted = PLOTS[id].data.slice(0, -1).map(({ customdata, marker }) => {
      if (values) return customdata.map((item) => steps[Math.round(4 * Math.min(1, Math.max(0, (values[item] - range[0]) / (range[1] - range[0] || 1))))]);
      return of ? customdata.map((item) => colors[of[item]]) : marker.color;
    });
    Plotly.restyle(box, { "marker.color": painted }, painted.map((_, index) => index));
  }
  const scale = document.querySelector(".scale.continuous");
  if (!scale) return;
  scale.hidden = !ends.length;
  const tell = (values) => [...new Set(values.map((value) => value.toPrecision(3)))].join(" / ");
  scale.querySelector(".low").textContent = `${by} ${tell(ends.map(([low]) => low))}`;
  scale.querySelector(".high").textContent = tell(ends.map(([, high]) => high));
}

function maps() {
  for (const id of Object.keys(DATA.maps ?? {})) if (DATA.maps[id].neighbors) pick(id, 0);
  for (const input of document.querySelectorAll('input[name="color"]')) input.addEventListener("change", recolor);
  for (const input of document.querySelectorAll(".pick")) {
    input.addEventListener("change", () => {
      const item = Math.min(Number(input.max), Math.max(1, Math.round(Number(input.value) || 1))) - 1;
      pick(input.dataset.map, item);
    });
  }
}
