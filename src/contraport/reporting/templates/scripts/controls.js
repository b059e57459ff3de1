const MOST_TICKS = 12; // as MAX_INTEGER_TICKS in plotly_figures.py

// Buttons that show and hide lines and classes, and the axis along which curves are drawn.
function toggle(button) {
  const shown = button.getAttribute("aria-pressed") !== "true";
  const { toggles, meta, of } = button.dataset;
  for (const same of document.querySelectorAll(`button[data-toggles="${toggles}"]`)) {
    if (same.dataset.meta === meta && same.dataset.of === of) same.setAttribute("aria-pressed", shown);
  }
  for (const box of document.querySelectorAll(toggles)) {
    if (!box.data || (of !== undefined && box.closest("figure").dataset.of !== of)) continue;
    const traces = box.data.flatMap((trace, index) => (trace.meta === Number(meta) ? [index] : []));
    if (traces.length) Plotly.restyle(box, { visible: shown }, traces);
    const label = (box.layout.annotations ?? []).findIndex(({ name }) => name === meta);
    if (label >= 0) Plotly.relayout(box, { [`annotations[${label}].visible`]: shown });
  }
}

function along(key, title) {
  for (const [id, lines] of Object.entries(DATA.along ?? {})) {
    lines.forEach((line, index) => { PLOTS[id].data[index].x = line[key] ?? []; });
    PLOTS[id].layout.xaxis.title.text = title;
    PLOTS[id].layout.xaxis.tickformat = key === "share" ? ".1~%" : "";
    PLOTS[id].layout.xaxis.dtick = key === "epoch" && Math.max(...lines.flatMap((line) => line[key] ?? [])) <= MOST_TICKS ? 1 : undefined;
    const box = document.getElementById(id);
    if (box.data) draw(box);
  }
}

function controls() {
  for (const button of document.querySelectorAll("button[data-toggles]")) button.addEventListener("click", () => toggle(button));
  for (const input of document.querySelectorAll('input[name="along"]')) input.addEventListener("change", () => along(input.value, input.dataset.title));
}
