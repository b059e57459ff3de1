// Replaces CSS variables in figures by the colors of the theme, as plotly cannot read them.
// Decodes matrices from base64 bytes to rows of numbers.
const DARK = matchMedia("(prefers-color-scheme: dark)");

function rows({ bytes, columns, withoutSelf }) {
  const letters = atob(bytes);
  return Array.from({ length: letters.length / columns }, (_, i) =>
    Array.from({ length: columns }, (_, j) => (withoutSelf && i === j ? null : letters.charCodeAt(i * columns + j))));
}

function paint(value, style) {
  if (typeof value === "string") return value.startsWith("var(--") ? style.getPropertyValue(value.slice(4, -1)).trim() : value;
  if (Array.isArray(value)) return value.map((part) => paint(part, style));
  if (value === null || typeof value !== "object") return value;
  if (value.bytes !== undefined) return rows(value);
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, paint(part, style)]));
}

// Figures are drawn one at a time in page order, so that the page responds immediately.
const POINTER = matchMedia("(hover: hover) and (pointer: fine)");
const CONFIG = {
  responsive: true, displaylogo: false, plotlyServerURL: "", displayModeBar: POINTER.matches ? "hover" : false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "toggleSpikelines"],
};
const LISTENERS = { map: [], square: [] };

// To a screen reader a figure is its label alone.
function draw(box) {
  const style = getComputedStyle(document.documentElement);
  const first = !box.data;
  const { data, layout } = paint(PLOTS[box.id], style);
  if (box.matches(".square")) layout.plot_bgcolor = style.getPropertyValue("--excluded").trim();
  data.forEach((trace, index) => { if (!first) trace.visible = box.data[index].visible ?? true; });
  layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: layout.font.color, activecolor: layout.hoverlabel.font.color };
  layout.dragmode = POINTER.matches ? "zoom" : false;
  Plotly.react(box, data, layout, CONFIG);
  for (const part of [...box.children, document.getElementById("js-plotly-tester")]) part.setAttribute("aria-hidden", "true");
  if (first) for (const [kind, listeners] of Object.entries(LISTENERS)) if (box.matches(`.${kind}`)) listeners.forEach((listen) => listen(box));
}

function boxes() { return [...document.querySelectorAll(".plot")]; }

function redraw() {
  for (const box of boxes()) draw(box);
  recolor();
}

LISTENERS.square.push((box) => {
  box.on("plotly_hover", ({ event, points: [point] }) => {
    const { meta, customdata } = point.data;
    if (customdata) return showTip(event, customdata[point.y][point.x]);
    if (meta.places) return showTip(event, `cosine ${(meta.scale[0] + (point.z / 255) * (1 - meta.scale[0])).toFixed(2)}\n${meta.places[point.y]}\n${meta.places[point.x]}`);
    const self = point.z === null || Number.isNaN(point.z);
    showTip(event, `${self ? "self pair, excluded" : `mass ${mass(point.z, meta.scale)}`}\nrow: ${meta.rows[point.y]}\ncolumn: ${meta.columns[point.x]}`);
  });
  box.on("plotly_unhover", hideTip);
});

function mass(byte, [low, high]) {
  const value = 10 ** (low + (byte / 255) * (high - low));
  return byte === 0 ? `at most ${value.toPrecision(2)}` : `about ${value.toPrecision(2)}`;
}
