// Plans: slider over the epochs, and lines from the items of the first view to those of the second.
const ROW = 30, WIDE = 120, LEAST_SHARE = 0.05, MOST_LINES = 16;

// Shares of each row in the block from the first view to the second.
function between({ plans, items, scale: [low, high] }, moment) {
  const bytes = rows(plans[moment]);
  const start = bytes[0].length > items ? items : 0;
  const step = Math.max(1, Math.ceil(items / MOST_LINES));
  const shown = Array.from({ length: items }, (_, k) => k).filter((k) => k % step === 0);
  const shares = shown.map((i) => {
    const row = bytes[i].slice(start, start + items).map((byte) => (byte ? 10 ** (low + (byte / 255) * (high - low)) : 0));
    const all = row.reduce((sum, value) => sum + value, 0) || 1;
    return shown.map((j) => row[j] / all);
  });
  return { shown, shares };
}

function lines(card) {
  const known = DATA.plans[card.dataset.plan];
  const { shown, shares } = between(known, Number(card.querySelector('input[type="range"]')?.value ?? known.plans.length - 1));
  const box = card.querySelector(".lines");
  const side = (view) => {
    const column = document.createElement("div");
    for (const item of shown) {
      const element = document.createElement(known.sheets[view] ? "i" : "span");
      if (known.sheets[view]) show(element, known.sheets[view], item);
      else { element.className = "word"; element.textContent = known.classes[item] || item + 1; }
      element.title = `view ${view + 1}, item ${item + 1}${known.classes[item] ? ` (${known.classes[item]})` : ""}`;
      column.append(element);
    }
    return column;
  };
  const most = Math.max(...shares.flat());
  const svg = box.querySelector("svg");
  svg.setAttribute("viewBox", `0 0 ${WIDE} ${ROW * shown.length}`);
  svg.style.height = `${ROW * shown.length}px`;
  svg.innerHTML = shares.flatMap((row, i) => row.map((share, j) => (share < LEAST_SHARE ? "" :
    `<line x1="0" y1="${(i + 0.5) * ROW}" x2="${WIDE}" y2="${(j + 0.5) * ROW}" class="${i === j ? "own" : "else"}"
      style="stroke-width: ${0.6 + 3.4 * (share / most)}px; opacity: ${0.2 + 0.7 * (share / most)}"/>`))).join("");
  box.replaceChildren(side(0), svg, side(1));
}

function slide(card, input) {
  const known = DATA.plans[card.dataset.plan];
  const moment = Number(input.value);
  const plot = PLOTS[card.dataset.plan];
  plot.data[0].z = { ...known.plans[moment], withoutSelf: known.withoutSelf };
  const target = PLOTS[card.dataset.plan.replace("plan", "target")];
  target.data[0].z = { ...known.targets[Math.min(moment, known.targets.length - 1)], withoutSelf: known.withoutSelf };
  for (const box of card.querySelectorAll(".plot")) if (box.data) draw(box);
  card.querySelector(".epoch").textContent = known.epochs[moment];
  card.querySelector(".on-target").textContent = `${Math.round(100 * known.onTarget[moment])}%`;
  card.querySelector(".mass").textContent = `${(100 * known.mass[moment]).toFixed(1)}%`;
  input.setAttribute("aria-valuetext", `epoch ${known.epochs[moment]}, ${Math.round(100 * known.onTarget[moment])}% on target`);
  document.getElementById(card.dataset.plan).setAttribute("aria-label", known.labels[moment]);
  card.querySelector(".lines").setAttribute("aria-label", known.lineLabels[moment]);
  lines(card);
}

function plans() {
  for (const card of document.querySelectorAll(".card.plan")) {
    lines(card);
    const input = card.querySelector('input[type="range"]');
    input?.addEventListener("input", () => slide(card, input));
  }
}
