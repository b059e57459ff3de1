// The figures name their colours by CSS variables; plotly cannot read those, so they are painted here for the theme.
const POINTER = matchMedia("(hover: hover) and (pointer: fine)");
const CONFIG = {
  responsive: true, displaylogo: false, plotlyServerURL: "", displayModeBar: POINTER.matches ? "hover" : false,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "toggleSpikelines"],
};
const DARK = matchMedia("(prefers-color-scheme: dark)");
const tip = document.getElementById("tip");
const [picture, words] = tip.children;

function paint(value, style) {
  if (typeof value === "string") return value.startsWith("var(--") ? style.getPropertyValue(value.slice(4, -1)).trim() : value;
  if (Array.isArray(value)) return value.map((part) => paint(part, style));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, paint(part, style)]));
}

function draw() {
  const style = getComputedStyle(document.documentElement);
  for (const [key, figure] of Object.entries(PLOTS)) {
    const { data, layout } = paint(figure, style);
    const box = document.getElementById(key);
    if (box.classList.contains("heatmap")) layout.plot_bgcolor = style.getPropertyValue("--excluded").trim();
    data.forEach((trace, index) => { if (box.data) trace.visible = box.data[index].visible ?? true; });
    layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: layout.font.color, activecolor: layout.hoverlabel.font.color };
    layout.dragmode = POINTER.matches ? "zoom" : false;
    Plotly.react(box, data, layout, CONFIG);
  }
}

function showTip(event, text, sheet, item) {
  words.textContent = text;
  picture.className = "";
  picture.removeAttribute("style");
  if (sheet) {
    const scale = 96 / Math.max(sheet.width, sheet.height);
    const column = item % sheet.columns, row = Math.floor(item / sheet.columns);
    picture.className = `sprite-${sheet.key}`;
    Object.assign(picture.style, {
      width: `${sheet.width * scale}px`, height: `${sheet.height * scale}px`,
      backgroundSize: `${sheet.columns * sheet.width * scale}px auto`,
      backgroundPosition: `${-column * sheet.width * scale}px ${-row * sheet.height * scale}px`,
    });
  }
  tip.hidden = false;
  const { clientX, clientY } = event;
  const left = clientX + 16 + tip.offsetWidth > innerWidth ? clientX - 16 - tip.offsetWidth : clientX + 16;
  const top = Math.min(clientY + 12, innerHeight - tip.offsetHeight - 8);
  tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
}

function listen() {
  for (const box of document.querySelectorAll(".plot.scatter")) {
    const { sprite, classes } = box.closest("figure").dataset;
    const names = JSON.parse(classes);
    const sheet = sprite && { key: sprite, ...SPRITES[sprite] };
    box.on("plotly_hover", ({ event, points: [point] }) => {
      const item = point.customdata;
      showTip(event, names.length ? names[point.data.meta] : `item ${item + 1}`, sheet, item);
    });
  }
  for (const box of document.querySelectorAll(".plot.heatmap")) {
    box.on("plotly_hover", ({ event, points: [point] }) => {
      const { rows, columns } = point.data.meta;
      const mass = point.z === null || Number.isNaN(point.z) ? "self pair, excluded" : `mass ${point.customdata.toPrecision(3)}`;
      showTip(event, `${mass}\nrow: ${rows[point.y]}\ncolumn: ${columns[point.x]}`);
    });
  }
  for (const box of document.querySelectorAll(".plot.scatter, .plot.heatmap")) box.on("plotly_unhover", () => { tip.hidden = true; });
  for (const button of document.querySelectorAll("button[data-toggles]")) button.addEventListener("click", () => toggle(button));
}

function toggle(button) {
  const shown = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", shown);
  const { toggles, meta, of } = button.dataset;
  for (const box of document.querySelectorAll(toggles)) {
    if (of !== undefined && box.closest("figure").dataset.of !== of) continue;
    const traces = box.data.flatMap((trace, index) => (trace.meta === Number(meta) ? [index] : []));
    if (traces.length) Plotly.restyle(box, { visible: shown }, traces);
  }
}

function print(begins) {
  if (begins) document.documentElement.dataset.theme = "light";
  else delete document.documentElement.dataset.theme;
  document.querySelectorAll("details").forEach((details) => { details.open ||= begins; });
  draw();
}

function begin() {
  draw();
  listen();
  DARK.addEventListener("change", draw);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
}

// The plotting library is most of the page; it is carried compressed.
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

function hint() {
  for (const box of document.querySelectorAll(".hint + .scroll")) box.previousElementSibling.hidden = box.scrollWidth <= box.clientWidth;
}

hint();
addEventListener("resize", hint);
unpack(PACKED).then((source) => {
  const script = document.createElement("script");
  script.textContent = source;
  document.head.append(script);
  begin();
});
