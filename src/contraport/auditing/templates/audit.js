const STEP = 24;
const form = document.getElementById("filters"), list = document.getElementById("list"), more = document.getElementById("more");
const marks = new Map();
const partnerOf = new Map(PAIRS.map((pair) => [pair.id, pair.partner]));
let shown = STEP;

const short = (value) => value.toFixed(3).replace("-", "−");

const confidence = (pair) => (pair.confidence === null ? "" : ` (right with probability ${(100 * pair.confidence).toFixed(0)}%)`);

function side(view, caption, proposed) {
  return element("figure", { className: proposed ? "preview proposed" : "preview" }, preview(view, caption), element("figcaption", { textContent: caption }));
}

function card(pair) {
  const title = element("h3", {}, element("span", { textContent: `Pair ${pair.id}` }));
  if (pair.flagged) title.append(element("span", { className: "flag", textContent: "flagged" }));
  title.append(element("span", { className: "aside", textContent: [pair.kind && `class ${pair.kind}`, pair.name].filter(Boolean).join(" · ") }));
  const sides = element("div", { className: "sides" }, side(pair.views[0], VIEWS[0]), side(pair.views[1], VIEWS[1]));
  if (pair.partner >= 0) sides.append(side(pair.views[2], `better: ${VIEWS[1]} of ${pair.partner}`, true));
  const gain = pair.partner >= 0 ? `; with the ${VIEWS[1]} of ${pair.partner}: ${short(pair.partner_score)}${confidence(pair)}` : "; no better partner found";
  const foot = element("div", { className: "foot" }, element("span", { textContent: `score ${short(pair.score)}${gain}` }), element("span", { textContent: `${(100 * pair.fdr).toFixed(0)}% of the pairs that score as low are right` }));
  const buttons = ["wrong", "right"].map((word) => element("button", { type: "button", textContent: word }));
  const press = () => buttons.forEach((button) => button.setAttribute("aria-pressed", marks.get(pair.id) === button.textContent));
  buttons.forEach((button) => {
    button.setAttribute("aria-label", `mark pair ${pair.id} ${button.textContent}`);
    button.addEventListener("click", () => {
      if (marks.get(pair.id) === button.textContent) marks.delete(pair.id);
      else marks.set(pair.id, button.textContent);
      press();
      updateCount();
    });
  });
  press();
  foot.append(element("span", { className: "marks" }, ...buttons));
  return element("li", {}, title, sides, foot);
}

const ORDERS = { worst: () => 0, gain: (a, b) => b.partner_score - b.score - (a.partner_score - a.score), data: (a, b) => a.id - b.id };
const FILTERS = {
  all: () => true, flagged: (pair) => pair.flagged, partner: (pair) => pair.partner >= 0,
  mutual: (pair) => pair.partner >= 0 && partnerOf.get(pair.partner) === pair.id, unmarked: (pair) => !marks.has(pair.id),
  wrong: (pair) => marks.get(pair.id) === "wrong", right: (pair) => marks.get(pair.id) === "right",
};

function chosen() {
  const { show, kind, order, find } = Object.fromEntries(new FormData(form));
  const word = find.trim().toLowerCase();
  const matches = (pair) => String(pair.id) === word || (pair.name && pair.name.toLowerCase().includes(word));
  return PAIRS.filter((pair) => FILTERS[show](pair) && (!kind || pair.kind === kind) && (!word || matches(pair))).sort(ORDERS[order]);
}

function updateCount(pairs = chosen()) {
  const wrong = [...marks.values()].filter((mark) => mark === "wrong").length;
  document.getElementById("count").textContent = `${pairs.length} of ${PAIRS.length} pairs${marks.size ? `; ${wrong} marked wrong, ${marks.size - wrong} marked right` : ""}.`;
}

function show() {
  const pairs = chosen();
  list.replaceChildren(...pairs.slice(0, shown).map(card));
  more.hidden = pairs.length <= shown;
  updateCount(pairs);
}

function download() {
  // A text that a spreadsheet would take for a formula gets an apostrophe before it, as in pairs.csv.
  const isFormula = (value) => typeof value === "string" && /^[=+\-@\t\r]/.test(value) && !/^[+-](\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(value);
  const plain = (value) => (isFormula(value) ? `'${value}` : value);
  const quoted = (value) => (/[",\r\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value);
  const rows = chosen().map((pair) => [pair.id, pair.row, pair.name, pair.score, pair.fdr, pair.flagged, pair.partner, pair.partner_score, pair.confidence ?? "", marks.get(pair.id) ?? ""]);
  const text = [["id", "row", "name", "score", "fdr", "flagged", "partner", "partner_score", "partner_confidence", "mark"], ...rows].map((row) => row.map(plain).map(quoted).join(",")).join("\n");
  const link = element("a", { download: "pairs-chosen.csv", href: URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  return text;
}

function histogram() {
  const svg = document.getElementById("histogram"), [left, width, floor, height] = [8, 584, 160, 145];
  const top = Math.max(...BINS.pairs, ...BINS.mismatched), step = width / BINS.pairs.length;
  const y = (share) => floor - (height * share) / top, x = (score) => left + (width * (score - BINS.low)) / (BINS.high - BINS.low);
  BINS.pairs.forEach((share, bin) => shape(svg, "rect", { class: "of-pairs", x: left + bin * step, width: step * 0.92, y: y(share), height: floor - y(share) }));
  shape(svg, "polyline", { class: "of-mismatched", points: BINS.mismatched.flatMap((share, bin) => [`${left + bin * step},${y(share)}`, `${left + (bin + 1) * step},${y(share)}`]).join(" ") });
  shape(svg, "line", { class: "base", x1: left, x2: left + width, y1: floor, y2: floor });
  if (BINS.mark !== null) shape(svg, "line", { class: "cut", x1: x(BINS.mark), x2: x(BINS.mark), y1: 8, y2: floor });
  [BINS.low, BINS.high].forEach((end, place) => { document.querySelectorAll(".axis b")[place].textContent = short(end); });
}

form.addEventListener("input", () => { shown = STEP; show(); });
form.addEventListener("submit", (event) => event.preventDefault());
more.addEventListener("click", () => { shown += STEP; show(); });
document.getElementById("download").addEventListener("click", download);
histogram();
show();
